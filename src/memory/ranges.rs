//! Which parts of one block of memory are free, without the memory: for pools of pinned and device
//! memory and for shared memory.

use std::collections::{BTreeMap, BTreeSet};

/// Every part begins at a multiple of this many bytes, as `cuMemAlloc` promises.
pub const RANGE_ALIGNMENT_BYTES: u64 = 256;

/// Free and used parts of `0..len`, in size classes. Neighbouring free parts are one.
#[derive(Debug)]
pub struct FreeRanges {
    /// Free parts by offset, with their bytes.
    by_offset: BTreeMap<u64, u64>,
    /// The same by bytes, so that the smallest that fits is found.
    by_size: BTreeSet<(u64, u64)>,
    /// Used parts by offset, with their bytes.
    used: BTreeMap<u64, u64>,
    used_bytes: u64,
}

impl FreeRanges {
    pub fn new(len: u64) -> FreeRanges {
        let mut ranges = FreeRanges {
            by_offset: BTreeMap::new(),
            by_size: BTreeSet::new(),
            used: BTreeMap::new(),
            used_bytes: 0,
        };
        if len > 0 {
            ranges.insert(0, len);
        }
        ranges
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Where the last used part ends; 0 if there is none.
    pub fn used_end(&self) -> u64 {
        self.used
            .last_key_value()
            .map_or(0, |(offset, bytes)| offset + bytes)
    }

    /// The bytes of the used part at `offset`.
    pub fn used_at(&self, offset: u64) -> Option<u64> {
        self.used.get(&offset).copied()
    }

    /// Takes the smallest free part that holds `len` bytes, rounded up to its size class, and
    /// returns its offset.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let class_bytes = class_bytes(len)?;
        let (found_bytes, offset) = *self.by_size.range((class_bytes, 0)..).next()?;
        self.remove(offset, found_bytes);
        let rest_bytes = found_bytes - class_bytes;
        if rest_bytes > 0 {
            self.insert(offset + class_bytes, rest_bytes);
        }
        self.used.insert(offset, class_bytes);
        self.used_bytes += class_bytes;
        Some(offset)
    }

    /// Gives back the part at `offset`. Returns false if none was taken there.
    pub fn give_back(&mut self, offset: u64) -> bool {
        let Some(bytes) = self.used.remove(&offset) else {
            return false;
        };
        self.used_bytes -= bytes;
        let (mut start, mut end) = (offset, offset + bytes);
        let before = self.by_offset.range(..start).next_back();
        if let Some((before, before_bytes)) = before.map(|(at, bytes)| (*at, *bytes))
            && before + before_bytes == start
        {
            self.remove(before, before_bytes);
            start = before;
        }
        if let Some(after_bytes) = self.by_offset.get(&end).copied() {
            self.remove(end, after_bytes);
            end += after_bytes;
        }
        self.insert(start, end - start);
        true
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_size.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(bytes, offset));
    }
}

/// The bytes that a part of `len` takes: multiples of the alignment up to 4 KiB, then four classes
/// per power of two, so that parts which come back fit others.
pub fn class_bytes(len: u64) -> Option<u64> {
    const FINE_MAX: u64 = 4096;
    let len = len.max(1);
    if len <= FINE_MAX {
        return Some(len.next_multiple_of(RANGE_ALIGNMENT_BYTES));
    }
    len.checked_next_multiple_of(len.checked_next_power_of_two()? / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_classes() {
        for (len, expected) in [
            (0, 256),
            (1, 256),
            (256, 256),
            (257, 512),
            (4096, 4096),
            (4097, 5120),
            (5121, 6144),
            (8192, 8192),
            (600_000, 655_360),
            (1 << 30, 1 << 30),
        ] {
            assert_eq!(class_bytes(len), Some(expected), "{len}");
        }
        assert_eq!(class_bytes(u64::MAX), None);
    }

    /// Random parts never overlap, stay inside, and leave one whole part when all are back.
    #[test]
    fn parts_never_overlap() {
        const LEN: u64 = 1 << 20;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut ranges = FreeRanges::new(LEN);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for _ in 0..20_000 {
            if random(2) == 0 {
                let bits = 1 + random(17);
                let len = 1 + random(1 << bits);
                let Some(offset) = ranges.take(len) else {
                    continue;
                };
                assert!(offset.is_multiple_of(RANGE_ALIGNMENT_BYTES) && offset + len <= LEN);
                let overlaps = |(at, bytes): &(u64, u64)| offset < at + bytes && *at < offset + len;
                assert!(!taken.iter().any(overlaps), "{offset} of {len}");
                taken.push((offset, len));
            } else if !taken.is_empty() {
                let (offset, _) = taken.swap_remove(random(taken.len() as u64) as usize);
                assert!(ranges.give_back(offset) && !ranges.give_back(offset));
            }
        }
        for (offset, _) in taken {
            assert!(ranges.give_back(offset));
        }
        assert_eq!((ranges.used_bytes(), ranges.take(LEN)), (0, Some(0)));
        assert_eq!(ranges.take(1), None, "all is taken");
    }
}
