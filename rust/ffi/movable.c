// SPDX-License-Identifier: GPL-2.0
/*
 * Which folios may be held for long.
 *
 * The kernel wants to be able to empty ZONE_MOVABLE, to take its memory away, and
 * areas of CMA, to hand them to devices. A folio with a reference that it cannot
 * account for cannot be migrated: taking its block offline is tried until a
 * signal comes, and an allocation of CMA fails. So who holds pages for long must
 * not hold those, and copies them instead; copies are allocated elsewhere. The
 * same holds for memory of devices. This is the rule for long-term pins
 * (folio_is_longterm_pinnable() in linux/mm.h), which modules cannot call:
 * get_pfnblock_migratetype() is not exported. It is called as zswap's functions
 * are (hooks.c).
 *
 * The answer lasts as long as the caller's reference: zone and CMA belong to the
 * place, which a folio leaves by migration only. That its block is isolated passes;
 * isolated means that somebody empties it now, or tries to. A block that is
 * neither, and is isolated after we looked, stays as one with any pinned page does.
 */
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/static_call.h>

#include "agentzip_ffi.h"

#if defined(CONFIG_CMA) && defined(CONFIG_MEMORY_ISOLATION)

static enum migratetype migratetype_unresolved(const struct page *page,
					       unsigned long pfn)
{
	return MIGRATE_ISOLATE;
}
DEFINE_STATIC_CALL(agentzip_migratetype_call, migratetype_unresolved);

void agentzip_movable_prepare(void)
{
	static DEFINE_MUTEX(lock);
	static bool tried;
	unsigned long addr;

	mutex_lock(&lock);
	if (!tried) {
		tried = true;
		if (agentzip_resolve("get_pfnblock_migratetype", &addr))
			pr_warn("agentzip: cannot tell CMA: all pages of templates are copied\n");
		else
			static_call_update(agentzip_migratetype_call,
					   (typeof(&migratetype_unresolved))addr);
	}
	mutex_unlock(&lock);
}

static bool is_wanted_back(const struct folio *folio)
{
	int type = static_call(agentzip_migratetype_call)(&folio->page,
							  folio_pfn(folio));

	return type == MIGRATE_CMA || type == MIGRATE_ISOLATE;
}

#else

void agentzip_movable_prepare(void)
{
}

static bool is_wanted_back(const struct folio *folio)
{
	return false;
}

#endif

bool agentzip_folio_may_stay(const struct folio *folio)
{
	return !folio_is_zone_movable(folio) &&
	       !folio_is_zone_device(folio) && !is_wanted_back(folio);
}
