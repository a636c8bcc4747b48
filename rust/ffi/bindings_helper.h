/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen translates for the module, beside the kernel crate's own
 * bindings: our border and CRC-32C.
 */
#include <linux/types.h>
#include <linux/atomic.h>
#include <linux/crc32c.h>

#include "agentzip_ffi.h"
#include "agentzip_zstd.h"
