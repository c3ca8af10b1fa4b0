//! Warming instances up: each executes its model's samples on its own thread before the version is
//! ready.
//!
//! The bytes are made or read once per version, on the loading thread, and shared by its instances.
//! A sample's requests go straight to the instance as one batch; what the backend reports of them
//! is counted, as upstream.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use conch_config::{WarmUpInput, WarmUpSource, WarmUpSpec, warm_ups};
use conch_log as log;
use conch_memory::{Budget, ByteView};
use smallvec::smallvec;

use crate::model::bytes::model_bytes;
use crate::model::file::ModelFile;
use crate::request::draft::{Draft, DraftInput};
use crate::request::observer::RequestObserver;
use crate::request::synthetic::NullRequest;
use crate::tensor::{Input, RequestInputs, Shape};
use crate::validation::draft::examine;
use crate::validation::tensor::byte_count;
use crate::{Batch, Completion, Delivery, Error, ModelVersion, truncated};

/// What the instances of a version are to execute. Costs nothing where there is nothing.
#[derive(Default)]
pub struct WarmUp {
    samples: Vec<WarmUpSample>,
}

struct WarmUpSample {
    name: String,
    request_count: u32,
    iteration_count: u32,
    inputs: RequestInputs,
    batch_size: u32,
}

impl WarmUp {
    /// The samples of `model`, whose files lie in `directory`. Blocks. Their bytes count against
    /// `budget` as long as this lives.
    ///
    /// # Errors
    /// In upstream's words: what does not agree with the model's configuration, or cannot be read.
    pub fn prepare(
        model: &Arc<ModelVersion>,
        directory: &Path,
        budget: &Arc<Budget>,
    ) -> Result<WarmUp, Error> {
        let specs = warm_ups(&model.config)?;
        let samples = specs.into_iter().map(|spec| {
            let source = SampleSource {
                sample: &spec.name,
                directory,
                budget,
            };
            sample(model, &spec, &source)
        });
        Ok(WarmUp {
            samples: samples.collect::<Result<_, Error>>()?,
        })
    }

    /// Has every sample executed, in order, by `execute`, which empties the batch. Called on the
    /// instance's thread; blocks until the backend has given back all requests and answered them,
    /// unless `execute` fails: then nobody gives them back.
    ///
    /// # Errors
    /// INVALID_ARG with what the backend answered, in upstream's words, or that of `execute`; no
    /// further sample is executed then.
    pub(crate) fn run(
        &self,
        model: &Arc<ModelVersion>,
        instance: &str,
        mut execute: impl FnMut(&mut Batch) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut batch = Batch::new();
        for sample in &self.samples {
            for iteration in 1..=sample.iteration_count {
                log::verbose!(
                    1,
                    "model '{}' instance {instance} is running warmup sample '{}' for iteration \
                     {iteration}",
                    model.name,
                    sample.name
                );
                let audience = Arc::new(SampleObserver::default());
                batch.extend((0..sample.request_count).map(|index| {
                    NullRequest {
                        inputs: sample.inputs.clone(),
                        batch_size: sample.batch_size,
                        is_null: false,
                        completion: Arc::clone(&audience) as Arc<dyn Completion>,
                        slot: u64::from(index),
                        observer: Some(Arc::clone(&audience) as Arc<dyn RequestObserver>),
                    }
                    .into_live(model)
                }));
                execute(&mut batch)?;
                let errors = audience.wait(sample.request_count);
                if !errors.is_empty() {
                    let errors: String = errors
                        .iter()
                        .map(|error| format!("{}; ", error.message))
                        .collect();
                    return Err(Error::invalid(format!(
                        "failed to run warmup sample '{}': {errors}",
                        sample.name
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Where a sample's bytes come from.
struct SampleSource<'s> {
    sample: &'s str,
    directory: &'s Path,
    budget: &'s Arc<Budget>,
}

/// A sample's inputs, checked as upstream checks them: those that the model has as those of any
/// request, others not at all.
fn sample(
    model: &Arc<ModelVersion>,
    spec: &WarmUpSpec,
    source: &SampleSource<'_>,
) -> Result<WarmUpSample, Error> {
    let config = &*model.config;
    let mut draft = Draft::default();
    let mut others = Vec::new();
    for input in &spec.inputs {
        let data = source.read(input)?;
        let known = config.input(&input.name);
        let mut shape = Shape::new();
        // Upstream also gives one to shape tensors, which then do not agree with their own
        // configuration.
        if config.is_batching() && !known.is_some_and(|(_, known)| known.is_shape_tensor) {
            shape.push(1);
        }
        shape.extend_from_slice(&input.dims);
        if known.is_none() {
            // One that the scheduler would add: controls and states of sequences. It is not
            // checked.
            others.push(Input {
                name: input.name.as_str().into(),
                data_type: input.data_type,
                shape,
                byte_size: data.len() as u64,
                chunks: smallvec![data],
            });
            continue;
        }
        draft.inputs.push(DraftInput {
            name: &input.name,
            data_type: input.data_type,
            shape,
            chunks: smallvec![data],
        });
    }
    let mut inputs = RequestInputs::new();
    let examined = examine(model, &mut draft, &mut inputs)?;
    inputs.extend(others);
    Ok(WarmUpSample {
        name: spec.name.clone(),
        request_count: spec.request_count,
        iteration_count: spec.iteration_count,
        inputs,
        batch_size: examined.batch_size,
    })
}

impl SampleSource<'_> {
    /// The bytes of an input.
    fn read(&self, input: &WarmUpInput) -> Result<ByteView, Error> {
        // Of a BYTES tensor of empty elements.
        let element_bytes = input.data_type.element_bytes();
        let bytes = byte_count(&input.name, &input.dims, element_bytes.unwrap_or(4))?;
        match &input.source {
            WarmUpSource::Zeros => self.block(bytes, |_| Ok(())),
            WarmUpSource::Random => self.block(bytes, |block| {
                fill_randomly(block);
                Ok(())
            }),
            WarmUpSource::File { folder, name } => {
                let file = ModelFile::locate(self.directory, &format!("{folder}/{name}"))?;
                if !file.is_inside() {
                    return Err(Error::unsupported(format!(
                        "warmup file path '{file}' for input '{}' is outside model directory",
                        input.name
                    )));
                }
                let size_bytes = file.size_bytes()?;
                let wanted_bytes = match element_bytes {
                    Some(_) if size_bytes < bytes => {
                        // The missing space is upstream's.
                        return Err(Error::invalid(format!(
                            "[request id: <id_unknown>] warmup setting expects {bytes} bytes, but \
                             the data provided from {name}only has {size_bytes} bytes"
                        )));
                    }
                    Some(_) => bytes,
                    None => size_bytes,
                };
                self.block(wanted_bytes, |block| {
                    let contents = file.read_prefix(wanted_bytes)?;
                    // It may have become shorter since: then what is missing stays zero.
                    let end = contents.len().min(block.len());
                    block[..end].copy_from_slice(&contents[..end]);
                    Ok(())
                })
            }
        }
    }

    /// So many bytes, which begin as zeros and are counted against the budget.
    fn block(
        &self,
        bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<ByteView, Error> {
        let owner = format_args!("warmup sample '{}'", truncated(self.sample));
        model_bytes(self.budget, bytes, owner, fill)
    }
}

/// The same bytes every time, like upstream's: a failure can be seen again. (SplitMix64.)
fn fill_randomly(bytes: &mut [u8]) {
    let mut state = 0_u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = (word ^ (word >> 31)).to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
}

/// Waits for what becomes of a sample's requests.
#[derive(Default)]
struct SampleObserver {
    seen: Mutex<SampleOutcome>,
    changed: Condvar,
}

#[derive(Default)]
struct SampleOutcome {
    final_count: u32,
    released_count: u32,
    errors: Vec<Error>,
}

impl SampleObserver {
    /// Waits until `count` requests are answered and released; returns the errors among the
    /// answers.
    fn wait(&self, count: u32) -> Vec<Error> {
        let seen = self.changed.wait_while(self.seen(), |seen| {
            seen.final_count < count || seen.released_count < count
        });
        std::mem::take(&mut seen.unwrap_or_else(PoisonError::into_inner).errors)
    }

    fn seen(&self) -> MutexGuard<'_, SampleOutcome> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Completion for SampleObserver {
    fn deliver(&self, delivery: Delivery) {
        let mut seen = self.seen();
        seen.final_count += u32::from(delivery.is_final());
        if let Some(Err(error)) = delivery.into_outcome() {
            seen.errors.push(error);
        }
        self.changed.notify_all();
    }

    fn wake(&self) {}
}

impl RequestObserver for SampleObserver {
    fn released(&self) {
        self.seen().released_count += 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::stats::FailureReason;
    use crate::request::refusal::refuse;
    use crate::testing::Directory;
    use crate::testing::model;
    use crate::{Code, PendingResponses};

    const TENSORS: &str = "max_batch_size: 4
        input [ \
                           { name: 'a' data_type: TYPE_INT16 dims: [ -1 ] }, \
                           { name: 'b' data_type: TYPE_STRING dims: [ 2 ] optional: true } \
                           ]
        output [ { name: 'x' data_type: TYPE_INT16 dims: [ 1 ] } ]";

    fn prepare(
        text: &str,
        limit_bytes: u64,
    ) -> (Directory, Result<(Arc<ModelVersion>, WarmUp), Error>) {
        let directory = Directory::new();
        directory.file("m/warmup/raw", "abcdefgh");
        directory.file("m/warmup/words", "\u{1}\0\0\0x\u{2}\0\0\0yz");
        directory.file("secret", "abcdefgh");
        let version = model(text);
        let budget = Budget::new(limit_bytes);
        let prepared = WarmUp::prepare(&version, &directory.path("m"), &budget);
        (directory, prepared.map(|warm_up| (version, warm_up)))
    }

    /// What an instance sees of one request: name, shape and bytes of each input.
    type Inputs = Vec<(String, Vec<i64>, Vec<u8>)>;

    fn inputs(live: &crate::OwnedRequest) -> Inputs {
        let of = |input: &Input| {
            let bytes: Vec<u8> = input
                .chunks
                .iter()
                .flat_map(|chunk| chunk.as_slice().unwrap().to_vec())
                .collect();
            assert_eq!(bytes.len() as u64, input.byte_size);
            (input.name.to_string(), input.shape.to_vec(), bytes)
        };
        live.inputs.iter().map(of).collect()
    }

    #[test]
    fn samples_execute_in_order_as_single_batches() {
        let text = format!(
            "{TENSORS}
             model_warmup {{ name: 'none' inputs {{ key: 'a' value {{ \
             data_type: TYPE_INT16 dims: 1 zero_data: true }} }} }}
             model_warmup {{ \
             name: 'zeros' batch_size: 3 count: 2 inputs {{ key: 'a' value {{ data_type: \
             TYPE_INT16 dims: 3 zero_data: true }} }} }}
             model_warmup {{ name: \
             'files' batch_size: 1 inputs {{ key: 'a' value {{ data_type: TYPE_INT16 dims: 2 \
             input_data_file: 'raw' }} }}
               inputs {{ key: 'b' value {{ data_type: \
             TYPE_STRING dims: 2 input_data_file: 'words' }} }} }}
             model_warmup {{ \
             name: 'controls' batch_size: 2 inputs {{ key: 'a' value {{ data_type: TYPE_INT16 \
             dims: 16 random_data: true }} }}
               inputs {{ key: 'START' value {{ \
             data_type: TYPE_INT32 dims: 1 input_data_file: 'raw' }} }}
               inputs {{ \
             key: 'b' value {{ data_type: TYPE_STRING dims: 2 random_data: true }} }} }}"
        );
        let (_directory, prepared) = prepare(&text, 1 << 20);
        let (version, warm_up) = prepared.unwrap();
        let mut batches: Vec<Vec<Inputs>> = Vec::new();
        let mut pending = PendingResponses::default();
        warm_up
            .run(&version, "m_0", |batch| {
                assert_eq!(version.live_count(), 0);
                batches.push(batch.iter().map(inputs).collect());
                for live in batch.drain(..) {
                    assert_eq!(live.batch_size, 1);
                    pending.push(live.shared(), None, true);
                }
                pending.flush();
                Ok(())
            })
            .unwrap();
        let zeros = vec![vec![("a".to_owned(), vec![1, 3], vec![0; 6])]; 3];
        let files = vec![vec![
            ("a".to_owned(), vec![1, 2], b"abcd".to_vec()),
            (
                "b".to_owned(),
                vec![1, 2],
                b"\x01\0\0\0x\x02\0\0\0yz".to_vec(),
            ),
        ]];
        assert_eq!(batches[..3], [zeros.clone(), zeros, files]);
        let controls = &batches[3];
        assert_eq!((batches.len(), controls.len()), (4, 2));
        assert_eq!(controls[0], controls[1]);
        let (_, shape, random) = &controls[0][0];
        assert_eq!((&shape[..], random.len()), (&[1, 16][..], 32));
        assert!(random.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(controls[0][1], ("b".to_owned(), vec![1, 2], vec![0; 8]));
        assert_eq!(
            controls[0][2],
            ("START".to_owned(), vec![1, 1], b"abcd".to_vec())
        );
    }

    #[test]
    fn a_failure_ends_it() {
        let text = format!(
            "{TENSORS}
             model_warmup {{ name: 'one' batch_size: 2 count: 3 inputs {{ \
             key: 'a' value {{ data_type: TYPE_INT16 dims: 1 zero_data: true }} }} }}"
        );
        let (_directory, prepared) = prepare(&text, 1 << 20);
        let (version, warm_up) = prepared.unwrap();
        let mut pending = PendingResponses::default();
        let mut execution_count = 0;
        let error = warm_up.run(&version, "m_0", |batch| {
            execution_count += 1;
            for (index, live) in batch.drain(..).enumerate() {
                if execution_count == 2 {
                    let error = Error::internal(format!("no {index}"));
                    refuse(live, FailureReason::Backend, error, &mut pending);
                } else {
                    pending.push(live.shared(), None, true);
                }
            }
            pending.flush();
            Ok(())
        });
        assert_eq!(
            error,
            Err(Error::invalid(
                "failed to run warmup sample 'one': no 0; no 1; "
            ))
        );
        assert_eq!(execution_count, 2);
    }

    #[test]
    fn it_waits_for_answers_and_releases_from_other_threads() {
        let text = format!(
            "{TENSORS}
             model_warmup {{ name: 'one' batch_size: 2 inputs {{ key: 'a' \
             value {{ data_type: TYPE_INT16 dims: 1 zero_data: true }} }} }}"
        );
        let (_directory, prepared) = prepare(&text, 1 << 20);
        let (version, warm_up) = prepared.unwrap();
        let released = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            warm_up
                .run(&version, "m_0", |batch| {
                    for (index, live) in batch.drain(..).enumerate() {
                        let released = Arc::clone(&released);
                        scope.spawn(move || {
                            let origin = Arc::clone(live.handle());
                            let answer = || {
                                let mut pending = PendingResponses::default();
                                pending.push(origin.shared(), None, true);
                                pending.flush();
                            };
                            if index == 0 {
                                answer();
                            }
                            released.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            drop(live);
                            if index == 1 {
                                answer();
                            }
                        });
                    }
                    Ok(())
                })
                .unwrap();
            assert_eq!(released.load(std::sync::atomic::Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn refusals() {
        for (inputs, code, expected) in [
            (
                "inputs { key: 'a' value \
                 { data_type: TYPE_INT16 dims: 5 input_data_file: 'raw' } }",
                Code::InvalidArg,
                "[request id: <id_unknown>] warmup setting expects 10 bytes, but the data provided \
                 from rawonly has 8 bytes",
            ),
            (
                "inputs { key: 'a' value \
                 { data_type: TYPE_INT16 dims: 1 input_data_file: 'nothing' } }",
                Code::Internal,
                "failed to open text file for read ",
            ),
            (
                "inputs { key: 'a' value \
                 { data_type: TYPE_INT16 dims: 1 input_data_file: '../../secret' } }",
                Code::Unsupported,
                "warmup file path '",
            ),
            (
                "inputs { key: 'a' value \
                 { data_type: TYPE_INT16 dims: [ 1, 1 ] zero_data: true } }",
                Code::InvalidArg,
                "[request id: <id_unknown>] unexpected shape for input 'a' for model 'm'. Expected \
                 [-1,-1], got [1,1,1]. ",
            ),
            (
                "inputs { key: 'a' value { data_type: TYPE_INT32 dims: 1 zero_data: true } }",
                Code::InvalidArg,
                "[request id: <id_unknown>] inference input 'a' data-type is 'INT32', but model \
                 'm' expects 'INT16'",
            ),
            (
                "inputs { key: 'START' value { data_type: TYPE_INT32 dims: 1 zero_data: true } }",
                Code::InvalidArg,
                "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 \
                 inputs for model 'm'. ",
            ),
            (
                "inputs { key: 'a' value { data_type: TYPE_INT16 dims: 1000000 zero_data: true } }",
                Code::Unavailable,
                "warmup sample 's' needs 2000000 bytes, which the memory limit of 1048576 bytes \
                 does not allow",
            ),
            (
                "inputs { key: 'a' value \
                 { data_type: TYPE_INT16 dims: [ 4611686018427387904 ] zero_data: true } }",
                Code::InvalidArg,
                "byte size for tensor 'a' exceeds maximum size of 9223372036854775807",
            ),
            (
                "inputs { key: 'a' value { data_type: TYPE_INT16 dims: -2 zero_data: true } }",
                Code::InvalidArg,
                "tensor 'a' contains an invalid dimension [-2]",
            ),
        ] {
            let text = format!("{TENSORS} model_warmup {{ name: 's' batch_size: 1 {inputs} }}");
            let error = prepare(&text, 1 << 20).1.map(|_| ()).unwrap_err();
            assert_eq!(error.code, code, "{inputs}");
            assert!(error.message.starts_with(expected), "{inputs}: {error}");
        }
    }
}
