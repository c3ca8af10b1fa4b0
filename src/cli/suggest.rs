//! Suggestions for a mistyped name.

/// The names most like `name`, at most three, the nearest first; none if nothing is near.
pub fn similar<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    // Nobody types that much by mistake, and the comparison is quadratic.
    if name.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let name = name.to_ascii_lowercase().replace('_', "-");
    // One slip in four letters, and at least two.
    let distance_max = (name.len() / 4).max(2);
    let mut near: Vec<(usize, &str)> = names
        .map(|known| (distance(&name, known), known))
        .filter(|(distance, known)| *distance <= distance_max && *distance < known.len())
        .collect();
    near.sort();
    let nearest = near.first().map_or(0, |(distance, _)| *distance);
    near.into_iter()
        .take_while(|(distance, _)| *distance <= nearest + 1)
        .map(|(_, known)| known)
        .take(SHOWN_MAX)
        .collect()
}

/// How many letters have to be put in, taken out, replaced, or swapped with their neighbours
/// (Damerau, restricted).
fn distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, letter) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != other);
            let mut least = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            let swaps =
                row > 0 && column > 0 && left[row - 1] == *other && *letter == right[column - 1];
            if swaps {
                least = least.min(before_last[column - 1] + 1);
            }
            current.push(least);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

const NAME_BYTES_MAX: usize = 64;
const SHOWN_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (left, right, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("port", "port", 0),
            ("prot", "port", 1),
            ("ports", "port", 1),
            ("pork", "port", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
            assert_eq!(distance(right, left), expected, "{right} {left}");
        }
    }

    #[test]
    fn only_what_is_near_is_meant() {
        let names = ["http-port", "grpc-port", "http-address", "id", "help"];
        for (name, expected) in [
            ("htpt-port", &["http-port"][..]),
            ("HTTP_PORT", &["http-port"]),
            ("hepl", &["help"]),
            ("xy", &[]),
            ("completely-else", &[]),
        ] {
            assert_eq!(similar(name, names.into_iter()), expected, "{name}");
        }
        assert!(similar(&"x".repeat(10_000), names.into_iter()).is_empty());
    }
}
