// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The codecs that are compared, behind one trait.

use crate::corpus::{Aligned, Record};
use agentzip_codec::host::Host;
use agentzip_codec::{
    decode, decode_fill, decode_ref, encode, Backend, Base, BaseId, Encoded, Level, Limits,
    Literals, Page, Representation, Scratch, MAX_PAYLOAD, PAGE_SIZE,
};
use zstd_safe::{CCtx, DCtx};

/// Makes a page small and brings it back, in buffers of its own.
pub trait Codec {
    fn name(&self) -> &'static str;
    fn encode(&mut self, record: &Record) -> Option<&[u8]>;
    fn decode(&mut self, record: &Record, payload: &[u8]) -> Option<&Page>;
    /// Bytes of the payload; 0 when it is held in the slot.
    fn stored(&self, payload: &[u8]) -> usize {
        payload.len()
    }
}

/// The host's backend, with the checksum left out on demand to see what it costs.
struct BenchBackend {
    host: Host,
    checksum: bool,
}

impl Backend for BenchBackend {
    type Dictionary = <Host as Backend>::Dictionary;

    fn compress(
        &mut self,
        level: Level,
        literals: Literals,
        prefix: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.host.compress(level, literals, prefix, src, dst)
    }

    fn compress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        literals: Literals,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.host.compress_with(dictionary, literals, src, dst)
    }

    fn decompress(&mut self, prefix: &[u8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.host.decompress(prefix, src, dst)
    }

    fn decompress_with(
        &mut self,
        dictionary: &Self::Dictionary,
        src: &[u8],
        dst: &mut [u8],
    ) -> Option<usize> {
        self.host.decompress_with(dictionary, src, dst)
    }

    fn crc32c(&mut self, data: &[u8]) -> u32 {
        if self.checksum {
            self.host.crc32c(data)
        } else {
            0
        }
    }
}

/// The codec under test.
pub struct AgentZip {
    backend: BenchBackend,
    scratch: Box<Scratch>,
    out: Box<[u8; MAX_PAYLOAD]>,
    page: Box<Aligned>,
}

impl AgentZip {
    pub fn new(checksum: bool) -> Self {
        let host = Host::new();
        Self {
            backend: BenchBackend { host, checksum },
            scratch: Box::new(Scratch::new()),
            out: Box::new([0; MAX_PAYLOAD]),
            page: Aligned::new(),
        }
    }

    /// The representation that is chosen for a page.
    pub fn classify(&mut self, record: &Record) -> Result<Representation, String> {
        match self.run(record) {
            Some(Encoded::Fill(_)) => Ok(Representation::Fill),
            Some(Encoded::Ref { .. }) => Ok(Representation::Ref),
            Some(Encoded::Payload { representation, .. }) => Ok(representation),
            // No payload shorter than a page: time it as a zstd page all the same.
            None => Err(format!("page {:#x} is incompressible", record.index)),
        }
    }

    fn run(&mut self, record: &Record) -> Option<Encoded> {
        let base = record.base.as_ref().map(|base| Base {
            id: BaseId::Template(1),
            page: &base.0,
        });
        encode(
            &record.page.0,
            base.as_slice(),
            Limits::at(Level::Fast),
            &mut self.scratch,
            &mut self.backend,
            &mut self.out,
        )
    }
}

/// What stands for a descriptor in the list of payloads: a tag, then the word or the checksum.
const IN_SLOT: usize = 9;

impl Codec for AgentZip {
    fn name(&self) -> &'static str {
        if self.backend.checksum {
            "agentzip"
        } else {
            "agentzip, no checksum"
        }
    }

    fn encode(&mut self, record: &Record) -> Option<&[u8]> {
        let (tag, value) = match self.run(record)? {
            Encoded::Payload { len, .. } => return self.out.get(..len),
            Encoded::Fill(word) => (0, word),
            Encoded::Ref { crc, .. } => (1, crc.into()),
        };
        self.out[0] = tag;
        self.out[1..IN_SLOT].copy_from_slice(&value.to_le_bytes());
        Some(&self.out[..IN_SLOT])
    }

    fn decode(&mut self, record: &Record, payload: &[u8]) -> Option<&Page> {
        let Self {
            backend,
            scratch,
            page,
            ..
        } = self;
        let page = &mut page.0;
        let base = record.base.as_ref().map(|base| &base.0);
        match (payload.len(), payload.split_first_chunk::<1>()?) {
            (IN_SLOT, ([0], word)) => decode_fill(u64::from_le_bytes(word.try_into().ok()?), page),
            (IN_SLOT, (_, value)) => {
                let crc = u64::from_le_bytes(value.try_into().ok()?) as u32;
                decode_ref(base?, crc, 32, backend, page).ok()?;
            }
            _ => {
                decode(payload, base, scratch, backend, page).ok()?;
            }
        }
        Some(&*page)
    }

    fn stored(&self, payload: &[u8]) -> usize {
        match payload.len() {
            IN_SLOT => 0,
            len => len,
        }
    }
}

/// The level that zswap and zram use by default.
const LEVEL: i32 = 3;

/// zstd as others use it: one frame a page, contexts reused.
pub struct Zstd {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
    out: Vec<u8>,
    page: Box<Aligned>,
}

impl Default for Zstd {
    fn default() -> Self {
        Self {
            compressor: CCtx::create(),
            decompressor: DCtx::create(),
            out: vec![0; zstd_safe::compress_bound(PAGE_SIZE)],
            page: Aligned::new(),
        }
    }
}

impl Codec for Zstd {
    fn name(&self) -> &'static str {
        "zstd-3"
    }

    fn encode(&mut self, record: &Record) -> Option<&[u8]> {
        let Self {
            compressor, out, ..
        } = self;
        let len = compressor.compress(&mut out[..], &record.page.0[..], LEVEL);
        out.get(..len.ok()?)
    }

    fn decode(&mut self, _record: &Record, payload: &[u8]) -> Option<&Page> {
        let len = self.decompressor.decompress(&mut self.page.0[..], payload);
        (len == Ok(PAGE_SIZE)).then_some(&self.page.0)
    }
}

/// LZ4's reference implementation, default acceleration.
pub struct Lz4 {
    out: Vec<u8>,
    page: Box<Aligned>,
}

impl Default for Lz4 {
    fn default() -> Self {
        Self {
            out: vec![0; lz4::block::compress_bound(PAGE_SIZE).unwrap_or(2 * PAGE_SIZE)],
            page: Aligned::new(),
        }
    }
}

impl Codec for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn encode(&mut self, record: &Record) -> Option<&[u8]> {
        let len =
            lz4::block::compress_to_buffer(&record.page.0[..], None, false, &mut self.out).ok()?;
        self.out.get(..len)
    }

    fn decode(&mut self, _record: &Record, payload: &[u8]) -> Option<&Page> {
        let size = Some(PAGE_SIZE as i32);
        let len = lz4::block::decompress_to_buffer(payload, size, &mut self.page.0[..]).ok()?;
        (len == PAGE_SIZE).then_some(&self.page.0)
    }
}
