//! A backend whose batches go on beyond the call that brought them, for tests of how they end.
//!
//! An instance keeps each batch until another one comes, or until the instance ends; then a thread
//! of its own finishes the older one: each request is answered with OUTPUT0 = INPUT0. Where an
//! INPUT0 begins with the byte 1, the batch fails there, where it does with 2, it panics.
//!
//! Model parameter `end`: `drop` drops batches unfinished, `panic` panics in the call that brings
//! them.

#![forbid(unsafe_code)]

use std::thread;

use conch_backend_sdk as sdk;
use sdk::{Batch, DetachedBatch, Error, InstanceContext, ModelContext, Request};

sdk::export_backend!(Overlap, detached);

pub struct Overlap;

impl sdk::Backend for Overlap {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Overlap)
    }
}

/// How batches end.
#[derive(Clone, Copy)]
enum BatchEnd {
    Finish,
    Drop,
    Panic,
}

pub struct Model(BatchEnd);

impl sdk::Model for Model {
    type Backend = Overlap;
    type Instance = Instance;

    fn initialize(_backend: &Overlap, context: &mut ModelContext) -> Result<Self, Error> {
        Ok(Model(match context.config().parameter("end") {
            Some("drop") => BatchEnd::Drop,
            Some("panic") => BatchEnd::Panic,
            _ => BatchEnd::Finish,
        }))
    }
}

pub struct Instance {
    kept: Option<DetachedBatch>,
}

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(_model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        Ok(Instance { kept: None })
    }

    fn execute(&mut self, _model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        batch.requests().try_for_each(|request| answer(&request))
    }
}

impl sdk::DetachingInstance for Instance {
    fn submit(&mut self, model: &Model, batch: DetachedBatch) {
        match model.0 {
            BatchEnd::Finish => {
                if let Some(older) = self.kept.replace(batch) {
                    finish(older);
                }
            }
            BatchEnd::Drop => drop(batch),
            BatchEnd::Panic => panic!("as ordered, in submit"),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            finish(kept);
        }
    }
}

/// On a thread that nobody waits for: the server waits for the batch.
fn finish(batch: DetachedBatch) {
    thread::spawn(move || {
        batch.finish(|batch| batch.requests().try_for_each(|request| answer(&request)));
    });
}

fn answer(request: &Request<'_>) -> Result<(), Error> {
    let input = request.input(c"INPUT0")?;
    let mut first = None;
    input.for_each_buffer(|piece| {
        first = first.or(piece.read(0));
        Ok(())
    })?;
    match first {
        Some([1]) => return Err(Error::invalid("as ordered")),
        Some([2]) => panic!("as ordered, in a thread"),
        _ => {}
    }
    let response = request.respond()?;
    let mut output = response.output_like(c"OUTPUT0", &input)?;
    input.for_each_buffer(|piece| output.write(piece))?;
    response.send()
}
