//! The flags that bound how much is let in at a time, how much of it executes, and how much memory
//! models take.

use std::time::Duration;

use conch_control::OnDemandSettings;
use conch_engine::admission::limits::{AdmissionBounds, TENANT_MAX_MAX};

use crate::access_flags;
use crate::flag_values::{out_of_bound, parse_count};

/// What the flags say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitFlags {
    pub bounds: AdmissionBounds,
    /// The header, or the key of metadata, that names the tenant.
    pub tenant_header: Option<Box<str>>,
    /// Executions at a time.
    pub executions_max: Option<u64>,
    model_budget_bytes: Option<u64>,
    model_wait_secs: Option<u64>,
    model_waiting_max: Option<usize>,
}

impl LimitFlags {
    /// Sets what flag `name` says; none if it is not of these.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let bound = match name {
            "server-requests-max" => &mut self.bounds.server_max,
            "model-requests-max" => &mut self.bounds.model_max,
            "tenant-requests-max" => {
                let max = count(value).and_then(|max| match max <= TENANT_MAX_MAX {
                    true => Ok(max),
                    false => Err(out_of_bound(value)),
                });
                return Some(max.map(|max| self.bounds.tenant_max = Some(max)));
            }
            "tenant-header" => {
                let name = access_flags::header_name(value);
                return Some(name.map(|name| self.tenant_header = name));
            }
            "executions-max" => {
                return Some(count(value).map(|max| self.executions_max = Some(max)));
            }
            "model-memory-budget-bytes" => {
                return Some(count(value).map(|bytes| self.model_budget_bytes = Some(bytes)));
            }
            "model-wait-secs" => {
                return Some(count(value).map(|secs| self.model_wait_secs = Some(secs)));
            }
            "model-waiting-requests-max" => {
                let max = parse_count(value, 1);
                return Some(max.map(|max| self.model_waiting_max = Some(max)));
            }
            _ => return None,
        };
        Some(count(value).map(|max| *bound = Some(max)))
    }

    /// How models come and go, if they come when they are asked for.
    pub fn demand(&self) -> Option<OnDemandSettings> {
        Some(OnDemandSettings {
            budget_bytes: self.model_budget_bytes?,
            patience: Duration::from_secs(self.model_wait_secs.unwrap_or(60)),
            waiting_max: self.model_waiting_max.unwrap_or(1024),
        })
    }

    /// # Errors
    /// The flag that wants another one, and why.
    pub fn check(&self, is_explicit: bool) -> Result<(), (&'static str, &'static str)> {
        if self.model_budget_bytes.is_some() && !is_explicit {
            return Err((
                "model-memory-budget-bytes",
                "--model-memory-budget-bytes needs --model-control-mode=explicit.",
            ));
        }
        if self.model_budget_bytes.is_none() {
            let why = "it does nothing without --model-memory-budget-bytes.";
            if self.model_wait_secs.is_some() {
                return Err(("model-wait-secs", why));
            }
            if self.model_waiting_max.is_some() {
                return Err(("model-waiting-requests-max", why));
            }
        }
        match (self.bounds.tenant_max, &self.tenant_header) {
            (Some(_), None) => Err((
                "tenant-requests-max",
                "--tenant-requests-max needs --tenant-header, which tells tenants apart.",
            )),
            // Without a bound the header tells apart whose shares of the byte budget are whose.
            _ => Ok(()),
        }
    }
}

fn count(value: &str) -> Result<u64, String> {
    parse_count(value, 1).map(|count| count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_the_tenants_header() {
        let mut flags = LimitFlags::default();
        assert_eq!(flags.set("shards", "1"), None);
        assert_eq!(flags.check(false), Ok(()));
        for name in [
            "server-requests-max",
            "model-requests-max",
            "tenant-requests-max",
        ] {
            for value in ["0", "-1", "x", "99999999999999999999"] {
                assert!(flags.set(name, value).unwrap().is_err(), "{name} {value}");
            }
        }
        assert!(
            flags
                .set("tenant-requests-max", "16777216")
                .unwrap()
                .is_err()
        );
        assert_eq!(flags, LimitFlags::default());
        for (name, value) in [("server-requests-max", "5"), ("model-requests-max", "4")] {
            assert_eq!(flags.set(name, value), Some(Ok(())));
        }
        assert_eq!(flags.check(false), Ok(()));
        assert_eq!(flags.set("tenant-requests-max", "3"), Some(Ok(())));
        assert_eq!(flags.check(false).unwrap_err().0, "tenant-requests-max");
        assert!(flags.set("tenant-header", "a b").unwrap().is_err());
        assert_eq!(flags.set("tenant-header", "X-Tenant"), Some(Ok(())));
        assert_eq!(flags.check(false), Ok(()));
        let bounds = AdmissionBounds {
            server_max: Some(5),
            model_max: Some(4),
            tenant_max: Some(3),
        };
        assert_eq!(
            (flags.bounds, flags.tenant_header.as_deref()),
            (bounds, Some("X-Tenant"))
        );
        // The header also tells whose share of the memory a request takes.
        flags.bounds.tenant_max = None;
        assert_eq!(flags.check(false), Ok(()));
    }

    #[test]
    fn the_memory_of_models() {
        let mut flags = LimitFlags::default();
        assert_eq!(flags.demand(), None);
        for name in ["model-wait-secs", "model-waiting-requests-max"] {
            assert!(flags.set(name, "0").unwrap().is_err(), "{name}");
            let mut alone = LimitFlags::default();
            assert_eq!(alone.set(name, "5"), Some(Ok(())));
            assert_eq!(alone.check(true).unwrap_err().0, name);
        }
        assert_eq!(flags.set("model-memory-budget-bytes", "1000"), Some(Ok(())));
        assert_eq!(
            flags.check(false).unwrap_err().0,
            "model-memory-budget-bytes"
        );
        assert_eq!(flags.check(true), Ok(()));
        let mut expected = OnDemandSettings {
            budget_bytes: 1000,
            patience: Duration::from_secs(60),
            waiting_max: 1024,
        };
        assert_eq!(flags.demand(), Some(expected.clone()));
        for name in ["model-wait-secs", "model-waiting-requests-max"] {
            assert_eq!(flags.set(name, "5"), Some(Ok(())));
        }
        (expected.patience, expected.waiting_max) = (Duration::from_secs(5), 5);
        assert_eq!(flags.demand(), Some(expected));
    }
}
