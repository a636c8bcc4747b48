// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the tests share: pages to try, a codec with its buffers, and a naive decoder.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod naive;
pub mod pages;

use agentzip_codec::host::Host;
use agentzip_codec::{
    decode, decode_onto, decode_unchecked, encode, header, Base, BaseId, DecodeError, Encoded,
    Encoder, Level, Limits, Page, Representation, Scratch, MAX_PAYLOAD, PAGE_SIZE,
};

/// Everything is tried, fast.
pub const LIMITS: Limits = Limits::at(Level::Fast);

/// The codec with its buffers.
pub struct Bench {
    pub backend: Host,
    pub scratch: Box<Scratch>,
    pub out: Box<[u8; MAX_PAYLOAD]>,
    pub page: Box<Page>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            backend: Host::new(),
            scratch: Box::new(Scratch::new()),
            out: Box::new([0; MAX_PAYLOAD]),
            page: Box::new([0; PAGE_SIZE]),
        }
    }

    pub fn encode(&mut self, page: &Page, bases: &[Base<'_>]) -> Option<Encoded> {
        self.encode_with(page, bases, LIMITS)
    }

    pub fn encode_with(
        &mut self,
        page: &Page,
        bases: &[Base<'_>],
        limits: Limits,
    ) -> Option<Encoded> {
        encode(
            page,
            bases,
            limits,
            &mut self.scratch,
            &mut self.backend,
            &mut self.out,
        )
    }

    /// The payload of a page, whatever it is: a fill in one, an empty delta for an equal page.
    pub fn payload(&mut self, page: &Page, bases: &[Base<'_>]) -> Option<Vec<u8>> {
        self.payload_with(page, bases, LIMITS)
    }

    pub fn payload_with(
        &mut self,
        page: &Page,
        bases: &[Base<'_>],
        limits: Limits,
    ) -> Option<Vec<u8>> {
        let len = match self.encode_with(page, bases, limits)? {
            Encoded::Payload { len, .. } => len,
            Encoded::Fill(_) => {
                let mut encoder = Encoder::new(page, limits, &mut self.backend);
                encoder.try_fill(&mut self.out);
                encoder.finish(&mut self.out)?
            }
            Encoded::Ref { .. } => {
                let mut encoder = Encoder::new(page, limits, &mut self.backend);
                let Self {
                    backend,
                    scratch,
                    out,
                    ..
                } = self;
                encoder.try_bases(bases, scratch, backend, out);
                encoder.finish(out)?
            }
        };
        Some(self.out[..len].to_vec())
    }

    /// Decodes into `page`, with the base that the payload names if it is among these; in the other ways,
    /// too, which must agree.
    pub fn decode(
        &mut self,
        payload: &[u8],
        bases: &[Base<'_>],
    ) -> Result<Representation, DecodeError> {
        let wanted = header(payload)?.base;
        let base = bases.iter().find(|base| Some(base.id) == wanted);
        let base = base.map(|base| base.page);
        let Self {
            backend,
            scratch,
            page,
            ..
        } = self;
        let unchecked = decode_unchecked(payload, base, scratch, backend, page);
        let unchecked = unchecked.map(|header| (header.representation, **page));
        let onto = base.map(|base| {
            **page = *base;
            decode_onto(payload, scratch, backend, page).map(|how| (how, **page))
        });
        let decoded = decode(payload, base, scratch, backend, page);
        let with_page = decoded.map(|how| (how, **page));
        match decoded {
            // The checksum is all that it does not look at.
            Err(DecodeError::Checksum) => assert!(unchecked.is_ok()),
            _ => assert!(unchecked == with_page, "{decoded:?}"),
        }
        let changes_words = matches!(
            header(payload)?.representation,
            Representation::Delta | Representation::DeltaZstd
        );
        match onto {
            Some(onto) if changes_words => assert!(onto == with_page, "{decoded:?}"),
            Some(onto) => assert!(onto.is_err()),
            None => {}
        }
        decoded
    }
}

/// A base among the template's pages.
pub fn template(number: u32, page: &Page) -> Base<'_> {
    Base {
        id: BaseId::Template(number),
        page,
    }
}

/// A base among the reference pages.
pub fn reference(number: u32, page: &Page) -> Base<'_> {
    Base {
        id: BaseId::Reference(number),
        page,
    }
}
