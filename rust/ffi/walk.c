// SPDX-License-Identifier: GPL-2.0
/*
 * What the page table of a process says about its anonymous pages.
 *
 * The kernel exports no walk, so this is one of our own, under mmap_lock for
 * read. That lock keeps the mappings as they are, but not the page tables below
 * them: a table of ptes goes under mmap_lock for read too, when khugepaged
 * retracts it from a mapping of a file (retract_page_tables()), and when
 * MADV_DONTNEED has emptied it (PT_RECLAIM). Both clear the pmd under the lock
 * of the table that it points to, or of the pmd, and free the table after an RCU
 * grace period only. So we do what pte_offset_map_lock() does: hold RCU, read the
 * pmd once, take the lock of the table that it names, and go on only if the pmd
 * still names that table. Nobody can free it then until the lock is released.
 * Upper tables are freed by munmap() and exit alone, for addresses that belong to
 * no mapping any more. A pmd that maps a huge page changes under its own lock.
 *
 * Accessed bits are cleared without a TLB flush, as the kernel's own aging does on
 * x86: a CPU that has the translation cached sets the bit again when it walks the
 * next time, not before.
 */
#include <linux/delay.h>
#include <linux/leafops.h>
#include <linux/mm.h>
#include <linux/page_idle.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>

#include "agentzip_walk.h"

/* Mappings without anonymous pages, or with page tables unlike others. */
#define FOREIGN (VM_IO | VM_PFNMAP | VM_MIXEDMAP | VM_HUGETLB | VM_SHARED)

bool agentzip_vma_is_walked(const struct vm_area_struct *vma)
{
	return !(vma->vm_flags & FOREIGN);
}

/*
 * DAMON, which Debian's kernels run from the boot on (damon_stat), clears accessed bits
 * of pages that it samples. It notes those that were set in the folio, under the lock of
 * the table: they count.
 */
static u8 present(struct page *page, unsigned long *entry, bool young,
		  bool clear)
{
	struct folio *folio = page_folio(page);

	if (!folio_test_anon(folio))
		return 0;
	young |= folio_test_young(folio);
	if (young && clear) {
		clear_bit(_PAGE_BIT_ACCESSED, entry);
		folio_test_clear_young(folio);
	}
	return AGENTZIP_PAGE_PRESENT | (young ? AGENTZIP_PAGE_ACCESSED : 0);
}

/* The caller holds the lock of the table. */
static u8 state_of(pte_t *ptep, bool clear)
{
	pte_t pte = ptep_get(ptep);

	if (pte_present(pte)) {
		/* The page of zeros is special. */
		if (pte_special(pte))
			return 0;
		return present(pte_page(pte), (unsigned long *)&ptep->pte,
			       pte_young(pte), clear);
	}
	return softleaf_is_swap(softleaf_from_pte(pte)) ? AGENTZIP_PAGE_SWAPPED : 0;
}

/* A pmd that maps a huge page: it has one accessed bit for all of it. */
static void walk_huge(struct mm_struct *mm, pmd_t *pmd, pmd_t pmdval,
		      unsigned int nr, u8 *states, bool clear)
{
	spinlock_t *ptl = pmd_lockptr(mm, pmd);
	u8 state = 0;

	spin_lock(ptl);
	/* What is another pmd by now has states of 0: nothing is known. */
	if (pmd_same(pmdval, pmdp_get_lockless(pmd)) && !pmd_special(pmdval))
		state = present(pmd_page(pmdval), (unsigned long *)pmd,
				pmd_young(pmdval), clear);
	spin_unlock(ptl);
	memset(states, state, nr);
}

/* [addr, addr + nr pages) lies below one pmd. The states are 0 before. */
static void walk_pmd(struct mm_struct *mm, pmd_t *pmd, unsigned long addr,
		     unsigned int nr, u8 *states, bool clear)
{
	spinlock_t *ptl;
	pmd_t pmdval;
	pte_t *pte;
	unsigned int i;

	rcu_read_lock();
again:
	pmdval = pmdp_get_lockless(pmd);
	if (pmd_none(pmdval) || !pmd_present(pmdval))
		goto out;
	if (pmd_leaf(pmdval)) {
		walk_huge(mm, pmd, pmdval, nr, states, clear);
		goto out;
	}
	if (unlikely(pmd_bad(pmdval)))
		goto out;
	ptl = pte_lockptr(mm, &pmdval);
	spin_lock(ptl);
	if (!pmd_same(pmdval, pmdp_get_lockless(pmd))) {
		spin_unlock(ptl);
		goto again;
	}
	pte = pte_offset_kernel(&pmdval, addr);
	for (i = 0; i < nr; i++)
		states[i] = state_of(pte + i, clear);
	spin_unlock(ptl);
out:
	rcu_read_unlock();
}

static pmd_t *find_pmd(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud, pudval;

	if (pgd_none(*pgd) || unlikely(pgd_bad(*pgd)))
		return NULL;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || unlikely(p4d_bad(*p4d)))
		return NULL;
	pud = pud_offset(p4d, addr);
	pudval = pudp_get(pud);
	if (pud_none(pudval) || pud_leaf(pudval) || unlikely(pud_bad(pudval)))
		return NULL;
	return pmd_offset(pud, addr);
}

void agentzip_walk(struct mm_struct *mm, unsigned long addr, unsigned long end,
		   u8 *states, bool clear)
{
	while (addr < end) {
		unsigned long next = pmd_addr_end(addr, end);
		unsigned int nr = (next - addr) >> PAGE_SHIFT;
		pmd_t *pmd = find_pmd(mm, addr);

		memset(states, 0, nr);
		if (pmd)
			walk_pmd(mm, pmd, addr, nr, states, clear);
		states += nr;
		addr = next;
	}
}

#define LOCK_TRIES 4	/* half a millisecond to one apart */

bool agentzip_mmap_lock(struct mm_struct *mm)
{
	int i;

	for (i = 0; i < LOCK_TRIES; i++) {
		if (i > 0)
			usleep_range(500, 1000);
		if (mmap_read_trylock(mm))
			return true;
	}
	return false;
}

int agentzip_page_states(struct mm_struct *mm, unsigned long start,
			 unsigned long end, u8 *states, bool clear)
{
	unsigned long addr = start;

	memset(states, 0, (end - start) >> PAGE_SHIFT);
	if (current->flags & PF_KTHREAD) {
		if (!agentzip_mmap_lock(mm))
			return -EBUSY;
	} else if (mmap_read_lock_killable(mm)) {
		return -EINTR;
	}
	while (addr < end) {
		struct vm_area_struct *vma = find_vma(mm, addr);
		unsigned long stop;

		if (!vma || vma->vm_start >= end)
			break;
		addr = max(addr, vma->vm_start);
		stop = min(end, vma->vm_end);
		if (agentzip_vma_is_walked(vma))
			agentzip_walk(mm, addr, stop,
				      states + ((addr - start) >> PAGE_SHIFT),
				      clear);
		addr = stop;
	}
	mmap_read_unlock(mm);
	return 0;
}
