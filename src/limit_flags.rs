//! The flags that bound how much is let in at a time.

use conch_engine::gate::{Bounds, TENANT_MAX_MAX};

use crate::access_flags;
use crate::flag_values::{out_of_bound, parse_count};

/// What the flags say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitFlags {
    pub bounds: Bounds,
    /// The header, or the key of metadata, that names the tenant.
    pub tenant_header: Option<Box<str>>,
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
            _ => return None,
        };
        Some(count(value).map(|max| *bound = Some(max)))
    }

    /// # Errors
    /// The flag that wants another one, and why.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match (self.bounds.tenant_max, &self.tenant_header) {
            (Some(_), None) => Err((
                "tenant-requests-max",
                "--tenant-requests-max needs --tenant-header, which tells tenants apart.",
            )),
            (None, Some(_)) => Err((
                "tenant-header",
                "--tenant-header does nothing without --tenant-requests-max.",
            )),
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
        assert_eq!(flags.check(), Ok(()));
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
        assert_eq!(flags.check(), Ok(()));
        assert_eq!(flags.set("tenant-requests-max", "3"), Some(Ok(())));
        assert_eq!(flags.check().unwrap_err().0, "tenant-requests-max");
        assert!(flags.set("tenant-header", "a b").unwrap().is_err());
        assert_eq!(flags.set("tenant-header", "X-Tenant"), Some(Ok(())));
        assert_eq!(flags.check(), Ok(()));
        let bounds = Bounds {
            server_max: Some(5),
            model_max: Some(4),
            tenant_max: Some(3),
        };
        assert_eq!(
            (flags.bounds, flags.tenant_header.as_deref()),
            (bounds, Some("X-Tenant"))
        );
        flags.bounds.tenant_max = None;
        assert_eq!(flags.check().unwrap_err().0, "tenant-header");
    }
}
