// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the tests share: pages to try, a codec with its buffers, and a naive decoder.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod naive;
pub mod pages;

use agentzip_codec::host::Host;
use agentzip_codec::{
    decode, encode, encode_fill, Base, DecodeError, Encoded, Page, Representation, Scratch,
    MAX_PAYLOAD, PAGE_SIZE,
};

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

    /// Encodes with plain length as cost and no limit but the longest payload.
    pub fn encode(&mut self, page: &Page, bases: &[Base<'_>]) -> Option<Encoded> {
        self.encode_with(page, bases, &|len| len, MAX_PAYLOAD)
    }

    pub fn encode_with(
        &mut self,
        page: &Page,
        bases: &[Base<'_>],
        cost: &impl Fn(usize) -> usize,
        limit: usize,
    ) -> Option<Encoded> {
        encode(
            page,
            bases,
            cost,
            limit,
            &mut self.scratch,
            &mut self.backend,
            &mut self.out,
        )
    }

    /// The payload of a page in whatever representation has one, if any.
    pub fn payload(&mut self, page: &Page, bases: &[Base<'_>]) -> Option<Vec<u8>> {
        let len = match self.encode(page, bases)? {
            Encoded::Fill(_) => encode_fill(page, &mut self.backend, &mut self.out)?,
            Encoded::Ref { .. } => return None,
            Encoded::Payload { len, .. } => len,
        };
        Some(self.out[..len].to_vec())
    }

    /// Decodes with one base, which has this ordinal.
    pub fn decode(
        &mut self,
        payload: &[u8],
        ordinal: u32,
        base: &Page,
    ) -> Result<Representation, DecodeError> {
        decode(
            payload,
            |wanted| (wanted == ordinal).then_some(base),
            &mut self.scratch,
            &mut self.backend,
            &mut self.page,
        )
    }
}
