//! Checks runs of numbers with commas between them, 64 bytes at a time and without a loop over the
//! numbers: their borders are found by arithmetic on bits.
//!
//! Passes over what nearly all tensors consist of: numbers without exponents, each comma followed
//! by one blank or none. Anything else, right or wrong, ends the run and is left to [`lexer`]. So
//! this says of no text what is wrong with it.
//!
//! [`lexer`]: super::lexer

use super::blocks::{self, BLOCK_BYTES, NumberBytes, TextBlock};

/// What a run has seen in front of the next block.
#[derive(Clone, Copy)]
struct RunState {
    /// The last block's masks.
    bytes: NumberBytes,
    /// Digits behind a point go on.
    is_in_fraction: bool,
    /// Its last byte is a zero that begins a number.
    is_leading_zero: bool,
}

/// The offset of a comma up to which, from the comma at `start`, each comma has a number behind
/// it; `start` if there is nothing to pass over. What stands in front of `start` ends a number.
#[inline]
pub(super) fn skip(text: &[u8], start: usize) -> usize {
    let mut last_comma = start;
    let mut state = RunState {
        bytes: NumberBytes {
            digits: 1 << 63,
            ..NumberBytes::default()
        },
        is_in_fraction: false,
        is_leading_zero: false,
    };
    let mut at = start;
    let begins_number = |at: usize| matches!(text.get(at), Some(b'0'..=b'9' | b'-'));
    let is_run = text.get(at) == Some(&b',')
        && (begins_number(at + 1) || text.get(at + 1) == Some(&b' ') && begins_number(at + 2));
    if !is_run {
        return start;
    }
    while let Some(block) = block_at(text, at) {
        let bytes = blocks::number_bytes(block);
        match state.passes(bytes) {
            Some(next) => state = next,
            None => break,
        }
        if bytes.commas != 0 {
            last_comma = at + 63 - bytes.commas.leading_zeros() as usize;
        }
        at += BLOCK_BYTES;
    }
    last_comma
}

#[inline]
fn block_at(text: &[u8], at: usize) -> Option<&TextBlock> {
    text.get(at..)?.first_chunk()
}

impl RunState {
    /// Whether `bytes` may follow; what is before the next block then.
    #[inline]
    fn passes(self, bytes: NumberBytes) -> Option<RunState> {
        // The byte in front of each, by the last bit of the block before.
        let behind = |now: u64, before: u64| now << 1 | before >> 63;
        let behind_point = behind(bytes.points, self.bytes.points);
        let behind_minus = behind(bytes.minuses, self.bytes.minuses);
        let behind_comma = behind(bytes.commas, self.bytes.commas);
        let behind_blank = behind(bytes.blanks, self.bytes.blanks);
        let behind_digit = behind(bytes.digits, self.bytes.digits);
        let begins = bytes.digits | bytes.minuses;
        let mut wrong = !(begins | bytes.points | bytes.commas | bytes.blanks);
        wrong |= (behind_point | behind_minus) & !bytes.digits;
        wrong |= behind_blank & !begins;
        wrong |= behind_comma & !(begins | bytes.blanks);
        wrong |= bytes.minuses & !(behind_comma | behind_blank);
        wrong |= (bytes.points | bytes.commas) & !behind_digit;
        wrong |= bytes.blanks & !behind_comma;
        // A zero that begins a number is all of its whole part.
        let firsts = bytes.digits & (behind_comma | behind_blank | behind_minus);
        let leading_zeros = firsts & bytes.zeros;
        wrong |= (leading_zeros << 1 | u64::from(self.is_leading_zero)) & bytes.digits;
        // The sum carries through each run of digits behind a point, to the byte that ends it.
        let (ends, is_in_fraction) =
            (behind_point | u64::from(self.is_in_fraction)).overflowing_add(bytes.digits);
        wrong |= ends & !bytes.digits & bytes.points;
        // Of a number with that many digits it has to be looked at whether a double holds it.
        wrong |= u64::from(bytes.digits == u64::MAX);
        (wrong == 0).then_some(RunState {
            bytes,
            is_in_fraction,
            is_leading_zero: leading_zeros >> 63 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer;
    use super::*;
    use crate::testing::Random;

    /// The commas behind which a run may stop: each has numbers in front of it, from `start` on.
    fn sound_commas(text: &[u8], start: usize) -> Vec<usize> {
        let (mut commas, mut at) = (vec![start], start);
        while text.get(at) == Some(&b',') {
            let Ok(end) = lexer::number(text, lexer::skip_space(text, at + 1)) else {
                break;
            };
            at = lexer::skip_space(text, end);
            if text.get(at) == Some(&b',') {
                commas.push(at);
            }
        }
        commas
    }

    #[test]
    fn plain_runs_are_passed_over() {
        for number in [
            "1",
            "-1",
            "0.5",
            "-0.25",
            "12.75",
            "0.10000000149011612",
            "-0",
            "0",
        ] {
            for comma in [",", ", "] {
                let text = format!("7{}]", [comma, number].concat().repeat(100));
                let last = text.rfind(',').unwrap();
                let passed = skip(text.as_bytes(), 1);
                let left = last + comma.len() + number.len() - passed;
                assert!(
                    left <= BLOCK_BYTES + 1 + number.len() + comma.len(),
                    "{number}"
                );
                assert!(sound_commas(text.as_bytes(), 1).contains(&passed), "{text}");
            }
        }
    }

    #[test]
    fn runs_end_before_what_is_wrong_or_unusual() {
        for piece in [
            "01",
            "-01",
            "00",
            "-",
            "1.",
            ".5",
            "-.5",
            "1.2.3",
            "1..2",
            "1-2",
            "--1",
            "1e5",
            "1E-3",
            "+1",
            "NaN",
            "-Infinity",
            "\"a\"",
            "[1",
            "1]",
            "{}",
            "null",
            "",
            " ",
            "1 2",
            "1 ",
            "  1",
            "\n1",
            "1\u{e9}",
            "\0",
            "1.0.",
            "0.0.0",
            "- 1",
            "1,,2",
            ",",
            "1. 5",
        ] {
            for shift in 0..BLOCK_BYTES + 2 {
                let text = format!("7{},{piece},5{}", ",1".repeat(shift), ",-2.5".repeat(60));
                let text = text.replacen(",1", ",11", shift % 7);
                let passed = skip(text.as_bytes(), 1);
                assert!(
                    sound_commas(text.as_bytes(), 1).contains(&passed),
                    "{text} {passed}"
                );
            }
        }
        // Two hundred digits may be more than a double holds.
        let text = format!("7{},{},1", ",1".repeat(40), "9".repeat(400));
        assert!(skip(text.as_bytes(), 1) <= 81);
    }

    /// Numbers with some bytes changed.
    #[test]
    fn a_run_has_nothing_wrong() {
        let mut random = Random::new(1);
        let mut next = |bound: usize| random.below(bound as u64) as usize;
        let mut passed_bytes = 0;
        for _ in 0..30_000 {
            let mut text = b"7".to_vec();
            let comma: &[u8] = [b",".as_slice(), b", "][next(2)];
            for _ in 0..next(80) {
                text.extend_from_slice(comma);
                let bound = [10, 1000, 100_000_000][next(3)];
                let whole = next(bound);
                let number = match next(3) {
                    0 => whole.to_string(),
                    1 => format!("-{whole}.{}", next(1000)),
                    _ => format!("0.{}{}", next(1_000_000_000), next(1_000_000_000)),
                };
                text.extend_from_slice(number.as_bytes());
            }
            text.push(b']');
            for _ in 0..next(3) {
                let place = next(text.len());
                text[place] = b"0123456789.-, eE+]\0"[next(19)];
            }
            let passed = skip(&text, 1);
            passed_bytes += passed;
            let shown = String::from_utf8_lossy(&text);
            assert!(sound_commas(&text, 1).contains(&passed), "{shown} {passed}");
        }
        assert!(passed_bytes > 5_000_000, "{passed_bytes}");
    }
}
