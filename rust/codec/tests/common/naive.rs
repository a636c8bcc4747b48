// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A second implementation of the payload format, written from its description for clarity alone.
//! It shares no code with the codec but zstd.

use agentzip_codec::{Page, PAGE_SIZE};

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

/// The check byte of the first six bytes of a header.
pub fn header_check(fields: &[u8]) -> u8 {
    let number = fields
        .iter()
        .rev()
        .fold(0u128, |number, &byte| number * 256 + u128::from(byte));
    ((number + 1) * 0x9e37_79b9_7f4a_7c15 % (1 << 64) / (1 << 56)) as u8
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

/// Decodes a payload; `None` when it must be refused.
pub fn decode(payload: &[u8], ordinal: u32, base: &Page) -> Option<Box<Page>> {
    let crc = u32::from_le_bytes(payload.get(..4)?.try_into().ok()?);
    let packed = u16::from_le_bytes(payload.get(4..6)?.try_into().ok()?);
    let len = usize::from(packed % 4096);
    if payload.get(6)? != &header_check(payload.get(..6)?) {
        return None;
    }
    if !(7..=PAGE_SIZE - 8).contains(&len) {
        return None;
    }
    let body = payload.get(7..len)?;
    let mut page = Box::new(*base);
    let pages_base = |body: &[u8]| -> Option<Vec<u8>> {
        let named = body.get(..3)?;
        let named = u32::from_le_bytes([named[0], named[1], named[2], 0]);
        (named == ordinal).then(|| body[3..].to_vec())
    };
    match packed / 4096 {
        1 => {
            if body.len() != 8 {
                return None;
            }
            for (place, byte) in page.iter_mut().zip(body.iter().cycle()) {
                *place = *byte;
            }
        }
        2 => {
            let stream = pages_base(body)?;
            let mut input = Input(&stream);
            let mut word = 0;
            while !input.0.is_empty() {
                let (skip, first, len) = input.token()?;
                word += skip;
                patch(&mut page, word, first, len, &mut input)?;
                word += 1;
            }
        }
        3 => {
            let frame = [&[0x28, 0xb5, 0x2f, 0xfd], &pages_base(body)?[..]].concat();
            let stream = unzstd(&frame)?;
            let tokens = usize::from(u16::from_le_bytes(stream.get(..2)?.try_into().ok()?));
            let mut literals = Input(stream.get(2 + tokens..)?);
            let mut tokens = Input(&stream[2..2 + tokens]);
            let mut word = 0;
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
        4 => {
            let start = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x0f];
            *page = unzstd(&[&start, body].concat())?.try_into().ok()?;
        }
        5 => *page = unzstd(body)?.try_into().ok()?,
        _ => return None,
    }
    (crc32c(&page[..]) == crc).then_some(page)
}

fn unzstd(frame: &[u8]) -> Option<Vec<u8>> {
    let mut content = vec![0; 2 * PAGE_SIZE];
    let len = zstd_safe::decompress(&mut content[..], frame).ok()?;
    content.truncate(len);
    Some(content)
}
