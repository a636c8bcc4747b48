// SPDX-License-Identifier: GPL-2.0
/*
 * Test companion of agentzip.ko: the other users of ftrace that a host may have.
 *
 *  block=<function>   is a second IPMODIFY user of that function, as a livepatch would be. It
 *                     changes nothing; it only holds the claim. Loading fails with the errno of
 *                     register_ftrace_function() (EBUSY when somebody else has the claim).
 *  slow_comm=<name>   redirects zs_malloc(): a task of that name sleeps for slow_ms in it, so
 *                     that it can be caught inside a store.
 *  fail_comm=<name>   redirects zs_malloc(): a task of that name gets -ENOMEM.
 *  corrupt_comm=<name> redirects zs_obj_read_begin(): a task of that name reads objects with
 *                     one byte changed, the one at corrupt_at or the last.
 *
 * 'sleepers' and 'redirected' are read by the tests to know where that task is.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/zsmalloc.h>

static char *block;
module_param(block, charp, 0444);
MODULE_PARM_DESC(block, "function to claim with IPMODIFY, unchanged");

static char *slow_comm;
module_param(slow_comm, charp, 0444);
MODULE_PARM_DESC(slow_comm, "task name whose zs_malloc() calls sleep first");

static unsigned int slow_ms = 500;
module_param(slow_ms, uint, 0644);
MODULE_PARM_DESC(slow_ms, "how long such a call sleeps, in ms");

static char *fail_comm;
module_param(fail_comm, charp, 0444);
MODULE_PARM_DESC(fail_comm, "task name whose zs_malloc() calls fail with -ENOMEM");

static char *corrupt_comm;
module_param(corrupt_comm, charp, 0444);
MODULE_PARM_DESC(corrupt_comm, "task name whose zs_obj_read_begin() calls give bad bytes");

static unsigned int corrupt_at;
module_param(corrupt_at, uint, 0644);
MODULE_PARM_DESC(corrupt_at, "which byte of an object is bad");

/* What that task, of which there is only one, reads instead of the object. */
static u8 corrupted[PAGE_SIZE];

/* Tasks inside a replacement now. */
static atomic_t inside = ATOMIC_INIT(0);
/* Calls that slept, failed or gave bad bytes on purpose. */
static atomic_t redirected = ATOMIC_INIT(0);

static int atomic_param_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", atomic_read((atomic_t *)kp->arg));
}

static const struct kernel_param_ops atomic_param_ops = {
	.get = atomic_param_get,
};
module_param_cb(sleepers, &atomic_param_ops, &inside, 0444);
module_param_cb(redirected, &atomic_param_ops, &redirected, 0444);

static bool current_is(const char *name)
{
	return name && !strncmp(current->comm, name, TASK_COMM_LEN - 1);
}

static unsigned long replaced_zs_malloc(struct zs_pool *pool, size_t size,
					gfp_t gfp, const int nid)
{
	unsigned long handle;

	atomic_inc(&inside);
	if (current_is(slow_comm)) {
		atomic_inc(&redirected);
		msleep(slow_ms);
	}
	if (current_is(fail_comm)) {
		atomic_inc(&redirected);
		handle = (unsigned long)ERR_PTR(-ENOMEM);
	} else {
		/* A direct call; the handler lets calls from this module pass. */
		handle = zs_malloc(pool, size, gfp, nid);
	}
	atomic_dec(&inside);
	return handle;
}

static void *replaced_zs_obj_read_begin(struct zs_pool *pool,
					unsigned long handle, size_t mem_len,
					void *local_copy)
{
	void *object;

	atomic_inc(&inside);
	object = zs_obj_read_begin(pool, handle, mem_len, local_copy);
	if (mem_len && mem_len <= sizeof(corrupted)) {
		atomic_inc(&redirected);
		memcpy(corrupted, object, mem_len);
		corrupted[min_t(size_t, corrupt_at, mem_len - 1)] ^= 0x55;
		/* zs_obj_read_end() needs the address only for kunmap_local(), which is empty. */
		object = corrupted;
	}
	atomic_dec(&inside);
	return object;
}

static void notrace read_handler(unsigned long ip, unsigned long parent_ip,
				 struct ftrace_ops *ops,
				 struct ftrace_regs *fregs)
{
	if (within_module(parent_ip, THIS_MODULE) || !current_is(corrupt_comm))
		return;
	ftrace_regs_set_instruction_pointer(fregs,
					    (unsigned long)replaced_zs_obj_read_begin);
}

static void notrace redirect_handler(unsigned long ip, unsigned long parent_ip,
				     struct ftrace_ops *ops,
				     struct ftrace_regs *fregs)
{
	if (within_module(parent_ip, THIS_MODULE))
		return;
	if (!current_is(slow_comm) && !current_is(fail_comm))
		return;
	ftrace_regs_set_instruction_pointer(fregs,
					    (unsigned long)replaced_zs_malloc);
}

static void notrace claim_handler(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
}

static struct ftrace_ops redirect_ops = {
	.func = redirect_handler,
	.flags = FTRACE_OPS_FL_IPMODIFY,
};

static struct ftrace_ops read_ops = {
	.func = read_handler,
	.flags = FTRACE_OPS_FL_IPMODIFY,
};

static struct ftrace_ops claim_ops = {
	.func = claim_handler,
	.flags = FTRACE_OPS_FL_IPMODIFY,
};

static int claim(struct ftrace_ops *ops, char *name)
{
	int ret = ftrace_set_filter(ops, (unsigned char *)name, strlen(name), 1);

	if (!ret)
		ret = register_ftrace_function(ops);
	if (ret)
		ftrace_free_filter(ops);
	return ret;
}

static void release(struct ftrace_ops *ops)
{
	unregister_ftrace_function(ops);
	ftrace_free_filter(ops);
}

/* A task may sleep in a replacement, or be about to enter or to leave one. */
static void leave_replacements(void)
{
	synchronize_rcu_tasks();
	while (atomic_read(&inside))
		msleep(10);
	synchronize_rcu_tasks();
}

static bool redirects(void)
{
	return slow_comm || fail_comm;
}

static int __init testmod_init(void)
{
	static char zs_malloc_name[] = "zs_malloc";
	static char zs_read_name[] = "zs_obj_read_begin";
	int ret = 0;

	if (block)
		ret = claim(&claim_ops, block);
	if (ret)
		return ret;
	if (redirects())
		ret = claim(&redirect_ops, zs_malloc_name);
	if (ret)
		goto release_block;
	if (corrupt_comm)
		ret = claim(&read_ops, zs_read_name);
	if (ret)
		goto release_redirect;
	return 0;

release_redirect:
	if (redirects())
		release(&redirect_ops);
release_block:
	if (block)
		release(&claim_ops);
	/* A replacement may have been entered meanwhile. */
	leave_replacements();
	return ret;
}

static void __exit testmod_exit(void)
{
	if (corrupt_comm)
		release(&read_ops);
	if (redirects())
		release(&redirect_ops);
	if (block)
		release(&claim_ops);
	leave_replacements();
}

module_init(testmod_init);
module_exit(testmod_exit);

MODULE_DESCRIPTION("second ftrace user for the tests of agentzip");
MODULE_LICENSE("GPL");
