//! The life of models whose repository is not on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fmt, fs};

use conch_engine::Error;
use conch_engine::testing::Directory;

use super::fake::fault;
use super::{options, row, start};
use crate::Server;
use crate::load_overrides::Overrides;
use crate::options::{ControlMode, EngineOptions};
use crate::repository::remote::{
    DownloadObserver, DownloadProgress, DownloadSpec, RemoteListing, RemoteObject,
    RemoteRepositories,
};

/// Serves `s3://bucket/…` from a local directory.
struct FakeRemote {
    root: PathBuf,
    mount: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    downloads: Vec<String>,
    is_unreachable: bool,
    /// The model whose download breaks in the middle.
    broken: String,
    /// Runs in the middle of each download.
    meanwhile: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for FakeRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeRemote")
    }
}

impl FakeRemote {
    fn new(directory: &Directory) -> Arc<FakeRemote> {
        directory.folder("mount");
        Arc::new(FakeRemote {
            root: directory.path(""),
            mount: directory.path("mount"),
            state: Mutex::default(),
        })
    }

    fn local(&self, uri: &str) -> Result<PathBuf, Error> {
        if self.state.lock().unwrap().is_unreachable {
            return Err(Error::internal("nobody answers"));
        }
        Ok(self.root.join(uri.strip_prefix("s3://bucket/").unwrap()))
    }

    fn taken_downloads(&self) -> Vec<String> {
        let mut downloads = std::mem::take(&mut self.state.lock().unwrap().downloads);
        downloads.sort();
        downloads
    }

    /// The models of which there are copies.
    fn copies(&self) -> Vec<String> {
        let mut names = Vec::new();
        for copy in fs::read_dir(&self.mount).unwrap() {
            for model in fs::read_dir(copy.unwrap().path()).unwrap() {
                names.push(model.unwrap().file_name().into_string().unwrap());
            }
        }
        names.sort();
        names
    }
}

fn walk(directory: &Path, prefix: &str, listing: &mut RemoteListing) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        let is_directory = entry.path().is_dir();
        let is_empty = || fs::read_dir(entry.path()).unwrap().next().is_none();
        if is_directory && !is_empty() {
            walk(&entry.path(), &format!("{name}/"), listing);
        } else {
            let contents = match is_directory {
                true => Vec::new(),
                false => fs::read(entry.path()).unwrap(),
            };
            listing.objects.push(RemoteObject {
                name,
                bytes: contents.len() as u64,
                tag: String::from_utf8(contents).unwrap(),
                modified_ns: 0,
            });
        }
    }
    listing
        .objects
        .sort_by(|one, other| one.name.cmp(&other.name));
}

impl RemoteRepositories for FakeRemote {
    fn models(&self, repository: &str) -> Result<Vec<String>, Error> {
        let names = crate::repository::model_directory::sub_directories(&self.local(repository)?);
        names.map_err(Error::internal)
    }

    fn exists(&self, directory: &str) -> Result<bool, Error> {
        Ok(self.local(directory)?.is_dir())
    }

    fn list(&self, directories: &[&str]) -> Vec<Result<RemoteListing, Error>> {
        let list = |uri: &&str| {
            let mut listing = RemoteListing::default();
            walk(&self.local(uri)?, "", &mut listing);
            Ok(listing)
        };
        directories.iter().map(list).collect()
    }

    fn download(
        &self,
        wanted: &DownloadSpec<'_>,
        watch: &DownloadObserver<'_>,
    ) -> Result<(), Error> {
        let DownloadSpec {
            directory,
            listing,
            target,
        } = *wanted;
        let source = self.local(directory)?;
        let (broken, meanwhile) = {
            let mut state = self.state.lock().unwrap();
            let name = directory.rsplit('/').next().unwrap();
            state.downloads.push(name.to_owned());
            (state.broken == name, state.meanwhile.clone())
        };
        for object in &listing.objects {
            let (from, to) = (source.join(&object.name), target.join(&object.name));
            if from.is_dir() {
                fs::create_dir_all(to).unwrap();
                continue;
            }
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
            watch(DownloadProgress {
                bytes: object.bytes,
                files: 1,
            })?;
            if let Some(meanwhile) = &meanwhile {
                meanwhile();
            }
            if broken {
                return Err(Error::internal("the connection broke"));
            }
        }
        Ok(())
    }

    fn mount_directory(&self, _: &str) -> Option<PathBuf> {
        Some(self.mount.clone())
    }
}

fn remote_options(
    directory: &Directory,
    remote: &Arc<FakeRemote>,
    mode: ControlMode,
) -> EngineOptions {
    EngineOptions {
        model_repositories: vec![PathBuf::from("s3://bucket/r")],
        remote: Arc::clone(remote) as Arc<dyn RemoteRepositories>,
        model_control_mode: mode,
        ..options(directory, &[])
    }
}

fn is_ready(server: &Server, name: &str) -> bool {
    server.registry().snapshot().find(name, None).is_ok()
}

/// Waits for versions on their way out.
fn settle(server: &Server) {
    while server
        .lifecycle()
        .index()
        .iter()
        .any(|row| row.state == "UNLOADING")
        || !server.lifecycle().table.unloading().is_empty()
    {
        std::thread::yield_now();
    }
}

fn load(server: &Server, name: &str) -> Result<(), Error> {
    server.load_model(name, Overrides::default())
}

#[test]
fn a_copy_lives_as_long_as_what_was_loaded_from_it() {
    let directory = Directory::new();
    directory.model("r", "m", &["1", "2"], "version_policy: { all {} }");
    directory.model("r", "n", &["1"], "");
    let remote = FakeRemote::new(&directory);
    let (host, server) = start(EngineOptions {
        loads_config_once: true,
        ..remote_options(&directory, &remote, ControlMode::Explicit)
    });
    assert!(remote.taken_downloads().is_empty() && remote.copies().is_empty());
    load(&server, "m").unwrap();
    assert_eq!(remote.taken_downloads(), ["m"]);
    assert_eq!(remote.copies(), ["m"]);
    let paths = host.paths.lock().unwrap().clone();
    assert!(
        paths
            .iter()
            .all(|path| path.starts_with(&remote.mount) && path.ends_with("m")),
        "{paths:?}"
    );
    // Nothing new there.
    load(&server, "m").unwrap();
    let config = r#"{"backend": "fake", "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}"#;
    let overrides = Overrides {
        config: Some(config.to_owned()),
        files: Vec::new(),
    };
    server.load_model("m", overrides).unwrap();
    load(&server, "m").unwrap();
    settle(&server);
    assert!(remote.taken_downloads().is_empty());
    assert_eq!(remote.copies(), ["m"]);
    // A version of which nothing changed stays, and so does its copy.
    directory.file("r/m/2/weights", "new");
    load(&server, "m").unwrap();
    settle(&server);
    assert_eq!(remote.taken_downloads(), ["m"]);
    assert_eq!(remote.copies(), ["m", "m"]);
    server.unload_model("m", false).unwrap();
    settle(&server);
    assert!(remote.copies().is_empty());
    // All go with the server.
    load(&server, "n").unwrap();
    server.stop().unwrap();
    assert!(remote.copies().is_empty());
}

#[test]
fn polls_download_what_changed() {
    let directory = Directory::new();
    for name in ["a", "b", "c"] {
        directory.model("r", name, &["1"], "");
    }
    directory.model("r", "bad", &["1"], &fault("load"));
    let remote = FakeRemote::new(&directory);
    let (_host, server) = start(remote_options(&directory, &remote, ControlMode::Poll));
    assert_eq!(remote.taken_downloads(), ["a", "b", "bad", "c"]);
    // What failed is tried again with what is here.
    server.poll_repositories().unwrap();
    server.poll_repositories().unwrap();
    assert!(remote.taken_downloads().is_empty());
    assert_eq!(remote.copies(), ["a", "b", "bad", "c"]);
    directory.file("r/a/1/weights", "new");
    directory.model("r", "d", &["1"], "");
    fs::remove_dir_all(directory.path("r/b")).unwrap();
    fs::remove_dir_all(directory.path("r/bad")).unwrap();
    server.poll_repositories().unwrap();
    settle(&server);
    assert_eq!(remote.taken_downloads(), ["a", "d"]);
    assert_eq!(remote.copies(), ["a", "c", "d"]);
    assert!(is_ready(&server, "d") && !is_ready(&server, "b"));
    // Nobody answers: everything stays.
    remote.state.lock().unwrap().is_unreachable = true;
    server.poll_repositories().unwrap();
    assert!(["a", "c", "d"].iter().all(|name| is_ready(&server, name)));
    assert!(server.lifecycle().index().is_empty());
    remote.state.lock().unwrap().is_unreachable = false;
    // A configuration that is no good is read once.
    directory.file("r/c/config.pbtxt", "nonsense");
    for expected in [&["c"][..], &[]] {
        server.poll_repositories().unwrap();
        assert_eq!(remote.taken_downloads(), expected);
        assert!(is_ready(&server, "c"));
    }
    server.stop().unwrap();
    assert!(remote.copies().is_empty());
}

#[test]
fn half_a_model_is_none() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    directory.model("r", "n", &["1"], "");
    let remote = FakeRemote::new(&directory);
    let (host, server) = start(remote_options(&directory, &remote, ControlMode::Explicit));
    remote.state.lock().unwrap().broken = "m".to_owned();
    let error = load(&server, "m").unwrap_err();
    assert_eq!(
        error.message,
        "failed to load 'm', failed to poll from model repository"
    );
    assert_eq!(host.events.count("load"), 0);
    assert!(remote.copies().is_empty());
    assert_eq!(
        server.lifecycle().index(),
        [row("m", None, "", ""), row("n", None, "", "")]
    );
    // One that serves goes on.
    load(&server, "n").unwrap();
    directory.file("r/n/1/weights", "new");
    remote.state.lock().unwrap().broken = "n".to_owned();
    load(&server, "n").unwrap_err();
    assert!(is_ready(&server, "n"));
    assert_eq!(remote.copies(), ["n"]);
    remote.state.lock().unwrap().broken.clear();
    load(&server, "m").unwrap();
    assert!(is_ready(&server, "m"));
    // A load that fails keeps nothing where nobody polls.
    directory.model("r", "bad", &["1"], &fault("load"));
    load(&server, "bad").unwrap_err();
    assert_eq!(remote.copies(), ["m", "n"]);
}

#[test]
fn several_come_at_once_and_show() {
    let directory = Directory::new();
    directory.model("r", "a", &["1"], "");
    directory.model("r", "b", &["1"], "");
    let remote = FakeRemote::new(&directory);
    let (_host, server) = start(EngineOptions {
        model_load_thread_count: 2,
        ..remote_options(&directory, &remote, ControlMode::Poll)
    });
    for name in ["a", "b"] {
        directory.file(&format!("r/{name}/config.pbtxt"), &{
            let path = directory.path(&format!("r/{name}/config.pbtxt"));
            fs::read_to_string(path).unwrap() + "\n"
        });
    }
    directory.model("r", "c", &["1"], "");
    let barrier = std::sync::Barrier::new(2);
    let seen: Arc<Mutex<BTreeMap<String, (String, String)>>> = Arc::default();
    let is_ready_then = Arc::new(Mutex::new(true));
    let meanwhile = {
        let (server, seen) = (Arc::clone(&server), Arc::clone(&seen));
        let is_ready_then = Arc::clone(&is_ready_then);
        let barrier = Arc::new(barrier);
        let rounds = std::sync::atomic::AtomicUsize::new(0);
        move || {
            // The first two wait for each other; the third has nobody to wait for.
            if rounds.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 {
                barrier.wait();
            }
            for row in server.lifecycle().index() {
                if row.reason.contains("downloading") {
                    let state = row.state.to_owned();
                    seen.lock().unwrap().insert(row.name, (state, row.reason));
                }
            }
            *is_ready_then.lock().unwrap() &= server.lifecycle().is_all_ready();
        }
    };
    remote.state.lock().unwrap().meanwhile = Some(Arc::new(meanwhile));
    server.poll_repositories().unwrap();
    remote.state.lock().unwrap().meanwhile = None;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3, "{seen:?}");
    for (name, state, head) in [
        ("a", "READY", "successor is downloading: 1 of 2 files, "),
        ("b", "READY", "successor is downloading: 1 of 2 files, "),
        ("c", "LOADING", "downloading: 1 of 2 files, "),
    ] {
        let (got, reason) = &seen[name];
        assert_eq!(got, state, "{name}");
        assert!(reason.starts_with(head), "{name}: {reason}");
    }
    assert!(!*is_ready_then.lock().unwrap(), "the new one is on its way");
    assert!(server.lifecycle().is_all_ready());
    assert!(
        server
            .lifecycle()
            .index()
            .iter()
            .all(|row| row.reason.is_empty())
    );
}

#[test]
fn repositories_are_registered_by_uri() {
    let directory = Directory::new();
    directory.model("r", "m", &["1"], "");
    directory.model("other", "dir", &["1"], "");
    let remote = FakeRemote::new(&directory);
    let (_host, server) = start(remote_options(&directory, &remote, ControlMode::Explicit));
    let mapping = || vec![("dir".to_owned(), "named".to_owned())];
    let error = server
        .register_repository("s3://bucket/nowhere", mapping())
        .unwrap_err();
    assert_eq!(
        error.message,
        "failed to register 's3://bucket/nowhere', repository not found"
    );
    server
        .register_repository("s3://bucket/other", mapping())
        .unwrap();
    load(&server, "named").unwrap();
    assert_eq!(remote.copies(), ["named"]);
    server.unregister_repository("s3://bucket/other").unwrap();
    load(&server, "named").unwrap_err();
    assert!(is_ready(&server, "named"));
}

#[test]
fn each_is_loaded_when_it_is_here_unless_an_ensemble_uses_it() {
    let directory = Directory::new();
    directory.model("r", "c", &["1"], "");
    directory.folder("r/e/1");
    directory.file(
        "r/e/config.pbtxt",
        "platform: 'ensemble' max_batch_size: 8
         input \
         { name: 'IN' data_type: TYPE_INT32 dims: 1 } output \
         { name: 'OUT' data_type: TYPE_INT32 dims: 1 }
         ensemble_scheduling \
         { step { model_name: 'c' model_version: -1
           input_map { key: 'IN' value: 'IN' } output_map { key: 'OUT' value: 'OUT' } } }",
    );
    let remote = FakeRemote::new(&directory);
    let (host, server) = start(EngineOptions {
        model_load_thread_count: 1,
        ..remote_options(&directory, &remote, ControlMode::Poll)
    });
    assert!(is_ready(&server, "e"));
    for name in ["a", "b", "d"] {
        directory.model("r", name, &["1"], "");
    }
    directory.file("r/c/1/weights", "new");
    // As each of them arrives, one after the other: what is ready, and how often `c` was loaded.
    let seen: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
    let meanwhile = {
        let (server, host) = (Arc::clone(&server), Arc::clone(&host));
        let seen = Arc::clone(&seen);
        move || {
            let ready = ["a", "b", "d"].map(|name| if is_ready(&server, name) { name } else { "" });
            let loaded = (ready.concat(), host.events.count("load c"));
            seen.lock().unwrap().push(loaded);
        }
    };
    remote.state.lock().unwrap().meanwhile = Some(Arc::new(meanwhile));
    server.poll_repositories().unwrap();
    remote.state.lock().unwrap().meanwhile = None;
    let mut seen = seen.lock().unwrap().clone();
    seen.dedup();
    let seen: Vec<(&str, usize)> = seen
        .iter()
        .map(|(ready, count)| (&**ready, *count))
        .collect();
    assert_eq!(seen, [("", 1), ("a", 1), ("ab", 1)]);
    assert!(is_ready(&server, "d") && is_ready(&server, "e"));
    assert_eq!(host.events.count("load c"), 2);
}
