//! A cache plug-in that errs in every way that the C API lets it, driven through the host.
//!
//! It is compiled here (`cache/cache.cc`) and finds the C API in this test's own executable, by the
//! same linker arguments as in the server.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use conch_config::DataType;
use conch_engine::cache::{CacheKey, ResponseCache};
use conch_engine::{BackendHost, Code, Error, Output, Response, ResponseParts, Shape};
use conch_ffi::host::{BackendLibraries, HostOptions};
use conch_memory::{Budget, ByteView};
use libloading::os::unix::Library;

/// A cache directory with the plug-in under a name of its own, so that tests at a time have
/// journals of their own.
fn directory_with(name: &str, definitions: &[&str]) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache");
    std::fs::create_dir_all(directory.join(name)).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cache/cache.cc");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include");
    let compiled = Command::new("c++")
        .args(["-shared", "-fPIC", "-std=c++17", "-O1", "-Wall", "-Wextra"])
        .arg("-Werror")
        .args(definitions)
        .args(["-I", headers, source, "-o"])
        .arg(library_of(&directory, name))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    directory
}

fn library_of(directory: &Path, name: &str) -> PathBuf {
    directory
        .join(name)
        .join(format!("libtritoncache_{name}.so"))
}

struct Bench {
    host: Arc<BackendLibraries>,
    budget: Arc<Budget>,
    cache: Arc<dyn ResponseCache>,
}

fn open(directory: &Path, name: &str, act: &str) -> Result<Bench, Error> {
    let host = BackendLibraries::new(HostOptions {
        cache_directory: directory.to_owned(),
        cache_config: vec![(name.to_owned(), act.to_owned())],
        ..HostOptions::default()
    });
    let budget = Budget::new(1 << 20);
    let cache = host.open_cache(&budget)?.expect("one was asked for");
    Ok(Bench {
        host,
        budget,
        cache,
    })
}

/// The plug-in's notes since the last look.
fn journal(directory: &Path, name: &str) -> String {
    // SAFETY: the library has no constructors; the function has this type in cache.cc, and its
    // result stays until the next call.
    unsafe {
        let library = Library::new(library_of(directory, name)).unwrap();
        let journal = library
            .get::<unsafe extern "C" fn() -> *const c_char>("cache_journal")
            .unwrap();
        CStr::from_ptr(journal()).to_str().unwrap().to_owned()
    }
}

fn response(byte: u8, size: usize) -> Response {
    let mut message = conch_config::parse_text("test", "name: 'm' backend: 'b'").unwrap();
    conch_config::normalize(&mut message);
    let config = conch_config::ResolvedConfig::from_partial(message).unwrap();
    let output = Output {
        name: "x".into(),
        data_type: DataType::Uint8,
        shape: Shape::from_slice(&[i64::try_from(size).unwrap()]),
        data: ByteView::copy_of(&vec![byte; size]),
    };
    Response::from(ResponseParts {
        model: conch_engine::testing::version("m", 1, &Arc::new(config)),
        outputs: vec![output].into(),
        parameters: Vec::new(),
    })
}

const KEY: CacheKey = CacheKey(0xabc);

fn outcome<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_fault_is_an_error_of_its_call() {
    let directory = directory_with("faults", &[]);
    const THROWN: &str = "Internal: the plug-in threw an exception";
    // Act, insertion, lookup.
    let cases: &[(&str, &str, &str)] = &[
        ("good", "ok", "ok"),
        ("overwrite", "ok", "ok"),
        ("fail_insert", "Invalid argument: insert failed", "ok"),
        ("throw_insert", &format!("{THROWN}: insert threw"), "ok"),
        ("throw_number_insert", THROWN, "ok"),
        ("fail_lookup", "ok", "Invalid argument: lookup failed"),
        ("throw_lookup", "ok", &format!("{THROWN}: lookup threw")),
        ("throw_number_lookup", "ok", THROWN),
        (
            "no_copy",
            "ok",
            "Internal: the cache has the key and copied nothing",
        ),
        (
            "no_buffer",
            "ok",
            "Internal: Expected number of responses in cache does not match. Expected: 1, \
             received: 0",
        ),
        (
            "two_buffers",
            "ok",
            "Internal: Expected number of responses in cache does not match. Expected: 1, \
             received: 2",
        ),
        (
            "gpu",
            "ok",
            "Invalid argument: Only buffers in CPU memory are allowed in cache currently",
        ),
        ("change", "ok", "Internal: the cached response was changed"),
        (
            "cut",
            "ok",
            "Internal: the cached response has 227 bytes, expected 228",
        ),
        (
            "short_insert",
            "Internal: Serialized buffer size does not match. Expected: 228, received: 227",
            "ok",
        ),
        ("unset_insert", "Internal: buffer was nullptr", "ok"),
    ];
    for (act, inserted, found) in cases {
        let bench = open(&directory, "faults", act).unwrap();
        assert!(!bench.cache.is_instant());
        assert!(bench.cache.try_lookup(KEY).is_none());
        assert_eq!(
            outcome(bench.cache.insert(KEY, &response(7, 100))),
            *inserted,
            "{act}"
        );
        let lookup = bench.cache.lookup(KEY);
        if let Ok(kept) = &lookup {
            assert_eq!(kept.is_some(), *inserted == "ok", "{act}");
        }
        assert_eq!(outcome(lookup), *found, "{act}");
        drop(bench.host);
    }
}

#[test]
fn a_hit_is_a_copy_charged_to_the_budget() {
    let directory = directory_with("copies", &[]);
    let bench = open(&directory, "copies", "overwrite").unwrap();
    bench.cache.insert(KEY, &response(7, 200_000)).unwrap();
    assert_eq!(bench.budget.used_bytes(), 0);
    assert!(bench.cache.lookup(CacheKey(1)).unwrap().is_none());
    let kept = bench.cache.lookup(KEY).unwrap().unwrap();
    assert_eq!(
        kept.outputs[0].data.as_ref(),
        [7; 200_000],
        "though the plug-in wrote there since"
    );
    assert!(bench.budget.used_bytes() >= 200_000);
    drop(kept);
    assert_eq!(bench.budget.used_bytes(), 0);
    let error = bench.cache.insert(KEY, &response(7, 1)).unwrap_err();
    assert_eq!(error.code, Code::AlreadyExists);
    // More than the budget has.
    bench
        .cache
        .insert(CacheKey(2), &response(8, 2 << 20))
        .unwrap();
    let error = bench.cache.lookup(CacheKey(2)).unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

#[test]
fn a_plug_in_that_mixes_keys_up_is_found_out() {
    let directory = directory_with("mixes", &[]);
    let bench = open(&directory, "mixes", "mix_up").unwrap();
    bench.cache.insert(KEY, &response(7, 10)).unwrap();
    assert!(bench.cache.lookup(KEY).unwrap().is_some());
    assert_eq!(
        outcome(bench.cache.lookup(CacheKey(5))),
        "Internal: the cached response has another key"
    );
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = directory_with("nulls", &[]);
    let bench = open(&directory, "nulls", "nulls").unwrap();
    assert_eq!(journal(&directory, "nulls"), "version 0.1\n");
    assert!(bench.cache.lookup(KEY).unwrap().is_none());
    let expected = [
        "entry was nullptr",
        "output argument was nullptr",
        "entry, base, or attrs was nullptr",
        "entry, base, or attrs was nullptr",
        "entry, base, or attrs was nullptr",
        "Buffer byte size was zero",
        "Only buffers in CPU memory are allowed in cache currently",
        "index was greater than count",
        "entry, base, or attrs was nullptr",
        "entry, base, or attrs was nullptr",
        "entry was nullptr",
        "index was greater than count",
        "Only buffers in CPU memory are allowed in cache currently",
        "allocator or entry was nullptr",
        "allocator or entry was nullptr",
        "allocator is not a live handle of its kind",
    ];
    let told = journal(&directory, "nulls");
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_cache_that_cannot_be_made_leaves_nothing() {
    let directory = directory_with("starts", &[]);
    for (act, expected) in [
        ("fail_initialize", "Invalid argument: initialize failed"),
        (
            "throw_initialize",
            "Internal: the plug-in threw an exception: initialize threw",
        ),
        (
            "null_initialize",
            "Internal: Failed to initialize cache implementation",
        ),
    ] {
        let error = open(&directory, "starts", act).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(journal(&directory, "starts"), "");
    directory_with("lacks", &["-DWITHOUT_INITIALIZE"]);
    let error = open(&directory, "lacks", "good").err().unwrap();
    assert_eq!(error.code, Code::NotFound);
    let expected =
        "unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in shared library: ";
    assert!(error.message.starts_with(expected), "{}", error.message);
}

#[test]
fn finalize_comes_once_and_last() {
    let directory = directory_with("ends", &[]);
    for act in ["good", "fail_finalize", "throw_finalize"] {
        let bench = open(&directory, "ends", act).unwrap();
        bench.cache.insert(KEY, &response(7, 10)).unwrap();
        bench.host.finalize_all();
        assert_eq!(
            journal(&directory, "ends"),
            "version 0.1\nfinalized\n",
            "{act}"
        );
        assert_eq!(
            outcome(bench.cache.lookup(KEY)),
            "Unavailable: the cache is finalized"
        );
        drop(bench);
        assert_eq!(journal(&directory, "ends"), "", "{act}");
    }
}

#[test]
fn many_threads_call_at_a_time() {
    let directory = directory_with("many", &[]);
    let bench = open(&directory, "many", "good").unwrap();
    let call = |number: u8| {
        let key = CacheKey(u128::from(number));
        match bench.cache.lookup(key).unwrap() {
            Some(kept) => assert_eq!(kept.outputs[0].data.as_ref(), [number; 64]),
            None => match bench.cache.insert(key, &response(number, 64)) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.code, Code::AlreadyExists),
            },
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(call));
        }
    });
}
