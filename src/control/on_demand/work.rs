//! Bringing awaited models in, on control threads: room first, then the load, then a permit for
//! everyone who waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use conch_engine::{Code, Error, truncated};
use conch_log as log;
use conch_scheduler::eviction::{EvictionStep, next_step};

use super::{OnDemand, OnDemandState, RegistryLookup, call, find};
use crate::load_overrides::Overrides;
use crate::loader::Lifecycle;

/// How often a thread that waits for room checks whether a model has become idle; one that unloads
/// wakes it.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl OnDemand {
    pub(super) fn start_thread(self: &Arc<Self>) {
        let demand = Arc::clone(self);
        let work = move || demand.work();
        if let Err(cause) = thread::Builder::new().name("demand".to_owned()).spawn(work) {
            self.give_up(&Error::unavailable(format!(
                "cannot start a thread: {cause}"
            )));
        }
    }

    /// No thread takes on what is in line, unless another one does.
    fn give_up(&self, error: &Error) {
        let mut state = self.lock();
        state.thread_count -= 1;
        if state.thread_count > 0 {
            return;
        }
        let names: Vec<_> = state.line.drain(..).collect();
        let calls: Vec<_> = names
            .iter()
            .filter_map(|name| state.awaited.remove(name))
            .flatten()
            .collect();
        drop(state);
        for call in calls {
            call.complete(Err(error.clone()));
        }
    }

    /// Brings in what is in line, until nothing is.
    fn work(&self) {
        // A shard starts it, on its own CPU.
        self.loader.loader_placement().apply();
        loop {
            let name = {
                let mut state = self.lock();
                match state.line.pop_front() {
                    Some(name) => name,
                    None => {
                        state.thread_count -= 1;
                        return;
                    }
                }
            };
            let loaded = catch_unwind(AssertUnwindSafe(|| self.load_awaited(&name)));
            let outcome = loaded
                .unwrap_or_else(|_| Err(Error::internal("panic while a model was brought in")));
            self.finish(&name, outcome);
        }
    }

    fn load_awaited(&self, name: &Arc<str>) -> Result<(), Error> {
        // It may have come by another way since.
        if self.loader.registry().snapshot().find(name, None).is_ok() {
            return Ok(());
        }
        let lifecycle = &self.loader;
        // The lookup's words, as if nothing had been tried.
        let unknown = || {
            Error::not_found(format!(
                "Request for unknown model: '{name}' is not found",
                name = truncated(&name)
            ))
        };
        let file_bytes = lifecycle.file_bytes(name).ok_or_else(unknown)?;
        let room = self.make_room(name, file_bytes);
        let outcome = room.and_then(|()| {
            lifecycle
                .load_model(name, Overrides::default())
                .map_err(|error| {
                    let message = error.message.trim_end();
                    Error::unavailable(format!(
                        "model '{name}' could not be loaded: {message}",
                        name = truncated(&name)
                    ))
                })
        });
        self.record_size(name, file_bytes);
        outcome
    }

    /// Loads a model that somebody asked for by name, within the budget.
    ///
    /// # Errors
    /// As for a request, and the load's own.
    pub(crate) fn load(&self, name: &str, overrides: Overrides) -> Result<(), Error> {
        let name: Arc<str> = Arc::from(name);
        let own_bytes = overrides
            .files
            .iter()
            .map(|(_, content)| content.len() as u64);
        let bytes = match overrides.files.is_empty() {
            // What is wrong with the name is for the load to say.
            true => self.loader.file_bytes(&name).unwrap_or(0),
            false => own_bytes.sum(),
        };
        let is_there = self.loader.registry().snapshot().find(&name, None).is_ok();
        if !is_there {
            self.make_room(&name, bytes)?;
        }
        let outcome = self.loader.load_model(&name, overrides);
        self.lock().failures.remove(&name);
        self.record_size(&name, bytes);
        self.trim();
        outcome
    }

    /// Waits until there is room for `bytes`, and reserves it.
    ///
    /// # Errors
    /// UNAVAILABLE if there can be none, or not soon enough.
    fn make_room(&self, name: &Arc<str>, bytes: u64) -> Result<(), Error> {
        let budget_bytes = self.settings.budget_bytes;
        let deadline = Instant::now() + self.settings.patience;
        let mut state = self.lock();
        loop {
            match self.step(&state, bytes) {
                EvictionStep::Enter => {
                    state.reserved.insert(Arc::clone(name), bytes);
                    return Ok(());
                }
                EvictionStep::Refuse => {
                    return Err(Error::unavailable(format!(
                        "model '{name}' takes {bytes} bytes, and all models together may take \
                         {budget_bytes} (--model-memory-budget-bytes)",
                        name = truncated(&name)
                    )));
                }
                EvictionStep::Evict(oldest) => {
                    if self.loader.evict_idle(&oldest) {
                        log::info!("unloading '{oldest}' to make room for '{name}'");
                        continue;
                    }
                }
                EvictionStep::Wait => {}
            }
            if Instant::now() >= deadline || self.loader.is_stopping() {
                return Err(Error::unavailable(format!(
                    "there was no room for model '{name}' within {} s: the models that take it are \
                     in use",
                    self.settings.patience.as_secs(),
                    name = truncated(&name)
                )));
            }
            let waited = self.changed.wait_timeout(state, IDLE_CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn step(&self, state: &OnDemandState, bytes: u64) -> EvictionStep {
        let is_busy = |name: &str| state.awaited.contains_key(name);
        // One that has just come is not measured yet.
        let size_of = |name: &str| {
            let kept = state.reserved.get(name);
            state.sizes.get(name).max(kept).copied()
        };
        let residents = self.loader.residents(&size_of, &is_busy);
        // What is loaded already is counted as that.
        let reserved = state.reserved.iter().filter(|(name, _)| {
            !residents
                .iter()
                .any(|resident| !resident.is_leaving && resident.name == **name)
        });
        let reserved_bytes = reserved.fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        next_step(
            &residents,
            reserved_bytes,
            bytes,
            self.settings.budget_bytes,
        )
    }

    /// Notes what the model takes, and releases what was reserved for it.
    fn record_size(&self, name: &Arc<str>, file_bytes: u64) {
        let bytes = measured(&self.loader, name).unwrap_or(file_bytes);
        // An ensemble has brought others along.
        self.learn();
        let is_there = self.loader.registry().snapshot().find(name, None).is_ok();
        let mut state = self.lock();
        state.reserved.remove(name);
        // Clients may ask for loads by whatever names.
        if is_there {
            state.sizes.insert(Arc::clone(name), bytes);
        }
    }

    /// Models whose size is known.
    #[cfg(test)]
    pub(crate) fn size_count(&self) -> usize {
        self.lock().sizes.len()
    }

    /// Finds out what models take that came by other ways.
    fn learn(&self) {
        for name in self.loader.loaded_names() {
            if self.lock().sizes.contains_key(&name) {
                continue;
            }
            let bytes = measured(&self.loader, &name)
                .or_else(|| self.loader.file_bytes(&name))
                .unwrap_or(0);
            self.lock().sizes.entry(name).or_insert(bytes);
        }
    }

    /// Lets models go until the others fit: at the start, and after one that takes more than its
    /// files let expect.
    pub(crate) fn trim(&self) {
        self.learn();
        let state = self.lock();
        while let EvictionStep::Evict(oldest) = self.step(&state, 0) {
            if !self.loader.evict_idle(&oldest) {
                return;
            }
            log::info!("unloading '{oldest}', the models take more memory than they may");
        }
    }

    fn finish(&self, name: &Arc<str>, outcome: Result<(), Error>) {
        let calls = {
            let mut state = self.lock();
            let calls = state.awaited.remove(name).unwrap_or_default();
            if let Err(error) = &outcome {
                state.note_failure(name, error);
            }
            // Under the lock: nobody lets the model go before everyone has a permit.
            let permitted = calls.into_iter().map(|call| {
                let permit = permit(&self.loader, name, &call, &outcome);
                (call, permit)
            });
            permitted.collect::<Vec<_>>()
        };
        self.changed.notify_all();
        for (call, permit) in calls {
            call.complete(permit);
        }
        if outcome.is_ok() {
            self.trim();
        }
    }
}

/// What the backend says that a model takes, if it does.
fn measured(loader: &Lifecycle, name: &str) -> Option<u64> {
    Some(loader.reported_bytes(name)).filter(|bytes| *bytes > 0)
}

fn permit(
    loader: &Lifecycle,
    name: &str,
    call: &call::LoadShared,
    outcome: &Result<(), Error>,
) -> call::PermitOutcome {
    if !call.is_awaited() {
        return Ok(None);
    }
    outcome.clone()?;
    match find(loader.registry(), name, call.version) {
        RegistryLookup::Permitted(permit) => Ok(Some(permit)),
        RegistryLookup::Refusing => Ok(None),
        RegistryLookup::Absent => Err(Error::new(
            Code::Unavailable,
            format!(
                "model '{name}' was loaded, and unloaded again at once",
                name = truncated(&name)
            ),
        )),
    }
}
