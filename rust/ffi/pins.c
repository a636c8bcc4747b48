// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that were written to while they were pinned.
 *
 * A page that was read back from swap and not written to since is clean and,
 * for private memory, mapped writable: do_swap_page() does so for a read fault
 * too. The swap core relies on this that a clean page is what its slot has, and
 * reclaim drops it without a store. A processor that writes to it makes its
 * page table entry dirty; a device, or the kernel through its own mapping, does
 * not. Whoever pins pages to write to them has to mark them dirty before they
 * are unpinned (Documentation/core-api/pin_user_pages.rst). Linux 7.3 does not
 * for the registered buffers of io_uring (io_release_ubuf()) and for the
 * receiving end of AF_ALG sockets (af_alg_free_sg()): the write is lost when
 * the page is reclaimed, and the old contents come back.
 *
 * zswap hides this, because it marks every page dirty that it loads and drops
 * its entry. We keep entries and leave pages clean, and whoever comes from
 * zswap must lose nothing. So what is unpinned one page or one folio at a time,
 * which is how both do it, is marked dirty here. Who had only read from the
 * page, as a device for a write of O_DIRECT, causes one more store of it.
 *
 * Context. Any: a bio may end in an interrupt. The caller still holds its pin,
 * so the folio stays what it is. The handlers take no lock, read two flags and
 * set one.
 *
 * Races. The flag is set while the pin is held. Reclaim of an unmapped folio in
 * the swap cache looks at PG_dirty after it has frozen the reference count
 * (__remove_mapping()), which fails while a pin exists: so it sees the flag.
 * A folio that is dirty already will be stored from what it has then: nobody
 * clears the flag of a pinned folio to write it out, and one that was pinned
 * after that began has lost the flag before the pin's first write.
 */
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/page-flags.h>

#include "agentzip_pins.h"

static __always_inline void note_unpinned(struct folio *folio)
{
	if (folio_test_anon(folio) && folio_test_swapcache(folio) &&
	    !folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

/* Neither can be entered again from itself: folio_mark_dirty() unpins nothing. */
void notrace agentzip_unpin_folio_handler(unsigned long ip,
					  unsigned long parent_ip,
					  struct ftrace_ops *ops,
					  struct ftrace_regs *fregs)
{
	note_unpinned((struct folio *)ftrace_regs_get_argument(fregs, 0));
}

void notrace agentzip_unpin_page_handler(unsigned long ip,
					 unsigned long parent_ip,
					 struct ftrace_ops *ops,
					 struct ftrace_regs *fregs)
{
	note_unpinned(page_folio((struct page *)ftrace_regs_get_argument(fregs, 0)));
}
