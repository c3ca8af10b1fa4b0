//! Credentials that a program prints: `credential_process`.
//!
//! Neither the command nor what the program writes is ever shown: both may hold secrets.

use std::io::Read as _;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use object_store::aws::AwsCredential;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;

use super::temporary::{TemporaryCredential, parse_time};

/// Runs the program. Blocks for [`RUN_TIMEOUT`] at most, so it is for threads that may block.
///
/// # Errors
/// Why it gave no credentials.
pub(super) fn run(command: &str) -> Result<TemporaryCredential, String> {
    let told = |why: String| format!("its credential_process {why}");
    let (status, output) = output(command, RUN_TIMEOUT).map_err(told)?;
    if !status.success() {
        return Err(told(format!(
            "ended with {status}: run it by hand as the server's user to see why"
        )));
    }
    read_output(&output).map_err(told)
}

/// What a program writes to its standard output, and how it ended.
fn output(command: &str, limit: Duration) -> Result<(ExitStatus, Vec<u8>), String> {
    let deadline = Instant::now() + limit;
    let spawned = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // One of its own: its children are ended with it.
        .process_group(0)
        .spawn();
    let child = spawned.map_err(|error| format!("cannot be started: {error}"))?;
    let mut group = Group(Some(child));
    let written = group.read(deadline, limit)?;
    let status = group.wait(deadline, limit)?;
    Ok((status, written))
}

/// A running program and its children, which end with the value unless it was waited for.
struct Group(Option<Child>);

impl Group {
    fn read(&mut self, deadline: Instant, limit: Duration) -> Result<Vec<u8>, String> {
        let child = self.0.as_mut().expect("it was not waited for");
        let pipe = child.stdout.as_mut().expect("it is piped");
        let mut written = Vec::new();
        let mut piece = [0; 4096];
        loop {
            wait_until_readable(&*pipe, deadline, limit)?;
            let count = pipe
                .read(&mut piece)
                .map_err(|error| format!("cannot be read from: {error}"))?;
            let Some(read) = piece.get(..count).filter(|read| !read.is_empty()) else {
                return Ok(written);
            };
            if written.len() + read.len() > OUTPUT_BYTES_MAX {
                return Err(format!("writes more than {OUTPUT_BYTES_MAX} bytes"));
            }
            written.extend_from_slice(read);
        }
    }

    fn wait(&mut self, deadline: Instant, limit: Duration) -> Result<ExitStatus, String> {
        let lost = |error: std::io::Error| format!("ended in a way that is unknown: {error}");
        let child = self.0.as_mut().expect("it was not waited for");
        if let Some(pid) = pid_of(child) {
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lost(error.into()))?;
            wait_until_readable(&pidfd, deadline, limit)?;
        }
        let status = child.wait().map_err(lost)?;
        self.0 = None;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else {
            return;
        };
        // Its number is its own until it was waited for.
        if let Some(pid) = pid_of(child) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = child.wait();
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn wait_until_readable(
    file: &impl std::os::fd::AsFd,
    deadline: Instant,
    limit: Duration,
) -> Result<(), String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|error| error.to_string())?;
        let mut watched = [PollFd::new(file, PollFlags::IN)];
        match poll(&mut watched, Some(&left)) {
            Ok(0) => return Err(format!("does not end within {} s", limit.as_secs())),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProgramOutput {
    version: u64,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Errors of the parser are not shown: they may quote what they stumbled over.
fn read_output(output: &[u8]) -> Result<TemporaryCredential, String> {
    let output: ProgramOutput = serde_json::from_slice(output).map_err(|_| {
        "does not write JSON with Version, AccessKeyId and SecretAccessKey".to_owned()
    })?;
    if output.version != 1 {
        return Err(format!(
            "writes version {}, where 1 is known",
            output.version
        ));
    }
    let expires = output.expiration.as_deref().filter(|time| !time.is_empty());
    let expires = expires.map(parse_time).transpose();
    let credential = AwsCredential {
        key_id: output.access_key_id,
        secret_key: output.secret_access_key,
        token: output.session_token.filter(|token| !token.is_empty()),
    };
    TemporaryCredential::new(
        credential,
        expires.map_err(|why| format!("writes no good credentials: {why}"))?,
    )
    .map_err(|why| format!("writes no good credentials: {why}"))
}

/// A program that asks a service in another country takes two seconds, one that starts Java first
/// five.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// As of an answer of a service.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs() {
        let minute = Duration::from_secs(60);
        let (status, written) = output("printf 'a b'; echo hidden >&2", minute).unwrap();
        assert!(status.success());
        assert_eq!(written, b"a b");
        // What closes its output and goes on is waited for.
        let (status, written) = output("exec >&-; exit 3", minute).unwrap();
        assert_eq!((status.code(), written.len()), (Some(3), 0));
        let (_, written) = output("head -c 65536 /dev/zero", minute).unwrap();
        assert_eq!(written.len(), OUTPUT_BYTES_MAX);
        let error = output("head -c 65537 /dev/zero", minute).unwrap_err();
        assert_eq!(error, "writes more than 65536 bytes");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        // Its child holds the output, too.
        for command in ["sleep 1000 & wait", "exec >&-; sleep 1000"] {
            let error = output(command, Duration::ZERO).unwrap_err();
            assert_eq!(error, "does not end within 0 s", "{command}");
        }
        let endless = output("cat /dev/zero", Duration::from_secs(60)).unwrap_err();
        assert_eq!(endless, "writes more than 65536 bytes");
    }

    #[test]
    fn outputs() {
        let none = Err("does not write JSON with Version, AccessKeyId and SecretAccessKey");
        let keys = r#""AccessKeyId": "K", "SecretAccessKey": "secret""#;
        let table: [(String, Result<bool, &str>); 9] = [
            (format!(r#"{{"Version": 1, {keys}}}"#), Ok(false)),
            (
                format!(
                    "{{\"Version\": 1, {keys}, \"SessionToken\": \"T\",\
                          \"Expiration\": \"1970-01-01T00:00:09Z\", \"More\": []}}"
                ),
                Ok(true),
            ),
            (
                format!(r#"{{"Version": 1, {keys}, "SessionToken": null, "Expiration": ""}}"#),
                Ok(false),
            ),
            (
                format!(r#"{{"Version": 2, {keys}}}"#),
                Err("writes version 2, where 1 is known"),
            ),
            (format!("{{{keys}}}"), none),
            (r#"{"Version": 1, "AccessKeyId": "K"}"#.to_owned(), none),
            (
                format!(r#"{{"Version": 1, {keys}, "Expiration": "secret"}}"#),
                Err("writes no good credentials: a time of expiry is none"),
            ),
            (
                format!(r#"{{"Version": 1, {keys}, "SessionToken": "\n"}}"#),
                Err("characters that cannot be sent"),
            ),
            ("secret".to_owned(), none),
        ];
        for (text, expected) in table {
            match (read_output(text.as_bytes()), expected) {
                (Ok(found), Ok(is_temporary)) => {
                    assert_eq!(found.credential.key_id, "K");
                    assert_eq!(found.expires.is_some(), is_temporary, "{text}");
                    assert_eq!(found.credential.token.is_some(), is_temporary, "{text}");
                }
                (Err(got), Err(part)) => {
                    assert!(
                        got.contains(part) && !got.contains("secret"),
                        "{text}: {got}"
                    );
                }
                (got, expected) => panic!("{text}: {got:?}, {expected:?}"),
            }
        }
    }
}
