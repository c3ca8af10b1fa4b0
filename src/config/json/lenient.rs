//! JSON as people write it by hand, made strict.
//!
//! libprotobuf reads more than JSON, and clients rely on it: names without quotes, strings in
//! single quotes, a comma behind the last element, any character behind a backslash, control
//! characters within strings, and whatever follows a NUL. Comments are taken, too.

/// `text` in strict JSON. What is no JSON in any reading stays as it is, for the parser to refuse.
pub(super) fn strict_form(text: &str) -> String {
    let mut form = JsonForm {
        text: text.as_bytes(),
        at: 0,
        out: Vec::with_capacity(text.len() + 16),
        last: 0,
        before_comma: 0,
        comma_at: 0,
    };
    form.run();
    // Only ASCII is put in or left out, so what was UTF-8 still is.
    String::from_utf8(form.out).unwrap_or_default()
}

struct JsonForm<'t> {
    text: &'t [u8],
    at: usize,
    out: Vec<u8>,
    /// The last token, by a byte of it; 0 at the start, [`VALUE`] for all that can stand in front
    /// of a comma.
    last: u8,
    /// The token in front of the last comma, and where that is in `out`.
    before_comma: u8,
    comma_at: usize,
}

/// A string, a word, a number, or the end of a list or an object.
const VALUE: u8 = b'"';

impl JsonForm<'_> {
    fn run(&mut self) {
        while let Some(byte) = self.text.get(self.at).copied() {
            match byte {
                0 => return,
                b' ' | b'\t' | b'\r' | b'\n' => self.copy(),
                b'/' => self.comment(),
                b'"' | b'\'' => {
                    self.string(byte);
                    self.last = VALUE;
                }
                b',' => {
                    (self.before_comma, self.comma_at) = (self.last, self.out.len());
                    self.last = byte;
                    self.copy();
                }
                b'}' | b']' => {
                    if self.last == b','
                        && self.before_comma == VALUE
                        && let Some(comma) = self.out.get_mut(self.comma_at)
                    {
                        *comma = b' ';
                    }
                    self.last = VALUE;
                    self.copy();
                }
                b'{' | b'[' | b':' => {
                    self.last = byte;
                    self.copy();
                }
                _ => {
                    self.word();
                    self.last = VALUE;
                }
            }
        }
    }

    fn copy(&mut self) {
        self.out.extend(self.text.get(self.at));
        self.at += 1;
    }

    fn rest(&self) -> &[u8] {
        self.text.get(self.at..).unwrap_or(&[])
    }

    /// Leaves a comment out, but for its line ends: messages name lines.
    fn comment(&mut self) {
        let rest = self.rest();
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n'),
            [b'/', b'*', inner @ ..] => {
                let end = inner.windows(2).position(|pair| pair == b"*/");
                end.map(|end| end + 4)
            }
            _ => None,
        };
        let length = match (rest, length) {
            (_, Some(length)) => length,
            ([b'/', b'/', ..], None) => rest.len(),
            _ => return self.word(),
        };
        for _ in 0..length {
            let is_line_end = self.text.get(self.at) == Some(&b'\n');
            self.out.push(if is_line_end { b'\n' } else { b' ' });
            self.at += 1;
        }
    }

    /// A number, a literal, or a name without quotes.
    fn word(&mut self) {
        let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$+-.".contains(byte);
        let rest = self.rest();
        let length = rest.iter().take_while(|byte| is_inside(byte)).count();
        let (word, behind) = rest.split_at(length);
        let is_name = matches!(self.last, b'{' | b',')
            && word
                .first()
                .is_some_and(|first| first.is_ascii_alphabetic() || b"_$".contains(first))
            && !word.iter().any(|byte| b"+-.".contains(byte))
            && behind.trim_ascii_start().first() == Some(&b':');
        if is_name {
            let word = [b"\"", word, b"\""].concat();
            self.out.extend_from_slice(&word);
            self.at += length;
        } else if length == 0 {
            self.copy();
        } else {
            let word = word.to_vec();
            self.out.extend_from_slice(&word);
            self.at += length;
        }
    }

    fn string(&mut self, quote: u8) {
        self.at += 1;
        self.out.push(b'"');
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += 1;
            match byte {
                _ if byte == quote => {
                    self.out.push(b'"');
                    return;
                }
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => {
                    let escaped = self.text.get(self.at).copied();
                    self.at += 1;
                    match escaped {
                        Some(
                            escaped @ (b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't'
                            | b'u'),
                        ) => {
                            self.out.extend_from_slice(&[b'\\', escaped]);
                        }
                        // It stands for itself; what is beyond ASCII goes on behind it.
                        Some(escaped) if escaped >= 0x20 => self.out.push(escaped),
                        Some(escaped) => self.control(escaped),
                        None => self.out.push(b'\\'),
                    }
                }
                _ if byte < 0x20 => self.control(byte),
                _ => self.out.push(byte),
            }
        }
    }

    fn control(&mut self, byte: u8) {
        self.out
            .extend_from_slice(format!("\\u{byte:04x}").as_bytes());
    }
}
