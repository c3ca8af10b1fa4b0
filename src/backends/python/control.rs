//! Calls of a model that load, unload or look at models of the server.

use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::{Error, Server};
use serde_json::{Value, json};

use crate::call_text::{CallText, FileRow, answer, error_json};
use crate::children::flag;
use crate::decode::check_sum;
use crate::process::{Reply, StubProcess};

/// Threads that load or unload models for one stub.
const THREADS_MAX: usize = 16;

/// The control calls of one stub.
pub(crate) struct Controls {
    server: Server,
    /// As many references as threads, and this one.
    threads: Arc<()>,
}

impl Controls {
    pub(crate) fn new(server: &Server) -> Controls {
        Controls {
            server: server.clone(),
            threads: Arc::new(()),
        }
    }

    /// Answers a call from a thread of its own: what is loaded may itself need the server.
    pub(crate) fn handle(&self, process: &Arc<StubProcess>, message: Reply<'_>, text: &CallText) {
        if Arc::strong_count(&self.threads) > THREADS_MAX {
            let error = Error::new(
                sdk::Code::Unavailable,
                format!("a model has at most {THREADS_MAX} calls that control models"),
            );
            return answer(process, message, Err(error));
        }
        let control = match Control::new(process, &message, text) {
            Ok(control) => control,
            Err(error) => return answer(process, message, Err(error)),
        };
        let parts = (
            Arc::clone(&self.threads),
            self.server.clone(),
            Arc::clone(process),
        );
        let offset = message.defer();
        let started = std::thread::Builder::new()
            .name("py control".to_owned())
            .spawn(move || {
                let (_thread, server, process) = parts;
                answer_deferred(&process, offset, control.run(&server));
            });
        if let Err(error) = started {
            let error = Error::internal(format!("cannot start a thread: {error}"));
            answer_deferred(process, offset, Err(error));
        }
    }
}

fn answer_deferred(process: &StubProcess, offset: u64, outcome: Result<Value, Error>) {
    let text = outcome.unwrap_or_else(|error| error_json(&error));
    let reply = process.write(text.to_string().as_bytes(), 0);
    process.answer_later(offset, reply.map_or(0, |(block, _)| block));
}

/// A call that loads, unloads or looks at a model.
enum Control {
    Load {
        name: String,
        config: String,
        files: Vec<(String, Vec<u8>)>,
    },
    Unload {
        name: String,
        with_dependents: bool,
    },
    IsReady {
        name: String,
        version: String,
    },
}

impl Control {
    fn new(process: &StubProcess, message: &Reply<'_>, text: &CallText) -> Result<Control, Error> {
        let name = text.text.clone();
        Ok(match text.kind() {
            "unload" => Control::Unload {
                name,
                with_dependents: flag(text, "d"),
            },
            "is_ready" => Control::IsReady {
                name,
                version: text.value.as_str().unwrap_or_default().to_owned(),
            },
            _ => {
                check_sum(text.files.iter().map(|file| file.4), &process.responses)?;
                let file = |(path, _, _, offset, bytes): &FileRow| {
                    let at = message.tensors_at.checked_add(*offset)?;
                    Some((path.clone(), process.responses.read(at, *bytes)?))
                };
                let files: Option<Vec<_>> = text.files.iter().map(file).collect();
                let config = text.others.get("c").and_then(Value::as_str);
                Control::Load {
                    name,
                    config: config.unwrap_or_default().to_owned(),
                    files: files.ok_or_else(|| Error::invalid("a file lies outside"))?,
                }
            }
        })
    }

    fn run(&self, server: &Server) -> Result<Value, Error> {
        match self {
            Control::Load {
                name,
                config,
                files,
            } => {
                let files: Vec<(&str, &[u8])> = files
                    .iter()
                    .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
                    .collect();
                let config = (!config.is_empty()).then_some(config.as_str());
                server.load_model(name, config, &files)?;
                Ok(json!({}))
            }
            Control::Unload {
                name,
                with_dependents,
            } => {
                server.unload_model(name, *with_dependents)?;
                Ok(json!({}))
            }
            Control::IsReady { name, version } => {
                Ok(json!({ "v": server.is_model_ready(name, version)? }))
            }
        }
    }
}
