//! The models of a multi-model endpoint, by the names that SageMaker gives them.
//!
//! One change of a name at a time: who wants to load or unload a model claims its name first, so
//! that the list, the repositories and the loaded models agree whatever comes in which order.
//! Shards read a snapshot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

/// More than fit into a host's memory; bounds the list, which is written in one turn of a shard.
const MODELS_MAX: usize = 1024;

/// A model of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogEntry {
    /// Its name in this server.
    pub(crate) target: Box<str>,
    /// The repository that was registered for it.
    pub(crate) repository: Box<str>,
}

/// Why a name cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimConflict {
    /// It is there, or being loaded or unloaded.
    Taken,
    /// There is none such; it may be about to come.
    Missing,
    TooMany,
}

type CatalogModels = BTreeMap<Box<str>, CatalogEntry>;

#[derive(Debug, Default)]
pub(crate) struct ModelCatalog {
    /// What is loaded, for readers.
    shown: ArcSwap<CatalogModels>,
    /// Names that are being loaded or unloaded. Held while `shown` is replaced, never while a model
    /// loads.
    claimed: Mutex<Vec<Box<str>>>,
}

/// The right to change what is behind a name, until dropped.
pub(crate) struct NameClaim {
    catalog: Arc<ModelCatalog>,
    name: Box<str>,
}

impl ModelCatalog {
    pub(crate) fn models(&self) -> Arc<CatalogModels> {
        self.shown.load_full()
    }

    /// What is behind `name`. Does not block.
    pub(crate) fn find(&self, name: &str) -> Option<CatalogEntry> {
        self.shown.load().get(name).cloned()
    }

    /// Claims a name that nothing is behind.
    pub(crate) fn claim_new(self: &Arc<Self>, name: &str) -> Result<NameClaim, ClaimConflict> {
        let mut claimed = self.lock();
        let shown = self.shown.load();
        if shown.contains_key(name) || claimed.iter().any(|taken| **taken == *name) {
            return Err(ClaimConflict::Taken);
        }
        if shown.len() + claimed.len() >= MODELS_MAX {
            return Err(ClaimConflict::TooMany);
        }
        claimed.push(name.into());
        Ok(self.claim(name))
    }

    /// Claims a name to end what is behind it. It is still shown.
    pub(crate) fn claim_known(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<(NameClaim, CatalogEntry), ClaimConflict> {
        let mut claimed = self.lock();
        let entry = self.shown.load().get(name).cloned();
        let entry = entry.ok_or(ClaimConflict::Missing)?;
        if claimed.iter().any(|taken| **taken == *name) {
            return Err(ClaimConflict::Taken);
        }
        claimed.push(name.into());
        Ok((self.claim(name), entry))
    }

    fn claim(self: &Arc<Self>, name: &str) -> NameClaim {
        NameClaim {
            catalog: Arc::clone(self),
            name: name.into(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<str>>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameClaim {
    /// Shows `entry` under the claimed name, or nothing any more.
    pub(crate) fn publish(self, entry: Option<CatalogEntry>) {
        let _claimed = self.catalog.lock();
        let mut models = CatalogModels::clone(&self.catalog.shown.load());
        match entry {
            Some(entry) => models.insert(self.name.clone(), entry),
            None => models.remove(&self.name),
        };
        self.catalog.shown.store(Arc::new(models));
        drop(_claimed);
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        self.catalog.lock().retain(|taken| *taken != self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(target: &str) -> CatalogEntry {
        CatalogEntry {
            target: target.into(),
            repository: "/r".into(),
        }
    }

    #[test]
    fn one_change_of_a_name_at_a_time() {
        let catalog = Arc::new(ModelCatalog::default());
        assert_eq!(catalog.claim_known("a").err(), Some(ClaimConflict::Missing));
        let claim = catalog.claim_new("a").ok().unwrap();
        assert_eq!(catalog.claim_new("a").err(), Some(ClaimConflict::Taken));
        assert_eq!(catalog.claim_known("a").err(), Some(ClaimConflict::Missing));
        assert_eq!(catalog.find("a"), None);
        claim.publish(Some(entry("x")));
        assert_eq!(catalog.find("a"), Some(entry("x")));
        assert_eq!(catalog.claim_new("a").err(), Some(ClaimConflict::Taken));
        let (claim, found) = catalog.claim_known("a").ok().unwrap();
        assert_eq!(found, entry("x"));
        assert_eq!(catalog.claim_known("a").err(), Some(ClaimConflict::Taken));
        // A change that fails leaves things as they were.
        drop(claim);
        let (claim, _) = catalog.claim_known("a").ok().unwrap();
        claim.publish(None);
        assert!(catalog.models().is_empty());
        assert!(catalog.claim_new("a").is_ok());
    }

    #[test]
    fn there_is_a_bound() {
        let catalog = Arc::new(ModelCatalog::default());
        for index in 0..MODELS_MAX {
            let claim = catalog.claim_new(&index.to_string()).ok().unwrap();
            claim.publish(Some(entry("x")));
        }
        assert_eq!(
            catalog.claim_new("more").err(),
            Some(ClaimConflict::TooMany)
        );
    }
}
