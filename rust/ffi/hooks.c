// SPDX-License-Identifier: GPL-2.0
/*
 * Hooks on the zswap entry points, and arming with all others.
 *
 * The swap core calls zswap_store(), zswap_load() and zswap_invalidate() for
 * every page that is swapped out, swapped in and freed, whether zswap is on or
 * off. We interpose with ftrace as livepatch does (IPMODIFY) and redirect only
 * where we must; every other page takes the host's own path.
 *
 * Context. A handler runs with preemption off: it never sleeps, never
 * allocates and never calls a hooked function. A replacement runs in the
 * caller's task context and may sleep.
 *
 * Unloading. A task may sleep inside a replacement, so the text must outlive
 * it. Between a handler's decision and the first instruction of a replacement,
 * and between a replacement's last srcu_read_unlock() and its return, a task
 * can only be preempted, which synchronize_rcu_tasks() waits for; in between it
 * holds agentzip_inflight. Disarming therefore unregisters the ops, then waits
 * for rcu_tasks (no task is on its way into a replacement any more), then for
 * SRCU (none is inside one), then for rcu_tasks again (none is on its way out).
 *
 * Large folios. A load of a large folio with a slot of ours is refused, as it may
 * be ours in part only, and who touches the page gets SIGBUS each time. The kernel
 * asks for large folios on synchronous swap devices only (zram, brd, pmem: do_swap_page(),
 * shmem_swap_alloc_folio()), and only as long as zswap_never_enabled(). Which device
 * is synchronous a module cannot see, and one can be added at any time. But that
 * zswap was set up is never taken back until the next boot: so nothing is hooked
 * before, and nothing need be looked at later.
 *
 * Race: a fault that saw zswap never set up may still be on its way to its large
 * folio when the hooks are there. For its load to meet an entry of ours, one of its
 * slots must meanwhile be read singly, and that page be stored by us in the same
 * slot. If so the load is refused, and so is each fault on a page of this folio as long
 * as it is in the swap cache, not uptodate. Reclaim drops it: no page is lost.
 */
#include <linux/ftrace.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/srcu.h>
#include <linux/static_call.h>
#include <linux/swap.h>
#include <linux/swapops.h>
#include <linux/zswap.h>

#include "agentzip_ffi.h"
#include "agentzip_pins.h"

#if !defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS) || !defined(CONFIG_KPROBES)
#error "AgentZip needs a kernel with DYNAMIC_FTRACE_WITH_ARGS and KPROBES"
#endif

DEFINE_STATIC_SRCU(agentzip_inflight);

/*
 * zswap's entry points have their ENDBR sealed, so an indirect call faults on
 * IBT hardware. A static call is a direct one; its target is set when arming.
 */
static void zswap_invalidate_unresolved(swp_entry_t slot)
{
}
DEFINE_STATIC_CALL(agentzip_zswap_invalidate_call, zswap_invalidate_unresolved);

/* Called the same way. */
static bool zswap_never_enabled_unresolved(void)
{
	return true;
}
DEFINE_STATIC_CALL(agentzip_zswap_never_enabled_call,
		   zswap_never_enabled_unresolved);

/* Whether the kernel may still swap in large folios: see the top of the file. */
static int check_single_pages(void)
{
	unsigned long addr;
	int ret = agentzip_resolve("zswap_never_enabled", &addr);

	if (ret) {
		pr_err("agentzip: arm: cannot find zswap_never_enabled (%d)\n",
		       ret);
		return ret;
	}
	static_call_update(agentzip_zswap_never_enabled_call,
			   (typeof(&zswap_never_enabled_unresolved))addr);
	if (!static_call(agentzip_zswap_never_enabled_call)())
		return 0;
	pr_err("agentzip: arm: zswap was never set up, so large folios may be swapped in, which cannot be loaded; write N to /sys/module/zswap/parameters/enabled\n");
	return -EOPNOTSUPP;
}

void agentzip_zswap_invalidate(unsigned long slot)
{
	static_call(agentzip_zswap_invalidate_call)((swp_entry_t){ slot });
}

static bool agentzip_store(struct folio *folio)
{
	int idx = srcu_read_lock(&agentzip_inflight);
	bool ret = agentzip_rs_store(folio);

	srcu_read_unlock(&agentzip_inflight, idx);
	return ret;
}

static int agentzip_load(struct folio *folio)
{
	int idx = srcu_read_lock(&agentzip_inflight);
	int ret = agentzip_rs_load(folio);

	srcu_read_unlock(&agentzip_inflight, idx);
	return ret;
}

static void notrace store_handler(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	int bit = ftrace_test_recursion_trylock(ip, parent_ip);
	struct folio *folio;

	if (WARN_ON_ONCE(bit < 0))
		return;
	folio = (struct folio *)ftrace_regs_get_argument(fregs, 0);
	if (agentzip_rs_store_hook(folio))
		ftrace_regs_set_instruction_pointer(fregs,
						    (unsigned long)agentzip_store);
	ftrace_test_recursion_unlock(bit);
}

static void notrace load_handler(unsigned long ip, unsigned long parent_ip,
				 struct ftrace_ops *ops,
				 struct ftrace_regs *fregs)
{
	int bit = ftrace_test_recursion_trylock(ip, parent_ip);
	struct folio *folio;

	if (WARN_ON_ONCE(bit < 0))
		return;
	folio = (struct folio *)ftrace_regs_get_argument(fregs, 0);
	if (agentzip_rs_load_hook(folio))
		ftrace_regs_set_instruction_pointer(fregs,
						    (unsigned long)agentzip_load);
	ftrace_test_recursion_unlock(bit);
}

static void notrace invalidate_handler(unsigned long ip,
				       unsigned long parent_ip,
				       struct ftrace_ops *ops,
				       struct ftrace_regs *fregs)
{
	int bit = ftrace_test_recursion_trylock(ip, parent_ip);

	if (WARN_ON_ONCE(bit < 0))
		return;
	agentzip_rs_invalidate_hook(ftrace_regs_get_argument(fregs, 0));
	ftrace_test_recursion_unlock(bit);
}

#define HOOK_FLAGS (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT)

struct hook {
	const char *target;
	unsigned long addr;
	struct ftrace_ops ops;
};

/*
 * In arming order: an entry must never exist that invalidate would miss, never
 * be stored before it could be loaded, and never be kept for a page whose
 * writes could be missed (pins.c).
 *
 * invalidate only observes, yet is IPMODIFY too: a livepatch that replaced the
 * function would otherwise go unnoticed. The handlers of pins.c change nothing
 * of a call, whoever else replaces the function.
 */
enum { UNPIN_PAGE, UNPIN_FOLIO, INVALIDATE, LOAD, STORE };

static struct hook hooks[] = {
	[UNPIN_PAGE] = { "unpin_user_page", 0,
			 { .func = agentzip_unpin_page_handler,
			   .flags = FTRACE_OPS_FL_PERMANENT } },
	[UNPIN_FOLIO] = { "unpin_user_folio", 0,
			  { .func = agentzip_unpin_folio_handler,
			    .flags = FTRACE_OPS_FL_PERMANENT } },
	[INVALIDATE] = { "zswap_invalidate", 0,
			 { .func = invalidate_handler, .flags = HOOK_FLAGS } },
	[LOAD] = { "zswap_load", 0,
		   { .func = load_handler, .flags = HOOK_FLAGS } },
	[STORE] = { "zswap_store", 0,
		    { .func = store_handler, .flags = HOOK_FLAGS } },
};

/*
 * Address of a function's ftrace location: after its ENDBR, where a direct
 * call may also go. kallsyms is not exported; a kprobe that is registered
 * disabled resolves the name and touches no text.
 */
int agentzip_resolve(const char *name, unsigned long *addr)
{
	struct kprobe probe = {
		.symbol_name = name,
		.flags = KPROBE_FLAG_DISABLED,
	};
	int ret = register_kprobe(&probe);

	if (ret)
		return ret;
	*addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

static int hook_install(struct hook *hook)
{
	int ret = ftrace_set_filter_ip(&hook->ops, hook->addr, 0, 1);

	if (ret)
		return ret;
	ret = register_ftrace_function(&hook->ops);
	if (ret)
		ftrace_set_filter_ip(&hook->ops, hook->addr, 1, 0);
	return ret;
}

static int hook_uninstall(struct hook *hook)
{
	int ret = unregister_ftrace_function(&hook->ops);

	if (!ret)
		ftrace_set_filter_ip(&hook->ops, hook->addr, 1, 0);
	return ret;
}

static void wait_for_replacements(void)
{
	synchronize_rcu_tasks();
	synchronize_srcu(&agentzip_inflight);
	synchronize_rcu_tasks();
}

int agentzip_hooks_arm(void)
{
	int i, ret;

	ret = check_single_pages();
	if (ret)
		return ret;
	for (i = 0; i < ARRAY_SIZE(hooks); i++) {
		ret = agentzip_resolve(hooks[i].target, &hooks[i].addr);
		if (ret) {
			pr_err("agentzip: arm: cannot find %s (%d)\n",
			       hooks[i].target, ret);
			return ret;
		}
	}
	static_call_update(agentzip_zswap_invalidate_call,
			   (typeof(&zswap_invalidate_unresolved))hooks[INVALIDATE].addr);

	for (i = 0; i < ARRAY_SIZE(hooks); i++) {
		ret = hook_install(&hooks[i]);
		if (ret)
			goto undo;
	}
	/* Ours until disarmed: the caller's file holds a reference now. */
	__module_get(THIS_MODULE);
	agentzip_recorder_install();
	return 0;

undo:
	pr_err("agentzip: arm: cannot hook %s (%d): %s\n", hooks[i].target, ret,
	       ret == -EBUSY ? "another user redirects it, or ftrace is off" : "see ftrace");
	while (--i >= 0) {
		int err = hook_uninstall(&hooks[i]);

		if (err) {
			pr_err("agentzip: arm: cannot unhook %s (%d); the module stays\n",
			       hooks[i].target, err);
			__module_get(THIS_MODULE);
			ret = -ENOTRECOVERABLE;
		}
	}
	wait_for_replacements();
	return ret;
}

int agentzip_hooks_disarm(void)
{
	int i, ret;

	ret = agentzip_recorder_remove();
	if (ret) {
		pr_err("agentzip: disarm: cannot unhook do_swap_page (%d)\n", ret);
		return ret;
	}
	for (i = ARRAY_SIZE(hooks) - 1; i >= 0; i--) {
		ret = hook_uninstall(&hooks[i]);
		if (ret) {
			pr_err("agentzip: disarm: cannot unhook %s (%d)\n",
			       hooks[i].target, ret);
			return ret;
		}
	}
	wait_for_replacements();
	module_put(THIS_MODULE);
	return 0;
}

void agentzip_wait_inflight(void)
{
	synchronize_srcu(&agentzip_inflight);
}
