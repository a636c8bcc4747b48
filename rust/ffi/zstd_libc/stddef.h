/* SPDX-License-Identifier: GPL-2.0 */
/* For zstd.c only: what zstd expects of a C library's header. */
#include <linux/stddef.h>
#include <linux/types.h>
