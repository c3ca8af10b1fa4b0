//! Listings of a store below a directory. Stores know objects only: a directory is the common
//! prefix of names.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use conch_control::remote::{RemoteListing, RemoteObject};
use conch_engine::Error;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta};

use crate::failure::RemoteFailure;
use crate::uri::UriLocation;

/// How many objects one operation may still hold, whatever directories they lie in.
#[derive(Debug)]
pub(crate) struct ListingBudget(Cell<usize>);

impl ListingBudget {
    pub(crate) fn new() -> ListingBudget {
        ListingBudget(Cell::new(TOGETHER_MAX))
    }

    fn spend_one(&self) -> Result<(), RemoteFailure> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| {
            refusal(format!(
                "there are more than {TOGETHER_MAX} objects in the models that are looked at \
                 together"
            ))
        })?;
        self.0.set(left);
        Ok(())
    }
}

/// The names of the directories directly in `place`, sorted.
///
/// # Errors
/// INVALID_ARG for more than [`ENTRIES_MAX`], or if there is no end to what lies between them.
pub(crate) async fn directories(
    store: &dyn PaginatedListStore,
    place: &UriLocation,
) -> Result<BTreeSet<String>, RemoteFailure> {
    let mut names = BTreeSet::new();
    let add_page = |page: ListResult| {
        let found = page.common_prefixes.iter().filter_map(Path::filename);
        names.extend(found.map(ToOwned::to_owned));
        match names.len() {
            ..=ENTRIES_MAX => Ok(ControlFlow::Continue(())),
            _ => Err(refusal(format!(
                "more than {ENTRIES_MAX} directories lie in '{place}'"
            ))),
        }
    };
    walk(store, place, Some(DELIMITER), add_page).await?;
    Ok(names)
}

/// Whether anything lies below `place`; a whole bucket is there if it can be listed.
pub(crate) async fn exists(
    store: &dyn PaginatedListStore,
    place: &UriLocation,
) -> Result<bool, RemoteFailure> {
    let mut is_there = place.key.is_empty();
    let add_page = |page: ListResult| {
        is_there |= !page.objects.is_empty();
        Ok(match is_there {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    };
    walk(store, place, None, add_page).await?;
    Ok(is_there)
}

/// Everything below `place`.
///
/// # Errors
/// INVALID_ARG for more than [`ENTRIES_MAX`] objects, or more than `allowance` has left.
pub(crate) async fn contents(
    store: &dyn PaginatedListStore,
    place: &UriLocation,
    allowance: &ListingBudget,
) -> Result<RemoteListing, RemoteFailure> {
    let mut found = BTreeMap::new();
    let add_page = |page: ListResult| {
        for meta in page.objects {
            let Some(name) = below(&meta.location, &place.key) else {
                continue;
            };
            allowance.spend_one()?;
            found.insert(name.to_owned(), meta);
            if found.len() > ENTRIES_MAX {
                return Err(refusal(format!(
                    "more than {ENTRIES_MAX} objects lie below '{place}'"
                )));
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    walk(store, place, None, add_page).await?;
    // Consoles and tools mark a directory by an empty object whose name ends with a slash, of which
    // a listing does not tell. Where something lies in it, that tells enough; else the download
    // asks.
    let has_children = |directory: &str| {
        let inside = format!("{directory}/");
        let mut after = found.range(inside.clone()..);
        after
            .next()
            .is_some_and(|(name, _): (&String, _)| name.starts_with(&inside))
    };
    let marks: Vec<String> = found
        .iter()
        .filter(|(name, meta)| meta.size == 0 && has_children(name))
        .map(|(name, _)| name.clone())
        .collect();
    for mark in marks {
        found.remove(&mark);
    }
    let objects = found.into_iter();
    Ok(RemoteListing {
        objects: objects.map(|(name, meta)| object(name, meta)).collect(),
    })
}

/// Shows `add_page` all pages of the listing of `place`, until it has seen enough.
async fn walk(
    store: &dyn PaginatedListStore,
    place: &UriLocation,
    delimiter: Option<&'static str>,
    mut add_page: impl FnMut(ListResult) -> Result<ControlFlow<()>, RemoteFailure>,
) -> Result<(), RemoteFailure> {
    let prefix = match path(&place.key)?.as_ref() {
        "" => None,
        key => Some(format!("{key}/")),
    };
    let mut page_token = None;
    for _ in 0..PAGES_MAX {
        let options = PaginatedListOptions {
            delimiter: delimiter.map(Cow::Borrowed),
            page_token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(prefix.as_deref(), options).await?;
        if add_page(page.result)?.is_break() || page.page_token.is_none() {
            return Ok(());
        }
        page_token = page.page_token;
    }
    Err(refusal(format!(
        "the listing of '{place}' has more than {PAGES_MAX} pages"
    )))
}

fn refusal(message: String) -> RemoteFailure {
    RemoteFailure::Final(Error::invalid(message))
}

/// The path of an object of a place's bucket.
///
/// # Errors
/// INVALID_ARG for what no store can have.
pub(crate) fn path(key: &str) -> Result<Path, RemoteFailure> {
    Path::parse(key).map_err(|error| refusal(format!("'{key}' is no path: {error}")))
}

/// The tag of an object, however it was told: listings and replies differ in quotes.
pub(crate) fn tag(meta: &ObjectMeta) -> &str {
    let tag = meta.e_tag.as_deref().unwrap_or_default();
    tag.trim_start_matches("W/").trim_matches('"')
}

pub(crate) fn object(name: String, meta: ObjectMeta) -> RemoteObject {
    RemoteObject {
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

/// As many as are looked at in a local directory: objects of a model, or models of a repository.
const ENTRIES_MAX: usize = 100_000;
/// Some 250 MB of names and tags: ten times what the largest model may have, or a thousand models
/// of a thousand files.
const TOGETHER_MAX: usize = 1_000_000;
/// A million names at a thousand a page; half a minute where a page takes 30 ms.
const PAGES_MAX: usize = 1_000;
const DELIMITER: &str = "/";

#[cfg(test)]
mod tests;
