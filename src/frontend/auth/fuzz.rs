//! What the fuzz target of the file of callers does with its input.

use super::file;
use crate::access::{Access, Category, ModelScope};

/// A file of callers, and a header that is judged by it.
///
/// # Panics
/// If somebody may do what the file does not say.
pub fn auth_file(text: &[u8], authorization: &[u8]) {
    let Ok(rules) = file::parse(text) else {
        return;
    };
    let names = [Box::from("localhost")];
    for header in [None, Some(authorization)] {
        let Ok(caller) = rules.identify(header, &names) else {
            continue;
        };
        for category in Category::ALL {
            let _ = caller.check(Access::Of(category), ModelScope::One("model"));
        }
        let access = Access::Of(Category::Inference);
        if caller.models.is_empty() {
            assert!(caller.check(access, ModelScope::One("model")).is_err());
        }
        if caller.check(access, ModelScope::All).is_ok() {
            assert!(caller.check(access, ModelScope::One("any")).is_ok());
        }
    }
}
