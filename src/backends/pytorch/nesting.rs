//! How deep the code and the values in a `model.pt` are nested.
//!
//! Torch reads, compiles and frees both by functions that call themselves, so that a file which is
//! nested deeply enough ends the process. Such a file is refused before torch sees it. No model is
//! nested like that: torch writes each operation as a statement of its own.

use std::collections::HashMap;
use std::path::Path;

use conch_backend_sdk::Error;

use crate::archive::Archive;

/// Deepest nesting that is served. Torch needs some KB of stack per level, most for blocks in
/// blocks: of these, 400 still fit the 2 MB that a thread has, and 900 do not.
const DEPTH_MAX: usize = 300;

/// Largest piece of code, and largest pickle, that is read. Weights are not in them.
const BYTES_MAX: u64 = 256 << 20;

/// Checks the file of a TorchScript module.
///
/// # Errors
/// `InvalidArgument` if it is no archive, damaged, or nested too deeply.
pub fn check(path: &Path) -> Result<(), Error> {
    let archive = Archive::open(path)?;
    for entry in archive.entries() {
        let depth = if entry.name.ends_with(".py") {
            code_depth(&archive.read_small(entry, BYTES_MAX)?)
        } else if entry.name.ends_with("pkl") {
            pickle_depth(&archive.read_small(entry, BYTES_MAX)?)
        } else {
            continue;
        };
        if depth.is_none_or(|depth| depth > DEPTH_MAX) {
            return Err(Error::invalid(format!(
                "'{}' is nested more than {DEPTH_MAX} levels deep",
                entry.name
            )));
        }
    }
    Ok(())
}

/// What is around a place in code, up to one bracket.
struct BracketLevel {
    /// Blocks around a statement, or 1 of a bracket.
    base: usize,
    /// Operators, names and brackets before the place, since the last comma.
    before: usize,
}

/// Upper bound of the depth of expressions and blocks in Python code: for each place the blocks and
/// the brackets around it, and what came before it in them since the last comma.
fn code_depth(code: &[u8]) -> Option<usize> {
    let mut deepest = 0;
    let mut levels = vec![BracketLevel { base: 0, before: 0 }];
    // The sum of all levels.
    let mut total = 0_usize;
    let mut rest = code;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'\n' if levels.len() == 1 => {
                let blanks = rest.len() - skip(rest, |byte| byte == b' ' || byte == b'\t').len();
                // Torch indents by two.
                total = blanks / 2;
                let base = total;
                levels = vec![BracketLevel { base, before: 0 }];
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'#' => rest = skip(rest, |byte| byte != b'\n'),
            b'"' | b'\'' => rest = behind_string(rest, byte),
            b'(' | b'[' | b'{' => {
                levels.push(BracketLevel { base: 1, before: 0 });
                total += 1;
            }
            b')' | b']' | b'}' => {
                // One too many is an error for torch to tell.
                if levels.len() > 1 {
                    let level = levels.pop()?;
                    total -= level.base + level.before;
                }
                levels.last_mut()?.before += 1;
                total += 1;
            }
            b',' | b';' => {
                total -= std::mem::take(&mut levels.last_mut()?.before);
            }
            _ => {
                if is_word(byte) {
                    rest = skip(rest, is_word);
                }
                levels.last_mut()?.before += 1;
                total += 1;
            }
        }
        deepest = deepest.max(total);
    }
    Some(deepest)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn skip(bytes: &[u8], is_skipped: impl Fn(u8) -> bool) -> &[u8] {
    let count = bytes.iter().take_while(|&&byte| is_skipped(byte)).count();
    bytes.get(count..).unwrap_or_default()
}

/// What follows a string that began with this quotation mark.
fn behind_string(mut bytes: &[u8], quote: u8) -> &[u8] {
    while let Some((&byte, behind)) = bytes.split_first() {
        bytes = match byte {
            b'\\' => behind.get(1..).unwrap_or_default(),
            _ => behind,
        };
        if byte == quote {
            break;
        }
    }
    bytes
}

/// An object on a pickle's stack.
#[derive(Clone, Copy)]
struct StackObject {
    depth: usize,
    /// Got from the memo, where it stays as it was.
    is_from_memo: bool,
}

impl StackObject {
    const LEAF: Self = StackObject {
        depth: 0,
        is_from_memo: false,
    };

    fn around(inside: &[StackObject]) -> Self {
        StackObject {
            depth: inside
                .iter()
                .map(|object| object.depth + 1)
                .max()
                .unwrap_or(0),
            is_from_memo: false,
        }
    }

    /// `None` if it is from the memo: what the memo has of it would grow unseen. Torch fills what
    /// it makes at once.
    fn add(&mut self, inside: &[StackObject]) -> Option<()> {
        if self.is_from_memo && !inside.is_empty() {
            return None;
        }
        self.depth = self.depth.max(Self::around(inside).depth);
        Some(())
    }
}

/// Depth of the deepest object that a pickle makes: of the opcodes that torch knows. At others, and
/// at those that find no operand, torch stops as well.
fn pickle_depth(pickle: &[u8]) -> Option<usize> {
    let mut unpickler = Unpickler::default();
    let mut rest = pickle;
    while let Some((&opcode, behind)) = rest.split_first() {
        let Some((size, argument)) = argument_of(opcode, behind) else {
            break;
        };
        let outcome = unpickler.execute(opcode, argument);
        let deepest = unpickler.stack.last().map_or(0, |object| object.depth);
        unpickler.deepest = unpickler.deepest.max(deepest);
        match (outcome, behind.get(size..)) {
            (Outcome::Executed, Some(behind)) => rest = behind,
            (Outcome::Refused, _) => return None,
            _ => break,
        }
    }
    Some(unpickler.deepest)
}

/// What an unpickler has, with depths in place of objects.
#[derive(Default)]
struct Unpickler {
    stack: Vec<StackObject>,
    marks: Vec<usize>,
    memo: HashMap<u32, StackObject>,
    deepest: usize,
}

/// What came of an opcode.
enum Outcome {
    Executed,
    /// The pickle is none that torch reads to its end.
    Stopped,
    Refused,
}

impl Unpickler {
    fn execute(&mut self, opcode: u8, argument: u32) -> Outcome {
        let done = match opcode {
            b'(' => {
                self.marks.push(self.stack.len());
                Some(true)
            }
            b']' | b')' | b'}' | b'N' | b'K' | b'M' | b'J' | b'G' | b'X' | b'c' | 0x88..=0x8a => {
                self.stack.push(StackObject::LEAF);
                Some(true)
            }
            0x80 => Some(true),
            b't' | b'l' | b'd' => self.above_mark().map(|inside| {
                self.stack.push(StackObject::around(&inside));
                true
            }),
            0x85..=0x87 => self.top(usize::from(opcode - 0x84)).map(|inside| {
                self.stack.push(StackObject::around(&inside));
                true
            }),
            b'a' | b'b' => self.top(1).and_then(|inside| self.add(&inside)),
            // A function or a class, and its arguments.
            b'R' | 0x81 => self.top(2).map(|inside| {
                self.stack.push(StackObject::around(&inside));
                true
            }),
            b's' => self.top(2).and_then(|inside| self.add(&inside)),
            b'e' | b'u' => self.above_mark().and_then(|inside| self.add(&inside)),
            b'Q' => self.top(1).map(|inside| {
                self.stack.push(StackObject::around(&inside));
                true
            }),
            b'q' | b'r' => self.stack.last().map(|&object| {
                self.memo.insert(argument, object);
                true
            }),
            b'h' | b'j' => self.memo.get(&argument).map(|&object| {
                self.stack.push(StackObject {
                    is_from_memo: true,
                    ..object
                });
                true
            }),
            _ => None,
        };
        match done {
            Some(true) => Outcome::Executed,
            Some(false) => Outcome::Refused,
            None => Outcome::Stopped,
        }
    }

    /// Puts objects into the one below them; false if that must not be.
    fn add(&mut self, inside: &[StackObject]) -> Option<bool> {
        Some(self.stack.last_mut()?.add(inside).is_some())
    }

    fn top(&mut self, count: usize) -> Option<Vec<StackObject>> {
        let at = self.stack.len().checked_sub(count)?;
        Some(self.stack.split_off(at))
    }

    fn above_mark(&mut self) -> Option<Vec<StackObject>> {
        let at = self.marks.pop()?;
        (at <= self.stack.len()).then(|| self.stack.split_off(at))
    }
}

/// Bytes of an opcode's argument, and the number that it is; `None` if they are not there.
fn argument_of(opcode: u8, bytes: &[u8]) -> Option<(usize, u32)> {
    let byte = || bytes.first().copied();
    let word = || {
        let word: Option<&[u8; 4]> = bytes.first_chunk();
        word.map(|word| u32::from_le_bytes(*word))
    };
    match opcode {
        0x80 | b'K' => Some((1, 0)),
        b'q' | b'h' => Some((1, u32::from(byte()?))),
        b'M' => Some((2, 0)),
        b'J' => Some((4, 0)),
        b'r' | b'j' => Some((4, word()?)),
        b'G' => Some((8, 0)),
        0x8a => Some((1 + usize::from(byte()?), 0)),
        b'X' => Some((usize::try_from(word()?).ok()?.checked_add(4)?, 0)),
        b'c' => {
            let mut ends = (0..bytes.len()).filter(|&at| bytes.get(at) == Some(&b'\n'));
            let second = ends.nth(1)?;
            Some((second + 1, 0))
        }
        _ => Some((0, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_a_depth() {
        for (code, expected) in [
            ("", 0),
            ("a\n", 1),
            ("a = torch.add(b, torch.mul(c, d))\n", 11),
            ("((((", 4),
            ("()()()()", 4),
            ("(), (), ()", 1),
            ("- - - - a", 5),
            ("[1, 2, 3, 4, 5, 6, 7, 8, 9]", 2),
            ("'((((' \"[[[\\\"[[\" a", 1),
            ("# ((((\na", 1),
            ("if a:\n  if b:\n    c\n", 4),
            ("f(a,\n  b,\n  c)", 3),
            (")))(", 4),
        ] {
            assert_eq!(code_depth(code.as_bytes()), Some(expected), "{code}");
        }
        for deep in ["(", "[a,", "-", "not ", "a.", "a + ", "()", "(a,"] {
            assert!(code_depth(deep.repeat(1000).as_bytes()).unwrap() >= 1000);
        }
        let blocks: String = (0..300).map(|at| " ".repeat(2 * at) + "if a:\n").collect();
        assert!(code_depth(blocks.as_bytes()).unwrap() > 299);
    }

    #[test]
    fn pickles_have_a_depth() {
        for (pickle, expected) in [
            (&b"\x80\x02)."[..], Some(0)),
            (b"\x80\x02)\x85\x85.", Some(2)),
            (b"]q\x00(K\x01K\x02e.", Some(1)),
            (b"](](]ee.", Some(2)),
            (b"}X\x01\x00\x00\x00a]s.", Some(1)),
            (b"cm\nC\n)\x81}(X\x01\x00\x00\x00a)\x85ub.", Some(3)),
            // Remembered once, used twice.
            (b")\x85q\x07h\x07\x86.", Some(2)),
            (b"]q\x00]q\x01h\x00h\x01a.", None),
            (b"cm\nC\nq\x00)\x81h\x00)R\x86.", Some(2)),
            // Cut, and without what they need: as deep as they come.
            (b"X\xff\xff\xff\x7f", Some(0)),
            (b"\x85\x85\x85", Some(0)),
            (b"tRtR.", Some(0)),
            (b"h\xfe.", Some(0)),
            (b"", Some(0)),
        ] {
            assert_eq!(pickle_depth(pickle), expected, "{pickle:?}");
        }
        let tuples = [&b")"[..], &b"\x85".repeat(1000)].concat();
        assert_eq!(pickle_depth(&tuples), Some(1000));
        let lists = [b"]".repeat(1000), b"a".repeat(999)].concat();
        assert_eq!(pickle_depth(&lists), Some(999));
    }
}
