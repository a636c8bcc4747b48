/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The border to zstd.c: zstd blocks without a frame, after a prefix.
 *
 * bindgen reads this header. A compressor or decompressor serves one call at a
 * time, keeps nothing from one call to the next, and never allocates or sleeps.
 */
#ifndef AGENTZIP_ZSTD_H
#define AGENTZIP_ZSTD_H

#include <linux/types.h>

/* Parameters of zstd's match finder, as in rust/codec/src/zstd.rs. */
struct agentzip_zstd_level {
	u32 window_log;
	u32 chain_log;
	u32 hash_log;
	u32 search_log;
	u32 min_match;
	u32 target_length;
	u32 strategy;
};

/* How much memory a compressor for the level, or a decompressor, lives in. */
size_t agentzip_zstd_compressor_bytes(const struct agentzip_zstd_level *level);
size_t agentzip_zstd_decompressor_bytes(void);

/*
 * Make one in memory that is aligned to 8 bytes and stays where it is. There is
 * nothing to undo: free the memory. NULL when it is too small.
 */
void *agentzip_zstd_compressor(void *memory, size_t bytes);
void *agentzip_zstd_decompressor(void *memory, size_t bytes);

/*
 * Compress the src_len bytes after the first prefix_len bytes of joined into a
 * block. Returns its length; 0 when it does not fit or is not shorter, or when
 * the compressor is too small for the level.
 */
size_t agentzip_zstd_compress(void *compressor,
			      const struct agentzip_zstd_level *level,
			      const void *joined, size_t prefix_len,
			      size_t src_len, void *dst, size_t dst_len);

/*
 * Decompress a block, which may be any bytes. Returns the length of what was
 * written; 0 when the block is damaged or does not fit.
 */
size_t agentzip_zstd_decompress(void *decompressor,
				const void *prefix, size_t prefix_len,
				const void *src, size_t src_len,
				void *dst, size_t dst_len);

#endif /* AGENTZIP_ZSTD_H */
