//! Executions of KIND_GPU instances: tensors stay on the device where the server leaves them there.
//!
//! All answers of a batch are made first, then all copies are enqueued together; when they are done
//! the answers leave. Nobody waits for them meanwhile, unless the model is decoupled.

use std::ffi::CStr;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{
    Batch, BatchStreams, CopyPlan, DetachedBatch, DeviceBatches, DeviceStream, Error, Input,
    Request, Response,
};

use crate::Model;
use crate::controls::Controls;

/// Answers every request of a batch.
pub fn answer_all(stream: &mut DeviceStream, model: &Model, batch: &Batch<'_>) {
    if batch.is_decoupled() && model.settings.has_controls {
        for request in batch.requests() {
            if let Err(error) = answer_often(stream, model, request) {
                request.fail(error);
            }
        }
        return;
    }
    let mut answers = Vec::with_capacity(batch.len());
    let mut panics = false;
    for request in batch.requests() {
        match begin(model, request) {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) => {
                panics = true;
                break;
            }
            Err(error) => request.fail(error),
        }
    }
    finish(stream, model, answers, Response::send);
    if panics {
        panic!("ordered by the request");
    }
}

/// Several batches in flight, on the one stream of an instance.
pub struct Batches {
    in_flight: DeviceBatches,
    stream: DeviceStream,
}

impl Batches {
    /// # Errors
    /// `Internal` for what the driver refuses.
    pub fn new(stream: DeviceStream, depth_max: usize) -> Result<Batches, Error> {
        let mut in_flight = DeviceBatches::new(&stream)?;
        for _ in 0..depth_max {
            in_flight.add_slot(BatchStreams::one(&stream), ())?;
        }
        Ok(Batches { in_flight, stream })
    }

    pub fn depth_max(&self) -> usize {
        self.in_flight.depth_max()
    }

    /// The stream, for a batch that is executed to its end in one call.
    pub fn stream(&mut self) -> &mut DeviceStream {
        &mut self.stream
    }

    /// Enqueues the copies of a batch, which ends `delay` after the one before at the earliest.
    pub fn enqueue(&mut self, model: &Model, mut batch: DetachedBatch, delay: Duration) {
        if batch.with(|batch| orders_panic(model, batch)) {
            batch.finish(|batch| {
                answer_all(&mut self.stream, model, batch);
                Ok(())
            });
            return;
        }
        self.in_flight.enqueue(
            batch,
            |request| {
                let mut response = begin(model, request)?
                    .ok_or_else(|| Error::internal("ordered a panic"))?
                    .1;
                model.settings.set_parameters(request, &mut response)?;
                Ok(response)
            },
            |(), work| {
                work.delay(delay);
                for (owner, request, response) in work.requests() {
                    if let Err(error) = repeat(model, request, response, owner, work.copies()) {
                        work.fail(owner, error);
                    }
                }
                Ok(())
            },
        );
    }

    /// Answers the batches whose copies are done, in order; returns how many are in flight.
    pub fn poll(&mut self) -> usize {
        self.in_flight.poll()
    }
}

/// Whether one of the requests orders a panic, which comes when it is answered.
fn orders_panic(model: &Model, batch: &Batch<'_>) -> bool {
    let panics = |request| Controls::read(request).is_ok_and(|controls| controls.panics);
    model.settings.has_controls && batch.requests().any(panics)
}

/// A request, and the response that it gets if its copies succeed.
type Answer<'b> = (Request<'b>, Response<'b>);

/// Begins the only answer of a request. None: it orders a panic.
fn begin<'b>(model: &Model, request: Request<'b>) -> Result<Option<Answer<'b>>, Error> {
    crate::report_activities(model, request)?;
    if model.settings.has_controls {
        let controls = Controls::read(request)?;
        if let Some(error) = controls.error {
            return Err(error);
        }
        if controls.panics {
            return Ok(None);
        }
    }
    Ok(Some((request, request.respond()?)))
}

/// Answers a request of a decoupled model, as often as it orders. The SDK ends the stream.
fn answer_often(
    stream: &mut DeviceStream,
    model: &Model,
    request: Request<'_>,
) -> Result<(), Error> {
    crate::report_activities(model, request)?;
    let controls = Controls::read(request)?;
    if let Some(error) = controls.error {
        return Err(error);
    }
    if controls.panics {
        panic!("ordered by the request");
    }
    for index in 0..controls.response_count {
        crate::pause(index, &controls, request)?;
        let answer = vec![(request, request.respond()?)];
        if !finish(stream, model, answer, Response::send_partial) {
            break;
        }
    }
    Ok(())
}

/// Fills the responses and sends them. A request whose copies fail gets the error instead. Returns
/// whether all went well.
fn finish<'b>(
    stream: &mut DeviceStream,
    model: &Model,
    mut answers: Vec<Answer<'b>>,
    send: fn(Response<'b>) -> Result<(), Error>,
) -> bool {
    let mut outcomes = Vec::with_capacity(answers.len());
    for (request, response) in &mut answers {
        outcomes.push(model.settings.set_parameters(*request, response));
    }
    let mut copies = stream.copies();
    for (owner, ((request, response), outcome)) in answers.iter().zip(&mut outcomes).enumerate() {
        if outcome.is_ok() {
            *outcome = repeat(model, *request, response, owner, &mut copies);
        }
    }
    for (owner, error) in copies.run() {
        if let Some(outcome @ Ok(())) = outcomes.get_mut(owner) {
            *outcome = Err(error);
        }
    }
    let mut is_success = true;
    for ((request, response), outcome) in answers.into_iter().zip(outcomes) {
        if let Err(error) = outcome.and_then(|()| send(response)) {
            is_success = false;
            request.fail(error);
        }
    }
    is_success
}

/// Adds the outputs, and plans the copies of the inputs into them.
fn repeat<'m>(
    model: &Model,
    request: Request<'m>,
    response: &'m Response<'_>,
    owner: usize,
    copies: &mut CopyPlan<'m>,
) -> Result<(), Error> {
    let mut input_byte_count = 0;
    for index in 0..request.output_count()? {
        let name = request.output_name(index)?;
        let pair = model.pair_of(name)?;
        match (request.input(&pair.input), &pair.absent) {
            (Ok(input), _) => {
                crate::log_input(&input);
                plan(&input, response, name, owner, copies)?;
                input_byte_count += input.byte_count();
            }
            (Err(_), Some(absent)) => {
                let (shape, byte_count) = absent.size(request)?;
                let place = copies.place();
                let data_type = absent.data_type;
                let mut target = response.output_in(name, data_type, &shape, byte_count, place)?;
                copies.zero_rest(owner, &mut target);
            }
            (Err(error), None) => return Err(error),
        }
    }
    model.count(input_byte_count)
}

/// Adds the output `name`, and plans the copies of all pieces of `input` into it.
fn plan<'m>(
    input: &Input<'m>,
    response: &'m Response<'_>,
    name: &CStr,
    owner: usize,
    copies: &mut CopyPlan<'m>,
) -> Result<(), Error> {
    let place = copies.place();
    let (data_type, byte_count) = (input.data_type(), input.byte_count());
    let mut target = response.output_in(name, data_type, input.shape(), byte_count, place)?;
    for index in 0..input.buffer_count() {
        copies.add(owner, input.memory(index, place)?, &mut target)?;
    }
    Ok(())
}
