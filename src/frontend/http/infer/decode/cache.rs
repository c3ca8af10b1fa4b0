//! The JSON of recent requests, and what it decodes to.
//!
//! Clients send the same JSON again and again, with other tensors and perhaps another id. What JSON
//! decodes to depends on nothing but its bytes and the registered regions, so a shard keeps the
//! documents of texts that came at least twice, and for requests without regions and parameters all
//! but their tensors. Texts are compared in full: a collision of hashes costs time, no answer.
//! Texts with tensor data are not kept, since data differ from request to request. Of 64 texts of
//! 1 KiB with as many values as these can have, all is about 1 MiB per shard.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use conch_engine::{CorrelationId, Error, SequenceFlags, Shape, TENSORS_IN_PLACE};
use conch_memory::{ByteView, OutOfMemory};
use smallvec::SmallVec;

use super::input::aligned;
use super::{
    DecodeBounds, GivenInput, InferRequest, OutputForm, RequestId, WantedOutput, decode,
    read_document,
};
use crate::http::json::JsonDocument;

/// Longer texts are not kept.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// Longer ids count as part of the text.
const ID_BYTES_MAX: usize = 128;
const SLOT_COUNT: usize = 64;
/// How the JSON of a request with an id begins, as upstream's clients write it.
const ID_PREFIX: &[u8] = br#"{"id":""#;

thread_local! {
    /// Of the shard of this thread.
    static CACHE: DecodeCache = const { DecodeCache::new() };
}

/// What a shard keeps of recent requests.
struct DecodeCache {
    /// None, or [`SLOT_COUNT`].
    slots: RefCell<Vec<CacheSlot>>,
}

#[derive(Default)]
struct CacheSlot {
    kept: Option<Box<CachedJson>>,
    candidate: SlotCandidate,
}

/// The last text of a slot that was not the kept one, by its hash.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SlotCandidate {
    #[default]
    Absent,
    /// It is kept if it comes again before the kept one does.
    Seen(u64),
    /// It is not to be kept.
    Unfit(u64),
}

/// The JSON of a request that came at least twice.
struct CachedJson {
    has_id: bool,
    /// Where the part begins that other requests must have as well.
    shared_start: usize,
    document: Arc<JsonDocument>,
    template: Option<RequestTemplate>,
}

/// All of a request but its tensors, which lie behind the JSON.
struct RequestTemplate {
    /// For texts whose id is part of what is shared.
    id: RequestId,
    correlation_id: CorrelationId,
    sequence_flags: SequenceFlags,
    priority: u64,
    timeout_us: u64,
    /// Without their tensors, and how many bytes these have.
    inputs: SmallVec<[(GivenInput, usize); TENSORS_IN_PLACE]>,
    wanted: SmallVec<[WantedOutput; TENSORS_IN_PLACE]>,
    default_form: OutputForm,
}

/// A text without its id.
struct JsonKey<'a> {
    id: Option<Range<usize>>,
    shared: &'a [u8],
    hash: u64,
}

/// As [`decode`], on a shard.
///
/// # Errors
/// As for [`decode`].
pub(crate) fn decode_cached(
    body: &ByteView,
    json_length: usize,
    bounds: &DecodeBounds<'_>,
) -> Result<Box<InferRequest>, Error> {
    let bytes_max = bounds.limits.input_bytes_max.min(TEXT_BYTES_MAX as u64);
    match body.as_ref().get(..json_length) {
        Some(text) if !text.is_empty() && text.len() as u64 <= bytes_max => {
            CACHE.with(|cache| cache.decode(body, text, bounds))
        }
        _ => decode(body, json_length, bounds),
    }
}

impl DecodeCache {
    const fn new() -> DecodeCache {
        DecodeCache {
            slots: RefCell::new(Vec::new()),
        }
    }

    /// Decodes `body`, which begins with `text`.
    fn decode(
        &self,
        body: &ByteView,
        text: &[u8],
        bounds: &DecodeBounds<'_>,
    ) -> Result<Box<InferRequest>, Error> {
        let key = JsonKey::of(text);
        let mut slots = self.slots.borrow_mut();
        if slots.is_empty() {
            slots.resize_with(SLOT_COUNT, CacheSlot::default);
        }
        // The last bits of a product say least of its factors.
        let Some(slot) = slots.get_mut((key.hash >> 32) as usize % SLOT_COUNT) else {
            return decode(body, text.len(), bounds);
        };
        if let Some(cached) = slot.kept.as_ref().filter(|cached| cached.is(&key)) {
            slot.candidate = SlotCandidate::Absent;
            return cached.decode(body, text.len(), key.id, bounds);
        }
        let decoded = decode(body, text.len(), bounds)?;
        slot.note(text, &key, &decoded);
        Ok(decoded)
    }
}

impl CacheSlot {
    /// A sound request came whose text is not kept.
    fn note(&mut self, text: &[u8], key: &JsonKey<'_>, decoded: &InferRequest) {
        if self.candidate == SlotCandidate::Unfit(key.hash) {
            return;
        }
        if self.candidate != SlotCandidate::Seen(key.hash) {
            self.candidate = SlotCandidate::Seen(key.hash);
            return;
        }
        match CachedJson::of(text, key, decoded) {
            Some(cached) => {
                self.kept = Some(Box::new(cached));
                self.candidate = SlotCandidate::Absent;
            }
            None => self.candidate = SlotCandidate::Unfit(key.hash),
        }
    }
}

impl CachedJson {
    /// None if the text is not to be kept. The document gets bytes of its own: those of the request
    /// go with it.
    fn of(text: &[u8], key: &JsonKey<'_>, decoded: &InferRequest) -> Option<CachedJson> {
        let document = JsonDocument::parse(ByteView::try_copy_of(text).ok()?).ok()?;
        let has_data = {
            let mut inputs = document.root().find("inputs")?.as_array().ok()?;
            inputs.any(|input| input.find("data").is_some())
        };
        (!has_data).then(|| CachedJson {
            has_id: key.id.is_some(),
            shared_start: text.len() - key.shared.len(),
            template: RequestTemplate::of(decoded),
            document: Arc::new(document),
        })
    }

    #[inline]
    fn is(&self, key: &JsonKey<'_>) -> bool {
        let shared = self.document.text().get(self.shared_start..);
        self.has_id == key.id.is_some() && shared == Some(key.shared)
    }

    #[inline]
    fn decode(
        &self,
        body: &ByteView,
        json_length: usize,
        id: Option<Range<usize>>,
        bounds: &DecodeBounds<'_>,
    ) -> Result<Box<InferRequest>, Error> {
        let tail = body.slice(json_length, body.len());
        let tail = tail.unwrap_or_else(ByteView::empty);
        let document = Arc::clone(&self.document);
        let mut decoded = match &self.template {
            Some(template) if template.tail_bytes() == tail.len() => {
                template.decode(document, &tail)?
            }
            _ => read_document(document, &tail, bounds)?,
        };
        if let Some(id) = id.and_then(|id| body.slice(id.start, id.end)) {
            decoded.id = RequestId::Text(id);
        }
        Ok(decoded)
    }
}

impl RequestTemplate {
    /// None for requests with parameters or in registered memory.
    fn of(decoded: &InferRequest) -> Option<RequestTemplate> {
        if decoded.usage.is_some() || !decoded.parameters.is_empty() {
            return None;
        }
        let inputs = decoded.inputs.iter().map(|input| {
            let bytes = input.chunks.iter().map(ByteView::len).sum::<usize>();
            let input = GivenInput {
                name: input.name,
                data_type: input.data_type,
                shape: input.shape.clone(),
                chunks: SmallVec::new(),
            };
            (input, bytes)
        });
        Some(RequestTemplate {
            id: decoded.id.clone(),
            correlation_id: decoded.correlation_id.clone(),
            sequence_flags: decoded.sequence_flags,
            priority: decoded.priority,
            timeout_us: decoded.timeout_us,
            inputs: inputs.collect(),
            wanted: decoded.wanted.clone(),
            default_form: decoded.default_form,
        })
    }

    fn tail_bytes(&self) -> usize {
        self.inputs.iter().map(|(_, bytes)| *bytes).sum()
    }

    /// As the first one was decoded, with the tensors in `tail`, which has as many bytes.
    #[inline]
    fn decode(
        &self,
        document: Arc<JsonDocument>,
        tail: &ByteView,
    ) -> Result<Box<InferRequest>, OutOfMemory> {
        // Filled where it stays, as it is large.
        let mut decoded = InferRequest::empty();
        decoded.document = Some(document);
        decoded.id = self.id.clone();
        decoded.correlation_id = self.correlation_id.clone();
        decoded.sequence_flags = self.sequence_flags;
        decoded.priority = self.priority;
        decoded.timeout_us = self.timeout_us;
        decoded.default_form = self.default_form;
        decoded.wanted.extend_from_slice(&self.wanted);
        let mut start = 0;
        for (input, bytes) in &self.inputs {
            let view = aligned(tail, start, *bytes, input.data_type)?;
            start += bytes;
            decoded.inputs.push(GivenInput {
                name: input.name,
                data_type: input.data_type,
                shape: Shape::from_slice(&input.shape),
                chunks: SmallVec::from_iter([view]),
            });
        }
        Ok(decoded)
    }
}

impl<'a> JsonKey<'a> {
    #[inline]
    fn of(text: &'a [u8]) -> JsonKey<'a> {
        let id = text
            .strip_prefix(ID_PREFIX)
            .and_then(id_bytes)
            .map(|length| ID_PREFIX.len()..ID_PREFIX.len() + length);
        let shared_start = id.as_ref().map_or(0, |id| id.end);
        let shared = text.get(shared_start..).unwrap_or(&[]);
        let hash = hash_of(shared);
        JsonKey { id, shared, hash }
    }
}

/// The length of the string that `text` begins in, if it is plain ASCII: the same in JSON and
/// outside, so that what it decodes to is known without a parser.
#[inline]
fn id_bytes(text: &[u8]) -> Option<usize> {
    let text = text.get(..ID_BYTES_MAX).unwrap_or(text);
    let length = text.iter().position(|byte| *byte == b'"')?;
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'\\';
    text.get(..length)?.iter().all(is_plain).then_some(length)
}

#[inline]
fn hash_of(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(bytes.len() as u64, mix);
    rest.iter().map(|byte| u64::from(*byte)).fold(hash, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fuzz::json_infer;
    use crate::http::infer::decode::JsonLimits;
    use conch_engine::Regions;

    /// Whether a text is kept once it has come four times.
    fn is_kept(text: &str) -> bool {
        let key = JsonKey::of(text.as_bytes());
        CACHE.with(|cache| {
            let slots = cache.slots.borrow();
            slots
                .iter()
                .any(|slot| slot.kept.as_ref().is_some_and(|cached| cached.is(&key)))
        })
    }

    #[test]
    fn texts_decode_to_the_same_however_often_they_come() {
        const INPUT: &str = r#""name":"A","datatype":"FP32","shape":[1,2]"#;
        let long = "x".repeat(ID_BYTES_MAX);
        let input = |parameters: &str| format!(r#"[{{{INPUT},"parameters":{{{parameters}}}}}]"#);
        let binary = input(r#""binary_data_size":8"#);
        for (text, tail_bytes, expected) in [
            (format!(r#"{{"inputs":{binary}}}"#), 8, true),
            (format!(r#"{{"inputs":{binary}}}"#), 7, true),
            (format!(r#"{{"inputs":{binary}}}"#), 9, true),
            (format!(r#"{{"id":"1","inputs":{binary}}}"#), 8, true),
            (format!(r#"{{"id":"","inputs":{binary}}}"#), 8, true),
            (format!(r#"{{"id":"{long}","inputs":{binary}}}"#), 8, true),
            (format!(r#"{{"id":"\u0041","inputs":{binary}}}"#), 8, true),
            (format!(r#"{{"id":"é","inputs":{binary}}}"#), 8, true),
            (
                format!(r#"{{"id":"1","id":"2","inputs":{binary}}}"#),
                8,
                true,
            ),
            (format!(r#"{{"inputs":{binary},"id":"3"}}"#), 8, true),
            (format!(r#"{{"id":"1"x,"inputs":{binary}}}"#), 8, false),
            (r#"{"id":"1"}"#.to_owned(), 0, false),
            (format!(r#"{{"id":5,"inputs":{binary}}}"#), 8, false),
            (
                format!(
                    r#"{{"parameters":{{"priority":2,"timeout":3,"sequence_id":4,
                    "sequence_start":true,"binary_data_output":true}},"inputs":{binary}}}"#
                ),
                8,
                true,
            ),
            (
                format!(r#"{{"parameters":{{"own":"text"}},"inputs":{binary}}}"#),
                8,
                true,
            ),
            (
                format!(
                    r#"{{"inputs":{binary},"outputs":[{{"name":"O",
                    "parameters":{{"classification":2}}}},{{"name":"P",
                    "parameters":{{"binary_data":true}}}}]}}"#
                ),
                8,
                true,
            ),
            (
                format!(r#"{{"inputs":[{{{INPUT},"data":[1,2]}}]}}"#),
                0,
                false,
            ),
            (
                format!(r#"{{"inputs":{}}}"#, input(r#""shared_memory_region":"r""#)),
                0,
                false,
            ),
            (
                format!(r#"{{"inputs":{binary}{}}}"#, " ".repeat(TEXT_BYTES_MAX)),
                8,
                false,
            ),
        ] {
            let body = [text.as_bytes(), &b"12345678abcdefgh"[..tail_bytes]].concat();
            json_infer(&body, tail_bytes, false);
            assert_eq!(is_kept(&text), expected, "{text}");
        }
    }

    #[test]
    fn an_id_is_that_of_its_own_request() {
        let text = |id: &str| format!(r#"{{"id":"{id}","inputs":[]}}"#);
        for id in ["1", "22", "", "333", "a b"] {
            let text = text(id);
            json_infer(text.as_bytes(), 0, false);
            let body = ByteView::copy_of(text.as_bytes());
            let bounds = DecodeBounds {
                model_name: "m",
                limits: JsonLimits {
                    input_bytes_max: 1 << 20,
                    strict_integers: false,
                },
                regions: &Regions::default(),
            };
            let decoded = decode_cached(&body, body.len(), &bounds);
            assert_eq!(decoded.unwrap().id(), id);
            assert!(is_kept(&text));
        }
    }

    #[test]
    fn one_slot_is_not_taken_by_texts_that_come_once() {
        let mut slot = CacheSlot::default();
        let decoded = InferRequest::empty();
        for (text, is_kept) in [("{\"inputs\":[]}", false), ("{\"inputs\":[]}", true)] {
            slot.note(text.as_bytes(), &JsonKey::of(text.as_bytes()), &decoded);
            assert_eq!(slot.kept.is_some(), is_kept);
        }
        let other = br#"{"inputs":[],"x":1}"#;
        slot.note(other, &JsonKey::of(other), &decoded);
        let kept = slot.kept.as_ref().unwrap();
        assert!(kept.is(&JsonKey::of(br#"{"inputs":[]}"#)));
    }
}
