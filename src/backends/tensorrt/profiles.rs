//! Optimisation profiles: those of an instance, and the one that fits a batch best.

use conch_backend_sdk::Error;

use crate::facts::{Facts, check_shape};

/// A profile of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    pub index: usize,
}

/// The number of a profile in the configuration; its name is one.
///
/// # Errors
/// `InvalidArgument`, in upstream's words.
pub fn profile_index(name: &str) -> Result<i64, Error> {
    if name.is_empty() {
        return Err(Error::invalid("profile name must not be empty"));
    }
    let parsed = name.trim().parse();
    parsed.map_err(|_| Error::invalid(format!("unable to parse '{name}': stoi")))
}

/// The profiles of an instance, in the order of their numbers, once each; the first of the engine
/// if it names none. And what is to be told about them.
///
/// # Errors
/// `InvalidArgument`, in upstream's words, if the engine has no such profile.
pub fn profiles_of(
    names: &[String],
    facts: &Facts,
    model_name: &str,
) -> Result<(Vec<Profile>, Vec<String>), Error> {
    let (mut profiles, mut notes) = (Vec::<Profile>::new(), Vec::new());
    for name in names {
        let index = profile_index(name)?;
        let count = facts.profiles.len();
        let known = usize::try_from(index).ok().filter(|index| *index < count);
        let index = known.ok_or_else(|| {
            Error::invalid(format!(
                "Can not set the specified optimization profile {name}[{index}] for {model_name}. \
                 Expected optimization profile index range 0-{}",
                count.saturating_sub(1)
            ))
        })?;
        match profiles.iter().find(|profile| profile.index == index) {
            Some(known) => notes.push(format!(
                "{name} maps to profile index {index} which has been mapped by {}, existing \
                 optimization profile will be reused",
                known.name
            )),
            None => profiles.push(Profile {
                name: name.clone(),
                index,
            }),
        }
    }
    if profiles.is_empty() {
        profiles.push(Profile {
            name: "default".to_owned(),
            index: 0,
        });
    }
    profiles.sort_by_key(|profile| profile.index);
    Ok((profiles, notes))
}

/// What a batch gives an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    /// The tensor's number in the engine.
    pub tensor: usize,
    pub dims: Vec<i64>,
    /// Of a shape tensor, its values.
    pub values: Option<Vec<i64>>,
}

/// The place in `profiles` of that which fits best: the one whose best shapes are nearest, by the
/// sum of the differences of all dimensions and values. The first if none fits; the check of the
/// shapes then tells what is wrong.
pub fn choose(profiles: &[Profile], facts: &Facts, given: &[InputShape]) -> usize {
    if profiles.len() == 1 {
        return 0;
    }
    let distances = profiles.iter().map(|profile| {
        given.iter().try_fold(0_i64, |sum, input| {
            Some(sum.saturating_add(distance(facts, profile.index, input)?))
        })
    });
    let fitting = distances
        .enumerate()
        .filter_map(|(at, distance)| Some((distance?, at)));
    fitting.min().map_or(0, |(_, at)| at)
}

/// How far an input is from the best of a profile; none if it does not fit.
fn distance(facts: &Facts, profile: usize, given: &InputShape) -> Option<i64> {
    let bounds = facts.bounds(profile, given.tensor)?;
    check_shape(&given.dims, bounds).ok()?;
    let mut sum = difference(&bounds.best, &given.dims);
    if let (Some(values), Some([min, best, max])) = (&given.values, &bounds.values) {
        check_values(values, min, max).ok()?;
        sum = sum.saturating_add(difference(best, values));
    }
    Some(sum)
}

fn difference(best: &[i64], given: &[i64]) -> i64 {
    let pairs = best.iter().zip(given);
    pairs.fold(0, |sum, (best, given)| {
        sum.saturating_add(best.saturating_sub(*given).saturating_abs())
    })
}

/// Checks the values of a shape tensor against a profile's.
///
/// # Errors
/// What does not fit, in upstream's words.
pub fn check_values(values: &[i64], min: &[i64], max: &[i64]) -> Result<(), String> {
    if values.len() != max.len() {
        return Err(format!(
            "mismatch between the number of shape values. Expecting {}. Got {}",
            max.len(),
            values.len()
        ));
    }
    for (index, (value, (min, max))) in values.iter().zip(min.iter().zip(max)).enumerate() {
        if value < min || value > max {
            return Err(format!(
                "The shape value at index {index} is expected to be in range from {min} to {max}, \
                 Got: {value}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::testing::{bounds, tensor};

    fn facts() -> Facts {
        Facts {
            tensors: vec![tensor(c"A", true, &[-1, -1])],
            profiles: vec![
                vec![bounds(&[1, 1], &[1, 4], &[8, 8])],
                vec![bounds(&[1, 1], &[8, 16], &[8, 32])],
                vec![bounds(&[1, 1], &[4, 4], &[8, 8])],
            ],
        }
    }

    #[test]
    fn profiles_of_instances() {
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let found = |given: &[&str]| {
            profiles_of(&names(given), &facts(), "m_0")
                .map(|(found, _)| {
                    found
                        .into_iter()
                        .map(|profile| profile.index)
                        .collect::<Vec<_>>()
                })
                .map_err(|error| error.message().to_owned())
        };
        assert_eq!(found(&[]), Ok(vec![0]));
        assert_eq!(found(&["2", "0", "2"]), Ok(vec![0, 2]));
        assert_eq!(
            found(&["3"]).unwrap_err(),
            "Can not set the specified optimization profile 3[3] for m_0. Expected optimization \
             profile index range 0-2"
        );
        assert_eq!(found(&["x"]).unwrap_err(), "unable to parse 'x': stoi");
        assert_eq!(found(&[""]).unwrap_err(), "profile name must not be empty");
    }

    #[test]
    fn the_nearest_profile_that_fits_is_chosen() {
        let (profiles, _) = profiles_of(
            &["0".to_owned(), "1".to_owned(), "2".to_owned()],
            &facts(),
            "m_0",
        )
        .unwrap();
        for (dims, expected) in [
            (&[1, 4][..], 0),
            (&[4, 4], 2),
            (&[8, 8], 1),
            (&[6, 6], 2),
            (&[1, 9], 1),
            (&[8, 32], 1),
            (&[8, 33], 0),
            (&[3], 0),
        ] {
            let given = InputShape {
                tensor: 0,
                dims: dims.to_vec(),
                values: None,
            };
            assert_eq!(choose(&profiles, &facts(), &[given]), expected, "{dims:?}");
        }
    }

    #[test]
    fn values_of_shape_tensors_are_checked() {
        assert_eq!(check_values(&[2, 3], &[1, 1], &[4, 4]), Ok(()));
        assert_eq!(
            check_values(&[2, 5], &[1, 1], &[4, 4]).unwrap_err(),
            "The shape value at index 1 is expected to be in range from 1 to 4, Got: 5"
        );
        assert_eq!(
            check_values(&[5], &[1, 1], &[4, 4]).unwrap_err(),
            "mismatch between the number of shape values. Expecting 2. Got 1"
        );
    }
}
