//! Tokens of the protobuf text format.

/// Where something begins, both counted from 1. Columns count bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextPosition {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Identifier,
    /// Decimal, `0x` hexadecimal or `0` octal; no sign.
    Integer,
    /// With a point, an exponent or the suffix `f`; no sign.
    Float,
    /// With its quotes and escapes.
    String,
    Symbol,
    End,
}

/// One token of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextToken<'a> {
    pub kind: TokenKind,
    pub text: &'a [u8],
    pub at: TextPosition,
}

impl<'a> TextToken<'a> {
    pub fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == TokenKind::Symbol && self.text == [symbol]
    }

    /// For messages.
    pub fn shown(&self) -> std::borrow::Cow<'a, str> {
        if self.kind == TokenKind::End {
            "end of file".into()
        } else {
            String::from_utf8_lossy(self.text)
        }
    }
}

/// What is wrong at a place of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextFault {
    pub at: TextPosition,
    pub message: String,
}

impl TextFault {
    pub fn new(at: TextPosition, message: impl Into<String>) -> TextFault {
        TextFault {
            at,
            message: message.into(),
        }
    }
}

/// Cuts a source into tokens, one at a time.
pub(super) struct Tokens<'a> {
    rest: &'a [u8],
    at: TextPosition,
}

impl<'a> Tokens<'a> {
    pub fn new(source: &'a [u8]) -> Tokens<'a> {
        // A byte order mark is no part of the text.
        let rest = source.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(source);
        Tokens {
            rest,
            at: TextPosition { line: 1, column: 1 },
        }
    }

    /// The next token; `End` once the source is used up, again and again.
    pub fn next(&mut self) -> Result<TextToken<'a>, TextFault> {
        self.skip_blank();
        let at = self.at;
        let (kind, length) = match self.rest {
            [] => (TokenKind::End, 0),
            [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => {
                (TokenKind::Identifier, self.count(0, is_word))
            }
            [b'0'..=b'9', ..] => self.number()?,
            [b'.', b'0'..=b'9', ..] => self.number()?,
            [quote @ (b'"' | b'\''), ..] => (TokenKind::String, self.string(*quote)?),
            [0..=0x1F | 0x7F, ..] => {
                return Err(TextFault::new(
                    at,
                    "Invalid control characters encountered in text.",
                ));
            }
            // Fine in strings and comments, where this is not reached.
            [byte @ 0x80..=0xFF, ..] => {
                return Err(TextFault::new(
                    at,
                    format!("Interpreting non ascii codepoint {byte}."),
                ));
            }
            [_, ..] => (TokenKind::Symbol, 1),
        };
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        // No token spans lines.
        self.at.column += length;
        Ok(TextToken { kind, text, at })
    }

    fn skip_blank(&mut self) {
        while let Some((first, rest)) = self.rest.split_first() {
            match first {
                b'\n' => {
                    self.at = TextPosition {
                        line: self.at.line + 1,
                        column: 1,
                    }
                }
                b' ' | b'\t' | b'\r' | 0x0B | 0x0C => self.at.column += 1,
                b'#' => {
                    let length = self.count(0, |byte| byte != b'\n');
                    self.at.column += length;
                    self.rest = self.rest.get(length..).unwrap_or_default();
                    continue;
                }
                _ => return,
            }
            self.rest = rest;
        }
    }

    /// How many bytes from `start` on are of a kind.
    fn count(&self, start: usize, is_kind: impl Fn(u8) -> bool) -> usize {
        let rest = self.rest.get(start..).unwrap_or_default();
        rest.iter()
            .position(|byte| !is_kind(*byte))
            .unwrap_or(rest.len())
    }

    fn byte(&self, index: usize) -> Option<u8> {
        self.rest.get(index).copied()
    }

    /// A number at the front: its kind and length.
    fn number(&self) -> Result<(TokenKind, usize), TextFault> {
        let fault = |index: usize, message: &str| {
            let at = TextPosition {
                line: self.at.line,
                column: self.at.column + index,
            };
            TextFault::new(at, message)
        };
        let is_digit = |byte: u8| byte.is_ascii_digit();
        let mut is_float = false;
        let mut length;
        match self.rest {
            [b'0', b'x' | b'X', ..] => {
                length = 2 + self.count(2, |byte| byte.is_ascii_hexdigit());
                if length == 2 {
                    return Err(fault(2, "\"0x\" must be followed by hex digits."));
                }
            }
            [b'0', b'0'..=b'9', ..] => {
                length = self.count(0, |byte| (b'0'..=b'7').contains(&byte));
                if self.byte(length).is_some_and(is_digit) {
                    return Err(fault(
                        length,
                        "Numbers starting with leading zero must be in octal.",
                    ));
                }
            }
            _ => {
                length = self.count(0, is_digit);
                if self.byte(length) == Some(b'.') {
                    is_float = true;
                    length += 1 + self.count(length + 1, is_digit);
                }
                if matches!(self.byte(length), Some(b'e' | b'E')) {
                    is_float = true;
                    length += 1;
                    if matches!(self.byte(length), Some(b'+' | b'-')) {
                        length += 1;
                    }
                    let digits = self.count(length, is_digit);
                    if digits == 0 {
                        return Err(fault(length, "\"e\" must be followed by exponent."));
                    }
                    length += digits;
                }
                if matches!(self.byte(length), Some(b'f' | b'F')) {
                    is_float = true;
                    length += 1;
                }
            }
        }
        match self.byte(length) {
            Some(byte) if is_word(byte) && !byte.is_ascii_digit() => {
                Err(fault(length, "Need space between number and identifier."))
            }
            Some(b'.') if is_float => Err(fault(
                length,
                "Already saw decimal point or exponent; can't have another one.",
            )),
            Some(b'.') => Err(fault(length, "Hex and octal numbers must be integers.")),
            _ => Ok((
                if is_float {
                    TokenKind::Float
                } else {
                    TokenKind::Integer
                },
                length,
            )),
        }
    }

    /// The length of the string at the front, quotes included. Escapes are judged when it is read.
    fn string(&self, quote: u8) -> Result<usize, TextFault> {
        let fault = |index: usize, message: &str| {
            TextFault::new(
                TextPosition {
                    line: self.at.line,
                    column: self.at.column + index,
                },
                message,
            )
        };
        let mut index = 1;
        loop {
            match self.byte(index) {
                None => return Err(fault(index, "Unexpected end of string.")),
                Some(b'\n') => {
                    return Err(fault(
                        index,
                        "String literals cannot cross line boundaries.",
                    ));
                }
                Some(b'\\') if self.byte(index + 1).is_some_and(|byte| byte != b'\n') => index += 2,
                Some(byte) if byte == quote => return Ok(index + 1),
                Some(_) => index += 1,
            }
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Result<Vec<(TokenKind, String)>, String> {
        let mut tokens = Tokens::new(source.as_bytes());
        let mut found = Vec::new();
        loop {
            match tokens.next() {
                Ok(TextToken {
                    kind: TokenKind::End,
                    ..
                }) => return Ok(found),
                Ok(token) => found.push((token.kind, token.shown().into_owned())),
                Err(fault) => {
                    return Err(format!(
                        "{}:{}: {}",
                        fault.at.line, fault.at.column, fault.message
                    ));
                }
            }
        }
    }

    #[test]
    fn tokens_are_cut_as_upstream_cuts_them() {
        use TokenKind::{Float, Identifier, Integer, String, Symbol};
        let table: &[(&str, &[(TokenKind, &str)])] = &[
            ("", &[]),
            ("# only a comment, with ünïcode", &[]),
            ("\u{FEFF}a_1 # x\n:", &[(Identifier, "a_1"), (Symbol, ":")]),
            (
                "0 00 017 0x1F 10",
                &[
                    (Integer, "0"),
                    (Integer, "00"),
                    (Integer, "017"),
                    (Integer, "0x1F"),
                    (Integer, "10"),
                ],
            ),
            (
                "1. .5 1.5e-3 2E5 1f 0.5F -1",
                &[
                    (Float, "1."),
                    (Float, ".5"),
                    (Float, "1.5e-3"),
                    (Float, "2E5"),
                    (Float, "1f"),
                    (Float, "0.5F"),
                    (Symbol, "-"),
                    (Integer, "1"),
                ],
            ),
            (
                r#""a\"b" 'c"d'"#,
                &[(String, r#""a\"b""#), (String, r#"'c"d'"#)],
            ),
            (
                "<{[;,]}>",
                &[
                    (Symbol, "<"),
                    (Symbol, "{"),
                    (Symbol, "["),
                    (Symbol, ";"),
                    (Symbol, ","),
                    (Symbol, "]"),
                    (Symbol, "}"),
                    (Symbol, ">"),
                ],
            ),
        ];
        for (source, expected) in table {
            let expected: Vec<_> = expected
                .iter()
                .map(|(kind, text)| (*kind, text.to_string()))
                .collect();
            assert_eq!(kinds(source), Ok(expected), "{source}");
        }
    }

    #[test]
    fn faults_name_their_place() {
        for (source, expected) in [
            ("a: 0x", "1:6: \"0x\" must be followed by hex digits."),
            (
                "a:\n 08",
                "2:3: Numbers starting with leading zero must be in octal.",
            ),
            ("1e", "1:3: \"e\" must be followed by exponent."),
            ("1abc", "1:2: Need space between number and identifier."),
            (
                "1.2.3",
                "1:4: Already saw decimal point or exponent; can't have another one.",
            ),
            ("0x1.2", "1:4: Hex and octal numbers must be integers."),
            ("\"abc", "1:5: Unexpected end of string."),
            (
                "'abc\n'",
                "1:5: String literals cannot cross line boundaries.",
            ),
            ("\"abc\\", "1:6: Unexpected end of string."),
            (
                "a\u{1}",
                "1:2: Invalid control characters encountered in text.",
            ),
            ("é", "1:1: Interpreting non ascii codepoint 195."),
        ] {
            assert_eq!(kinds(source), Err(expected.to_owned()), "{source:?}");
        }
    }
}
