//! What the fuzz targets of HTTP do with their input.

use conch_engine::{Draft, Error, Regions};
use conch_memory::ByteView;

use super::chunked::{ChunkPiece, ChunkedDecoder};
use super::head::{self, BodyFraming, RecentHead};
use super::infer::decode::{DecodeBounds, InferRequest, JsonLimits};
use super::{infer, route};

const BODY_BYTES_MAX: u64 = 1 << 20;

/// A request as it arrives, in pieces of `piece_bytes`.
///
/// # Panics
/// If pieces make another request than the whole.
pub fn http_request(bytes: &[u8], piece_bytes: usize) {
    let piece_bytes = piece_bytes.max(1);
    let whole = head::find_end(bytes, 0).ok();
    let mut pieces = Some(None);
    let mut seen = 0;
    while seen < bytes.len() && pieces == Some(None) {
        let end = bytes.len().min(seen + piece_bytes);
        pieces = head::find_end(&bytes[..end], seen).ok();
        seen = end;
    }
    assert_eq!(pieces, whole);
    let Some(Some(length)) = whole else {
        return;
    };
    let (own, body) = bytes.split_at(length);
    let mut own = own.to_vec();
    head::normalize_version(&mut own);
    let outcome = head::parse(&own);
    // The second time it is kept, the third time it is there.
    let mut recent = RecentHead::default();
    for round in 0..3 {
        let again = format!("{:?}", recent.parse(&own));
        assert_eq!(again, format!("{outcome:?}"), "{round}");
    }
    let Ok(parsed) = outcome else {
        return;
    };
    let _ = route::route(parsed.path);
    assert!(parsed.find("no such header").is_none());
    let _ = parsed.find("authorization");
    if matches!(parsed.framing, BodyFraming::Chunked) {
        assert_eq!(chunks(body, piece_bytes), chunks(body, body.len().max(1)));
    }
}

/// The data of a chunked body, and whether it has ended; none if it is malformed.
fn chunks(body: &[u8], piece_bytes: usize) -> Option<(Vec<u8>, bool)> {
    let mut decoder = ChunkedDecoder::new(BODY_BYTES_MAX);
    let mut data = Vec::new();
    for mut piece in body.chunks(piece_bytes) {
        loop {
            match decoder.next(&mut piece).ok()? {
                ChunkPiece::Data(bytes) => data.extend_from_slice(bytes),
                ChunkPiece::More => break,
                ChunkPiece::Done => return Some((data, true)),
            }
        }
    }
    Some((data, false))
}

/// The body of an inference, of which the last `tail_bytes` are binary tensors.
///
/// # Panics
/// If a text that came before is decoded to something else.
pub fn json_infer(body: &[u8], tail_bytes: usize, strict_integers: bool) {
    let body = ByteView::copy_of(body);
    let json_length = body.len().saturating_sub(tail_bytes);
    let regions = Regions::default();
    let bounds = DecodeBounds {
        model_name: "model",
        limits: JsonLimits {
            input_bytes_max: BODY_BYTES_MAX,
            strict_integers,
        },
        regions: &regions,
    };
    let decoded = infer::decode::decode(&body, json_length, &bounds);
    let expected = described(decoded);
    // The second time it is kept, from the third time on it is there.
    for round in 0..4 {
        let cached = infer::decode::decode_cached(&body, json_length, &bounds);
        assert_eq!(described(cached), expected, "{round}");
    }
}

/// All that the engine and the answer get of a request.
fn described(decoded: Result<Box<InferRequest>, Error>) -> Result<String, Error> {
    let mut decoded = decoded?;
    let mut draft = Draft::default();
    decoded.move_to(&mut draft)?;
    let tensors = draft.inputs.iter().flat_map(|input| &input.chunks);
    let tensors: Vec<&[u8]> = tensors.map(ByteView::as_ref).collect();
    let text = format!("{draft:?} {tensors:?}");
    let outputs = draft.requested_outputs.iter();
    let outputs: Vec<String> = outputs.map(|name| (*name).to_owned()).collect();
    drop(draft);
    let forms = outputs.iter().map(|name| decoded.form_of(name));
    let forms: Vec<_> = forms.chain([decoded.form_of("")]).collect();
    Ok(format!("{text} {forms:?}"))
}
