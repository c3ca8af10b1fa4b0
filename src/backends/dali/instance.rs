//! One executable copy of a model: a pipeline, and how requests are brought to it.

use std::ffi::CString;
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::{Batch, Error};

use crate::capi::{Options, Outputs, Pipeline, Port};
use crate::deliver::{self, OutputPlan};
use crate::engine::Engine;
use crate::feed::{self, BatchEntry};
use crate::pipeline_file::PipelineFile;

/// How a model's pipelines are made, and what they take and make.
#[derive(Clone)]
pub struct Plan {
    pub engine: Arc<Engine>,
    pub file: Arc<PipelineFile>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<OutputPlan>,
    /// Whether the server's batches are run at once; else each request is a batch of its own.
    pub is_batching: bool,
}

/// The pipeline of an instance. DALI's pipelines cannot be used after an error:
///
/// ```text
/// Built ──run fails──► Spoiled ──next run──► Built, or still Spoiled
/// ```
enum PipelineState {
    Built(Pipeline),
    Spoiled,
}

/// See [`crate::instance`].
pub struct Instance {
    plan: Plan,
    options: Options,
    state: PipelineState,
    /// Names each batch to the pipeline, which notes what became of it.
    batch_number: u64,
}

impl Instance {
    /// # Errors
    /// What DALI says of the pipeline.
    pub fn new(plan: &Plan, options: Options) -> Result<Self, Error> {
        let pipeline = plan.engine.build(&plan.file, &options)?;
        Ok(Instance {
            plan: plan.clone(),
            options,
            state: PipelineState::Built(pipeline),
            batch_number: 0,
        })
    }

    /// Runs a batch and sends its responses.
    pub fn run(&mut self, batch: &Batch<'_>) {
        let mut entries = Vec::with_capacity(batch.len());
        for request in batch.requests() {
            match BatchEntry::new(request) {
                Ok(entry) => entries.push(entry),
                Err(error) => request.fail(error),
            }
        }
        batch.begin_compute();
        if self.plan.is_batching {
            self.run_together(batch, &entries);
        } else {
            for entry in &entries {
                if let Err(error) = self.run_to_the_end(batch, entry) {
                    entry.request.fail(error);
                }
            }
        }
    }

    /// One run for all, or where that fails, one for each: whose input cannot be decoded fails
    /// alone.
    fn run_together(&mut self, batch: &Batch<'_>, entries: &[BatchEntry<'_>]) {
        if entries.is_empty() {
            return;
        }
        let Err(error) = self.run_once(batch, entries) else {
            return;
        };
        if let [entry] = entries {
            entry.request.fail(error);
            return;
        }
        sdk::verbose!(
            "a batch of {} requests failed and is run again one by one: {error}",
            entries.len()
        );
        for entry in entries {
            if let Err(error) = self.run_once(batch, std::slice::from_ref(entry)) {
                entry.request.fail(error);
            }
        }
    }

    fn run_once(&mut self, batch: &Batch<'_>, entries: &[BatchEntry<'_>]) -> Result<(), Error> {
        let id = self.next_id();
        let inputs = &self.plan.inputs;
        let plans = &self.plan.outputs;
        let engine = &self.plan.engine;
        let mut pipeline =
            PipelineGuard::take(&mut self.state, engine, &self.plan.file, &self.options)?;
        for port in inputs {
            let list = feed::list(&engine.runtime, port, entries)?;
            pipeline.get().feed(&port.name, list, &id)?;
        }
        let outputs = pipeline.get().run()?;
        batch.end_compute();
        if !is_consumed(&outputs, inputs, &id)? {
            return Err(Error::unsupported(
                "the pipeline makes several batches of one; its model must have max_batch_size: 0 \
                 and be decoupled",
            ));
        }
        let responses = deliver::responses(&outputs, plans, entries)?;
        drop(outputs);
        pipeline.keep();
        for response in responses.into_iter().flatten() {
            if let Err(error) = response.send() {
                sdk::error!("failed to send a response: {error}");
            }
        }
        Ok(())
    }

    /// Runs until the pipeline has used up what the request brought, with a response for each run.
    fn run_to_the_end(&mut self, batch: &Batch<'_>, entry: &BatchEntry<'_>) -> Result<(), Error> {
        let id = self.next_id();
        let inputs = &self.plan.inputs;
        let engine = &self.plan.engine;
        let mut pipeline =
            PipelineGuard::take(&mut self.state, engine, &self.plan.file, &self.options)?;
        for port in inputs {
            let list = feed::list(&engine.runtime, port, std::slice::from_ref(entry))?;
            pipeline.get().feed(&port.name, list, &id)?;
        }
        loop {
            let outputs = pipeline.get().run()?;
            batch.end_compute();
            let is_consumed = is_consumed(&outputs, inputs, &id)?;
            if !is_consumed && !batch.is_decoupled() {
                return Err(Error::unsupported(
                    "the pipeline makes several responses to a request; its model must be \
                     decoupled",
                ));
            }
            let response = deliver::whole(&outputs, &self.plan.outputs, entry.request)?;
            drop(outputs);
            if is_consumed {
                pipeline.keep();
                return response.send();
            }
            response.send_partial()?;
            if entry.request.is_cancelled()? {
                // The rest is given up with the pipeline that holds it.
                return Err(Error::new(
                    sdk::Code::Cancelled,
                    "the request was cancelled",
                ));
            }
        }
    }

    fn next_id(&mut self) -> CString {
        self.batch_number += 1;
        CString::new(self.batch_number.to_string()).unwrap_or_default()
    }
}

/// The pipeline while it is used: what leaves early, for whatever reason, leaves it spoiled, since
/// what was fed is still in it.
struct PipelineGuard<'s> {
    state: &'s mut PipelineState,
    pipeline: Pipeline,
}

impl<'s> PipelineGuard<'s> {
    fn take(
        state: &'s mut PipelineState,
        engine: &Engine,
        file: &PipelineFile,
        options: &Options,
    ) -> Result<Self, Error> {
        let pipeline = match std::mem::replace(state, PipelineState::Spoiled) {
            PipelineState::Built(pipeline) => pipeline,
            PipelineState::Spoiled => engine.build(file, options)?,
        };
        Ok(PipelineGuard { state, pipeline })
    }

    fn get(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    fn keep(self) {
        *self.state = PipelineState::Built(self.pipeline);
    }
}

/// Whether a pipeline has used up what it was fed, by what its inputs noted: one of them has
/// nothing left, or goes on with another batch.
fn is_consumed(outputs: &Outputs<'_>, inputs: &[Port], id: &CString) -> Result<bool, Error> {
    let mut is_known = false;
    for port in inputs {
        if let Some(depleted) = outputs.trace(&port.name, c"depleted")? {
            is_known = true;
            if depleted == c"true" {
                return Ok(true);
            }
        }
        let next = outputs.trace(&port.name, c"next_output_data_id")?;
        if next.is_some_and(|next| next != id.as_c_str()) {
            return Ok(true);
        }
    }
    // Inputs of a kind that notes nothing take one batch for each run.
    Ok(!is_known)
}
