//! The calls of one connection, and the one task that drives them all.
//!
//! A task per call would be polled inside the spawn and so answer each call with a system call of
//! its own. Here all answers that are due are produced first, and then the connection sends them
//! together. The waker of each call, and that of the connection itself, only notes who is due; the
//! task is woken once. Wakers come from any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::status::GrpcCode;

type CallFuture = Pin<Box<dyn Future<Output = CallEnd>>>;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// It was answered.
    Answered,
    /// It was answered with this error.
    Refused(GrpcCode),
    /// The client cancelled it, or left.
    Gone,
}

/// Rounds in one turn before other tasks of the shard get theirs.
const ROUNDS_MAX: usize = 4;

/// What is due.
#[derive(Default)]
struct DueCalls {
    calls: Vec<usize>,
    is_connection_due: bool,
    /// The task to wake when something becomes due; none while it looks anyway.
    task: Option<Waker>,
}

/// Shared with the wakers. The lock is taken for a push or a swap, nearly always by the shard's own
/// thread: uncontended, some 20 ns.
#[derive(Default)]
struct ReadyList {
    due: Mutex<DueCalls>,
}

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, DueCalls> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CallWaker {
    index: usize,
    is_noted: AtomicBool,
    ready_list: Arc<ReadyList>,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The lock below orders the call's state; this only avoids noting it twice.
        if self.is_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut due = self.ready_list.lock();
            due.calls.push(self.index);
            due.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// As the waker of the connection.
impl Wake for ReadyList {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = {
            let mut due = self.lock();
            due.is_connection_due = true;
            due.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

struct CallSlot {
    call: Option<CallFuture>,
    note: Arc<CallWaker>,
    waker: Waker,
}

/// The calls that there are, and places for more.
#[derive(Default)]
struct CallTable {
    slots: Vec<CallSlot>,
    free: Vec<usize>,
    /// Reused from round to round.
    round: Vec<usize>,
}

/// A set of calls beside a connection.
pub(super) struct CallSet {
    ready_list: Arc<ReadyList>,
    /// None until the first call, and while the connection rests.
    table: Option<Box<CallTable>>,
}

impl CallSet {
    pub(super) fn new() -> CallSet {
        let ready_list = Arc::new(ReadyList::default());
        ready_list.lock().is_connection_due = true;
        CallSet {
            ready_list,
            table: None,
        }
    }

    /// Adds a call, which is due at once.
    pub(super) fn push(&mut self, call: impl Future<Output = CallEnd> + 'static) {
        let call: CallFuture = Box::pin(call);
        let table = self.table.get_or_insert_default();
        let index = match table.free.pop() {
            Some(index) => {
                if let Some(slot) = table.slots.get_mut(index) {
                    slot.call = Some(call);
                }
                index
            }
            None => {
                let index = table.slots.len();
                let ready_list = Arc::clone(&self.ready_list);
                let note = Arc::new(CallWaker {
                    index,
                    is_noted: AtomicBool::new(false),
                    ready_list,
                });
                let waker = Waker::from(Arc::clone(&note));
                table.slots.push(CallSlot {
                    call: Some(call),
                    note,
                    waker,
                });
                index
            }
        };
        if let Some(slot) = table.slots.get(index) {
            slot.note.wake_by_ref();
        }
    }

    /// Gives back the memory of calls that are over, if none is left.
    pub(super) fn rest(&mut self) {
        let is_idle = |table: &mut Box<CallTable>| table.free.len() == table.slots.len();
        if self.table.take_if(is_idle).is_some() {
            // A waker of a call that is over may have noted it; there is nothing to look at.
            self.ready_list.lock().calls = Vec::new();
        }
    }

    /// Makes the connection due in the coming turn.
    pub(super) fn note_connection(&mut self) {
        self.ready_list.lock().is_connection_due = true;
    }

    /// Drives the calls, and the connection by way of `poll_connection`, until nothing is due. That
    /// function may add calls; it is ready when the connection is over.
    pub(super) fn poll_turn(
        &mut self,
        context: &mut Context<'_>,
        mut poll_connection: impl FnMut(&mut CallSet, &mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            self.poll_due_calls();
            let is_connection_due = std::mem::take(&mut self.ready_list.lock().is_connection_due);
            if is_connection_due {
                let waker = Waker::from(Arc::clone(&self.ready_list));
                if poll_connection(self, &mut Context::from_waker(&waker)).is_ready() {
                    return Poll::Ready(());
                }
            }
            let mut due = self.ready_list.lock();
            if due.calls.is_empty() && !due.is_connection_due {
                due.task = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_due_calls(&mut self) {
        let Some(table) = &mut self.table else {
            return;
        };
        let mut round = std::mem::take(&mut table.round);
        std::mem::swap(&mut round, &mut self.ready_list.lock().calls);
        for index in round.drain(..) {
            let Some(slot) = table.slots.get_mut(index) else {
                continue;
            };
            // From here on a wake notes the call again.
            slot.note.is_noted.store(false, Ordering::Release);
            let Some(call) = &mut slot.call else { continue };
            if call
                .as_mut()
                .poll(&mut Context::from_waker(&slot.waker))
                .is_ready()
            {
                slot.call = None;
                table.free.push(index);
            }
        }
        table.round = round;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::testing::WakeCount;

    fn running(calls: &CallSet) -> usize {
        let table = calls.table.as_ref();
        table.map_or(0, |table| table.slots.len() - table.free.len())
    }

    #[derive(Clone, Default)]
    struct Gate {
        state: Rc<RefCell<(bool, Option<Waker>)>>,
    }

    impl Gate {
        fn open(&self) {
            let waker = {
                let mut state = self.state.borrow_mut();
                state.0 = true;
                state.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }

        async fn pass(self) {
            std::future::poll_fn(|context| {
                let mut state = self.state.borrow_mut();
                if state.0 {
                    return Poll::Ready(());
                }
                state.1 = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    #[test]
    fn many_completions_wake_the_task_once_and_precede_the_connection() {
        let counter = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut context = Context::from_waker(&waker);
        let mut calls = CallSet::new();
        let trace = Rc::new(RefCell::new(Vec::new()));
        let gates: Vec<Gate> = (0..3).map(|_| Gate::default()).collect();
        let connection_waker = Rc::new(RefCell::new(None::<Waker>));

        let mut is_first = true;
        let mut poll = |calls: &mut CallSet, context: &mut Context<'_>| {
            trace.borrow_mut().push("connection");
            *connection_waker.borrow_mut() = Some(context.waker().clone());
            if std::mem::take(&mut is_first) {
                for gate in &gates {
                    let (gate, trace, connection) = (
                        gate.clone(),
                        Rc::clone(&trace),
                        Rc::clone(&connection_waker),
                    );
                    calls.push(async move {
                        gate.pass().await;
                        trace.borrow_mut().push("call");
                        // As a call that sends does.
                        connection
                            .borrow()
                            .as_ref()
                            .expect("polled before")
                            .wake_by_ref();
                        CallEnd::Answered
                    });
                }
            }
            Poll::Pending
        };
        assert!(calls.poll_turn(&mut context, &mut poll).is_pending());
        assert_eq!(running(&calls), 3);
        assert_eq!(counter.get(), 0, "what is due within a turn needs no wake");
        gates.iter().for_each(Gate::open);
        assert_eq!(counter.get(), 1);
        assert!(calls.poll_turn(&mut context, &mut poll).is_pending());
        assert_eq!(running(&calls), 0);
        assert_eq!(
            *trace.borrow(),
            ["connection", "call", "call", "call", "connection"]
        );
        assert_eq!(counter.get(), 1, "sends of a turn do not wake it again");
    }

    #[test]
    fn a_call_that_never_rests_lets_others_run() {
        let counter = Arc::new(WakeCount::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut calls = CallSet::new();
        calls.push(async {
            loop {
                crate::testing::yield_now().await;
            }
        });
        let outcome = calls.poll_turn(&mut Context::from_waker(&waker), |_, _| Poll::Pending);
        assert!(outcome.is_pending());
        assert_eq!(counter.get(), 1, "the turn ends, and the task comes back");
    }

    #[test]
    fn slots_are_reused() {
        let mut calls = CallSet::new();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..10 {
            calls.push(async { CallEnd::Answered });
            assert!(
                calls
                    .poll_turn(&mut context, |_, _| Poll::Pending)
                    .is_pending()
            );
        }
        let table = calls.table.as_ref().expect("it had calls");
        assert_eq!((table.slots.len(), running(&calls)), (1, 0));
        let late = table.slots[0].waker.clone();
        calls.rest();
        assert!(calls.table.is_none());
        calls.push(std::future::pending());
        late.wake();
        assert!(
            calls
                .poll_turn(&mut context, |_, _| Poll::Pending)
                .is_pending()
        );
        calls.rest();
        assert_eq!(running(&calls), 1, "a call that is under way stays");
    }
}
