//! Engines, each opened when the first model wants it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use crate::Error;

/// The engines that a backend has opened, by what was chosen: the path of a library, as a rule.
/// They stay open until the backend ends.
#[derive(Debug)]
pub struct Engines<C, E> {
    by_choice: Mutex<HashMap<C, E>>,
}

impl<C, E> Default for Engines<C, E> {
    fn default() -> Self {
        Engines {
            by_choice: Mutex::default(),
        }
    }
}

impl<C: Clone + Eq + Hash, E: Clone> Engines<C, E> {
    /// The engine of a choice, which `open` opens at its first use. Models that load meanwhile wait
    /// for it. An engine that cannot be opened is tried again for the next model.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn get(&self, choice: &C, open: impl FnOnce(&C) -> Result<E, Error>) -> Result<E, Error> {
        let mut engines = self
            .by_choice
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match engines.entry(choice.clone()) {
            Entry::Occupied(entry) => Ok(entry.get().clone()),
            Entry::Vacant(entry) => Ok(entry.insert(open(choice)?).clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_each_once() {
        let engines = Engines::<&str, u32>::default();
        let refused = engines.get(&"a", |_| Err(Error::unavailable("not there")));
        assert_eq!(refused.unwrap_err().message(), "not there");
        assert_eq!(engines.get(&"a", |_| Ok(1)), Ok(1));
        assert_eq!(engines.get(&"a", |_| Ok(2)), Ok(1));
        assert_eq!(engines.get(&"b", |_| Ok(3)), Ok(3));
    }
}
