//! The JSON form of a configuration: what the config endpoint and backends get, and what load
//! overrides and backends' proposals give.

mod lenient;
mod number;
mod read;
mod write;

pub use read::from_json;
pub use write::to_json;

#[cfg(test)]
mod tests;
