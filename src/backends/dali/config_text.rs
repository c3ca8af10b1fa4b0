//! Whether `config.pbtxt` says that a model has no batches.
//!
//! In the server's JSON a batch size that was left out is 0 too. For this backend these differ:
//! left out, the pipeline's own batch size counts; 0 means that the model does not batch, and that
//! the first dimension of its tensors is written in their `dims`.

/// The number that the text gives `max_batch_size`, outside of all braces; `None` if it gives none.
pub fn max_batch_size(text: &str) -> Option<i64> {
    let mut depth = 0usize;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '#' => rest.split_once('\n').map_or("", |(_, behind)| behind),
            '"' | '\'' => behind_string(rest, first),
            '{' | '[' | '<' => {
                depth += 1;
                behind(rest, first)
            }
            '}' | ']' | '>' => {
                depth = depth.saturating_sub(1);
                behind(rest, first)
            }
            first if is_word(first) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                if word == "max_batch_size" && depth == 0 {
                    return number(behind);
                }
                behind
            }
            first => behind(rest, first),
        };
    }
    None
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn behind(text: &str, first: char) -> &str {
    text.get(first.len_utf8()..).unwrap_or_default()
}

/// What follows the string that begins here.
fn behind_string(text: &str, quote: char) -> &str {
    let mut is_escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            character if character == quote => {
                return text.get(index + 1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    ""
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim_start().strip_prefix(':')?.trim_start();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '-')
        .unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_batch_size() {
        for (text, expected) in [
            ("", None),
            ("name: \"m\"", None),
            ("max_batch_size: 0", Some(0)),
            ("name: \"m\" max_batch_size : 16\n", Some(16)),
            ("max_batch_size:-1;", Some(-1)),
            ("# max_batch_size: 4\nmax_batch_size: 8", Some(8)),
            ("name: \"max_batch_size: 4\" max_batch_size: 8", Some(8)),
            ("name: 'a\\'max_batch_size: 4' max_batch_size: 8", Some(8)),
            ("parameters { key: \"a\" max_batch_size: 4 }", None),
            ("input [ { max_batch_size: 4 } ] max_batch_size: 2", Some(2)),
            ("my_max_batch_size: 4", None),
            ("max_batch_size", None),
            ("max_batch_size: x", None),
            ("name: \"unclosed", None),
            ("größe: 1 max_batch_size: 3", Some(3)),
        ] {
            assert_eq!(max_batch_size(text), expected, "{text}");
        }
    }
}
