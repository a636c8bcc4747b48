// SPDX-License-Identifier: GPL-2.0

//! The kernel's zstd and CRC-32C as the codec's backend.
//!
//! Contexts live in workspaces that are allocated when the module loads: compressing and
//! decompressing never allocate.

use kernel::prelude::*;

use crate::bindings;
use crate::codec::{Backend, PAGE_SIZE};

/// Level of the encode that reclaim waits for.
const LEVEL: i32 = 3;

/// One compression and one decompression context.
///
/// # Invariants
///
/// `cctx` and `dctx` are initialised contexts that live in `c_workspace` and `d_workspace`.
pub(crate) struct Zstd {
    params: bindings::zstd_parameters,
    cctx: *mut bindings::zstd_cctx,
    dctx: *mut bindings::zstd_dctx,
    c_workspace: KVVec<u64>,
    d_workspace: KVVec<u64>,
}

// SAFETY: The contexts are plain memory that this value owns.
unsafe impl Send for Zstd {}

/// Zeroed memory of at least `bytes` bytes, aligned for zstd.
fn workspace(bytes: usize) -> Result<KVVec<u64>> {
    let words = bytes.div_ceil(size_of::<u64>());
    Ok(KVVec::from_elem(0, words, GFP_KERNEL)?)
}

impl Zstd {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let params = unsafe { bindings::zstd_get_params(LEVEL, PAGE_SIZE as u64) };
        // SAFETY: `cParams` is what zstd chose; the other has no preconditions.
        let (c_bytes, d_bytes) = unsafe {
            (
                bindings::zstd_cctx_workspace_bound(&params.cParams),
                bindings::zstd_dctx_workspace_bound(),
            )
        };
        let mut c_workspace = workspace(c_bytes)?;
        let mut d_workspace = workspace(d_bytes)?;
        // SAFETY: The workspaces are writable, 8-byte aligned, of the size that zstd asked for, and
        // do not move: their heap blocks stay with the vectors that we keep.
        let (cctx, dctx) = unsafe {
            (
                bindings::zstd_init_cctx(c_workspace.as_mut_ptr().cast(), c_bytes),
                bindings::zstd_init_dctx(d_workspace.as_mut_ptr().cast(), d_bytes),
            )
        };
        if cctx.is_null() || dctx.is_null() {
            return Err(ENOMEM);
        }
        // INVARIANT: Just initialised.
        Ok(Self {
            params,
            cctx,
            dctx,
            c_workspace,
            d_workspace,
        })
    }

    /// Bytes of the workspaces.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.c_workspace.capacity() + self.d_workspace.capacity()) * size_of::<u64>()) as u64
    }
}

/// A length that zstd returned; `None` for an error code.
fn checked(len: usize) -> Option<usize> {
    // SAFETY: Pure arithmetic.
    (unsafe { bindings::zstd_is_error(len) } == 0).then_some(len)
}

impl Backend for Zstd {
    fn zstd_compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // SAFETY: By the type invariants `cctx` is initialised; both buffers are as long as said and
        // do not overlap.
        checked(unsafe {
            bindings::zstd_compress_cctx(
                self.cctx,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
                &self.params,
            )
        })
    }

    fn zstd_decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // SAFETY: As above, for `dctx`. zstd checks its input.
        checked(unsafe {
            bindings::zstd_decompress_dctx(
                self.dctx,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            )
        })
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        // SAFETY: The buffer is as long as said.
        !unsafe { bindings::crc32c(!0, data.as_ptr().cast(), data.len()) }
    }
}
