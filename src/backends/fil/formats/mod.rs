//! The file formats of decision forests.
//!
//! A file may hold anything: each reader checks the numbers that it computes with, and
//! [`Forest::check`] what they refer to. Memory stays in proportion to the size of the file.

mod bytes;
#[cfg(test)]
mod fuzz;
mod lightgbm;
mod treelite;
mod ubjson;
mod xgboost;

use crate::forest::model::Forest;

/// How a model is stored (`model_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    XgboostLegacy,
    XgboostJson,
    XgboostUbjson,
    Lightgbm,
    TreeliteCheckpoint,
}

impl Format {
    pub const ALL: [Format; 5] = [
        Format::XgboostJson,
        Format::XgboostUbjson,
        Format::Lightgbm,
        Format::TreeliteCheckpoint,
        Format::XgboostLegacy,
    ];

    /// The value of `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Format::XgboostLegacy => "xgboost",
            Format::XgboostJson => "xgboost_json",
            Format::XgboostUbjson => "xgboost_ubj",
            Format::Lightgbm => "lightgbm",
            Format::TreeliteCheckpoint => "treelite_checkpoint",
        }
    }

    /// The file's name in the folder of a version.
    pub fn file_name(self) -> &'static str {
        match self {
            Format::XgboostLegacy => "xgboost.model",
            Format::XgboostJson => "xgboost.json",
            Format::XgboostUbjson => "xgboost.ubj",
            Format::Lightgbm => "model.txt",
            Format::TreeliteCheckpoint => "checkpoint.tl",
        }
    }

    /// Reads a model.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(self, bytes: &[u8]) -> Result<Forest, String> {
        let forest = match self {
            Format::XgboostLegacy => Err(
                "XGBoost's legacy binary format is obsolete and not supported; load the model with \
                 XGBoost below 3.1, save it as 'xgboost.ubj' or 'xgboost.json', and set model_type \
                 to xgboost_ubj or xgboost_json"
                    .to_owned(),
            ),
            Format::XgboostJson => xgboost::read_json(bytes),
            Format::XgboostUbjson => xgboost::read_ubjson(bytes),
            Format::Lightgbm => lightgbm::read(bytes),
            Format::TreeliteCheckpoint => treelite::read(bytes),
        }?;
        forest.check()?;
        Ok(forest)
    }
}
