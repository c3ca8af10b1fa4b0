//! Numbers as people read them, and text that a terminal can take.

/// A count, or a rate.
pub(crate) fn count(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2}G", value / 1e9),
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value if value > 0.0 && value < 10.0 && value.fract() > 0.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A time, with its unit.
pub(crate) fn duration(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1e3 => format!("{us:.0}us"),
        Some(us) if us < 1e4 => format!("{:.2}ms", us / 1e3),
        Some(us) if us < 1e5 => format!("{:.1}ms", us / 1e3),
        Some(us) if us < 1e6 => format!("{:.0}ms", us / 1e3),
        Some(us) => format!("{:.2}s", us / 1e6),
    }
}

/// A size, with its unit.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

/// The latency below which that share of the requests in `buckets` lies, us; none without any.
/// `bounds_us` are the buckets' upper bounds.
pub(crate) fn quantile(buckets: &[(usize, u64)], bounds_us: &[u64], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let wanted = share * total as f64;
    let mut below = 0.0;
    for (bucket, count) in buckets.iter().filter(|(_, count)| *count > 0) {
        let count = *count as f64;
        if below + count >= wanted {
            let top = *bounds_us.get(*bucket).or(bounds_us.last())? as f64;
            let low = bucket.checked_sub(1).and_then(|lower| bounds_us.get(lower));
            let low = low.map_or(0.0, |low| *low as f64);
            return Some(low + (top - low) * (wanted - below) / count);
        }
        below += count;
    }
    None
}

/// `text` in exactly so many columns, cut or filled up behind. What could command a terminal is
/// replaced: names come from those who may put models into a repository.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    let shown = cut(text, columns);
    let fill = columns.saturating_sub(shown.chars().count());
    shown + &" ".repeat(fill)
}

/// As [`padded`], filled up in front.
pub(crate) fn right(text: &str, columns: usize) -> String {
    let shown = cut(text, columns);
    " ".repeat(columns.saturating_sub(shown.chars().count())) + &shown
}

/// At most so many characters of `text`, without those that command a terminal.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let shown = text
        .chars()
        .map(|one| if is_harmless(one) { one } else { '?' });
    if text.chars().count() <= columns {
        return shown.collect();
    }
    let start = shown.take(columns.saturating_sub(1));
    start.chain((columns > 0).then_some('~')).collect()
}

/// Neither a control character nor one that changes the direction of what follows.
fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (7.0, "7"),
            (1234.4, "1234"),
            (12_345.0, "12.3k"),
            (2.5e6, "2.50M"),
            (3e9, "3.00G"),
        ] {
            assert_eq!(count(value), expected);
        }
        for (us, expected) in [
            (None, "-"),
            (Some(12.4), "12us"),
            (Some(1_234.0), "1.23ms"),
            (Some(12_340.0), "12.3ms"),
            (Some(123_400.0), "123ms"),
            (Some(2.5e6), "2.50s"),
        ] {
            assert_eq!(duration(us), expected);
        }
        for (count, expected) in [
            (0, "0 B"),
            (1 << 20, "1.0 MiB"),
            (150 << 20, "150 MiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let bounds = [10, 20, 40];
        let buckets = [(0, 2), (2, 2)];
        assert_eq!(quantile(&buckets, &bounds, 0.5), Some(10.0));
        assert_eq!(quantile(&buckets, &bounds, 0.75), Some(30.0));
        assert_eq!(quantile(&buckets, &bounds, 1.0), Some(40.0));
        // Above all bounds.
        assert_eq!(quantile(&[(3, 1)], &bounds, 0.5), Some(40.0));
        assert_eq!(quantile(&[], &bounds, 0.5), None);
        assert_eq!(quantile(&[(0, 1)], &[], 0.5), None);
    }

    #[test]
    fn text_fills_its_columns_and_commands_nothing() {
        assert_eq!(padded("ab", 4), "ab  ");
        assert_eq!(right("ab", 4), "  ab");
        assert_eq!(padded("abcdef", 4), "abc~");
        assert_eq!(cut("abc", 0), "");
        assert_eq!(padded("a\u{1b}[2J\u{202e}ä", 8), "a?[2J?ä ");
    }
}
