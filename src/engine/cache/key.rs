//! Cache keys: 128 bits over everything that a response may depend on.
//!
//! XXH3 reads some 10 GB/s on any x86-64 CPU. It does not withstand who looks for collisions and
//! knows the seed, so caches inside the process get a random one.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use crate::{CorrelationId, Input, Parameter, ParameterValue, Request};

/// The key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(pub u128);

/// 32 hexadecimal digits.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A seed that nobody can guess.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The beginning of all keys of a version, in its `load`-th life.
pub(super) fn start(seed: u64, namespace: &str, name: &str, version: i64, load: u64) -> Xxh3 {
    let mut digest = FieldHasher(Xxh3::with_seed(seed));
    digest.number(FORMAT);
    digest.bytes(namespace.as_bytes());
    digest.bytes(name.as_bytes());
    digest.number(version.cast_unsigned());
    digest.number(load);
    digest.0
}

/// The key of `request`; none if the CPU cannot read an input, or not all that a backend will see
/// is there. Takes time in proportion to the inputs' bytes.
pub(super) fn key_of(start: &Xxh3, request: &Request) -> Option<CacheKey> {
    if request
        .observer()
        .is_some_and(|observer| observer.has_more_inputs())
    {
        return None;
    }
    let mut digest = FieldHasher(start.clone());
    let mut inputs: SmallVec<[&Input; 8]> = request.inputs.iter().collect();
    // Clients list inputs and parameters as they like.
    inputs.sort_by(|left, right| left.name.cmp(&right.name));
    digest.count(inputs.len());
    for input in inputs {
        digest.bytes(input.name.as_bytes());
        digest.number(u64::from(input.data_type.number()));
        digest.count(input.shape.len());
        for dim in &input.shape {
            digest.number(dim.cast_unsigned());
        }
        // However the bytes are cut into pieces.
        digest.count(input.chunks.iter().map(|chunk| chunk.len()).sum());
        for chunk in &input.chunks {
            digest.0.update(chunk.as_slice()?);
        }
    }
    digest.count(request.requested_outputs.len());
    for index in &request.requested_outputs {
        digest.number(u64::from(*index));
    }
    let mut parameters: SmallVec<[&Parameter; 8]> = request.parameters.iter().collect();
    parameters.sort_by(|left, right| left.name.cmp(&right.name));
    digest.count(parameters.len());
    for parameter in parameters {
        digest.bytes(parameter.name.as_bytes());
        match &parameter.value {
            ParameterValue::Text(text) => digest.tagged(0).bytes(text.as_bytes()),
            ParameterValue::Int(value) => digest.tagged(1).number(value.cast_unsigned()),
            ParameterValue::Bool(value) => digest.tagged(2).number(u64::from(*value)),
            ParameterValue::Double(value) => digest.tagged(3).number(value.to_bits()),
        }
    }
    // Without a sequence batcher these mean nothing to the server, but a backend can read them.
    match &request.correlation_id {
        CorrelationId::Unsigned(id) => digest.tagged(0).number(*id),
        CorrelationId::Text(id) => digest.tagged(1).bytes(id.as_bytes()),
    }
    digest.number(u64::from(request.sequence_flags.bits()));
    Some(CacheKey(digest.0.digest128()))
}

/// How many bytes [`of`] reads, about.
pub(super) fn byte_count(request: &Request) -> usize {
    request
        .inputs
        .iter()
        .flat_map(|input| &input.chunks)
        .fold(0, |sum, chunk| sum.saturating_add(chunk.len()))
}

/// Raised when what goes into a key changes: caches outside of the process may hold keys of earlier
/// releases.
const FORMAT: u64 = 1;

/// A hash of fields, each of fixed length or with its length in front.
struct FieldHasher(Xxh3);

impl FieldHasher {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    fn tagged(&mut self, tag: u64) -> &mut FieldHasher {
        self.number(tag);
        self
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use conch_config::DataType;
    use conch_memory::ByteView;
    use conch_sync::ClaimReason;

    use super::*;
    use crate::SequenceFlags;
    use crate::testing::{Recorder, draft, input, model};
    use crate::{Completion, Draft, OwnedRequest, Shape, Timestamps};

    const CONFIG: &str = "max_batch_size: 4 input [ \
                          { name: 'a' data_type: TYPE_INT32 dims: [ 2 ] }, \
                          { name: 'b' data_type: TYPE_INT32 dims: [ 1 ] } ]";

    /// A request whose parts the cases below change.
    fn request() -> OwnedRequest {
        let completion: Arc<dyn Completion> = Arc::new(Recorder::default());
        let parameter = |name: &str, value| Parameter {
            name: name.into(),
            value,
        };
        let drafted = Draft {
            parameters: vec![
                parameter("p", ParameterValue::Int(1)),
                parameter("q", ParameterValue::Text("1".into())),
            ],
            ..draft(vec![
                input("a", DataType::Int32, &[1, 2], &[&[1; 8]]),
                input("b", DataType::Int32, &[1, 1], &[&[2; 4]]),
            ])
        };
        let handle = crate::testing::admit(
            &model(CONFIG),
            drafted,
            &completion,
            1,
            Timestamps::default(),
        )
        .unwrap();
        handle.claim(ClaimReason::Execute, None).unwrap()
    }

    fn key(change: impl FnOnce(&mut Request)) -> CacheKey {
        let mut request = request();
        change(&mut request);
        key_of(&start(7, "", "m", 1, 0), &request).unwrap()
    }

    #[test]
    fn everything_that_a_response_depends_on_makes_another_key() {
        type Change = fn(&mut Request);
        let cases: [(&str, Change); 21] = [
            ("nothing", |_| {}),
            ("a byte", |r| {
                r.inputs[0].chunks[0] = ByteView::copy_of(&[1, 1, 1, 1, 1, 1, 1, 0])
            }),
            ("shape", |r| r.inputs[0].shape = Shape::from_slice(&[2, 1])),
            ("rank", |r| {
                r.inputs[0].shape = Shape::from_slice(&[1, 2, 1])
            }),
            ("data type", |r| r.inputs[0].data_type = DataType::Fp32),
            ("input name", |r| r.inputs[0].name = "c".into()),
            ("names exchanged", |r| {
                r.inputs[0].name = "b".into();
                r.inputs[1].name = "a".into();
            }),
            ("an input less", |r| drop(r.inputs.pop())),
            ("a byte moved to the other input", |r| {
                r.inputs[0].chunks[0] = ByteView::copy_of(&[1; 7]);
                r.inputs[1].chunks[0] = ByteView::copy_of(&[1, 2, 2, 2, 2]);
            }),
            ("an output", |r| r.requested_outputs.push(0)),
            ("another output", |r| r.requested_outputs.push(1)),
            ("two outputs", |r| r.requested_outputs.extend([0, 1])),
            ("parameter value", |r| {
                r.parameters[0].value = ParameterValue::Int(2)
            }),
            ("parameter type", |r| {
                r.parameters[0].value = ParameterValue::Bool(true)
            }),
            ("number as text", |r| {
                r.parameters[0].value = ParameterValue::Text("1".into())
            }),
            ("double", |r| {
                r.parameters[0].value = ParameterValue::Double(1.0)
            }),
            ("parameter name", |r| r.parameters[0].name = "o".into()),
            ("a parameter less", |r| drop(r.parameters.pop())),
            ("correlation id", |r| {
                r.correlation_id = CorrelationId::Unsigned(1)
            }),
            ("textual correlation id", |r| {
                r.correlation_id = CorrelationId::Text("1".into())
            }),
            ("sequence flags", |r| {
                r.sequence_flags = SequenceFlags::START
            }),
        ];
        let mut seen = HashMap::new();
        for (name, change) in cases {
            if let Some(other) = seen.insert(key(change), name) {
                panic!("{name} and {other} have the same key");
            }
        }
        for (name, other) in [
            ("seed", start(8, "", "m", 1, 0)),
            ("model", start(7, "", "n", 1, 0)),
            ("version", start(7, "", "m", 2, 0)),
            ("load", start(7, "", "m", 1, 1)),
            ("namespace", start(7, "n", "m", 1, 0)),
        ] {
            let key = key_of(&other, &request()).unwrap();
            assert!(!seen.contains_key(&key), "{name} does not count");
        }
    }

    #[test]
    fn what_a_response_does_not_depend_on_makes_no_other_key() {
        type Change = fn(&mut Request);
        let cases: [(&str, Change); 5] = [
            ("order of inputs", |r| r.inputs.reverse()),
            ("order of parameters", |r| r.parameters.reverse()),
            ("pieces", |r| {
                r.inputs[0].chunks = [&[1_u8; 3][..], &[], &[1; 5]]
                    .into_iter()
                    .map(ByteView::copy_of)
                    .collect();
            }),
            ("priority", |r| r.priority = 3),
            ("timeout", |r| r.timeout_us = 3),
        ];
        for (name, change) in cases {
            assert_eq!(key(change), key(|_| {}), "{name}");
        }
    }

    #[test]
    fn keys_are_written_with_all_their_digits() {
        assert_eq!(CacheKey(0xa1).to_string(), format!("{}a1", "0".repeat(30)));
    }
}
