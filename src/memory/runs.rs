//! A bit per unit of some memory: which are taken, and where a run of free ones is.
//!
//! Whole words are skipped at once, so that a search costs about a nanosecond per 64 units that lie
//! before what it finds.

const WORD_UNITS: usize = u64::BITS as usize;

/// Words for so many units.
pub(crate) const fn word_count(unit_count: usize) -> usize {
    unit_count.div_ceil(WORD_UNITS)
}

/// The bits of `word` that belong to the units `from..until`, counted from its first.
fn mask(from: usize, until: usize) -> u64 {
    let below = |bit: usize| {
        if bit >= WORD_UNITS {
            u64::MAX
        } else {
            (1 << bit) - 1
        }
    };
    below(until) & !below(from)
}

/// Each word that the units `start..start + count` touch, with their bits.
fn touched(start: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = start + count;
    (start / WORD_UNITS..end.div_ceil(WORD_UNITS)).map(move |index| {
        let first = index * WORD_UNITS;
        (index, mask(start.saturating_sub(first), end - first))
    })
}

/// Marks `count` units from `start` on as taken.
pub(crate) fn set(words: &mut [u64], start: usize, count: usize) {
    for (index, bits) in touched(start, count) {
        words[index] |= bits;
    }
}

/// Marks them as free.
pub(crate) fn clear(words: &mut [u64], start: usize, count: usize) {
    for (index, bits) in touched(start, count) {
        words[index] &= !bits;
    }
}

/// Whether any of them is taken.
pub(crate) fn any(words: &[u64], start: usize, count: usize) -> bool {
    touched(start, count).any(|(index, bits)| words[index] & bits != 0)
}

/// The first unit of a run of `count` free ones among `unit_count`, not before `from`; or else the
/// longest run that was seen.
pub(crate) fn find(
    words: &[u64],
    unit_count: usize,
    count: usize,
    from: usize,
) -> Result<usize, usize> {
    let (mut at, mut longest) = (from, 0);
    loop {
        let Some(start) = next(words, unit_count, at, false) else {
            return Err(longest);
        };
        let wanted_end = start.saturating_add(count).min(unit_count);
        let end = next(words, wanted_end, start, true).unwrap_or(wanted_end);
        if end - start == count {
            return Ok(start);
        }
        longest = longest.max(end - start);
        at = end;
    }
}

/// The first unit before `end`, from `at` on, that is taken, or that is free.
fn next(words: &[u64], end: usize, mut at: usize, is_taken: bool) -> Option<usize> {
    while at < end {
        let word = words[at / WORD_UNITS];
        let wanted = if is_taken { word } else { !word };
        let wanted = wanted & mask(at % WORD_UNITS, WORD_UNITS);
        let first = at - at % WORD_UNITS;
        if wanted != 0 {
            let found = first + wanted.trailing_zeros() as usize;
            return (found < end).then_some(found);
        }
        at = first + WORD_UNITS;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a vector of bools, in every position within three words.
    #[test]
    fn runs_are_found_set_and_cleared() {
        const UNITS: usize = 150;
        for start in 0..UNITS {
            for count in 1..=UNITS - start {
                let mut words = vec![0; word_count(UNITS)];
                set(&mut words, start, count);
                let plain: Vec<bool> = (0..UNITS)
                    .map(|unit| words[unit / 64] >> (unit % 64) & 1 == 1)
                    .collect();
                assert!(
                    plain
                        .iter()
                        .enumerate()
                        .all(|(unit, taken)| *taken == (start..start + count).contains(&unit))
                );
                assert!(any(&words, start + count - 1, 1));
                assert!(!any(&words, 0, start));
                let after = UNITS - start - count;
                let expected = if start >= 10 {
                    Ok(0)
                } else if after >= 10 {
                    Ok(start + count)
                } else {
                    Err(start.max(after))
                };
                assert_eq!(find(&words, UNITS, 10, 0), expected, "{start} {count}");
                clear(&mut words, start, count);
                assert_eq!(words, vec![0; word_count(UNITS)]);
            }
        }
        let words = vec![0; word_count(UNITS)];
        assert_eq!(find(&words, UNITS, UNITS, 0), Ok(0));
        assert_eq!(find(&words, UNITS, UNITS + 1, 0), Err(UNITS));
        assert_eq!(find(&words, UNITS, 10, 140), Ok(140));
        assert_eq!(find(&words, UNITS, 10, 141), Err(9));
    }
}
