//! TensorRT's libraries, and the shim for each.

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{Binding, Library as OpenLibrary, LibraryPlace, c_path};
use sdk::{BackendContext, Error, ModelConfig};

use super::log::{Log, take_message};
use super::shim::{RawLibrary, Shim};

/// Where libraries are looked for, by their names.
const PLACES: [LibraryPlace; 3] = [
    place("libnvinfer.so"),
    place("libnvinfer_lean.so"),
    place("libtensorrt_rtx.so"),
];

const fn place(stem: &'static str) -> LibraryPlace {
    LibraryPlace {
        backend: "tensorrt",
        product: "TensorRT",
        variable: "CONCH_TENSORRT_LIBRARY",
        settings: &["library"],
        stem,
        package: None,
    }
}

/// Names under which the loader may know a library that nobody named: of an installed TensorRT.
const INSTALLED: [&str; 3] = ["libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8"];

/// What the backend's settings say about libraries.
#[derive(Debug)]
pub struct Places {
    library: Option<PathBuf>,
    shim: Option<PathBuf>,
    /// That of the backend.
    directory: PathBuf,
}

impl Places {
    pub fn of(context: &BackendContext) -> Self {
        let shim = context.config().setting("shim").map(PathBuf::from);
        let found: Vec<_> = PLACES
            .iter()
            .filter_map(|place| place.for_backend(context))
            .collect();
        Places {
            library: best(found),
            shim: shim
                .or_else(|| std::env::var_os("CONCH_TENSORRT_SHIM").map(PathBuf::from))
                .filter(|path| !path.as_os_str().is_empty()),
            directory: context.directory().to_owned(),
        }
    }

    /// The library for a model.
    ///
    /// # Errors
    /// `Unavailable` if there is none.
    pub fn library(&self, config: &ModelConfig) -> Result<PathBuf, Error> {
        let named = PLACES
            .iter()
            .filter_map(|place| place.named_by_model(config));
        if let Some(path) = best(named.collect()).or_else(|| self.library.clone()) {
            return Ok(path);
        }
        let mut installed = INSTALLED.iter().map(Path::new);
        // SAFETY: TensorRT's libraries are meant to be opened by their names.
        let known = |name: &&Path| unsafe { OpenLibrary::open(name, Binding::Lazy) }.is_ok();
        let found = installed.find(known).map(Path::to_owned);
        found.ok_or_else(|| PLACES[0].missing())
    }

    /// The shim for a library: named, beside the library, or beside the backend.
    fn shim(&self, library: &Path, version: Version) -> Result<PathBuf, Error> {
        let name = version.shim_name();
        if let Some(path) = &self.shim {
            return Ok(match path.is_dir() {
                true => path.join(name),
                false => path.clone(),
            });
        }
        let mut folders = [library.parent(), Some(self.directory.as_path())]
            .into_iter()
            .flatten();
        let found = folders.find_map(|folder| {
            let path = folder.join(&name);
            path.is_file().then_some(path)
        });
        found.ok_or_else(|| {
            let library = library.display();
            Error::unavailable(format!(
                "no shim {name} was found for {version} ({library}): run \
                 scripts/build-tensorrt-shim <folder of its headers>, and name the file that it \
                 prints in --backend-config=tensorrt,shim=<path> or CONCH_TENSORRT_SHIM"
            ))
        })
    }
}

/// The first that is a file; a folder that was named stands for the library in it.
fn best(found: Vec<PathBuf>) -> Option<PathBuf> {
    let file = found.iter().find(|path| path.is_file()).cloned();
    file.or_else(|| found.into_iter().next())
}

/// A version of TensorRT, as its library packs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    major: i32,
    minor: i32,
    patch: i32,
    is_rtx: bool,
}

impl Version {
    /// 8503 is 8.5.3, 110400 is 11.4.0, and 10701, between them, is 1.7.1 of TensorRT for RTX.
    fn unpack(packed: i32) -> Self {
        let (major, minor) = match packed < 10_000 {
            true => (packed / 1000, packed / 100 % 10),
            false => (packed / 10_000, packed / 100 % 100),
        };
        Version {
            major,
            minor,
            patch: packed % 100,
            is_rtx: (10_000..100_000).contains(&packed),
        }
    }

    fn shim_name(self) -> String {
        let kind = if self.is_rtx { "rtx_" } else { "" };
        format!("libconch_tensorrt_{kind}{}.so", self.major)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = match self.is_rtx {
            true => "TensorRT for RTX",
            false => "TensorRT",
        };
        let Version {
            major,
            minor,
            patch,
            ..
        } = self;
        write!(formatter, "{product} {major}.{minor}.{patch}")
    }
}

sdk::functions! {
    struct VersionFunctions;

    unsafe extern "C" {
        getInferLibVersion as version() -> i32;
    }
}

/// TensorRT's library, opened for good.
pub struct Library {
    pub(super) shim: Shim,
    pub(super) raw: NonNull<RawLibrary>,
    version: Version,
    path: PathBuf,
}

// SAFETY: TensorRT's library may be used by any thread; the handle is only read.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the library at a path, and the shim for it.
    ///
    /// # Errors
    /// `Unavailable` if one of them is missing, or cannot be opened.
    pub fn open(places: &Places, path: &Path) -> Result<Arc<Self>, Error> {
        let [place, ..] = &PLACES;
        // SAFETY: whoever named the library means it to be run in this process.
        let library = unsafe { OpenLibrary::open_engine(place, path) }?;
        // SAFETY: if it has the function, it is TensorRT's, of this type, and stays open.
        let functions = unsafe { VersionFunctions::read(library) };
        let functions = functions.map_err(|symbol| {
            place.unusable(path, format_args!("is not TensorRT's: it has no {symbol}"))
        })?;
        // SAFETY: takes nothing.
        let version = Version::unpack(unsafe { (functions.version)() });
        let shim = Shim::open(&places.shim(path, version)?)?;
        let mut raw = ptr::null_mut();
        let name = c_path(path)?;
        // SAFETY: the path is NUL-terminated, the result writable.
        let failure = unsafe { (shim.open_library)(name.as_ptr(), &raw mut raw) };
        // SAFETY: a failure of the shim's.
        unsafe { shim.check(failure) }.map_err(|why| place.unusable(path, why))?;
        let raw = NonNull::new(raw).ok_or_else(|| place.unusable(path, "opened as nothing"))?;
        let library = Library {
            shim,
            raw,
            version,
            path: path.to_owned(),
        };
        library.register_own_plugins();
        Ok(Arc::new(library))
    }

    /// Which version it is, and where from.
    pub fn describe(&self) -> String {
        format!(
            "{} ({}), through a shim for {}",
            self.version,
            self.path.display(),
            self.shim.version()
        )
    }

    /// Plug-ins that come with TensorRT, in a library beside it, if that is there.
    fn register_own_plugins(&self) {
        let name = format!("libnvinfer_plugin.so.{}", self.version.major);
        let Some(folder) = self.path.parent() else {
            return;
        };
        let path = match folder.as_os_str().is_empty() {
            true => PathBuf::from(name),
            false => folder.join(name),
        };
        if !path.has_root() || path.is_file() {
            sdk::verbose!("Registering TensorRT Plugins");
            if let Err(error) = self.register_plugins_of(&path)
                && path.has_root()
            {
                sdk::error!("Failed to register TensorRT Plugins: {error}");
            }
        }
    }

    fn register_plugins_of(&self, path: &Path) -> Result<(), String> {
        let name = c_path(path).map_err(|error| error.to_string())?;
        // The registry keeps the log, as long as the process lasts.
        let log: &'static Arc<Log> = Box::leak(Box::default());
        let owner: *mut c_void = log.owner();
        // SAFETY: the path is NUL-terminated, and the log outlives everything.
        let failure = unsafe { (self.shim.register_plugins)(name.as_ptr(), take_message, owner) };
        // SAFETY: a failure of the shim's.
        unsafe { self.shim.check(failure) }
    }
}

/// Opens libraries of plug-ins, which register themselves; one that cannot be opened is told and
/// left out, as upstream does.
pub fn register_plugins(paths: &[PathBuf]) {
    for path in paths {
        // SAFETY: whoever named it in the backend's settings means it to be run in this process.
        match unsafe { OpenLibrary::open(path, Binding::Lazy) } {
            Ok(library) => {
                library.keep_open();
                sdk::info!("loaded TensorRT plug-ins of {}", path.display());
            }
            Err(why) => sdk::error!("unable to load plugin library {}: {why}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_unpacked() {
        for (packed, text, shim) in [
            (8503, "TensorRT 8.5.3", "libconch_tensorrt_8.so"),
            (8601, "TensorRT 8.6.1", "libconch_tensorrt_8.so"),
            (101_303, "TensorRT 10.13.3", "libconch_tensorrt_10.so"),
            (110_400, "TensorRT 11.4.0", "libconch_tensorrt_11.so"),
            (
                10_701,
                "TensorRT for RTX 1.7.1",
                "libconch_tensorrt_rtx_1.so",
            ),
        ] {
            let version = Version::unpack(packed);
            assert_eq!(version.to_string(), text);
            assert_eq!(version.shim_name(), shim);
        }
    }

    #[test]
    fn a_file_is_better_than_a_folder() {
        let here = std::env::current_exe().unwrap();
        let folder = here.parent().unwrap().to_owned();
        assert_eq!(best(vec![folder.clone(), here.clone()]), Some(here));
        assert_eq!(best(vec![folder.clone()]), Some(folder));
        assert_eq!(best(Vec::new()), None);
    }
}
