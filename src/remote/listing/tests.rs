//! Listings of a store in memory, page by page, and of stores that have no end.

use std::pin::Pin;

use conch_engine::Code;
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::list::PaginatedListResult;
use object_store::memory::InMemory;

use super::*;
use crate::block_on;
use crate::tests::{place, store};
use crate::uri::UriKind;

type Page<'p> =
    Pin<Box<dyn Future<Output = object_store::Result<PaginatedListResult>> + Send + 'p>>;

/// A store in memory whose listings come in pages.
struct Paged {
    store: InMemory,
    page: usize,
}

impl PaginatedListStore for Paged {
    fn list_paginated<'s, 'p, 'a>(
        &'s self,
        prefix: Option<&'p str>,
        options: PaginatedListOptions,
    ) -> Page<'a>
    where
        's: 'a,
        'p: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            assert!(prefix.is_none_or(|prefix| prefix.ends_with('/')));
            let prefix = prefix.map(Path::from);
            let mut found = match options.delimiter {
                Some(_) => self.store.list_with_delimiter(prefix.as_ref()).await?,
                None => ListResult {
                    objects: self.store.list(prefix.as_ref()).try_collect().await?,
                    common_prefixes: Vec::new(),
                    extensions: Default::default(),
                },
            };
            let start = options.page_token.map_or(0, |token| token.parse().unwrap());
            let end = start + self.page;
            let count = found.objects.len().max(found.common_prefixes.len());
            let mut index = 0;
            found.objects.retain(|_| {
                index += 1;
                (start..end).contains(&(index - 1))
            });
            let mut index = 0;
            found.common_prefixes.retain(|_| {
                index += 1;
                (start..end).contains(&(index - 1))
            });
            Ok(PaginatedListResult {
                result: found,
                page_token: (end < count).then(|| end.to_string()),
            })
        })
    }
}

/// Tells of `page` more objects, and as many directories, on each page; there is always another.
struct Endless {
    page: usize,
}

impl PaginatedListStore for Endless {
    fn list_paginated<'s, 'p, 'a>(
        &'s self,
        _: Option<&'p str>,
        options: PaginatedListOptions,
    ) -> Page<'a>
    where
        's: 'a,
        'p: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            let number: usize = options.page_token.map_or(0, |token| token.parse().unwrap());
            let names = (0..self.page).map(|index| format!("m/{number}-{index}"));
            let objects = names.clone().map(|name| ObjectMeta {
                location: Path::from(name),
                last_modified: Default::default(),
                size: 1,
                e_tag: None,
                version: None,
            });
            Ok(PaginatedListResult {
                result: ListResult {
                    objects: objects.collect(),
                    common_prefixes: names.map(Path::from).collect(),
                    extensions: Default::default(),
                },
                page_token: Some((number + 1).to_string()),
            })
        })
    }
}

fn run<T>(work: impl Future<Output = Result<T, RemoteFailure>>) -> Result<T, Error> {
    let outcome = block_on(work).unwrap();
    outcome.map_err(|failure| failure.of_listing(UriKind::S3, "uri"))
}

fn sizes(listing: &RemoteListing) -> Vec<(&str, u64)> {
    let objects = listing.objects.iter();
    objects
        .map(|object| (&*object.name, object.bytes))
        .collect()
}

#[test]
fn directories_are_what_names_have_in_common() {
    let objects: [(&str, &[u8]); 8] = [
        ("readme", b"x"),
        ("models/a/config.pbtxt", b"a"),
        ("models/a/1/x", b"xy"),
        ("models/b.txt", b"b"),
        ("models/c/1/deep/er", b""),
        // As consoles mark directories: one with something in it, one without.
        ("models/c/1", b""),
        ("models/c/2", b""),
        ("models2/d/1", b"d"),
    ];
    for page in [1, 2, 100] {
        let store = Paged {
            store: store(&objects),
            page,
        };
        let check = |key: &str, expected: &[&str], contents: &[(&str, u64)]| {
            let place = place(key);
            let names = run(directories(&store, &place)).unwrap();
            assert!(names.iter().eq(expected), "{key}: {names:?}");
            let is_there = run(exists(&store, &place)).unwrap();
            let listing = run(super::contents(&store, &place, &ListingBudget::new())).unwrap();
            assert_eq!(sizes(&listing), contents, "{key}");
            assert_eq!(is_there, key.is_empty() || !listing.is_empty(), "{key}");
        };
        check("models/a", &["1"], &[("1/x", 2), ("config.pbtxt", 1)]);
        check("models/c", &["1"], &[("1/deep/er", 0), ("2", 0)]);
        check("models/b.txt", &[], &[]);
        check("mod", &[], &[]);
        check("models2", &["d"], &[("d/1", 1)]);
        let names = run(directories(&store, &place("models"))).unwrap();
        assert!(names.iter().eq(["a", "c"]), "{names:?}");
        let names = run(directories(&store, &place(""))).unwrap();
        assert!(names.iter().eq(["models", "models2"]), "{names:?}");
    }
}

#[test]
fn what_has_no_end_is_refused() {
    let place = place("m");
    let refused = |outcome: Result<(), Error>, expected: &str| {
        let error = outcome.unwrap_err();
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, expected));
    };
    let many = Endless { page: 1_000 };
    refused(
        run(contents(&many, &place, &ListingBudget::new())).map(drop),
        "more than 100000 objects lie below 'bucket/m'",
    );
    refused(
        run(directories(&many, &place)).map(drop),
        "more than 100000 directories lie in 'bucket/m'",
    );
    assert!(
        run(exists(&many, &place)).unwrap(),
        "it need not look at all"
    );
    // Pages in which nothing is.
    let nothing = Endless { page: 0 };
    let message = "the listing of 'bucket/m' has more than 1000 pages";
    let outcome = run(contents(&nothing, &place, &ListingBudget::new()));
    refused(outcome.map(drop), message);
    refused(run(directories(&nothing, &place)).map(drop), message);
    refused(run(exists(&nothing, &place)).map(drop), message);
}

#[test]
fn models_that_are_listed_together_share_what_can_be_held() {
    let store = Paged {
        store: store(&[("m/1", b"x"), ("m/2", b"x"), ("n/1", b"x"), ("o/1", b"x")]),
        page: 10,
    };
    let allowance = ListingBudget(Cell::new(3));
    let list = |key: &str| run(contents(&store, &place(key), &allowance));
    assert_eq!(list("m").unwrap().objects.len(), 2);
    assert_eq!(list("n").unwrap().objects.len(), 1);
    let error = list("o").unwrap_err();
    assert_eq!(
        error.message,
        "there are more than 1000000 objects in the models that are looked at together"
    );
}
