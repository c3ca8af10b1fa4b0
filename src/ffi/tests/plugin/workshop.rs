//! The compiled plug-in, the stub that it is linked against, and the backends made of them.

#![allow(clippy::unwrap_used, reason = "part of the tests")]

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// The directory that holds the compiled plug-in, the stub, and the backends made of them. Made
/// once per run of the tests.
pub fn workshop() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("plugin");
        // What an earlier run left. Cargo runs the tests of one target directory one run after the
        // other.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("backends")).unwrap();
        let stub: String = conch_abi::export_names()
            .map(|name| format!("void {name}(void) {{}}\n"))
            .collect();
        std::fs::write(directory.join("stub.c"), stub).unwrap();
        compile(
            &directory,
            "cc",
            &[
                "-Wl,-soname,libtritonserver.so",
                "stub.c",
                "-o",
                "libtritonserver.so",
            ],
        );
        let exports: String = conch_abi::export_names()
            .map(|name| format!("EXPORT({name})\n"))
            .collect();
        std::fs::write(directory.join("exports.inc"), exports).unwrap();
        let plugin = [
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../abi/include"),
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests"),
            "-pthread",
            "-I.",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin.cc"),
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin/nulls.cc"),
            "-o",
            "plugin.so",
            "-L.",
            "-Wl,--no-as-needed",
            "-ltritonserver",
        ];
        compile(&directory, "c++", &plugin);
        directory
    })
}

pub fn compile(directory: &Path, compiler: &str, arguments: &[&str]) {
    run(Command::new(compiler)
        .args(["-shared", "-fPIC", "-O0", "-g"])
        .args(arguments)
        .current_dir(directory));
}

/// The backend in Rust without the SDK, compiled.
pub fn panics() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = workshop().join("panics.so");
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        run(Command::new(compiler)
            .args(["--edition=2024", "--crate-type=cdylib", "-L."])
            .args(["-Clink-args=-Wl,--no-as-needed -ltritonserver", "-o"])
            .arg(&library)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/plugin/panics.rs"
            ))
            .current_dir(workshop()));
        library
    })
}

/// The C++ example of the documentation, compiled as its Makefile says.
pub fn words() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = workshop().join("words");
        let example = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/examples/cpp_backend"
        );
        run(Command::new("make")
            .args(["-s", "-C", example])
            .arg(format!("OUT={}", text(&directory))));
        directory.join("libtriton_words.so")
    })
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Puts a file into the place of a backend's library.
pub fn install(backend: &str, file: &Path) -> PathBuf {
    let directory = workshop().join("backends").join(backend);
    let library = directory.join(format!("libtriton_{backend}.so"));
    if !library.exists() {
        std::fs::create_dir_all(&directory).unwrap();
        // Complete before it has its name: tests run at the same time.
        let making = directory.join(format!("making-{:?}", std::thread::current().id()));
        std::fs::copy(file, &making).unwrap();
        std::fs::rename(&making, &library).unwrap();
    }
    library
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Everything that the server logged since the first call.
pub fn log() -> String {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = workshop().join("log");
        conch_log::set_file(&text(&file)).unwrap();
        file
    });
    assert!(conch_log::flush(std::time::Duration::from_secs(60)));
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Whether a file is part of this process.
pub fn is_mapped(file: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .contains(file)
}

/// The plug-in's notes.
pub struct Journal {
    library: Library,
}

impl Journal {
    /// Of a library that is open.
    pub fn of(library: &Path) -> Journal {
        // SAFETY: the library is loaded already, so nothing runs.
        let library = unsafe { Library::open(Some(library), RTLD_LAZY | RTLD_LOCAL) };
        Journal {
            library: library.unwrap(),
        }
    }

    pub fn take(&self) -> String {
        // SAFETY: the function has this type in plugin.cc, and its result stays until the next
        // call.
        unsafe {
            let take = self
                .library
                .get::<unsafe extern "C" fn() -> *const c_char>("plugin_journal")
                .unwrap();
            CStr::from_ptr(take()).to_str().unwrap().to_owned()
        }
    }

    pub fn finalize_time(&self) -> u64 {
        // SAFETY: the function has this type in plugin.cc.
        unsafe {
            self.library
                .get::<unsafe extern "C" fn() -> u64>("plugin_finalize_time")
                .unwrap()()
        }
    }
}
