//! Requests that nobody sent: those that warm an instance up, and null requests for the empty
//! places of a batch.
//!
//! They pass no admission, no queue and no cache, and hold no place among the model's live
//! requests: whoever makes one knows when it is over.

use std::sync::Arc;

use conch_memory::{Block, ByteView, OutOfMemory};
use conch_scheduler::SchedulingParams;
use conch_sync::{Claim, ClaimReason};
use smallvec::{SmallVec, smallvec};

use crate::clock::monotonic_ns;
use crate::model::version::InFlightPermit;
use crate::request::context::{Request, RequestContext};
use crate::request::correlation_id::CorrelationId;
use crate::request::observer::{ReleaseGuard, RequestObserver};
use crate::request::timestamps::Timestamps;
use crate::tensor::{Input, RequestInputs};
use crate::{Completion, Delivery, ModelVersion, OwnedRequest, RequestFeatures, SequenceFlags};

/// What there is to say of a request that nobody sent.
pub(crate) struct NullRequest {
    pub(crate) inputs: RequestInputs,
    /// As in [`Request`].
    pub(crate) batch_size: u32,
    /// As in [`Request`].
    pub(crate) is_null: bool,
    pub(crate) completion: Arc<dyn Completion>,
    /// The completion's own name for the request.
    pub(crate) slot: u64,
    /// Who wants to know that nothing of it is referenced any more.
    pub(crate) observer: Option<Arc<dyn RequestObserver>>,
}

impl NullRequest {
    /// The request, ready to be executed by an instance of `model`.
    pub(crate) fn into_live(self, model: &Arc<ModelVersion>) -> OwnedRequest {
        let now_ns = monotonic_ns();
        let origin = RequestContext {
            model: InFlightPermit::uncounted(model),
            id: "".into(),
            completion: self.completion,
            slot: self.slot,
            features: RequestFeatures::default(),
            facts: SchedulingParams {
                batch_count: self.batch_size.max(1),
                queued_ns: now_ns,
                ..SchedulingParams::default()
            },
            member: None,
        };
        let request = Request {
            correlation_id: CorrelationId::default(),
            sequence_flags: SequenceFlags::NONE,
            priority: 0,
            timeout_us: 0,
            parameters: Vec::new(),
            inputs: self.inputs,
            requested_outputs: SmallVec::new(),
            batch_size: self.batch_size,
            timestamps: Timestamps {
                request_start_ns: now_ns,
                queue_start_ns: now_ns,
                deadline_ns: 0,
            },
            states: None,
            return_guard: None,
            is_null: self.is_null,
            place: None,
            step: None,
            hold: ReleaseGuard::new(self.observer),
        };
        Claim::new(origin, request)
            .claim(ClaimReason::Execute, None)
            .expect("nobody else knows it yet")
    }
}

/// A request that fills a place of a batch beside `template`: its inputs have the same names, types
/// and shapes, and are zeros; BYTES elements are empty. Shape tensors, which a batch must have in
/// common, keep their content. Inputs that only the scheduler adds are the caller's to append.
/// Nobody sees its answer.
pub(crate) fn null(model: &Arc<ModelVersion>, template: &Request) -> OwnedRequest {
    let blank = |input: &Input| {
        let spec = model.config.input(&input.name);
        if spec.is_some_and(|(_, spec)| spec.is_shape_tensor) {
            return input.clone();
        }
        let bytes = match input.data_type.element_bytes() {
            Some(_) => input.byte_size,
            // Empty elements: a length of 0 each.
            None => element_count(&input.shape).saturating_mul(4),
        };
        // Nobody sees what is made of it: without memory for zeros the template's bytes do as well.
        let Ok(zeros) = zeros(usize::try_from(bytes).unwrap_or(usize::MAX)) else {
            return input.clone();
        };
        Input {
            byte_size: zeros.len() as u64,
            chunks: smallvec![zeros],
            ..input.clone()
        }
    };
    NullRequest {
        inputs: template.inputs.iter().map(blank).collect(),
        batch_size: template.batch_size,
        is_null: true,
        completion: Arc::new(NullCompletion),
        slot: 0,
        observer: None,
    }
    .into_live(model)
}

/// So many zero bytes.
fn zeros(bytes: usize) -> Result<ByteView, OutOfMemory> {
    static FEW: [u8; 4 << 10] = [0; 4 << 10];
    if let Some(few) = FEW.get(..bytes) {
        return Ok(ByteView::from_static(few));
    }
    let mut block = Block::try_with_capacity(bytes)?;
    // Fresh memory is zeroed; whole pages cost nothing until they are looked at.
    block.advance(bytes);
    Ok(ByteView::from(block))
}

/// Of an admitted input, whose shape was checked.
fn element_count(shape: &[i64]) -> u64 {
    shape
        .iter()
        .map(|dim| u64::try_from(*dim).unwrap_or(0))
        .product()
}

/// Takes answers that nobody wants.
struct NullCompletion;

impl Completion for NullCompletion {
    fn deliver(&self, _: Delivery) {}

    fn wake(&self) {}
}

#[cfg(test)]
mod tests {
    use conch_config::DataType;

    use super::*;
    use crate::testing::admit;
    use crate::testing::{Recorder, draft, input, model};

    #[test]
    fn a_null_request_looks_like_its_template_and_holds_no_permit() {
        let version = model(
            "max_batch_size: 4 input [ { name: 'a' data_type: TYPE_INT32 dims: [ -1 ] }, \
             { name: 'b' data_type: TYPE_STRING dims: [ 2 ] } ]",
        );
        let completion: Arc<dyn Completion> = Arc::new(Recorder::default());
        let drafted = draft(vec![
            input("a", DataType::Int32, &[1, 3], &[&[7; 12]]),
            input(
                "b",
                DataType::Bytes,
                &[1, 2],
                &[b"\x03\0\0\0abc\x01\0\0\0z"],
            ),
        ]);
        let handle = admit(&version, drafted, &completion, 0, Timestamps::default()).unwrap();
        assert_eq!(version.live_count(), 1);
        let live = handle.claim(ClaimReason::Execute, None).unwrap();
        let null = null(&version, &live);
        assert_eq!(version.live_count(), 1);
        assert!(null.is_null && !live.is_null);
        assert_eq!(null.batch_size, 1);
        let seen: Vec<_> = null
            .inputs
            .iter()
            .map(|input| (&*input.name, input.shape.to_vec(), input.byte_size))
            .collect();
        assert_eq!(seen, [("a", vec![1, 3], 12), ("b", vec![1, 2], 8)]);
        for input in &null.inputs {
            let bytes = input.chunks[0].as_slice().unwrap();
            assert_eq!(bytes.len() as u64, input.byte_size);
            assert!(bytes.iter().all(|byte| *byte == 0), "{}", input.name);
        }
        let origin = Arc::clone(null.handle());
        drop(null);
        drop(origin);
        assert_eq!(version.live_count(), 1);
        drop((live, handle));
        assert_eq!(version.live_count(), 0);
    }

    #[test]
    fn any_number_of_zeros() {
        for bytes in [0, 1, 4 << 10, (4 << 10) + 1, 1 << 20] {
            let zeros = zeros(bytes).unwrap();
            assert_eq!(zeros.len(), bytes);
            assert!(zeros.as_slice().unwrap().iter().all(|byte| *byte == 0));
        }
    }
}
