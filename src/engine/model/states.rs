//! The implicit states of one sequence: what its requests hand on to each other.
//!
//! Whoever schedules a sequence keeps a [`SequenceStates`] for it and attaches it to each of its
//! requests ([`Request::attach_states`]), one at a time: the request then has the states' values as
//! inputs, and its backend may make their next values. A value that is not finished with
//! [`SequenceStates::update`] has no effect.
//!
//! A growable state is one buffer in memory of its instance's GPU: the input is a view of it, and
//! the backend writes there in place ([`SequenceStates::grow`]). All others are in host memory.

use std::path::Path;
use std::sync::Arc;

use conch_config::{DataType, ResolvedConfig, StateSpec, StateStart};
use conch_memory::{Block, Budget, ByteView, Pool};
use smallvec::smallvec;

use crate::gpus::{GrowableBuffer, GrowableSource};
use crate::model::bytes::model_bytes;
use crate::model::file::ModelFile;
use crate::tensor::{Input, Shape};
use crate::{Code, Error, truncated};

/// What a sequence's first request finds: read once per model, shared by its sequences.
#[derive(Clone, Debug)]
pub struct InitialStates {
    starts: Arc<[InitialState]>,
    /// Makes the memory of those that are growable; none if none is.
    growable: Option<GrowableSource>,
}

#[derive(Debug)]
struct InitialState {
    input_name: Arc<str>,
    output_name: Arc<str>,
    value: StateValue,
    is_in_place: bool,
    is_growable: bool,
}

/// More than any first state that is written to a file.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl InitialStates {
    /// Those of a model in `directory`; none if it has none.
    ///
    /// # Errors
    /// In upstream's words: what makes no sense, files that cannot be read or are too short.
    pub fn of(
        config: &ResolvedConfig,
        directory: &Path,
        budget: &Arc<Budget>,
    ) -> Result<Option<InitialStates>, Error> {
        let specs = conch_config::states(config)?;
        if specs.is_empty() {
            return Ok(None);
        }
        InitialStates::new(specs, budget, |path| {
            let file = ModelFile::locate(directory, path)?;
            if !file.is_inside() {
                return Err(Error::unsupported(format!(
                    "initial_state file path '{file}' is outside model directory"
                )));
            }
            file.read(FILE_BYTES_MAX)
        })
        .map(Some)
    }

    /// `read` reads a file of the model's directory, by its path in there. The values count against
    /// `budget` as long as they live.
    ///
    /// # Errors
    /// In upstream's words, if a file cannot be read or is too short; UNAVAILABLE if the memory
    /// limit does not allow a value.
    pub fn new(
        specs: Vec<StateSpec>,
        budget: &Arc<Budget>,
        mut read: impl FnMut(&str) -> Result<Vec<u8>, Error>,
    ) -> Result<InitialStates, Error> {
        let is_growable = specs.iter().any(|spec| spec.is_growable);
        let growable = is_growable.then(GrowableSource::new).transpose()?;
        let start = |spec: StateSpec| {
            let owner = format_args!("initial_state of '{}'", truncated(&spec.input_name));
            let data = match spec.start {
                StateStart::Zeros { byte_count } => {
                    model_bytes(budget, byte_count as u64, owner, |_| Ok(()))?
                }
                StateStart::File { path, byte_count } => {
                    let mut bytes = read(&path)?;
                    if let Some(wanted) = byte_count {
                        if bytes.len() < wanted {
                            let file = path.rsplit('/').next().unwrap_or(&path);
                            return Err(Error::invalid(format!(
                                "initial_state setting expects {wanted} bytes, but the data \
                                 provided from {file}only has {} bytes.",
                                bytes.len()
                            )));
                        }
                        bytes.truncate(wanted);
                    }
                    model_bytes(budget, bytes.len() as u64, owner, |block| {
                        block.copy_from_slice(&bytes);
                        Ok(())
                    })?
                }
            };
            Ok(InitialState {
                input_name: spec.input_name,
                output_name: spec.output_name,
                value: StateValue {
                    data_type: spec.data_type,
                    shape: spec.shape.into(),
                    data,
                },
                is_in_place: spec.is_in_place,
                is_growable: spec.is_growable,
            })
        };
        let starts: Result<Vec<InitialState>, Error> = specs.into_iter().map(start).collect();
        Ok(InitialStates {
            starts: starts?.into(),
            growable,
        })
    }

    /// Whether one of them lies in memory of the instance's GPU.
    pub fn are_on_device(&self) -> bool {
        self.growable.is_some()
    }
}

/// One value of a state.
#[derive(Clone, Debug)]
struct StateValue {
    data_type: DataType,
    shape: Shape,
    data: ByteView,
}

/// The states of a sequence.
#[derive(Debug)]
pub struct SequenceStates {
    start: InitialStates,
    /// As many as there are starts, in their order.
    pub(crate) states: Vec<SequenceState>,
    pool: Arc<Pool>,
    /// Its memory was given up.
    is_over: bool,
}

#[derive(Debug)]
pub(crate) struct SequenceState {
    /// What the next request finds.
    current: StateValue,
    pub(crate) next: Option<NextStateValue>,
    /// Where all values lie, if the state is growable.
    memory: Option<GrowableBuffer>,
}

/// A value in the making.
#[derive(Debug)]
pub(crate) struct NextStateValue {
    data_type: DataType,
    shape: Shape,
    buffer: Option<Block>,
    /// Of a growable state: the bytes that the backend asked for.
    grown: Option<ByteView>,
}

impl SequenceStates {
    /// Those of a sequence that begins, all in host memory. Buffers come from `pool`.
    pub fn new(start: &InitialStates, pool: &Arc<Pool>) -> SequenceStates {
        let states = start.starts.iter().map(|start| SequenceState {
            current: start.value.clone(),
            next: None,
            memory: None,
        });
        SequenceStates {
            states: states.collect(),
            start: start.clone(),
            pool: Arc::clone(pool),
            is_over: false,
        }
    }

    /// Those of a sequence that begins on an instance of the GPU `device_id`, where the growable
    /// ones get memory that holds their first values. Blocks in the driver if there are any.
    ///
    /// # Errors
    /// UNAVAILABLE if the GPU has no memory for them, INTERNAL, what the driver refuses.
    pub fn on_device(
        start: &InitialStates,
        pool: &Arc<Pool>,
        device_id: i32,
    ) -> Result<SequenceStates, Error> {
        let mut states = SequenceStates::new(start, pool);
        let Some(source) = &start.growable else {
            return Ok(states);
        };
        for (start, state) in start.starts.iter().zip(&mut states.states) {
            if start.is_growable {
                let bytes = start.value.data.as_slice().unwrap_or_default();
                let memory = source.buffer(device_id, bytes)?;
                state.current.data = memory.grow(bytes.len())?;
                state.memory = Some(memory);
            }
        }
        Ok(states)
    }

    /// Whether [`SequenceStates::give_up_memory`] was called.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The growable ones get the shape of their first values again. Their bytes stay.
    pub(crate) fn rewind(&mut self) {
        for (start, state) in self.start.starts.iter().zip(&mut self.states) {
            let Some(memory) = &state.memory else {
                continue;
            };
            // Never fails: it has had as many.
            if let Ok(data) = memory.grow(start.value.data.len()) {
                state.current = StateValue {
                    data,
                    ..start.value.clone()
                };
            }
        }
    }

    /// Gives up the memory of growable states, whose sequence is over. A request that still holds
    /// views of it keeps it.
    pub(crate) fn give_up_memory(&mut self) {
        self.is_over = true;
        for state in &mut self.states {
            if state.memory.take().is_some() {
                state.current.data = ByteView::empty();
                state.next = None;
            }
        }
    }

    /// Begins anew, for the slot's next sequence.
    pub fn restart(&mut self) {
        *self = SequenceStates::new(&self.start, &self.pool);
    }

    /// The current values, as inputs of a request.
    pub fn inputs(&self) -> impl Iterator<Item = Input> {
        self.start
            .starts
            .iter()
            .zip(&self.states)
            .map(|(start, state)| Input {
                name: Arc::clone(&start.input_name),
                data_type: state.current.data_type,
                shape: state.current.shape.clone(),
                // Lengths in memory fit 64 bits.
                byte_size: state.current.data.len() as u64,
                chunks: smallvec![state.current.data.clone()],
            })
    }

    /// Begins the next value of the state with this output name; one begun before takes type and
    /// shape, and keeps its buffer. Returns the state's number.
    ///
    /// # Errors
    /// INVALID_ARG if there is none, or the type is none.
    pub fn begin(&mut self, output: &str, data_type: u32, shape: &[i64]) -> Result<usize, Error> {
        let names = self.start.starts.iter().map(|start| &*start.output_name);
        let number = names
            .into_iter()
            .position(|name| name == output)
            .ok_or_else(|| {
                Error::invalid(format!("state '{output}' is not a valid state name."))
            })?;
        let data_type = DataType::from_number(data_type).ok_or_else(|| {
            Error::invalid(format!(
                "state '{output}' has invalid data type {data_type}"
            ))
        })?;
        let state = self.state(number)?;
        let before = state.next.take();
        let (buffer, grown) = before.map_or((None, None), |next| (next.buffer, next.grown));
        state.next = Some(NextStateValue {
            data_type,
            shape: Shape::from_slice(shape),
            buffer,
            grown,
        });
        Ok(number)
    }

    /// As [`SequenceStates::buffer`] for a growable state, whose one buffer gets so many bytes;
    /// none for any other. It begins with the current value, and what is new in it is zeros. Blocks
    /// in the driver if it grows.
    ///
    /// # Errors
    /// INVALID_ARG if no next value was begun; UNAVAILABLE beyond the buffer's addresses or the
    /// device's memory, which changes nothing.
    pub fn grow(&mut self, number: usize, bytes: u64) -> Result<Option<ByteView>, Error> {
        let SequenceState { next, memory, .. } = self.state(number)?;
        let Some(memory) = memory else {
            return Ok(None);
        };
        let next = next.as_mut().ok_or_else(not_begun)?;
        let view = memory.grow(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        next.grown = Some(view.clone());
        Ok(Some(view))
    }

    /// Where the next value is to be written: the buffer of an earlier call if it has this size,
    /// else another one, whose contents mean nothing. Under `use_same_buffer_for_input_output`, a
    /// first buffer of the current value's size begins with that value.
    ///
    /// # Errors
    /// INVALID_ARG if no next value was begun, UNAVAILABLE for a size beyond the address space.
    pub fn buffer(&mut self, number: usize, bytes: u64) -> Result<&mut [u8], Error> {
        let size = usize::try_from(bytes)
            .ok()
            .filter(|size| *size <= BUFFER_BYTES_MAX)
            .ok_or_else(|| {
                Error::new(
                    Code::Unavailable,
                    format!("failed to allocate {bytes} bytes for a state"),
                )
            })?;
        let is_in_place = self
            .start
            .starts
            .get(number)
            .is_some_and(|start| start.is_in_place);
        let pool = Arc::clone(&self.pool);
        let SequenceState { current, next, .. } = self.state(number)?;
        let next = next.as_mut().ok_or_else(not_begun)?;
        if next.buffer.as_ref().is_none_or(|block| block.len() != size) {
            let is_first = next.buffer.is_none();
            // Another sequence's bytes would show where the backend leaves gaps.
            let mut block = pool.try_take_zeroed(size)?;
            match current.data.as_slice() {
                Some(value) if is_in_place && is_first && value.len() == size => {
                    block.extend_from_slice(value);
                }
                _ => block.advance(size),
            }
            next.buffer = Some(block);
        }
        Ok(next.buffer.as_mut().map_or(&mut [], Block::as_mut_slice))
    }

    /// How many bytes the buffer of the next value has; 0 without one.
    pub fn buffer_len(&self, number: usize) -> usize {
        let next = self
            .states
            .get(number)
            .and_then(|state| state.next.as_ref());
        next.and_then(|next| next.buffer.as_ref())
            .map_or(0, Block::len)
    }

    /// Makes the next value the current one.
    ///
    /// # Errors
    /// INVALID_ARG if none was begun since the last update.
    pub fn update(&mut self, number: usize) -> Result<(), Error> {
        let state = self.state(number)?;
        let next = state.next.take().ok_or_else(not_begun)?;
        let data = match (&state.memory, next.grown) {
            (None, _) => next.buffer.map_or_else(ByteView::empty, ByteView::from),
            (Some(_), Some(grown)) => grown,
            // Written in place, where the input is.
            (Some(_), None) => state.current.data.clone(),
        };
        state.current = StateValue {
            data_type: next.data_type,
            shape: next.shape,
            data,
        };
        Ok(())
    }

    fn state(&mut self, number: usize) -> Result<&mut SequenceState, Error> {
        self.states
            .get_mut(number)
            .ok_or_else(|| Error::internal("a state that the sequence does not have"))
    }
}

fn not_begun() -> Error {
    Error::invalid("the state has no next value: it was updated, or its request is gone")
}

/// More than any host has: a size beyond is a mistake, which must not end the process.
const BUFFER_BYTES_MAX: usize = 1 << 42;

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, byte_count: usize, is_in_place: bool) -> StateSpec {
        StateSpec {
            input_name: format!("{name}_in").into(),
            output_name: format!("{name}_out").into(),
            data_type: DataType::Uint8,
            shape: vec![1, byte_count.try_into().unwrap()],
            start: StateStart::Zeros { byte_count },
            is_in_place,
            is_growable: false,
        }
    }

    fn states(specs: Vec<StateSpec>) -> SequenceStates {
        let start =
            InitialStates::new(specs, &Budget::new(1 << 20), |_| panic!("no files")).unwrap();
        SequenceStates::new(&start, &Pool::new(1 << 20))
    }

    fn values(states: &SequenceStates) -> Vec<(Shape, Vec<u8>)> {
        states
            .inputs()
            .map(|input| {
                assert_eq!(input.byte_size, input.chunks[0].len() as u64);
                (input.shape, input.chunks[0].as_ref().to_vec())
            })
            .collect()
    }

    fn shape(dims: &[i64]) -> Shape {
        Shape::from_slice(dims)
    }

    const UINT8: u32 = 2;

    #[test]
    fn a_value_takes_effect_when_it_is_updated() {
        let mut states = states(vec![spec("a", 2, false), spec("b", 1, false)]);
        let start = [(shape(&[1, 2]), vec![0, 0]), (shape(&[1, 1]), vec![0])];
        assert_eq!(values(&states), start);
        let number = states.begin("a_out", UINT8, &[1, 2]).unwrap();
        states.buffer(number, 2).unwrap().copy_from_slice(&[1, 2]);
        assert_eq!(states.buffer_len(number), 2);
        assert_eq!(values(&states), start, "not yet");
        states.update(number).unwrap();
        assert_eq!(values(&states)[0], (shape(&[1, 2]), vec![1, 2]));
        assert_eq!(values(&states)[1], start[1]);
        // Another size, another shape.
        states.begin("a_out", UINT8, &[1, 3]).unwrap();
        states.buffer(number, 3).unwrap().fill(7);
        states.update(number).unwrap();
        assert_eq!(values(&states)[0], (shape(&[1, 3]), vec![7; 3]));
        // Without a buffer there is nothing.
        states.begin("a_out", UINT8, &[1, 0]).unwrap();
        states.update(number).unwrap();
        assert_eq!(values(&states)[0], (shape(&[1, 0]), vec![]));
        states.restart();
        assert_eq!(values(&states), start);
    }

    #[test]
    fn a_buffer_of_the_same_size_is_used_again() {
        let mut states = states(vec![spec("a", 2, false), spec("b", 2, true)]);
        let number = states.begin("a_out", UINT8, &[1, 2]).unwrap();
        let first = states.buffer(number, 2).unwrap();
        first.fill(5);
        let address = first.as_ptr();
        let again = states.buffer(number, 2).unwrap();
        assert_eq!((again.as_ptr(), &*again), (address, &[5, 5][..]));
        states.begin("a_out", UINT8, &[2, 1]).unwrap();
        assert_eq!(states.buffer(number, 2).unwrap(), [5, 5]);
        assert_eq!(states.buffer(number, 9).unwrap().len(), 9);
        assert_eq!(states.buffer(number, 0).unwrap(), [0; 0]);

        // In place: what the input holds is there already.
        let number = states.begin("b_out", UINT8, &[1, 2]).unwrap();
        states.buffer(number, 2).unwrap().copy_from_slice(&[3, 4]);
        states.update(number).unwrap();
        states.begin("b_out", UINT8, &[1, 2]).unwrap();
        let buffer = states.buffer(number, 2).unwrap();
        assert_eq!(buffer, [3, 4]);
        buffer[1] = 9;
        states.update(number).unwrap();
        assert_eq!(values(&states)[1].1, [3, 9]);
    }

    #[test]
    fn misuse_is_refused() {
        let mut states = states(vec![spec("a", 2, false)]);
        let message = |error: Error| error.to_string();
        let unknown = states.begin("a_in", UINT8, &[1]).map_err(message);
        assert_eq!(
            unknown,
            Err("Invalid argument: state 'a_in' is not a valid state name.".to_owned())
        );
        let none = states.begin("a_out", 77, &[1]).map_err(message);
        assert_eq!(
            none,
            Err("Invalid argument: state 'a_out' has invalid data type 77".to_owned())
        );
        assert!(states.update(0).is_err(), "nothing was begun");
        assert!(states.buffer(0, 2).is_err());
        states.begin("a_out", UINT8, &[1]).unwrap();
        assert!(states.buffer(0, u64::MAX).is_err());
        states.update(0).unwrap();
        assert!(states.update(0).is_err(), "once");
        assert!(states.buffer(1, 2).is_err(), "no such state");
    }

    #[test]
    fn a_sequence_may_begin_with_a_file() {
        let file = |byte_count| StateSpec {
            start: StateStart::File {
                path: "initial_state/f".to_owned(),
                byte_count,
            },
            ..spec("a", 3, false)
        };
        let start = |byte_count, content: &[u8]| {
            InitialStates::new(vec![file(byte_count)], &Budget::new(1 << 20), |path| {
                assert_eq!(path, "initial_state/f");
                Ok(content.to_vec())
            })
            .map(|start| {
                values(&SequenceStates::new(&start, &Pool::new(0)))[0]
                    .1
                    .clone()
            })
            .map_err(|error| error.to_string())
        };
        assert_eq!(start(Some(3), b"abcd"), Ok(b"abc".to_vec()));
        assert_eq!(start(None, b"abcd"), Ok(b"abcd".to_vec()));
        assert_eq!(
            start(Some(3), b"ab"),
            Err(
                "Invalid argument: initial_state setting expects 3 bytes, but the data provided \
                 from fonly has 2 bytes."
                    .to_owned()
            )
        );
        let budget = Budget::new(100);
        let missing =
            InitialStates::new(vec![file(None)], &budget, |_| Err(Error::internal("gone")));
        assert_eq!(missing.unwrap_err().message, "gone");
    }

    #[test]
    fn first_values_count_against_the_budget() {
        let budget = Budget::new(100 << 10);
        let start = |byte_count| {
            InitialStates::new(vec![spec("a", byte_count, false)], &budget, |_| panic!())
                .map_err(|error| error.to_string())
        };
        let held = start(60 << 10).unwrap();
        assert_eq!(
            start(60 << 10).unwrap_err(),
            "Unavailable: initial_state of 'a_in' needs 61440 bytes, which the memory limit of \
             102400 bytes does not allow"
        );
        drop(held);
        assert!(start(60 << 10).is_ok());
        assert!(start(1 << 45).is_err());
    }
}
