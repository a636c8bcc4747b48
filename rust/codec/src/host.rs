// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The backend of host builds: the C library that is also compiled into the module, and CRC-32C by
//! the CPU's own instructions.
#![expect(unsafe_code, reason = "zstd is written in C")]

extern crate std;

use super::zstd::{content, Joined, Parameters, Strategy};
use super::zstd::{BEHIND_DICTIONARY, DICTIONARY, MAX_DICTIONARY, MAX_WITH_DICTIONARY};
use super::{Backend, Level, Literals, PAGE_SIZE};
use core::cell::UnsafeCell;
use core::ffi::{c_uint, c_void};
use core::ptr::{self, null, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use std::boxed::Box;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;
use zstd_sys as sys;

/// `ZSTD_CONTENTSIZE_UNKNOWN`: the tables are as large as the parameters say.
const UNKNOWN: u64 = u64::MAX;

extern "C" {
    /// What all of zstd's functions that begin a compression end up in, and the only one that takes
    /// settings for blocks. It is in zstd's library, though not in its header; the module has it by
    /// including zstd's sources.
    fn ZSTD_compressBegin_advanced_internal(
        compressor: *mut sys::ZSTD_CCtx,
        dict: *const c_void,
        dict_len: usize,
        dict_content_type: sys::ZSTD_dictContentType_e,
        table_load_method: c_uint,
        cdict: *const sys::ZSTD_CDict,
        settings: *const sys::ZSTD_CCtx_params,
        pledged_src_len: u64,
    ) -> usize;
}

/// `ZSTD_dtlm_fast`, as zstd's own callers say.
const TABLES_FAST: c_uint = 0;

/// zstd contexts of one thread.
///
/// # Invariants
///
/// `compressor` and the decompressors are initialised contexts in `_compressor_memory` and
/// `_decompressor_memory`.
pub struct Host {
    compressor: NonNull<sys::ZSTD_CCtx>,
    decompressor: NonNull<sys::ZSTD_DCtx>,
    /// For dictionaries alone: a context that had another one before takes its tables for cold, and
    /// decompresses in another, here slower, way.
    dictionary_decompressor: NonNull<sys::ZSTD_DCtx>,
    joined: Box<Joined>,
    /// Of the levels, in the order of [`Level::ALL`], and of dictionaries.
    settings: [BothSettings; Level::ALL.len()],
    dictionary_settings: BothSettings,
    _compressor_memory: Vec<u64>,
    _decompressor_memory: [Vec<u64>; 2],
}

// SAFETY: Contexts and settings are plain memory that this value owns.
unsafe impl Send for Host {}

impl Host {
    /// Makes the contexts, about 250 KiB.
    ///
    /// # Panics
    ///
    /// When zstd refuses memory of the size that it asked for, or parameters of ours.
    pub fn new() -> Self {
        let bytes = Level::ALL.map(|level| {
            // SAFETY: No preconditions.
            unsafe { sys::ZSTD_estimateCCtxSize_usingCParams(match_finder(level.parameters())) }
        });
        // SAFETY: No preconditions.
        let with_dictionary =
            unsafe { sys::ZSTD_estimateCCtxSize_usingCParams(match_finder(DICTIONARY)) };
        let c_bytes = bytes.into_iter().fold(with_dictionary, usize::max);
        // SAFETY: No preconditions.
        let d_bytes = unsafe { sys::ZSTD_estimateDCtxSize() };
        let mut compressor_memory = memory(c_bytes);
        let mut decompressor_memory = [memory(d_bytes), memory(d_bytes)];
        // SAFETY: The memory is writable, aligned to 8 bytes and of this size. It does not move: the
        // heap blocks stay with the vectors that are kept.
        let (compressor, decompressors) = unsafe {
            (
                sys::ZSTD_initStaticCCtx(compressor_memory.as_mut_ptr().cast(), c_bytes),
                decompressor_memory.each_mut().map(|memory| {
                    let made = sys::ZSTD_initStaticDCtx(memory.as_mut_ptr().cast(), d_bytes);
                    NonNull::new(made).expect("zstd's own size of a decompressor")
                }),
            )
        };
        let [decompressor, dictionary_decompressor] = decompressors;
        // INVARIANT: Just initialised.
        Self {
            compressor: NonNull::new(compressor).expect("zstd's own size of a compressor"),
            decompressor,
            dictionary_decompressor,
            joined: Box::new(Joined::new()),
            settings: Level::ALL.map(|level| BothSettings::new(level.parameters())),
            dictionary_settings: BothSettings::new(DICTIONARY),
            _compressor_memory: compressor_memory,
            _decompressor_memory: decompressor_memory,
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// Zeroed memory of at least `bytes` bytes, aligned for zstd.
fn memory(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(size_of::<u64>())]
}

/// What zstd is told, in its own type.
///
/// # Invariants
///
/// Made by zstd, initialised, and this value's own.
struct Settings(NonNull<sys::ZSTD_CCtx_params>);

impl Settings {
    fn new(parameters: Parameters, literals: Literals) -> Self {
        // SAFETY: No preconditions.
        let settings = NonNull::new(unsafe { sys::ZSTD_createCCtxParams() });
        // INVARIANT: Just made; initialised below.
        let this = Self(settings.expect("memory for zstd's settings"));
        let told = sys::ZSTD_parameters {
            cParams: match_finder(parameters),
            fParams: sys::ZSTD_frameParameters {
                contentSizeFlag: 0,
                checksumFlag: 0,
                noDictIDFlag: 0,
            },
        };
        // SAFETY: Just made.
        let good = unsafe {
            is_good(sys::ZSTD_CCtxParams_init_advanced(this.0.as_ptr(), told))
                && is_good(sys::ZSTD_CCtxParams_setParameter(
                    this.0.as_ptr(),
                    LITERAL_COMPRESSION_MODE,
                    literals as i32,
                ))
        };
        assert!(good, "zstd takes our parameters");
        this
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        // SAFETY: By the type invariants made by zstd, and freed once.
        unsafe { sys::ZSTD_freeCCtxParams(self.0.as_ptr()) };
    }
}

/// What zstd is told, with either kind of literals.
struct BothSettings {
    compressed: Settings,
    plain: Settings,
}

impl BothSettings {
    fn new(parameters: Parameters) -> Self {
        Self {
            compressed: Settings::new(parameters, Literals::Compressed),
            plain: Settings::new(parameters, Literals::Plain),
        }
    }

    fn with(&self, literals: Literals) -> *const sys::ZSTD_CCtx_params {
        match literals {
            Literals::Compressed => self.compressed.0.as_ptr(),
            Literals::Plain => self.plain.0.as_ptr(),
        }
    }
}

/// `ZSTD_c_literalCompressionMode`.
const LITERAL_COMPRESSION_MODE: sys::ZSTD_cParameter =
    sys::ZSTD_cParameter::ZSTD_c_experimentalParam5;

fn match_finder(parameters: Parameters) -> sys::ZSTD_compressionParameters {
    sys::ZSTD_compressionParameters {
        windowLog: parameters.window_log,
        chainLog: parameters.chain_log,
        hashLog: parameters.hash_log,
        searchLog: parameters.search_log,
        minMatch: parameters.min_match,
        targetLength: parameters.target_length,
        strategy: match parameters.strategy {
            Strategy::Fast => sys::ZSTD_strategy::ZSTD_fast,
            Strategy::DoubleFast => sys::ZSTD_strategy::ZSTD_dfast,
            Strategy::Lazy => sys::ZSTD_strategy::ZSTD_lazy,
        },
    }
}

/// A dictionary with the tables that zstd makes of it.
///
/// # Invariants
///
/// Both refer to `content` but for its last [`BEHIND_DICTIONARY`] bytes, and neither that nor the tables
/// change after they were made. Those bytes belong to who has a [`Behind`].
pub struct Dictionary {
    compressor: NonNull<sys::ZSTD_CDict>,
    decompressor: NonNull<sys::ZSTD_DDict>,
    content: Box<[UnsafeCell<u8>]>,
    /// Whether somebody has the room behind.
    taken: AtomicBool,
}

// SAFETY: Plain memory that this value owns.
unsafe impl Send for Dictionary {}
// SAFETY: By the type invariants nobody writes to what several use.
unsafe impl Sync for Dictionary {}

impl Dictionary {
    /// Makes the tables. `None` when zstd refuses the dictionary, or it is longer than
    /// [`MAX_DICTIONARY`].
    pub fn new(content: &[u8]) -> Option<Arc<Self>> {
        if content.len() > MAX_DICTIONARY {
            return None;
        }
        let len = content.len();
        let behind = [0; BEHIND_DICTIONARY];
        let content: Box<[_]> = content
            .iter()
            .chain(&behind)
            .copied()
            .map(UnsafeCell::new)
            .collect();
        let by_reference = sys::ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
        let full = sys::ZSTD_dictContentType_e::ZSTD_dct_fullDict;
        let memory = sys::ZSTD_customMem {
            customAlloc: None,
            customFree: None,
            opaque: core::ptr::null_mut(),
        };
        // SAFETY: The content is as long as said. Its bytes do not move: the heap block stays with the
        // box, which is kept.
        let (compressor, decompressor) = unsafe {
            (
                sys::ZSTD_createCDict_advanced(
                    content.as_ptr().cast(),
                    len,
                    by_reference,
                    full,
                    match_finder(DICTIONARY),
                    memory,
                ),
                sys::ZSTD_createDDict_advanced(
                    content.as_ptr().cast(),
                    len,
                    by_reference,
                    full,
                    memory,
                ),
            )
        };
        match (NonNull::new(compressor), NonNull::new(decompressor)) {
            // INVARIANT: Just made, of `content`.
            (Some(compressor), Some(decompressor)) => Some(Arc::new(Self {
                compressor,
                decompressor,
                content,
                taken: AtomicBool::new(false),
            })),
            _ => {
                // SAFETY: Made above, or null, which is ignored.
                unsafe {
                    sys::ZSTD_freeCDict(compressor);
                    sys::ZSTD_freeDDict(decompressor);
                }
                None
            }
        }
    }

    /// The room behind it; `None` while somebody else has it.
    fn behind(&self) -> Option<Behind<'_>> {
        let free = !self.taken.swap(true, Ordering::Acquire);
        // INVARIANT: It was not taken, and is from now on.
        free.then(|| Behind(self))
    }

    /// Bytes of the content, of the room behind it and of the tables.
    pub fn bytes(&self) -> usize {
        // SAFETY: By the type invariants both are initialised.
        let tables = unsafe {
            sys::ZSTD_sizeof_CDict(self.compressor.as_ptr())
                + sys::ZSTD_sizeof_DDict(self.decompressor.as_ptr())
        };
        self.content.len() + tables
    }
}

impl Drop for Dictionary {
    fn drop(&mut self) {
        // SAFETY: Made by `new`, and freed once.
        unsafe {
            sys::ZSTD_freeCDict(self.compressor.as_ptr());
            sys::ZSTD_freeDDict(self.decompressor.as_ptr());
        }
    }
}

/// The room behind a dictionary.
///
/// # Invariants
///
/// `taken` is set, and nobody else has one for this dictionary.
struct Behind<'a>(&'a Dictionary);

impl Behind<'_> {
    /// Where it begins: a pointer into all of the content, as zstd reads the dictionary through it.
    fn start(&self) -> *mut u8 {
        let content = &self.0.content;
        let at = content.len() - BEHIND_DICTIONARY;
        // SAFETY: It ends so many bytes later.
        unsafe { UnsafeCell::raw_get(content.as_ptr()).add(at) }
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Whether zstd returned no error.
fn is_good(result: usize) -> bool {
    // SAFETY: Pure arithmetic.
    unsafe { sys::ZSTD_isError(result) == 0 }
}

/// A length that zstd returned; `None` for an error, and for 0, which says that a block is no use.
fn checked(len: usize) -> Option<usize> {
    (len != 0 && is_good(len)).then_some(len)
}

impl Backend for Host {
    type Dictionary = Arc<Dictionary>;

    fn compress(
        &mut self,
        level: Level,
        literals: Literals,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let (prefix, src) = self.joined.join(prefix, src)?;
        let compressor = self.compressor.as_ptr();
        let settings = self.settings.get(level as usize)?.with(literals);
        // SAFETY: By the type invariants context and settings are initialised. The buffers are as long as said, and
        // neither moves nor changes until the block is made; what the context then still refers to it
        // looks at no more.
        unsafe {
            let begun = ZSTD_compressBegin_advanced_internal(
                compressor,
                prefix.as_ptr().cast(),
                prefix.len(),
                sys::ZSTD_dictContentType_e::ZSTD_dct_auto,
                TABLES_FAST,
                null(),
                settings,
                UNKNOWN,
            );
            if !is_good(begun) {
                return None;
            }
            checked(sys::ZSTD_compressBlock(
                compressor,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            ))
        }
    }

    fn compress_with(
        &mut self,
        dictionary: &Arc<Dictionary>,
        literals: Literals,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        if src.len() > MAX_WITH_DICTIONARY {
            return None;
        }
        let compressor = self.compressor.as_ptr();
        let settings = self.dictionary_settings.with(literals);
        // SAFETY: As above, also for the dictionary, by its type invariants. The source is no longer than
        // zstd is told that it may be.
        unsafe {
            let begun = ZSTD_compressBegin_advanced_internal(
                compressor,
                null(),
                0,
                sys::ZSTD_dictContentType_e::ZSTD_dct_auto,
                TABLES_FAST,
                dictionary.compressor.as_ptr(),
                settings,
                MAX_WITH_DICTIONARY as u64,
            );
            if !is_good(begun) {
                return None;
            }
            checked(sys::ZSTD_compressBlock(
                compressor,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            ))
        }
    }

    fn decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let prefix = content(prefix);
        let decompressor = self.decompressor.as_ptr();
        // SAFETY: As for compression. zstd checks what it decompresses.
        unsafe {
            let begun = sys::ZSTD_decompressBegin_usingDict(
                decompressor,
                prefix.as_ptr().cast(),
                prefix.len(),
            );
            if !is_good(begun) {
                return None;
            }
            checked(sys::ZSTD_decompressBlock(
                decompressor,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            ))
        }
    }

    fn decompress_with(
        &mut self,
        dictionary: &Arc<Dictionary>,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        let decompressor = self.dictionary_decompressor.as_ptr();
        let behind = dictionary.behind().filter(|_| dst.len() <= PAGE_SIZE);
        let (to, room) = match &behind {
            Some(behind) => (behind.start(), BEHIND_DICTIONARY),
            None => (dst.as_mut_ptr(), dst.len()),
        };
        // SAFETY: As above. The room behind the dictionary is as long as said, and ours.
        let len = unsafe {
            let begun = sys::ZSTD_decompressBegin_usingDDict(
                decompressor,
                dictionary.decompressor.as_ptr(),
            );
            if !is_good(begun) {
                return None;
            }
            checked(sys::ZSTD_decompressBlock(
                decompressor,
                to.cast(),
                room,
                src.as_ptr().cast(),
                src.len(),
            ))?
        };
        if let Some(behind) = behind {
            let dst = dst.get_mut(..len)?;
            // SAFETY: zstd has written so many bytes there. It is not `dst`, which is the caller's.
            unsafe { ptr::copy_nonoverlapping(behind.start(), dst.as_mut_ptr(), len) };
        }
        Some(len)
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        crc32c::crc32c(data)
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    /// Pieces of a dictionary's content, with bytes between them.
    fn page(content: &[u8], seed: usize) -> Vec<u8> {
        let piece = |n: usize| {
            let at = (n * n * 37 + seed * 101) % (content.len() - 40);
            let piece = &content[at..at + 5 + n % 31];
            piece.iter().copied().chain([n as u8, seed as u8])
        };
        (0..).flat_map(piece).take(PAGE_SIZE).collect()
    }

    #[test]
    fn behind_a_dictionary_and_elsewhere_is_the_same() {
        let mut content = [0; PAGE_SIZE];
        golden::dictionary(&mut content);
        let dictionary = Dictionary::new(&content).unwrap();
        let mut host = Host::new();
        let mut decompress = |block: &[u8], elsewhere: bool, out: &mut [u8]| {
            let taken = elsewhere.then(|| dictionary.behind().unwrap());
            let len = host.decompress_with(&dictionary, block, out);
            drop(taken);
            assert!(dictionary.behind().is_some(), "not given back");
            len
        };
        for seed in 0..20 {
            let page = page(&content, seed);
            let mut block = [0; PAGE_SIZE];
            let len = Host::new().compress_with(&dictionary, Literals::Plain, &page, &mut block);
            let block = &mut block[..len.unwrap()];
            for elsewhere in [false, true] {
                let mut out = [0; PAGE_SIZE];
                assert_eq!(
                    decompress(block, elsewhere, &mut out),
                    Some(PAGE_SIZE),
                    "{elsewhere}"
                );
                assert!(out[..] == page, "{elsewhere}");
                // The content does not fit.
                assert_eq!(decompress(block, elsewhere, &mut out[1..]), None);
            }
            for at in 0..block.len() {
                block[at] ^= 0x24;
                let [behind, elsewhere] = [false, true].map(|elsewhere| {
                    let mut out = [0; PAGE_SIZE];
                    let len = decompress(block, elsewhere, &mut out);
                    len.map(|len| out[..len].to_vec())
                });
                assert!(behind == elsewhere, "{at}");
                block[at] ^= 0x24;
            }
        }
    }
}
