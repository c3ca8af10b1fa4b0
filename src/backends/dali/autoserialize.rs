//! Pipelines written in Python: a `dali.py` whose definition is decorated with `@autoserialize`.
//!
//! A Python interpreter that has DALI serialises it once, when the model is loaded, in a process of
//! its own; nothing of Python is in the server.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use conch_backend_sdk::Error;

/// What the interpreter runs: loads the file, and has DALI serialise the definition in it.
const PROGRAM: &str = "\
import importlib.util, sys
from nvidia.dali._utils.autoserialize import invoke_autoserialize
spec = importlib.util.spec_from_file_location('pipeline_definition', sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
invoke_autoserialize(module, sys.argv[2])
";

/// Far more than importing DALI takes on a machine that does something else as well. A definition
/// that hangs holds up its own load only.
const TIME_MAX: Duration = Duration::from_secs(300);

/// How often the end of the interpreter is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How much of what it said an error repeats.
const WORDS_MAX: usize = 500;

/// Serialises the pipeline that `definition` defines, with the interpreter `python`.
///
/// # Errors
/// `Unavailable` if the interpreter cannot be started or takes too long; `InvalidArgument` with its
/// last words if it fails.
pub fn serialize(python: &Path, definition: &Path) -> Result<Vec<u8>, Error> {
    let folder = TemporaryFolder::make()?;
    let (target, words) = (folder.path.join("model.dali"), folder.path.join("words"));
    let unavailable = |what: &str, error: std::io::Error| {
        Error::unavailable(format!("{what} '{}': {error}", python.display()))
    };
    let log = File::create(&words).map_err(|error| unavailable("no room to run", error))?;
    let log_too = log
        .try_clone()
        .map_err(|error| unavailable("no room to run", error))?;
    let child = Command::new(python)
        .arg("-c")
        .arg(PROGRAM)
        .args([definition, &target])
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .spawn()
        .map_err(|error| {
            unavailable(
                "a pipeline in Python needs a Python with DALI; cannot run",
                error,
            )
        })?;
    let status = wait(child)?;
    if status.success()
        && let Ok(bytes) = fs::read(&target)
    {
        return Ok(bytes);
    }
    let words = fs::read(&words).unwrap_or_default();
    Err(Error::invalid(format!(
        "'{}' could not be serialised by '{}' ({status}): {}",
        definition.display(),
        python.display(),
        last_line(&String::from_utf8_lossy(&words))
    )))
}

fn wait(mut child: Child) -> Result<ExitStatus, Error> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < TIME_MAX => thread::sleep(LOOK_EVERY),
            waited => {
                // Whether it ended meanwhile does not matter; it is collected either way.
                let _ = child.kill();
                let _ = child.wait();
                return Err(match waited {
                    Err(error) => Error::internal(format!("cannot wait for Python: {error}")),
                    Ok(_) => Error::unavailable(format!(
                        "serialising a pipeline took more than {} s",
                        TIME_MAX.as_secs()
                    )),
                });
            }
        }
    }
}

/// The last line that says something, which is where Python names an exception.
fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it said nothing").trim();
    line.chars().take(WORDS_MAX).collect()
}

/// A folder of our own for the files of one run, gone afterwards.
struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    fn make() -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("conch-dali-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                Error::unavailable(format!(
                    "cannot make the folder '{}': {error}",
                    path.display()
                ))
            })?;
        Ok(TemporaryFolder { path })
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder that stays is in the way of nothing.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_went_wrong() {
        let missing = serialize(Path::new("/nonexistent/python"), Path::new("dali.py"));
        assert!(
            missing
                .unwrap_err()
                .message()
                .starts_with("a pipeline in Python needs a Python with DALI; cannot run '/none")
        );
        // Whatever its arguments, it fails and says nothing.
        let failed = serialize(Path::new("false"), Path::new("/m/dali.py")).unwrap_err();
        assert_eq!(
            failed.message(),
            "'/m/dali.py' could not be serialised by 'false' (exit status: 1): it said nothing"
        );
        // It succeeds and writes nothing.
        let nothing = serialize(Path::new("true"), Path::new("/m/dali.py")).unwrap_err();
        assert!(nothing.message().contains("exit status: 0"), "{nothing}");
        assert_eq!(
            last_line("Traceback:\n  x\nValueError: no\n\n"),
            "ValueError: no"
        );
    }
}
