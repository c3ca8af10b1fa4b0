//! Fingerprints of model directories, to tell later whether they changed.
//!
//! Reads names, times and sizes of everything below the directory, never contents. Upstream keeps
//! the newest time of all and so does not see a file that an older one replaced (`cp -p`, a
//! roll-back); here any difference counts.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::repository::remote::{RemoteListing, RemoteObject};

/// The state of a model's directory at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// Of the directory itself.
    own: u64,
    /// Of each entry with all below it.
    entries: BTreeMap<Vec<u8>, u64>,
}

impl Fingerprint {
    /// Looks at the directory. What cannot be read counts as something that looks the same each
    /// time, so that it is not taken for a change.
    pub(crate) fn of(directory: &Path) -> Fingerprint {
        let Ok(own) = fs::metadata(directory) else {
            return Fingerprint::default();
        };
        let mut fingerprint = Fingerprint {
            own: hash_of(&own),
            entries: BTreeMap::new(),
        };
        let mut walk = FingerprintWalk {
            entries_left: ENTRIES_MAX,
            ancestors: vec![(own.dev(), own.ino())],
        };
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let mut hasher = DefaultHasher::new();
            walk.visit(&entry.path(), &mut hasher);
            fingerprint
                .entries
                .insert(name.into_encoded_bytes(), hasher.finish());
        }
        fingerprint
    }

    /// What a remote directory looks like: names, sizes, times and tags of its objects.
    pub(crate) fn of_listing(listing: &RemoteListing) -> Fingerprint {
        let mut hashers: BTreeMap<&str, DefaultHasher> = BTreeMap::new();
        let first = |name: &'_ str| name.split('/').next().unwrap_or_default().len();
        for object in &listing.objects {
            let hasher = hashers
                .entry(&object.name[..first(&object.name)])
                .or_default();
            let RemoteObject {
                name,
                bytes,
                tag,
                modified_ns,
            } = object;
            (name, bytes, tag, modified_ns).hash(hasher);
        }
        Fingerprint {
            own: 0,
            entries: hashers
                .into_iter()
                .map(|(name, hasher)| (name.as_bytes().to_vec(), hasher.finish()))
                .collect(),
        }
    }

    /// Whether what a version is made of looked the same at both moments: its directory, and
    /// whatever belongs to no version. The configuration is left out: it is compared as what it
    /// says.
    pub(crate) fn has_same_version(&self, other: &Fingerprint, version: i64) -> bool {
        let own = version.to_string();
        let is_of_it = |name: &&Vec<u8>| {
            let is_version = name.iter().all(u8::is_ascii_digit);
            let is_config = CONFIGURATIONS.contains(&name.as_slice());
            !is_config && (!is_version || name.as_slice() == own.as_bytes())
        };
        let names = |fingerprint: &'_ Fingerprint| -> BTreeMap<Vec<u8>, u64> {
            let entries = fingerprint.entries.iter();
            entries
                .filter(|(name, _)| is_of_it(name))
                .map(|(name, hash)| (name.clone(), *hash))
                .collect()
        };
        names(self) == names(other)
    }
}

/// What a model's configuration lies in.
const CONFIGURATIONS: [&[u8]; 3] = [b"config.pbtxt", b"config.json", b"configs"];

struct FingerprintWalk {
    entries_left: usize,
    /// Device and inode of the directories above, to leave out links that lead back.
    ancestors: Vec<(u64, u64)>,
}

impl FingerprintWalk {
    fn visit(&mut self, path: &Path, hasher: &mut DefaultHasher) {
        self.entries_left = self.entries_left.saturating_sub(1);
        let Ok(metadata) = fs::metadata(path) else {
            return;
        };
        hash_of(&metadata).hash(hasher);
        if !metadata.is_dir() || self.entries_left == 0 {
            return;
        }
        let identity = (metadata.dev(), metadata.ino());
        if self.ancestors.contains(&identity) {
            return;
        }
        self.ancestors.push(identity);
        let mut names: Vec<_> = fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort_unstable();
        for name in names {
            name.hash(hasher);
            self.visit(&path.join(name), hasher);
        }
        self.ancestors.pop();
    }
}

fn hash_of(metadata: &Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    (metadata.mtime(), metadata.mtime_nsec(), metadata.is_dir()).hash(&mut hasher);
    if !metadata.is_dir() {
        metadata.len().hash(&mut hasher);
    }
    hasher.finish()
}

/// Entries looked at. Models have tens of files, some thousands; links between directories could
/// make a tree without an end.
const ENTRIES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use conch_engine::testing::Directory;

    fn set_age(directory: &Directory, path: &str, age: Duration) {
        let file = fs::File::open(directory.path(path)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn every_change_shows() {
        const DAY: Duration = Duration::from_secs(86_400);
        type Change = fn(&Directory);
        let changes: [(&str, Change, bool); 9] = [
            ("nothing", |_| {}, false),
            (
                "contents of another size",
                |directory| {
                    directory.file("m/1/weights", "four");
                    set_age(directory, "m/1/weights", DAY);
                },
                true,
            ),
            (
                "newer",
                |directory| set_age(directory, "m/1/weights", DAY / 2),
                true,
            ),
            (
                "older",
                |directory| set_age(directory, "m/1/weights", DAY * 2),
                true,
            ),
            ("a new version", |directory| directory.folder("m/2"), true),
            (
                "a file of the model",
                |directory| directory.file("m/labels.txt", "a"),
                true,
            ),
            (
                "deep below",
                |directory| directory.file("m/1/assets/vocabulary/words", "w"),
                true,
            ),
            (
                "a file gone",
                |directory| fs::remove_file(directory.path("m/config.pbtxt")).unwrap(),
                true,
            ),
            (
                "reading only",
                |directory| drop(fs::read(directory.path("m/1/weights")).unwrap()),
                false,
            ),
        ];
        for (what, change, is_change) in changes {
            let directory = Directory::new();
            directory.file("m/config.pbtxt", "");
            directory.file("m/1/weights", "abc");
            directory.folder("m/1/assets/vocabulary");
            set_age(&directory, "m/1/weights", DAY);
            let before = Fingerprint::of(&directory.path("m"));
            change(&directory);
            let after = Fingerprint::of(&directory.path("m"));
            assert_eq!(before != after, is_change, "{what}");
        }
    }

    #[test]
    fn a_version_changes_with_its_own_files_and_those_of_all() {
        let directory = Directory::new();
        for file in [
            "config.pbtxt",
            "configs/other.pbtxt",
            "labels.txt",
            "1/m",
            "2/m",
        ] {
            directory.file(&format!("m/{file}"), "");
        }
        for (file, expected) in [
            ("config.pbtxt", [true, true]),
            ("configs/other.pbtxt", [true, true]),
            ("3/m", [true, true]),
            ("2/n", [true, false]),
            ("1/m", [false, true]),
            ("labels.txt", [false, false]),
            ("more.txt", [false, false]),
        ] {
            let before = Fingerprint::of(&directory.path("m"));
            directory.file(&format!("m/{file}"), "changed");
            let after = Fingerprint::of(&directory.path("m"));
            assert_ne!(before, after, "{file}");
            let same = [1, 2].map(|version| before.has_same_version(&after, version));
            assert_eq!(same, expected, "{file}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_or_back_end() {
        let directory = Directory::new();
        directory.folder("m/1/a");
        for (target, link) in [
            ("m", "m/1/a/up"),
            ("m/1", "m/1/a/up-too"),
            ("nowhere", "m/gone"),
        ] {
            std::os::unix::fs::symlink(directory.path(target), directory.path(link)).unwrap();
        }
        let before = Fingerprint::of(&directory.path("m"));
        assert_eq!(before, Fingerprint::of(&directory.path("m")));
        directory.file("m/1/a/file", "");
        assert_ne!(before, Fingerprint::of(&directory.path("m")));
        assert_eq!(
            Fingerprint::of(&directory.path("missing")),
            Fingerprint::default()
        );
    }
}
