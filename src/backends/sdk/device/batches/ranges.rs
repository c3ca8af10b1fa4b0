//! Ranges of device memory that kernels of a batch read and write: memory of the requests and
//! responses themselves, or of the slot's workspace.

use crate::Error;
use crate::device::plan::{PlannedCopy, Stage};

/// Where a group of ranges begins in the workspace: what devices read in one piece.
const GROUP_ALIGNMENT: usize = 256;

/// A range of device memory that a kernel of the batch reads or writes. It has an address when the
/// ranges were [placed](super::DeviceWork::place_ranges).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange(pub(super) usize);

/// The ranges of a batch.
#[derive(Default)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
    /// Copies into and out of ranges, which have no addresses yet, by their numbers.
    pub(super) copies: Vec<(usize, PlannedCopy)>,
}

struct Range {
    group: usize,
    alignment: usize,
    len: usize,
    /// None as long as it is to get a place in the workspace.
    address: Option<u64>,
}

impl Ranges {
    /// A range at `address`, if that is one that kernels can use.
    pub(super) fn add(
        &mut self,
        group: usize,
        alignment: usize,
        len: usize,
        address: Option<u64>,
    ) -> DeviceRange {
        self.ranges.push(Range {
            group,
            alignment,
            len,
            address: address.filter(|address| address.is_multiple_of(alignment as u64)),
        });
        DeviceRange(self.ranges.len() - 1)
    }

    pub(super) fn is_to_be_placed(&self, range: DeviceRange) -> bool {
        let range = self.ranges.get(range.0);
        range.is_some_and(|range| range.address.is_none())
    }

    /// The address of a range, if it has one yet.
    pub(super) fn address(&self, range: DeviceRange) -> Option<u64> {
        self.ranges.get(range.0)?.address
    }

    /// Gives all ranges addresses, those without one from `base` on, which has room as `layout`
    /// tells. Returns the copies, which have addresses then.
    pub(super) fn place(&mut self, offsets: Vec<(usize, u64)>, base: u64) -> Vec<PlannedCopy> {
        for (number, offset) in offsets {
            self.ranges[number].address = Some(base + offset);
        }
        let copies = std::mem::take(&mut self.copies).into_iter();
        copies
            .map(|(number, mut copy)| {
                let address = self.ranges[number].address.unwrap_or_default();
                match (copy.stage, &mut copy.source) {
                    (Stage::Out, Some((source, _))) => *source += address,
                    _ => copy.target += address,
                }
                copy
            })
            .collect()
    }

    /// Where ranges without an address go in the workspace, by number, and how long it is.
    pub(super) fn layout(&self) -> Result<(Vec<(usize, u64)>, usize), Error> {
        let too_large = || Error::internal("batch larger than memory");
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.retain(|number| self.ranges[*number].address.is_none());
        // Stable: in a group as they came.
        order.sort_by_key(|number| self.ranges[*number].group);
        let (mut end, mut group) = (0_usize, None);
        let mut offsets = Vec::with_capacity(order.len());
        for number in order {
            let range = &self.ranges[number];
            let alignment = match group.replace(range.group) == Some(range.group) {
                true => range.alignment,
                false => GROUP_ALIGNMENT,
            };
            let start = end
                .checked_next_multiple_of(alignment)
                .ok_or_else(too_large)?;
            offsets.push((number, start as u64));
            end = start.checked_add(range.len).ok_or_else(too_large)?;
        }
        Ok((offsets, end))
    }
}
