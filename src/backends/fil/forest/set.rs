//! Sets of categories as bits.

/// Bits of all sets of a forest together: 64 MiB, which no trained model comes near.
const WORDS_MAX: usize = 1 << 24;

/// The sets of a forest, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    /// Each set ends with a word of no category, which stands for all that lies behind it.
    words: Vec<u32>,
}

/// Where the words of a set are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Set {
    start: u32,
    /// Words but the last, empty one.
    len: u32,
}

impl Sets {
    /// Adds a set.
    ///
    /// # Errors
    /// If all sets together are too large.
    pub fn add(&mut self, categories: &[u32]) -> Result<Set, String> {
        let largest = categories
            .iter()
            .max()
            .map_or(0, |&category| category as usize);
        let (start, len) = (self.words.len(), largest / 32 + 1);
        let end = start + len + 1;
        if end > WORDS_MAX {
            return Err(format!(
                "categories up to {largest} need more memory than is allowed"
            ));
        }
        self.words.resize(end, 0);
        for &category in categories {
            if let Some(word) = self.words.get_mut(start + category as usize / 32) {
                *word |= 1 << (category % 32);
            }
        }
        // Below WORDS_MAX.
        Ok(Set {
            start: start as u32,
            len: len as u32,
        })
    }

    /// Whether the category that `value` stands for, its whole part, is in the set. What is
    /// negative or NaN is no category.
    #[inline(always)]
    pub fn contains(&self, set: Set, value: f32) -> bool {
        // As `as` saturates, NaN and what is negative become 0, and infinity lies behind all words.
        let category = value as u32;
        let place = set.start + (category / 32).min(set.len);
        let word = self.words.get(place as usize).copied().unwrap_or(0);
        (word >> (category % 32) & 1 == 1) & (value >= 0.0)
    }

    /// Bytes that the sets take.
    pub fn byte_count(&self) -> usize {
        size_of_val(&*self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership() {
        let mut sets = Sets::default();
        let first = sets.add(&[0, 5, 31, 32, 100]).unwrap();
        let empty = sets.add(&[]).unwrap();
        let other = sets.add(&[6]).unwrap();
        for (set, value, expected) in [
            (first, 0.0, true),
            (first, -0.0, true),
            (first, 5.9, true),
            (first, 6.0, false),
            (first, 31.0, true),
            (first, 32.0, true),
            (first, 33.0, false),
            (first, 100.0, true),
            (first, 128.0, false),
            (first, -1.0, false),
            (first, f32::NAN, false),
            (first, f32::INFINITY, false),
            (first, 1e30, false),
            (empty, 0.0, false),
            (other, 6.0, true),
            (other, 5.0, false),
            (Set::default(), 6.0, false),
        ] {
            assert_eq!(sets.contains(set, value), expected, "{set:?} {value}");
        }
    }

    #[test]
    fn huge_categories_are_refused() {
        assert!(Sets::default().add(&[u32::MAX]).is_err());
    }
}
