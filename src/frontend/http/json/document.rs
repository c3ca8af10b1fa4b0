//! A validated text and the values in it.

use std::collections::HashSet;

use conch_engine::Error;
use conch_memory::ByteView;

use super::checker::{self, CheckStop, NODES_MAX, TensorArrays};
use super::node::{JsonNode, NodeKind};
use super::number::JsonNumber;

/// A validated JSON text. Owns its bytes, so that it can move between threads.
pub(crate) struct JsonDocument {
    text: ByteView,
    nodes: Vec<JsonNode>,
    resolved: Vec<Vec<u8>>,
}

/// One value of a document.
#[derive(Clone, Copy)]
pub(crate) struct JsonValue<'d> {
    document: &'d JsonDocument,
    index: usize,
}

impl JsonDocument {
    /// Checks the first `length` bytes of `body` from `start`.
    ///
    /// # Errors
    /// INTERNAL with rapidjson's text where it is not JSON (upstream's status for that);
    /// INVALID_ARG where it holds too many values.
    pub(crate) fn parse(text: ByteView) -> Result<JsonDocument, Error> {
        JsonDocument::parse_with(text, TensorArrays::Data)
    }

    /// As [`JsonDocument::parse`], for texts whose every array is tensor data.
    pub(crate) fn parse_flat(text: ByteView) -> Result<JsonDocument, Error> {
        JsonDocument::parse_with(text, TensorArrays::All)
    }

    fn parse_with(text: ByteView, lumps: TensorArrays) -> Result<JsonDocument, Error> {
        let bytes = text.as_ref();
        if u32::try_from(bytes.len()).is_err() {
            return Err(Error::invalid("the request JSON is too large"));
        }
        match checker::check(bytes, lumps) {
            Ok((nodes, resolved)) => Ok(JsonDocument {
                text,
                nodes,
                resolved,
            }),
            Err(CheckStop::Refused((fault, offset))) => Err(Error::internal(format!(
                "failed to parse the request JSON buffer: {fault} at {offset}"
            ))),
            Err(CheckStop::OutOfMemory(refused)) => Err(refused.into()),
            Err(CheckStop::TooMany) => Err(Error::invalid(format!(
                "the request JSON holds more than {NODES_MAX} values outside of tensor data"
            ))),
        }
    }

    /// All of it.
    pub(crate) fn text(&self) -> &[u8] {
        self.text.as_ref()
    }

    pub(crate) fn root(&self) -> JsonValue<'_> {
        JsonValue {
            document: self,
            index: 0,
        }
    }

    fn text_of(&self, node: JsonNode) -> &[u8] {
        let range = node.start as usize..node.end as usize;
        self.text.as_ref().get(range).unwrap_or(&[])
    }

    /// The content of a string.
    fn content(&self, node: JsonNode) -> Option<&[u8]> {
        match node.kind {
            NodeKind::Plain => Some(self.text_of(node)),
            NodeKind::Escaped => self.resolved.get(node.start as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The string at a node that [`JsonValue::as_string_index`] returned.
    pub(crate) fn string(&self, index: usize) -> &str {
        JsonValue {
            document: self,
            index,
        }
        .bytes()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .unwrap_or("")
    }
}

/// What upstream says when a value is of another kind than wanted. Mistakes of clients, yet
/// INTERNAL there.
fn mismatch(what: &str) -> Error {
    Error::internal(format!("attempt to access JSON {what}"))
}

impl<'d> JsonValue<'d> {
    fn node(self) -> JsonNode {
        // Indices come from this document, which has at least its root.
        self.document
            .nodes
            .get(self.index)
            .copied()
            .unwrap_or(JsonNode {
                kind: NodeKind::Null,
                start: 0,
                end: 0,
                next: 0,
            })
    }

    fn text(self) -> &'d [u8] {
        self.document.text_of(self.node())
    }

    pub(crate) fn is_object(self) -> bool {
        self.node().kind == NodeKind::Object
    }

    /// Members in order; none if it is not an object.
    pub(crate) fn members(self) -> impl Iterator<Item = (&'d [u8], JsonValue<'d>)> {
        let node = self.node();
        let end = if node.kind == NodeKind::Object {
            node.next as usize
        } else {
            0
        };
        let document = self.document;
        let mut at = self.index + 1;
        std::iter::from_fn(move || {
            // A name, and the node of its value.
            let [name, value] = document.nodes.get(at..end)?.first_chunk()?;
            let name = document.content(*name).unwrap_or(&[]);
            let index = at + 1;
            at = value.next as usize;
            Some((name, JsonValue { document, index }))
        })
    }

    /// [`JsonValue::members`], each with whether it is the first of its name. Where names must be
    /// unique it is the one that counts.
    pub(crate) fn members_marked(self) -> impl Iterator<Item = (&'d [u8], JsonValue<'d>, bool)> {
        /// Members of which each is compared with those in front of it.
        const COMPARED_MAX: usize = 16;
        let mut count = 0;
        let mut names = HashSet::new();
        self.members().map(move |(name, value)| {
            count += 1;
            if count == COMPARED_MAX + 1 {
                names.extend(self.members().take(COMPARED_MAX).map(|(name, _)| name));
            }
            let is_first = match count <= COMPARED_MAX {
                true => {
                    let mut members = self.members();
                    let first = members.find(|(known, _)| *known == name);
                    first.is_some_and(|(_, first)| first.index == value.index)
                }
                false => names.insert(name),
            };
            (name, value, is_first)
        })
    }

    /// The first member of that name; none if there is none or this is not an object.
    pub(crate) fn find(self, name: &str) -> Option<JsonValue<'d>> {
        self.members()
            .find(|(known, _)| *known == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// The member of that name.
    ///
    /// # Errors
    /// Upstream's words if there is none.
    pub(crate) fn member(self, name: &str) -> Result<JsonValue<'d>, Error> {
        self.find(name).ok_or_else(|| {
            Error::internal(format!(
                "attempt to access non-existing object member '{name}'"
            ))
        })
    }

    /// Elements in order.
    pub(crate) fn as_array(self) -> Result<impl Iterator<Item = JsonValue<'d>>, Error> {
        let node = self.node();
        if node.kind != NodeKind::Array {
            return Err(mismatch("non-array as array"));
        }
        let end = node.next as usize;
        let mut at = self.index + 1;
        Ok(std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let value = JsonValue {
                document: self.document,
                index: at,
            };
            at = value.node().next as usize;
            Some(value)
        }))
    }

    /// The text of an array of tensor data, brackets included.
    pub(crate) fn as_tensor_data(self) -> Result<&'d [u8], Error> {
        match self.node().kind {
            NodeKind::Array | NodeKind::Lump => Ok(self.text()),
            _ => Err(mismatch("non-array as array")),
        }
    }

    /// The text of anything but a string.
    pub(crate) fn literal(self) -> Option<&'d [u8]> {
        (!self.is_string()).then(|| self.text())
    }

    /// The content of a string.
    pub(crate) fn bytes(self) -> Option<&'d [u8]> {
        self.document.content(self.node())
    }

    pub(crate) fn is_null(self) -> bool {
        self.node().kind == NodeKind::Null
    }

    pub(crate) fn is_string(self) -> bool {
        matches!(self.node().kind, NodeKind::Plain | NodeKind::Escaped)
    }

    pub(crate) fn as_str(self) -> Result<&'d str, Error> {
        let bytes = self
            .bytes()
            .ok_or_else(|| mismatch("non-string as string"))?;
        std::str::from_utf8(bytes)
            .map_err(|_| Error::invalid("a string in the request JSON is not valid UTF-8"))
    }

    /// As [`JsonValue::as_str`], as an index for [`JsonDocument::string`]: it can outlive the
    /// borrow.
    pub(crate) fn as_string_index(self) -> Result<usize, Error> {
        self.as_str().map(|_| self.index)
    }

    pub(crate) fn as_bool(self) -> Result<bool, Error> {
        match self.node().kind {
            NodeKind::Bool(value) => Ok(value),
            _ => Err(mismatch("non-boolean as boolean")),
        }
    }

    fn number(self) -> Option<JsonNumber<'d>> {
        (self.node().kind == NodeKind::Number).then(|| JsonNumber::read(self.text(), 0))
    }

    pub(crate) fn as_unsigned(self) -> Result<u64, Error> {
        self.number()
            .and_then(JsonNumber::as_unsigned)
            .ok_or_else(|| mismatch("non-unsigned-integer as unsigned-integer"))
    }

    pub(crate) fn as_signed(self) -> Result<i64, Error> {
        self.number()
            .and_then(JsonNumber::as_signed)
            .ok_or_else(|| mismatch("non-signed-integer as signed-integer"))
    }

    pub(crate) fn as_double(self) -> Result<f64, Error> {
        self.number()
            .and_then(JsonNumber::as_double)
            .ok_or_else(|| mismatch("non-number as double"))
    }
}

/// Puts `context` before an error's message, as upstream does: `context: message`.
pub(crate) fn within(context: &str) -> impl FnOnce(Error) -> Error + '_ {
    move |error| Error::new(error.code, format!("{context}: {}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use conch_engine::Code;

    fn parse(text: &[u8]) -> Result<JsonDocument, Error> {
        JsonDocument::parse(ByteView::copy_of(text))
    }

    /// Texts and offsets as rapidjson's iterative parser gives them.
    #[test]
    fn refuses_what_is_not_json_in_rapidjsons_words() {
        for (text, expected) in [
            ("", "The document is empty. at 0"),
            ("  ", "The document is empty. at 2"),
            ("]", "The document is empty. at 0"),
            ("{bad", "Missing a name for object member. at 1"),
            ("{", "Missing a name for object member. at 1"),
            (
                "{\"a\"",
                "Missing a colon after a name of object member. at 4",
            ),
            (
                "{\"a\" 1}",
                "Missing a colon after a name of object member. at 5",
            ),
            ("{\"a\":", "Invalid value. at 5"),
            ("{\"a\":}", "Invalid value. at 5"),
            (
                "{\"a\":1",
                "Missing a comma or '}' after an object member. at 6",
            ),
            ("{\"a\":1,}", "Missing a name for object member. at 7"),
            (
                "[1 2]",
                "Missing a comma or ']' after an array element. at 3",
            ),
            ("[1,]", "Invalid value. at 3"),
            ("[,1]", "Invalid value. at 1"),
            ("[1", "Missing a comma or ']' after an array element. at 2"),
            (
                "[01]",
                "Missing a comma or ']' after an array element. at 2",
            ),
            (
                "{} x",
                "The document root must not be followed by other values. at 3",
            ),
            ("nul", "Invalid value. at 3"),
            ("trux", "Invalid value. at 3"),
            ("[1.]", "Miss fraction part in number. at 3"),
            ("[1e]", "Miss exponent in number. at 3"),
            ("[1e400]", "Number too big to be stored in double. at 1"),
            ("[-]", "Invalid value. at 2"),
            ("\"a", "Missing a closing quotation mark in string. at 2"),
            ("\"\\x\"", "Invalid escape character in string. at 1"),
            (
                "\"\\u12g4\"",
                "Incorrect hex digit after \\u escape in string. at 1",
            ),
            (
                "\"\\ud800x\"",
                "The surrogate pair in string is invalid. at 1",
            ),
            ("\"a\u{1}\"", "Invalid encoding in string. at 2"),
            ("{\"data\":[1,}]}", "Invalid value. at 11"),
        ] {
            let error = parse(text.as_bytes())
                .err()
                .unwrap_or_else(|| panic!("{text:?} was accepted"));
            assert_eq!(
                error.message,
                format!("failed to parse the request JSON buffer: {expected}"),
                "{text:?}"
            );
            assert_eq!(error.code, Code::Internal);
        }
    }

    /// However digits and exponent share the work of getting beyond the largest double.
    #[test]
    fn no_number_is_infinite_unless_it_says_so() {
        for digits in 1..=400 {
            for exponent in [-400, -99, 0, 8, 98, 99, 100, 300, 308, 400] {
                let text = format!("{}e{exponent}", "1".repeat(digits));
                let is_finite = digits as i32 + exponent <= 309;
                match parse(text.as_bytes()) {
                    Ok(document) => {
                        let value = document.root().as_double().unwrap();
                        assert!(is_finite && value.is_finite(), "{text}");
                    }
                    Err(error) => {
                        assert!(!is_finite && error.message.contains("too big"), "{text}");
                    }
                }
            }
        }
        let value = |text: &[u8]| parse(text).unwrap().root().as_double().unwrap();
        assert_eq!(value(b"Infinity"), f64::INFINITY);
        assert!(value(b"-NaN").is_nan());
    }

    #[test]
    fn finds_what_it_noted() {
        let document = parse(
            b" {\"a\":{\"b\":[1,-2,3.5,{\"c\":null}],\"x\\u0041\\n\":\"y\\ud83d\\ude00\"},\
                 \"data\":[[1,2],[{\"q\":[]}]],\"t\":true,\"f\":false} ",
        )
        .unwrap();
        let root = document.root();
        let inner = root.member("a").unwrap();
        let list: Vec<JsonValue<'_>> = inner.member("b").unwrap().as_array().unwrap().collect();
        assert_eq!(list.len(), 4);
        assert_eq!(list[0].as_unsigned().unwrap(), 1);
        assert_eq!(list[1].as_signed().unwrap(), -2);
        assert!(list[1].as_unsigned().is_err());
        assert_eq!(list[2].as_double().unwrap(), 3.5);
        assert!(list[3].find("c").is_some());
        assert_eq!(
            inner.member("xA\n").unwrap().as_str().unwrap(),
            "y\u{1f600}"
        );
        assert_eq!(
            root.member("data").unwrap().as_tensor_data().unwrap(),
            br#"[[1,2],[{"q":[]}]]"#
        );
        assert_eq!(root.members().count(), 4);
        assert!(root.member("t").unwrap().as_bool().unwrap());
        assert_eq!(
            root.member("zz").err().unwrap().message,
            "attempt to access non-existing object member 'zz'"
        );
        assert_eq!(
            root.member("f").unwrap().as_str().unwrap_err().message,
            "attempt to access JSON non-string as string"
        );
    }

    #[test]
    fn a_flat_text_notes_no_elements() {
        let text = ByteView::copy_of(br#"{"a":[1,[2,{"b":3}]],"p":{"c":["x",{}]},"d":7,"s":"\n"}"#);
        let document = JsonDocument::parse_flat(text).unwrap();
        assert_eq!(document.nodes.len(), 11);
        let root = document.root();
        let literal = |value: JsonValue<'_>| value.literal().map(<[u8]>::to_vec);
        let inner = root.member("p").unwrap();
        for (value, expected) in [
            (root.member("a"), br#"[1,[2,{"b":3}]]"#.to_vec()),
            (inner.member("c"), br#"["x",{}]"#.to_vec()),
            (root.member("d"), b"7".to_vec()),
        ] {
            assert_eq!(literal(value.unwrap()), Some(expected));
        }
        let string = root.member("s").unwrap();
        assert_eq!((literal(string), string.bytes()), (None, Some(&b"\n"[..])));
        let root = JsonDocument::parse_flat(ByteView::copy_of(b"[[1],2]")).unwrap();
        assert_eq!((root.root().is_object(), root.nodes.len()), (false, 1));
    }

    #[test]
    fn nesting_costs_no_recursion_and_nothing_is_noted_of_what_lies_deep() {
        for depth in [100, 127, 128, 129, 1_000_000] {
            for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
                let text = open.repeat(depth) + "1" + &close.repeat(depth);
                let document = parse(text.as_bytes()).unwrap();
                assert!(document.nodes.len() < 300, "{depth}");
                for wrong in [
                    open.repeat(depth) + "1" + &close.repeat(depth - 1),
                    open.repeat(depth) + "1" + &close.repeat(depth + 1),
                    open.repeat(depth) + "1" + if open == "[" { "}" } else { "]" },
                ] {
                    assert!(parse(wrong.as_bytes()).is_err(), "{depth}");
                }
            }
        }
        // What lies behind the deep part is noted again.
        let deep = "[{\"q\":".repeat(1000) + "[]" + &"}]".repeat(1000);
        let text = format!(r#"{{"deep":{deep},"behind":[1,{{"a":2}}]}}"#);
        let document = parse(text.as_bytes()).unwrap();
        let behind = document.root().member("behind").unwrap();
        let list: Vec<JsonValue<'_>> = behind.as_array().unwrap().collect();
        assert_eq!(list[1].member("a").unwrap().as_unsigned(), Ok(2));
        assert!(document.root().member("deep").unwrap().as_bool().is_err());
    }

    /// As rapidjson has it: a mark in front is skipped, a NUL between two tokens ends the text.
    #[test]
    fn what_stands_around_the_text() {
        for (text, expected) in [
            (&b"\xef\xbb\xbf {\"a\":1}"[..], Ok(())),
            (b"{\"a\":1}\0\0", Ok(())),
            (b"{\"a\":1} \0 {]", Ok(())),
            (
                b"{\"a\":1\0}",
                Err("Missing a comma or '}' after an object member. at 6"),
            ),
            (b"\0", Err("The document is empty. at 0")),
            (b"\xef\xbb\xbf", Err("The document is empty. at 3")),
            (b"\xef\xbb\xbf\xef\xbb\xbf{}", Err("Invalid value. at 3")),
            (b" \xef\xbb\xbf{}", Err("Invalid value. at 1")),
            (
                b"{\"a\":\"\0\"}",
                Err("Missing a closing quotation mark in string. at 6"),
            ),
        ] {
            let outcome = parse(text)
                .map(|_| ())
                .map_err(|error| error.message.into_owned());
            let expected = expected
                .map_err(|what: &str| format!("failed to parse the request JSON buffer: {what}"));
            assert_eq!(outcome, expected, "{}", text.escape_ascii());
        }
        let document = parse(b"\xef\xbb\xbf{\"data\":[1,2]}\0").unwrap();
        let data = document.root().member("data").unwrap();
        assert_eq!(data.as_tensor_data().unwrap(), b"[1,2]");
    }

    #[test]
    fn the_first_of_a_name_is_marked() {
        let names: Vec<String> = (0..40).map(|index| format!("n{}", index % 25)).collect();
        let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":1")).collect();
        let document = parse(format!("{{{}}}", members.join(",")).as_bytes()).unwrap();
        let marks: Vec<bool> = document
            .root()
            .members_marked()
            .map(|member| member.2)
            .collect();
        let expected: Vec<bool> = (0..40).map(|index| index < 25).collect();
        assert_eq!(marks, expected);
        let document = parse(br#"{"a":1,"b":2,"a":3,"":4,"":5}"#).unwrap();
        let marks: Vec<bool> = document
            .root()
            .members_marked()
            .map(|member| member.2)
            .collect();
        assert_eq!(marks, [true, true, false, true, false]);
    }

    /// Any mutation of a valid text is refused or accepted, never a panic.
    #[test]
    fn survives_mutations() {
        let mut numbers = Random::new(1);
        let mut random = || numbers.next();
        let valid = b"{\"id\":\"a\\u00e9\",\"inputs\":[{\"name\":\"x\",\"shape\":[1,2],\
            \"datatype\":\"FP32\",\"data\":[1.5,-2e3]}],\"p\":null}";
        for _ in 0..20_000 {
            let mut text = valid.to_vec();
            for _ in 0..=random() % 3 {
                let at = random() as usize % text.len();
                match random() % 3 {
                    0 => text[at] = random() as u8,
                    1 => drop(text.remove(at)),
                    _ => text.insert(at, b"[]{},:\"\\01eE.-"[random() as usize % 14]),
                }
            }
            if let Ok(document) = parse(&text) {
                for (_, value) in document.root().members() {
                    let _ = (
                        value.as_str(),
                        value.as_double(),
                        value.as_array().map(Iterator::count),
                    );
                }
            }
        }
    }
}
