//! Recorded machines, shared by the tests of this crate and of those above it. Nothing else uses
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Machine;

/// One GPU, 8 cores of two threads, one node; the firmware tells no node of devices.
pub const WORKSTATION: &str = include_str!("tests/workstation.txt");
/// Two sockets of 8 cores of two threads; a GPU at each, the network at the first.
pub const TWO_SOCKETS: &str = include_str!("tests/two_sockets.txt");
/// Two nodes of 56 cores of two threads, four GPUs and an interface at each.
pub const EIGHT_GPUS: &str = include_str!("tests/eight_gpus.txt");
/// A container that shows which CPUs are online, and nothing else.
pub const CONTAINER: &str = include_str!("tests/container.txt");

/// A recorded machine, written out below a temporary folder, which goes with the value.
pub struct RecordedMachine(PathBuf);

impl RecordedMachine {
    /// Writes out `text`, which has a file in each line: `path: content`, where `\n` ends a line of
    /// the content.
    pub fn new(text: &str) -> RecordedMachine {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("conch-machine-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let writable = "the temporary directory can be written";
        fs::create_dir_all(&root).expect(writable);
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (path, content) = line.split_once(": ").expect("a line is `path: content`");
            let path = root.join(path);
            let folder = path.parent().expect("a file is below the root");
            fs::create_dir_all(folder).expect(writable);
            fs::write(path, content.replace("\\n", "\n") + "\n").expect(writable);
        }
        RecordedMachine(root)
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    /// What [`Machine::read`] makes of it.
    pub fn read(&self, known_cpus: &[usize]) -> Machine {
        Machine::read(self.root(), known_cpus)
    }
}

impl Drop for RecordedMachine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
