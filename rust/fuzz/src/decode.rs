// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Payloads: any bytes give the page that their checksum is of, or an error, and every page that was
//! encoded comes back.
//!
//! An input is a mode (1 byte), a base and, in even modes, a payload; in odd modes a page and how to
//! encode it.

use std::cell::RefCell;

use agentzip_codec::host::Host;
use agentzip_codec::{
    decode, decode_onto, decode_unchecked, header, Backend, Base, BaseId, DecodeError, Encoder,
    Level, Limits, Page, Representation, Scratch, MAX_BASES, MAX_PAYLOAD, PADDED_LEN, UNIT,
};

use crate::guarded::Guarded;
use crate::input::Input;

/// Pages that a payload has room in: those of inputs may be too long.
const PAYLOAD_PAGES: usize = 2;

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// The target.
pub fn target(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        let mut input = Input::new(data);
        let mode = input.u8();
        *bench.base.page() = *input.page();
        match mode % 2 {
            0 => bench.decode_any(input.rest()),
            _ => bench.round_trip(mode / 2, &mut input),
        }
    });
}

/// The codec with its buffers.
struct Bench {
    host: Host,
    scratch: Box<Scratch>,
    out: Box<[u8; MAX_PAYLOAD]>,
    payload: Guarded,
    base: Guarded,
    page: Guarded,
}

impl Bench {
    fn new() -> Self {
        Self {
            host: Host::new(),
            scratch: Box::new(Scratch::new()),
            out: Box::new([0; MAX_PAYLOAD]),
            payload: Guarded::new(PAYLOAD_PAGES),
            base: Guarded::new(1),
            page: Guarded::new(1),
        }
    }

    /// Decodes bytes that may be no payload in every way, which must agree.
    fn decode_any(&mut self, bytes: &[u8]) {
        let Self {
            host,
            scratch,
            payload,
            base,
            page,
            ..
        } = self;
        let payload = payload.hold(bytes);
        let base: &Page = base.page();
        let page = page.page();
        let head = match decode_unchecked(payload, Some(base), scratch, host, page) {
            Ok(head) => head,
            Err(error) => {
                let checked = decode(payload, Some(base), scratch, host, page);
                assert_eq!(checked, Err(error));
                return;
            }
        };
        assert_eq!(header(payload), Ok(head));
        let decoded = *page;
        let crc = host.crc32c(&decoded);
        let expected = match head.crc == crc {
            true => Ok(head.representation),
            false => Err(DecodeError::Checksum),
        };
        let checked = decode(payload, Some(base), scratch, host, page);
        assert_eq!(checked, expected);

        // With the checksum of what came out it is a payload.
        let place = payload.first_chunk_mut::<4>();
        *place.expect("a header begins with a checksum") = crc.to_le_bytes();
        let good = Ok(head.representation);
        let checked = decode(payload, Some(base), scratch, host, page);
        assert_eq!(checked, good);
        assert!(*page == decoded, "not the same page twice");
        if let Representation::Delta | Representation::DeltaZstd = head.representation {
            *page = *base;
            assert_eq!(decode_onto(payload, scratch, host, page), good);
            assert!(*page == decoded, "another page onto its base");
        }
        if head.base.is_some() {
            let checked = decode(payload, None, scratch, host, page);
            assert_eq!(checked, Err(DecodeError::NoBase));
        }
    }

    /// Encodes a page and decodes it; `steps` are those of the encoder, a bit each.
    fn round_trip(&mut self, steps: u8, input: &mut Input<'_>) {
        let Self {
            host,
            scratch,
            out,
            payload,
            base,
            page,
        } = self;
        let base: &Page = base.page();
        let flags = input.u8();
        let number = input.u32() % MAX_BASES;
        let original = match flags & 1 {
            0 => input.changed(base),
            _ => input.page(),
        };
        let named = Base {
            id: match flags & 2 {
                0 => BaseId::Template(number),
                _ => BaseId::Reference(number),
            },
            page: base,
        };
        let limits = Limits {
            delta_zstd: flags & 4 == 0,
            prefix: flags & 8 == 0,
            ..Limits::at(Level::ALL[usize::from(flags / 16) % Level::ALL.len()])
        };

        let mut encoder = Encoder::new(&original, limits, host);
        if steps & 1 != 0 {
            encoder.try_fill(out);
        }
        if steps & 2 != 0 {
            encoder.try_bases(&[named], scratch, host, out);
        }
        if steps & 4 != 0 {
            encoder.try_similar(&named, scratch, host, out);
        }
        if steps & 8 != 0 {
            encoder.try_zstd(scratch, host, out);
        }
        if steps & 16 != 0 {
            // It stands for itself.
            encoder = Encoder::new(&original, limits, host);
            encoder.try_padded(scratch, host, out);
        }
        let Some(length) = encoder.finish(out) else {
            return;
        };
        assert!(length % UNIT == 0 && length <= MAX_PAYLOAD, "{length}");
        assert!(steps & 16 == 0 || length == PADDED_LEN, "{length}");
        let payload = payload.hold(&out[..length]);
        let head = header(payload).expect("a payload begins with a header");
        assert_eq!(head.base, encoder.base());
        assert_eq!(Some(head.representation), encoder.representation());
        let page = page.page();
        let decoded = decode(payload, Some(base), scratch, host, page);
        assert_eq!(decoded, Ok(head.representation));
        assert!(*page == *original, "another page came back");
    }
}
