// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A second implementation of the payload format, written from its description for clarity alone.
//! It shares no code with the codec but zstd.

use agentzip_codec::{Base, BaseId, Page, PAGE_SIZE};

/// CRC-32C, one bit at a time.
pub fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

/// The changes from one page to another: words skipped, first byte, bytes.
fn changes(page: &Page, base: &Page) -> Vec<(usize, usize, Vec<u8>)> {
    let mut list = Vec::new();
    let mut next = 0;
    for word in 0..PAGE_SIZE / 8 {
        let bytes = word * 8..word * 8 + 8;
        let differs: Vec<usize> = (0..8)
            .filter(|&n| page[bytes.start + n] != base[bytes.start + n])
            .collect();
        if let (Some(&first), Some(&last)) = (differs.first(), differs.last()) {
            let literal = page[bytes][first..=last].to_vec();
            list.push((word - next, first, literal));
            next = word + 1;
        }
    }
    list
}

fn token(skip: usize, first: usize, len: usize) -> Vec<u8> {
    if skip < 16 && first == 0 {
        vec![((len - 1) * 16 + skip) as u8]
    } else {
        vec![
            (128 + first * 16 + (len - 1) * 2 + skip / 256) as u8,
            (skip % 256) as u8,
        ]
    }
}

/// The joined change stream.
pub fn joined(page: &Page, base: &Page) -> Vec<u8> {
    let mut stream = Vec::new();
    for (skip, first, literal) in changes(page, base) {
        stream.extend(token(skip, first, literal.len()));
        stream.extend(literal);
    }
    stream
}

/// The split change stream.
pub fn split(page: &Page, base: &Page) -> Vec<u8> {
    let changes = changes(page, base);
    let tokens: Vec<u8> = changes
        .iter()
        .flat_map(|(skip, first, literal)| token(*skip, *first, literal.len()))
        .collect();
    let literals = changes.iter().flat_map(|(_, _, literal)| literal);
    let mut stream = (tokens.len() as u16).to_le_bytes().to_vec();
    stream.extend(&tokens);
    stream.extend(literals);
    stream
}

/// A reader that knows where it is.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<usize> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first.into())
    }

    fn token(&mut self) -> Option<(usize, usize, usize)> {
        let first = self.byte()?;
        if first < 128 {
            return Some((first % 16, 0, first / 16 + 1));
        }
        let low = self.byte()?;
        Some((first % 2 * 256 + low, first / 16 % 8, first / 2 % 8 + 1))
    }
}

fn patch(
    page: &mut Page,
    word: usize,
    first: usize,
    len: usize,
    literals: &mut Input<'_>,
) -> Option<()> {
    for n in 0..len {
        let byte = literals.byte()? as u8;
        if word >= PAGE_SIZE / 8 {
            return None;
        }
        // What would lie beyond the word is read and ignored.
        if first + n < 8 {
            page[word * 8 + first + n] = byte;
        }
    }
    Some(())
}

/// What a format number means.
#[derive(Clone, Copy)]
enum Kind {
    Delta,
    DeltaZstd,
    Prefix,
}

/// Decodes a payload; `None` when it must be refused.
pub fn decode(payload: &[u8], bases: &[Base<'_>]) -> Option<Box<Page>> {
    if payload.len() < 8 {
        return None;
    }
    let crc = u32::from_le_bytes(payload[..4].try_into().ok()?);
    let format = payload[4] / 8;
    let end = payload.len() - usize::from(payload[4] % 8);
    let named = u32::from_le_bytes([payload[5], payload[6], payload[7], 0]);
    let with = |kind, id| {
        let base = bases.iter().find(|base| base.id == id)?;
        against(kind, base.page, payload.get(8..end)?)
    };
    let page = match format {
        8 => {
            let body: &[u8; 8] = payload.get(5..end)?.try_into().ok()?;
            let mut page = Box::new([0; PAGE_SIZE]);
            for (place, byte) in page.iter_mut().zip(body.iter().cycle()) {
                *place = *byte;
            }
            page
        }
        9 => with(Kind::Delta, BaseId::Template(named))?,
        10 => with(Kind::Delta, BaseId::Reference(named))?,
        14 => with(Kind::DeltaZstd, BaseId::Template(named))?,
        15 => with(Kind::DeltaZstd, BaseId::Reference(named))?,
        16 => with(Kind::Prefix, BaseId::Template(named))?,
        17 => with(Kind::Prefix, BaseId::Reference(named))?,
        18 => Box::new(unzstd(payload.get(5..end)?, &[])?.try_into().ok()?),
        _ => return None,
    };
    (crc32c(&page[..]) == crc).then_some(page)
}

fn against(kind: Kind, base: &Page, body: &[u8]) -> Option<Box<Page>> {
    let mut page = Box::new(*base);
    let mut word = 0;
    match kind {
        Kind::Delta => {
            let mut input = Input(body);
            while !input.0.is_empty() {
                let (skip, first, len) = input.token()?;
                word += skip;
                patch(&mut page, word, first, len, &mut input)?;
                word += 1;
            }
        }
        Kind::DeltaZstd => {
            let stream = unzstd(body, &[])?;
            let tokens = usize::from(u16::from_le_bytes(stream.get(..2)?.try_into().ok()?));
            let mut literals = Input(stream.get(2 + tokens..)?);
            let mut tokens = Input(&stream[2..2 + tokens]);
            while !tokens.0.is_empty() {
                let (skip, first, len) = tokens.token()?;
                word += skip;
                patch(&mut page, word, first, len, &mut literals)?;
                word += 1;
            }
            if !literals.0.is_empty() {
                return None;
            }
        }
        Kind::Prefix => *page = unzstd(body, base)?.try_into().ok()?,
    }
    Some(page)
}

/// Decompresses a zstd block with a prefix, by making a frame of it: magic number, no content size,
/// a window of 16 KiB, one compressed block.
pub fn unzstd(block: &[u8], prefix: &[u8]) -> Option<Vec<u8>> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x20];
    let header = 1 | (2 << 1) | ((block.len() as u32) << 3);
    frame.extend(&header.to_le_bytes()[..3]);
    frame.extend(block);
    let mut content = vec![0; 2 * PAGE_SIZE];
    let mut context = zstd_safe::DCtx::create();
    context.ref_prefix(prefix).ok()?;
    let len = context.decompress(&mut content[..], &frame).ok()?;
    content.truncate(len);
    Some(content)
}

/// Compresses into one zstd block: what the only block of a frame holds.
pub fn zstd(content: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 2 * PAGE_SIZE];
    let len = zstd_safe::compress(&mut frame[..], content, 1).expect("there is room");
    // Magic number, descriptor, content size, block header.
    let size_len = [1, 2, 4, 8][usize::from(frame[4] / 64)];
    let start = 4 + 1 + size_len + 3;
    assert_eq!(frame[start - 3] & 7, 1 | (2 << 1), "one compressed block");
    frame[start..len].to_vec()
}
