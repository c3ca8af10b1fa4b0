//! The engine of a process that can have only one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::library_place::LibraryPlace;
use crate::Error;

/// The engine that the first model opened. There can be no second one where the libraries of two
/// would take each other's parts, which have the same names.
#[derive(Debug)]
pub struct OnlyEngine<E> {
    place: LibraryPlace,
    opened: Mutex<Option<(PathBuf, Arc<E>)>>,
}

impl<E> OnlyEngine<E> {
    pub const fn new(place: LibraryPlace) -> Self {
        OnlyEngine {
            place,
            opened: Mutex::new(None),
        }
    }

    /// The engine whose library is at `path`, which `open` opens at its first use. Models that load
    /// meanwhile wait for it. One that cannot be opened is tried again for the next model.
    ///
    /// # Errors
    /// Those of `open`; `Unavailable` if another library is open.
    pub fn get(
        &self,
        path: &Path,
        open: impl FnOnce(&Path) -> Result<E, Error>,
    ) -> Result<Arc<E>, Error> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        match &*opened {
            Some((known, engine)) if *known == path => Ok(Arc::clone(engine)),
            Some((known, _)) => {
                let known = known.display();
                let why = format_args!("a process can have one, and this one has {known}");
                Err(self.place.unusable(&path, why))
            }
            None => {
                let engine = Arc::new(open(&path)?);
                *opened = Some((path, Arc::clone(&engine)));
                Ok(engine)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_second_one() {
        let engine = OnlyEngine::<u32>::new(LibraryPlace {
            backend: "engine",
            product: "Engine",
            variable: "CONCH_ENGINE_LIBRARY",
            settings: &["library"],
            stem: "libengine.so",
            package: None,
        });
        let (one, other) = (Path::new("/a/libengine.so"), Path::new("/b/libengine.so"));
        let failed = engine.get(one, |_| Err(Error::unavailable("not there")));
        assert_eq!(failed.unwrap_err().message(), "not there");
        assert_eq!(engine.get(one, |_| Ok(1)), Ok(Arc::new(1)));
        assert_eq!(engine.get(one, |_| Ok(2)), Ok(Arc::new(1)));
        assert_eq!(
            engine.get(other, |_| Ok(3)).unwrap_err().message(),
            "Engine library /b/libengine.so: a process can have one, and this one has \
             /a/libengine.so"
        );
    }
}
