//! The columns that a forest reads: keys of features as its nodes compare them.
//!
//! What a node needs beyond a comparison is done once per row here instead of once per visit: zeros
//! that count as missing become NaN, NaN that counts as zero becomes zero, and nodes whose missing
//! values go the other way read the negated feature.

use std::collections::HashMap;

use super::key::{self, key_of, key_of_number};
use super::model::Missing;

/// A feature as nodes read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    pub feature: usize,
    pub missing: Missing,
    pub is_negated: bool,
}

/// The columns of a forest. One more follows them, which is always NaN: leaves read it.
///
/// What is to be done with each is kept by kind, so that several are done at once.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    indexes: HashMap<Column, usize>,
    features: Vec<usize>,
    cleaning: Vec<Cleaning>,
    /// The bits that negate a value, or none.
    signs: Vec<u32>,
}

/// What is missing, and its key.
#[derive(Clone, Copy, Debug)]
struct Cleaning {
    /// Numbers whose magnitude is not above this are missing, as NaN is.
    zero_max: f32,
    missing_key: u32,
}

impl Columns {
    /// The index of the column, which is added if it is new.
    pub fn index_of(&mut self, column: Column) -> usize {
        *self.indexes.entry(column).or_insert_with(|| {
            self.features.push(column.feature);
            self.cleaning.push(Cleaning::of(column.missing));
            self.signs.push(u32::from(column.is_negated) << 31);
            self.features.len() - 1
        })
    }

    /// Columns, and the one of the leaves.
    pub fn count(&self) -> usize {
        self.features.len() + 1
    }

    /// Fills the columns of up to `L` rows, each of `feature_count` features.
    pub fn fill<const L: usize>(&self, rows: &[f32], feature_count: usize, group: &mut [[u32; L]]) {
        let columns = self.features.iter().zip(&self.cleaning).zip(&self.signs);
        for (((&feature, cleaning), sign), keys) in columns.zip(group.iter_mut()) {
            // Read one by one, but cleaned together.
            let values = rows.iter().skip(feature).step_by(feature_count.max(1));
            let mut found = 0;
            for (key, &value) in keys.iter_mut().zip(values) {
                *key = value.to_bits();
                found += 1;
            }
            for key in keys.iter_mut().take(found) {
                *key = cleaning.key_of(f32::from_bits(*key), *sign);
            }
        }
        if let Some(keys) = group.get_mut(self.features.len()) {
            *keys = [key::NAN; L];
        }
    }

    /// Fills the columns of one row.
    pub fn fill_row(&self, row: &[f32], keys: &mut [u32]) {
        for (key, &feature) in keys.iter_mut().zip(&self.features) {
            *key = row.get(feature).copied().unwrap_or(f32::NAN).to_bits();
        }
        let columns = self.cleaning.iter().zip(&self.signs);
        for ((cleaning, sign), key) in columns.zip(keys.iter_mut()) {
            *key = cleaning.key_of(f32::from_bits(*key), *sign);
        }
        if let Some(key) = keys.get_mut(self.features.len()) {
            *key = key::NAN;
        }
    }
}

impl Cleaning {
    fn of(missing: Missing) -> Cleaning {
        let (zero_max, missing_key) = match missing {
            Missing::Nan => (-1.0, key::NAN),
            Missing::Zero => (ZERO, key::NAN),
            Missing::Never => (-1.0, key_of(0.0)),
        };
        Cleaning {
            zero_max,
            missing_key,
        }
    }

    /// The key of a [clean] value, with `sign` on it.
    #[inline(always)]
    fn key_of(self, value: f32, sign: u32) -> u32 {
        let is_missing = value.is_nan() | (value.abs() <= self.zero_max);
        // As bits, since a branch would keep columns from being done together.
        let mask = 0_u32.wrapping_sub(u32::from(is_missing));
        let key = key_of_number(f32::from_bits(value.to_bits() ^ sign));
        (self.missing_key & mask) | (key & !mask)
    }
}

/// The value with NaN for what is missing, and for nothing else.
pub fn clean(missing: Missing, value: f32) -> f32 {
    match missing {
        Missing::Nan => value,
        Missing::Zero if value.abs() <= ZERO => f32::NAN,
        Missing::Zero => value,
        Missing::Never if value.is_nan() => 0.0,
        Missing::Never => value,
    }
}

/// Up to here LightGBM counts a value as zero (`kZeroThreshold`).
const ZERO: f32 = 1e-35;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_shared_and_filled() {
        let mut columns = Columns::default();
        let column = |feature, missing, is_negated| Column {
            feature,
            missing,
            is_negated,
        };
        assert_eq!(columns.index_of(column(1, Missing::Nan, false)), 0);
        assert_eq!(columns.index_of(column(1, Missing::Nan, true)), 1);
        assert_eq!(columns.index_of(column(0, Missing::Zero, false)), 2);
        assert_eq!(columns.index_of(column(0, Missing::Never, true)), 3);
        assert_eq!(columns.index_of(column(1, Missing::Nan, false)), 0);
        assert_eq!(columns.count(), 5);
        let mut group = [[key_of(7.0); 4]; 5];
        columns.fill(&[0.0, 1.0, f32::NAN, 2.0, -5.0, f32::NAN], 2, &mut group);
        let expected = [
            [1.0, 2.0, f32::NAN, 7.0],
            [-1.0, -2.0, f32::NAN, 7.0],
            [f32::NAN, f32::NAN, -5.0, 7.0],
            [0.0, 0.0, 5.0, 7.0],
            [f32::NAN; 4],
        ];
        assert_eq!(group, expected.map(|values| values.map(key_of)));
    }
}
