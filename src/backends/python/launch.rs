//! Starts a stub process for one model: the interpreter, its environment, and the files that the
//! process is passed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use sdk::Error;
use serde_json::json;

use crate::environment::Interpreter;
use crate::process::{ModelMemory, StubProcess};
use crate::supervisor::Supervisor;

/// Where this backend's own files lie.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// The native part of the stub.
    library: PathBuf,
    /// What the interpreter is started with.
    main: PathBuf,
}

impl Installation {
    /// # Errors
    /// `NotFound` if a part is missing beside the backend's library.
    pub(crate) fn find(directory: &Path) -> Result<Installation, Error> {
        let found = Installation {
            library: directory.join("libconch_python_stub.so"),
            main: directory.join("conch_python_stub").join("__main__.py"),
        };
        let package = directory.join("triton_python_backend_utils");
        for part in [&found.library, &found.main, &package] {
            if !part.exists() {
                return Err(Error::new(
                    sdk::Code::NotFound,
                    format!(
                        "the Python backend is incomplete: '{}' is missing",
                        part.display()
                    ),
                ));
            }
        }
        Ok(found)
    }
}

/// What every process of a model is started with.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) installation: Installation,
    pub(crate) interpreter: Interpreter,
    pub(crate) segment_bytes: u64,
    pub(crate) memory: Arc<ModelMemory>,
    pub(crate) model_name: String,
    /// The file with the model's class.
    pub(crate) model_path: PathBuf,
    /// The folder of a backend that is a `model.py` itself; none for models of their own.
    pub(crate) runtime_directory: Option<PathBuf>,
    pub(crate) is_decoupled: bool,
}

impl Launch {
    /// Starts a process. `name` is that of its instance, or of the model; `devices` opens GPUs on
    /// which it has tensors.
    ///
    /// # Errors
    /// `Internal` with the interpreter's name if it cannot be started, or without memory or
    /// descriptors.
    pub(crate) fn start(
        &self,
        supervisor: &Supervisor,
        name: &str,
        devices: sdk::DeviceAccess,
    ) -> Result<Arc<StubProcess>, Error> {
        let program = &self.interpreter.program;
        let failed = |what: &dyn std::fmt::Display| {
            Error::internal(format!(
                "Failed to start the Python stub of '{name}' with the interpreter '{}': {what}",
                program.display()
            ))
        };
        let process = StubProcess::new(self.segment_bytes, Arc::clone(&self.memory) as _, devices)
            .map_err(|error| failed(&error))?;
        let process = Arc::new(process);
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| failed(&error))?;
        self.send_start(&ours, &process, name)
            .map_err(|error| failed(&error))?;
        let mut command = Command::new(program);
        command
            // What models print comes line by line.
            .arg("-u")
            .arg(&self.installation.main)
            .args([&self.model_name, name])
            .envs(
                self.interpreter
                    .variables
                    .iter()
                    .map(|(key, value)| (key, value)),
            )
            .process_group(0);
        supervisor
            .launch(command, theirs, name.to_owned(), Arc::clone(&process))
            .map_err(|error| failed(&error))?;
        Ok(process)
    }

    /// The first message, which waits in the socket for the process: who it is, and its memory.
    fn send_start(
        &self,
        socket: &OwnedFd,
        process: &StubProcess,
        name: &str,
    ) -> rustix::io::Result<()> {
        let start = json!({
            "parent": std::process::id(),
            "library": self.installation.library,
            "name": name,
            "model_name": self.model_name,
            "model_path": self.model_path,
            "runtime_dir": self.runtime_directory,
            "decoupled": self.is_decoupled,
        });
        let files = [process.blocks.segment().file(), process.responses.file()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        rustix::net::sendmsg(
            socket.as_fd(),
            &[IoSlice::new(start.to_string().as_bytes())],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }
}
