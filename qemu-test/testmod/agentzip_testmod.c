// SPDX-License-Identifier: GPL-2.0
/*
 * Test companion of agentzip.ko: the other users of ftrace that a host may have, and help for the
 * tests on the debug kernel.
 *
 *  block=<function>   is a second IPMODIFY user of that function, as a livepatch would be. It
 *                     changes nothing; it only holds the claim. Loading fails with the errno of
 *                     register_ftrace_function() (EBUSY when somebody else has the claim).
 *  slow_comm=<name>   redirects zs_malloc(), where zswap's stores are, and the allocation of
 *                     AgentZip's pages: a task of that name sleeps for slow_ms in it, so that it
 *                     can be caught inside a store.
 *  fail_comm=<name>   redirects the same: a task of that name gets no memory.
 *  corrupt_comm=<name> redirects the access to AgentZip's pages: a task of that name sees them with
 *                     one byte in every CORRUPT_STEP changed, the first at corrupt_at.
 *  hold=<module>      stops each load of that module before its init runs, until 'go' is written;
 *                     'held_text' and 'held_init_text' say where its code is meanwhile.
 *  leak=<count>       allocates objects that nothing refers to, and frees them when it is unloaded.
 *
 * 'sleepers' and 'redirected' are read by the tests to know where that task is.
 */
#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/ftrace.h>
#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/zsmalloc.h>

static char *block;
module_param(block, charp, 0444);
MODULE_PARM_DESC(block, "function to claim with IPMODIFY, unchanged");

static char *slow_comm;
module_param(slow_comm, charp, 0444);
MODULE_PARM_DESC(slow_comm, "task name whose allocations in a store sleep first");

static unsigned int slow_ms = 500;
module_param(slow_ms, uint, 0644);
MODULE_PARM_DESC(slow_ms, "how long such a call sleeps, in ms");

static char *fail_comm;
module_param(fail_comm, charp, 0444);
MODULE_PARM_DESC(fail_comm, "task name whose allocations in a store fail");

static char *corrupt_comm;
module_param(corrupt_comm, charp, 0444);
MODULE_PARM_DESC(corrupt_comm, "task name that sees bad bytes in the store's pages");

static unsigned int corrupt_at;
module_param(corrupt_at, uint, 0644);
MODULE_PARM_DESC(corrupt_at, "which byte of each CORRUPT_STEP is bad");

static char *hold;
module_param(hold, charp, 0444);
MODULE_PARM_DESC(hold, "module whose loads wait before its init");

static unsigned int leak;
module_param(leak, uint, 0444);
MODULE_PARM_DESC(leak, "objects that nothing refers to");

/* Payloads begin at multiples of 8, so that their headers are hit now and then only. */
#define CORRUPT_STEP 24

/* What that task, of which there is only one, sees instead of a page. */
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

/* ---- hold: a load stopped before the module's init ---- */

/* Longest time that a load waits: the test may have died. */
#define HOLD_TIMEOUT (30 * HZ)

static DECLARE_COMPLETION(go);
static unsigned long held_text, held_init_text;
module_param(held_text, ulong, 0444);
module_param(held_init_text, ulong, 0444);

static int go_set(const char *val, const struct kernel_param *kp)
{
	complete(&go);
	return 0;
}

static const struct kernel_param_ops go_ops = {
	.set = go_set,
};
module_param_cb(go, &go_ops, NULL, 0200);

static int hold_module(struct notifier_block *nb, unsigned long state,
		       void *data)
{
	struct module *mod = data;

	if (state != MODULE_STATE_COMING || strcmp(mod->name, hold))
		return NOTIFY_DONE;
	reinit_completion(&go);
	WRITE_ONCE(held_init_text, (unsigned long)mod->mem[MOD_INIT_TEXT].base);
	/* Last: the test waits for it. */
	WRITE_ONCE(held_text, (unsigned long)mod->mem[MOD_TEXT].base);
	wait_for_completion_killable_timeout(&go, HOLD_TIMEOUT);
	WRITE_ONCE(held_text, 0);
	return NOTIFY_OK;
}

static struct notifier_block hold_nb = {
	.notifier_call = hold_module,
};

/* ---- leak: what kmemleak must find ---- */

#define MAX_LEAK 64

struct planted {
	char text[32];
};

/* Their addresses, inverted: kmemleak takes no notice of those. */
static unsigned long lost[MAX_LEAK];

static void free_lost(void)
{
	unsigned int i;

	for (i = 0; i < leak; i++)
		if (lost[i])
			kfree((struct planted *)~lost[i]);
}

static int lose(void)
{
	unsigned int i;

	if (leak > MAX_LEAK)
		return -EINVAL;
	for (i = 0; i < leak; i++) {
		struct planted *object = kzalloc(sizeof(*object), GFP_KERNEL);

		if (!object) {
			free_lost();
			return -ENOMEM;
		}
		/* The report shows the first bytes, 16 in a line. */
		strscpy(object->text, "planted by test");
		lost[i] = ~(unsigned long)object;
	}
	return 0;
}

/* ---- redirected functions ---- */

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

/* As the function that it stands for, which is not exported; but nothing that is optional. */
static unsigned long replaced_store_page_alloc(struct mem_cgroup *memcg,
					       bool optional)
{
	gfp_t gfp = GFP_NOWAIT | __GFP_NORETRY | __GFP_NOWARN | __GFP_ZERO;
	struct mem_cgroup *old;
	struct page *page = NULL;

	atomic_inc(&inside);
	atomic_inc(&redirected);
	if (current_is(slow_comm))
		msleep(slow_ms);
	if (!optional && !current_is(fail_comm)) {
		if (memcg)
			gfp |= __GFP_ACCOUNT;
		old = set_active_memcg(memcg);
		page = alloc_page(gfp);
		set_active_memcg(old);
	}
	atomic_dec(&inside);
	return page ? page_to_pfn(page) : 0;
}

/* The page itself must not change: other tasks read it, too. */
static void *replaced_store_page_address(unsigned long pfn)
{
	unsigned int i;

	atomic_inc(&inside);
	atomic_inc(&redirected);
	memcpy(corrupted, __va(PFN_PHYS(pfn)), PAGE_SIZE);
	for (i = corrupt_at; i < PAGE_SIZE; i += CORRUPT_STEP)
		corrupted[i] ^= 0x55;
	atomic_dec(&inside);
	return corrupted;
}

static void notrace read_handler(unsigned long ip, unsigned long parent_ip,
				 struct ftrace_ops *ops,
				 struct ftrace_regs *fregs)
{
	if (!current_is(corrupt_comm))
		return;
	ftrace_regs_set_instruction_pointer(fregs,
					    (unsigned long)replaced_store_page_address);
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

static void notrace alloc_handler(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	if (!current_is(slow_comm) && !current_is(fail_comm))
		return;
	ftrace_regs_set_instruction_pointer(fregs,
					    (unsigned long)replaced_store_page_alloc);
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

static struct ftrace_ops alloc_ops = {
	.func = alloc_handler,
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
	static char alloc_name[] = "agentzip_store_page_alloc";
	static char address_name[] = "agentzip_store_page_address";
	int ret = 0;

	if (block)
		ret = claim(&claim_ops, block);
	if (ret)
		return ret;
	if (redirects())
		ret = claim(&redirect_ops, zs_malloc_name);
	if (ret)
		goto release_block;
	if (redirects())
		ret = claim(&alloc_ops, alloc_name);
	if (ret)
		goto release_redirect;
	if (corrupt_comm)
		ret = claim(&read_ops, address_name);
	if (ret)
		goto release_alloc;
	ret = lose();
	if (ret)
		goto release_read;
	if (hold)
		ret = register_module_notifier(&hold_nb);
	if (ret)
		goto free;
	return 0;

free:
	free_lost();
release_read:
	if (corrupt_comm)
		release(&read_ops);
release_alloc:
	if (redirects())
		release(&alloc_ops);
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
	if (hold)
		unregister_module_notifier(&hold_nb);
	free_lost();
	if (corrupt_comm)
		release(&read_ops);
	if (redirects()) {
		release(&alloc_ops);
		release(&redirect_ops);
	}
	if (block)
		release(&claim_ops);
	leave_replacements();
}

module_init(testmod_init);
module_exit(testmod_exit);

MODULE_DESCRIPTION("test companion of agentzip");
MODULE_LICENSE("GPL");
