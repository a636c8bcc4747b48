// SPDX-License-Identifier: GPL-2.0
/*
 * zstd's own C library, compiled into the module: the kernel exports neither
 * zstd's prefixes nor its blocks without a frame.
 *
 * The sources are not part of this tree. scripts/zstd-sources.sh copies those
 * of the zstd-sys crate, which the host build of the codec links, into zstd/.
 * Here they become one translation unit, in which zstd's interface is static:
 * what the functions at the end do not need is dropped, and nothing can be
 * mistaken for the kernel's own zstd.
 *
 * Contexts live in memory of the caller. Nothing here allocates or sleeps.
 */
#include <linux/limits.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/types.h>

#include "agentzip_zstd.h"

#if !__has_include("../../zstd/zstd.h")
#error "zstd's sources are missing: run scripts/zstd-sources.sh, or build with make modules or cargo xtask build modules"
#endif

/* In place of zstd_deps.h, which would include a C library. */
#define ZSTD_DEPS_COMMON
#define ZSTD_memcpy(to, from, len)	__builtin_memcpy((to), (from), (len))
#define ZSTD_memmove(to, from, len)	__builtin_memmove((to), (from), (len))
#define ZSTD_memset(to, byte, len)	__builtin_memset((to), (byte), (len))

/* Contexts that zstd would allocate itself do not exist here. */
#define ZSTD_DEPS_MALLOC
#define ZSTD_malloc(bytes)		((void)(bytes), NULL)
#define ZSTD_calloc(count, bytes)	((void)(count), (void)(bytes), NULL)
#define ZSTD_free(memory)		((void)(memory))

#define ZSTD_DEPS_MATH64
#define ZSTD_div64(dividend, divisor)	((dividend) / (divisor))

/* With the kernel's "inline", so that declarations and definitions agree. */
#define MEM_STATIC			static inline

#define DEBUGLEVEL			0
#define ZSTD_LEGACY_SUPPORT		0
#define ZSTD_NO_TRACE
#define ZSTD_STRIP_ERROR_STRINGS
#define ZSTD_DISABLE_DEPRECATE_WARNINGS

/* No vector registers, no assembly, no second copy of the code for BMI2. */
#define ZSTD_DISABLE_ASM
#define ZSTD_NO_INTRINSICS
#define DYNAMIC_BMI2			0

/* KASAN has no poisoning by hand for parts of a workspace. */
#define ZSTD_ASAN_DONT_POISON_WORKSPACE	1

/* Literals of a block; more than any block of ours has. Default: 64 KiB. */
#define ZSTD_DECODER_INTERNAL_BUFFER	(16 << 10)

/* The match finders that no level of rust/codec/src/zstd.rs names. */
#define ZSTD_EXCLUDE_GREEDY_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_LAZY2_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTLAZY2_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTOPT_BLOCK_COMPRESSOR
#define ZSTD_EXCLUDE_BTULTRA_BLOCK_COMPRESSOR

/* The checksum of frames, inline: we write none, but zstd resets its state. */
#define XXH_NAMESPACE			ZSTD_
#define XXH_PRIVATE_API
#define XXH_NO_STDLIB
#define XXH_NO_XXH3
#define XXH_DEBUGLEVEL			0

#define ZSTDLIB_VISIBLE			static __maybe_unused
#define ZSTD_STATIC_LINKING_ONLY
#include "../../zstd/zstd.h"

/* Unused, with stack frames of 4 KiB: static, so that they are dropped. */
static __maybe_unused size_t HIST_count(unsigned int *count, unsigned int *max,
					const void *src, size_t len);
static __maybe_unused size_t HIST_countFast(unsigned int *count,
					    unsigned int *max,
					    const void *src, size_t len);

#include "../../zstd/common/entropy_common.c"
#include "../../zstd/common/error_private.c"
#include "../../zstd/common/fse_decompress.c"
#include "../../zstd/common/zstd_common.c"
#include "../../zstd/compress/fse_compress.c"
#include "../../zstd/compress/hist.c"
#include "../../zstd/compress/huf_compress.c"
#include "../../zstd/compress/zstd_compress_literals.c"
#include "../../zstd/compress/zstd_compress_sequences.c"
#include "../../zstd/compress/zstd_compress_superblock.c"
#include "../../zstd/compress/zstd_preSplit.c"
#include "../../zstd/compress/zstd_compress.c"
#include "../../zstd/compress/zstd_double_fast.c"
#include "../../zstd/compress/zstd_fast.c"
#include "../../zstd/compress/zstd_lazy.c"
#include "../../zstd/compress/zstd_ldm.c"
#include "../../zstd/compress/zstd_opt.c"
#include "../../zstd/decompress/huf_decompress.c"
#include "../../zstd/decompress/zstd_ddict.c"
#include "../../zstd/decompress/zstd_decompress.c"
#include "../../zstd/decompress/zstd_decompress_block.c"

static ZSTD_compressionParameters
agentzip_zstd_match_finder(const struct agentzip_zstd_level *level)
{
	return (ZSTD_compressionParameters) {
		.windowLog = level->window_log,
		.chainLog = level->chain_log,
		.hashLog = level->hash_log,
		.searchLog = level->search_log,
		.minMatch = level->min_match,
		.targetLength = level->target_length,
		.strategy = level->strategy,
	};
}

/*
 * What zstd makes of the parameters for a dictionary of this length, where it
 * allocates the tables itself, as the host build of the codec lets it.
 */
static ZSTD_compressionParameters
agentzip_zstd_dict_match_finder(const struct agentzip_zstd_level *level,
				size_t len)
{
	return ZSTD_adjustCParams_internal(agentzip_zstd_match_finder(level),
					   ZSTD_CONTENTSIZE_UNKNOWN, len,
					   ZSTD_cpm_createCDict, ZSTD_ps_auto);
}

size_t agentzip_zstd_compressor_bytes(const struct agentzip_zstd_level *level)
{
	return ZSTD_estimateCCtxSize_usingCParams(agentzip_zstd_match_finder(level));
}

size_t
agentzip_zstd_dict_compressor_bytes(const struct agentzip_zstd_level *level,
				    size_t most)
{
	/* Tables for the source alone: zstd attaches those of the dictionary. */
	return ZSTD_estimateCCtxSize_usingCParams(
		ZSTD_adjustCParams(agentzip_zstd_match_finder(level), most, 0));
}

size_t agentzip_zstd_decompressor_bytes(void)
{
	return ZSTD_estimateDCtxSize();
}

void *agentzip_zstd_compressor(void *memory, size_t bytes)
{
	return ZSTD_initStaticCCtx(memory, bytes);
}

void *agentzip_zstd_decompressor(void *memory, size_t bytes)
{
	return ZSTD_initStaticDCtx(memory, bytes);
}

size_t agentzip_zstd_cdict_bytes(const struct agentzip_zstd_level *level,
				 size_t len)
{
	return ZSTD_estimateCDictSize_advanced(len,
					       agentzip_zstd_dict_match_finder(level, len),
					       ZSTD_dlm_byRef);
}

size_t agentzip_zstd_ddict_bytes(void)
{
	return ZSTD_estimateDDictSize(0, ZSTD_dlm_byRef);
}

const void *agentzip_zstd_cdict(void *memory, size_t bytes,
				const struct agentzip_zstd_level *level,
				const void *dict, size_t len)
{
	return ZSTD_initStaticCDict(memory, bytes, dict, len, ZSTD_dlm_byRef,
				    ZSTD_dct_fullDict,
				    agentzip_zstd_dict_match_finder(level, len));
}

const void *agentzip_zstd_ddict(void *memory, size_t bytes,
				const void *dict, size_t len)
{
	return ZSTD_initStaticDDict(memory, bytes, dict, len, ZSTD_dlm_byRef,
				    ZSTD_dct_fullDict);
}

/*
 * Begins a block. None of zstd's own functions that do so says what becomes of
 * literals.
 */
static size_t agentzip_zstd_begin(void *compressor,
				  const struct agentzip_zstd_level *level,
				  const void *prefix, size_t prefix_len,
				  const void *cdict, unsigned long long most)
{
	ZSTD_parameters parameters = {
		.cParams = agentzip_zstd_match_finder(level),
	};
	ZSTD_CCtx_params settings;

	ZSTD_CCtxParams_init_internal(&settings, &parameters, ZSTD_NO_CLEVEL);
	settings.literalCompressionMode = level->literals;
	return ZSTD_compressBegin_advanced_internal(compressor, prefix,
						    prefix_len, ZSTD_dct_auto,
						    ZSTD_dtlm_fast, cdict,
						    &settings, most);
}

size_t agentzip_zstd_compress(void *compressor,
			      const struct agentzip_zstd_level *level,
			      const void *prefix, size_t prefix_len,
			      const void *src, size_t src_len,
			      void *dst, size_t dst_len)
{
	size_t len = agentzip_zstd_begin(compressor, level, prefix, prefix_len,
					 NULL, ZSTD_CONTENTSIZE_UNKNOWN);

	if (ERR_isError(len))
		return 0;
	len = ZSTD_compressBlock(compressor, dst, dst_len, src, src_len);
	return ERR_isError(len) ? 0 : len;
}

size_t agentzip_zstd_compress_with(void *compressor,
				   const struct agentzip_zstd_level *level,
				   const void *cdict, size_t most,
				   const void *src, size_t src_len,
				   void *dst, size_t dst_len)
{
	size_t len = agentzip_zstd_begin(compressor, level, NULL, 0, cdict,
					 most);

	if (ERR_isError(len))
		return 0;
	len = ZSTD_compressBlock(compressor, dst, dst_len, src, src_len);
	return ERR_isError(len) ? 0 : len;
}

size_t agentzip_zstd_decompress(void *decompressor,
				const void *prefix, size_t prefix_len,
				const void *src, size_t src_len,
				void *dst, size_t dst_len)
{
	size_t len = ZSTD_decompressBegin_usingDict(decompressor, prefix,
						    prefix_len);

	if (ERR_isError(len))
		return 0;
	len = ZSTD_decompressBlock(decompressor, dst, dst_len, src, src_len);
	return ERR_isError(len) ? 0 : len;
}

size_t agentzip_zstd_decompress_with(void *decompressor, const void *ddict,
				     const void *src, size_t src_len,
				     void *dst, size_t dst_len)
{
	size_t len = ZSTD_decompressBegin_usingDDict(decompressor, ddict);

	if (ERR_isError(len))
		return 0;
	len = ZSTD_decompressBlock(decompressor, dst, dst_len, src, src_len);
	return ERR_isError(len) ? 0 : len;
}
