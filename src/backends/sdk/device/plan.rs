//! Copies of a batch before they are enqueued: which pass through staging memory, and which are one
//! copy for the device. Nothing here touches memory.

use conch_memory::{MemoryKind, MemoryPlace};

/// What a copy is to the device of its batch: inputs come in before it computes, outputs leave
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    In,
    Within,
    Out,
}

impl Stage {
    /// That of a copy between these places; zeros come from the host.
    pub(super) fn between(source: Option<MemoryPlace>, target: MemoryPlace) -> Stage {
        let source_is_host = source.is_none_or(MemoryPlace::is_host);
        match (source_is_host, target.is_host()) {
            (true, _) => Stage::In,
            (false, true) => Stage::Out,
            (false, false) => Stage::Within,
        }
    }
}

/// One planned copy, or a filling with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedCopy {
    pub(super) stage: Stage,
    /// The request that fails if it fails, by number.
    pub(super) owner: usize,
    pub(super) target: u64,
    pub(super) target_place: MemoryPlace,
    /// None: zeros.
    pub(super) source: Option<(u64, MemoryPlace)>,
    pub(super) len: usize,
}

impl PlannedCopy {
    /// Whether the device has a part in it.
    pub(super) fn is_for_device(&self) -> bool {
        let source_is_host = self.source.is_none_or(|(_, place)| place.is_host());
        !(source_is_host && self.target_place.is_host())
    }
}

/// A copy for the device, after staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceCopy {
    pub(super) owner: usize,
    pub(super) target: u64,
    pub(super) target_place: MemoryPlace,
    pub(super) source: u64,
    pub(super) source_place: MemoryPlace,
    pub(super) len: usize,
}

/// What the CPU copies out of staging memory when the device is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagedOutput {
    pub(super) owner: usize,
    pub(super) target: u64,
    pub(super) source: u64,
    pub(super) len: usize,
}

/// The place of staging memory.
pub(super) const PINNED: MemoryPlace = MemoryPlace {
    kind: MemoryKind::CpuPinned,
    id: 0,
};

/// Whether a copy passes through staging memory: one side is a device, the other host memory that
/// it cannot reach by itself.
pub(super) fn is_staged(copy: &PlannedCopy) -> bool {
    let Some((_, source_place)) = copy.source else {
        return false;
    };
    let is_pageable = |place: MemoryPlace| place.kind == MemoryKind::Cpu;
    copy.is_for_device() && (is_pageable(source_place) || is_pageable(copy.target_place))
}

/// Staging memory that the copies want.
pub(super) fn staged_bytes<'c>(copies: impl Iterator<Item = &'c PlannedCopy>) -> usize {
    let staged = copies.filter(|copy| is_staged(copy));
    staged.fold(0, |sum, copy| sum.saturating_add(copy.len))
}

/// Cuts copies into runs, each of which can be one copy: neighbours that are contiguous on both
/// sides, in the same memory.
pub(super) fn runs(copies: &[DeviceCopy]) -> impl Iterator<Item = &[DeviceCopy]> {
    copies.chunk_by(|copy, next| {
        copy.target_place == next.target_place
            && copy.source_place == next.source_place
            && copy.target.checked_add(copy.len as u64) == Some(next.target)
            && copy.source.checked_add(copy.len as u64) == Some(next.source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: MemoryPlace = MemoryPlace {
        kind: MemoryKind::Gpu,
        id: 0,
    };
    const FAR: MemoryPlace = MemoryPlace {
        kind: MemoryKind::Gpu,
        id: 1,
    };

    #[test]
    fn runs_are_contiguous_on_both_sides_in_the_same_memory() {
        // Target, source and length of each copy; how many copies each run has.
        for (copies, expected) in [
            (&[][..], &[][..]),
            (&[(0, 100, 8)], &[1]),
            (&[(0, 100, 8), (8, 108, 4), (12, 112, 1)], &[3]),
            (&[(0, 100, 8), (8, 109, 4)], &[1, 1]),
            (&[(0, 100, 8), (9, 108, 4)], &[1, 1]),
            (&[(8, 108, 8), (0, 100, 8)], &[1, 1]),
            (&[(0, 100, 8), (0, 100, 8)], &[1, 1]),
            (
                &[(0, 100, 8), (8, 108, 8), (16, 200, 8), (24, 208, 8)],
                &[2, 2],
            ),
            (&[(u64::MAX - 3, 100, 8), (4, 108, 8)], &[1, 1]),
        ] {
            let copies: Vec<_> = copies
                .iter()
                .map(|(target, source, len)| DeviceCopy {
                    owner: 0,
                    target: *target,
                    target_place: NEAR,
                    source: *source,
                    source_place: PINNED,
                    len: *len,
                })
                .collect();
            let found: Vec<_> = runs(&copies).map(<[_]>::len).collect();
            assert_eq!(found, expected, "{copies:?}");
            for change in [
                |copy: &mut DeviceCopy| copy.target_place = FAR,
                |copy: &mut DeviceCopy| copy.source_place = MemoryPlace::CPU,
            ] {
                let mut copies = copies.clone();
                copies.iter_mut().step_by(2).for_each(change);
                let count = runs(&copies).count();
                assert_eq!(count, copies.len(), "no two are in the same memory");
            }
        }
    }

    #[test]
    fn pageable_memory_is_staged_on_its_way_to_and_from_devices() {
        for (source, target, expected) in [
            (Some(MemoryPlace::CPU), NEAR, true),
            (Some(NEAR), MemoryPlace::CPU, true),
            (Some(FAR), MemoryPlace::CPU, true),
            (Some(PINNED), NEAR, false),
            (Some(NEAR), PINNED, false),
            (Some(NEAR), FAR, false),
            (Some(MemoryPlace::CPU), MemoryPlace::CPU, false),
            (Some(MemoryPlace::CPU), PINNED, false),
            (Some(PINNED), MemoryPlace::CPU, false),
            (None, NEAR, false),
            (None, MemoryPlace::CPU, false),
        ] {
            let copy = PlannedCopy {
                stage: Stage::between(source, target),
                owner: 0,
                target: 8,
                target_place: target,
                source: source.map(|place| (16, place)),
                len: 5,
            };
            assert_eq!(is_staged(&copy), expected, "{source:?} to {target:?}");
            let bytes = if expected { 10 } else { 0 };
            assert_eq!(staged_bytes([copy, copy].iter()), bytes);
        }
    }
}
