//! The observer of a request within this process.
//!
//! Shards want none of it: their requests carry one empty `Option`. An embedder of the C API, a
//! backend that asks its server, and a request that is traced have an [`RequestObserver`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::request::trace::{Trace, TraceActivity};

/// Implemented by embedders, traces and backends that ask the server. The type behind it is known
/// to whoever made it.
pub trait RequestObserver: Any + Send + Sync {
    /// Where the request's stations are reported, while the request lives.
    fn trace(&self) -> Option<Trace> {
        None
    }

    /// Whether instances may see other inputs than the request has (those of a host policy).
    fn has_more_inputs(&self) -> bool {
        false
    }

    /// The request is over: its inputs are not referenced any more. Called once, from whatever
    /// thread gave the request back, without any lock held; answers may still follow.
    fn released(&self);
}

impl fmt::Debug for dyn RequestObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestObserver")
    }
}

/// The last part of a request to be dropped: tells the observer.
#[derive(Debug, Default)]
pub(crate) struct ReleaseGuard(Option<Arc<dyn RequestObserver>>);

impl ReleaseGuard {
    pub(crate) fn new(observer: Option<Arc<dyn RequestObserver>>) -> ReleaseGuard {
        ReleaseGuard(observer)
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn RequestObserver>> {
        self.0.as_ref()
    }

    /// The request was never taken on: it stays with the observer, who learns it otherwise.
    pub(crate) fn defuse(&mut self) {
        self.0 = None;
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        let Some(observer) = self.0.take() else {
            return;
        };
        if let Some(trace) = observer.trace() {
            trace.reach_now(TraceActivity::RequestEnd);
        }
        observer.released();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use conch_config::DataType;
    use conch_sync::ClaimReason;

    use super::*;
    use crate::request::trace::{TraceSink, TracedTensor};
    use crate::testing::admit;
    use crate::testing::{Recorder, draft, input, model};
    use crate::threads::timer_thread::TimerThread;
    use crate::{Code, RequestHandle, cancel};
    use crate::{Completion, Draft, ModelVersion, Timestamps};

    const CONFIG: &str = "input [ { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] } ] output [ \
                          { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

    /// Notes what it learns, in order.
    #[derive(Default)]
    struct Diary(Mutex<Vec<String>>);

    impl Diary {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }

        fn read(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl TraceSink for Diary {
        fn reached(&self, activity: TraceActivity, timestamp_ns: u64) {
            assert!(timestamp_ns > 0);
            self.note(format!("{activity:?}"));
        }

        fn wants_tensors(&self) -> bool {
            true
        }

        fn showed(&self, activity: TraceActivity, tensor: &TracedTensor<'_>) {
            let (name, bytes) = (tensor.name, tensor.data.as_ref());
            self.note(format!("{activity:?} {name} {:?} {bytes:?}", tensor.shape));
        }
    }

    struct Noting(Arc<Diary>);

    impl RequestObserver for Noting {
        fn trace(&self) -> Option<Trace> {
            Some(Trace::new(self.0.clone()))
        }

        fn released(&self) {
            self.0.note("released".to_owned());
        }
    }

    fn drafted(diary: &Arc<Diary>) -> Draft<'static> {
        Draft {
            observer: Some(Arc::new(Noting(diary.clone()))),
            ..draft(vec![input("a", DataType::Int32, &[1], &[&[1, 2], &[3, 4]])])
        }
    }

    fn handle(
        model: &Arc<ModelVersion>,
        diary: &Arc<Diary>,
        recorder: &Arc<Recorder>,
    ) -> RequestHandle {
        let completion = recorder.clone() as Arc<dyn Completion>;
        let timestamps = Timestamps {
            request_start_ns: 1,
            ..Timestamps::default()
        };
        admit(model, drafted(diary), &completion, 7, timestamps).unwrap()
    }

    const ADMITTED: [&str; 3] = [
        "RequestStart",
        "QueueStart",
        "TensorQueueInput a [1] [1, 2, 3, 4]",
    ];

    #[test]
    fn the_observer_learns_of_the_end_once_and_last() {
        let (model, diary, recorder) = (model(CONFIG), Arc::default(), Arc::default());
        let handle = handle(&model, &diary, &recorder);
        assert_eq!(diary.read(), ADMITTED);
        let live = handle.claim(ClaimReason::Execute, None).unwrap();
        assert!(live.observer().is_some());
        assert_eq!(diary.read(), [""; 0], "nothing before it is given back");
        drop(live);
        assert_eq!(diary.read(), ["RequestEnd", "released"]);
        drop(handle);
        assert_eq!(diary.read(), [""; 0]);
    }

    #[test]
    fn who_is_refused_is_not_told_twice() {
        let (model, diary, recorder) = (model(CONFIG), Arc::default(), Arc::<Recorder>::default());
        // Not admitted.
        let mut wrong = drafted(&diary);
        wrong.inputs[0].shape[0] = 2;
        let completion = recorder.clone() as Arc<dyn Completion>;
        assert!(admit(&model, wrong, &completion, 7, Timestamps::default()).is_err());
        assert_eq!(diary.read(), [""; 0]);
        // Not submitted: the model has no cores.
        let handle = handle(&model, &diary, &recorder);
        assert!(
            model
                .submit(handle, &mut crate::InlineOffer::none())
                .is_err()
        );
        assert_eq!(diary.read(), ADMITTED);
    }

    #[test]
    fn cancelling_answers_what_waits_and_marks_what_executes() {
        let (model, diary, recorder) = (model(CONFIG), Arc::default(), Arc::<Recorder>::default());
        let timer_thread = TimerThread::default();
        let waiting = handle(&model, &diary, &recorder);
        cancel(&waiting).deliver_on(&timer_thread);
        cancel(&waiting).deliver_on(&timer_thread);
        let deliveries = recorder.wait(1);
        let [delivery] = &deliveries[..] else {
            panic!("{deliveries:?}")
        };
        let error = delivery.outcome().unwrap().as_ref().unwrap_err();
        assert_eq!((delivery.slot(), delivery.is_final()), (7, true));
        assert_eq!(error.code, Code::Cancelled);
        assert_eq!(diary.read()[3..], ["RequestEnd", "released"]);

        let executing = handle(&model, &diary, &recorder);
        let live = executing.claim(ClaimReason::Execute, None).unwrap();
        cancel(&executing).deliver_on(&timer_thread);
        assert!(executing.is_cancelled());
        assert_eq!(diary.read(), ADMITTED);
        drop(live);
        assert_eq!(diary.read(), ["RequestEnd", "released"]);
    }
}
