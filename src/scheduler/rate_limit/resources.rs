//! Resources of instances: needs and capacities.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A resource: one pool for the server, or one per device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    pub name: Arc<str>,
    /// None: global.
    pub device: Option<i32>,
}

/// What one instance needs, each resource once.
pub type ResourceNeeds = BTreeMap<Resource, u64>;

/// `--rate-limit-resource`: how much of a resource there is, on one device or (none) on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceCapacity {
    pub name: String,
    pub count: u64,
    pub device: Option<i32>,
}

/// Why the needs of all instances cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetNeeds {
    /// An instance would never execute.
    Shortage {
        name: Arc<str>,
        limit: u64,
        wanted: u64,
    },
    /// One name for two kinds of resources.
    Ambiguous { name: Arc<str> },
}

impl fmt::Display for UnmetNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmetNeeds::Shortage {
                name,
                limit,
                wanted,
            } => write!(
                f,
                "Resource count for \"{name}\" is limited to {limit} which will prevent \
                 scheduling of one or more model instances, the minimum required count is {wanted}"
            ),
            UnmetNeeds::Ambiguous { name } => write!(
                f,
                "Resource \"{name}\" is present as both global and device-specific resource in the \
                 model configuration."
            ),
        }
    }
}

/// The capacities that `all` instances' needs make: those given, else of each resource as much as
/// the neediest instance wants.
///
/// # Errors
/// What cannot be met by `given`, or the first name that is both global and not.
pub fn capacities<'n>(
    all: impl Iterator<Item = &'n ResourceNeeds>,
    given: &[ResourceCapacity],
) -> Result<BTreeMap<Resource, u64>, UnmetNeeds> {
    let mut capacities: BTreeMap<Resource, u64> = BTreeMap::new();
    for (resource, count) in all.flatten() {
        let most = capacities.entry(resource.clone()).or_default();
        *most = (*most).max(*count);
    }
    if !given.is_empty() {
        for (resource, capacity) in &mut capacities {
            let wanted = *capacity;
            let limit = limit(resource, given);
            if limit < wanted {
                return Err(UnmetNeeds::Shortage {
                    name: Arc::clone(&resource.name),
                    limit,
                    wanted,
                });
            }
            *capacity = limit;
        }
    }
    // Sorted by name: those of one name stand together, the global one first.
    let mut previous: Option<&Resource> = None;
    for resource in capacities.keys() {
        if let Some(previous) = previous
            && previous.name == resource.name
            && previous.device.is_none()
        {
            return Err(UnmetNeeds::Ambiguous {
                name: Arc::clone(&resource.name),
            });
        }
        previous = Some(resource);
    }
    Ok(capacities)
}

/// How much of `resource` was given. Of two words about the same the lower holds; of a device's own
/// and every device's the higher, and for a global resource the highest of all, whatever device
/// they name. As upstream.
fn limit(resource: &Resource, given: &[ResourceCapacity]) -> u64 {
    let mut by_device: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    let named = given.iter().filter(|given| *given.name == *resource.name);
    for ResourceCapacity { count, device, .. } in named {
        let known = by_device.entry(*device).or_insert(*count);
        *known = (*known).min(*count);
    }
    by_device
        .into_iter()
        .filter(|(device, _)| {
            resource.device.is_none() || device.is_none() || *device == resource.device
        })
        .map(|(_, count)| count)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(text: &str) -> ResourceNeeds {
        text.split_whitespace()
            .map(|word| {
                let (resource, count) = word.split_once('=').unwrap();
                let (name, device) = match resource.split_once('@') {
                    Some((name, device)) => (name, Some(device.parse().unwrap())),
                    None => (resource, None),
                };
                let resource = Resource {
                    name: name.into(),
                    device,
                };
                (resource, count.parse().unwrap())
            })
            .collect()
    }

    fn given(text: &str) -> Vec<ResourceCapacity> {
        let resources = needs(text).into_iter();
        resources
            .map(|(Resource { name, device }, count)| ResourceCapacity {
                name: name.to_string(),
                count,
                device,
            })
            .collect()
    }

    #[test]
    fn capacities_are_given_or_the_most_that_any_wants() {
        let short = |name: &str, limit, wanted| {
            Err(UnmetNeeds::Shortage {
                name: name.into(),
                limit,
                wanted,
            })
        };
        // Instances, given, result.
        for (all, capacity, expected) in [
            (&[][..], "", Ok("")),
            (
                &["R=4 S@0=1", "R=10 S@0=3 S@1=2"],
                "",
                Ok("R=10 S@0=3 S@1=2"),
            ),
            (&["R=4"], "R=6 unused=2", Ok("R=6")),
            (&["R=4"], "R=3", short("R", 3, 4)),
            (&["R=4"], "S=9", short("R", 0, 4)),
            (&["R@1=4"], "R=2 R@1=5", Ok("R@1=5")),
            (&["R@1=4"], "R=7 R@1=2", Ok("R@1=7")),
            (&["R@0=4"], "R@1=9", short("R", 0, 4)),
            (&["R=4"], "R@1=9 R=1", Ok("R=9")),
            (
                &["R=1", "R@0=1"],
                "",
                Err(UnmetNeeds::Ambiguous { name: "R".into() }),
            ),
            (&["R=1", "R@0=2"], "R=1", short("R", 1, 2)),
        ] {
            let all: Vec<ResourceNeeds> = all.iter().map(|text| needs(text)).collect();
            assert_eq!(
                capacities(all.iter(), &given(capacity)),
                expected.map(needs),
                "{all:?} {capacity}"
            );
        }
        let twice = [given("R=5"), given("R=3")].concat();
        assert_eq!(capacities([needs("R=2")].iter(), &twice), Ok(needs("R=3")));
    }

    #[test]
    fn refusals_are_in_upstreams_words() {
        let shortage = UnmetNeeds::Shortage {
            name: "R".into(),
            limit: 3,
            wanted: 4,
        };
        assert_eq!(
            shortage.to_string(),
            "Resource count for \"R\" is limited to 3 which will prevent scheduling of one or more \
             model instances, the minimum required count is 4"
        );
        assert_eq!(
            UnmetNeeds::Ambiguous { name: "R".into() }.to_string(),
            "Resource \"R\" is present as both global and device-specific resource in the model \
             configuration."
        );
    }
}
