//! Listing and downloading from a store in memory, and what is read again when credentials change.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use conch_engine::remote::{Listing, Object, Progress, Remote};
use conch_engine::{Code, Error};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::failure::Failure;
use crate::uri::{Kind, Place};
use crate::{Cloud, block_on, download, listing};

/// A directory that goes away with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("conch-remote-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// All files below, by name.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.0.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    let name = path.strip_prefix(&self.0).unwrap().display().to_string();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn place(key: &str) -> Place {
    Place {
        kind: Kind::S3,
        endpoint: None,
        account: String::new(),
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
    }
}

fn store(objects: &[(&str, &[u8])]) -> InMemory {
    let store = InMemory::new();
    for (key, contents) in objects {
        let path = object_store::path::Path::parse(key).unwrap();
        let payload = PutPayload::from(contents.to_vec());
        block_on(store.put(&path, payload)).unwrap().unwrap();
    }
    store
}

fn fetch(
    store: &dyn ObjectStore,
    key: &str,
    listing: &Listing,
    target: &Path,
) -> Result<Vec<Progress>, Error> {
    let seen = Mutex::new(Vec::new());
    let watch = |progress| {
        seen.lock().unwrap().push(progress);
        Ok(())
    };
    let place = place(key);
    let work = download::download(store, &place, "uri", listing, target, &watch);
    block_on(work)
        .unwrap()
        .map_err(|failure| failure.of_object(Kind::S3, "uri"))?;
    Ok(seen.into_inner().unwrap())
}

#[test]
fn directories_are_what_names_have_in_common() {
    let store = store(&[
        ("readme", b"x"),
        ("models/a/config.pbtxt", b"a"),
        ("models/a/1/x", b"xy"),
        ("models/b.txt", b"b"),
        ("models/c/1/deep/er", b""),
        ("models2/d/1", b"d"),
    ]);
    let check = |key: &str, expected: &[&str]| {
        let place = place(key);
        let names = block_on(listing::directories(&store, &place))
            .unwrap()
            .unwrap();
        assert!(names.iter().eq(expected), "{key}: {names:?}");
        let exists = block_on(listing::exists(&store, &place)).unwrap().unwrap();
        let contents = block_on(listing::contents(&store, &place))
            .unwrap()
            .unwrap();
        assert_eq!(exists, key.is_empty() || !contents.is_empty(), "{key}");
    };
    check("models", &["a", "c"]);
    check("", &["models", "models2"]);
    check("models/a", &["1"]);
    check("models/b.txt", &[]);
    check("mod", &[]);
    let contents = |key: &str| {
        let listing = block_on(listing::contents(&store, &place(key)))
            .unwrap()
            .unwrap();
        let objects = listing.objects.iter();
        let names: Vec<_> = objects
            .map(|object| (object.name.clone(), object.bytes))
            .collect();
        assert!(listing.directories.is_empty());
        names
    };
    assert_eq!(
        contents("models/a"),
        [("1/x".to_owned(), 2), ("config.pbtxt".to_owned(), 1)]
    );
    assert_eq!(contents("models/c"), [("1/deep/er".to_owned(), 0)]);
    assert_eq!(contents("models/absent"), []);
}

#[test]
fn everything_arrives_in_parts() {
    // Longer than two parts, and no multiple of one.
    let large: Vec<u8> = (0..40_000_001_u32)
        .map(|index| (index >> 8) as u8)
        .collect();
    let store = store(&[
        ("m/config.pbtxt", b"text"),
        ("m/1/large", &large),
        ("m/1/empty", b""),
    ]);
    let listing = block_on(listing::contents(&store, &place("m")))
        .unwrap()
        .unwrap();
    let folder = Folder::new();
    // What an attempt before left is gone.
    fs::write(folder.0.join("stale"), "x").unwrap();
    let progress = fetch(&store, "m", &listing, &folder.0).unwrap();
    let files = folder.files();
    assert_eq!(files.len(), 3);
    assert_eq!(files["config.pbtxt"], b"text");
    assert!(files["1/large"] == large && files["1/empty"].is_empty());
    let last = Progress {
        bytes: 40_000_005,
        files: 3,
    };
    assert_eq!(progress.last(), Some(&last));
    assert!(progress.is_sorted_by_key(|progress| (progress.bytes, progress.files)));
}

#[test]
fn what_is_not_as_it_was_listed_is_refused() {
    let store = store(&[("m/a", b"aaaa"), ("m/b", b"bbbb")]);
    let listing = block_on(listing::contents(&store, &place("m")))
        .unwrap()
        .unwrap();
    type Change = fn(&mut Vec<Object>);
    let changes: [(&str, Change, Result<(), Code>); 8] = [
        ("nothing", |_| {}, Ok(())),
        ("no tag", |objects| objects[0].tag.clear(), Ok(())),
        (
            "another tag",
            |objects| objects[0].tag.push('x'),
            Err(Code::Unavailable),
        ),
        (
            "longer",
            |objects| objects[1].bytes = 5,
            Err(Code::Unavailable),
        ),
        (
            "shorter",
            |objects| objects[1].bytes = 3,
            Err(Code::Unavailable),
        ),
        (
            "gone",
            |objects| objects[0].name = "c".to_owned(),
            Err(Code::Unavailable),
        ),
        (
            "leads out",
            |objects| objects[0].name = "../a".to_owned(),
            Err(Code::InvalidArg),
        ),
        (
            "more than any disk has",
            |objects| objects[0].bytes = u64::MAX,
            Err(Code::Internal),
        ),
    ];
    for (what, change, expected) in changes {
        let mut listing = listing.clone();
        change(&mut listing.objects);
        let folder = Folder::new();
        let outcome = fetch(&store, "m", &listing, &folder.0);
        assert_eq!(
            outcome.map(|_| ()).map_err(|error| error.code),
            expected,
            "{what}"
        );
    }
    // A name that is a file's and a directory's.
    let object = |name: &str| Object {
        name: name.to_owned(),
        ..listing.objects[0].clone()
    };
    for names in [["a", "a/b"], ["a/b", "a"]] {
        let listing = Listing {
            objects: names.map(object).to_vec(),
            ..Listing::default()
        };
        let folder = Folder::new();
        let error = fetch(&store, "m", &listing, &folder.0).unwrap_err();
        assert_eq!(
            error.message,
            "'a' is the name of an object and of a directory"
        );
    }
}

#[test]
fn who_watches_may_end_it() {
    let store = store(&[("m/a", b"aaaa")]);
    let place = place("m");
    let listing = block_on(listing::contents(&store, &place))
        .unwrap()
        .unwrap();
    let folder = Folder::new();
    let watch = |_| Err(Error::unavailable("enough"));
    let work = download::download(&store, &place, "uri", &listing, &folder.0, &watch);
    let failure = block_on(work).unwrap().unwrap_err();
    assert!(matches!(&failure, Failure::Final(error) if error.message == "enough"));
    assert!(!failure.is_passing());
}

#[test]
fn credentials_are_read_again_only_if_they_changed() {
    let folder = Folder::new();
    let file = folder.0.join("credentials.json");
    fs::write(
        &file,
        r#"{"s3": {"s3://a": {"key_id": "k", "secret_key": "s"}}}"#,
    )
    .unwrap();
    let path = file.display().to_string();
    let cloud = Cloud::with_environment(Box::new(move |name| {
        (name == "TRITON_CLOUD_CREDENTIAL_PATH").then(|| path.clone())
    }));
    let open = |uri: &str| {
        let place = Place::parse(uri).unwrap();
        cloud.stores.open(&place, uri)
    };
    let first = open("s3://a/models").unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &open("s3://a/other").unwrap()
    ));
    assert!(!cloud.stores.reread().unwrap());
    let missing = open("s3://b").err().unwrap();
    assert_eq!(missing.message, "Cannot match credential for path  s3://b");
    // One that is missing is looked for again.
    fs::write(&file, r#"{"s3": {"": {"key_id": "k", "secret_key": "s"}}}"#).unwrap();
    open("s3://b").unwrap();
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &open("s3://a/models").unwrap()
    ));
    // What is no good now does not replace what was.
    fs::write(&file, "{").unwrap();
    assert!(cloud.stores.reread().is_err());
    open("s3://b").unwrap();
}

#[test]
fn each_kind_has_its_mount_directory() {
    let cloud = Cloud::with_environment(Box::new(|name| match name {
        "TRITON_AWS_MOUNT_DIRECTORY" => Some("/aws".to_owned()),
        "TRITON_GCS_MOUNT_DIRECTORY" => Some(String::new()),
        _ => None,
    }));
    for (uri, expected) in [
        ("s3://b/m", Some("/aws")),
        ("gs://b/m", None),
        ("as://a/c/m", None),
    ] {
        assert_eq!(
            cloud.mount_directory(uri),
            expected.map(PathBuf::from),
            "{uri}"
        );
    }
}
