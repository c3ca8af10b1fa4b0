//! Content-Encoding and Accept-Encoding of inference requests.

use std::rc::Rc;
use std::sync::Arc;

use conch_engine::Error;
use conch_memory::{Block, Budget, ByteView, Charge};

use super::answer::HttpResponse;
use super::connection::padding;
use crate::coding::{
    ContentCoding, INFLATE_IN_PLACE_BYTES, Inflater, deflate_into, packed_bytes_max,
};
use crate::shard::Shard;
use crate::shard::offload::INFLATED_PER_PACKED;

/// The compressed form that `accept_encoding` prefers; none for the plain one. As upstream reads
/// it: the first of the highest weight among those that it knows, blanks only in front of a name,
/// and what has no readable weight is passed over.
pub(super) fn preferred(accept_encoding: &str) -> Option<ContentCoding> {
    let mut preferred = None;
    if accept_encoding.is_empty() {
        return preferred;
    }
    let mut highest = 0.0;
    for encoding in accept_encoding.split(',') {
        let encoding = encoding.trim_start_matches(' ');
        let (name, weight) = match encoding.split_once(";q=") {
            Some((name, weight)) => (name, leading_number(weight)),
            None => (encoding, Some(1.0)),
        };
        let coding = match name {
            "identity" => None,
            name => match ContentCoding::of(name.as_bytes()) {
                Some(coding) => Some(coding),
                None => continue,
            },
        };
        if let Some(weight) = weight
            && weight > highest
        {
            highest = weight;
            preferred = coding;
        }
    }
    preferred
}

/// The number at the start of `text`, what follows it ignored; none if it does not fit.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let (number, _) =
        fast_float2::parse_partial::<f64, _>(text.strip_prefix('+').unwrap_or(text)).ok()?;
    let is_written_so = text.contains(['n', 'N']);
    (number.is_finite() || is_written_so).then_some(number)
}

impl HttpResponse {
    /// The same answer in a compressed form, if there is memory for that. The length of its JSON
    /// stays that of the plain one, as upstream counts it.
    pub(super) fn compressed(mut self, coding: ContentCoding) -> HttpResponse {
        let mut packed = Vec::new();
        let parts = self.parts.iter().map(AsRef::as_ref);
        let pieces = std::iter::once(&*self.body).chain(parts);
        if deflate_into(coding, pieces, &mut packed).is_err() {
            // Without memory for the compressed form the plain one is as good an answer.
            return self;
        }
        self.body = packed;
        self.parts.clear();
        self.encoding = Some(coding);
        self
    }
}

/// Members of one gzip body. Writers that work in parallel make one per 64 KiB or more; without a
/// bound a body of empty ones would be work without end.
const MEMBERS_MAX: usize = 64 << 10;
/// What beginning a member is like, in inflated bytes.
const MEMBER_BYTES: usize = 16 << 10;
/// The inflated body gets at most so many times the compressed one's bytes at first; more as they
/// come.
const FIRST_FACTOR: usize = 16;
/// Between two looks at the budget.
const SLICE_BYTES: usize = 64 << 10;

pub(super) fn too_large(input_bytes_max: u64) -> Error {
    Error::invalid(format!(
        "Decompressed data size exceeds the maximum allowed value of {input_bytes_max} bytes. Use \
         --http-max-input-size to increase the limit."
    ))
}

/// Inflates `body`, whose JSON is said to take `json_length` bytes. Small ones in place; what turns
/// out larger continues on the shard's offload thread.
///
/// # Errors
/// In upstream's words; UNAVAILABLE if the process has no memory left for it.
pub(super) async fn inflate(
    shard: &Rc<Shard>,
    budget: &Arc<Budget>,
    body: ByteView,
    json_length: Option<&str>,
) -> Result<ByteView, Error> {
    if body.is_empty() {
        return Err(Error::invalid("nothing to be decompressed"));
    }
    let input_bytes_max = shard.options.http_input_bytes_max;
    if body.len() as u64 > packed_bytes_max(input_bytes_max) {
        return Err(too_large(input_bytes_max));
    }
    let json_length = json_length
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    let start = padding(json_length);
    let is_small = body.len() <= INFLATE_IN_PLACE_BYTES;
    let cost_bytes = (body.len() as u64).saturating_mul(INFLATED_PER_PACKED);
    let first_bytes = first_bytes(body.as_ref(), input_bytes_max) + start;
    let first = shard.pool.try_take(first_bytes)?;
    let mut inflation = BodyInflater::new(body, first, start, budget, input_bytes_max);
    if is_small && inflation.run(INFLATE_IN_PLACE_BYTES)? {
        return Ok(inflation.finish());
    }
    shard
        .offload(cost_bytes, move || {
            inflation.run(usize::MAX)?;
            Ok(inflation.finish())
        })
        .await
}

/// Room for the inflated form of `packed`, as far as it can be told: gzip says at its end how much
/// it is, which is only believed within reason. A byte more than needed spares a look for more.
fn first_bytes(packed: &[u8], input_bytes_max: u64) -> usize {
    let promised = match (packed.first(), packed.last_chunk::<4>()) {
        (Some(0x1f), Some(length)) => u32::from_le_bytes(*length) as usize,
        _ => usize::MAX,
    };
    let bytes_max = usize::try_from(input_bytes_max).unwrap_or(usize::MAX - 1);
    promised
        .min(packed.len().saturating_mul(FIRST_FACTOR))
        .min(bytes_max)
        + 1
}

/// A body on its way from compressed to plain.
struct BodyInflater {
    packed: ByteView,
    at: usize,
    inflater: Inflater,
    member_count: usize,
    plain: Block,
    start: usize,
    plain_bytes_max: usize,
    input_bytes_max: u64,
}

impl BodyInflater {
    fn new(
        packed: ByteView,
        mut plain: Block,
        start: usize,
        budget: &Arc<Budget>,
        input_bytes_max: u64,
    ) -> BodyInflater {
        plain.extend_from_slice(
            [0; conch_memory::ALIGNMENT_BYTES]
                .get(..start)
                .unwrap_or(&[]),
        );
        plain.set_charge(Charge::empty(budget));
        BodyInflater {
            at: 0,
            inflater: Inflater::detect(packed.as_ref()),
            member_count: 1,
            packed,
            plain,
            start,
            plain_bytes_max: usize::try_from(input_bytes_max).unwrap_or(usize::MAX - (1 << 20)),
            input_bytes_max,
        }
    }

    /// Inflates until the end or until about `work_bytes` have come out; says whether that was the
    /// end.
    fn run(&mut self, work_bytes: usize) -> Result<bool, Error> {
        let mut done_bytes = 0;
        while done_bytes < work_bytes {
            let room = self.room()?;
            let (packed, plain) = (&self.packed, &mut self.plain);
            let input = packed.as_ref().get(self.at..).unwrap_or(&[]);
            let target = plain.spare_mut().get_mut(..room).unwrap_or_default();
            let step = self.inflater.step(input, target).map_err(|_| corrupt())?;
            self.at += step.read_count;
            plain.advance(step.written_count);
            done_bytes += step.written_count;
            if self.plain.len() - self.start > self.plain_bytes_max {
                return Err(too_large(self.input_bytes_max));
            }
            if step.has_ended {
                if !self.begin_member()? {
                    return Ok(true);
                }
                done_bytes += MEMBER_BYTES;
            } else if step.read_count == 0 && step.written_count == 0 {
                // There was room: it is the input that ends too early.
                return Err(corrupt());
            }
        }
        Ok(false)
    }

    /// A gzip body may have several members. What else follows a stream is ignored, as upstream
    /// ignores it.
    fn begin_member(&mut self) -> Result<bool, Error> {
        let rest = self.packed.as_ref().get(self.at..).unwrap_or(&[]);
        if self.inflater.coding != ContentCoding::Gzip || !rest.starts_with(&[0x1f, 0x8b]) {
            return Ok(false);
        }
        self.member_count += 1;
        if self.member_count > MEMBERS_MAX {
            return Err(Error::invalid(format!(
                "the compressed body has more than {MEMBERS_MAX} members"
            )));
        }
        self.inflater = Inflater::new(ContentCoding::Gzip);
        Ok(true)
    }

    /// Makes room, and charges it before anything is written there. One byte more than is allowed
    /// shows that there is more.
    fn room(&mut self) -> Result<usize, Error> {
        let length = self.plain.len();
        let whole_bytes_max = self.start + self.plain_bytes_max + 1;
        if length == self.plain.capacity() {
            self.plain.try_reserve((length * 2).min(whole_bytes_max))?;
        }
        let room = (self.plain.capacity().min(whole_bytes_max) - length).min(SLICE_BYTES);
        if let Some(charge) = self.plain.charge_mut() {
            charge.cover((length + room) as u64)?;
        }
        Ok(room)
    }

    fn finish(self) -> ByteView {
        let view = ByteView::from(self.plain);
        let end = view.len();
        view.slice(self.start, end).unwrap_or_else(ByteView::empty)
    }
}

fn corrupt() -> Error {
    Error::internal("encountered inconsistent stream state during decompression")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_highest_weight_is_preferred() {
        let (gzip, deflate) = (Some(ContentCoding::Gzip), Some(ContentCoding::Deflate));
        for (text, expected) in [
            ("", None),
            ("gzip", gzip),
            ("deflate", deflate),
            ("gzip, deflate", gzip),
            ("deflate,gzip", deflate),
            ("gzip;q=0.5, deflate", deflate),
            ("gzip;q=0.5,deflate;q=0.5", gzip),
            ("gzip;q=0.5,identity", None),
            ("identity, gzip", None),
            ("gzip;q=0", None),
            ("gzip;q=-1", None),
            ("gzip;q=0,deflate;q=0.001", deflate),
            ("gzip;q=x,deflate;q=0.2", deflate),
            ("gzip;q=,deflate;q=0.2", deflate),
            ("gzip;q=0.5x", gzip),
            ("gzip;q=+.5", gzip),
            ("gzip;q=1e400,deflate;q=0.1", deflate),
            ("gzip;q=inf,deflate", gzip),
            ("gzip;q=nan", None),
            ("gzip ;q=1", None),
            ("gzip; q=1", None),
            (";q=1", None),
            ("*", None),
            ("GZIP", None),
            ("br, zstd;q=0.9,gzip;q=0.1", gzip),
            ("   gzip", gzip),
            ("gzip ", None),
            (",,gzip,", gzip),
        ] {
            assert_eq!(preferred(text), expected, "{text:?}");
        }
    }

    fn packed(coding: ContentCoding, plain: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        deflate_into(coding, [plain], &mut packed).unwrap();
        packed
    }

    /// The outcome, and what the budget held at the most.
    fn run(
        body: &[u8],
        start: usize,
        input_bytes_max: u64,
        budget: &Arc<Budget>,
        work_bytes: usize,
    ) -> Result<Vec<u8>, String> {
        let run = || {
            let first = Block::with_capacity(first_bytes(body, input_bytes_max) + start);
            let mut inflation = BodyInflater::new(
                ByteView::copy_of(body),
                first,
                start,
                budget,
                input_bytes_max,
            );
            while !inflation.run(work_bytes)? {}
            Ok(inflation.finish())
        };
        run()
            .map(|view: ByteView| {
                assert_eq!(
                    (view.as_ptr() as usize + conch_memory::ALIGNMENT_BYTES - start)
                        % conch_memory::ALIGNMENT_BYTES,
                    0
                );
                view.as_ref().to_vec()
            })
            .map_err(|error: Error| error.message.into_owned())
    }

    #[test]
    fn bodies() {
        let budget = Budget::new(1 << 30);
        let plain: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
        let limit = plain.len() as u64;
        let gzip = packed(ContentCoding::Gzip, &plain);
        let zlib = packed(ContentCoding::Deflate, &plain);
        let halves = [
            packed(ContentCoding::Gzip, &plain[..777]),
            packed(ContentCoding::Gzip, &[]),
            packed(ContentCoding::Gzip, &plain[777..]),
        ]
        .concat();
        let corrupt = Err("encountered inconsistent stream state during decompression".to_owned());
        let large = Err(too_large(limit - 1).message.into_owned());
        for work_bytes in [1, 5000, usize::MAX] {
            for start in [0, 1, 63] {
                let check = |body: &[u8], limit, expected: &Result<Vec<u8>, String>| {
                    assert_eq!(&run(body, start, limit, &budget, work_bytes), expected);
                };
                for body in [&gzip, &zlib, &halves] {
                    check(body, limit, &Ok(plain.clone()));
                    check(body, limit + 1, &Ok(plain.clone()));
                    check(body, limit - 1, &large);
                    check(&[&body[..], b"\0rest"].concat(), limit, &Ok(plain.clone()));
                    check(&body[..body.len() - 1], limit, &corrupt);
                    check(&body[..body.len() / 2], limit, &corrupt);
                    check(&body[1..], limit, &corrupt);
                }
                check(&plain, limit, &corrupt);
            }
        }
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn bombs_stop_at_the_limit_and_at_the_budget() {
        let bomb = packed(ContentCoding::Gzip, &vec![0; 64 << 20]);
        assert!(bomb.len() < 70_000);
        let budget = Budget::new(10 << 20);
        assert_eq!(
            run(&bomb, 0, 1 << 20, &budget, usize::MAX),
            Err(too_large(1 << 20).message.into_owned())
        );
        let message = run(&bomb, 0, 1 << 30, &budget, usize::MAX).unwrap_err();
        assert!(message.contains("no memory left"), "{message}");
        let empty = packed(ContentCoding::Gzip, &[]);
        assert_eq!(
            run(&empty.repeat(MEMBERS_MAX), 0, 1, &budget, usize::MAX),
            Ok(Vec::new())
        );
        let message = run(&empty.repeat(MEMBERS_MAX + 1), 0, 1, &budget, usize::MAX).unwrap_err();
        assert_eq!(message, "the compressed body has more than 65536 members");
        assert_eq!(budget.used_bytes(), 0);
    }
}
