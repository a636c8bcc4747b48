// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `Documentation/ABI/agentzip.h` says the same as this crate: numbers, names, layouts, commands.
//!
//! The header is read with a parser for exactly the C that it is written in, so no C compiler is
//! needed. Whatever the parser does not know, or finds in the header and not below, is a failure.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use agentzip_uapi::*;

const HEADER: &str = include_str!("../../../Documentation/ABI/agentzip.h");

/// A field: name, offset, size.
type Field = (String, usize, usize);

#[derive(Debug, PartialEq, Eq)]
struct Layout {
    size: usize,
    fields: Vec<Field>,
}

/// What the header defines.
#[derive(Default)]
struct Header {
    numbers: BTreeMap<String, u64>,
    texts: BTreeMap<String, String>,
    structs: BTreeMap<String, Layout>,
}

impl Header {
    fn parse() -> Header {
        let text = without_comments(HEADER);
        let mut header = Header::default();
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("#define ") {
                header.define(rest);
            } else if line.starts_with('#') {
                assert!(
                    ["#ifndef", "#include", "#endif"]
                        .iter()
                        .any(|word| line.starts_with(word)),
                    "{line}"
                );
            } else if line.starts_with("enum ") {
                for line in lines.by_ref().take_while(|l| *l != "};") {
                    let (name, value) = line.trim_end_matches(',').split_once('=').unwrap();
                    header.number(name.trim(), number(value));
                }
            } else if let Some(name) = line.strip_prefix("struct ") {
                let name = name.trim_end_matches('{').trim().to_owned();
                let layout = header.layout(lines.by_ref().take_while(|l| *l != "};"));
                assert!(header.structs.insert(name, layout).is_none());
            } else {
                panic!("not understood: {line}");
            }
        }
        header
    }

    fn number(&mut self, name: &str, value: u64) {
        let former = self.numbers.insert(name.to_owned(), value);
        assert!(former.is_none(), "{name} is defined twice");
    }

    fn define(&mut self, rest: &str) {
        let Some((name, value)) = rest.split_once(char::is_whitespace) else {
            assert_eq!(rest, "AGENTZIP_H");
            return;
        };
        let value = value.trim();
        if let Some(text) = value.strip_prefix('"') {
            let text = text.strip_suffix('"').unwrap();
            self.texts.insert(name.to_owned(), text.to_owned());
        } else if let Some(command) = value.strip_prefix("_IO") {
            let command = self.command(command);
            self.number(name, command);
        } else {
            self.number(name, number(value));
        }
    }

    /// The number of a command; `text` is what follows `_IO`. As in `<asm-generic/ioctl.h>`.
    fn command(&self, text: &str) -> u64 {
        let (kind, arguments) = text.strip_suffix(')').unwrap().split_once('(').unwrap();
        let direction = match kind {
            "" => 0,
            "W" => 1,
            "R" => 2,
            "WR" => 3,
            _ => panic!("_IO{kind}"),
        };
        let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
        assert_eq!(arguments[0], "AGENTZIP_IOC_MAGIC");
        let size = match arguments.get(2) {
            None => 0,
            Some(name) => self.structs[name.strip_prefix("struct ").unwrap()].size as u64,
        };
        (direction << 30) | (size << 16) | (self.numbers[arguments[0]] << 8) | number(arguments[1])
    }

    fn layout<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Layout {
        let mut end = 0;
        let mut alignment = 1;
        let mut fields = Vec::new();
        for line in lines {
            let (kind, declarator) = line.strip_suffix(';').unwrap().rsplit_once(' ').unwrap();
            let (name, count) = match declarator.split_once('[') {
                None => (declarator, 1),
                Some((name, count)) => (name, self.numbers[count.strip_suffix(']').unwrap()]),
            };
            let (size, align) = match kind {
                "__u8" => (1, 1),
                "__u32" | "__s32" => (4, 4),
                "__u64" => (8, 8),
                _ => (self.structs[kind.strip_prefix("struct ").unwrap()].size, 8),
            };
            // `template` is a keyword of C++.
            let name = match name {
                "template_name" => "template",
                _ => name,
            };
            let offset = end;
            assert_eq!(offset % align, 0, "implicit padding before {name}");
            end = offset + size * count as usize;
            alignment = alignment.max(align);
            fields.push((name.to_owned(), offset, end - offset));
        }
        assert_eq!(end % alignment, 0, "implicit padding at the end");
        Layout { size: end, fields }
    }
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap().to_owned();
    for part in parts {
        code.push_str(part.split_once("*/").unwrap().1);
    }
    code
}

fn number(text: &str) -> u64 {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: {text}"))
}

#[test]
fn numbers_and_texts() {
    let mut header = Header::parse();
    let mut expected: Vec<(String, u64)> = [
        ("ABI_VERSION", ABI_VERSION),
        ("IOC_MAGIC", IOC_MAGIC),
        ("NAME_MAX", NAME_MAX as u32),
        ("NAME_LEN", NAME_LEN as u32),
        ("MAX_RANGES", MAX_RANGES),
        ("MAX_SANDBOX_RANGES", MAX_SANDBOX_RANGES),
        ("SANDBOX_SENSITIVE", SANDBOX_SENSITIVE),
        ("MIN_DICTIONARY", MIN_DICTIONARY),
        ("MAX_DICTIONARY", MAX_DICTIONARY),
        ("MAX_SAMPLES", MAX_SAMPLES),
        ("MIN_RECORDS", MIN_RECORDS),
        ("MAX_RECORDS", MAX_RECORDS),
        ("MAX_PREFETCH_RANGES", MAX_PREFETCH_RANGES),
        ("MAX_PREFETCH_PAGES", MAX_PREFETCH_PAGES as u32),
        ("MAX_PREFETCH_MS", MAX_PREFETCH_MS),
        ("DEFAULT_PREFETCH_MS", DEFAULT_PREFETCH_MS),
        ("PREFETCH_UNTESTED", PREFETCH_UNTESTED),
        ("MAX_PAGE_STATES", MAX_PAGE_STATES as u32),
        ("LATENCY_BUCKETS", LATENCY_BUCKETS as u32),
        ("NOT_DECODED", NOT_DECODED.into()),
        ("FAULT_WRITE", FAULT_WRITE.into()),
        ("FAULT_DEMAND", FaultKind::Demand as u32),
        ("FAULT_HIT", FaultKind::Hit as u32),
        ("FAULT_MISS", FaultKind::Miss as u32),
        ("PAGE_STATES_CLEAR", PAGE_STATES_CLEAR),
        ("PAGE_PRESENT", PAGE_PRESENT.into()),
        ("PAGE_ACCESSED", PAGE_ACCESSED.into()),
        ("PAGE_SWAPPED", PAGE_SWAPPED.into()),
        ("SIGNATURE_LEN", SIGNATURE_LEN as u32),
        ("REPRESENTATION_SLOTS", REPRESENTATION_SLOTS as u32),
        ("INFO", INFO),
        ("ARM", ARM),
        ("DISARM", DISARM),
        ("TEMPLATE_ADD", TEMPLATE_ADD),
        ("TEMPLATE_ADD_SIGNED", TEMPLATE_ADD_SIGNED),
        ("TEMPLATE_ADD_FILE", TEMPLATE_ADD_FILE),
        ("TEMPLATE_REMOVE", TEMPLATE_REMOVE),
        ("SANDBOX_ATTACH", SANDBOX_ATTACH),
        ("SANDBOX_ATTACH_SIGNED", SANDBOX_ATTACH_SIGNED),
        ("SANDBOX_RANGES", SANDBOX_RANGES),
        ("SANDBOX_DETACH", SANDBOX_DETACH),
        ("SANDBOX_PHASE", SANDBOX_PHASE),
        ("DICTIONARY_ADD", DICTIONARY_ADD),
        ("DICTIONARY_RETIRE", DICTIONARY_RETIRE),
        ("DICTIONARY_SAMPLES", DICTIONARY_SAMPLES),
        ("SANDBOX_RECORD", SANDBOX_RECORD),
        ("FAULTS_READ", FAULTS_READ),
        ("PREFETCH", PREFETCH),
        ("PAGE_STATES", PAGE_STATES),
        ("STATS", STATS),
        ("DRAIN", DRAIN),
    ]
    .map(|(name, value)| (name.to_owned(), value.into()))
    .to_vec();
    expected.push(("SAMPLES_END".to_owned(), SAMPLES_END));
    for phase in Phase::ALL {
        let name = format!("PHASE_{}", phase.name().to_uppercase());
        expected.push((name, phase as u64));
    }
    for representation in Representation::ALL {
        let name = format!("REPRESENTATION_{}", representation.name().to_uppercase());
        expected.push((name, representation as u64));
    }
    for (name, value) in expected {
        let name = format!("AGENTZIP_{name}");
        assert_eq!(header.numbers.remove(&name), Some(value), "{name}");
    }
    assert!(header.numbers.is_empty(), "not here: {:?}", header.numbers);

    let texts = [
        ("DEFAULT_DOMAIN", DEFAULT_DOMAIN),
        ("DEVICE_PATH", DEVICE_PATH),
        ("SYSFS_PATH", SYSFS_PATH),
    ];
    let texts = texts.map(|(name, text)| (format!("AGENTZIP_{name}"), text.to_owned()));
    assert_eq!(header.texts, BTreeMap::from(texts));
}

/// The layout of a structure with these fields, in order.
macro_rules! layout {
    ($type:ty { $($field:ident),* $(,)? }) => {{
        fn size_of_field<T>(_: impl Fn(&$type) -> &T) -> usize {
            size_of::<T>()
        }
        Layout {
            size: size_of::<$type>(),
            fields: vec![$((
                stringify!($field).to_owned(),
                offset_of!($type, $field),
                size_of_field(|s| &s.$field),
            )),*],
        }
    }};
}

#[test]
fn layouts() {
    let expected = [
        ("range", layout!(Range { start, end })),
        (
            "info",
            layout!(Info {
                abi_version,
                armed,
                enabled,
                draining
            }),
        ),
        (
            "template_add",
            layout!(TemplateAdd {
                pid,
                flags,
                ranges,
                nr_ranges,
                reserved,
                name,
                domain,
                pages_referenced,
                pages_copied,
                pages_skipped,
            }),
        ),
        (
            "template_add_signed",
            layout!(TemplateAddSigned { add, signature }),
        ),
        (
            "template_add_file",
            layout!(TemplateAddFile {
                fd,
                flags,
                offset,
                length,
                name,
                domain,
                signature,
                pages_referenced,
                pages_copied,
                pages_skipped,
            }),
        ),
        ("template_remove", layout!(TemplateRemove { name, users })),
        (
            "sandbox_attach",
            layout!(SandboxAttach {
                cgroup_fd,
                flags,
                template,
                group,
                domain,
                cgroup_id,
            }),
        ),
        (
            "sandbox_attach_signed",
            layout!(SandboxAttachSigned { attach, signature }),
        ),
        (
            "sandbox_range",
            layout!(SandboxRange { start, end, offset }),
        ),
        (
            "sandbox_ranges",
            layout!(SandboxRanges {
                cgroup_id,
                ranges,
                nr_ranges,
                reserved
            }),
        ),
        (
            "sandbox_detach",
            layout!(SandboxDetach { cgroup_id, entries }),
        ),
        (
            "sandbox_phase",
            layout!(SandboxPhase {
                cgroup_id,
                phase,
                reserved
            }),
        ),
        (
            "dictionary_add",
            layout!(DictionaryAdd {
                cgroup_id,
                content,
                length,
                number
            }),
        ),
        (
            "dictionary_retire",
            layout!(DictionaryRetire {
                cgroup_id,
                number,
                reserved
            }),
        ),
        (
            "dictionary_samples",
            layout!(DictionarySamples {
                cgroup_id,
                buffer,
                capacity,
                least,
                cursor,
                pages,
                reserved,
            }),
        ),
        (
            "page_stats",
            layout!(PageStats {
                pages,
                bytes,
                stores,
                loads,
                erased,
                declined_incompressible,
                declined_nomem,
                declined_full,
                declined_detached,
                load_errors,
                template_backed,
                promoted,
                dropped,
                provisional,
                second_look_pages,
                second_look_bytes,
                second_look_ns,
                encode_ns,
                decode_ns,
            }),
        ),
        (
            "memory_stats",
            layout!(MemoryStats {
                arenas,
                references,
                sketches,
                table,
                template_pages,
                template_index,
                scratch,
                objects,
                dictionaries,
            }),
        ),
        (
            "stats",
            layout!(Stats {
                cgroup_id,
                page,
                memory
            }),
        ),
        (
            "sandbox_record",
            layout!(SandboxRecord {
                cgroup_id,
                records,
                eventfd,
            }),
        ),
        (
            "fault_record",
            layout!(FaultRecord {
                time_ns,
                address,
                tgid,
                tid,
                decode_ns,
                representation,
                kind,
                flags,
                reserved,
            }),
        ),
        (
            "faults_read",
            layout!(FaultsRead {
                cgroup_id,
                buffer,
                capacity,
                records,
                lost,
            }),
        ),
        (
            "prefetch",
            layout!(Prefetch {
                cgroup_id,
                ranges,
                nr_ranges,
                pid,
                timeout_ms,
                hit_window_ms,
                priority,
                flags,
                pages,
            }),
        ),
        (
            "page_states",
            layout!(PageStates {
                cgroup_id,
                start,
                end,
                states,
                pid,
                flags,
            }),
        ),
        ("drain", layout!(Drain { entries })),
    ];
    let expected = expected.map(|(name, layout)| (format!("agentzip_{name}"), layout));
    assert_eq!(Header::parse().structs, BTreeMap::from(expected));
}
