//! Sets of categories as bits.

/// Bits of all sets of a forest together: 64 MiB, which no trained model comes near.
const WORDS_MAX: usize = 1 << 24;

/// The sets of a forest, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    words: Vec<u32>,
    /// Where each set begins, and how many words it has.
    places: Vec<(u32, u32)>,
}

impl Sets {
    /// Adds a set and returns its number.
    ///
    /// # Errors
    /// If all sets together are too large.
    pub fn add(&mut self, categories: &[u32]) -> Result<u32, String> {
        let largest = categories
            .iter()
            .max()
            .map_or(0, |&category| category as usize);
        let count = largest / 32 + 1;
        let start = self.words.len();
        if start + count > WORDS_MAX {
            return Err(format!(
                "categories up to {largest} need more memory than is allowed"
            ));
        }
        self.words.resize(start + count, 0);
        for &category in categories {
            if let Some(word) = self.words.get_mut(start + category as usize / 32) {
                *word |= 1 << (category % 32);
            }
        }
        // Below WORDS_MAX, and no more sets than nodes.
        self.places.push((start as u32, count as u32));
        Ok(self.places.len() as u32 - 1)
    }

    /// Whether the category that `value` stands for, its whole part, is in the set. What is
    /// negative or NaN is no category.
    pub fn contains(&self, set: u32, value: f32) -> bool {
        // As `as` saturates, infinity lies behind all words.
        let category = value as u32;
        let Some(&(start, count)) = self.places.get(set as usize) else {
            return false;
        };
        if !(value >= 0.0 && category / 32 < count) {
            return false;
        }
        let word = self.words.get((start + category / 32) as usize);
        word.is_some_and(|word| word >> (category % 32) & 1 == 1)
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
            (9, 0.0, false),
        ] {
            assert_eq!(sets.contains(set, value), expected, "{set} {value}");
        }
    }

    #[test]
    fn huge_categories_are_refused() {
        assert!(Sets::default().add(&[u32::MAX]).is_err());
    }
}
