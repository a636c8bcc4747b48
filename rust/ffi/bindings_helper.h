/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen translates for the module, beside the kernel crate's own
 * bindings: our border, the payload pool, the exported zstd
 * and CRC-32C.
 */
#include <linux/types.h>
#include <linux/atomic.h>
#include <linux/crc32c.h>
#include <linux/gfp.h>
#include <linux/zsmalloc.h>
#include <linux/zstd.h>

#include "agentzip_ffi.h"

/*
 * Memory for a payload, as zswap takes it: reclaim holds the page that the
 * payload replaces, so it must not wait; the pool's pages can move.
 */
static const gfp_t AGENTZIP_GFP_PAYLOAD = GFP_NOWAIT | __GFP_NORETRY |
					  __GFP_NOWARN | __GFP_HIGHMEM |
					  __GFP_MOVABLE;
