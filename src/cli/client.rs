//! The command line of `conch infer`, and what it shares with other commands that are clients.

use std::path::PathBuf;
use std::time::Duration;

use conch_client::ServerUrl;
use conch_client::options::{
    ConnectionOptions, DEFAULT_URL, InferOptions, InputArgument, InputFill, PixelLayout,
    PixelScaling, TensorOptions,
};
use serde_json::Value;

use crate::client_words::{ClientWord, ClientWords};
use crate::flag::EarlyExit;

/// What all clients have: the server, the model and its tensors.
pub(crate) struct ClientArguments {
    pub(crate) server: ConnectionOptions,
    /// Whether the server was named.
    pub(crate) has_url: bool,
    pub(crate) model: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) parameters: Vec<(String, Value)>,
    pub(crate) tensors: TensorOptions,
}

impl ClientArguments {
    /// # Errors
    /// None in fact: the address is one.
    pub(crate) fn new(timeout: Duration) -> Result<ClientArguments, EarlyExit> {
        let url = ServerUrl::parse(DEFAULT_URL).map_err(EarlyExit::BadCommand)?;
        Ok(ClientArguments {
            server: ConnectionOptions {
                url,
                headers: Vec::new(),
                timeout,
                ca_certificate: None,
            },
            has_url: false,
            model: None,
            version: None,
            parameters: Vec::new(),
            tensors: TensorOptions::default(),
        })
    }

    /// Takes a word if it is one of these; says whether it is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn take<W: Iterator<Item = String>>(
        &mut self,
        word: &ClientWord,
        words: &mut ClientWords<W>,
    ) -> Result<bool, EarlyExit> {
        let name = match word {
            ClientWord::Plain(model) if self.model.is_none() => {
                self.model = Some(model.clone());
                return Ok(true);
            }
            ClientWord::Plain(word) => {
                return Err(words.bad(format!("Unexpected argument: {word}")));
            }
            ClientWord::Option(name) => name.as_str(),
        };
        let tensors = &mut self.tensors;
        match name {
            "url" => {
                self.server.url = words.parsed(name, ServerUrl::parse)?;
                self.has_url = true;
            }
            "header" => self.server.headers.push(words.parsed(name, parse_header)?),
            "timeout" => {
                let seconds = words.number(name, 0.001, TIMEOUT_SECONDS_MAX)?;
                self.server.timeout = Duration::from_secs_f64(seconds);
            }
            "ca-certificate" => {
                self.server.ca_certificate = Some(PathBuf::from(words.value(name)?));
            }
            "version" => self.version = Some(words.value(name)?),
            "parameter" => self.parameters.push(words.parsed(name, parameter)?),
            "input" => {
                let (name, value) = words.parsed(name, |text| pair(text, "NAME=VALUE"))?;
                if tensors.inputs.iter().any(|input| input.name == name) {
                    return Err(words.bad(format!("--input: '{name}' is given twice")));
                }
                tensors.inputs.push(InputArgument { name, value });
            }
            "shape" => tensors.shapes.push(words.parsed(name, shape)?),
            "zeros" => tensors.fill = Some(InputFill::Zeros),
            "random" => tensors.fill = Some(InputFill::Random),
            "scaling" => tensors.scaling = words.choice(name, &PixelScaling::ALL)?,
            "layout" => {
                let choices = [("nchw", PixelLayout::Nchw), ("nhwc", PixelLayout::Nhwc)];
                tensors.layout = Some(words.choice(name, &choices)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads the words behind `conch infer`.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn parse_infer(words: impl Iterator<Item = String>) -> Result<InferOptions, EarlyExit> {
    let mut words = ClientWords::new(words, INFER_HINT);
    let mut client = ClientArguments::new(INFER_TIMEOUT)?;
    let (mut outputs, mut id, mut classes, mut save) = (Vec::new(), None, None, None);
    let (mut prints_json, mut has_json_tensors) = (false, false);
    while let Some(word) = words.next()? {
        if client.take(&word, &mut words)? {
            continue;
        }
        let ClientWord::Option(name) = word else {
            continue;
        };
        match name.as_str() {
            "help" => return Err(EarlyExit::InferHelp),
            "output" => outputs.push(words.value(&name)?),
            "id" => id = Some(words.value(&name)?),
            "classes" => classes = Some(words.number(&name, 1, CLASSES_MAX)?),
            "json" => prints_json = true,
            "no-binary" => has_json_tensors = true,
            "save" => save = Some(PathBuf::from(words.value(&name)?)),
            _ => return Err(words.bad(format!("There is no option --{name}"))),
        }
    }
    let model = client
        .model
        .ok_or_else(|| words.bad(String::from("No model is named")))?;
    Ok(InferOptions {
        server: client.server,
        model,
        version: client.version,
        tensors: client.tensors,
        outputs,
        parameters: client.parameters,
        id,
        classes,
        prints_json,
        has_json_tensors,
        save,
    })
}

/// What stands on both sides of the first equals sign.
fn pair(text: &str, form: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((String::from(name), String::from(value))),
        _ => Err(format!("'{text}' is not {form}")),
    }
}

/// A value is a number, true or false, or else a text.
fn parameter(text: &str) -> Result<(String, Value), String> {
    let (name, value) = pair(text, "NAME=VALUE")?;
    let value = match serde_json::from_str(&value) {
        Ok(value @ (Value::Bool(_) | Value::Number(_) | Value::String(_))) => value,
        _ => Value::from(value),
    };
    Ok((name, value))
}

fn shape(text: &str) -> Result<(String, Vec<i64>), String> {
    let form = "NAME=SIZE,...";
    let (name, sizes) = pair(text, form)?;
    let sizes = sizes.trim_start_matches('[').trim_end_matches(']');
    let words = sizes
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let size = |word: &str| word.parse::<u32>().map(i64::from).ok();
    let sizes: Option<Vec<i64>> = words.map(size).collect();
    let sizes = sizes.ok_or_else(|| format!("'{text}' is not {form}"))?;
    Ok((name, sizes))
}

/// The value may be a secret, and is not shown.
pub(crate) fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((String::from(name.trim()), String::from(value.trim())))
        }
        _ => Err(String::from("a header is 'NAME: VALUE'")),
    }
}

const INFER_HINT: &str = "Usage: conch infer MODEL [--input NAME=VALUE]... [options]; 'conch infer \
                          --help' tells more.";
const INFER_TIMEOUT: Duration = Duration::from_secs(300);
/// A day.
const TIMEOUT_SECONDS_MAX: f64 = 86_400.0;
const CLASSES_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<InferOptions, EarlyExit> {
        parse_infer(words.iter().map(|word| String::from(*word)))
    }

    #[test]
    fn words_become_options() {
        let options = parsed(&[
            "m",
            "--input",
            "x=[1,2]",
            "--input=y=a=b",
            "--shape=x=2,1",
            "--parameter=p=1",
            "--parameter=q=text",
            "--header=a: b:c",
            "--url=h:1",
            "--timeout=2.5",
            "--version",
            "3",
            "--output=o",
            "--classes=5",
            "--scaling=inception",
            "--layout=nhwc",
            "--random",
            "--json",
            "--no-binary",
            "--save=d",
            "--id=7",
            "--ca-certificate=c",
        ])
        .unwrap();
        let inputs: Vec<_> = options.tensors.inputs.iter().collect();
        assert_eq!((&*inputs[0].name, &*inputs[0].value), ("x", "[1,2]"));
        assert_eq!((&*inputs[1].name, &*inputs[1].value), ("y", "a=b"));
        assert_eq!(options.tensors.shapes, [(String::from("x"), vec![2, 1])]);
        assert_eq!(options.tensors.fill, Some(InputFill::Random));
        assert_eq!(options.tensors.scaling, PixelScaling::Inception);
        assert_eq!(options.tensors.layout, Some(PixelLayout::Nhwc));
        let parameters = [
            (String::from("p"), Value::from(1)),
            (String::from("q"), Value::from("text")),
        ];
        assert_eq!(options.parameters, parameters);
        let server = &options.server;
        assert_eq!(server.headers, [(String::from("a"), String::from("b:c"))]);
        assert_eq!(server.url.shown(), "http://h:1");
        assert_eq!(server.timeout, Duration::from_millis(2500));
        assert_eq!(server.ca_certificate, Some(PathBuf::from("c")));
        assert_eq!(
            (&*options.model, options.version.as_deref()),
            ("m", Some("3"))
        );
        assert_eq!(
            (options.outputs, options.classes),
            (vec![String::from("o")], Some(5))
        );
        assert!(options.prints_json && options.has_json_tensors);
        assert_eq!(
            (options.save, options.id),
            (Some(PathBuf::from("d")), Some(String::from("7")))
        );
    }

    #[test]
    fn words_that_say_nothing_are_refused() {
        for (words, expected) in [
            (&[][..], "No model is named"),
            (&["m", "n"], "Unexpected argument: n"),
            (&["m", "-x"], "Unexpected argument: -x"),
            (&["m", "--inputs"], "There is no option --inputs"),
            (&["m", "--json=1"], "--json: the option takes no value"),
            (
                &["m", "--zeros=1", "--json"],
                "--zeros: the option takes no value",
            ),
            (&["m", "--input"], "--input: the option needs a value"),
            (&["m", "--input", "x"], "'x' is not NAME=VALUE"),
            (&["m", "--input==1"], "'=1' is not NAME=VALUE"),
            (&["m", "--input=x=1", "--input=x=2"], "'x' is given twice"),
            (&["m", "--shape=x=-1"], "is not NAME=SIZE"),
            (
                &["m", "--timeout=0"],
                "'0' is no number from 0.001 to 86400",
            ),
            (&["m", "--classes=x"], "'x' is no number from 1 to 1000"),
            (&["m", "--scaling=x"], "'x' is none of none, unit"),
            (&["m", "--header=secret"], "a header is 'NAME: VALUE'"),
            (&["m", "--url=ftp://x"], "'ftp://x' is not http://"),
        ] {
            let Err(EarlyExit::BadCommand(reason)) = parsed(words) else {
                panic!("{words:?}");
            };
            assert!(reason.contains(expected), "{words:?}: {reason}");
            assert!(reason.contains("Usage: conch infer MODEL"), "{reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
        for words in [&["-h"][..], &["m", "--help"]] {
            assert_eq!(parsed(words).unwrap_err(), EarlyExit::InferHelp);
        }
    }
}
