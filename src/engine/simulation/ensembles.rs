//! Ensembles: real requests of random ensembles run through real queues, which are looked after by
//! hand: what is executed, in which order it ends, what fails, who gives up and which model is
//! replaced is up to the seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conch_config::DataType;
use conch_scheduler::testing::Random;

use crate::simulation::models::{Models, answer_of, inputs_of};
use crate::simulation::trace::SeedTrace;
use crate::simulation::{EVENT_COUNT_MIN, RuleResult};
use crate::testing::{draft, input};
use crate::{
    Code, Completion, Delivery, Draft, Error, InlineBudget, InlineOffer, InlineTurn, OwnedRequest,
    PendingResponses, RequestHandle, Timestamps, cancel,
};

/// One seed.
pub(super) struct EnsembleSimulation {
    random: Random,
    models: Models,
    requests: Vec<EnsembleRecord>,
    /// What executes.
    executing: Vec<StepExecution>,
    receiver: Arc<EnsembleCompletion>,
    /// Clients offer to execute, as a shard that has nothing else to do.
    makes_offers: bool,
    /// What they owe for that.
    turns: Vec<InlineTurn>,
    /// Turns that executed something, and batches that these executed.
    turn_count: u64,
    /// Turns that were looked at, or run.
    look_count: usize,
    has_faults: bool,
    pub(super) event_count: u64,
    fault_count: u64,
}

/// A request of an ensemble.
struct EnsembleRecord {
    handle: Option<RequestHandle>,
    ensemble: usize,
    x: String,
    wanted: Vec<usize>,
    /// How often its decoupled step answers.
    response_count: u64,
    /// What may have ended it: faults of its steps, in order.
    faults: Vec<String>,
    is_cancelled: bool,
    /// A step ended without an answer.
    has_gap: bool,
    answers: Vec<BTreeMap<String, String>>,
    error: Option<Error>,
    is_final: bool,
}

struct StepExecution {
    live: OwnedRequest,
    model: usize,
    /// Responses that are still to come, of a decoupled model.
    left_count: u64,
    sent_count: u64,
}

/// Notes what arrives, in order.
#[derive(Default)]
struct EnsembleCompletion(Mutex<Vec<Delivery>>);

impl Completion for EnsembleCompletion {
    fn deliver(&self, delivery: Delivery) {
        self.0.lock().unwrap().push(delivery);
    }

    fn wake(&self) {}
}

impl EnsembleSimulation {
    pub(super) fn new(seed: u64) -> EnsembleSimulation {
        let mut random = Random(seed);
        let models = Models::random(&mut random);
        EnsembleSimulation {
            has_faults: random.chance(1, 2),
            random,
            models,
            requests: Vec::new(),
            executing: Vec::new(),
            receiver: Arc::default(),
            // Without a draw, so that the others live as they did before.
            makes_offers: seed % 4 == 3,
            turns: Vec::new(),
            turn_count: 0,
            look_count: 0,
            event_count: 0,
            fault_count: 0,
        }
    }

    /// Lives through the seed.
    pub(super) fn live(&mut self, trace: &mut SeedTrace) -> RuleResult {
        trace.tell(0, || format!("{:?}", self.models));
        while self.event_count < EVENT_COUNT_MIN {
            self.event_count += 1;
            if self.event_count.is_multiple_of(5) {
                self.take_turn(trace)?;
            }
            match self.random.below(24) {
                0..4 => self.arrive(trace)?,
                4..12 => self.take_up(trace)?,
                12..21 => self.go_on(trace)?,
                21 => self.cancel(trace),
                22 if self.has_faults => self.fail(trace),
                _ if self.random.chance(1, 8) => self.replace(trace),
                _ => {}
            }
            self.check()?;
        }
        trace.tell(self.event_count, || "nothing comes any more".into());
        self.has_faults = false;
        while !self.turns.is_empty() {
            self.take_turn(trace)?;
        }
        while let Some(number) = self.requests.iter().position(|request| !request.is_final) {
            if self.executing.is_empty() && !self.models.has_work() {
                return Err(format!("nothing is left, and {number} is not answered"));
            }
            self.take_up(trace)?;
            self.go_on(trace)?;
            self.event_count += 1;
            self.check()?;
            if self.event_count > EVENT_COUNT_MAX {
                return Err("it does not come to rest".into());
            }
        }
        self.check_end()
    }

    /// A request for one of the ensembles.
    fn arrive(&mut self, trace: &mut SeedTrace) -> RuleResult {
        let under_way = self.requests.iter().filter(|request| !request.is_final);
        if under_way.count() >= LIVE_MAX {
            return Ok(());
        }
        let number = self.requests.len();
        let ensemble = self.random.below(self.models.ensembles.len() as u64) as usize;
        let shape = &self.models.ensembles[ensemble].shape;
        let wanted = shape.wanted(&mut self.random);
        let x = format!("x{number}");
        trace.tell(self.event_count, || {
            format!("{number} arrives at e{ensemble} and wants {wanted:?}")
        });
        let id = format!("{number}");
        let names = wanted.iter().map(|output| &*shape.outputs[*output]);
        let drafted = Draft {
            id: &id,
            requested_outputs: names.collect(),
            ..draft(vec![input(
                "x",
                DataType::Uint8,
                &[x.len() as i64],
                &[x.as_bytes()],
            )])
        };
        let completion: Arc<dyn Completion> = self.receiver.clone();
        let model = Arc::clone(&self.models.ensembles[ensemble].model);
        let timestamps = Timestamps::default();
        let handle = crate::testing::admit(&model, drafted, &completion, number as u64, timestamps)
            .map_err(|error| format!("{number} is refused: {}", error.message))?;
        self.requests.push(EnsembleRecord {
            handle: Some(Arc::clone(&handle)),
            ensemble,
            x,
            wanted,
            response_count: 0,
            faults: Vec::new(),
            is_cancelled: false,
            has_gap: false,
            answers: Vec::new(),
            error: None,
            is_final: false,
        });
        let mut offer = match (self.makes_offers, number % 2) {
            (false, _) => InlineOffer::none(),
            (true, 0) => InlineOffer::new(true),
            (true, _) => InlineOffer::of_brief_execution(0),
        };
        let submitted = model
            .submit(handle, &mut offer)
            .map_err(|error| format!("{number} is refused: {}", error.message));
        self.turns.extend(offer.into_turn());
        submitted
    }

    /// A client does what it owes, or leaves it to a core.
    fn take_turn(&mut self, trace: &mut SeedTrace) -> RuleResult {
        let Some(mut turn) = self.turns.pop() else {
            return Ok(());
        };
        if self.event_count.is_multiple_of(3) {
            trace.tell(self.event_count, || "a turn is left".into());
            drop(turn);
            return Ok(());
        }
        trace.tell(self.event_count, || "a turn is taken".into());
        self.look_count += 1;
        // Some have no time for it, and come back to it later.
        let limit = match self.look_count.is_multiple_of(4) {
            true => Duration::ZERO,
            false => Duration::from_secs(3600),
        };
        let budget = InlineBudget {
            further_count: self.look_count % 3,
            time: limit,
        };
        if let Some(execution) = turn.run_within(limit, budget) {
            self.turn_count += u64::from(execution.batch_count > 0);
            if execution.is_left {
                trace.tell(self.event_count, || "a turn is put off".into());
                self.turns.insert(0, turn);
            }
        }
        // The client knows at once what it was answered.
        self.check()
    }

    /// Whether turns executed more than a step each.
    pub(super) fn executes_steps_of_turns(&self) -> bool {
        let models = self.models.models.iter();
        let executed_count: u64 = models.map(|model| model.executed_count()).sum();
        executed_count > self.turn_count
    }

    /// A core of one of the models looks for a batch.
    fn take_up(&mut self, trace: &mut SeedTrace) -> RuleResult {
        let model = self.random.below(self.models.models.len() as u64) as usize;
        for live in self.models.models[model].form(&mut self.random) {
            let number = number_of(&live);
            let request = &mut self.requests[number];
            trace.tell(self.event_count, || {
                format!("m{model} begins {:?} of {number}", inputs_of(&live))
            });
            if request.is_final || request.is_cancelled {
                return Err(format!("a step of {number} begins when nobody wants it"));
            }
            let ensemble = &self.models.ensembles[request.ensemble];
            // An inner ensemble ends first.
            if !request.faults.is_empty() && !ensemble.is_nested {
                return Err(format!("a step of {number} begins after a failure"));
            }
            let mut left_count = 0;
            if self.models.models[model].is_decoupled {
                left_count = self.random.below(4);
                request.response_count = left_count;
            }
            self.executing.push(StepExecution {
                live,
                model,
                left_count,
                sent_count: 0,
            });
        }
        Ok(())
    }

    /// Something that executes answers, or ends.
    fn go_on(&mut self, trace: &mut SeedTrace) -> RuleResult {
        if self.executing.is_empty() {
            return Ok(());
        }
        let place = self.random.below(self.executing.len() as u64) as usize;
        let execution = &mut self.executing[place];
        let model = &self.models.models[execution.model];
        let made = model.make(&inputs_of(&execution.live));
        let mut pending = PendingResponses::default();
        let handle = Arc::clone(execution.live.handle());
        if model.is_decoupled && execution.left_count > 0 {
            let made = format!("{made}#{}", execution.sent_count);
            trace.tell(self.event_count, || format!("{made} is there"));
            execution.left_count -= 1;
            execution.sent_count += 1;
            // The last response may be the end.
            let is_final = execution.left_count == 0 && self.random.chance(1, 2);
            if is_final {
                self.executing.swap_remove(place);
            }
            let response = answer_of(handle.shared(), &made);
            pending.push(handle.shared(), Some(Ok(response)), is_final);
            pending.flush();
            return Ok(());
        }
        let is_gap = !model.is_decoupled && self.has_faults && self.random.chance(1, 40);
        let number = number_of(&execution.live);
        trace.tell(self.event_count, || {
            format!(
                "{made} ends{}",
                if is_gap { " without an answer" } else { "" }
            )
        });
        let outcome = match model.is_decoupled || is_gap {
            true => None,
            false => Some(Ok(answer_of(handle.shared(), &made))),
        };
        self.requests[number].has_gap |= is_gap;
        self.executing.swap_remove(place);
        pending.push(handle.shared(), outcome, true);
        pending.flush();
        Ok(())
    }

    /// Something that executes fails.
    fn fail(&mut self, trace: &mut SeedTrace) {
        if self.executing.is_empty() {
            return;
        }
        let place = self.random.below(self.executing.len() as u64) as usize;
        let execution = self.executing.swap_remove(place);
        let number = number_of(&execution.live);
        let words = format!("fault {}", self.fault_count);
        self.fault_count += 1;
        trace.tell(self.event_count, || {
            format!("{:?} of {number}: {words}", inputs_of(&execution.live))
        });
        let request = &mut self.requests[number];
        // What ends it is what comes first; an inner ensemble tells later.
        if !request.is_cancelled || self.models.ensembles[request.ensemble].is_nested {
            request.faults.push(words.clone());
        }
        let handle = Arc::clone(execution.live.handle());
        drop(execution);
        let mut pending = PendingResponses::default();
        pending.push(handle.shared(), Some(Err(Error::internal(words))), true);
        pending.flush();
    }

    /// A client loses patience.
    fn cancel(&mut self, trace: &mut SeedTrace) {
        let waiting = self.requests.iter().enumerate();
        let waiting: Vec<usize> = waiting
            .filter(|(_, request)| !request.is_final)
            .map(|(number, _)| number)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let number = self.random.one_of(&waiting);
        trace.tell(self.event_count, || format!("{number} is cancelled"));
        let request = &mut self.requests[number];
        request.is_cancelled = true;
        if let Some(handle) = &request.handle {
            assert!(
                cancel(handle).into_error().is_none(),
                "the run answers, not the caller"
            );
        }
    }

    /// A model is reloaded: who has begun goes on with what it had.
    fn replace(&mut self, trace: &mut SeedTrace) {
        let model = self.random.below(self.models.models.len() as u64) as usize;
        trace.tell(self.event_count, || format!("m{model} is replaced"));
        self.models.replace(model);
    }
}

/// What must hold.
impl EnsembleSimulation {
    fn check(&mut self) -> RuleResult {
        let deliveries = std::mem::take(&mut *self.receiver.0.lock().unwrap());
        for delivery in deliveries {
            self.note(delivery)?;
        }
        for (index, ensemble) in self.models.ensembles.iter().enumerate() {
            let places = ensemble.own.places();
            for (step, (taken, max, waiting)) in places.into_iter().enumerate() {
                if taken > max || (waiting > 0 && taken < max) {
                    return Err(format!(
                        "step {step} of e{index}: {taken} of {max} places taken, {waiting} wait"
                    ));
                }
            }
        }
        for (model, own) in self.models.models.iter().enumerate() {
            let Some(max) = self.models.places_of(model) else {
                continue;
            };
            let executing = self.executing.iter();
            let executing = executing.filter(|execution| execution.model == model);
            let count = executing.count() as u64 + own.waiting_count();
            if count > max {
                return Err(format!("m{model} has {count} requests in {max} places"));
            }
        }
        Ok(())
    }

    /// Answers come before the end, the end comes once, and what is answered is what the steps
    /// make.
    fn note(&mut self, delivery: Delivery) -> RuleResult {
        let number = usize::try_from(delivery.slot()).unwrap();
        let request = &mut self.requests[number];
        if request.is_final {
            return Err(format!("{number} has a response after its last"));
        }
        request.is_final = delivery.is_final();
        match delivery.into_outcome() {
            None => {}
            Some(Err(error)) => request.error = Some(error),
            Some(Ok(response)) => {
                let outputs = response.outputs.iter().map(|output| {
                    let bytes = output.data.as_slice().unwrap();
                    let text = String::from_utf8(bytes.to_vec()).unwrap();
                    (output.name.to_string(), text)
                });
                let answer: BTreeMap<String, String> = outputs.collect();
                let index = request.answers.len() as u64;
                let expected =
                    self.models
                        .answer(request.ensemble, &request.wanted, &request.x, index);
                if answer != expected {
                    return Err(format!("{number} gets {answer:?} instead of {expected:?}"));
                }
                request.answers.push(answer);
            }
        }
        if request.is_final {
            request.handle = None;
            return self.check_answer(number);
        }
        Ok(())
    }

    /// One that is over has all its answers, or says why not.
    fn check_answer(&self, number: usize) -> RuleResult {
        let request = &self.requests[number];
        let ensemble = &self.models.ensembles[request.ensemble];
        let expected_count = match ensemble.shape.multiplies(&request.wanted) {
            true => request.response_count,
            false => 1,
        };
        let count = request.answers.len() as u64;
        let is_nested = ensemble.is_nested;
        let is_failed = !request.faults.is_empty();
        let ends_with = |error: &Error, words: &String| error.message.ends_with(&**words);
        let is_just = match &request.error {
            None if request.has_gap => ensemble.model.config.is_decoupled,
            None => count == expected_count && !is_failed && !request.is_cancelled,
            Some(error) if error.code == Code::Cancelled => {
                request.is_cancelled && (is_nested || !is_failed)
            }
            Some(error) if error.message.contains("unexpected deadlock") => {
                request.has_gap && (is_nested || !(is_failed || request.is_cancelled))
            }
            Some(error) if is_nested => {
                let mut faults = request.faults.iter();
                faults.any(|words| ends_with(error, words))
            }
            Some(error) => {
                let first = request.faults.first();
                first.is_some_and(|words| ends_with(error, words))
            }
        };
        is_just.then_some(()).ok_or_else(|| {
            format!(
                "{number} ends with {count} answers and {:?}, of {expected_count}; {:?}, \
                 cancelled: {}, gap: {}",
                request.error, request.faults, request.is_cancelled, request.has_gap
            )
        })
    }

    fn check_end(&mut self) -> RuleResult {
        if !self.executing.is_empty() {
            return Err("something executes when all is answered".into());
        }
        let models = self.models.all_versions();
        // What was cancelled lies in the queues until somebody looks.
        let models_of_steps = self.models.models.iter();
        let executors = models_of_steps.flat_map(|model| &model.executors);
        if executors
            .map(|executor| executor.queue.form_now())
            .any(|batch| !batch.is_empty())
        {
            return Err("something waits when all is answered".into());
        }
        let mut left = models.iter().filter(|model| !model.is_unused());
        if let Some(model) = left.next() {
            return Err(format!("{model:?} is never free"));
        }
        for ensemble in &self.models.ensembles {
            let places = ensemble.own.places();
            if places.into_iter().any(|(taken, ..)| taken > 0) {
                return Err("a place is never free".into());
            }
        }
        Ok(())
    }
}

fn number_of(live: &OwnedRequest) -> usize {
    live.shared().id.parse().unwrap()
}

/// So many requests at once.
const LIVE_MAX: usize = 6;
const EVENT_COUNT_MAX: u64 = 20_000;
