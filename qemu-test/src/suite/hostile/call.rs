// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls that are right, of every kind, and the same with something that is wrong.

use std::fs::File;
use std::os::fd::AsRawFd;

use agentzip_uapi as uapi;

use super::super::fixture::module::name;
use super::super::fixture::page::Rng;
use super::super::fixture::puppet::Region;
use super::super::sys::{self, PAGE_SIZE};

/// A field of an argument.
#[derive(Clone, Copy)]
enum Field {
    /// A number or flags of so many bytes.
    Number(usize),
    /// An address. Only some others are tried: with any other one the kernel might write to our own memory.
    Address,
    /// A name.
    Name,
    /// A signature.
    Signature,
}

use Field::{Address, Name, Number, Signature};

/// Numbers of 4 and of 8 bytes.
const N4: Field = Number(4);
const N8: Field = Number(8);

impl Field {
    fn size(self) -> usize {
        match self {
            Number(bytes) => bytes,
            Address => 8,
            Name => uapi::NAME_LEN,
            Signature => size_of::<uapi::Signature>(),
        }
    }
}

/// A call that is right.
pub struct Call {
    /// Its number.
    pub command: u32,
    fields: &'static [Field],
    /// Its argument.
    pub bytes: Vec<u8>,
}

/// Puts an argument together, field by field.
struct Argument(Vec<u8>);

impl Argument {
    fn new() -> Argument {
        Argument(Vec::new())
    }

    fn u32(mut self, value: u32) -> Argument {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Argument {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn name(mut self, text: &str) -> Argument {
        self.0.extend(name(text));
        self
    }

    fn zeros(mut self, bytes: usize) -> Argument {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }
}

/// What the calls are about.
pub struct Scene<'a> {
    pub sandbox: u64,
    pub template: &'a str,
    pub pid: i32,
    pub region: &'a Region,
    pub cgroup: &'a File,
    /// A range of addresses, and in the next page a dictionary.
    pub input: u64,
    /// Memory to write to, with nothing mapped behind it.
    pub buffer: u64,
}

/// Bytes of [`Scene::buffer`].
pub const BUFFER: usize = 64 * PAGE_SIZE;

impl Scene<'_> {
    /// Calls that are right, of every kind but those that arm, disarm and drain.
    pub fn calls(&self) -> Vec<Call> {
        let range = self.region.range();
        let (id, ranges) = (self.sandbox, self.input);
        let dictionary = self.input + PAGE_SIZE as u64;
        let call = |command, fields, argument: Argument| Call {
            command,
            fields,
            bytes: argument.0,
        };
        let add = || {
            Argument::new()
                .u32(self.pid as u32)
                .u32(0)
                .u64(ranges)
                .u32(1)
                .u32(0)
                .name("other")
                .zeros(uapi::NAME_LEN + 24)
        };
        let attach = || {
            Argument::new()
                .u32(self.cgroup.as_raw_fd() as u32)
                .u32(0)
                .name(self.template)
                .zeros(2 * uapi::NAME_LEN + 8)
        };
        let signature = size_of::<uapi::Signature>();
        vec![
            call(
                uapi::TEMPLATE_ADD,
                &[N4, N4, Address, N4, N4, Name, Name],
                add(),
            ),
            call(
                uapi::TEMPLATE_ADD_SIGNED,
                &[N4, N4, Address, N4, N4, Name, Name, Number(24), Signature],
                add().zeros(signature),
            ),
            call(
                uapi::TEMPLATE_ADD_FILE,
                &[N4, N4, N8, N8, Name, Name, Signature],
                Argument::new()
                    .u32(self.cgroup.as_raw_fd() as u32)
                    .u32(0)
                    .u64(0)
                    .u64(4096)
                    .name("file")
                    .zeros(uapi::NAME_LEN + signature + 24),
            ),
            call(
                uapi::TEMPLATE_REMOVE,
                &[Name],
                Argument::new().name("other").u64(0),
            ),
            call(uapi::SANDBOX_ATTACH, &[N4, N4, Name, Name, Name], attach()),
            call(
                uapi::SANDBOX_ATTACH_SIGNED,
                &[N4, N4, Name, Name, Name, N8, Signature],
                attach().zeros(signature),
            ),
            call(
                uapi::SANDBOX_RANGES,
                &[N8, Address, N4, N4],
                Argument::new().u64(id).u64(ranges).u32(0).u32(0),
            ),
            call(
                uapi::SANDBOX_DETACH,
                &[N8],
                Argument::new().u64(id + 1).u64(0),
            ),
            call(
                uapi::SANDBOX_PHASE,
                &[N8, N4, N4],
                Argument::new().u64(id).u32(1).u32(0),
            ),
            call(
                uapi::DICTIONARY_ADD,
                &[N8, Address, N4],
                Argument::new()
                    .u64(id)
                    .u64(dictionary)
                    .u32(PAGE_SIZE as u32)
                    .u32(0),
            ),
            call(
                uapi::DICTIONARY_RETIRE,
                &[N8, N4, N4],
                Argument::new().u64(id).u32(0).u32(0),
            ),
            call(
                uapi::DICTIONARY_SAMPLES,
                &[N8, Address, N4, N4, N8, N4, N4],
                Argument::new()
                    .u64(id)
                    .u64(self.buffer)
                    .u32(8)
                    .u32(1)
                    .u64(0)
                    .u64(0),
            ),
            call(
                uapi::SANDBOX_RECORD,
                &[N8, N4, N4],
                Argument::new().u64(id).u32(64).u32(-1i32 as u32),
            ),
            call(
                uapi::FAULTS_READ,
                &[N8, Address, N4],
                Argument::new()
                    .u64(id)
                    .u64(self.buffer)
                    .u32(64)
                    .u32(0)
                    .u64(0),
            ),
            call(
                uapi::PREFETCH,
                &[N8, Address, N4, N4, N4, N4, N4, N4],
                Argument::new()
                    .u64(id)
                    .u64(ranges)
                    .u32(1)
                    .u32(self.pid as u32)
                    .zeros(24),
            ),
            call(
                uapi::PAGE_STATES,
                &[N8, N8, N8, Address, N4, N4],
                Argument::new()
                    .u64(id)
                    .u64(range.start)
                    .u64(range.end)
                    .u64(self.buffer)
                    .u32(self.pid as u32)
                    .u32(0),
            ),
            call(uapi::STATS, &[N8], {
                let rest = size_of::<uapi::Stats>() - 8;
                Argument::new().u64(id).zeros(rest)
            }),
        ]
    }
}

impl Call {
    /// The same with a field that is another one, and now and then a second one.
    pub fn mutated(&self, rng: &mut Rng) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for _ in 0..1 + rng.next() % 2 {
            let which = rng.next() as usize % self.fields.len();
            let at: usize = self.fields[..which].iter().map(|field| field.size()).sum();
            let field = self.fields[which];
            let end = (at + field.size()).min(bytes.len());
            mutate(field, &mut bytes[at..end], rng);
        }
        bytes
    }
}

fn mutate(field: Field, bytes: &mut [u8], rng: &mut Rng) {
    const NUMBERS: [u64; 12] = [
        0,
        1,
        2,
        4095,
        4096,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 47,
        i64::MAX as u64,
        u64::MAX - 4095,
        u64::MAX,
    ];
    // Null, the end of a page that nobody maps, the kernel's, no address at all.
    const ADDRESSES: [u64; 6] = [
        0,
        1,
        sys::ARENA_END as u64 - 8,
        0xffff_8880_0000_0000,
        1 << 47,
        u64::MAX,
    ];
    match field {
        Address => {
            let address = ADDRESSES[rng.next() as usize % ADDRESSES.len()];
            bytes.copy_from_slice(&address.to_ne_bytes());
        }
        Number(_) if rng.next() % 2 == 0 => {
            let number = NUMBERS[rng.next() as usize % NUMBERS.len()].to_ne_bytes();
            for (byte, new) in bytes.iter_mut().zip(number) {
                *byte = new;
            }
        }
        Number(_) | Name | Signature => {
            let at = rng.next() as usize % bytes.len();
            bytes[at] ^= 1 << (rng.next() % 8);
        }
    }
}
