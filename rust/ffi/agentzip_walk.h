/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The walk of page tables, for the C files that need it (walk.c).
 */
#ifndef AGENTZIP_WALK_H
#define AGENTZIP_WALK_H

#include "agentzip_ffi.h"

struct vm_area_struct;

/* Whether pages of the mapping can be anonymous, in page tables like others. */
bool agentzip_vma_is_walked(const struct vm_area_struct *vma);

/*
 * States of the pages of [addr, end), which lies in mappings that are walked.
 * With @clear their accessed bits are cleared. The caller holds mmap_lock for
 * read. Does not sleep.
 */
void agentzip_walk(struct mm_struct *mm, unsigned long addr, unsigned long end,
		   u8 *states, bool clear);

/*
 * Takes mmap_lock for read, for work items: what they wait for, all sandboxes wait for,
 * and unloading. Whoever has the lock may be held up for as long as somebody else likes,
 * for instance in mmap() by a FUSE server. So it is tried for some milliseconds only.
 */
bool agentzip_mmap_lock(struct mm_struct *mm);

#endif /* AGENTZIP_WALK_H */
