//! Model control over HTTP: the repository index, loading and unloading.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Error, Overrides, documents};
use conch_memory::View;

use super::answer::Answer;
use super::base64;
use super::infer::decode::OFFLOAD_FROM_BYTES;
use super::json::{Document, Value};
use crate::aside::aside;
use crate::shard::Shard;

/// The repository index; the body may ask for ready models only.
pub(super) async fn index(shard: &Rc<Shard>, body: View) -> Result<Answer, Error> {
    let ready_only = with_json(shard, body, |root| match root.find("ready") {
        Some(ready) => ready
            .as_bool()
            .map_err(|_| Error::invalid("Invalid value for 'ready': expected a boolean")),
        None => Ok(false),
    })
    .await?;
    let server = Arc::clone(&shard.server);
    // It reads directories.
    let rows = aside(move || Ok(server.index(ready_only.unwrap_or(false))))?.await?;
    Ok(Answer::json(documents::index(&rows).into_bytes()))
}

/// Loads or unloads model `name`. What is wrong with the request comes first, as upstream.
pub(super) async fn control(
    shard: &Rc<Shard>,
    body: View,
    name: Box<str>,
    is_load: bool,
) -> Result<Answer, Error> {
    let server = Arc::clone(&shard.server);
    if is_load {
        // Files that come along stay charged, as the text that they were decoded from, until they are where they belong.
        let text = body.clone();
        let overrides = with_json(shard, body, read_overrides).await?;
        let overrides = overrides.unwrap_or_default();
        let load = move || {
            let outcome = server.load_model(&name, overrides);
            drop(text);
            outcome
        };
        aside(load)?.await?;
    } else {
        let with_dependents = with_json(shard, body, read_unload_dependents).await?;
        let with_dependents = with_dependents.unwrap_or(false);
        aside(move || server.unload_model(&name, with_dependents))?.await?;
    }
    Ok(Answer::json(Vec::new()))
}

fn read_overrides(root: Value<'_>) -> Result<Overrides, Error> {
    let mut overrides = Overrides::default();
    let Some(parameters) = root.find("parameters") else {
        return Ok(overrides);
    };
    if !parameters.is_object() {
        return Err(Error::internal("attempt to get members for non-object"));
    }
    for (name, value) in parameters.members() {
        let text = value.as_str()?;
        if name == b"config" {
            overrides.config = Some(text.to_owned());
        } else if name.starts_with(b"file:") {
            let name = String::from_utf8_lossy(name).into_owned();
            overrides
                .files
                .push((name, base64::decode(text.as_bytes())));
        } else {
            return Err(Error::internal(
                "unexpected error on creating Triton parameter",
            ));
        }
    }
    Ok(overrides)
}

/// Anything but a boolean counts as false: upstream notices, and goes on.
fn read_unload_dependents(root: Value<'_>) -> Result<bool, Error> {
    let wanted = root
        .find("parameters")
        .and_then(|parameters| parameters.find("unload_dependents"));
    Ok(wanted.is_some_and(|wanted| wanted.as_bool().unwrap_or(false)))
}

/// What `read` makes of the body's JSON; none if there is no body.
pub(crate) async fn with_json<T: Send + 'static>(
    shard: &Rc<Shard>,
    body: View,
    read: impl FnOnce(Value<'_>) -> Result<T, Error> + Send + 'static,
) -> Result<Option<T>, Error> {
    if body.is_empty() {
        return Ok(None);
    }
    parse_json(shard, body, read).await.map(Some)
}

/// What `read` makes of the body's JSON, which must be there. A large one is parsed off the shard.
pub(super) async fn parse_json<T: Send + 'static>(
    shard: &Rc<Shard>,
    body: View,
    read: impl FnOnce(Value<'_>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let limit_bytes = shard.options.http_input_bytes_max;
    if body.len() as u64 > limit_bytes {
        return Err(Error::invalid(format!(
            "request JSON size of {} bytes exceeds the maximum allowed input size of {limit_bytes} bytes. Use --http-max-input-size to increase the limit.",
            body.len()
        )));
    }
    let is_large = body.len() >= OFFLOAD_FROM_BYTES;
    let parse = move || read(Document::parse(body)?.root());
    if is_large {
        Box::pin(shard.offload(parse)).await
    } else {
        parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(View::copy_of(text.as_bytes())).unwrap()
    }

    #[test]
    fn load_parameters() {
        let config = |text: &str| Overrides {
            config: Some(text.to_owned()),
            files: Vec::new(),
        };
        let table: [(&str, Result<Overrides, &str>); 9] = [
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
