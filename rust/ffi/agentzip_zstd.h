/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The border to zstd.c: zstd blocks without a frame, after a prefix or with a
 * dictionary.
 *
 * bindgen reads this header. A compressor or decompressor serves one call at a
 * time. Each call stands for itself: nothing of an earlier one counts, and what
 * it was given is looked at no more after it. Nothing here allocates or sleeps.
 */
#ifndef AGENTZIP_ZSTD_H
#define AGENTZIP_ZSTD_H

#include <linux/types.h>

/* Parameters of zstd, as in rust/codec/src/zstd.rs. */
struct agentzip_zstd_level {
	u32 window_log;
	u32 chain_log;
	u32 hash_log;
	u32 search_log;
	u32 min_match;
	u32 target_length;
	u32 strategy;
	u32 literals;
};

/*
 * How much memory a compressor for the level lives in, one for up to most bytes
 * at once with a dictionary made at the level, or a decompressor.
 */
size_t agentzip_zstd_compressor_bytes(const struct agentzip_zstd_level *level);
size_t
agentzip_zstd_dict_compressor_bytes(const struct agentzip_zstd_level *level,
				    size_t most);
size_t agentzip_zstd_decompressor_bytes(void);

/*
 * Make one in memory that is aligned to 8 bytes and stays where it is. There is
 * nothing to undo: free the memory. NULL when it is too small.
 */
void *agentzip_zstd_compressor(void *memory, size_t bytes);
void *agentzip_zstd_decompressor(void *memory, size_t bytes);

/* How much memory the tables of a dictionary of len bytes live in. */
size_t agentzip_zstd_cdict_bytes(const struct agentzip_zstd_level *level,
				 size_t len);
size_t agentzip_zstd_ddict_bytes(void);

/*
 * Make the tables of a dictionary in memory that is aligned to 8 bytes. They
 * refer to the dictionary; both must stay where they are, unchanged. NULL when
 * the memory is too small or zstd refuses the dictionary, which may be any
 * bytes.
 */
const void *agentzip_zstd_cdict(void *memory, size_t bytes,
				const struct agentzip_zstd_level *level,
				const void *dict, size_t len);
const void *agentzip_zstd_ddict(void *memory, size_t bytes,
				const void *dict, size_t len);

/*
 * Compress into a block. The prefix ends where src begins, or is empty. The level
 * of a dictionary is the one that it was made at; with one, src_len may be at most
 * most, which zstd makes its tables for. Returns the length of the block; 0 when it does not fit, is not
 * shorter, or the compressor is too small.
 */
size_t agentzip_zstd_compress(void *compressor,
			      const struct agentzip_zstd_level *level,
			      const void *prefix, size_t prefix_len,
			      const void *src, size_t src_len,
			      void *dst, size_t dst_len);
size_t agentzip_zstd_compress_with(void *compressor,
				   const struct agentzip_zstd_level *level,
				   const void *cdict, size_t most,
				   const void *src, size_t src_len,
				   void *dst, size_t dst_len);

/*
 * Decompress a block, which may be any bytes. Returns the length of what was
 * written; 0 when the block is damaged or does not fit.
 */
size_t agentzip_zstd_decompress(void *decompressor,
				const void *prefix, size_t prefix_len,
				const void *src, size_t src_len,
				void *dst, size_t dst_len);
size_t agentzip_zstd_decompress_with(void *decompressor, const void *ddict,
				     const void *src, size_t src_len,
				     void *dst, size_t dst_len);

#endif /* AGENTZIP_ZSTD_H */
