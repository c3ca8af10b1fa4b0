//! The flags about models that are loaded on demand: how much memory they take, and how many
//! requests wait for them for how long.

use std::time::Duration;

use conch_control::OnDemandSettings;

/// None: the flag is not given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnDemandFlags {
    pub budget_bytes: Option<u64>,
    pub wait_secs: Option<u64>,
    pub waiting_max: Option<usize>,
}

impl OnDemandFlags {
    /// Seconds that a request waits for its model.
    pub fn wait_secs(&self) -> u64 {
        self.wait_secs.unwrap_or(60)
    }

    /// Requests that wait for models.
    pub fn waiting_max(&self) -> usize {
        self.waiting_max.unwrap_or(1024)
    }

    /// None: models are not loaded on demand.
    pub fn settings(&self) -> Option<OnDemandSettings> {
        Some(OnDemandSettings {
            budget_bytes: self.budget_bytes?,
            patience: Duration::from_secs(self.wait_secs()),
            waiting_max: self.waiting_max(),
        })
    }

    /// # Errors
    /// The flag that wants another one, and why.
    pub fn check(&self, is_explicit: bool) -> Result<(), (&'static str, &'static str)> {
        if self.budget_bytes.is_some() {
            return match is_explicit {
                true => Ok(()),
                false => Err((
                    "model-memory-budget-bytes",
                    "--model-memory-budget-bytes needs --model-control-mode=explicit.",
                )),
            };
        }
        let why = "it does nothing without --model-memory-budget-bytes.";
        if self.wait_secs.is_some() {
            return Err(("model-wait-secs", why));
        }
        if self.waiting_max.is_some() {
            return Err(("model-waiting-requests-max", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use conch_engine::limits::AdmissionBounds;

    use super::*;
    use crate::{Arguments, EarlyExit, check, lookup};

    fn set(arguments: &mut Arguments, name: &str, value: &str) -> Result<(), String> {
        let flag = lookup::find(name).map_err(|_| lookup::unknown(name))?;
        flag.apply(arguments, value)
    }

    fn refused(arguments: &Arguments) -> Option<String> {
        let mut arguments = arguments.clone();
        arguments.engine.model_repositories.push("m".into());
        match check::complete(arguments) {
            Ok(_) => None,
            Err(EarlyExit::Bad { flag, .. }) => Some(flag),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn bounds_and_the_tenants_header() {
        let mut flags = Arguments::default();
        assert_eq!(refused(&flags), None);
        for name in [
            "server-requests-max",
            "model-requests-max",
            "tenant-requests-max",
        ] {
            for value in ["0", "-1", "x", "99999999999999999999"] {
                assert!(set(&mut flags, name, value).is_err(), "{name} {value}");
            }
        }
        assert!(set(&mut flags, "tenant-requests-max", "16777216").is_err());
        assert_eq!(flags.engine.admission, AdmissionBounds::default());
        for (name, value) in [("server-requests-max", "5"), ("model-requests-max", "4")] {
            assert_eq!(set(&mut flags, name, value), Ok(()));
        }
        assert_eq!(refused(&flags), None);
        assert_eq!(set(&mut flags, "tenant-requests-max", "3"), Ok(()));
        assert_eq!(refused(&flags).as_deref(), Some("tenant-requests-max"));
        assert!(set(&mut flags, "tenant-header", "a b").is_err());
        assert_eq!(set(&mut flags, "tenant-header", "X-Tenant"), Ok(()));
        assert_eq!(refused(&flags), None);
        let bounds = AdmissionBounds {
            server_max: Some(5),
            model_max: Some(4),
            tenant_max: Some(3),
        };
        assert_eq!(
            (
                flags.engine.admission,
                flags.frontend.tenant_header.as_deref()
            ),
            (bounds, Some("X-Tenant"))
        );
        // The header also tells whose share of the memory a request takes.
        flags.engine.admission.tenant_max = None;
        assert_eq!(refused(&flags), None);
    }

    #[test]
    fn the_memory_of_models() {
        let mut flags = Arguments::default();
        assert_eq!(flags.combined.on_demand.settings(), None);
        for name in ["model-wait-secs", "model-waiting-requests-max"] {
            assert!(set(&mut flags, name, "0").is_err(), "{name}");
            let mut alone = Arguments::default();
            assert_eq!(set(&mut alone, name, "5"), Ok(()));
            assert_eq!(alone.combined.on_demand.check(true).unwrap_err().0, name);
        }
        assert_eq!(set(&mut flags, "model-memory-budget-bytes", "1000"), Ok(()));
        assert_eq!(
            flags.combined.on_demand.check(false).unwrap_err().0,
            "model-memory-budget-bytes"
        );
        assert_eq!(flags.combined.on_demand.check(true), Ok(()));
        let mut expected = OnDemandSettings {
            budget_bytes: 1000,
            patience: Duration::from_secs(60),
            waiting_max: 1024,
        };
        assert_eq!(flags.combined.on_demand.settings(), Some(expected.clone()));
        for name in ["model-wait-secs", "model-waiting-requests-max"] {
            assert_eq!(set(&mut flags, name, "5"), Ok(()));
        }
        (expected.patience, expected.waiting_max) = (Duration::from_secs(5), 5);
        assert_eq!(flags.combined.on_demand.settings(), Some(expected));
    }
}
