//! The elements of a checked array, one after the other.

use conch_engine::Error;

use super::lexer;
use super::number::JsonNumber;

/// Upstream's limit: an element may lie inside at most 99 arrays.
const NESTING_MAX: usize = 100;
pub(super) const TOO_DEEP: &str = "JSON nesting depth exceeds maximum allowed limit (100)";

/// One element of a checked `data` array.
pub(super) enum TensorElement<'t> {
    Number(JsonNumber<'t>),
    Bool(bool),
    Text(lexer::JsonText),
    Other,
}

/// Where the elements of an array go.
pub(super) trait ElementSink {
    fn take(&mut self, element: TensorElement<'_>) -> Result<(), Error>;

    /// Takes as many of the numbers from `at` on as it can by a shorter way. Returns where the
    /// first begins that is left.
    #[inline]
    fn take_numbers(&mut self, _text: &[u8], at: usize) -> usize {
        at
    }
}

impl<F: FnMut(TensorElement<'_>) -> Result<(), Error>> ElementSink for F {
    #[inline]
    fn take(&mut self, element: TensorElement<'_>) -> Result<(), Error> {
        self(element)
    }
}

/// Gives each element of a checked array to `sink`, whatever its nesting.
#[inline]
pub(super) fn each_element(
    text: &[u8],
    prefix: &str,
    sink: &mut impl ElementSink,
) -> Result<(), Error> {
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(byte) = text.get(at).copied() {
        match byte {
            b'0'..=b'9' | b'-' | b'N' | b'I' => {
                let behind = sink.take_numbers(text, at);
                if behind > at {
                    at = behind;
                    continue;
                }
                let number = JsonNumber::read(text, at);
                sink.take(TensorElement::Number(number))?;
                at += number.length();
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' => at += 1,
            b'[' => {
                depth += 1;
                if depth >= NESTING_MAX {
                    return Err(Error::invalid(format!("{prefix}{TOO_DEEP}")));
                }
                at += 1;
            }
            b']' => {
                depth -= 1;
                at += 1;
            }
            b'"' => {
                let string = lexer::string(text, at).map_err(|_| checked_already())?;
                sink.take(TensorElement::Text(string))?;
                at = string.behind();
            }
            b't' => {
                sink.take(TensorElement::Bool(true))?;
                at += 4;
            }
            b'f' => {
                sink.take(TensorElement::Bool(false))?;
                at += 5;
            }
            b'n' => {
                sink.take(TensorElement::Other)?;
                at += 4;
            }
            // Objects are never what a tensor wants, so `take` ends the walk.
            _ => {
                sink.take(TensorElement::Other)?;
                return Err(checked_already());
            }
        }
    }
    Ok(())
}

pub(super) fn checked_already() -> Error {
    Error::internal("Unable to parse 'data': the text changed while it was read")
}
