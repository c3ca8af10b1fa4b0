//! Names of settings and parameters, as upstream has them, and where the library is.

use conch_backend_sdk as sdk;
use sdk::engine::LibraryPlace;
use sdk::{Error, ModelConfig};

/// The oldest DALI that this backend was tried with.
pub const OLDEST_DALI: &str = "1.53";

/// Where DALI's libraries are.
pub const LIBRARY: LibraryPlace = LibraryPlace {
    backend: "dali",
    product: "DALI",
    variable: "CONCH_DALI_LIBRARY",
    settings: &["library"],
    stem: "libdali.so",
    package: None,
};

/// Model parameter: threads of a pipeline.
pub const THREADS: &str = "num_threads";
/// Model parameter: outputs whose samples are cut along their first dimension.
pub const SPLIT: &str = "split_along_outer_axis";
/// Backend setting: whether memory is given back when the last model was unloaded.
pub const RELEASE: &str = "release_after_unload";
/// Backend setting: libraries of further operators.
pub const PLUGINS: &str = "plugin_libs";
/// Backend setting: the interpreter that serialises pipelines written in Python.
pub const PYTHON: &str = "python";

/// Threads that a model asks for; `None` leaves them to the backend.
///
/// # Errors
/// `InvalidArgument` if the parameter is no positive number.
pub fn threads(config: &ModelConfig) -> Result<Option<usize>, Error> {
    match config.integer_parameter(THREADS)? {
        None | Some(-1) => Ok(None),
        Some(count) => usize::try_from(count)
            .ok()
            .filter(|count| (1..=THREADS_MAX).contains(count))
            .map(Some)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "parameter '{THREADS}' is {count}; it can be 1 to {THREADS_MAX}"
                ))
            }),
    }
}

/// More than any machine has; beyond it a mistyped number would start threads until none can be.
const THREADS_MAX: usize = 1024;

/// Names in a list with colons between them.
pub fn names(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.into_iter()
        .flat_map(|list| list.split(':'))
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_threads() {
        for (value, expected) in [
            (None, Ok(None)),
            (Some("-1"), Ok(None)),
            (Some("4"), Ok(Some(4))),
            (
                Some("0"),
                Err("parameter 'num_threads' is 0; it can be 1 to 1024"),
            ),
            (
                Some("5000"),
                Err("parameter 'num_threads' is 5000; it can be 1 to 1024"),
            ),
            (
                Some("x"),
                Err("expected an integer for parameter 'num_threads', got 'x'"),
            ),
        ] {
            let parameters = value.map_or(String::new(), |value| {
                format!(r#""num_threads": {{"string_value": "{value}"}}"#)
            });
            let json = format!(r#"{{"parameters": {{{parameters}}}}}"#);
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            let found = threads(&config);
            let found = found.as_ref().map_err(Error::message).copied();
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn splits_lists() {
        let listed = |list| names(list).collect::<Vec<_>>();
        assert_eq!(listed(None), Vec::<&str>::new());
        assert_eq!(listed(Some("A:B::C:")), ["A", "B", "C"]);
    }
}
