//! JSON as requests carry it: checked once, taken apart only where somebody looks.
//!
//! [`JsonDocument`] validates a whole text in one pass without recursion and notes where its values
//! lie. The content of `data` arrays is validated but not noted: [`tensor`] reads it straight into
//! a tensor. Refusals carry rapidjson's words and offsets, which are what upstream's clients see.
//! Pure functions, bounded in time by the text's length; callers move large texts off the shard.

mod blocks;
mod checker;
mod digits;
mod document;
mod elements;
mod lexer;
mod node;
mod number;
mod number_room;
mod number_run;
pub(crate) mod number_text;
mod plain_number;
mod quotient;
mod shortest;
pub(crate) mod tensor;
pub(crate) mod write;

pub(crate) use document::{JsonDocument, JsonValue, within};
