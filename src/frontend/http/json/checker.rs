//! Checks a JSON text in one pass and notes where its values lie.
//!
//! A state machine without recursion, named after rapidjson's states, so that a refusal names what
//! rapidjson would name.

use conch_memory::{OutOfMemory, try_push, try_reserve};
use smallvec::SmallVec;

use super::lexer::{self, JsonFault, JsonRefused, JsonText};
use super::node::{JsonNode, NodeKind};
use super::number_run;

/// Nesting up to which values are noted. Nobody looks at what lies deeper: it is checked, like
/// tensor data, at a bit per level.
const DEPTH_MAX: usize = 128;
/// What some editors put in front of text; rapidjson skips it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Values outside `data` arrays: far above any honest request, and it bounds what a hostile one
/// makes us note (16 bytes each).
pub(super) const NODES_MAX: usize = 1 << 20;

/// What the checker expects next; the names are rapidjson's states.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedToken {
    Root,
    /// After `{`: a name or `}`.
    FirstName,
    /// After `,` in an object.
    Name,
    Colon,
    /// After `:`.
    MemberValue,
    /// After a member's value: `,` or `}`.
    MemberEnd,
    /// After `[`: a value or `]`.
    FirstElement,
    /// After `,` in an array.
    Element,
    /// After an element: `,` or `]`.
    ElementEnd,
    /// After the root.
    End,
}

impl ExpectedToken {
    /// What is wrong when anything else comes.
    fn fault(self) -> JsonFault {
        match self {
            ExpectedToken::Root => JsonFault::DocumentEmpty,
            ExpectedToken::FirstName | ExpectedToken::Name => JsonFault::MissingName,
            ExpectedToken::Colon => JsonFault::MissingColon,
            ExpectedToken::MemberEnd => JsonFault::MissingCommaOrBrace,
            ExpectedToken::MemberValue | ExpectedToken::FirstElement | ExpectedToken::Element => {
                JsonFault::ValueInvalid
            }
            ExpectedToken::ElementEnd => JsonFault::MissingCommaOrBracket,
            ExpectedToken::End => JsonFault::RootNotSingular,
        }
    }
}

/// Where the checker stands.
struct JsonChecker<'t> {
    text: &'t [u8],
    nodes: Vec<JsonNode>,
    resolved: Vec<Vec<u8>>,
    /// Open containers that have nodes: whether it is an object, and its node.
    open: SmallVec<[(bool, u32); 8]>,
    /// Depth of `open` at which the present lump began.
    lump_depth: Option<usize>,
    /// Open containers within the lump.
    inner: ContainerKinds,
    /// The last name was `data`.
    is_data_next: bool,
    /// Which arrays are lumps.
    lumps: TensorArrays,
}

/// Which arrays are tensor data: checked, and not noted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorArrays {
    /// Those called `data`.
    Data,
    All,
}

pub(super) enum CheckStop {
    Refused(JsonRefused),
    TooMany,
    OutOfMemory(OutOfMemory),
}

impl From<OutOfMemory> for CheckStop {
    fn from(refused: OutOfMemory) -> CheckStop {
        CheckStop::OutOfMemory(refused)
    }
}

/// Which of the open containers are objects, a bit each.
#[derive(Default)]
struct ContainerKinds {
    words: Vec<u64>,
    depth: usize,
}

impl ContainerKinds {
    fn push(&mut self, is_object: bool) -> Result<(), CheckStop> {
        let (index, bit) = (self.depth / 64, self.depth % 64);
        if index == self.words.len() {
            try_push(&mut self.words, 0)?;
        }
        if let Some(word) = self.words.get_mut(index) {
            *word = *word & !(1 << bit) | u64::from(is_object) << bit;
        }
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Whether the innermost is an object; none if none is open.
    fn last(&self) -> Option<bool> {
        let place = self.depth.checked_sub(1)?;
        let word = self.words.get(place / 64)?;
        Some(word >> (place % 64) & 1 == 1)
    }
}

impl From<JsonRefused> for CheckStop {
    fn from(refused: JsonRefused) -> CheckStop {
        CheckStop::Refused(refused)
    }
}

/// The notes of a whole text: its nodes, the root first, and the strings that had escapes.
pub(super) type DocumentIndex = (Vec<JsonNode>, Vec<Vec<u8>>);

/// Checks `text`, whose length fits 32 bits.
///
/// # Errors
/// The first fault, where rapidjson would notice it, or a bound of ours.
pub(super) fn check(text: &[u8], lumps: TensorArrays) -> Result<DocumentIndex, CheckStop> {
    let mut checker = JsonChecker {
        text,
        nodes: Vec::with_capacity(32),
        resolved: Vec::new(),
        open: SmallVec::new(),
        lump_depth: None,
        inner: ContainerKinds::default(),
        is_data_next: false,
        lumps,
    };
    checker.check()?;
    Ok((checker.nodes, checker.resolved))
}

impl JsonChecker<'_> {
    fn check(&mut self) -> Result<(), CheckStop> {
        let mut expect = ExpectedToken::Root;
        let mark_bytes = match self.text.starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        };
        let mut at = lexer::skip_space(self.text, mark_bytes);
        while let Some(byte) = self.text.get(at).copied() {
            // It ends the text, whatever is behind it: upstream's strings are C's.
            if byte == 0 {
                break;
            }
            (expect, at) = self.step(expect, at, byte)?;
            at = lexer::skip_space(self.text, at);
            if expect == ExpectedToken::ElementEnd && self.lump_depth.is_some() {
                at = self.skim(at);
            }
        }
        if expect != ExpectedToken::End {
            return Err((expect.fault(), at).into());
        }
        Ok(())
    }

    /// Skips `, number` again and again within tensor data, where nearly all bytes of a large
    /// request lie. Anything else, and everything that is wrong, is left to the careful steps.
    #[inline]
    fn skim(&self, mut at: usize) -> usize {
        /// Numbers after which another run may begin.
        const BETWEEN_RUNS: usize = 16;
        loop {
            at = number_run::skip(self.text, at);
            for _ in 0..BETWEEN_RUNS {
                if self.text.get(at) != Some(&b',') {
                    return at;
                }
                let start = lexer::skip_space(self.text, at + 1);
                if !matches!(self.text.get(start), Some(b'0'..=b'9' | b'-')) {
                    return at;
                }
                let Ok(end) = lexer::number(self.text, start) else {
                    return at;
                };
                at = lexer::skip_space(self.text, end);
            }
        }
    }

    #[inline]
    fn step(
        &mut self,
        expect: ExpectedToken,
        at: usize,
        byte: u8,
    ) -> Result<(ExpectedToken, usize), CheckStop> {
        match (expect, byte) {
            (ExpectedToken::ElementEnd, b',') => Ok((ExpectedToken::Element, at + 1)),
            (ExpectedToken::MemberEnd, b',') => Ok((ExpectedToken::Name, at + 1)),
            (ExpectedToken::Colon, b':') => Ok((ExpectedToken::MemberValue, at + 1)),
            (ExpectedToken::FirstName | ExpectedToken::Name, b'"') => {
                let name = lexer::string(self.text, at)?;
                // A later look decodes escapes; `data` is never written with any by a client that
                // wants speed.
                self.is_data_next = self.text.get(name.start..name.end) == Some(b"data");
                self.note_string(name)?;
                Ok((ExpectedToken::Colon, name.behind()))
            }
            (ExpectedToken::FirstElement | ExpectedToken::ElementEnd, b']')
            | (ExpectedToken::FirstName | ExpectedToken::MemberEnd, b'}') => {
                Ok((self.close(at), at + 1))
            }
            (
                ExpectedToken::Root
                | ExpectedToken::MemberValue
                | ExpectedToken::FirstElement
                | ExpectedToken::Element,
                _,
            ) => self.value(expect, at, byte),
            _ => Err((expect.fault(), at).into()),
        }
    }

    fn value(
        &mut self,
        expect: ExpectedToken,
        at: usize,
        byte: u8,
    ) -> Result<(ExpectedToken, usize), CheckStop> {
        let behind = match byte {
            b'[' | b'{' => return self.begin(byte == b'{', at).map(|expect| (expect, at + 1)),
            b']' | b'}' | b',' | b':' => return Err((expect.fault(), at).into()),
            b'"' => {
                let content = lexer::string(self.text, at)?;
                self.note_string(content)?;
                content.behind()
            }
            b'n' => self.note_plain(NodeKind::Null, at, lexer::literal(self.text, at, b"null")?)?,
            b't' => self.note_plain(
                NodeKind::Bool(true),
                at,
                lexer::literal(self.text, at, b"true")?,
            )?,
            b'f' => self.note_plain(
                NodeKind::Bool(false),
                at,
                lexer::literal(self.text, at, b"false")?,
            )?,
            _ => self.note_plain(NodeKind::Number, at, lexer::number(self.text, at)?)?,
        };
        Ok((self.after_value(), behind))
    }

    fn after_value(&self) -> ExpectedToken {
        let outer = self.open.last().map(|(is_object, _)| *is_object);
        match self.inner.last().or(outer) {
            None => ExpectedToken::End,
            Some(true) => ExpectedToken::MemberEnd,
            Some(false) => ExpectedToken::ElementEnd,
        }
    }

    fn begin(&mut self, is_object: bool, at: usize) -> Result<ExpectedToken, CheckStop> {
        if self.lump_depth.is_some() {
            self.inner.push(is_object)?;
        } else {
            let is_data = !is_object
                && (self.lumps == TensorArrays::All
                    || self.is_data_next && matches!(self.open.last(), Some((true, _))));
            let is_lump = is_data || self.open.len() >= DEPTH_MAX;
            let kind = match (is_lump, is_object) {
                (true, _) => NodeKind::Lump,
                (false, true) => NodeKind::Object,
                (false, false) => NodeKind::Array,
            };
            self.note(kind, at, at)?;
            if is_lump {
                self.lump_depth = Some(self.open.len());
            }
            self.open.push((is_object, self.nodes.len() as u32 - 1));
        }
        Ok(if is_object {
            ExpectedToken::FirstName
        } else {
            ExpectedToken::FirstElement
        })
    }

    fn close(&mut self, at: usize) -> ExpectedToken {
        if self.inner.last().is_some() {
            self.inner.pop();
            return self.after_value();
        }
        let next = self.nodes.len() as u32;
        if let Some((_, node)) = self.open.pop()
            && let Some(node) = self.nodes.get_mut(node as usize)
        {
            node.end = at as u32 + 1;
            node.next = next;
        }
        if self.lump_depth == Some(self.open.len()) {
            self.lump_depth = None;
        }
        self.after_value()
    }

    fn note_plain(&mut self, kind: NodeKind, start: usize, end: usize) -> Result<usize, CheckStop> {
        if self.lump_depth.is_none() {
            self.note(kind, start, end)?;
        }
        Ok(end)
    }

    fn note_string(&mut self, string: JsonText) -> Result<(), CheckStop> {
        if self.lump_depth.is_some() {
            return Ok(());
        }
        if !string.has_escapes {
            return self.note(NodeKind::Plain, string.start, string.end);
        }
        let mut resolved = Vec::new();
        try_reserve(&mut resolved, string.end - string.start)?;
        lexer::unescape(self.text, string, |piece| resolved.extend_from_slice(piece));
        try_push(&mut self.resolved, resolved)?;
        self.note(NodeKind::Escaped, self.resolved.len() - 1, 0)
    }

    /// Offsets fit: the text's length does.
    fn note(&mut self, kind: NodeKind, start: usize, end: usize) -> Result<(), CheckStop> {
        if self.nodes.len() >= NODES_MAX {
            return Err(CheckStop::TooMany);
        }
        let next = self.nodes.len() as u32 + 1;
        let node = JsonNode {
            kind,
            start: start as u32,
            end: end as u32,
            next,
        };
        Ok(try_push(&mut self.nodes, node)?)
    }
}
