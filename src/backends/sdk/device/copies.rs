//! Copies of a batch: planned, then enqueued together and waited for once.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};

use conch_memory::MemoryPlace;

use super::memory::{MemorySource, MemoryTarget};
use super::pending::PendingWork;
use super::plan::{PlannedCopy, Stage};
use super::stream::DeviceStream;
use crate::Error;

/// Copies that are planned for one batch. Sources and targets are borrowed until they are done, so
/// that no response leaves before its bytes are there.
pub struct CopyPlan<'m> {
    place: MemoryPlace,
    pub(super) planned: Vec<PlannedCopy>,
    memory: PhantomData<&'m mut u8>,
}

impl<'m> CopyPlan<'m> {
    /// `planned` is memory of an earlier plan.
    pub(super) fn new(place: MemoryPlace, mut planned: Vec<PlannedCopy>) -> Self {
        planned.clear();
        CopyPlan {
            place,
            planned,
            memory: PhantomData,
        }
    }

    /// The memory that the instance computes in.
    pub fn place(&self) -> MemoryPlace {
        self.place
    }

    /// Plans to copy `source` behind what `target` is filled with. `owner` is the caller's number
    /// of the request.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub fn add(
        &mut self,
        owner: usize,
        source: MemorySource<'m>,
        target: &mut MemoryTarget<'m>,
    ) -> Result<(), Error> {
        let stage = Stage::between(Some(source.place()), target.place());
        self.add_to_stage(stage, owner, source, target)
    }

    /// As [`add`](Self::add), in a stage that does not follow from where the memory lies: inputs
    /// are copied before what computes reads them, and outputs after it, also within the device.
    ///
    /// # Errors
    /// `Internal` if it does not fit.
    pub(super) fn add_to_stage(
        &mut self,
        stage: Stage,
        owner: usize,
        source: MemorySource<'m>,
        target: &mut MemoryTarget<'m>,
    ) -> Result<(), Error> {
        let to = (target.take(source.len())?, target.place());
        let from = Some((source.address(), source.place()));
        self.push(stage, owner, to, from, source.len());
        Ok(())
    }

    /// Plans to fill what is left of `target` with zeros.
    pub fn zero_rest(&mut self, owner: usize, target: &mut MemoryTarget<'m>) {
        let (address, len) = target.take_rest();
        let to = target.place();
        self.push(Stage::between(None, to), owner, (address, to), None, len);
    }

    pub(super) fn push(
        &mut self,
        stage: Stage,
        owner: usize,
        (target, target_place): (u64, MemoryPlace),
        source: Option<(u64, MemoryPlace)>,
        len: usize,
    ) {
        if len > 0 {
            self.planned.push(PlannedCopy {
                stage,
                owner,
                target,
                target_place,
                source,
                len,
            });
        }
    }
}

/// Copies for an instance that waits for them. Dropped before [`run`](Self::run), nothing is
/// copied.
pub struct Copies<'m> {
    stream: &'m mut DeviceStream,
    plan: CopyPlan<'m>,
}

impl DeviceStream {
    /// Begins the copies of a batch. Nothing is copied before [`Copies::run`].
    pub fn copies<'m>(&'m mut self) -> Copies<'m> {
        let plan = CopyPlan::new(self.place(), mem::take(&mut self.planned));
        Copies { stream: self, plan }
    }
}

impl<'m> Deref for Copies<'m> {
    type Target = CopyPlan<'m>;

    fn deref(&self) -> &CopyPlan<'m> {
        &self.plan
    }
}

impl<'m> DerefMut for Copies<'m> {
    fn deref_mut(&mut self) -> &mut CopyPlan<'m> {
        &mut self.plan
    }
}

impl Copies<'_> {
    /// Copies everything and blocks until it is there; waits for the instance's stream alone. Host
    /// memory that is not pinned passes through pinned memory, as far as the server gives some.
    ///
    /// Returns the owners whose copies failed with the errors, `GPU 0: ...`, an owner perhaps
    /// several times. When the copies fail after they were enqueued, all owners with a copy on the
    /// device fail, as the driver does not tell which. In every case nothing is in flight any more.
    pub fn run(self) -> Vec<(usize, Error)> {
        let Copies { stream, plan } = self;
        let planned = plan.planned;
        let mut pending = PendingWork::default();
        // SAFETY: sources and targets are borrowed until this function returns, the stream has the
        // staging memory, and is waited for before. Nothing in between unwinds.
        unsafe { pending.enqueue(&stream.stream, planned.iter(), &mut stream.staging) };
        if pending.has_work() {
            let waited = match stream.stream.record(&stream.event) {
                Ok(()) => stream.event.wait().inspect_err(|_| {
                    // A stream that cannot be waited for is one whose context is gone, and its
                    // work with it.
                    let _ = stream.stream.synchronize();
                }),
                Err(_) => stream.stream.synchronize(),
            };
            if let Err(error) = waited {
                pending.fail_owners(&stream.refusal(&error));
            }
        }
        // SAFETY: the stream was waited for; the rest as above.
        let failures = unsafe { pending.finish() };
        stream.staging.reset();
        stream.planned = planned;
        failures
    }
}
