//! The model repositories of a server, and which directory is which model.
//!
//! Every sub-directory of a repository is a model, under its own name or under the one that the
//! registration mapped it to. Reads directories, and asks for those that are remote; control
//! threads only, on a copy wherever that may take long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conch_engine::model::registry::ModelId;
use conch_engine::{Code, Error, truncated};
use conch_log as log;

use crate::repository::model_directory::sub_directories;
use crate::repository::remote::{self, NoRemote, RemoteRepositories};

/// The repositories' contents: the directories that carry each model, in the order of the
/// repositories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RepositoryScan {
    pub models: BTreeMap<ModelId, Vec<PathBuf>>,
    /// Repositories that could not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Where models are looked for.
#[derive(Clone, Debug)]
pub(crate) struct Repositories {
    /// In lexical order, each once.
    paths: BTreeSet<PathBuf>,
    /// Model name to repository and directory.
    mappings: BTreeMap<String, (PathBuf, PathBuf)>,
    /// Models of the same name in different repositories are different models.
    is_namespacing: bool,
    remote: Arc<dyn RemoteRepositories>,
}

impl Repositories {
    pub(crate) fn new(paths: &[PathBuf], is_namespacing: bool) -> Repositories {
        Repositories {
            paths: paths.iter().cloned().collect(),
            mappings: BTreeMap::new(),
            is_namespacing,
            remote: Arc::new(NoRemote),
        }
    }

    pub(crate) fn with_remote(mut self, remote: Arc<dyn RemoteRepositories>) -> Repositories {
        self.remote = remote;
        self
    }

    /// Lists the models of all repositories.
    pub(crate) fn scan(&self) -> RepositoryScan {
        let mut scan = RepositoryScan::default();
        let mapped: BTreeMap<&Path, &str> = self
            .mappings
            .iter()
            .map(|(name, (_, directory))| (directory.as_path(), name.as_str()))
            .collect();
        for repository in &self.paths {
            match self.models(repository) {
                Ok(directories) => {
                    for directory in directories {
                        let path = repository.join(&directory);
                        let name = mapped.get(path.as_path()).copied().unwrap_or(&directory);
                        let id = self.id(repository, name);
                        scan.models.entry(id).or_default().push(path);
                    }
                }
                Err(cause) => {
                    log::error!(
                        "failed to poll model repository '{}': {cause}",
                        repository.display()
                    );
                    scan.unreadable.push((repository.clone(), cause));
                }
            }
        }
        scan
    }

    /// The directories of the models called `name`: one, or one per repository under namespacing.
    ///
    /// # Errors
    /// NOT_FOUND if there is none, INVALID_ARG if the name is not unique.
    pub(crate) fn locate(&self, name: &str) -> Result<Vec<(ModelId, PathBuf)>, Error> {
        let not_found = || {
            Error::not_found(format!(
                "failed to poll model '{name}': model not found in any model repository.",
                name = truncated(&name)
            ))
        };
        if let Some((repository, directory)) = self.mappings.get(name) {
            if !self.is_directory(directory)? {
                return Err(not_found());
            }
            return Ok(vec![(self.id(repository, name), directory.clone())]);
        }
        let is_mapped = |path: &Path| self.mappings.values().any(|(_, mapped)| mapped == path);
        let mut found: Vec<(ModelId, PathBuf)> = Vec::new();
        for repository in &self.paths {
            let path = repository.join(name);
            match self.exists(&path) {
                Ok(true) if !is_mapped(&path) => found.push((self.id(repository, name), path)),
                Ok(_) => {}
                Err(error) => log::error!(
                    "failed to poll model repository '{}' for model '{name}': {}",
                    repository.display(),
                    error.message
                ),
            }
        }
        match found.len() {
            0 => Err(not_found()),
            1 => Ok(found),
            _ if self.is_namespacing => Ok(found),
            _ => Err(Error::invalid(format!(
                "failed to poll model '{name}': not unique across all model repositories",
                name = truncated(&name)
            ))),
        }
    }

    /// The repositories that are directories of this machine.
    pub(crate) fn local(&self) -> Vec<PathBuf> {
        let paths = self.paths.iter();
        paths
            .filter(|path| remote::uri(path).is_none())
            .cloned()
            .collect()
    }

    /// Whether the local repositories exist. Reads.
    ///
    /// # Errors
    /// INTERNAL in upstream's words for the first that does not, or is no directory.
    pub(crate) fn check_local(&self) -> Result<(), Error> {
        self.local().iter().try_for_each(|path| check_local(path))
    }

    /// Whether the name was given to a directory by a registration.
    pub(crate) fn is_mapped(&self, name: &str) -> bool {
        self.mappings.contains_key(name)
    }

    /// Whether a repository may be registered. Reads, or asks for what is remote.
    ///
    /// # Errors
    /// INVALID_ARG if it is no directory.
    pub(crate) fn check(&self, path: &str) -> Result<(), Error> {
        if self.is_directory(Path::new(path))? {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "failed to register '{path}', repository not found"
        )))
    }

    /// Adds a repository that was checked, with (directory, model) pairs for those of its models
    /// that go by another name.
    ///
    /// # Errors
    /// ALREADY_EXISTS for a repository or a name that is there.
    pub(crate) fn register(
        &mut self,
        path: &str,
        mappings: Vec<(String, String)>,
    ) -> Result<(), Error> {
        let repository = PathBuf::from(path);
        if self.paths.contains(&repository) {
            return Err(Error::new(
                Code::AlreadyExists,
                format!("model repository '{path}' has already been registered"),
            ));
        }
        let mut added = BTreeMap::new();
        for (directory, name) in mappings {
            let place = (repository.clone(), repository.join(directory));
            let is_taken = self.mappings.contains_key(&name);
            if is_taken || added.insert(name.clone(), place).is_some() {
                return Err(Error::new(
                    Code::AlreadyExists,
                    format!(
                        "failed to register '{name}', there is a conflicting mapping for '{name}'",
                        name = truncated(&name)
                    ),
                ));
            }
        }
        self.paths.insert(repository);
        self.mappings.append(&mut added);
        log::info!("Model repository registered: {path}");
        Ok(())
    }

    /// Removes a repository and its mappings.
    ///
    /// # Errors
    /// INVALID_ARG if there is none such.
    pub(crate) fn unregister(&mut self, path: &str) -> Result<(), Error> {
        let repository = Path::new(path);
        if !self.paths.remove(repository) {
            return Err(Error::invalid(format!(
                "failed to unregister '{path}', repository not found"
            )));
        }
        self.mappings.retain(|_, (owner, _)| owner != repository);
        log::info!("Model repository unregistered: {path}");
        Ok(())
    }

    fn models(&self, repository: &Path) -> Result<Vec<String>, String> {
        let Some(uri) = remote::uri(repository) else {
            return sub_directories(repository);
        };
        let models = self.remote.models(uri).map_err(|error| error.to_string())?;
        if models.is_empty() {
            log::warning!("there is no model in repository '{uri}'");
        }
        Ok(models)
    }

    fn is_directory(&self, path: &Path) -> Result<bool, Error> {
        match remote::uri(path) {
            Some(uri) => self.remote.exists(uri),
            None => Ok(path.is_dir()),
        }
    }

    fn exists(&self, path: &Path) -> Result<bool, Error> {
        match remote::uri(path) {
            Some(uri) => self.remote.exists(uri),
            None => Ok(fs::metadata(path).is_ok()),
        }
    }

    fn id(&self, repository: &Path, name: &str) -> ModelId {
        let namespace = if self.is_namespacing {
            Arc::from(&*repository.to_string_lossy())
        } else {
            Arc::from("")
        };
        ModelId {
            namespace,
            name: Arc::from(name),
        }
    }
}

/// As [`Repositories::check_local`], of one.
///
/// # Errors
/// INTERNAL in upstream's words if it does not exist or is no directory.
pub(crate) fn check_local(repository: &Path) -> Result<(), Error> {
    let shown = repository.display();
    let metadata = fs::metadata(repository).map_err(|cause| {
        Error::internal(format!(
            "failed to stat file {shown} ({cause}); it is given as a model repository"
        ))
    })?;
    if metadata.is_dir() {
        return Ok(());
    }
    Err(Error::internal(format!(
        "failed to open directory {shown}; a model repository is a directory with one directory \
         per model"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conch_engine::testing::Directory;

    fn names(scan: &RepositoryScan) -> Vec<String> {
        scan.models.keys().map(ModelId::to_string).collect()
    }

    fn three_repositories() -> Directory {
        let directory = Directory::new();
        for path in ["a/one/1", "a/both/1", "b/both/1", "c/dir/1", "c/one/1"] {
            directory.folder(path);
        }
        directory
    }

    /// The directories of a name, or the code of the refusal.
    fn locate(directory: &Directory, repositories: &Repositories, name: &str) -> String {
        match repositories.locate(name) {
            Ok(found) => found
                .into_iter()
                .map(|(_, path)| {
                    path.strip_prefix(directory.path(""))
                        .unwrap()
                        .display()
                        .to_string()
                })
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.code.name().to_owned(),
        }
    }

    fn check_located(directory: &Directory, repositories: &Repositories, table: &[(&str, &str)]) {
        for (name, expected) in table {
            assert_eq!(locate(directory, repositories, name), *expected, "{name}");
        }
    }

    #[test]
    fn every_sub_directory_is_a_model_and_nothing_else() {
        let directory = Directory::new();
        for path in [
            "a/m/1",
            "a/model../1",
            "a/...",
            "a/..model",
            "a/.hidden",
            "a/sp ace",
            "a/größe",
            "b/m/1",
            "out/target/1",
        ] {
            directory.folder(path);
        }
        directory.file("a/readme.txt", "");
        std::os::unix::fs::symlink(directory.path("out/target"), directory.path("a/linked"))
            .unwrap();
        std::os::unix::fs::symlink(directory.path("nowhere"), directory.path("a/dangling"))
            .unwrap();
        std::os::unix::fs::symlink(directory.path("a/loop"), directory.path("a/loop")).unwrap();
        let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"bad\xff");
        fs::create_dir(directory.path("a").join(odd)).unwrap();
        let (a, b) = (directory.path("a"), directory.path("b"));
        let scan = Repositories::new(&[b.clone(), a.clone(), a.clone()], false).scan();
        assert_eq!(
            names(&scan),
            [
                "...", "..model", ".hidden", "größe", "linked", "m", "model..", "sp ace"
            ]
        );
        let id = ModelId::plain("m");
        assert_eq!(
            scan.models[&id],
            [a.join("m"), b.join("m")],
            "repositories in lexical order, each once"
        );
        assert!(scan.unreadable.is_empty());
        let missing = directory.path("missing");
        let partial = Repositories::new(&[a.clone(), missing.clone()], false).scan();
        let unreadable: Vec<&PathBuf> = partial.unreadable.iter().map(|(path, _)| path).collect();
        assert_eq!(unreadable, [&missing]);
        assert_eq!(partial.models.len(), 8);
        let apart = Repositories::new(&[a.clone(), b.clone()], true).scan();
        assert_eq!(apart.models.len(), 9);
        assert!(names(&apart).contains(&format!("{}::m", b.display())));
    }

    #[test]
    fn names_lead_to_directories() {
        let directory = three_repositories();
        let pair = [directory.path("a"), directory.path("b")];
        check_located(
            &directory,
            &Repositories::new(&pair, false),
            &[
                ("one", "a/one"),
                ("both", "Invalid argument"),
                ("dir", "Not found"),
                ("none", "Not found"),
            ],
        );
        check_located(
            &directory,
            &Repositories::new(&pair, true),
            &[("both", "a/both b/both"), ("one", "a/one")],
        );
    }

    #[test]
    fn a_registered_repository_maps_names_to_directories() {
        let directory = three_repositories();
        let shown = |name: &str| directory.path(name).display().to_string();
        let mut repositories =
            Repositories::new(&[directory.path("a"), directory.path("b")], false);
        let check = |repositories: &Repositories, table: &[(&str, &str)]| {
            check_located(&directory, repositories, table);
        };
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(directory, name)| ((*directory).to_owned(), (*name).to_owned()))
                .collect::<Vec<_>>()
        };
        let code = |outcome: Result<(), Error>| outcome.map_err(|error| error.code);
        assert_eq!(
            code(repositories.check(&shown("nowhere"))),
            Err(Code::InvalidArg)
        );
        assert_eq!(code(repositories.check(&shown("a"))), Ok(()));
        assert_eq!(
            code(repositories.register(&shown("a"), Vec::new())),
            Err(Code::AlreadyExists)
        );
        let twice = map(&[("dir", "x"), ("one", "x")]);
        assert_eq!(
            code(repositories.register(&shown("c"), twice)),
            Err(Code::AlreadyExists)
        );
        check(&repositories, &[("x", "Not found"), ("dir", "Not found")]);
        let mapped = map(&[("dir", "x"), ("one", "y")]);
        repositories.register(&shown("c"), mapped).unwrap();
        check(
            &repositories,
            &[
                ("x", "c/dir"),
                ("y", "c/one"),
                ("dir", "Not found"),
                ("one", "a/one"),
            ],
        );
        assert_eq!(names(&repositories.scan()), ["both", "one", "x", "y"]);
        repositories.unregister(&shown("c")).unwrap();
        check(&repositories, &[("x", "Not found"), ("one", "a/one")]);
        assert_eq!(
            code(repositories.unregister(&shown("c"))),
            Err(Code::InvalidArg)
        );
    }
}
