//! The plan's file.

use std::path::PathBuf;

use conch_backend_sdk as sdk;
use sdk::serde_json::Value;
use sdk::{Error, ModelConfig, ModelContext};

/// Where a model version's plans are, and which is for which GPU.
#[derive(Debug)]
pub struct PlanFile {
    model_name: String,
    directory: PathBuf,
    config: ModelConfig,
}

impl PlanFile {
    pub fn of(context: &ModelContext) -> Self {
        PlanFile {
            model_name: context.name().to_owned(),
            directory: context.version_directory(),
            config: context.config().clone(),
        }
    }

    /// The path of the plan for a generation of GPUs, such as `9.0`.
    pub fn path(&self, capability: &str) -> PathBuf {
        self.directory.join(file_name(&self.config, capability))
    }

    /// The plan for a generation of GPUs.
    ///
    /// # Errors
    /// `Unavailable`, in upstream's words, if it is not there, or cannot be read.
    pub fn read(&self, capability: &str, instance: &str) -> Result<Vec<u8>, Error> {
        let path = self.path(capability);
        if !path.is_file() {
            return Err(Error::unavailable(format!(
                "unable to find '{}' for model instance '{instance}'",
                path.display()
            )));
        }
        // A plan that does not fit into memory is an error here, not an end.
        let read = || {
            let mut file = std::fs::File::open(&path)?;
            let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
            let mut plan = Vec::new();
            let reserved = plan.try_reserve_exact(len);
            reserved.map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
            std::io::Read::read_to_end(&mut file, &mut plan)?;
            Ok::<_, std::io::Error>(plan)
        };
        read().map_err(|error| {
            let (path, name) = (path.display(), &self.model_name);
            Error::unavailable(format!("cannot read {path} of model '{name}': {error}"))
        })
    }
}

/// The name that the configuration has for this generation, for all, or the usual one.
fn file_name<'c>(config: &'c ModelConfig, capability: &str) -> &'c str {
    let names = config.json().get("cc_model_filenames");
    let named = names
        .and_then(|names| names.get(capability))
        .and_then(Value::as_str);
    named
        .or_else(|| config.default_model_filename())
        .unwrap_or("model.plan")
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;

    #[test]
    fn names_of_plans() {
        for (config, expected) in [
            (json!({}), "model.plan"),
            (json!({"default_model_filename": "a.plan"}), "a.plan"),
            (
                json!({"default_model_filename": "a.plan",
                       "cc_model_filenames": {"9.0": "h.plan", "8.0": "b.plan"}}),
                "h.plan",
            ),
            (
                json!({"cc_model_filenames": {"8.0": "b.plan"}}),
                "model.plan",
            ),
        ] {
            assert_eq!(file_name(&ModelConfig::new(config), "9.0"), expected);
        }
    }
}
