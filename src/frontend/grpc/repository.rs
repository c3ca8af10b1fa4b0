//! Model control: the repository index, loading and unloading. Done on threads of its own; the call
//! waits.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use conch_control::server::Server;
use conch_control::{IndexRow, LOAD_FILES_MAX, Overrides};
use conch_engine::truncated;
use conch_proto::inference as proto;
use conch_proto::inference::model_repository_parameter::ParameterChoice as Choice;
use conch_proto::inference::repository_index_response::ModelIndex;

use super::body::{CallFailure, CompressedMessage, framed};
use super::control::decode;
use super::method::GrpcMethod;
use super::status::{GrpcCode, GrpcStatus};
use super::transport::Responder;
use super::wire::FieldReader;
use crate::access::GuardedRoute;
use crate::api;
use crate::auth::CallerRights;
use crate::blocking::blocking;
use crate::shard::{Shard, Timer};

/// Answers `message` to one of these methods, framed for the wire, if the caller may name its
/// model. A client that withdraws the call, or whose deadline comes, ends the waiting, not the
/// work.
pub(super) async fn answer(
    shard: &Shard,
    (method, rights): (GrpcMethod, CallerRights),
    message: CompressedMessage,
    deadline_ns: Option<u64>,
    respond: &mut Responder,
) -> Result<Bytes, CallFailure> {
    let server = Arc::clone(&shard.server);
    let work = blocking(shard.server.loader_placement(), move || {
        // Charged until the files are where they belong.
        Ok(message.join().and_then(|(message, charge)| {
            let outcome = run(&server, (method, &rights), message);
            drop(charge);
            outcome
        }))
    })
    .map_err(GrpcStatus::from)?;
    let mut work = pin!(work);
    let mut deadline = deadline_ns.map(Timer::at);
    let outcome = std::future::poll_fn(|context| {
        if let Poll::Ready(outcome) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(outcome));
        }
        if let Some(timer) = &mut deadline
            && Pin::new(timer).poll(context).is_ready()
        {
            return Poll::Ready(Err(GrpcStatus::deadline_exceeded().into()));
        }
        respond.poll_reset(context).map(|()| Err(CallFailure::Gone))
    });
    Ok(outcome.await?.map_err(GrpcStatus::from)??)
}

/// Blocks as long as models load.
fn run(
    server: &Server,
    (method, rights): (GrpcMethod, &CallerRights),
    message: Vec<u8>,
) -> Result<Bytes, GrpcStatus> {
    if method != GrpcMethod::RepositoryModelLoad && message.len() > api::CONTROL_BYTES_MAX {
        return Err(api::too_large(message.len()).into());
    }
    // Before they are decoded: each would become an entry of a map.
    check_field_count(&message)?;
    match method {
        GrpcMethod::RepositoryModelLoad => {
            let request: proto::RepositoryModelLoadRequest = decode(&message)?;
            rights.check(method.access(), &request.model_name)?;
            // The request has copies of all that it names.
            drop(message);
            check_repository(&request.repository_name)?;
            let overrides = overrides(request.parameters)?;
            server.load_model(&request.model_name, overrides)?;
            Ok(framed(&proto::RepositoryModelLoadResponse {}))
        }
        GrpcMethod::RepositoryModelUnload => {
            let request: proto::RepositoryModelUnloadRequest = decode(&message)?;
            rights.check(method.access(), &request.model_name)?;
            check_repository(&request.repository_name)?;
            server.unload_model(&request.model_name, unload_dependents(&request)?)?;
            Ok(framed(&proto::RepositoryModelUnloadResponse {}))
        }
        _ => {
            let request: proto::RepositoryIndexRequest = decode(&message)?;
            check_repository(&request.repository_name)?;
            server.check_serving()?;
            Ok(framed(&index(server.index(request.ready))))
        }
    }
}

/// Refuses more parameters than a request for model control can have, each a field of the message.
fn check_field_count(message: &[u8]) -> Result<(), GrpcStatus> {
    // The names, the flag, and `config`.
    const FIELDS_MAX: usize = LOAD_FILES_MAX + 8;
    let mut fields = FieldReader::new(message);
    let mut count = 0;
    while fields
        .next()
        .map_err(|_| GrpcStatus::unparsable())?
        .is_some()
    {
        count += 1;
        if count > FIELDS_MAX {
            let message = format!("a request for model control has at most {FIELDS_MAX} fields");
            return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
        }
    }
    Ok(())
}

fn check_repository(name: &str) -> Result<(), GrpcStatus> {
    if name.is_empty() {
        return Ok(());
    }
    Err(api::repository_name_refusal().into())
}

fn index(rows: Vec<IndexRow>) -> proto::RepositoryIndexResponse {
    let models = rows
        .into_iter()
        .map(|row| ModelIndex {
            name: row.name,
            version: row
                .version
                .map_or_else(String::new, |version| version.to_string()),
            state: row.state.to_owned(),
            reason: row.reason,
        })
        .collect();
    proto::RepositoryIndexResponse { models }
}

/// What is loaded instead of the repository's files. The map is ordered, so that with two bad
/// parameters the answer is the same each time.
fn overrides(parameters: LoadParameters) -> Result<Overrides, GrpcStatus> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        let wanted = match (name.as_str(), value.parameter_choice) {
            ("config", Some(Choice::StringParam(text))) => {
                overrides.config = Some(text);
                continue;
            }
            ("config", _) => "string_param",
            (file, choice) if file.starts_with("file:") => match choice {
                Some(Choice::BytesParam(contents)) => {
                    overrides.files.push((name, contents));
                    continue;
                }
                _ => "bytes_param",
            },
            _ => {
                let message = format!(
                    "unrecognized load parameter '{name}'.",
                    name = truncated(&name)
                );
                return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
            }
        };
        let message = format!(
            "invalid value type for load parameter '{name}', expected {wanted}.",
            name = truncated(&name)
        );
        return Err(GrpcStatus::new(GrpcCode::InvalidArgument, message));
    }
    Ok(overrides)
}

fn unload_dependents(request: &proto::RepositoryModelUnloadRequest) -> Result<bool, GrpcStatus> {
    match request.parameters.get("unload_dependents") {
        None => Ok(false),
        Some(value) => match value.parameter_choice {
            Some(Choice::BoolParam(wanted)) => Ok(wanted),
            _ => Err(GrpcStatus::new(
                GrpcCode::InvalidArgument,
                "invalid value type for 'unload_dependents' parameter, expected bool_param.",
            )),
        },
    }
}

type LoadParameters = std::collections::BTreeMap<String, proto::ModelRepositoryParameter>;

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, Choice)]) -> LoadParameters {
        pairs
            .iter()
            .map(|(name, choice)| {
                let value = proto::ModelRepositoryParameter {
                    parameter_choice: Some(choice.clone()),
                };
                ((*name).to_owned(), value)
            })
            .collect()
    }

    #[test]
    fn fields_are_counted_before_they_are_decoded() {
        use conch_proto::Message as _;
        let names: Vec<String> = (0..LOAD_FILES_MAX + 9)
            .map(|n| format!("file:{n}"))
            .collect();
        let request = |count: usize| {
            let pairs: Vec<(&str, Choice)> = names[..count]
                .iter()
                .map(|name| (name.as_str(), Choice::BytesParam(Vec::new())))
                .collect();
            proto::RepositoryModelLoadRequest {
                model_name: String::from("m"),
                parameters: parameters(&pairs),
                ..Default::default()
            }
            .encode_to_vec()
        };
        for count in [0, 1, LOAD_FILES_MAX] {
            assert_eq!(check_field_count(&request(count)).err(), None);
        }
        let refused = check_field_count(&request(LOAD_FILES_MAX + 9)).unwrap_err();
        assert_eq!(refused.code, GrpcCode::InvalidArgument);
        assert_eq!(
            check_field_count(b"\xff").unwrap_err(),
            GrpcStatus::unparsable()
        );
    }

    #[test]
    fn load_parameters() {
        let text = || Choice::StringParam("{}".to_owned());
        let bytes = || Choice::BytesParam(b"abc".to_vec());
        type Row<'r> = (&'r [(&'r str, Choice)], Result<Overrides, &'r str>);
        let table: [Row<'_>; 6] = [
            (&[], Ok(Overrides::default())),
            (
                &[("config", text()), ("file:1/m", bytes())],
                Ok(Overrides {
                    config: Some("{}".to_owned()),
                    files: vec![("file:1/m".to_owned(), b"abc".to_vec())],
                }),
            ),
            (
                &[("config", bytes())],
                Err("invalid value type for load parameter 'config', expected string_param."),
            ),
            (
                &[("file:1/m", text())],
                Err("invalid value type for load parameter 'file:1/m', expected bytes_param."),
            ),
            (
                &[("other", text())],
                Err("unrecognized load parameter 'other'."),
            ),
            (
                &[("z", text()), ("config", Choice::BoolParam(true))],
                Err("invalid value type for load parameter 'config', expected string_param."),
            ),
        ];
        for (pairs, expected) in table {
            let got = overrides(parameters(pairs)).map_err(|status| status.message.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{pairs:?}");
        }
    }

    #[test]
    fn unload_parameters() {
        let ask = |pairs: &[(&str, Choice)]| {
            unload_dependents(&proto::RepositoryModelUnloadRequest {
                parameters: parameters(pairs),
                ..Default::default()
            })
            .ok()
        };
        assert_eq!(ask(&[]), Some(false));
        assert_eq!(ask(&[("other", Choice::Int64Param(1))]), Some(false));
        for wanted in [true, false] {
            let pair = ("unload_dependents", Choice::BoolParam(wanted));
            assert_eq!(ask(&[pair]), Some(wanted));
        }
        assert_eq!(ask(&[("unload_dependents", Choice::Int64Param(1))]), None);
    }
}
