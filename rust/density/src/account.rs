// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the bytes of a store are: all of them.

use std::collections::{BTreeMap, BTreeSet};

use agentzip_codec::{header, BaseId, Header, Representation, MAX_PAYLOAD, PAGE_SIZE};
use agentzip_store::engine::Platform;
use agentzip_store::{Arena, Entry, Group, Owner, Place, Slot};
use serde::Serialize;

use crate::lab::Lab;
use crate::platform::Native;
use crate::pool::NativePages;

const PAGE: u64 = PAGE_SIZE as u64;

/// What a leaf's place in the kernel's tree takes: a node of 576 bytes holds 64 leaves when full,
/// and those of a device are dense.
const LEAF_NODE_BYTES: u64 = 576 / 64;

/// Entries of one representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Their number.
    pub entries: u64,
    /// Bytes of their own payloads.
    pub bytes: u64,
}

/// Pages with something in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// Their number.
    pub pages: u64,
    /// Bytes of their payloads, and their share of the reference pages that they need.
    pub bytes: f64,
}

impl Share {
    /// Bytes a page.
    pub fn bytes_per_page(&self) -> f64 {
        ratio(self.bytes, self.pages as f64)
    }
}

/// All bytes of a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// Pages that the sandboxes own and that are stored.
    pub entries: u64,
    /// Pages that they own and that the store refused: counted whole.
    pub refused: u64,
    /// Bodies of payloads: what encodes pages.
    pub content: u64,
    /// Checksums, formats and numbers of bases in payloads.
    pub headers: u64,
    /// Rounding of payloads.
    pub padding: u64,
    /// Holes in arenas.
    pub holes: u64,
    /// Headers of arena pages, links of split payloads.
    pub arena_overhead: u64,
    /// Leaves of the slot table, and their places in the tree.
    pub slot_table: u64,
    /// Table of the reference pages.
    pub reference_table: u64,
    /// Index of the group.
    pub group_index: u64,
    /// Index of the contents of the template.
    pub content_index: u64,
    /// Index of the template's page indexes, and a pointer to each page.
    pub template_index: u64,
    /// Dictionaries: their contents and zstd's tables.
    pub dictionaries: u64,
    /// Objects of sandboxes, groups and templates.
    pub objects: u64,
    /// Arenas of the sandboxes.
    pub sandbox_arenas: u64,
    /// Arenas of the groups.
    pub group_arenas: u64,
    /// Live reference pages, by the representation of their payloads.
    pub references: BTreeMap<&'static str, Class>,
    /// Those of them that no sandbox has a page equal to any more: only others are based on them.
    pub outlived: Class,
    /// Entries by representation.
    pub representations: BTreeMap<&'static str, Class>,
    /// Pages of whose index the template has some.
    pub template_backed: Share,
    /// The others.
    pub fresh: Share,
}

impl Account {
    /// Bytes that the sandboxes own.
    pub fn owned(&self) -> u64 {
        (self.entries + self.refused) * PAGE
    }

    /// Everything that is neither content nor a refused page.
    pub fn metadata(&self) -> u64 {
        self.headers
            + self.padding
            + self.holes
            + self.arena_overhead
            + self.slot_table
            + self.reference_table
            + self.group_index
            + self.content_index
            + self.template_index
            + self.dictionaries
            + self.objects
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.content + self.metadata() + self.refused * PAGE
    }

    /// Metadata of a stored page, bytes.
    pub fn metadata_per_page(&self) -> f64 {
        ratio(self.metadata() as f64, self.entries as f64)
    }

    /// Owned bytes for each byte of the store.
    pub fn ratio(&self) -> f64 {
        ratio(self.owned() as f64, self.total() as f64)
    }

    /// Counts everything in the store of `lab`.
    ///
    /// # Panics
    ///
    /// When the sums of the parts are not what the pool has given out.
    pub fn of(lab: &Lab<'_>) -> Self {
        let native = lab.native();
        let mut account = Self::default();
        account.entries(lab);
        let mut references = 0;
        native.for_each_group(|group, template| {
            let shared = &mut account;
            shared.arena(&group.arena);
            shared.group_arenas += group.arena.pages() * PAGE;
            shared.reference_table += group.references.pages() * PAGE;
            shared.group_index += group.index.pages() * PAGE;
            shared.content_index += template.content_pages() * PAGE;
            shared.template_index += template.bytes();
            shared.objects += size_of_val(group) as u64;
            references += u64::from(group.references.live());
        });
        native.for_each_sandbox(|arenas| {
            for arena in arenas.each() {
                account.arena(arena);
            }
            account.sandbox_arenas += arenas.pages() * PAGE;
            account.objects += size_of_val(arenas) as u64;
        });
        account.dictionaries = native.dictionary_bytes();
        account.slot_table = native.leaves() * (PAGE + LEAF_NODE_BYTES);

        let payloads = account.content + account.headers + account.padding;
        let arenas = account.sandbox_arenas + account.group_arenas;
        assert_eq!(
            payloads + account.holes + account.arena_overhead,
            arenas,
            "arenas"
        );
        assert_eq!(
            account
                .references
                .values()
                .map(|class| class.entries)
                .sum::<u64>(),
            references
        );
        let pages = arenas + account.reference_table + account.group_index + account.content_index;
        assert_eq!(
            pages,
            native.pool().counts().all() * PAGE,
            "pages given out"
        );
        assert_eq!(account.entries, native.entries(), "entries");
        let shares = account.template_backed.bytes + account.fresh.bytes;
        assert!(
            (shares - payloads as f64).abs() < 1.0,
            "{shares} B shared out of {payloads}"
        );
        account
    }

    fn arena(&mut self, arena: &Arena<NativePages>) {
        self.holes += arena.free_bytes();
        self.arena_overhead += arena.overhead_bytes();
    }

    /// Counts the entries, and the reference pages that they lead to.
    fn entries(&mut self, lab: &Lab<'_>) {
        let native = lab.native();
        let mut equal = BTreeSet::new();
        // By sandbox, as only a sandbox leads to its group.
        for sandbox in lab.sandboxes().values() {
            let mut shares = Shares {
                native,
                owner: sandbox.owner,
                known: BTreeMap::new(),
            };
            for out in &sandbox.out {
                let Some(slot) = out.slot else {
                    self.refused += 1;
                    continue;
                };
                self.entries += 1;
                let (representation, payload, base) = look(native, slot);
                let own = match &payload {
                    Some(payload) => {
                        self.payload(payload);
                        payload.bytes
                    }
                    None => 0,
                };
                if let (Representation::Ref, Some(id)) = (representation, base) {
                    equal.insert(id);
                }
                let class = self
                    .representations
                    .entry(name(representation))
                    .or_default();
                class.entries += 1;
                class.bytes += own;
                let bytes = own as f64 + base.map_or(0.0, |id| shares.of(id));
                let backed =
                    native.template_bases(sandbox.owner, out.page.index, |bases| !bases.is_empty());
                let share = match backed {
                    true => &mut self.template_backed,
                    false => &mut self.fresh,
                };
                share.pages += 1;
                share.bytes += bytes;
            }
        }
        native.for_each_group(|group, _| {
            let mut next = 0;
            while let Some((id, reference)) = group.references.next_live(next) {
                let payload = payload_at(&group.arena, reference.place);
                self.payload(&payload);
                let representation = payload.header.representation;
                let class = self.references.entry(name(representation)).or_default();
                class.entries += 1;
                class.bytes += payload.bytes;
                if !equal.contains(&id) {
                    self.outlived.entries += 1;
                    self.outlived.bytes += payload.bytes;
                }
                next = id + 1;
            }
        });
    }

    fn payload(&mut self, payload: &Payload) {
        let header = payload.header.body_at() as u64;
        self.headers += header;
        self.padding += u64::from(payload.header.padding);
        self.content += payload.bytes - header - u64::from(payload.header.padding);
    }
}

/// A payload in an arena.
struct Payload {
    header: Header,
    /// Bytes with header and padding.
    bytes: u64,
}

fn payload_at(arena: &Arena<NativePages>, place: Place) -> Payload {
    let mut buffer = [0; MAX_PAYLOAD];
    let len = arena.read(place, &mut buffer).expect("a payload");
    Payload {
        header: header(&buffer[..len]).expect("a sound header"),
        bytes: len as u64,
    }
}

/// What an entry is, its payload, and the reference page that it needs.
fn look(native: &Native<'_>, slot: Slot) -> (Representation, Option<Payload>, Option<u32>) {
    let entry = native.entry(slot, |descriptor| descriptor.unpack());
    let reference = |base| match base {
        BaseId::Reference(id) => Some(id),
        BaseId::Template(_) => None,
    };
    match entry.expect("an entry") {
        Entry::Fill { .. } => (Representation::Fill, None, None),
        Entry::Ref { base, .. } => (Representation::Ref, None, reference(base)),
        Entry::Payload {
            owner,
            place,
            provisional,
        } => {
            let payload = native.arena(owner, |arenas| payload_at(arenas.of(provisional), place));
            let payload = payload.expect("lives as long as its entries");
            let base = payload.header.base.and_then(reference);
            (payload.header.representation, Some(payload), base)
        }
    }
}

/// Shares of reference pages: each user has the same part, and reference pages are users as well.
struct Shares<'a, 'b> {
    native: &'a Native<'b>,
    owner: Owner,
    known: BTreeMap<u32, f64>,
}

impl Shares<'_, '_> {
    /// Bytes that a use of the reference page costs.
    fn of(&mut self, id: u32) -> f64 {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let found = self
            .native
            .group(self.owner, |group: &mut Group<NativePages>| {
                let reference = group.references.get(id).expect("as its users live");
                let payload = payload_at(&group.arena, reference.place);
                (payload, reference.count)
            });
        let (payload, count) = found.expect("lives as long as its sandboxes");
        let below = match payload.header.base {
            Some(BaseId::Reference(below)) => self.of(below),
            _ => 0.0,
        };
        let share = (payload.bytes as f64 + below) / f64::from(count);
        self.known.insert(id, share);
        share
    }
}

/// The name of a representation in reports.
pub fn name(representation: Representation) -> &'static str {
    match representation {
        Representation::Fill => "fill",
        Representation::Ref => "ref",
        Representation::Delta => "delta",
        Representation::DeltaZstd => "delta_zstd",
        Representation::Zstd => "zstd",
        Representation::Prefix => "prefix",
        Representation::Dict => "dict",
        Representation::Padded => "padded",
    }
}

/// A quotient; 0 when there is nothing to divide by.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        0.0
    } else {
        a / b
    }
}
