//! What the requests of a batch note of its execution, where their stages are noted.

use std::sync::Arc;

use crate::OwnedRequest;
use crate::model::stats::ExecutionSpan;
use crate::request::context::RequestContext;
use crate::request::stages::{RequestStage, StageTimes};

/// The instance with this name is about to execute `batch`.
pub fn note_executing(batch: &[OwnedRequest], instance: &str, now_ns: impl Fn() -> u64) {
    if batch.iter().all(|live| times_of(live).is_none()) {
        return;
    }
    let now_ns = now_ns();
    let batch_size = batch
        .iter()
        .filter(|live| !live.is_null)
        .fold(0u32, |sum, live| sum.saturating_add(live.batch_count()));
    for times in batch.iter().filter_map(times_of) {
        times.note_execution(instance, batch_size, now_ns);
    }
}

fn times_of(live: &OwnedRequest) -> Option<&Arc<StageTimes>> {
    live.shared().features.stages.as_ref()
}

/// The backend says when it did what for the request.
pub fn note_span(origin: &RequestContext, span: &ExecutionSpan) {
    if let Some(times) = &origin.features.stages {
        times.reach(RequestStage::ComputeStart, span.compute_start_ns);
        times.reach(RequestStage::ComputeEnd, span.compute_end_ns);
        times.reach(RequestStage::Executed, span.exec_end_ns);
    }
}

#[cfg(test)]
mod tests {
    use conch_config::DataType;
    use conch_sync::ClaimReason;

    use super::*;
    use crate::testing::{Recorder, admit, draft, input, model};
    use crate::{Code, Completion, Draft, Error, RequestHandle, Timestamps};

    const CONFIG: &str = "max_batch_size: 8 \
                          input [ { name: 'a' data_type: TYPE_INT8 dims: [ 1 ] } ] \
                          output [ { name: 'x' data_type: TYPE_INT8 dims: [ 1 ] } ]";

    fn handle(rows: i64, times: Option<&Arc<StageTimes>>) -> RequestHandle {
        let bytes = vec![0; usize::try_from(rows).unwrap()];
        let mut draft: Draft<'_> = draft(vec![input("a", DataType::Int8, &[rows, 1], &[&bytes])]);
        draft.features.stages = times.cloned();
        let completion = Arc::<Recorder>::default() as Arc<dyn Completion>;
        let timestamps = Timestamps {
            request_start_ns: 5,
            ..Timestamps::default()
        };
        admit(&model(CONFIG), draft, &completion, 7, timestamps).unwrap()
    }

    #[test]
    fn a_request_knows_its_batch_and_its_failure() {
        let times = Arc::<StageTimes>::default();
        let handles = [handle(3, Some(&times)), handle(2, None)];
        assert_eq!(times.at(RequestStage::Start), 5);
        assert!(times.at(RequestStage::Queued) > 0);
        let claim = |handle: &RequestHandle| handle.claim(ClaimReason::Execute, None).unwrap();
        let batch: Vec<OwnedRequest> = handles.iter().map(claim).collect();
        note_executing(&batch[1..], "m_0", || unreachable!("nobody asked"));
        assert_eq!((times.batch_size(), times.instance()), (0, None));
        note_executing(&batch, "m_0", || 50);
        assert_eq!((times.batch_size(), times.instance()), (5, Some("m_0")));
        assert_eq!(times.at(RequestStage::Executing), 50);
        assert_eq!(times.failure(), None);
        for error in [Error::unavailable("first"), Error::internal("second")] {
            let _ = handles[0].shared().delivery(Some(Err(error)), true);
        }
        assert_eq!(times.failure(), Some(Code::Unavailable));
    }
}
