// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The index of a template: from a page index to the template pages that have it.
//!
//! Page indexes come in long runs, and a few of them several times (different VMAs can share an
//! index). The pages therefore lie in *layers*: layer 0 has the first page of every index, layer 1
//! the second page of those indexes that have one, and so on. Within a layer, neighbouring indexes
//! have neighbouring ordinals, and a [`Run`] describes them all in 16 bytes.

/// Most pages of one index that are kept.
pub const MAX_CANDIDATES: usize = 8;

/// Most pages that a template can have: ordinals take 24 bits.
pub const MAX_PAGES: u32 = 1 << 24;

/// Neighbouring page indexes with neighbouring ordinals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// Index of the first page.
    pub index: u64,
    /// Ordinal of the first page.
    pub ordinal: u32,
    /// Number of pages, at least 1.
    pub len: u32,
}

const _: () = assert!(size_of::<Run>() == 16);

/// How the runs of an index divide into layers: the end of each in the slice of all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers([u32; MAX_CANDIDATES]);

/// Ordinals of the template pages of one index, in the order of their layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    ordinals: [u32; MAX_CANDIDATES],
    len: usize,
}

impl Candidates {
    /// The ordinals, at most [`MAX_CANDIDATES`].
    pub fn as_slice(&self) -> &[u32] {
        self.ordinals.get(..self.len).unwrap_or_default()
    }

    /// Number of ordinals.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the template has no page of the index.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, ordinal: u32) {
        if let Some(place) = self.ordinals.get_mut(self.len) {
            *place = ordinal;
            self.len = self.len.wrapping_add(1);
        }
    }
}

/// The template pages with this page index.
///
/// `runs` and `layers` are what [`build`] made.
pub fn lookup(runs: &[Run], layers: &Layers, index: u64) -> Candidates {
    let mut candidates = Candidates::default();
    let mut start = 0usize;
    for &end in &layers.0 {
        let end = end as usize;
        let Some(ordinal) = runs
            .get(start..end)
            .and_then(|layer| lookup_layer(layer, index))
        else {
            // An index in a layer is in every layer before it.
            break;
        };
        candidates.push(ordinal);
        start = end;
    }
    candidates
}

fn lookup_layer(layer: &[Run], index: u64) -> Option<u32> {
    let after = layer.partition_point(|run| run.index <= index);
    let run = layer.get(after.checked_sub(1)?)?;
    let distance = u32::try_from(index.checked_sub(run.index)?).ok()?;
    if distance < run.len {
        run.ordinal.checked_add(distance)
    } else {
        None
    }
}

/// Why an index cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError<E> {
    /// The page indexes are not in ascending order.
    Unsorted,
    /// More than [`MAX_PAGES`] pages.
    TooManyPages,
    /// One of the callbacks failed.
    Callback(E),
}

/// What [`build`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Division of the runs into layers.
    pub layers: Layers,
    /// Number of ordinals given; they go from 0 to this.
    pub pages: u32,
}

/// Gives ordinals to pages and makes the runs of their index.
///
/// `indexes` yields the page index of each page, ascending, equal ones side by side; it is walked
/// once for each layer. `assign(position, ordinal)` hears the ordinal of the page at a position of
/// that sequence; ordinals are given in ascending order without gaps. Pages of an index beyond the
/// first [`MAX_CANDIDATES`] get none. `push` receives the runs in the order [`lookup`] wants them.
///
/// # Errors
///
/// See [`BuildError`]; an error of a callback ends the build.
///
/// # Examples
///
/// ```
/// use agentzip_store::template::{build, lookup, Run};
///
/// let pages = [10u64, 11, 11, 12];
/// let mut runs: Vec<Run> = Vec::new();
/// let built = build(
///     pages.iter().copied(),
///     |_position, _ordinal| Ok::<(), ()>(()),
///     |run| Ok(runs.push(run)),
/// )
/// .unwrap();
/// assert_eq!(built.pages, 4);
/// assert_eq!(runs.len(), 2);
/// assert_eq!(lookup(&runs, &built.layers, 11).as_slice(), [1, 3]);
/// assert!(lookup(&runs, &built.layers, 13).is_empty());
/// ```
pub fn build<E>(
    indexes: impl Iterator<Item = u64> + Clone,
    mut assign: impl FnMut(usize, u32) -> Result<(), E>,
    mut push: impl FnMut(Run) -> Result<(), E>,
) -> Result<Built, BuildError<E>> {
    let mut layers = Layers::default();
    let mut pages = 0u32;
    let mut runs = 0u32;
    for (layer, end) in layers.0.iter_mut().enumerate() {
        let mut open: Option<Run> = None;
        let mut previous: Option<u64> = None;
        let mut rank = 0usize;
        let mut next_position = 0usize;
        for index in indexes.clone() {
            let position = next_position;
            next_position = next_position.wrapping_add(1);
            match previous {
                Some(before) if before > index => return Err(BuildError::Unsorted),
                Some(before) if before == index => rank = rank.saturating_add(1),
                _ => rank = 0,
            }
            previous = Some(index);
            if rank != layer {
                continue;
            }
            if pages >= MAX_PAGES {
                return Err(BuildError::TooManyPages);
            }
            assign(position, pages).map_err(BuildError::Callback)?;
            match &mut open {
                Some(run) if run.index.checked_add(run.len.into()) == Some(index) => {
                    run.len = run.len.wrapping_add(1);
                }
                _ => {
                    let run = Run {
                        index,
                        ordinal: pages,
                        len: 1,
                    };
                    if let Some(done) = open.replace(run) {
                        push(done).map_err(BuildError::Callback)?;
                        runs = runs.wrapping_add(1);
                    }
                }
            }
            pages = pages.wrapping_add(1);
        }
        if let Some(done) = open {
            push(done).map_err(BuildError::Callback)?;
            runs = runs.wrapping_add(1);
        }
        *end = runs;
    }
    Ok(Built { layers, pages })
}
