//! Updates in place: a version of which only the instance groups (and the version policy) changed
//! serves on with other instances. Its queue, its statistics and the model in its backend stay.

use std::sync::Arc;

use conch_config::ModelConfig;
use conch_engine::{Error, ModelVersion};

use super::Lifecycle;
use super::instances::instance_plan;
use super::load_plan::LoadPlan;
use super::loaded::{Instances, Loaded};
use super::version_change::InstanceRevision;

impl Lifecycle {
    /// Makes the instances that `plan` wants for the version that serves; none if there is none, if
    /// more than its instances changed, or if only a reload does it.
    ///
    /// # Errors
    /// As for a load. The version serves on as it is.
    pub(super) fn revise_version(
        &self,
        plan: &LoadPlan,
        version: i64,
    ) -> Result<Option<InstanceRevision>, Error> {
        let Some((entry, instances)) = self.revisable(plan, version) else {
            return Ok(None);
        };
        let mut config = plan.candidate.config.clone();
        instances.backend.complete_config(&mut config);
        conch_config::resolve_instance_groups(
            &mut config,
            instances.backend.preferred_groups(),
            &self.gpus.for_config(),
        )?;
        let message = ModelConfig {
            instance_group: config.instance_group,
            version_policy: config.version_policy,
            // As the backend completed it.
            ..(*entry.reported_config().message).clone()
        };
        let config = Arc::new(conch_config::ResolvedConfig::from_message(message)?);
        let instance_plan = instance_plan(self, plan, &entry, &config, &*instances.backend)?;
        let revision =
            instances
                .cores
                .revise(&entry, &instances.model, instance_plan, &self.placement)?;
        Ok(revision.map(|revision| InstanceRevision {
            revision,
            version: entry,
            instances,
            config,
        }))
    }

    fn revisable(&self, plan: &LoadPlan, version: i64) -> Option<(Arc<ModelVersion>, Instances)> {
        if plan.is_ensemble() || plan.resources.agents.is_some() {
            return None;
        }
        let models = self.table.lock();
        let entry = models.get(&plan.id)?;
        let slot = entry.versions.get(&version).filter(|slot| slot.serves())?;
        let loaded = slot.loaded.as_ref()?;
        let source = entry.source.as_ref()?;
        source
            .has_same_model_in(&plan.source, version)
            .then(|| Some((Arc::clone(loaded.version()), loaded.instances()?.clone())))?
    }
}

/// A version that stays as it is shows the policy that it is kept under.
pub(super) fn show_policy(loaded: &Loaded, config: &ModelConfig) {
    let version = loaded.version();
    let shown = version.reported_config();
    if shown.message.version_policy == config.version_policy {
        return;
    }
    let message = ModelConfig {
        version_policy: config.version_policy.clone(),
        ..(*shown.message).clone()
    };
    // It differs from a valid one in nothing that is validated.
    if let Ok(config) = conch_config::ResolvedConfig::from_message(message) {
        let config = Arc::new(config);
        if let Some(instances) = loaded.instances() {
            instances.model.reconfigure(&config);
        }
        version.set_reported_config(config);
    }
}
