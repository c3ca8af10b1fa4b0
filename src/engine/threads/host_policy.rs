//! Host policies: on which CPUs and in which node's memory instances of a policy run
//! (`--host-policy`). Instances name their policy; one without settings binds nothing.

use std::collections::BTreeMap;

use conch_net::affinity;

use crate::Error;

/// Every policy that has settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicies {
    by_name: BTreeMap<String, BTreeMap<&'static str, String>>,
}

impl HostPolicies {
    /// Sets one setting of a policy; the last value holds. Values are looked at when an instance is
    /// made, as upstream does.
    ///
    /// # Errors
    /// UNSUPPORTED for a setting that there is not.
    pub fn set(&mut self, policy: &str, setting: &str, value: &str) -> Result<(), Error> {
        let Some(known) = SETTINGS.into_iter().find(|known| *known == setting) else {
            return Err(Error::unsupported(format!(
                "Unsupported host policy setting '{setting}' is specified, supported settings are \
                 'numa-node', 'cpu-cores'"
            )));
        };
        let settings = self.by_name.entry(policy.to_owned()).or_default();
        settings.insert(known, value.to_owned());
        Ok(())
    }

    /// Setting and value of all that is set for a policy, by name.
    pub fn settings(&self, policy: &str) -> impl Iterator<Item = (&'static str, &str)> {
        let settings = self.by_name.get(policy).into_iter().flatten();
        settings.map(|(setting, value)| (*setting, value.as_str()))
    }

    /// Binds the calling thread, and all that it starts, as the policy says.
    ///
    /// # Errors
    /// INVALID_ARG for a value that cannot be one; INTERNAL if the system refuses.
    pub(crate) fn bind_current_thread(&self, policy: &str) -> Result<(), Error> {
        for (setting, value) in self.settings(policy) {
            let (bound, what) = if setting == CPU_CORES {
                let bound = affinity::confine_current_thread(&parse_cpus(value)?);
                (bound, "NUMA thread affinity")
            } else {
                let node = parse_number(setting, value)?;
                let bound = affinity::bind_memory_of_current_thread(node);
                (bound, "NUMA memory policy")
            };
            bound.map_err(|cause| Error::internal(format!("Unable to set {what}: {cause}")))?;
        }
        Ok(())
    }
}

const CPU_CORES: &str = "cpu-cores";
const SETTINGS: [&str; 2] = [CPU_CORES, "numa-node"];

/// Ranges of CPUs, `0-3,6-6`.
fn parse_cpus(text: &str) -> Result<Vec<usize>, Error> {
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (lower, upper) = range.split_once('-').ok_or_else(|| {
            Error::invalid(format!(
                "host policy setting 'cpu-cores' format is \
                 '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {range}"
            ))
        })?;
        let (lower, upper) = (
            parse_number(CPU_CORES, lower)?,
            parse_number(CPU_CORES, upper)?,
        );
        if upper >= affinity::CPUS_MAX {
            return Err(Error::invalid(format!(
                "Parsing 'cpu-cores' value: there is no CPU {upper}"
            )));
        }
        cpus.extend(lower..=upper);
    }
    Ok(cpus)
}

fn parse_number(setting: &str, text: &str) -> Result<usize, Error> {
    text.trim().parse().map_err(|_| {
        Error::invalid(format!(
            "Parsing '{setting}' value: Can't parse '{text}' to integer"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_ranges() {
        for (text, expected) in [
            ("0-3,6-6", Ok(vec![0, 1, 2, 3, 6])),
            ("2-1", Ok(vec![])),
            (
                "5",
                Err("host policy setting 'cpu-cores' format is \
                     '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 5"),
            ),
            (
                "0-1,x-2",
                Err("Parsing 'cpu-cores' value: Can't parse 'x' to integer"),
            ),
            (
                "0-99999999",
                Err("Parsing 'cpu-cores' value: there is no CPU 99999999"),
            ),
        ] {
            let parsed = parse_cpus(text).map_err(|error| error.message.into_owned());
            assert_eq!(parsed, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn a_policy_binds_the_thread() {
        let mut policies = HostPolicies::default();
        let refused = policies.set("p", "gpu", "0").unwrap_err().to_string();
        assert_eq!(
            refused,
            "Unsupported: Unsupported host policy setting 'gpu' is specified, supported settings \
             are 'numa-node', 'cpu-cores'"
        );
        let first = affinity::current_cpus().unwrap()[0];
        policies.set("p", "cpu-cores", "9-9").unwrap();
        policies
            .set("p", "cpu-cores", &format!("{first}-{first}"))
            .unwrap();
        policies.set("q", "numa-node", "many").unwrap();
        assert_eq!(
            policies.settings("p").collect::<Vec<_>>(),
            [("cpu-cores", &*format!("{first}-{first}"))]
        );
        std::thread::spawn(move || {
            policies.bind_current_thread("unknown").unwrap();
            policies.bind_current_thread("p").unwrap();
            assert_eq!(affinity::current_cpus().unwrap(), [first]);
            let refused = policies.bind_current_thread("q").unwrap_err();
            assert_eq!(
                refused.message,
                "Parsing 'numa-node' value: Can't parse 'many' to integer"
            );
        })
        .join()
        .unwrap();
    }
}
