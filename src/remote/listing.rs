//! What lies in a store below a directory. Stores know objects only: a directory is what names have in common.

use std::collections::{BTreeMap, BTreeSet};

use conch_engine::Error;
use conch_engine::remote::{Listing, Object};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::failure::Failure;
use crate::uri::Place;

/// The names of the directories directly in `place`, sorted.
pub(crate) async fn directories(
    store: &dyn ObjectStore,
    place: &Place,
) -> Result<BTreeSet<String>, Failure> {
    let prefix = path(&place.key)?;
    let found = store.list_with_delimiter(Some(&prefix)).await?;
    let names = found.common_prefixes.iter().filter_map(Path::filename);
    Ok(names.map(ToOwned::to_owned).collect())
}

/// Whether anything lies below `place`; a whole bucket is there if it can be listed.
pub(crate) async fn exists(store: &dyn ObjectStore, place: &Place) -> Result<bool, Failure> {
    let prefix = path(&place.key)?;
    let first = store.list(Some(&prefix)).try_next().await?;
    Ok(first.is_some() || place.key.is_empty())
}

/// Everything below `place`.
pub(crate) async fn contents(store: &dyn ObjectStore, place: &Place) -> Result<Listing, Failure> {
    let prefix = path(&place.key)?;
    let mut found = BTreeMap::new();
    let mut objects = store.list(Some(&prefix));
    while let Some(meta) = objects.try_next().await? {
        let Some(name) = below(&meta.location, &place.key) else {
            continue;
        };
        found.insert(name.to_owned(), meta);
        if found.len() > OBJECTS_MAX {
            return Err(Failure::Final(Error::invalid(format!(
                "more than {OBJECTS_MAX} objects lie below '{}'",
                place.key
            ))));
        }
    }
    // Consoles and tools mark a directory by an empty object whose name ends with a slash, of which the listing above does not tell.
    let mut directories = BTreeSet::new();
    for parent in parents_of_empty_ones(&found) {
        let parent = match (place.key.as_str(), parent.as_str()) {
            (key, "") => key.to_owned(),
            ("", parent) => parent.to_owned(),
            (key, parent) => format!("{key}/{parent}"),
        };
        let listed = store.list_with_delimiter(Some(&path(&parent)?)).await?;
        let names = listed.common_prefixes.iter();
        let names = names.filter_map(|location| below(location, &place.key));
        directories.extend(names.map(ToOwned::to_owned));
    }
    directories.retain(|name| found.get(name).is_some_and(|meta| meta.size == 0));
    found.retain(|name, _| !directories.contains(name));
    let has_children = |directory: &String| {
        let inside = format!("{directory}/");
        let mut after = found.range(inside.clone()..);
        after
            .next()
            .is_some_and(|(name, _)| name.starts_with(&inside))
    };
    directories.retain(|directory| !has_children(directory));
    Ok(Listing {
        objects: found
            .into_iter()
            .map(|(name, meta)| object(name, meta))
            .collect(),
        directories,
    })
}

/// The path of an object of a place's bucket.
///
/// # Errors
/// INVALID_ARG for what no store can have.
pub(crate) fn path(key: &str) -> Result<Path, Failure> {
    Path::parse(key)
        .map_err(|error| Failure::Final(Error::invalid(format!("'{key}' is no path: {error}"))))
}

/// The tag of an object, however it was told: listings and replies differ in quotes.
pub(crate) fn tag(meta: &ObjectMeta) -> &str {
    let tag = meta.e_tag.as_deref().unwrap_or_default();
    tag.trim_start_matches("W/").trim_matches('"')
}

fn object(name: String, meta: ObjectMeta) -> Object {
    Object {
        name,
        bytes: meta.size,
        tag: tag(&meta).to_owned(),
        modified_ns: meta.last_modified.timestamp_nanos_opt().unwrap_or_default(),
    }
}

fn below<'p>(location: &'p Path, key: &str) -> Option<&'p str> {
    let location = location.as_ref();
    if key.is_empty() {
        return Some(location).filter(|location| !location.is_empty());
    }
    let inside = location.strip_prefix(key)?.strip_prefix('/')?;
    Some(inside).filter(|inside| !inside.is_empty())
}

fn parents_of_empty_ones(found: &BTreeMap<String, ObjectMeta>) -> BTreeSet<String> {
    let empty = found.iter().filter(|(_, meta)| meta.size == 0);
    empty
        .map(|(name, _)| match name.rsplit_once('/') {
            Some((parent, _)) => parent.to_owned(),
            None => String::new(),
        })
        .collect()
}

/// As many as are looked at in a local directory.
const OBJECTS_MAX: usize = 100_000;
