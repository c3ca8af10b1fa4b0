//! Listing and downloading from a store in memory, and what is read again when credentials change.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use conch_control::remote::{
    DownloadProgress, DownloadSpec, RemoteListing, RemoteObject, RemoteRepositories,
};
use conch_engine::{Code, Error};
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};

use crate::failure::RemoteFailure;
use crate::uri::{UriKind, UriLocation};
use crate::{Cloud, block_on, download};

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

pub(crate) fn place(key: &str) -> UriLocation {
    UriLocation {
        kind: UriKind::S3,
        endpoint: None,
        account: String::new(),
        bucket: "bucket".to_owned(),
        key: key.to_owned(),
    }
}

pub(crate) fn store(objects: &[(&str, &[u8])]) -> InMemory {
    let store = InMemory::new();
    for (key, contents) in objects {
        let path = object_store::path::Path::parse(key).unwrap();
        let payload = PutPayload::from(contents.to_vec());
        block_on(store.put(&path, payload)).unwrap().unwrap();
    }
    store
}

/// What lies below `key`.
fn listed(store: &InMemory, key: &str) -> RemoteListing {
    let prefix = object_store::path::Path::from(key);
    let found: Vec<ObjectMeta> = block_on(store.list(Some(&prefix)).try_collect())
        .unwrap()
        .unwrap();
    let mut objects: Vec<RemoteObject> = found
        .into_iter()
        .map(|meta| {
            let name = meta.location.as_ref()[key.len() + 1..].to_owned();
            crate::listing::object(name, meta)
        })
        .collect();
    objects.sort_by(|one, other| one.name.cmp(&other.name));
    RemoteListing { objects }
}

fn fetch(
    store: &dyn ObjectStore,
    key: &str,
    listing: &RemoteListing,
    target: &Path,
) -> Result<Vec<DownloadProgress>, Error> {
    let seen = Mutex::new(Vec::new());
    let watch = |progress| {
        seen.lock().unwrap().push(progress);
        Ok(())
    };
    let place = place(key);
    let wanted = DownloadSpec {
        directory: "uri",
        listing,
        target,
    };
    let work = download::download(store, &place, &wanted, &watch);
    block_on(work)
        .unwrap()
        .map_err(|failure| failure.of_object(UriKind::S3, "uri"))?;
    Ok(seen.into_inner().unwrap())
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
    let listing = listed(&store, "m");
    let folder = Folder::new();
    // What an attempt before left is gone.
    fs::write(folder.0.join("stale"), "x").unwrap();
    let progress = fetch(&store, "m", &listing, &folder.0).unwrap();
    let files = folder.files();
    assert_eq!(files.len(), 3);
    assert_eq!(files["config.pbtxt"], b"text");
    assert!(files["1/large"] == large && files["1/empty"].is_empty());
    let last = DownloadProgress {
        bytes: 40_000_005,
        files: 3,
    };
    assert_eq!(progress.last(), Some(&last));
    assert!(progress.is_sorted_by_key(|progress| (progress.bytes, progress.files)));
}

#[test]
fn what_is_not_as_it_was_listed_is_refused() {
    let store = store(&[("m/a", b"aaaa"), ("m/b", b"bbbb")]);
    let listing = listed(&store, "m");
    type Change = fn(&mut Vec<RemoteObject>);
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
}

/// Its name ends with a slash, of which listings do not tell.
#[test]
fn what_is_empty_and_is_not_there_is_a_directory() {
    let store = store(&[("m/a", b"aaaa"), ("m/b", b"bbbb")]);
    let listing = listed(&store, "m");
    let mark = RemoteObject {
        name: "1/deep".to_owned(),
        bytes: 0,
        ..listing.objects[0].clone()
    };
    let marked = RemoteListing {
        objects: vec![mark, listing.objects[1].clone()],
    };
    let folder = Folder::new();
    let progress = fetch(&store, "m", &marked, &folder.0).unwrap();
    assert!(folder.0.join("1/deep").is_dir());
    let last = DownloadProgress { bytes: 4, files: 2 };
    assert_eq!(progress.last(), Some(&last));
}

#[test]
fn a_name_of_a_file_and_of_a_directory_is_refused() {
    let store = store(&[("m/a", b"aaaa"), ("m/b", b"bbbb")]);
    let listing = listed(&store, "m");
    let object = |name: &str| RemoteObject {
        name: name.to_owned(),
        ..listing.objects[0].clone()
    };
    for names in [["a", "a/b"], ["a/b", "a"]] {
        let listing = RemoteListing {
            objects: names.map(object).to_vec(),
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
    let listing = listed(&store, "m");
    let folder = Folder::new();
    let watch = |_| Err(Error::unavailable("enough"));
    let wanted = DownloadSpec {
        directory: "uri",
        listing: &listing,
        target: &folder.0,
    };
    let work = download::download(&store, &place, &wanted, &watch);
    let failure = block_on(work).unwrap().unwrap_err();
    assert!(matches!(&failure, RemoteFailure::Final(error) if error.message == "enough"));
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
    let cloud = Cloud::with_environment(std::sync::Arc::new(move |name: &str| {
        (name == "TRITON_CLOUD_CREDENTIAL_PATH").then(|| path.clone())
    }));
    let open = |uri: &str| {
        let place = UriLocation::parse(uri).unwrap();
        cloud.stores.open(&place, uri).map(|store| store.objects)
    };
    let first = open("s3://a/models").unwrap();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &open("s3://a/other").unwrap()
    ));
    assert!(!cloud.stores.reread().unwrap());
    let missing = open("s3://b").err().unwrap();
    assert_eq!(missing.message, "Cannot match credential for path  s3://b");
    let listed = cloud.list(&["s3://b"]).remove(0).unwrap_err();
    assert_eq!(
        listed, missing,
        "it is not taken for a place where nothing is"
    );
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
    let cloud = Cloud::with_environment(std::sync::Arc::new(|name: &str| match name {
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
