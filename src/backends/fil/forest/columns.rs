//! The columns that a forest reads: keys of features as its nodes compare them.
//!
//! What a node needs beyond a comparison is done once per row here instead of once per visit: zeros
//! that count as missing become NaN, NaN that counts as zero becomes zero, and nodes whose missing
//! values go the other way read the negated feature.

use std::collections::HashMap;

use super::key::{self, key_of};
use super::model::Missing;

/// A feature as nodes read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    pub feature: usize,
    pub missing: Missing,
    pub is_negated: bool,
}

/// The columns of a forest. One more follows them, which is always NaN: leaves read it.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    columns: Vec<Column>,
    indexes: HashMap<Column, usize>,
}

impl Columns {
    /// The index of the column, which is added if it is new.
    pub fn index_of(&mut self, column: Column) -> usize {
        *self.indexes.entry(column).or_insert_with(|| {
            self.columns.push(column);
            self.columns.len() - 1
        })
    }

    /// Columns, and the one of the leaves.
    pub fn count(&self) -> usize {
        self.columns.len() + 1
    }

    /// Fills the columns of up to `L` rows, each of `feature_count` features.
    pub fn fill<const L: usize>(&self, rows: &[f32], feature_count: usize, group: &mut [[u32; L]]) {
        for (column, values) in self.columns.iter().zip(group.iter_mut()) {
            let features = rows
                .iter()
                .skip(column.feature)
                .step_by(feature_count.max(1));
            for (value, &feature) in values.iter_mut().zip(features) {
                *value = column.convert(feature);
            }
        }
        if let Some(values) = group.get_mut(self.columns.len()) {
            *values = [key::NAN; L];
        }
    }

    /// Fills the columns of one row.
    pub fn fill_row(&self, row: &[f32], values: &mut [u32]) {
        for (column, value) in self.columns.iter().zip(values.iter_mut()) {
            *value = column.convert(row.get(column.feature).copied().unwrap_or(f32::NAN));
        }
        if let Some(value) = values.get_mut(self.columns.len()) {
            *value = key::NAN;
        }
    }
}

impl Column {
    fn convert(self, value: f32) -> u32 {
        let value = clean(self.missing, value);
        key_of(if self.is_negated { -value } else { value })
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
