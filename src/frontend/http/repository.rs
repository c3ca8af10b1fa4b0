//! Model control over HTTP: the repository index, loading and unloading.

use std::rc::Rc;
use std::sync::Arc;

use conch_control::{LOAD_FILES_MAX, Overrides, documents};
use conch_engine::Error;
use conch_memory::{ByteView, Charge, try_text};

use super::answer::HttpResponse;
use super::base64;
use super::infer::decode::{OFFLOAD_FROM_BYTES, too_long};
use super::json::{JsonDocument, JsonValue};
use crate::api;
use crate::blocking::blocking;
use crate::shard::Shard;

/// The repository index; the body may ask for ready models only.
pub(super) async fn index(shard: &Rc<Shard>, body: ByteView) -> Result<HttpResponse, Error> {
    let ready_only = with_json(shard, body, |root| match root.find("ready") {
        Some(ready) => ready
            .as_bool()
            .map_err(|_| Error::invalid("Invalid value for 'ready': expected a boolean")),
        None => Ok(false),
    })
    .await?;
    let server = Arc::clone(&shard.server);
    // It reads directories.
    let rows = blocking(shard.server.loader_placement(), move || {
        server.check_serving()?;
        Ok(server.index(ready_only.unwrap_or(false)))
    })?
    .await?;
    Ok(HttpResponse::json(documents::index(&rows).into_bytes()))
}

/// Loads or unloads model `name`. What is wrong with the request comes first, as upstream.
pub(super) async fn control(
    shard: &Rc<Shard>,
    body: ByteView,
    name: Box<str>,
    is_load: bool,
) -> Result<HttpResponse, Error> {
    let server = Arc::clone(&shard.server);
    if is_load {
        let overrides = match body.is_empty() {
            true => Overrides::default(),
            false => parse_json(shard, body, read_overrides).await?,
        };
        // The text has gone; the files that were decoded from it stay charged until they are where
        // they belong.
        let files = overrides.files.iter().map(|(_, contents)| contents.len());
        let mut charge = Charge::empty(server.budget());
        charge.cover(files.sum::<usize>() as u64).map_err(|_| {
            Error::exhausted("the server has no memory left for the files of this load")
        })?;
        let load = move || {
            let outcome = server.load_model(&name, overrides);
            drop(charge);
            outcome
        };
        blocking(shard.server.loader_placement(), load)?.await?;
    } else {
        let with_dependents = with_json(shard, body, read_unload_dependents).await?;
        let with_dependents = with_dependents.unwrap_or(false);
        blocking(shard.server.loader_placement(), move || {
            server.unload_model(&name, with_dependents)
        })?
        .await?;
    }
    Ok(HttpResponse::json(Vec::new()))
}

fn read_overrides(root: JsonValue<'_>) -> Result<Overrides, Error> {
    let mut overrides = Overrides::default();
    let Some(parameters) = root.find("parameters") else {
        return Ok(overrides);
    };
    if !parameters.is_object() {
        return Err(Error::internal("attempt to get members for non-object"));
    }
    for (name, value, is_first) in parameters.members_marked() {
        if !is_first {
            continue;
        }
        if overrides.files.len() > LOAD_FILES_MAX {
            // The engine refuses so many; there is no need to decode the others.
            break;
        }
        let text = value.as_str()?;
        if name == b"config" {
            overrides.config = Some(try_text(text)?.into());
        } else if name.starts_with(b"file:") {
            let name = String::from_utf8_lossy(name).into_owned();
            overrides
                .files
                .push((name, base64::decode(text.as_bytes())?));
        } else {
            return Err(Error::internal(
                "unexpected error on creating Triton parameter",
            ));
        }
    }
    Ok(overrides)
}

/// Anything but a boolean counts as false: upstream notices, and goes on.
fn read_unload_dependents(root: JsonValue<'_>) -> Result<bool, Error> {
    let wanted = root
        .find("parameters")
        .and_then(|parameters| parameters.find("unload_dependents"));
    Ok(wanted.is_some_and(|wanted| wanted.as_bool().unwrap_or(false)))
}

/// What `read` makes of the body's JSON; none if there is no body. For requests that name things,
/// and bring none.
pub(crate) async fn with_json<T: Send + 'static>(
    shard: &Rc<Shard>,
    body: ByteView,
    read: impl FnOnce(JsonValue<'_>) -> Result<T, Error> + Send + 'static,
) -> Result<Option<T>, Error> {
    if body.is_empty() {
        return Ok(None);
    }
    check_size(&body)?;
    parse_json(shard, body, read).await.map(Some)
}

/// Refuses the body of a control request that is larger than any of its kind.
///
/// # Errors
/// INVALID_ARG.
pub(super) fn check_size(body: &ByteView) -> Result<(), Error> {
    if body.len() <= api::CONTROL_BYTES_MAX {
        return Ok(());
    }
    Err(api::too_large(body.len()))
}

/// What `read` makes of the body's JSON, which must be there. A large one is parsed off the shard.
pub(super) async fn parse_json<T: Send + 'static>(
    shard: &Rc<Shard>,
    body: ByteView,
    read: impl FnOnce(JsonValue<'_>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let limit_bytes = shard.options.http_input_bytes_max;
    if body.len() as u64 > limit_bytes {
        return Err(too_long(body.len() as u64, limit_bytes));
    }
    let length = body.len();
    let parse = move || read(JsonDocument::parse(body)?.root());
    if length >= OFFLOAD_FROM_BYTES {
        Box::pin(shard.offload(length as u64, parse)).await
    } else {
        parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> JsonDocument {
        JsonDocument::parse(ByteView::copy_of(text.as_bytes())).unwrap()
    }

    #[test]
    fn load_parameters() {
        let config = |text: &str| Overrides {
            config: Some(text.to_owned()),
            files: Vec::new(),
        };
        let table: [(&str, Result<Overrides, &str>); 10] = [
            (
                r#"{"parameters":{"config":"{}","config":1}}"#,
                Ok(config("{}")),
            ),
            (
                r#"{"parameters":[]}"#,
                Err("attempt to get members for non-object"),
            ),
            ("{}", Ok(Overrides::default())),
            (r#"{"parameters":{}}"#, Ok(Overrides::default())),
            (r#"{"other":1}"#, Ok(Overrides::default())),
            (
                r#"{"parameters":{"config":"{\"a\":1}"}}"#,
                Ok(config(r#"{"a":1}"#)),
            ),
            (
                r#"{"parameters":{"config":"{}","file:1/m":"Zm9v"}}"#,
                Ok(Overrides {
                    files: vec![("file:1/m".to_owned(), b"foo".to_vec())],
                    ..config("{}")
                }),
            ),
            (
                r#"{"parameters":{"config":{}}}"#,
                Err("attempt to access JSON non-string as string"),
            ),
            (
                r#"{"parameters":{"file:1/m":1}}"#,
                Err("attempt to access JSON non-string as string"),
            ),
            (
                r#"{"parameters":{"files":"x"}}"#,
                Err("unexpected error on creating Triton parameter"),
            ),
        ];
        for (text, expected) in table {
            let got = read_overrides(document(text).root());
            let got = got.map_err(|error| error.message.into_owned());
            assert_eq!(got, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn unload_parameters() {
        for (text, expected) in [
            ("{}", false),
            (r#"{"parameters":{"unload_dependents":true}}"#, true),
            (r#"{"parameters":{"unload_dependents":false}}"#, false),
            (r#"{"parameters":{"unload_dependents":"true"}}"#, false),
            (r#"{"parameters":7}"#, false),
        ] {
            assert_eq!(
                read_unload_dependents(document(text).root()),
                Ok(expected),
                "{text}"
            );
        }
    }
}
