// SPDX-License-Identifier: GPL-2.0
/*
 * Accessors of folios, pages, swap slots and memory cgroups that the kernel
 * offers only as macros and inline functions. No policy here.
 */
#include <linux/cgroup.h>
#include <linux/highmem.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "agentzip_ffi.h"

/* ---- folios ---- */

unsigned long agentzip_folio_slot(const struct folio *folio)
{
	return folio->swap.val;
}

/* Valid in store only: on load folio->index is stale. */
unsigned long agentzip_folio_index(const struct folio *folio)
{
	return folio->index;
}

unsigned long agentzip_folio_nr_pages(const struct folio *folio)
{
	return folio_nr_pages(folio);
}

/* Kernel address of page @i of @folio: 64-bit kernels have no highmem. */
void *agentzip_folio_page_address(struct folio *folio, unsigned long i)
{
	return page_address(folio_page(folio, i));
}

/* End of a load that filled @folio. */
void agentzip_folio_loaded(struct folio *folio)
{
	flush_dcache_folio(folio);
	folio_mark_uptodate(folio);
	folio_unlock(folio);
}

/*
 * The same, when the only copy of the contents is @folio from now on: dirty, so
 * that reclaim writes it again.
 */
void agentzip_folio_loaded_dirty(struct folio *folio)
{
	folio_mark_dirty(folio);
	agentzip_folio_loaded(folio);
}

/* End of a load that failed: not uptodate, so the reader gets SIGBUS. */
void agentzip_folio_failed(struct folio *folio)
{
	folio_unlock(folio);
}

/* ---- slots ---- */

unsigned int agentzip_slot_type(unsigned long slot)
{
	return swp_type((swp_entry_t){ slot });
}

unsigned long agentzip_slot_offset(unsigned long slot)
{
	return swp_offset((swp_entry_t){ slot });
}

/* ---- memory cgroups ---- */

struct mem_cgroup *agentzip_folio_memcg(struct folio *folio)
{
	return folio_memcg(folio);
}

struct mem_cgroup *agentzip_memcg_parent(struct mem_cgroup *memcg)
{
	return parent_mem_cgroup(memcg);
}

u64 agentzip_memcg_cgroup_id(struct mem_cgroup *memcg)
{
	return cgroup_id(memcg->css.cgroup);
}

bool agentzip_memcg_tryget(struct mem_cgroup *memcg)
{
	return css_tryget(&memcg->css);
}

void agentzip_memcg_put(struct mem_cgroup *memcg)
{
	css_put(&memcg->css);
}

struct mem_cgroup *agentzip_memcg_of_cgroup(u64 id)
{
	struct cgroup *cgrp = cgroup_get_from_id(id);
	struct mem_cgroup *memcg = NULL;
	struct cgroup_subsys_state *css;

	if (IS_ERR(cgrp))
		return NULL;
	rcu_read_lock();
	css = rcu_dereference(cgrp->subsys[memory_cgrp_id]);
	if (css && css_tryget(css))
		memcg = mem_cgroup_from_css(css);
	rcu_read_unlock();
	cgroup_put(cgrp);
	return memcg;
}

int agentzip_cgroup_ids(int fd, u64 *ids, int max)
{
	struct cgroup *cgrp = cgroup_get_from_fd(fd);
	struct cgroup *c;
	int n = 0;

	if (IS_ERR(cgrp))
		return PTR_ERR(cgrp);
	/* Pages are charged to the nearest memory-controlled ancestor. */
	rcu_read_lock();
	if (!cgroup_parent(cgrp) ||
	    !rcu_access_pointer(cgrp->subsys[memory_cgrp_id]))
		n = -EOPNOTSUPP;
	rcu_read_unlock();
	for (c = cgrp; c && n >= 0; c = cgroup_parent(c)) {
		if (n == max) {
			n = -E2BIG;
			break;
		}
		ids[n++] = cgroup_id(c);
	}
	cgroup_put(cgrp);
	return n;
}

bool agentzip_cgroup_exists(u64 id)
{
	struct cgroup *cgrp = cgroup_get_from_id(id);
	bool online;

	if (IS_ERR(cgrp))
		return false;
	online = !cgroup_is_dead(cgrp);
	cgroup_put(cgrp);
	return online;
}

/* ---- pages ---- */

void *agentzip_page_address(struct page *page)
{
	return page_address(page);
}

void agentzip_page_put(struct page *page)
{
	put_page(page);
}

/*
 * An anonymous page that no page table maps, or a file page that left the page
 * cache, as it does when the file goes. Nobody is moving it right now:
 * migration unmaps and maps again, and truncation takes a page out of its file,
 * under the folio lock. The caller holds a reference, so an anonymous page that
 * reclaim unmapped keeps its contents in the swap cache.
 */
bool agentzip_page_orphaned(struct page *page)
{
	struct folio *folio = page_folio(page);
	bool orphaned;

	if (folio_mapped(folio) || !folio_trylock(folio))
		return false;
	orphaned = !folio_mapped(folio) &&
		   (folio_test_anon(folio) || !folio->mapping);
	folio_unlock(folio);
	return orphaned;
}

void agentzip_page_get(struct page *page)
{
	get_page(page);
}

struct page *agentzip_page_copy(struct page *page)
{
	struct page *copy = alloc_page(GFP_KERNEL | __GFP_NOWARN);

	/* The source may be poisoned: that must not take us down. */
	if (copy && copy_mc_highpage(copy, page)) {
		__free_page(copy);
		copy = NULL;
	}
	return copy;
}

/* ---- pages of the store ---- */

unsigned long agentzip_store_page_alloc(struct mem_cgroup *memcg,
					enum agentzip_page_need need)
{
	static const gfp_t flags[] = {
		[AGENTZIP_PAGE_FOR_RECLAIM] = GFP_NOWAIT,
		[AGENTZIP_PAGE_OPTIONAL] = GFP_NOWAIT | __GFP_NOMEMALLOC,
		[AGENTZIP_PAGE_CAN_WAIT] = GFP_KERNEL,
	};
	gfp_t gfp = flags[need] | __GFP_NORETRY | __GFP_NOWARN | __GFP_ZERO;
	struct mem_cgroup *old;
	struct page *page;

	if (memcg)
		gfp |= __GFP_ACCOUNT;
	old = set_active_memcg(memcg);
	page = alloc_page(gfp);
	set_active_memcg(old);
	return page ? page_to_pfn(page) : 0;
}

void agentzip_store_page_free(unsigned long pfn)
{
	__free_page(pfn_to_page(pfn));
}

void *agentzip_store_page_address(unsigned long pfn)
{
	return __va(PFN_PHYS(pfn));
}

/* ---- machine ---- */

u64 agentzip_total_ram_bytes(void)
{
	return (u64)totalram_pages() << PAGE_SHIFT;
}

unsigned int agentzip_nr_cpu_ids(void)
{
	return nr_cpu_ids;
}
