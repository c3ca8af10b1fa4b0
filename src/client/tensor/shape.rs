//! Shapes: what a value has, what a model wants, and what follows from both.

/// The number of elements; none if it is negative or beyond all numbers.
pub(crate) fn element_count(shape: &[i64]) -> Option<u64> {
    shape.iter().try_fold(1_u64, |count, dim| {
        count.checked_mul(u64::try_from(*dim).ok()?)
    })
}

/// The shape that a value of shape `given` is sent with to a model that wants `wanted`, in which -1
/// is any size. Values of the right shape have it; a batch of one may be left out, and a flat list
/// is as good as its nesting if one size at most is open. None if the value does not fit.
pub(crate) fn complete(given: &[i64], wanted: &[i64]) -> Option<Vec<i64>> {
    if fits(given, wanted) {
        return Some(given.to_vec());
    }
    let is_batched = wanted.first() == Some(&-1);
    let unbatched = wanted.get(1..).unwrap_or_default();
    if is_batched && fits(given, unbatched) {
        return Some([&[1], given].concat());
    }
    if given.len() > 1 {
        return None;
    }
    let count = i64::try_from(element_count(given)?).ok()?;
    let fixed = wanted.iter().filter(|dim| **dim >= 0);
    let fixed = fixed
        .copied()
        .try_fold(1_i64, |product, dim| product.checked_mul(dim))?;
    match wanted.iter().filter(|dim| **dim < 0).count() {
        0 => (fixed == count).then(|| wanted.to_vec()),
        1 => {
            let is_divisible = fixed > 0 && count % fixed == 0;
            let open = is_divisible.then(|| count / fixed)?;
            let sizes = wanted.iter().map(|dim| if *dim < 0 { open } else { *dim });
            Some(sizes.collect())
        }
        _ if is_batched => complete(given, unbatched).map(|shape| [&[1], &*shape].concat()),
        _ => None,
    }
}

fn fits(given: &[i64], wanted: &[i64]) -> bool {
    let mut pairs = given.iter().zip(wanted);
    given.len() == wanted.len() && pairs.all(|(given, wanted)| *wanted < 0 || given == wanted)
}

/// As in messages and configurations: `[-1,3]`.
pub(crate) fn shown(shape: &[i64]) -> String {
    let sizes: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", sizes.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given, what is wanted, and what is sent.
    type ShapeCase<'c> = (&'c [i64], &'c [i64], Option<&'c [i64]>);

    #[test]
    fn shapes_are_completed() {
        let table: [ShapeCase<'_>; 25] = [
            // As it is.
            (&[2, 3], &[-1, 3], Some(&[2, 3])),
            (&[2, 3], &[2, 3], Some(&[2, 3])),
            (&[], &[], Some(&[])),
            (&[0], &[-1], Some(&[0])),
            // A batch of one.
            (&[3], &[-1, 3], Some(&[1, 3])),
            (&[5], &[-1, -1], Some(&[1, 5])),
            (&[3, 4], &[-1, 3, 4], Some(&[1, 3, 4])),
            (&[0], &[-1, -1], Some(&[1, 0])),
            // Flat.
            (&[6], &[2, 3], Some(&[2, 3])),
            (&[6], &[-1, 3], Some(&[2, 3])),
            (&[3], &[-1, 1], Some(&[3, 1])),
            (&[6], &[-1, -1, 3], Some(&[1, 2, 3])),
            (&[0], &[-1, 3], Some(&[0, 3])),
            // A scalar.
            (&[], &[1], Some(&[1])),
            (&[], &[-1], Some(&[1])),
            (&[], &[-1, -1, -1], Some(&[1, 1, 1])),
            // What does not fit.
            (&[2, 4], &[-1, 3], None),
            (&[4], &[-1, 3], None),
            (&[6], &[3, -1, -1], None),
            (&[1, 6], &[2, 3], None),
            (&[], &[2], None),
            (&[3, 4], &[1, 3, 4], None),
            (&[5], &[0], None),
            (&[5], &[-1, 0], None),
            (&[5], &[i64::MAX, i64::MAX], None),
        ];
        for (given, wanted, expected) in table {
            let expected = expected.map(<[i64]>::to_vec);
            assert_eq!(complete(given, wanted), expected, "{given:?} {wanted:?}");
        }
    }

    #[test]
    fn counts() {
        for (shape, expected) in [
            (&[][..], Some(1)),
            (&[2, 3], Some(6)),
            (&[2, 0], Some(0)),
            (&[-1], None),
            (&[i64::MAX, 4], None),
        ] {
            assert_eq!(element_count(shape), expected, "{shape:?}");
        }
        assert_eq!(shown(&[-1, 3]), "[-1,3]");
    }
}
