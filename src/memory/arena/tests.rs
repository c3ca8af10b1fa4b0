//! Blocks of all sizes that come, grow and go in an arena of their own, and what the process has
//! mapped meanwhile.

use super::*;

fn arena(chunk_bytes: usize, is_limited: bool, chunks_max: usize) -> Arena {
    Arena::with_terms(Some(ArenaTerms {
        chunk_bytes,
        is_limited,
        chunks_max,
    }))
}

fn bytes_of(extent: &Extent) -> &[u8] {
    // SAFETY: the extent is this test's, and all of it is initialised.
    unsafe { std::slice::from_raw_parts(extent.base.as_ptr(), extent.bytes()) }
}

fn fill(extent: &Extent, byte: u8) {
    // SAFETY: as above; the slices of `bytes_of` are gone by then.
    unsafe { std::ptr::write_bytes(extent.base.as_ptr(), byte, extent.bytes()) };
}

fn random(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    (*seed >> 11) as usize
}

/// The first and last byte of each unit.
fn samples(extent: &Extent, from: usize) -> impl Iterator<Item = *mut u8> {
    let base = extent.base.as_ptr();
    (from..extent.bytes())
        .step_by(UNIT_BYTES)
        .flat_map(|unit| [unit, unit + UNIT_BYTES - 1])
        .map(move |index| base.wrapping_add(index))
}

fn mark(extent: &Extent, byte: u8) {
    // SAFETY: within this test's own extent.
    samples(extent, 0).for_each(|place| unsafe { place.write(byte) });
}

fn has(extent: &Extent, from: usize, byte: u8) -> bool {
    // SAFETY: within this test's own extent.
    samples(extent, from).all(|place| unsafe { place.read() == byte })
}

/// Each extent has bytes of its own all over, so that one that lies over another is noticed.
#[test]
fn extents_never_overlap_and_are_zero_when_they_come() {
    for (is_limited, seed) in [(false, 1), (true, 2), (true, 3)] {
        let arena = arena(8 << 20, is_limited, 64);
        let mut live: Vec<(Extent, u8)> = Vec::new();
        let mut seed = seed;
        for step in 0..2000 {
            let choice = random(&mut seed) % 10;
            if choice < 4 || live.is_empty() {
                let bytes = 1 + random(&mut seed) % (3 << 20);
                let extent = arena.allocate(bytes).unwrap();
                assert!(extent.bytes() >= bytes);
                assert!(has(&extent, 0, 0), "{step}");
                let byte = (step % 255) as u8 + 1;
                mark(&extent, byte);
                live.push((extent, byte));
            } else if choice < 6 {
                let index = random(&mut seed) % live.len();
                let (extent, byte) = &mut live[index];
                let (before, byte) = (extent.bytes(), *byte);
                let wanted = before * 2;
                if wanted < 16 << 20 {
                    arena.grow(extent, before, wanted).unwrap();
                    assert!(extent.bytes() >= wanted);
                    assert!(has(extent, before, 0), "{step}");
                    // SAFETY: within this test's own extent.
                    let is_kept = samples(extent, 0)
                        .take(before / UNIT_BYTES * 2)
                        .all(|place| unsafe { place.read() == byte });
                    assert!(is_kept, "{step}");
                    mark(extent, byte);
                }
            } else {
                let index = random(&mut seed) % live.len();
                let (extent, byte) = live.swap_remove(index);
                assert!(has(&extent, 0, byte), "{step}");
                arena.free(extent);
            }
            if live.len() > 40 {
                let (extent, _) = live.remove(0);
                arena.free(extent);
            }
        }
        live.into_iter().for_each(|(extent, _)| arena.free(extent));
        let left = arena.chunk_count();
        assert!(!is_limited || left <= 2, "{left} chunks stay");
        let state = arena.lock();
        for chunk in state.chunks.iter().flatten() {
            assert_eq!(chunk.taken_count, 0);
            assert!(chunk.taken.iter().all(|word| *word == 0));
        }
    }
}

fn mapping_count() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

/// Every second one of 20,000 is given back: as mappings of their own the others would be 10,000.
#[test]
fn mappings_do_not_multiply_with_blocks() {
    let arena = arena(CHUNK_BYTES, false, CHUNKS_MAX);
    let before = mapping_count();
    let extents: Vec<Extent> = (0..20_000)
        .map(|_| arena.allocate(70 << 10).unwrap())
        .collect();
    let mut kept = Vec::new();
    for (index, extent) in extents.into_iter().enumerate() {
        // SAFETY: the first byte of this test's own extent.
        unsafe { extent.base.as_ptr().write(1) };
        if index % 2 == 0 {
            kept.push(extent);
        } else {
            arena.free(extent);
        }
    }
    // Other tests of this process map and unmap meanwhile.
    let after = mapping_count();
    assert!(after < before + 500, "{before} mappings became {after}");
    kept.into_iter().for_each(|extent| arena.free(extent));
}

#[test]
fn what_cannot_be_placed_is_refused_and_room_that_comes_back_is_used() {
    let arena = arena(1 << 20, true, 3);
    let small: Vec<Extent> = (0..48)
        .map(|_| arena.allocate(UNIT_BYTES).unwrap())
        .collect();
    let refused = arena.allocate(UNIT_BYTES).unwrap_err();
    assert_eq!(refused.asked_bytes, UNIT_BYTES);
    assert!(arena.allocate(usize::MAX).is_err());
    assert!(
        arena.allocate(isize::MAX as usize / 4).is_err(),
        "more than there is"
    );
    small.into_iter().for_each(|extent| arena.free(extent));
    // Of another kind: the empty chunk of the first goes.
    let large = arena.allocate(2 << 20).unwrap();
    let mut grown = arena.allocate(2 << 20).unwrap();
    let more = arena.allocate(2 << 20).unwrap();
    assert!(arena.grow(&mut grown, 0, 4 << 20).is_err());
    assert_eq!(grown.bytes(), 2 << 20, "as it was");
    for extent in [large, grown, more] {
        arena.free(extent);
    }
    assert!(arena.allocate(UNIT_BYTES).is_ok());
}

/// A small one that finds no chunk of its kind lies among the large.
#[test]
fn kinds_mix_rather_than_be_refused() {
    let arena = arena(4 << 20, true, 1);
    let large = arena.allocate(2 << 20).unwrap();
    let small = arena.allocate(UNIT_BYTES).unwrap();
    assert_eq!(arena.chunk_count(), 1);
    arena.free(large);
    arena.free(small);
}

#[test]
fn growing_copies_seldom() {
    let arena = arena(CHUNK_BYTES, false, 8);
    let neighbours: Vec<Extent> = (0..4)
        .map(|_| arena.allocate(UNIT_BYTES).unwrap())
        .collect();
    let mut extent = arena.allocate(UNIT_BYTES).unwrap();
    let beside = arena.allocate(UNIT_BYTES).unwrap();
    let (mut moves, mut copied, mut bytes) = (0, 0, UNIT_BYTES);
    while bytes < 1 << 30 {
        let base = extent.base;
        arena.grow(&mut extent, 0, bytes * 2).unwrap();
        if extent.base != base {
            moves += 1;
            copied += bytes;
        }
        bytes *= 2;
    }
    assert!(moves <= 6 && copied <= bytes / 2, "{moves} {copied}");
    arena.free(extent);
    arena.free(beside);
    neighbours.into_iter().for_each(|extent| arena.free(extent));
}

/// Pages that the kernel would not drop are zeroed by hand.
#[test]
fn dirty_units_are_zero_for_the_next() {
    let arena = arena(4 << 20, false, 1);
    let extent = arena.allocate(3 * UNIT_BYTES).unwrap();
    fill(&extent, 9);
    {
        let mut state = arena.lock();
        let chunk = state.chunk(0).unwrap();
        assert!(chunk.note_dirty(0, 3));
        runs::clear(&mut chunk.taken, 0, 3);
        chunk.taken_count = 0;
        chunk.first_free = 0;
    }
    let mut first = arena.allocate(UNIT_BYTES).unwrap();
    assert!(bytes_of(&first).iter().all(|byte| *byte == 0));
    fill(&first, 7);
    arena.grow(&mut first, UNIT_BYTES, 3 * UNIT_BYTES).unwrap();
    let (old, new) = bytes_of(&first).split_at(UNIT_BYTES);
    assert!(old.iter().all(|byte| *byte == 7) && new.iter().all(|byte| *byte == 0));
    arena.free(first);
}

#[test]
fn terms() {
    for (limit, is_strict, chunk_bytes, is_limited) in [
        (None, false, CHUNK_BYTES, false),
        (None, true, 256 << 20, true),
        (Some(1 << 30), false, 16 << 20, true),
        // Rounded to whole units.
        (Some(2_500_000 << 10), false, 610 * UNIT_BYTES, true),
        (Some(64 << 40), true, 1 << 30, true),
        (Some(0), false, 16 << 20, true),
    ] {
        let terms = ArenaTerms::under(limit, is_strict);
        assert_eq!(
            (terms.chunk_bytes, terms.is_limited),
            (chunk_bytes, is_limited),
            "{limit:?} {is_strict}"
        );
    }
}

/// Neighbours of any size share no huge page, or one that goes would split it.
#[test]
fn blocks_above_8_mib_have_huge_pages_of_their_own() {
    let arena = arena(64 << 20, false, 64);
    let mut live: Vec<Extent> = Vec::new();
    for bytes in [(8 << 20) + 1, (9 << 20) + 1, 19 << 20, 65 << 20] {
        let extent = arena.allocate(bytes).unwrap();
        assert!(extent.bytes() >= bytes && extent.bytes() - bytes < HUGE_PAGE_BYTES);
        live.push(extent);
    }
    let mut last = live.pop().unwrap();
    mark(&last, 7);
    arena.grow(&mut last, 65 << 20, (70 << 20) + 1).unwrap();
    assert!(has(
        &Extent::at(
            last.base,
            ExtentPlace {
                unit_count: 1,
                chunk: 0
            }
        ),
        0,
        7
    ));
    live.push(last);
    for extent in &live {
        assert_eq!(extent.base.addr().get() % HUGE_PAGE_BYTES, 0);
        assert_eq!(extent.bytes() % HUGE_PAGE_BYTES, 0);
    }
    live.into_iter().for_each(|extent| arena.free(extent));
}

/// Under a limit huge pages would take address space that is not there.
#[test]
fn limited_address_space_is_not_rounded_to_huge_pages() {
    let arena = arena(16 << 20, true, 64);
    let extent = arena.allocate((9 << 20) + 1).unwrap();
    assert_eq!(extent.bytes(), (9 << 20) + UNIT_BYTES);
    arena.free(extent);
}

#[test]
fn huge_pages_are_held_as_a_whole() {
    const MIB: usize = 1 << 20;
    for (used, capacity, held) in [
        (1, 8 * MIB, 1),
        (0, 9 * MIB, 0),
        (1, 9 * MIB, 2 * MIB),
        (2 * MIB, 9 * MIB, 2 * MIB),
        (9 * MIB, 9 * MIB, 10 * MIB),
    ] {
        assert_eq!(
            held_bytes(used, capacity),
            held,
            "{used} bytes of {capacity}"
        );
    }
}
