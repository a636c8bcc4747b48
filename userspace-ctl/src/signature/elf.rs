// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The build id of an ELF file: the note that the linker made of everything it linked.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Most bytes of a note segment that are looked at.
const MAX_NOTES: u64 = 64 << 10;
/// Most program headers that are looked at.
const MAX_HEADERS: u16 = 512;

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id; `None` when the file has none, or is no ELF file of this machine.
///
/// # Errors
///
/// What reading the file gives.
pub(super) fn build_id(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 64];
    if !fill(file, &mut header, 0)? || header[..6] != *b"\x7fELF\x02\x01" {
        return Ok(None);
    }
    let (table, size) = (u64_at(&header, 32), u16_at(&header, 54));
    for number in 0..u16_at(&header, 56).min(MAX_HEADERS) {
        let mut entry = [0; 56];
        let place = table.checked_add(u64::from(number) * u64::from(size));
        let Some(place) = place.filter(|_| usize::from(size) >= entry.len()) else {
            return Ok(None);
        };
        if !fill(file, &mut entry, place)? || u32_at(&entry, 0) != PT_NOTE {
            continue;
        }
        let mut notes = vec![0; u64_at(&entry, 32).min(MAX_NOTES) as usize];
        if !fill(file, &mut notes, u64_at(&entry, 8))? {
            continue;
        }
        let alignment = if u64_at(&entry, 48) == 8 { 8 } else { 4 };
        if let Some(id) = find(&notes, alignment) {
            return Ok(Some(id.to_vec()));
        }
    }
    Ok(None)
}

/// The build id among the notes of a segment.
fn find(mut notes: &[u8], alignment: usize) -> Option<&[u8]> {
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let (name_len, len) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize);
        let name = rest.get(..name_len)?;
        let start = (12 + name_len).next_multiple_of(alignment);
        let id = notes.get(start..start.checked_add(len)?)?;
        if u32_at(head, 8) == NT_GNU_BUILD_ID && name == b"GNU\0" && !id.is_empty() {
            return Some(id);
        }
        notes = notes.get((start + len).next_multiple_of(alignment)..)?;
    }
}

/// Fills the buffer from this position; false when the file ends before.
fn fill(file: &File, buffer: &mut [u8], position: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, position) {
        Ok(()) => Ok(true),
        // InvalidInput: a position that no file can have.
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidInput) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: u32, name: &[u8], description: &[u8], alignment: usize) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, description.len() as u32, kind] {
            note.extend(word.to_le_bytes());
        }
        for part in [name, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(alignment), 0);
        }
        note
    }

    /// An ELF file of one note segment.
    fn elf(notes: &[u8], alignment: u64) -> File {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
        bytes[64..68].copy_from_slice(&PT_NOTE.to_le_bytes());
        bytes[72..80].copy_from_slice(&120u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(notes.len() as u64).to_le_bytes());
        bytes[112..120].copy_from_slice(&alignment.to_le_bytes());
        bytes.extend(notes);
        plain(&bytes)
    }

    fn plain(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn finds_the_note() {
        for alignment in [4, 8] {
            let mut notes = note(5, b"GNU\0", &[1; 16], alignment);
            notes.extend(note(NT_GNU_BUILD_ID, b"GNU\0", &[9; 20], alignment));
            let file = elf(&notes, alignment as u64);
            assert_eq!(build_id(&file).unwrap(), Some(vec![9; 20]));
        }
    }

    #[test]
    fn files_without_one() {
        for bytes in [&b""[..], b"#!/bin/sh\n", &[0; 200], b"\x7fELF\x02\x01"] {
            assert_eq!(build_id(&plain(bytes)).unwrap(), None);
        }
        let other = note(NT_GNU_BUILD_ID, b"abc\0", &[9; 20], 4);
        assert_eq!(build_id(&elf(&other, 4)).unwrap(), None);
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let notes = note(NT_GNU_BUILD_ID, b"GNU\0", &[9; 20], 4);
        let mut whole = vec![0; 120 + notes.len()];
        elf(&notes, 4).read_exact_at(&mut whole, 0).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            build_id(&plain(&damaged)).unwrap();
            build_id(&plain(&whole[..at])).unwrap();
        }
    }

    #[test]
    fn our_own_program_is_read() {
        let program = File::open("/proc/self/exe").unwrap();
        build_id(&program).unwrap();
    }
}
