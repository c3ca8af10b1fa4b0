//! A model as the SDK runs it: TorchScript, or compiled by AOTInductor.

use std::borrow::Cow;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::engine::{self, Contents, Feed, FeedData, OutputData, Signature, Target};
use sdk::{DataType, DeviceWork, Error, StreamHandle, TensorBytes, element_count};

use crate::libtorch::{
    Input, InputValue, ModelContainer, Module, Outputs, RunOptions, Strings, Tensor, Torch,
};
use crate::wiring::Wiring;

/// A loaded model and how a configuration names its tensors.
pub struct Session {
    torch: Arc<Torch>,
    program: Program,
    wiring: Wiring,
    /// Threads within an operator, of the thread that executes.
    threads: i32,
    is_batching: bool,
    /// A compiled model that takes batches of two rows and more.
    wants_two_rows: bool,
    /// Where the model is on a GPU: what it enqueues on.
    stream: Option<StreamHandle>,
}

/// What runs.
#[derive(Clone)]
pub enum Program {
    Script {
        module: Arc<Module>,
        options: RunOptions,
        /// Forward takes one dictionary.
        is_dictionary: bool,
    },
    Compiled(Arc<ModelContainer>),
}

/// An output of a run. Two of a configuration, such as one that is a state too, may be one result.
#[derive(Clone)]
pub enum Output {
    Tensor(Arc<Tensor>),
    /// The first of two halves along the first dimension.
    Half(Arc<Tensor>),
    /// A list of strings, as on Triton's wire.
    Strings {
        bytes: Arc<Vec<u8>>,
        count: usize,
    },
}

impl Session {
    pub fn new(
        torch: &Arc<Torch>,
        program: Program,
        wiring: Wiring,
        threads: i32,
        is_batching: bool,
        stream: Option<StreamHandle>,
    ) -> Self {
        Session {
            torch: Arc::clone(torch),
            program,
            wiring,
            threads,
            is_batching,
            wants_two_rows: false,
            stream,
        }
    }

    /// Runs the model; all its results.
    fn results(&mut self, feeds: &[Feed<'_>]) -> Result<Results, Error> {
        match &self.program {
            Program::Script {
                module,
                options,
                is_dictionary: true,
            } => {
                let entry = |feed: &Feed<'_>| self.tensor(feed).map(InputValue::Tensor);
                let inputs = feeds
                    .iter()
                    .map(|feed| {
                        Ok(Input {
                            key: feed.name,
                            value: entry(feed)?,
                        })
                    })
                    .collect::<Result<Vec<_>, Error>>()?;
                module
                    .forward(*options, self.gpu(), &inputs, true)
                    .map(Results::Script)
            }
            Program::Script {
                module, options, ..
            } => {
                let value = |feed: &Feed<'_>| match feed.data_type {
                    DataType::Bytes => strings(feed).map(InputValue::Strings),
                    _ => self.tensor(feed).map(InputValue::Tensor),
                };
                let mut values = self.in_order(feeds, value)?;
                // Arguments behind the last one that a request brings.
                values.resize_with(self.wiring.inputs.len(), || None);
                let inputs: Vec<_> = values
                    .into_iter()
                    .map(|value| Input {
                        key: c"",
                        value: value.unwrap_or(InputValue::Absent),
                    })
                    .collect();
                module
                    .forward(*options, self.gpu(), &inputs, false)
                    .map(Results::Script)
            }
            Program::Compiled(container) => {
                let container = Arc::clone(container);
                self.compiled_results(&container, feeds)
            }
        }
    }

    /// Runs a compiled model. A dimension that may change is one of two and more for the compiler,
    /// unless it was told otherwise, and such a model, if it checks its inputs, refuses a batch of
    /// one row: it gets the row twice, and the second answer is left out.
    fn compiled_results(
        &mut self,
        container: &ModelContainer,
        feeds: &[Feed<'_>],
    ) -> Result<Results, Error> {
        let is_one_row =
            self.is_batching && feeds.iter().all(|feed| feed.shape.first() == Some(&1));
        let run = |copies: usize| {
            let inputs =
                self.in_order(feeds, |feed| Tensor::copies_of(&self.torch, feed, copies))?;
            let results = container.run(inputs.into_iter().flatten().collect())?;
            Ok(Results::Compiled {
                tensors: results.into_iter().map(Some).collect(),
                copies,
            })
        };
        if !(is_one_row && self.wants_two_rows) {
            match run(1) {
                Err(error) if is_one_row && wants_two_rows(&error) => {}
                results => return results,
            }
        }
        let results = run(2)?;
        self.wants_two_rows = true;
        Ok(results)
    }

    /// The number of its GPU.
    fn gpu(&self) -> Option<i32> {
        self.stream.as_ref().map(StreamHandle::device)
    }

    fn tensor(&self, feed: &Feed<'_>) -> Result<Tensor, Error> {
        match (feed.data, self.gpu()) {
            (FeedData::Device(bytes), Some(gpu)) => {
                Tensor::on_device(&self.torch, feed, bytes, gpu)
            }
            _ => Tensor::copies_of(&self.torch, feed, 1),
        }
    }

    /// Values of the feeds where the model's arguments are; `None` for those that no request
    /// brings, up to the last that one does.
    fn in_order<V>(
        &self,
        feeds: &[Feed<'_>],
        value: impl Fn(&Feed<'_>) -> Result<V, Error>,
    ) -> Result<Vec<Option<V>>, Error> {
        let mut values = Vec::new();
        for feed in feeds {
            let inputs = self.wiring.signature.inputs.iter();
            let position = inputs
                .zip(&self.wiring.inputs)
                .find(|(info, _)| *info.name == *feed.name)
                .map(|(_, &position)| position)
                .ok_or_else(|| Error::internal("an input that the configuration has not"))?;
            if values.len() <= position {
                values.resize_with(position + 1, || None);
            }
            if let Some(place) = values.get_mut(position) {
                *place = Some(value(feed)?);
            }
        }
        Ok(values)
    }

    /// Where an output of the configuration is among the results.
    fn position(&self, name: &str, results: &Results) -> Result<usize, Error> {
        let outputs = self.wiring.signature.outputs.iter();
        let position = outputs
            .zip(&self.wiring.outputs)
            .find(|(info, _)| info.name() == name)
            .map(|(_, &position)| position);
        let count = results.count();
        results
            .position_of(name)
            .or(position)
            .filter(|&position| position < count)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "The output {name} in the model configuration refers to an output index which \
                     doesn't exist. This model has {count} outputs"
                ))
            })
    }

    fn check(&self, name: &str, configured: DataType, output: &Output) -> Result<(), Error> {
        let made = match output {
            Output::Tensor(tensor) | Output::Half(tensor) => {
                if self.is_batching && tensor.shape()?.is_empty() {
                    return Err(Error::invalid(format!(
                        "output '{name}' is a scalar which is not supported."
                    )));
                }
                tensor.data_type()?
            }
            Output::Strings { .. } => DataType::Bytes,
        };
        if made == configured {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "configuration expects datatype TYPE_{} for output '{name}', model provides TYPE_{}",
            configured.name(),
            made.name()
        )))
    }
}

impl engine::Session for Session {
    type Output = Output;

    fn signature(&self) -> &Signature {
        &self.wiring.signature
    }

    fn takes_on_device(&self, data_type: DataType) -> bool {
        takes_on_device(data_type)
    }

    fn run(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &mut [Target<'_, '_>],
    ) -> Result<Vec<Option<Output>>, Error> {
        // The same thread as a rule, but the C interface does not promise it.
        self.torch.use_threads(self.threads);
        let Some(stream) = self.stream.clone() else {
            return self.run_once(feeds, targets);
        };
        let torch = Arc::clone(&self.torch);
        let guard = torch.on_stream(&stream)?;
        let made = self.run_once(feeds, targets);
        drop(guard);
        // Kernels read the feeds, also those that were started before an error.
        let waited = stream.synchronize();
        made.and_then(|made| waited.map(|()| made))
    }
}

impl engine::EnqueueSession for Session {
    fn enqueue<'m>(
        &mut self,
        work: &mut DeviceWork<'m>,
        feeds: &[Feed<'m>],
        targets: &mut [Target<'_, 'm>],
    ) -> Result<Vec<Option<Output>>, Error> {
        self.torch.use_threads(self.threads);
        let (torch, stream) = (Arc::clone(&self.torch), self.stream.clone());
        let stream = stream.ok_or_else(|| Error::internal("a model on CPUs enqueues nothing"))?;
        let mut made = Vec::new();
        work.compute(|_| {
            // Torch gives memory that the run frees to later work of this stream alone.
            let _guard = torch.on_stream(&stream)?;
            made = self.run_once(feeds, targets)?;
            Ok(())
        })?;
        Ok(made)
    }
}

impl Session {
    fn run_once(
        &mut self,
        feeds: &[Feed<'_>],
        targets: &[Target<'_, '_>],
    ) -> Result<Vec<Option<Output>>, Error> {
        let mut results = self.results(feeds)?;
        // A configuration that does not fit is told by the first request, whatever it asks for.
        for info in &self.wiring.signature.outputs {
            self.position(info.name(), &results)?;
        }
        let mut taken: Vec<(usize, Output)> = Vec::new();
        targets
            .iter()
            .map(|target| {
                let name = target.info.name();
                let position = self.position(name, &results)?;
                let known = taken.iter().find(|(at, _)| *at == position);
                let output = match known {
                    Some((_, output)) => output.clone(),
                    None => results.take(position)?,
                };
                self.check(name, target.info.data_type, &output)?;
                taken.push((position, output.clone()));
                Ok(Some(output))
            })
            .collect()
    }
}

/// Torch counts what is true by adding bytes up, and clients may send others than 0 and 1, which
/// are mended in main memory.
pub fn takes_on_device(data_type: DataType) -> bool {
    data_type != DataType::Bool
}

/// What a run returned.
enum Results {
    Script(Outputs),
    Compiled {
        tensors: Vec<Option<Tensor>>,
        /// Of the batch, one behind the other.
        copies: usize,
    },
}

impl Results {
    fn count(&self) -> usize {
        match self {
            Results::Script(outputs) => outputs.count(),
            Results::Compiled { tensors, .. } => tensors.len(),
        }
    }

    fn position_of(&self, key: &str) -> Option<usize> {
        match self {
            Results::Script(outputs) => outputs.position_of(key),
            Results::Compiled { .. } => None,
        }
    }

    /// Takes a result out, which can be done once.
    fn take(&mut self, position: usize) -> Result<Output, Error> {
        let (tensor, copies) = match self {
            Results::Script(outputs) => {
                if let Some(tensor) = outputs.take_tensor(position)? {
                    return Ok(Output::Tensor(Arc::new(tensor)));
                }
                let (bytes, count) = outputs.strings(position)?;
                return Ok(Output::Strings {
                    bytes: Arc::new(bytes),
                    count,
                });
            }
            Results::Compiled { tensors, copies } => {
                (tensors.get_mut(position).and_then(Option::take), *copies)
            }
        };
        let output = match copies {
            1 => Output::Tensor,
            _ => Output::Half,
        };
        tensor
            .map(|tensor| output(Arc::new(tensor)))
            .ok_or_else(|| Error::internal("a result that was taken before"))
    }
}

/// Whether a compiled model refused a batch because it has one row. Its words are in the code that
/// AOTInductor makes.
fn wants_two_rows(error: &Error) -> bool {
    let text = error.message();
    text.contains("dim value is too small at 0, expected it to be >= 2,")
}

impl engine::Output for Output {
    fn read(&self) -> Result<Contents<'_>, Error> {
        match self {
            Output::Tensor(tensor) => tensor.contents(),
            Output::Half(tensor) => first_half(tensor.contents()?),
            Output::Strings { bytes, count } => Ok(Contents {
                data_type: DataType::Bytes,
                shape: vec![i64::try_from(*count).unwrap_or(i64::MAX)],
                data: bytes.as_slice().into(),
            }),
        }
    }
}

/// The first of two rows.
fn first_half(contents: Contents<'_>) -> Result<Contents<'_>, Error> {
    let mut shape = contents.shape;
    match shape.first_mut() {
        Some(rows) if *rows == 2 => *rows = 1,
        _ => {
            return Err(Error::invalid(format!(
                "an output of shape {} for two rows",
                sdk::shape_text(&shape)
            )));
        }
    }
    let data = match contents.data {
        OutputData::Host(Cow::Borrowed(bytes)) => bytes.split_at(bytes.len() / 2).0.into(),
        OutputData::Host(Cow::Owned(mut bytes)) => {
            bytes.truncate(bytes.len() / 2);
            bytes.into()
        }
        OutputData::Device(source) => {
            let half = source.get(0..source.len() / 2);
            OutputData::Device(half.ok_or_else(|| Error::internal("half of an output"))?)
        }
    };
    Ok(Contents {
        data_type: contents.data_type,
        shape,
        data,
    })
}

/// The strings of a BYTES tensor.
fn strings(feed: &Feed<'_>) -> Result<Strings, Error> {
    let name = feed.name.to_string_lossy();
    let count = element_count(feed.shape)
        .ok_or_else(|| Error::invalid("a string tensor with an impossible shape"))?;
    let bytes = feed.host()?;
    let mut strings = Strings::default();
    let reserved = strings
        .text
        .try_reserve_exact(bytes.len())
        .and_then(|()| strings.lengths.try_reserve_exact(count));
    reserved.map_err(|_| Error::out_of_memory(bytes.len()))?;
    let mut rest = bytes;
    for index in 0..count {
        let element = split_string(&mut rest).ok_or_else(|| {
            Error::invalid(format!(
                "unexpected number of string elements {index} for inference input '{name}', \
                 expecting {count}"
            ))
        })?;
        strings.text.extend_from_slice(&element.to_vec());
        strings.lengths.push(element.len());
    }
    if rest.is_empty() {
        return Ok(strings);
    }
    Err(Error::invalid(format!(
        "unexpected additional data for inference input '{name}': more than {count} string elements"
    )))
}

/// Takes one element off the front of a BYTES tensor.
fn split_string<'b>(rest: &mut TensorBytes<'b>) -> Option<TensorBytes<'b>> {
    // Read once: the bytes may change.
    let length = u32::from_le_bytes(rest.read(0)?);
    let (_, behind) = rest.split_at_checked(4)?;
    let (element, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_given_twice_is_answered_once() {
        let contents = |shape: &[i64], bytes: &'static [u8]| Contents {
            data_type: DataType::Uint8,
            shape: shape.to_vec(),
            data: bytes.into(),
        };
        let half = first_half(contents(&[2, 3], b"abcabc")).unwrap();
        let OutputData::Host(bytes) = half.data else {
            panic!("on a device")
        };
        assert_eq!((&half.shape[..], &bytes[..]), (&[1, 3][..], &b"abc"[..]));
        for shape in [&[][..], &[3, 2]] {
            assert!(first_half(contents(shape, b"abcabc")).is_err());
        }
        let refused = "PyTorch execute failure: input_handles[0]: dim value is too small at 0, \
                       expected it to be >= 2, but got: 1";
        assert!(wants_two_rows(&Error::internal(refused)));
        let others = refused.replace("at 0", "at 1");
        assert!(!wants_two_rows(&Error::internal(others)));
    }

    #[test]
    fn reads_strings() {
        let read = |bytes: &'static [u8], shape: &[i64]| {
            let feed = Feed {
                name: c"X",
                data_type: DataType::Bytes,
                shape,
                data: FeedData::Host(TensorBytes::from(bytes)),
            };
            strings(&feed).map(|strings| (strings.text, strings.lengths))
        };
        assert_eq!(
            read(b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c", &[3]),
            Ok((b"abc".to_vec(), vec![2, 0, 1]))
        );
        assert_eq!(read(b"", &[0]), Ok((vec![], vec![])));
        for (bytes, expected) in [
            (
                &b"\x02\0\0\0ab"[..],
                "unexpected number of string elements 1 for inference input 'X', expecting 2",
            ),
            (
                b"\0\0\0\0\0\0\0\0\0",
                "unexpected additional data for inference input 'X': more than 2 string elements",
            ),
            (
                b"\x09\0\0\0ab",
                "unexpected number of string elements 0 for inference input 'X', expecting 2",
            ),
        ] {
            assert_eq!(read(bytes, &[2]).unwrap_err().message(), expected);
        }
    }
}
