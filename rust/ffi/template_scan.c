// SPDX-License-Identifier: GPL-2.0
/*
 * Which pages of a process a template can hold, and how.
 *
 * A page is kept *by reference* only when it is certain that nobody can write
 * it in place. Checked under the owner's mmap_lock (read) and the folio lock,
 * with our reference held, all of:
 *
 *  - anonymous and not KSM: a file page changes when the file is written;
 *  - not part of a large folio: only the head page of a PMD-mapped THP carries
 *    the exclusive flag;
 *  - not in the swap cache, and mapped: else reclaim may be taking it away;
 *  - not exclusive to one process: an exclusive page is written in place;
 *  - refcount == mapcount + 1: nobody but page tables and us holds it, so no
 *    pin (O_DIRECT, io_uring, vfio) writes it behind the page tables.
 *
 * And it must lie where pages may be held for long (movable.c).
 *
 * A writer then faults, finds our reference in the count, and copies. Every
 * other anonymous page is copied (KSM pages, whose index means nothing, are
 * skipped): the template is what we read, not what the owner holds later.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/swap.h>

#include "agentzip_ffi.h"

/*
 * The page that maps @addr in @mm, with a reference, or NULL. The caller holds
 * mmap_lock for read. *@step is how far the walk may advance.
 *
 * The page table cannot be freed under us: we hold RCU while we take its lock,
 * and check afterwards that the pmd still points to it.
 */
static struct page *get_mapped_page(struct mm_struct *mm, unsigned long addr,
				    unsigned long *step)
{
	struct page *page = NULL;
	spinlock_t *ptl;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud, pudval;
	pmd_t *pmd, pmdval;
	pte_t *pte, pteval;

	*step = PAGE_SIZE;
	pgd = pgd_offset(mm, addr);
	if (pgd_none(*pgd) || unlikely(pgd_bad(*pgd))) {
		*step = PGDIR_SIZE;
		return NULL;
	}
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || unlikely(p4d_bad(*p4d))) {
		*step = P4D_SIZE;
		return NULL;
	}
	pud = pud_offset(p4d, addr);
	pudval = pudp_get(pud);
	if (pud_none(pudval) || pud_leaf(pudval) || unlikely(pud_bad(pudval))) {
		*step = PUD_SIZE;
		return NULL;
	}
	pmd = pmd_offset(pud, addr);

	rcu_read_lock();
	pmdval = pmdp_get_lockless(pmd);
	if (pmd_none(pmdval) || !pmd_present(pmdval)) {
		*step = PMD_SIZE;
		goto out;
	}
	if (pmd_leaf(pmdval)) {
		ptl = pmd_lockptr(mm, pmd);
		spin_lock(ptl);
		if (pmd_same(pmdval, pmdp_get_lockless(pmd)) &&
		    !pmd_special(pmdval)) {
			page = pmd_page(pmdval) +
			       ((addr & ~PMD_MASK) >> PAGE_SHIFT);
			if (!folio_try_get(page_folio(page)))
				page = NULL;
		}
		spin_unlock(ptl);
		goto out;
	}
	if (unlikely(pmd_bad(pmdval)))
		goto out;
	ptl = pte_lockptr(mm, &pmdval);
	spin_lock(ptl);
	if (pmd_same(pmdval, pmdp_get_lockless(pmd))) {
		pte = pte_offset_kernel(&pmdval, addr);
		pteval = ptep_get(pte);
		if (pte_present(pteval) && !pte_special(pteval)) {
			page = pte_page(pteval);
			if (!folio_try_get(page_folio(page)))
				page = NULL;
		}
	}
	spin_unlock(ptl);
out:
	rcu_read_unlock();
	return page;
}

/*
 * See the top of the file. Folio locked, our reference held.
 *
 * A fork may raise both counts between our reads of them, and so hide a
 * reference that belongs to no page table: the mapcount must be the same
 * before and after the refcount was read. A fork takes its reference first and
 * maps later, so a torn read errs on the side of copying.
 */
static bool nobody_can_write(struct folio *folio, struct page *page)
{
	int mapcount, refcount;

	if (!folio_test_anon(folio) || folio_test_ksm(folio) ||
	    folio_test_large(folio) || folio_test_swapcache(folio) ||
	    PageAnonExclusive(page))
		return false;
	mapcount = folio_mapcount(folio);
	smp_rmb();	/* between the three reads, in this order */
	refcount = folio_ref_count(folio);
	smp_rmb();
	return mapcount > 0 && mapcount == folio_mapcount(folio) &&
	       refcount == mapcount + 1;
}

/*
 * Turn a referenced page into one that the template may hold. Consumes the
 * reference. Returns 1 when *@out was filled, 0 when the page is not for a
 * template, -ENOMEM.
 */
static int keep_page(struct page *page, struct agentzip_scanned_page *out)
{
	struct folio *folio = page_folio(page);
	struct page *copy;
	bool by_reference;

	folio_lock(folio);
	if (!folio_test_anon(folio) || folio_test_ksm(folio)) {
		folio_unlock(folio);
		folio_put(folio);
		return 0;
	}
	out->index = folio->index + folio_page_idx(folio, page);
	by_reference = nobody_can_write(folio, page) &&
		       agentzip_folio_may_stay(folio);
	folio_unlock(folio);

	out->copied = !by_reference;
	out->page = page;
	if (by_reference)
		return 1;

	copy = agentzip_page_copy(page);
	folio_put(folio);
	out->page = copy;
	return copy ? 1 : -ENOMEM;
}

int agentzip_template_scan(struct mm_struct *mm, unsigned long *addr,
			   unsigned long end,
			   struct agentzip_scanned_page *out, unsigned int max,
			   u64 *skipped)
{
	unsigned int n = 0;
	int ret = 0;

	agentzip_movable_prepare();
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	while (*addr < end && n < max) {
		struct vm_area_struct *vma = find_vma(mm, *addr);
		unsigned long stop;

		if (!vma || vma->vm_start >= end) {
			*addr = end;
			break;
		}
		if (*addr < vma->vm_start)
			*addr = vma->vm_start;
		stop = min(end, vma->vm_end);
		if (vma->vm_flags & (VM_SHARED | VM_IO | VM_PFNMAP | VM_HUGETLB)) {
			*skipped += (stop - *addr) >> PAGE_SHIFT;
			*addr = stop;
			continue;
		}
		while (*addr < stop && n < max) {
			unsigned long step, next;
			struct page *page = get_mapped_page(mm, *addr, &step);

			next = min(stop, ALIGN_DOWN(*addr, step) + step);
			if (page) {
				ret = keep_page(page, &out[n]);
				if (ret < 0)
					goto unlock;
				n += ret;
			}
			if (!page || !ret)
				*skipped += (next - *addr) >> PAGE_SHIFT;
			*addr = next;
			cond_resched();
		}
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			goto unlock;
		}
	}
	ret = 0;
unlock:
	mmap_read_unlock(mm);
	if (ret < 0) {
		while (n)
			put_page(out[--n].page);
		return ret;
	}
	return n;
}

struct mm_struct *agentzip_mm_of_pid(int pid)
{
	struct task_struct *task;
	struct mm_struct *mm;

	rcu_read_lock();
	task = get_pid_task(find_vpid(pid), PIDTYPE_PID);
	rcu_read_unlock();
	if (!task)
		return ERR_PTR(-ESRCH);
	mm = get_task_mm(task);
	put_task_struct(task);
	return mm ?: ERR_PTR(-ESRCH);
}
