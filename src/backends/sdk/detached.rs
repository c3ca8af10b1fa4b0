//! A batch that is executed beyond the call that brought it.

use std::ptr::NonNull;
use std::sync::Arc;

use conch_abi as abi;

use crate::batch::{Batch, ExecutionStart};
use crate::factory::Factories;
use crate::guard::caught;
use crate::slot::Slot;
use crate::{Error, Instance};

/// An instance that lets batches overlap; [`export_backend!`](crate::export_backend) with
/// `detached` has servers use it.
pub trait DetachingInstance: Instance {
    /// Takes over a batch. When this returns, the server may bring the next one, whether or not
    /// this one is finished: block while there are as many as the instance can have. An instance
    /// that is dropped must finish its batches, or wait until they are.
    ///
    /// The server brings requests of one sequence in order, but waits for none: models with
    /// sequences must finish a batch before they return.
    fn submit(&mut self, model: &Self::Model, batch: DetachedBatch);
}

/// The requests of one execution, owned, for any thread. [`finish`](Self::finish) answers them,
/// reports their statistics and releases them, once; dropped before (by a panic, for example), it
/// does so with an error.
pub struct DetachedBatch {
    instance: *mut abi::TRITONBACKEND_ModelInstance,
    /// Empty when it is finished.
    requests: Vec<NonNull<abi::TRITONBACKEND_Request>>,
    slots: Vec<Slot>,
    max_batch_size: i64,
    is_decoupled: bool,
    start: ExecutionStart,
    factories: Arc<Factories>,
}

// SAFETY: the requests are owned by this, and the server lets any thread use, answer and release
// them, one at a time; the instance is only named in reports, which the server takes from any
// thread.
unsafe impl Send for DetachedBatch {}

impl DetachedBatch {
    /// # Safety
    /// The instance is live until `factories`, which are its own, are none; the requests are given
    /// to the backend, which releases them.
    pub(crate) unsafe fn new(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        requests: &[NonNull<abi::TRITONBACKEND_Request>],
        max_batch_size: i64,
        is_decoupled: bool,
        start: ExecutionStart,
        factories: &Arc<Factories>,
    ) -> Self {
        factories.add();
        DetachedBatch {
            instance,
            requests: requests.to_vec(),
            slots: requests.iter().map(|_| Slot::default()).collect(),
            max_batch_size,
            is_decoupled,
            start,
            factories: Arc::clone(factories),
        }
    }

    /// Executes the batch on this thread, as [`Instance::execute`] does, and ends it. Requests
    /// without an answer get the error of `execute`, or that they were not answered.
    pub fn finish(mut self, execute: impl FnOnce(&Batch<'_>) -> Result<(), Error>) {
        self.end(|batch| caught(|| execute(batch)));
    }

    /// Looks at the batch and leaves it unfinished: reads inputs, begins responses and
    /// [keeps](crate::Response::keep) them. What is answered here stays answered.
    pub fn with<R>(&mut self, look: impl FnOnce(&Batch<'_>) -> R) -> R {
        let batch = self.batch(&self.requests);
        let found = look(&batch);
        let start = batch.start();
        self.start = start;
        found
    }

    /// Requests in the batch.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn end(&mut self, execute: impl FnOnce(&Batch<'_>) -> Result<(), Error>) {
        let requests = std::mem::take(&mut self.requests);
        let batch = self.batch(&requests);
        let result = execute(&batch);
        batch.finish_detached(result);
    }

    /// The batch, of whose requests the caller says where they are.
    fn batch<'b>(&'b self, requests: &'b [NonNull<abi::TRITONBACKEND_Request>]) -> Batch<'b> {
        // SAFETY: the requests are live and owned by this, there is one slot for each, fresh or as
        // an earlier look left it, and the instance is live as long as the factories count this.
        unsafe {
            Batch::new(
                self.instance,
                requests,
                &self.slots,
                self.max_batch_size,
                self.is_decoupled,
                self.start,
                &self.factories,
            )
        }
    }
}

impl Drop for DetachedBatch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            self.end(|_| Err(Error::internal("the backend gave no response")));
        }
        self.factories.remove();
    }
}
