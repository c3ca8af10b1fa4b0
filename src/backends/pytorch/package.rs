//! A `.pt2` archive with what AOTInductor compiled: finds the model's library in it, checks that
//! this machine can run it, and opens it.
//!
//! The archive has `<name>/data/aotinductor/<model>/`, and in it the library `*.wrapper.so`, facts
//! about it in `*.wrapper_metadata.json`, and its sources, which are not looked at.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::serde_json::{self, Value};

use crate::archive::{Archive, Entry};
use crate::elf::{drop_need_of_libtorch, rename_variable};
use crate::failure::failed_to_load;
use crate::libtorch::{CHECK_VARIABLE, ModelLibrary, Torch};

/// Folder of compiled models in an archive.
const FOLDER: &str = "data/aotinductor/";

/// The model that is served where an archive has several, and the name that torch gives one.
const MODEL: &str = "model";

/// Whether a library checks its inputs when it runs, which it asks the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputChecks {
    /// As the environment says.
    AsSet,
    Never,
}

/// Opens the library of the compiled model in an archive.
///
/// # Errors
/// `InvalidArgument` if the archive is damaged or has none; `Unsupported` if it is for another
/// machine.
pub fn open(
    torch: &Arc<Torch>,
    model_name: &str,
    path: &Path,
    checks: InputChecks,
) -> Result<Arc<ModelLibrary>, Error> {
    let failed = |error: Error| failed_to_load(model_name, error);
    let library = unpack(path, checks).map_err(failed)?;
    // It has a name only while it is opened.
    let opened = ModelLibrary::open(torch, library.path());
    drop(library);
    opened.map_err(failed)
}

/// The model's library as a file of its own.
fn unpack(path: &Path, checks: InputChecks) -> Result<TemporaryFile, Error> {
    let archive = Archive::open(path)?;
    let (library, beside) = find(archive.entries())?;
    for entry in beside {
        if entry.name.ends_with("_metadata.json") {
            check_machine(&archive.read(entry)?)?;
        } else if is_list_of_calls(&entry.name, &library.name) {
            check_calls(&archive.read(entry)?)?;
        }
    }
    let mut bytes = archive.read(library)?;
    drop_need_of_libtorch(&mut bytes)
        .ok_or_else(|| Error::invalid(format!("'{}' is no shared library", library.name)))?;
    if checks == InputChecks::Never {
        rename_variable(&mut bytes, CHECK_VARIABLE);
    }
    TemporaryFile::new(&bytes)
}

/// The library of the model to serve, and what lies in its folder.
fn find(entries: &[Entry]) -> Result<(&Entry, Vec<&Entry>), Error> {
    let in_folder = |entry: &Entry| -> Option<String> {
        let (_, inside) = entry.name.split_once(FOLDER)?;
        Some(inside.split_once('/')?.0.to_owned())
    };
    let models: BTreeSet<String> = entries.iter().filter_map(in_folder).collect();
    let chosen = match models.first() {
        None => {
            return Err(Error::invalid(
                "it has no code compiled by AOTInductor. Programs saved by torch.export.save are \
                 not compiled: use torch._inductor.aoti_compile_and_package, or serve them with \
                 the python backend",
            ));
        }
        Some(only) if models.len() == 1 => only,
        Some(_) if models.contains(MODEL) => MODEL,
        Some(_) => {
            let names: Vec<_> = models.iter().map(String::as_str).collect();
            return Err(Error::invalid(format!(
                "it has several compiled models, none of them called '{MODEL}': {}",
                names.join(", ")
            )));
        }
    };
    let mut inside: Vec<&Entry> = entries
        .iter()
        .filter(|entry| in_folder(entry).as_deref() == Some(chosen))
        .collect();
    let libraries: Vec<usize> = (0..inside.len())
        .filter(|&at| {
            inside
                .get(at)
                .is_some_and(|entry| entry.name.ends_with(".so"))
        })
        .collect();
    match libraries[..] {
        [at] => {
            let library = inside.swap_remove(at);
            Ok((library, inside))
        }
        _ => Err(Error::invalid(format!(
            "its model '{chosen}' has {} libraries, and one is expected",
            libraries.len()
        ))),
    }
}

/// Checks that the model was compiled for CPUs such as this one's. Code for others would end the
/// process at the first instruction that this one lacks.
fn check_machine(metadata: &[u8]) -> Result<(), Error> {
    let facts: Value = serde_json::from_slice(metadata)
        .map_err(|error| Error::invalid(format!("its metadata cannot be read: {error}")))?;
    let fact = |key: &str| facts.get(key).and_then(Value::as_str).unwrap_or_default();
    let device = fact("AOTI_DEVICE_KEY");
    if !["", "cpu"].contains(&device) {
        return Err(Error::unsupported(format!(
            "it was compiled for device '{device}', and the pytorch backend runs on CPUs only"
        )));
    }
    let machine = fact("AOTI_MACHINE");
    if !["", std::env::consts::ARCH].contains(&machine) {
        return Err(Error::unsupported(format!(
            "it was compiled for machine '{machine}', and this is {}",
            std::env::consts::ARCH
        )));
    }
    let sets = fact("AOTI_CPU_ISA").split_whitespace();
    match sets.into_iter().find(|set| !cpu_has(set)) {
        None => Ok(()),
        Some(set) => Err(Error::unsupported(format!(
            "it was compiled for CPUs with {set}, which this one has not; compile it here, or with \
             TORCHINDUCTOR settings for this CPU"
        ))),
    }
}

/// Whether this CPU has an instruction set, by Inductor's name of it. Those that cannot be asked
/// for are taken to be there.
#[cfg(target_arch = "x86_64")]
fn cpu_has(set: &str) -> bool {
    match set.to_ascii_uppercase().as_str() {
        "AVX2" => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        "AVX512" => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
        }
        "AVX512_VNNI" => is_x86_feature_detected!("avx512vnni"),
        _ => true,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_has(_set: &str) -> bool {
    true
}

/// Whether an entry lists the operators that a library calls through torch's proxy.
fn is_list_of_calls(name: &str, library: &str) -> bool {
    name.strip_suffix(".json") == library.strip_suffix(".so")
}

/// Refuses models that call operators through torch's proxy, which has no C interface: they would
/// call at address 0.
fn check_calls(list: &[u8]) -> Result<(), Error> {
    let list: Value = serde_json::from_slice(list).map_err(|error| {
        Error::invalid(format!("its list of operators cannot be read: {error}"))
    })?;
    let nodes = list.get("nodes").and_then(Value::as_array);
    let Some(first) = nodes.and_then(|nodes| nodes.first()) else {
        return Ok(());
    };
    let target = first.pointer("/node/target").and_then(Value::as_str);
    Err(Error::unsupported(format!(
        "it calls operators that AOTInductor has no C interface for ({}); serve it as TorchScript, \
         or with the python backend",
        target.unwrap_or("unnamed")
    )))
}

/// A file that is there while this is.
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    fn new(bytes: &[u8]) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = format!(
            "conch-pytorch-{}-{}-{}.so",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed),
            now.map_or(0, |now| now.subsec_nanos())
        );
        let path = std::env::temp_dir().join(name);
        let failed = |error: std::io::Error| {
            Error::unavailable(format!(
                "cannot write the model's library to {}: {error}",
                path.display()
            ))
        };
        // Nobody else's file is written to.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o700)
            .open(&path)
            .map_err(failed)?;
        let written = file.write_all(bytes).map_err(failed);
        let this = TemporaryFile { path };
        written.map(|()| this)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::archive;

    fn unpacked(case: &str, entries: &[(&str, &[u8])]) -> Result<(), Error> {
        let path = std::env::temp_dir().join(format!("conch-pt2-{case}-{}", std::process::id()));
        fs::write(&path, archive(entries)).unwrap();
        let unpacked = unpack(&path, InputChecks::Never);
        fs::remove_file(&path).unwrap();
        unpacked.map(|_| ())
    }

    #[test]
    fn says_why_an_archive_cannot_be_served() {
        const IN: &str = "m/data/aotinductor/model";
        let so = format!("{IN}/a.wrapper.so");
        let metadata = format!("{IN}/a.wrapper_metadata.json");
        let calls = format!("{IN}/a.wrapper.json");
        let other = "m/data/aotinductor/other/b.wrapper.so";
        let third = "m/data/aotinductor/third/c.wrapper.so";
        let here = format!(
            r#"{{"AOTI_DEVICE_KEY": "cpu", "AOTI_MACHINE": "{}"}}"#,
            std::env::consts::ARCH
        );
        for (case, entries, expected) in [
            (
                "export",
                &[("m/models/model.json", &b"{}"[..])][..],
                "use torch._inductor.aoti_compile",
            ),
            (
                "several",
                &[(other, b""), (third, b"")],
                "none of them called 'model': other, third",
            ),
            (
                "none",
                &[(&*metadata, b"{}")],
                "its model 'model' has 0 libraries",
            ),
            (
                "two",
                &[(&*so, b""), ("m/data/aotinductor/model/b.so", b"")],
                "has 2 libraries",
            ),
            (
                "chosen",
                &[(&*so, b"none"), (other, b"")],
                "a.wrapper.so' is no shared library",
            ),
            (
                "gpu",
                &[(&*so, b""), (&*metadata, br#"{"AOTI_DEVICE_KEY": "cuda"}"#)],
                "compiled for device 'cuda', and the pytorch backend runs on CPUs only",
            ),
            (
                "machine",
                &[(&*so, b""), (&*metadata, br#"{"AOTI_MACHINE": "s390x"}"#)],
                "compiled for machine 's390x'",
            ),
            (
                "metadata",
                &[(&*so, b""), (&*metadata, b"x")],
                "its metadata cannot be read",
            ),
            (
                "calls",
                &[
                    (&*so, b""),
                    (&*metadata, here.as_bytes()),
                    (
                        &*calls,
                        br#"{"nodes": [{"node": {"target": "torchvision::nms"}}]}"#,
                    ),
                ],
                "no C interface for (torchvision::nms)",
            ),
            (
                "no calls",
                &[(&*so, b"none"), (&*calls, br#"{"nodes": []}"#)],
                "is no shared library",
            ),
        ] {
            let refused = unpacked(case, entries).unwrap_err();
            assert!(refused.message().contains(expected), "{case}: {refused}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn unknown_instruction_sets_are_taken_to_be_there() {
        assert!(cpu_has("AMX_TILE"));
        assert_eq!(cpu_has("avx2"), cpu_has("AVX2"));
    }

    #[test]
    fn temporary_files_go_away() {
        let file = TemporaryFile::new(b"library").unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::read(&path).unwrap(), b"library");
        drop(file);
        assert!(!path.exists());
    }
}
