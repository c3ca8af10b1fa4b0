use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Gid, Uid};

use super::*;
use crate::Block;

/// An object of its own, gone at the end.
pub(crate) struct Object {
    pub(crate) key: CString,
    file: OwnedFd,
}

impl Object {
    pub(crate) fn new(bytes: u64) -> Object {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let key = CString::new(format!("/conch_test_{}_{number}", std::process::id())).unwrap();
        let flags = shm::OFlags::RDWR | shm::OFlags::CREATE | shm::OFlags::EXCL;
        let file = shm::open(&*key, flags, Mode::RUSR | Mode::WUSR).unwrap();
        let object = Object { key, file };
        object.resize(bytes);
        object
    }

    pub(crate) fn resize(&self, bytes: u64) {
        rustix::fs::ftruncate(&self.file, bytes).unwrap();
    }

    pub(crate) fn open(&self, offset: u64, len: u64) -> Result<Arc<SharedMapping>, MapError> {
        SharedMapping::open(&self.key, offset, len, &AllowedOwners::Own).map(Arc::new)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = shm::unlink(&*self.key);
    }
}

pub(crate) fn bytes_of(view: &ByteView) -> Vec<u8> {
    let mut block = Block::try_with_capacity(view.len()).unwrap();
    view.read(0, &mut block);
    block.as_slice().to_vec()
}

#[test]
fn what_one_mapping_writes_another_reads() {
    let object = Object::new(8192);
    let (whole, second_page) = (
        object.open(0, 8192).unwrap(),
        object.open(4096, 100).unwrap(),
    );
    assert_eq!((whole.len(), second_page.len()), (8192, 100));
    let target = whole.view(4096, 4, ()).unwrap();
    assert!(target.is_shared() && target.as_slice().is_none() && target.as_ref().is_empty());
    assert!(target.write(b"abcd"));
    assert!(!target.write(b"abcde"), "does not fit");
    let view = second_page.view(0, 6, ()).unwrap();
    assert_eq!(bytes_of(&view), b"abcd\0\0");
    assert_eq!(bytes_of(&view.slice(1, 3).unwrap()), b"bc");
    let mut block = Block::with_capacity(3);
    view.read(2, &mut block);
    assert_eq!(block.as_slice(), b"cd\0");
    view.read(2, &mut block);
    assert_eq!(block.len(), 3, "full");
    let own = ByteView::copy_of(b"own");
    assert!(!own.is_shared() && !own.write(b"x"));
}

#[test]
fn views_keep_the_memory_and_their_keeper() {
    struct Keeper(Arc<AtomicUsize>);
    impl Drop for Keeper {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (object, gone) = (Object::new(4096), Arc::new(AtomicUsize::new(0)));
    let shared = object.open(0, 4096).unwrap();
    let view = shared.view(8, 8, Keeper(Arc::clone(&gone))).unwrap();
    drop(shared);
    let part = view.slice(0, 1).unwrap();
    drop(view);
    assert!(part.write(b"x"));
    assert_eq!(bytes_of(&part), b"x");
    assert_eq!(gone.load(Ordering::Relaxed), 0);
    drop(part);
    assert_eq!(gone.load(Ordering::Relaxed), 1);
}

#[test]
fn windows_lie_inside() {
    let object = Object::new(4096);
    let shared = object.open(0, 100).unwrap();
    for (start, len, is_inside) in [
        (0, 100, true),
        (100, 0, true),
        (99, 1, true),
        (99, 2, false),
        (101, 0, false),
        (usize::MAX, 2, false),
    ] {
        assert_eq!(shared.view(start, len, ()).is_some(), is_inside);
    }
}

#[test]
fn what_cannot_be_mapped_says_why() {
    let object = Object::new(100);
    let kind = |outcome: Result<Arc<SharedMapping>, MapError>| match outcome {
        Ok(_) => "mapped",
        Err(MapError::Open(_)) => "open",
        Err(MapError::Unusable) => "unusable",
        Err(MapError::Foreign(_)) => "foreign",
        Err(MapError::OutOfBounds) => "bounds",
        Err(MapError::Map(_)) => "map",
        Err(MapError::TooMany) => "many",
    };
    for (offset, len, expected) in [
        (0, 100, "mapped"),
        (0, 101, "bounds"),
        (4096, 1, "bounds"),
        (u64::MAX, 1, "bounds"),
        (u64::MAX - 31, 32, "bounds"),
        (5, 10, "map"),
        (0, 0, "map"),
    ] {
        assert_eq!(kind(object.open(offset, len)), expected, "{offset} {len}");
    }
    for key in ["/conch_test_nobody", "/a/b", "/..", "/."] {
        let key = CString::new(key).unwrap();
        assert_eq!(
            kind(SharedMapping::open(&key, 0, 1, &AllowedOwners::Own).map(Arc::new)),
            "open",
            "{key:?}"
        );
    }
}

#[test]
fn objects_are_mapped_whose_owners_may_be() {
    let own = rustix::process::geteuid().as_raw();
    let object = Object::new(100);
    let open = |owners: &AllowedOwners| match SharedMapping::open(&object.key, 0, 100, owners) {
        Ok(_) => None,
        Err(MapError::Foreign(owner)) => Some(owner),
        Err(other) => panic!("{other:?}"),
    };
    for owners in [
        AllowedOwners::Own,
        AllowedOwners::All,
        AllowedOwners::Only(vec![own]),
    ] {
        assert_eq!(open(&owners), None, "{owners:?}");
    }
    for owners in [
        AllowedOwners::Only(vec![]),
        AllowedOwners::Only(vec![own + 1]),
    ] {
        assert_eq!(open(&owners), Some(own), "{owners:?}");
    }
    if own != 0 {
        eprintln!("skipped in part: only root can give an object away");
        return;
    }
    rustix::fs::fchown(
        &object.file,
        Some(Uid::from_raw(1234)),
        Some(Gid::from_raw(1234)),
    )
    .unwrap();
    assert_eq!(open(&AllowedOwners::Own), None, "root maps what it likes");
    assert_eq!(open(&AllowedOwners::Only(vec![0])), Some(1234));
    assert_eq!(open(&AllowedOwners::Only(vec![0, 1234])), None);
}
