// SPDX-License-Identifier: GPL-2.0
/*
 * The recorder's end in the fault path: a handler on do_swap_page(), which the
 * kernel calls for every page fault on what is not mapped but has an entry in
 * the page table. What is done with a fault is in recorder.rs.
 *
 * The handler only reads. It changes no register (no IPMODIFY), so it refuses
 * nobody and nobody refuses it, and when it cannot be installed nothing but the
 * records is missing.
 *
 * Context. As the other handlers: preemption off, no sleep, no allocation. The
 * task holds the mmap_lock or the lock of the VMA, and no lock of ours.
 *
 * Unloading. unregister_ftrace_function() returns when no task is inside the
 * handler any more, preempted ones included: the ops are a module's.
 */
#include <linux/cgroup.h>
#include <linux/eventfd.h>
#include <linux/ftrace.h>
#include <linux/leafops.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>

#include "agentzip_ffi.h"

/* Sandboxes that are recorded: while there is none the handler leaves at once. */
static atomic_t recorded = ATOMIC_INIT(0);

void agentzip_recorder_count(int more)
{
	atomic_add(more, &recorded);
}

/*
 * Whether a thread waits for one of its own pages. Not counted: the second
 * attempt of a fault, which was seen before; entries that are no swap slots
 * (migration and others); kernel threads and whoever accesses the memory of
 * another process, which say nothing about what that process needs.
 */
static bool is_demand(const struct vm_fault *vmf, softleaf_t entry)
{
	if (vmf->flags & FAULT_FLAG_TRIED)
		return false;
	if ((current->flags & PF_KTHREAD) || vmf->vma->vm_mm != current->mm)
		return false;
	return softleaf_is_swap(entry);
}

static void notrace fault_handler(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs)
{
	struct vm_fault *vmf;
	softleaf_t entry;
	int bit;

	if (!atomic_read(&recorded))
		return;
	bit = ftrace_test_recursion_trylock(ip, parent_ip);
	/* Inside another tracer's callback: a record less. */
	if (bit < 0)
		return;
	vmf = (struct vm_fault *)ftrace_regs_get_argument(fregs, 0);
	entry = softleaf_from_pte(vmf->orig_pte);
	if (is_demand(vmf, entry))
		agentzip_rs_fault(vmf->address, entry.val, current->tgid,
				  current->pid, vmf->flags & FAULT_FLAG_WRITE);
	ftrace_test_recursion_unlock(bit);
}

static struct ftrace_ops recorder_ops = { .func = fault_handler };
static bool recorder_installed;

void agentzip_recorder_install(void)
{
	unsigned long addr;
	int ret = agentzip_resolve("do_swap_page", &addr);

	if (!ret)
		ret = ftrace_set_filter_ip(&recorder_ops, addr, 0, 1);
	if (!ret)
		ret = register_ftrace_function(&recorder_ops);
	WRITE_ONCE(recorder_installed, !ret);
	if (!ret)
		return;
	ftrace_free_filter(&recorder_ops);
	pr_warn("agentzip: arm: cannot watch do_swap_page (%d): no page fault will be recorded\n",
		ret);
}

int agentzip_recorder_remove(void)
{
	int ret;

	if (!recorder_installed)
		return 0;
	ret = unregister_ftrace_function(&recorder_ops);
	if (ret)
		return ret;
	ftrace_free_filter(&recorder_ops);
	WRITE_ONCE(recorder_installed, false);
	return 0;
}

bool agentzip_recorder_installed(void)
{
	return READ_ONCE(recorder_installed);
}

u64 agentzip_now_ns(void)
{
	return ktime_get_ns();
}

struct cgroup *agentzip_current_cgroup(void)
{
	return task_dfl_cgroup(current);
}

struct cgroup *agentzip_cgroup_parent(struct cgroup *cgrp)
{
	return cgroup_parent(cgrp);
}

u64 agentzip_cgroup_id(struct cgroup *cgrp)
{
	return cgroup_id(cgrp);
}

int agentzip_eventfd_get(int fd, struct eventfd_ctx **ctx)
{
	struct eventfd_ctx *found = eventfd_ctx_fdget(fd);

	if (IS_ERR(found))
		return PTR_ERR(found);
	*ctx = found;
	return 0;
}

void agentzip_eventfd_put(struct eventfd_ctx *ctx)
{
	eventfd_ctx_put(ctx);
}

void agentzip_eventfd_signal(struct eventfd_ctx *ctx)
{
	eventfd_signal(ctx);
}
