//! `conch infer`: one request, and its answer.

use std::io::Write;
use std::path::Path;

use crate::answer::InferAnswer;
use crate::error::ClientError;
use crate::http::ServerClient;
use crate::input::{self, NamedTensor};
use crate::model::{self, ModelDescription, TensorDescription};
use crate::options::{ConnectionOptions, InferOptions};
use crate::request::{RequestBody, RequestExtras};
use crate::show;
use crate::tensor::npy;

/// Asks a server and prints its answer to `output`. Blocks until the answer is there.
///
/// # Errors
/// Why there is no answer.
pub fn infer(options: &InferOptions, output: &mut dyn Write) -> Result<(), ClientError> {
    let client = ServerClient::new(&options.server)?;
    let path = model::path(&options.model, options.version.as_deref());
    let model = ModelDescription::ask(&client, &path)?;
    let tensors = request_tensors(&client, &path, &model, options)?;
    let extras = RequestExtras::new(options, &model.outputs);
    let body = RequestBody::new(&tensors, &extras).map_err(ClientError::Usage)?;
    drop(tensors);
    let answer = client.post(&format!("{path}/infer"), body.json_bytes, &body.bytes)?;
    let answer = answer.good()?;
    if options.prints_json && options.save.is_none() {
        print(output, &answer.body);
        print(output, b"\n");
        return Ok(());
    }
    let parsed = InferAnswer::parse(&answer)?;
    match options.prints_json {
        true => {
            print(output, &answer.body);
            print(output, b"\n");
        }
        false => print(
            output,
            show::answer(&parsed, options.classes.is_some()).as_bytes(),
        ),
    }
    match &options.save {
        Some(folder) => save(folder, &parsed.outputs),
        None => Ok(()),
    }
}

/// Whoever reads may be gone.
fn print(output: &mut dyn Write, bytes: &[u8]) {
    let _ = output.write_all(bytes);
}

fn request_tensors(
    client: &ServerClient,
    path: &str,
    model: &ModelDescription,
    options: &InferOptions,
) -> Result<Vec<NamedTensor>, ClientError> {
    let (tensors, mut missing) = input::tensors(model, &options.tensors)?;
    if !missing.is_empty() {
        let optional = model::optional_inputs(client, path);
        missing.retain(|input| !optional.contains(&input.name));
    }
    match missing.as_slice() {
        [] => Ok(tensors),
        missing => Err(ClientError::Usage(told_missing(model, missing, options))),
    }
}

/// The inputs, and commands that work.
fn told_missing(
    model: &ModelDescription,
    missing: &[&TensorDescription],
    options: &InferOptions,
) -> String {
    let names: Vec<String> = missing
        .iter()
        .map(|input| format!("'{}'", input.name))
        .collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    let mut command = format!("conch infer {}", quoted(&options.model));
    if let Some(version) = &options.version {
        command.push_str(&format!(" --version {}", quoted(version)));
    }
    command.push_str(&server_words(&options.server));
    let inputs = model.inputs.iter().map(|input| {
        let given = options.tensors.inputs.iter();
        let mut given = given.filter(|given| given.name == input.name);
        let value = given
            .next()
            .map_or_else(|| example(input), |given| given.value.clone());
        format!(" --input {}", quoted(&format!("{}={value}", input.name)))
    });
    let inputs: String = inputs.collect();
    format!(
        "no value is given for input{plural} {}; the model's inputs are:\n{}\nFor example:\n  \
         {command}{inputs}\nor, with zeros or random numbers in place of what is not given:\n  \
         {command} --zeros\n  {command} --random",
        names.join(", "),
        input::listed(&model.inputs)
    )
}

/// The words that reach the same server, without headers, which may be secrets.
fn server_words(server: &ConnectionOptions) -> String {
    let url = server.url.shown();
    match url == crate::options::DEFAULT_URL {
        true => String::new(),
        false => format!(" --url {}", quoted(&url)),
    }
}

/// A value as the input may have one.
fn example(input: &TensorDescription) -> String {
    let sizes: Vec<i64> = input.shape.iter().map(|dim| (*dim).max(1)).collect();
    let count = sizes
        .iter()
        .try_fold(1_i64, |count, size| count.checked_mul(*size));
    if count.is_none_or(|count| count > EXAMPLE_VALUES_MAX) {
        return String::from("@FILE.npy");
    }
    let value = match input.data_type {
        conch_config::DataType::Bytes => "\"text\"",
        conch_config::DataType::Bool => "true",
        _ => "1",
    };
    let list = |inner: String, size: &i64| {
        let size = usize::try_from(*size).unwrap_or(0);
        format!("[{}]", vec![inner; size].join(","))
    };
    sizes.iter().rev().fold(String::from(value), list)
}

/// As one word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => String::from(word),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Writes `NAME.npy` for each output.
fn save(folder: &Path, outputs: &[NamedTensor]) -> Result<(), ClientError> {
    let failed = |path: &Path, cause: &dyn std::fmt::Display| {
        ClientError::Failed(format!("'{}': {cause}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|cause| failed(folder, &cause))?;
    for NamedTensor { name, tensor } in outputs {
        // A name is the server's, and must not lead out of the folder.
        let name = name.replace(|sign: char| sign == '/' || sign.is_control(), "_");
        let path = folder.join(format!("{name}.npy"));
        let file = npy::write(tensor).map_err(|cause| failed(&path, &cause))?;
        std::fs::write(&path, file).map_err(|cause| failed(&path, &cause))?;
    }
    Ok(())
}

/// Values of an example on a command line.
const EXAMPLE_VALUES_MAX: i64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use conch_config::DataType;

    #[test]
    fn examples_fit_their_inputs() {
        for (data_type, shape, expected) in [
            (DataType::Fp32, &[-1, 2][..], "[[1,1]]"),
            (DataType::Bytes, &[-1, 1], "[[\"text\"]]"),
            (DataType::Bool, &[], "true"),
            (DataType::Fp32, &[-1, 3, 224, 224], "@FILE.npy"),
            (DataType::Fp32, &[i64::MAX, i64::MAX], "@FILE.npy"),
        ] {
            let input = TensorDescription {
                name: String::new(),
                data_type,
                shape: shape.to_vec(),
            };
            assert_eq!(example(&input), expected);
        }
    }
}
