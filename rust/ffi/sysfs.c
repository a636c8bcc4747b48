// SPDX-License-Identifier: GPL-2.0
/*
 * The tree below /sys/kernel/agentzip: directories and attributes. What an
 * attribute says is decided in sysfs.rs.
 *
 *	/sys/kernel/agentzip/			the switches
 *	/sys/kernel/agentzip/stats/		the whole store
 *	/sys/kernel/agentzip/sandboxes/<id>/	one sandbox, by cgroup id
 *	/sys/kernel/agentzip/templates/<name>/	one template
 */
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/stringify.h>
#include <linux/sysfs.h>

#include "agentzip_ffi.h"

/* Given by Kbuild. Who arms compares it with the BTF of the kernel that runs. */
#ifdef AGENTZIP_KERNEL_BTF
#define KERNEL_BTF __stringify(AGENTZIP_KERNEL_BTF)
#else
#define KERNEL_BTF "none"
#endif

MODULE_INFO(kernel_btf, KERNEL_BTF);

const char *agentzip_kernel_btf(void)
{
	return KERNEL_BTF;
}

struct agentzip_node {
	struct kobject kobj;
	enum agentzip_node_kind kind;
	unsigned int id;
};

struct agentzip_attribute {
	struct attribute attr;
	enum agentzip_attr id;
};

#define DEFINE_ATTR(name_, mode_)					\
	static struct agentzip_attribute attr_##name_ = {		\
		.attr = { .name = #name_, .mode = mode_ },		\
		.id = AGENTZIP_ATTR_##name_,				\
	};
AGENTZIP_ATTRS(DEFINE_ATTR)

#define A(name_) (&attr_##name_.attr)

#define PAGE_ATTRS							\
	A(entries), A(stores), A(loads), A(erased),			\
	A(declined_incompressible), A(declined_nomem),			\
	A(declined_full), A(declined_detached), A(load_errors),		\
	A(template_backed), A(promoted), A(dropped),			\
	A(provisional), A(second_look_pages), A(second_look_bytes),	\
	A(second_look_ns),						\
	A(prefetch_pages), A(prefetch_present), A(prefetch_absent),	\
	A(prefetch_dropped), A(prefetch_hits), A(prefetch_misses),	\
	A(prefetch_untested), A(prefetch_ns),				\
	A(encode_ns), A(decode_ns), A(load_latency),			\
	A(faults), A(faults_lost),					\
	A(pages_fill), A(pages_ref), A(pages_delta),			\
	A(pages_delta_zstd), A(pages_zstd), A(pages_prefix),		\
	A(pages_dict), A(pages_padded),					\
	A(bytes_fill), A(bytes_ref), A(bytes_delta),			\
	A(bytes_delta_zstd), A(bytes_zstd), A(bytes_prefix),		\
	A(bytes_dict), A(bytes_padded)

static struct attribute *root_attrs[] = {
	A(abi_version), A(armed), A(draining), A(enabled),
	A(max_bytes), A(max_distance), A(second_look),
	A(second_look_percent), A(prefetch), A(keep_on_load), A(recorder),
	A(kernel_btf), NULL,
};

static struct attribute *stats_attrs[] = {
	PAGE_ATTRS, A(memory_arenas), A(memory_references), A(memory_sketches),
	A(memory_dictionaries), A(memory_table), A(memory_template_pages),
	A(memory_template_index),
	A(memory_scratch), A(memory_objects), A(memory_total), NULL,
};

static struct attribute *sandbox_attrs[] = {
	PAGE_ATTRS, A(phase), A(level), A(template), A(group), A(domain),
	A(attached), A(sensitive), A(max_bytes), A(arena_bytes), A(group_references),
	A(group_reference_bytes), A(group_sketch_bytes),
	A(group_dictionaries), A(group_dictionary_bytes),
	A(group_dictionary_users), A(group_dictionary_first),
	A(group_dictionary_recent), A(ranges), NULL,
};

static struct attribute *template_attrs[] = {
	A(domain), A(source), A(signature), A(pages_referenced),
	A(pages_copied), A(pages_skipped), A(pages_indexed), A(users),
	A(index_bytes), A(page_bytes), A(sketch_bytes), NULL,
};

/*
 * What is about one tenant is not for the others: phases, and sizes to the
 * byte.
 */
static umode_t not_for_others(struct kobject *kobj, struct attribute *attr,
			      int n)
{
	return attr->mode & ~0007;
}

static const struct attribute_group sandbox_group = {
	.attrs = sandbox_attrs, .is_visible = not_for_others,
};

static const struct attribute_group template_group = {
	.attrs = template_attrs, .is_visible = not_for_others,
};

ATTRIBUTE_GROUPS(root);
ATTRIBUTE_GROUPS(stats);
__ATTRIBUTE_GROUPS(sandbox);
__ATTRIBUTE_GROUPS(template);

static ssize_t node_show(struct kobject *kobj, struct attribute *attr,
			 char *buf)
{
	struct agentzip_node *node = container_of(kobj, struct agentzip_node, kobj);
	struct agentzip_attribute *a =
		container_of(attr, struct agentzip_attribute, attr);

	return agentzip_rs_show(node->kind, node->id, a->id, buf);
}

static ssize_t node_store(struct kobject *kobj, struct attribute *attr,
			  const char *buf, size_t len)
{
	struct agentzip_node *node = container_of(kobj, struct agentzip_node, kobj);
	struct agentzip_attribute *a =
		container_of(attr, struct agentzip_attribute, attr);

	return agentzip_rs_set(node->kind, node->id, a->id, buf, len);
}

static void node_release(struct kobject *kobj)
{
	kfree(container_of(kobj, struct agentzip_node, kobj));
}

static const struct sysfs_ops node_ops = {
	.show = node_show,
	.store = node_store,
};

static const struct kobj_type node_types[] = {
	[AGENTZIP_NODE_ROOT] = {
		.release = node_release, .sysfs_ops = &node_ops,
		.default_groups = root_groups,
	},
	[AGENTZIP_NODE_STATS] = {
		.release = node_release, .sysfs_ops = &node_ops,
		.default_groups = stats_groups,
	},
	[AGENTZIP_NODE_SANDBOX] = {
		.release = node_release, .sysfs_ops = &node_ops,
		.default_groups = sandbox_groups,
	},
	[AGENTZIP_NODE_TEMPLATE] = {
		.release = node_release, .sysfs_ops = &node_ops,
		.default_groups = template_groups,
	},
};

static struct agentzip_node *root, *stats;
static struct kobject *sandboxes, *templates;

static struct agentzip_node *node_add(enum agentzip_node_kind kind,
				      unsigned int id, const char *name,
				      struct kobject *parent)
{
	struct agentzip_node *node = kzalloc(sizeof(*node), GFP_KERNEL);

	if (!node)
		return NULL;
	node->kind = kind;
	node->id = id;
	if (kobject_init_and_add(&node->kobj, &node_types[kind], parent, "%s",
				 name)) {
		kobject_put(&node->kobj);
		return NULL;
	}
	return node;
}

struct agentzip_node *agentzip_sysfs_add(enum agentzip_node_kind kind,
					 unsigned int id, const char *name)
{
	return node_add(kind, id, name,
			kind == AGENTZIP_NODE_SANDBOX ? sandboxes : templates);
}

/* kobject_del() waits for readers; afterwards nothing calls into Rust. */
void agentzip_sysfs_remove(struct agentzip_node *node)
{
	kobject_del(&node->kobj);
	kobject_put(&node->kobj);
}

int agentzip_sysfs_init(void)
{
	root = node_add(AGENTZIP_NODE_ROOT, 0, "agentzip", kernel_kobj);
	if (!root)
		return -ENOMEM;
	stats = node_add(AGENTZIP_NODE_STATS, 0, "stats", &root->kobj);
	sandboxes = kobject_create_and_add("sandboxes", &root->kobj);
	templates = kobject_create_and_add("templates", &root->kobj);
	if (!stats || !sandboxes || !templates) {
		agentzip_sysfs_exit();
		return -ENOMEM;
	}
	return 0;
}

void agentzip_sysfs_exit(void)
{
	kobject_put(templates);
	kobject_put(sandboxes);
	if (stats)
		agentzip_sysfs_remove(stats);
	if (root)
		agentzip_sysfs_remove(root);
	templates = sandboxes = NULL;
	stats = root = NULL;
}
