//! A backend for tests: its models forward the inputs of each request to another model of the
//! server, and answer with its outputs. A decoupled model forwards each response, any other the
//! first one.
//!
//! Parameters of a model: `model_name` is the other model; `cancel_after` cancels each call when so
//! many responses came (0: at once); `output_limit` is the size in bytes beyond which there is no
//! memory for an output; with `tells` responses say in the parameter `told` what the model knows of
//! the request. Parameters of requests: see [`call`] and [`control`].

#![forbid(unsafe_code)]

mod answer;
mod call;
mod control;
mod counts;

use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::{Batch, Error, HostMemory, InstanceContext, ModelContext, OutputMemory, Request, Server};

use answer::Answer;
use counts::{CountFamilies, Counts};

sdk::export_backend!(Forward);

/// What the models share.
pub struct Forward(CountFamilies);

impl sdk::Backend for Forward {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Forward(CountFamilies::new()?))
    }
}

pub struct Model {
    server: Server,
    counts: Arc<Counts>,
    target: String,
    cancel_after: Option<u64>,
    output_memory: Arc<dyn OutputMemory>,
    tells: bool,
}

impl sdk::Model for Model {
    type Backend = Forward;
    type Instance = Instance;

    fn initialize(backend: &Forward, context: &mut ModelContext) -> Result<Self, Error> {
        let config = context.config();
        let count = |name: &str| {
            let value = config.integer_parameter(name)?;
            let count = value.map(u64::try_from).transpose();
            count.map_err(|_| Error::invalid(format!("parameter '{name}' must not be negative")))
        };
        let target = config.parameter("model_name").unwrap_or_default();
        let output_memory: Arc<dyn OutputMemory> = match count("output_limit")? {
            Some(limit) => Arc::new(call::LimitedMemory(limit)),
            None => Arc::new(HostMemory),
        };
        Ok(Model {
            server: context.server(),
            counts: Arc::new(backend.0.counts_of(context.name())?),
            target: target.to_owned(),
            cancel_after: count("cancel_after")?,
            output_memory,
            tells: config.boolean_parameter("tells")?.unwrap_or(false),
        })
    }
}

pub struct Instance;

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(_model: &Model, _context: &InstanceContext) -> Result<Self, Error> {
        Ok(Instance)
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        for request in batch.requests() {
            if let Err(error) = begin(model, batch, request) {
                request.fail(error);
            }
        }
        Ok(())
    }
}

/// Sends the call. Its answers come on other threads, after this returned or before.
fn begin(model: &Model, batch: &Batch<'_>, request: Request<'_>) -> Result<(), Error> {
    let orders = call::read(request)?;
    let mut notes = control::obey(&model.server, &orders)?;
    if model.tells {
        notes.push((c"told".to_owned(), call::tell(request)?));
    }
    let forwarded = call::make(model, request, &orders)?;
    let answer = if orders.leaves {
        request.fail(Error::unavailable("left in flight"));
        None
    } else {
        Some(Answer::new(
            request.response_factory()?,
            batch.is_decoupled(),
            notes,
        ))
    };
    let cancel_after = model.cancel_after;
    let counted = counts::CountedCall::begin(&model.counts)?;
    let mut receive = answer::Receiver::new(answer, counted, cancel_after);
    let panics = orders.panics;
    let call = model.server.infer(forwarded, move |call, delivery| {
        assert!(!panics, "as ordered, in what receives responses");
        receive.receive(call, delivery);
    });
    if cancel_after == Some(0) {
        call.cancel()?;
    }
    Ok(())
}
