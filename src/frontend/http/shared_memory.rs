//! The shared-memory extension over HTTP: register, unregister, status.

use std::rc::Rc;
use std::sync::Arc;

use conch_control::json::to_json;
use conch_engine::Error;
use conch_engine::gpus::{IPC_HANDLE_BYTES, IpcHandle};
use conch_engine::shared_memory::{RegionKind, RegionSource, RegionStatus};
use conch_memory::ByteView;
use serde::Serialize;

use super::answer::HttpResponse;
use super::base64;
use super::json::{JsonDocument, JsonValue};
use super::repository::check_size;
use crate::api::regions::{self, RegionAction, RegionLocation};
use crate::shard::Shard;
use crate::shard::offload::SYSTEM_CALLS_COST;

/// What is asked; an empty name means all regions of a kind.
pub(crate) struct RegionRequest {
    pub(crate) kind: RegionKind,
    pub(crate) action: RegionAction,
    pub(crate) name: Box<str>,
}

/// Answers off the shard: the kernel maps and unmaps, others may be at it, and there may be many
/// regions.
pub(super) async fn answer(
    shard: &Rc<Shard>,
    body: ByteView,
    request: RegionRequest,
) -> Result<HttpResponse, Error> {
    check_size(&body)?;
    let limit_bytes = shard.options.http_input_bytes_max;
    let regions = Arc::clone(regions::of(shard));
    let cost_bytes = SYSTEM_CALLS_COST + body.len() as u64;
    shard
        .offload(cost_bytes, move || {
            let RegionRequest { kind, action, name } = request;
            match action {
                RegionAction::Status => {
                    let rows = regions.status(kind, &name)?;
                    return Ok(HttpResponse::json(list(&rows)));
                }
                RegionAction::Register => {
                    let location = || locate(kind, &name, body, limit_bytes);
                    regions::register(&regions, &name, location)?;
                }
                RegionAction::Unregister => regions::unregister(&regions, kind, &name)?,
            }
            Ok(HttpResponse::json(Vec::new()))
        })
        .await
}

fn list(rows: &[RegionStatus]) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum RegionDocument<'r> {
        System {
            name: &'r str,
            key: &'r str,
            offset: u64,
            byte_size: u64,
        },
        Cuda {
            name: &'r str,
            device_id: i64,
            byte_size: u64,
        },
    }
    let documents: Vec<RegionDocument<'_>> = rows
        .iter()
        .map(|row| match &row.source {
            RegionSource::System { key, offset } => RegionDocument::System {
                name: &row.name,
                key,
                offset: *offset,
                byte_size: row.byte_size,
            },
            RegionSource::Cuda { device_id } => RegionDocument::Cuda {
                name: &row.name,
                device_id: *device_id,
                byte_size: row.byte_size,
            },
        })
        .collect();
    to_json(&documents).into_bytes()
}

/// What the body of a registration says.
fn locate(
    kind: RegionKind,
    name: &str,
    body: ByteView,
    limit_bytes: u64,
) -> Result<RegionLocation, Error> {
    if name.is_empty() {
        let kind = match kind {
            RegionKind::System => "system",
            RegionKind::Cuda => "cuda",
        };
        return Err(Error::invalid(format!(
            "'region name' is necessary to register {kind} shared memory region"
        )));
    }
    if body.len() as u64 > limit_bytes {
        return Err(Error::invalid(format!(
            "request JSON size of {} bytes exceeds the maximum allowed input size of {limit_bytes} \
             bytes. Use --http-max-input-size to increase the limit.",
            body.len()
        )));
    }
    let document = JsonDocument::parse(body)?;
    let root = document.root();
    match kind {
        RegionKind::System => read_system(root),
        RegionKind::Cuda => read_cuda(root),
    }
}

fn missing(field: &str) -> Error {
    Error::invalid(format!(
        "Shared memory register request has no '{field}' field"
    ))
}

fn read_system(root: JsonValue<'_>) -> Result<RegionLocation, Error> {
    let key = root.find("key").ok_or_else(|| missing("key"))?.as_str()?;
    let offset = root.find("offset").map_or(Ok(0), JsonValue::as_unsigned)?;
    let byte_size = root
        .find("byte_size")
        .ok_or_else(|| missing("byte_size"))?
        .as_unsigned()?;
    Ok(RegionLocation::System {
        key: key.to_owned(),
        offset,
        byte_size,
    })
}

fn read_cuda(root: JsonValue<'_>) -> Result<RegionLocation, Error> {
    let handle = root
        .find("raw_handle")
        .ok_or_else(|| missing("raw_handle"))?;
    let text = handle.member("b64")?.as_str()?;
    let byte_size = root.member("byte_size")?.as_unsigned()?;
    let device_id = root.member("device_id")?.as_unsigned()?;
    let bytes = base64::decode(text.as_bytes())?;
    let bytes = <[u8; IPC_HANDLE_BYTES]>::try_from(&bytes[..]).map_err(|_| {
        Error::invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    })?;
    Ok(RegionLocation::Cuda {
        handle: IpcHandle(bytes),
        // Larger ones are no device's.
        device_id: i64::try_from(device_id).unwrap_or(i64::MAX),
        byte_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(kind: RegionKind, text: &str) -> Result<RegionLocation, String> {
        let body = ByteView::copy_of(text.as_bytes());
        locate(kind, "r", body, 1000).map_err(|error| error.message.into_owned())
    }

    #[test]
    fn bodies_of_registrations() {
        let empty = "failed to parse the request JSON buffer: The document is empty. at 0";
        let no_key = "Shared memory register request has no 'key' field";
        let number = "attempt to access JSON non-unsigned-integer as unsigned-integer";
        let long = format!(r#"{{"key":"{}"}}"#, "k".repeat(1000));
        for (text, expected) in [
            ("", empty),
            ("{}", no_key),
            ("[]", no_key),
            ("1", no_key),
            (
                r#"{"key":1}"#,
                "attempt to access JSON non-string as string",
            ),
            (
                r#"{"key":"/x"}"#,
                "Shared memory register request has no 'byte_size' field",
            ),
            (r#"{"key":"/x","offset":"a"}"#, number),
            (r#"{"key":"/x","offset":-1,"byte_size":1}"#, number),
            (r#"{"key":"/x","byte_size":1.5}"#, number),
            (
                &long,
                "request JSON size of 1010 bytes exceeds the maximum allowed input size of 1000 \
                 bytes. Use --http-max-input-size to increase the limit.",
            ),
        ] {
            assert_eq!(
                located(RegionKind::System, text),
                Err(expected.to_owned()),
                "{text}"
            );
        }
        let location = |offset| RegionLocation::System {
            key: "/x".to_owned(),
            offset,
            byte_size: 7,
        };
        assert_eq!(
            located(RegionKind::System, r#"{"key":"/x","byte_size":7}"#),
            Ok(location(0))
        );
        let largest = format!(r#"{{"key":"/x","offset":{},"byte_size":7}}"#, u64::MAX);
        assert_eq!(
            located(RegionKind::System, &largest),
            Ok(location(u64::MAX))
        );
    }

    #[test]
    fn bodies_of_cuda_registrations() {
        let wrong = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
        let whole = |handle: &str| {
            format!(r#"{{"raw_handle":{{"b64":"{handle}"}},"byte_size":7,"device_id":0}}"#)
        };
        let handle = format!("{}AA==", "AAAA".repeat(21));
        for (text, expected) in [
            (
                "{}".to_owned(),
                "Shared memory register request has no 'raw_handle' field",
            ),
            (
                r#"{"raw_handle":{}}"#.to_owned(),
                "attempt to access non-existing object member 'b64'",
            ),
            (
                r#"{"raw_handle":{"b64":""}}"#.to_owned(),
                "attempt to access non-existing object member 'byte_size'",
            ),
            (
                r#"{"raw_handle":{"b64":""},"byte_size":1}"#.to_owned(),
                "attempt to access non-existing object member 'device_id'",
            ),
            (whole(""), wrong),
            (whole("AAAA"), wrong),
        ] {
            assert_eq!(
                located(RegionKind::Cuda, &text),
                Err(expected.to_owned()),
                "{text}"
            );
        }
        let location = RegionLocation::Cuda {
            handle: IpcHandle([0; 64]),
            device_id: 0,
            byte_size: 7,
        };
        assert_eq!(located(RegionKind::Cuda, &whole(&handle)), Ok(location));
    }

    #[test]
    fn lists() {
        let row = |name: &str, offset| RegionStatus {
            name: Arc::from(name),
            source: RegionSource::System {
                key: "/k\"".into(),
                offset,
            },
            byte_size: 8,
        };
        assert_eq!(list(&[]), b"[]");
        let on_gpu = RegionStatus {
            source: RegionSource::Cuda { device_id: 3 },
            ..row("c", 0)
        };
        assert_eq!(
            list(&[on_gpu]),
            br#"[{"name":"c","device_id":3,"byte_size":8}]"#
        );
        assert_eq!(
            String::from_utf8(list(&[row("a", 0), row("b\n", u64::MAX)])).unwrap(),
            concat!(
                r#"[{"name":"a","key":"/k\"","offset":0,"byte_size":8},{"name":"b\n","#,
                r#""key":"/k\"","offset":18446744073709551615,"byte_size":8}]"#
            )
        );
    }
}
