// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where the memory of a sandbox lies in its template, when the page indexes of the two differ.
//!
//! A page of a process has the index of its address. A template that was made from a file has the
//! pages' numbers in the file, and a process may have the pages of a template anywhere. A
//! [`PageRange`] says which page indexes of the sandbox belong to which ones of the template.
//!
//! Ranges of several processes may lie over each other; a page index of the sandbox then has
//! several in the template. As in [`template`](super::template), the ranges lie in *layers*: those
//! of one layer do not overlap, so that one binary search a layer finds them all. A range goes into
//! the first layer where it has room, which takes no more layers than ranges lie over each other.

use super::template::{Candidates, MAX_CANDIDATES};

/// Most ranges that may lie over each other at one page.
pub const MAX_DEPTH: usize = MAX_CANDIDATES;

/// Neighbouring pages of a sandbox that were neighbours in the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PageRange {
    /// Page index of the first page in the sandbox.
    pub index: u64,
    /// Page index of the first page in the template.
    pub template_index: u64,
    /// Number of pages, at least 1.
    pub len: u64,
}

impl PageRange {
    /// The page index after the last; `None` when a page index of the range overflows.
    fn end(&self) -> Option<u64> {
        self.template_index.checked_add(self.len)?;
        self.index.checked_add(self.len)
    }

    /// The template's page index for one of the sandbox, if the range has it.
    fn translate(&self, index: u64) -> Option<u64> {
        let distance = index.checked_sub(self.index)?;
        if distance < self.len {
            self.template_index.checked_add(distance)
        } else {
            None
        }
    }
}

/// How ranges divide into layers: the end of each in the slice of all ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layers([u32; MAX_DEPTH]);

/// Why ranges cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangesError<E> {
    /// A range is empty, or its page indexes overflow.
    Invalid,
    /// The ranges are not in ascending order of `index`.
    Unsorted,
    /// More than [`MAX_DEPTH`] ranges lie over each other.
    TooDeep,
    /// There are more than 2^32 ranges.
    TooMany,
    /// The callback failed.
    Callback(E),
}

/// Puts ranges into the order that [`translate`] wants: layer by layer, ascending in each.
///
/// `ranges` are in ascending order of `index`. `push` receives them in the new order.
///
/// # Errors
///
/// See [`RangesError`]. Nothing was pushed unless it is an error of the callback.
///
/// # Examples
///
/// ```
/// use agentzip_store::ranges::{build, translate, PageRange};
///
/// let range = |index, template_index, len| PageRange { index, template_index, len };
/// // The second process has other pages of the template at the same addresses.
/// let given = [range(100, 0, 50), range(120, 500, 10)];
/// let mut ranges = Vec::new();
/// let layers = build(&given, |range| Ok::<(), ()>(ranges.push(range))).unwrap();
/// assert_eq!(translate(&ranges, &layers, 125).collect::<Vec<_>>(), [25, 505]);
/// assert_eq!(translate(&ranges, &layers, 150).count(), 0);
/// ```
pub fn build<E>(
    ranges: &[PageRange],
    mut push: impl FnMut(PageRange) -> Result<(), E>,
) -> Result<Layers, RangesError<E>> {
    u32::try_from(ranges.len()).map_err(|_| RangesError::TooMany)?;
    let mut before = 0u64;
    for range in ranges {
        if range.len == 0 || range.end().is_none() {
            return Err(RangesError::Invalid);
        }
        if range.index < before {
            return Err(RangesError::Unsorted);
        }
        before = range.index;
    }
    deal(ranges, |_, _| Ok(()))?;

    let mut layers = Layers::default();
    let mut pushed = 0u32;
    for (number, end) in layers.0.iter_mut().enumerate() {
        deal(ranges, |range, layer| {
            if layer == number {
                push(range).map_err(RangesError::Callback)?;
                pushed = pushed.wrapping_add(1);
            }
            Ok(())
        })?;
        *end = pushed;
    }
    Ok(layers)
}

/// Calls `f` with every range and the number of its layer.
fn deal<E>(
    ranges: &[PageRange],
    mut f: impl FnMut(PageRange, usize) -> Result<(), RangesError<E>>,
) -> Result<(), RangesError<E>> {
    // The page index after the last range of each layer.
    let mut ends = [0u64; MAX_DEPTH];
    for range in ranges {
        let (layer, end) = ends
            .iter_mut()
            .enumerate()
            .find(|(_, end)| **end <= range.index)
            .ok_or(RangesError::TooDeep)?;
        *end = range.end().ok_or(RangesError::Invalid)?;
        f(*range, layer)?;
    }
    Ok(())
}

/// The template's page indexes for a page index of the sandbox, at most [`MAX_DEPTH`].
///
/// `ranges` and `layers` are what [`build`] made.
pub fn translate<'a>(
    ranges: &'a [PageRange],
    layers: &'a Layers,
    index: u64,
) -> impl Iterator<Item = u64> + 'a {
    let mut start = 0usize;
    layers.0.iter().filter_map(move |&end| {
        let end = end as usize;
        let layer = ranges.get(start..end)?;
        start = end;
        let after = layer.partition_point(|range| range.index <= index);
        layer.get(after.checked_sub(1)?)?.translate(index)
    })
}

/// The template pages for a page index of the sandbox: of each index that [`translate`] finds, in
/// this order, then of `index` itself when `same_index`. No ordinal comes twice.
///
/// `lookup` finds the template's pages of an index.
pub fn candidates(
    ranges: &[PageRange],
    layers: &Layers,
    index: u64,
    same_index: bool,
    lookup: impl Fn(u64) -> Candidates,
) -> Candidates {
    let mut all = Candidates::default();
    for template_index in translate(ranges, layers, index).chain(same_index.then_some(index)) {
        for &ordinal in lookup(template_index).as_slice() {
            if !all.as_slice().contains(&ordinal) {
                all.push(ordinal);
            }
        }
    }
    all
}
