// SPDX-License-Identifier: GPL-2.0
/*
 * Restoring pages of a process ahead of need; who asks for what is in prefetch.rs.
 *
 * A page is restored as a reader's fault would restore it, by get_user_pages_remote(),
 * so that all that a fault does about swap, charges and mapping is done by the host.
 * Only pages whose pte is a swap entry are given to it:
 *
 *  - what is present is left alone;
 *  - what is none stays none. Between our look and the fault MADV_DONTNEED, which
 *    does not need mmap_lock for write, may make it none: then the fault does what a
 *    reader's would, which is to map the shared page of zeros, or the page of the
 *    file. The process reads there what it would read anyway.
 *
 * FOLL_NOWAIT: the fault never waits for a folio that somebody else has locked. So
 * who touches the page goes first, mmap_lock is never dropped and so no mapping
 * changes under us, and a userfaultfd, whose mappings are passed over, cannot hold us
 * up. A page that is to be read from a disk is begun, and found by a later try.
 *
 * The folio is charged to the memory cgroup that the slot is charged to, whoever
 * faults. When that was removed, the host asks who faults: for readahead, which all
 * devices but synchronous ones go through, by the current task. So the memory cgroup
 * of the process is the active one; no kthread_use_mm() is needed.
 *
 * No OOM killer runs because of us. The margins are checked before each batch
 * (agentzip_restore_room()). What changes in between is taken care of by
 * memalloc_noreclaim_save(): an allocation under it neither reclaims nor kills, and a
 * charge that is over a limit is made all the same, by the pages of a batch at most.
 * A slot that is charged to another memory cgroup than that of the process shows when
 * its page is there: if that one has no room, the batch is the last.
 */
#include <linux/cgroup.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/swap.h>
#include <linux/topology.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include "agentzip_walk.h"

/* The machine keeps one part in this many of its memory available. */
#define RESERVE_SHARE 64

/* ---- processes ---- */

/* Whether what the process touches is charged to the sandbox. */
static bool is_within(struct mem_cgroup *memcg, u64 cgroup_id)
{
	for (; memcg; memcg = parent_mem_cgroup(memcg))
		if (agentzip_memcg_cgroup_id(memcg) == cgroup_id)
			return true;
	return false;
}

int agentzip_process_find(int pid, u64 cgroup_id, struct agentzip_process *out)
{
	struct mem_cgroup *memcg;
	struct task_struct *task;
	struct mm_struct *mm;
	bool within;

	rcu_read_lock();
	task = get_pid_task(find_vpid(pid), PIDTYPE_PID);
	rcu_read_unlock();
	if (!task)
		return -ESRCH;
	/* NULL for a kernel thread, too. */
	mm = get_task_mm(task);
	out->tgid = task_tgid_nr(task);
	put_task_struct(task);
	if (!mm)
		return -ESRCH;
	memcg = get_mem_cgroup_from_mm(mm);
	within = is_within(memcg, cgroup_id);
	mem_cgroup_put(memcg);
	if (within)
		mmgrab(mm);
	out->mm = mm;
	mmput(mm);
	return within ? 0 : -EPERM;
}

void agentzip_mm_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

bool agentzip_mm_begin(struct mm_struct *mm)
{
	return mmget_not_zero(mm);
}

/* If we are the last, the memory is freed elsewhere: it takes time. */
void agentzip_mm_end(struct mm_struct *mm)
{
	mmput_async(mm);
}

unsigned long agentzip_user_end(void)
{
	return TASK_SIZE_MAX;
}

/* ---- room ---- */

/*
 * An allocation that a memory policy keeps from all nodes with free memory takes from
 * the node that we run on, without regard to watermarks: free memory elsewhere does not
 * count then.
 */
static bool node_has_room(unsigned long nr)
{
	pg_data_t *node = NODE_DATA(numa_mem_id());
	unsigned long reserve = nr * AGENTZIP_RESTORE_JOBS, free = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		reserve += min_wmark_pages(&node->node_zones[i]);
		free += zone_page_state(&node->node_zones[i], NR_FREE_PAGES);
	}
	return free > reserve;
}

static bool machine_has_room(unsigned long need)
{
	unsigned long reserve = need;
	int nid, i;

	for_each_online_node(nid)
		for (i = 0; i < MAX_NR_ZONES; i++)
			reserve += min_wmark_pages(&NODE_DATA(nid)->node_zones[i]);
	return global_zone_page_state(NR_FREE_PAGES) > reserve &&
	       si_mem_available() > (long)(totalram_pages() / RESERVE_SHARE + need);
}

/* Every CPU may take a batch for later charges at any time. */
static unsigned long margin(unsigned long nr)
{
	return nr + MEMCG_CHARGE_BATCH * num_online_cpus();
}

/* The caller keeps @memcg. */
static bool memcg_has_room(struct mem_cgroup *memcg, unsigned long need)
{
	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long limit = min(READ_ONCE(memcg->memory.max),
					  READ_ONCE(memcg->memory.high));

		if (page_counter_read(&memcg->memory) + need > limit)
			return false;
	}
	return true;
}

enum agentzip_room agentzip_restore_room(struct mm_struct *mm, u64 cgroup_id,
					 unsigned long nr)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(mm);
	unsigned long need = margin(nr);
	enum agentzip_room room = AGENTZIP_ROOM;

	if (!is_within(memcg, cgroup_id))
		room = AGENTZIP_ROOM_ELSEWHERE;
	else if (!machine_has_room(need) || !node_has_room(nr) ||
		 !memcg_has_room(memcg, need))
		room = AGENTZIP_ROOM_NONE;
	mem_cgroup_put(memcg);
	return room;
}

/* ---- pages ---- */

/*
 * Lets go of a page. Whether who pays for it has room for a batch more: @memcg, that of
 * the process, was looked at before.
 */
static bool put_restored(struct page *page, struct mem_cgroup *memcg)
{
	struct mem_cgroup *payer;
	bool room;

	rcu_read_lock();
	payer = folio_memcg(page_folio(page));
	room = payer == memcg ||
	       memcg_has_room(payer, margin(AGENTZIP_RESTORE_BATCH));
	rcu_read_unlock();
	put_page(page);
	return room;
}

/*
 * [addr, addr + nr pages) is swapped out. Marks those that are there no better for
 * trying again, and says what has become of all. Returns -ENOMEM when there is no
 * memory.
 *
 * A page at a time, as its accessed bit is cleared right after its fault: what sets it
 * from then on is an access. One in between is lost, which makes a page that is wanted
 * just now a miss, so that time is to be short.
 */
static int fault_in(struct mm_struct *mm, unsigned long addr, unsigned int nr,
		    u8 *states, u8 *outcomes)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(mm);
	struct mem_cgroup *former = set_active_memcg(memcg);
	unsigned int flags = memalloc_noreclaim_save();
	unsigned int i;
	int ret = 0;

	for (i = 0; i < nr && !ret; i++, addr += PAGE_SIZE) {
		struct page *page;
		long got = get_user_pages_remote(mm, addr, 1, FOLL_NOWAIT, &page,
						 NULL);

		if (got == 1 && !put_restored(page, memcg))
			ret = -ENOMEM;
		else if (got == -ENOMEM)
			ret = -ENOMEM;
		else if (got < 0)
			outcomes[i] = AGENTZIP_FAILED;
		agentzip_walk(mm, addr, addr + PAGE_SIZE, states + i, true);
	}
	memalloc_noreclaim_restore(flags);
	set_active_memcg(former);
	mem_cgroup_put(memcg);
	return ret;
}

/* A run of neighbours in one mapping, in whatever state. */
static int restore_run(struct mm_struct *mm, unsigned long addr, unsigned int nr,
		       u8 *outcomes)
{
	u8 states[AGENTZIP_RESTORE_BATCH];
	unsigned int i, j, n;
	int ret = 0;

	agentzip_walk(mm, addr, addr + nr * PAGE_SIZE, states, false);
	for (i = 0; i < nr; i += n) {
		unsigned long start = addr + i * PAGE_SIZE;

		n = 1;
		if (!(states[i] & AGENTZIP_PAGE_SWAPPED)) {
			outcomes[i] = states[i] & AGENTZIP_PAGE_PRESENT ?
				      AGENTZIP_WAS_PRESENT : AGENTZIP_WAS_ABSENT;
			continue;
		}
		while (i + n < nr && states[i + n] & AGENTZIP_PAGE_SWAPPED)
			n++;
		memset(outcomes + i, AGENTZIP_LEFT, n);
		if (!ret)
			ret = fault_in(mm, start, n, states + i, outcomes + i);
		for (j = i; j < i + n; j++) {
			if (states[j] & AGENTZIP_PAGE_PRESENT)
				outcomes[j] = AGENTZIP_RESTORED;
			else if (!(states[j] & AGENTZIP_PAGE_SWAPPED))
				outcomes[j] = AGENTZIP_WAS_ABSENT;
		}
	}
	return ret;
}

int agentzip_restore(struct mm_struct *mm, const u64 *pages, unsigned int nr,
		     u8 *outcomes)
{
	unsigned int i, n;
	int ret = 0;

	if (!agentzip_mmap_lock(mm)) {
		memset(outcomes, AGENTZIP_LEFT, nr);
		return 0;
	}
	for (i = 0; i < nr; i += n) {
		struct vm_area_struct *vma = find_vma(mm, pages[i]);

		n = 1;
		outcomes[i] = AGENTZIP_WAS_ABSENT;
		if (!vma || pages[i] < vma->vm_start ||
		    !agentzip_vma_is_walked(vma) || userfaultfd_armed(vma))
			continue;
		if (ret) {
			outcomes[i] = AGENTZIP_LEFT;
			continue;
		}
		while (i + n < nr && pages[i + n] == pages[i] + n * PAGE_SIZE &&
		       pages[i + n] < vma->vm_end)
			n++;
		ret = restore_run(mm, pages[i], n, outcomes + i);
	}
	mmap_read_unlock(mm);
	return ret;
}
