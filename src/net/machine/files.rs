//! Bounded reading of small files and folders.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::affinity;

/// A file of sysfs is a page, its longest lists a few.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Entries of a folder; twice as many as the largest hosts have of anything.
pub(super) const ENTRIES_MAX: usize = 4_096;

/// The files of a system below a root: `/`, or that of a recorded machine.
pub struct SystemFiles<'a> {
    root: &'a Path,
}

impl<'a> SystemFiles<'a> {
    pub fn new(root: &'a Path) -> SystemFiles<'a> {
        SystemFiles { root }
    }

    /// The text of a file without blanks at its ends; none if it is absent, too long, or no text.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.path(path)).ok()?;
        file.take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .ok()?;
        let fits = text.len() as u64 <= FILE_BYTES_MAX;
        fits.then(|| text.trim().to_owned())
    }

    /// A file that is one number.
    pub fn number(&self, path: &str) -> Option<usize> {
        self.text(path)?.parse().ok()
    }

    /// A file that is a list of CPUs or nodes.
    pub fn list(&self, path: &str) -> Option<Vec<usize>> {
        parse_list(&self.text(path)?)
    }

    /// The names in a folder, sorted; none if it is absent.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let entries = entries.take(ENTRIES_MAX).flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

/// Parses `0-3,8`, ascending; empty for an empty text. None if it is malformed, or names what is
/// beyond all CPUs.
pub(super) fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut list = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= affinity::CPUS_MAX || list.len() > affinity::CPUS_MAX {
            return None;
        }
        list.extend(first..=last);
    }
    list.sort_unstable();
    list.dedup();
    Some(list)
}
