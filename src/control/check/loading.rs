//! The part of a check that loads.

use conch_engine::Error;
use conch_engine::model::registry::VersionState;
use conch_log as log;

use super::ModelPlace;
use super::judgement::judge;
use super::report::{CheckFault, CheckReport, CheckState, ModelReport};
use crate::server::Server;

impl Server {
    /// Loads the models of a report by [`examine`](super::examine), each on its own with what it
    /// needs, and unloads it again. One that cannot even be read is not loaded. What is found takes
    /// the place of what the report says, and `told` hears of each model as soon as it is known.
    /// Blocks as long as backends do.
    pub fn check_models(&self, report: &mut CheckReport, told: &mut dyn FnMut(&ModelReport)) {
        let patience = self.options().exit_timeout;
        for model in &mut report.models {
            if !model.is_loadable {
                told(model);
                continue;
            }
            let loaded = self.lifecycle().load_alone(&model.name);
            *model = self.judge_loaded(model, loaded);
            told(model);
            if let Err(error) = self.lifecycle().unload_alone(&model.name, patience) {
                log::error!("cannot unload '{}': {error}", model.id);
            }
        }
    }

    fn judge_loaded(&self, model: &ModelReport, loaded: Result<(), Error>) -> ModelReport {
        let outcome = self.lifecycle().outcome(&model.id);
        let place = ModelPlace::new(&model.id, &model.directory, self.options());
        let mut judged = judge(&place, &outcome, None);
        let mut states = outcome.versions.iter().map(|(_, state)| state);
        let is_ready = !outcome.versions.is_empty()
            && states.all(|state| *state == VersionState::Ready)
            && outcome.failure.is_none();
        if is_ready {
            judged.state = CheckState::Ready;
            return judged;
        }
        judged.state = CheckState::Failed;
        if judged.errors.is_empty() {
            let message = match loaded {
                Err(error) => error.message.into_owned(),
                Ok(()) => String::from("it did not become ready"),
            };
            let fault = CheckFault::of(&model.directory, message);
            judged.errors.push(fault);
        }
        judged
    }
}
