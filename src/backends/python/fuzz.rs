//! Seeded fuzzing of all that reads what a stub wrote: nothing panics, nothing outside of the
//! segments is touched, and what is copied has a bound.

use std::panic::{RefUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use conch_backend_sdk::DeviceAccess;
use conch_python_ipc::wire::{self, Correlation, MessageWriter, TensorPlace};
use conch_python_ipc::{
    ALIGNMENT_BYTES, BlockHeader, CONTROL_BYTES, DevicePlace, MESSAGE_BYTES_MAX, MessageSlot,
    OffsetRing, SharedSegment,
};

use crate::call_text::CallText;
use crate::child_request::InferMessage;
use crate::decode::{
    CommandReply, OutputPlaces, ResponseMessage, ResponseRow, SendMessage, check_sum, reply_rows,
};
use crate::process::StubProcess;
use crate::shared_tensor;

/// Texts that together use every construct of messages in JSON.
const TEXTS: [&str; 6] = [
    r#"{"is_ready":true,"config":{"name":"m","max_batch_size":8}}"#,
    r#"{"e":[3,"an error of the stub's"]}"#,
    r#"{"k":"log","l":2,"f":"model.py","n":12,"m":"a line \u00e9"}"#,
    r#"{"k":"load","m":"m","c":"{}","i":[["file:1/model.py",6,[3],0,3]]}"#,
    r#"{"k":"new_metric","h":1,"labels":{"a":"b"},"buckets":[0.1,1e300]}"#,
    r#"{"k":"is_ready_reply","n":4,"v":false,"m":"why"}"#,
];

/// Numbers at the edges of what lengths, offsets and counts may be.
const EDGES: [u64; 12] = [
    0,
    1,
    63,
    64,
    CONTROL_BYTES - 64,
    CONTROL_BYTES,
    SEGMENT_BYTES - 64,
    SEGMENT_BYTES,
    MESSAGE_BYTES_MAX + 1,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

const SEGMENT_BYTES: u64 = 1 << 20;

/// Seeds that once failed, of each loop.
const KEPT_TEXT: &[u64] = &[];
const KEPT_MESSAGES: &[u64] = &[];
const KEPT_BLOCKS: &[u64] = &[];
const KEPT_CONTROL: &[u64] = &[];

#[test]
fn no_text_panics() {
    run("CONCH_PYTHON_TEXT_SEED", KEPT_TEXT, 20_000, |random| {
        let mut text = TEXTS[random.below(TEXTS.len())].as_bytes().to_vec();
        random.mutate(&mut text);
        let _ = CommandReply::parse(&text);
        let _ = serde_json::from_slice::<CallText>(&text);
    });
}

/// A reply, a response that is sent, and a call of another model.
fn messages() -> [Vec<u8>; 3] {
    let mut reply = MessageWriter::new(wire::REPLY);
    reply.u32(REQUESTS as u32);
    reply.byte(wire::ROW_RESPONSE);
    write_response(&mut reply);
    reply.byte(wire::ROW_LATER);
    reply.byte(wire::ROW_AGAIN);
    reply.byte(wire::ROW_RESPONSE);
    reply.byte(1);
    reply.u32(7);
    reply.text("gone");
    let mut send = MessageWriter::new(wire::SEND);
    send.u64(7);
    send.u32(1);
    send.byte(1);
    write_response(&mut send);
    let mut infer = MessageWriter::new(wire::INFER);
    infer.u64(2);
    infer.text("other");
    infer.i64(-1);
    infer.text("id");
    infer.correlation(Correlation::Text("five"));
    infer.u32(0);
    for number in [0, 0, 3] {
        infer.u64(number);
    }
    infer.text(r#"{"a":[1],"b":"x"}"#);
    infer.u32(1);
    infer.text("OUT");
    infer.u32(1);
    infer.tensor("IN", 11, &[2, 2], TensorPlace::Behind(0), 16);
    [reply, send, infer].map(|message| message.bytes().to_vec())
}

/// Requests that the reply above answers.
const REQUESTS: usize = 4;

fn write_response(message: &mut MessageWriter) {
    message.byte(0);
    message.text(r#"{"a":1,"b":"x","c":1.5}"#);
    message.u32(4);
    message.tensor("OUT", 11, &[1, 2], TensorPlace::Behind(0), 8);
    message.tensor("SAME", 11, &[4], TensorPlace::Receivers(CONTROL_BYTES), 16);
    let place = TensorPlace::Senders {
        block: CONTROL_BYTES,
        offset: 0,
    };
    message.tensor("B", 13, &[-1], place, 9);
    let place = [7; DevicePlace::BYTES];
    message.tensor("GPU", 11, &[4], TensorPlace::Device(&place), 16);
}

#[test]
fn no_message_leads_outside() {
    let stubs = SharedSegment::create("fuzz stub", SEGMENT_BYTES).expect("memory");
    let ours = SharedSegment::create("fuzz", SEGMENT_BYTES).expect("memory");
    let seeds = messages();
    run(
        "CONCH_PYTHON_MESSAGE_SEED",
        KEPT_MESSAGES,
        20_000,
        |random| {
            let places = OutputPlaces {
                segment: &stubs,
                tensors_at: random.edge(),
                inputs: Some((&ours, CONTROL_BYTES..CONTROL_BYTES + 4096)),
                lender: None,
                devices: None,
            };
            let mut message = seeds[random.below(seeds.len())].clone();
            random.mutate_bytes(&mut message);
            for row in reply_rows(&message, REQUESTS).unwrap_or_default() {
                if let ResponseRow::Response(response) = row {
                    read_outputs(&response, &places);
                }
            }
            if let Ok(sent) = SendMessage::read(&message)
                && let Some(response) = sent.response
            {
                read_outputs(&response, &places);
            }
            if let Ok(call) = InferMessage::read(&message) {
                for row in &call.inputs {
                    if let TensorPlace::Behind(offset) = row.place {
                        let at = places.tensors_at.saturating_add(offset);
                        shared_tensor::bytes(&stubs, at, row.bytes);
                    }
                }
            }
        },
    );
}

/// Looks for the bytes of outputs, as what copies them does.
fn read_outputs(response: &ResponseMessage<'_>, places: &OutputPlaces<'_>) {
    let ResponseMessage::Outputs { outputs, .. } = response else {
        return;
    };
    let is_bounded = check_sum(outputs.iter().map(|row| row.bytes), places.segment).is_ok();
    let found = outputs.iter().filter_map(|row| places.bytes(row));
    let sum: u64 = found.map(|bytes| bytes.len() as u64).sum();
    assert!(!is_bounded || sum <= SEGMENT_BYTES);
}

/// The stub writes anything into its blocks while they are read and answered.
#[test]
fn no_block_leads_outside() {
    run("CONCH_PYTHON_BLOCK_SEED", KEPT_BLOCKS, 300, |random| {
        let process =
            StubProcess::new(SEGMENT_BYTES, Arc::new(()), DeviceAccess::default()).expect("memory");
        for _ in 0..40 {
            random.scribble(&process.responses);
            random.scribble(process.blocks.segment());
            let offset = random.edge();
            // Where a message may be: the length is what is wild.
            if let Some(header) = BlockHeader::at(&process.responses, offset) {
                header.begin(random.edge());
            }
            match process.message(offset) {
                Some(message) => {
                    assert!(message.text.len() as u64 <= MESSAGE_BYTES_MAX);
                    assert!(message.tensors_at >= offset);
                    assert!(message.tensors_at.is_multiple_of(ALIGNMENT_BYTES));
                    if random.below(2) == 0 {
                        let reply = process.write(b"{}", 0).map_or(0, |(block, _)| block);
                        message.answer(reply);
                    }
                }
                None => process.answer_later(offset, 0),
            }
            process.trim();
        }
        let used = process.blocks.usage().used_bytes;
        assert!(used <= SEGMENT_BYTES, "{used}");
    });
}

/// The stub writes anything into the words of queues and slots.
#[test]
fn no_word_of_the_control_area_hangs_or_leads_outside() {
    run("CONCH_PYTHON_WORD_SEED", KEPT_CONTROL, 300, |random| {
        let process = Arc::new(
            StubProcess::new(SEGMENT_BYTES, Arc::new(()), DeviceAccess::default()).expect("memory"),
        );
        for _ in 0..40 {
            random.scribble(&process.responses);
            random.scribble(process.blocks.segment());
            let ring = OffsetRing::of(&process.responses);
            for _ in 0..=OffsetRing::CAPACITY {
                match ring.pop() {
                    Ok(Some(offset)) => drop(process.message(offset)),
                    Ok(None) | Err(_) => break,
                }
            }
            ring.wait(Some(Duration::ZERO), || false);
        }
        // A reply before the command, or none: the process is dead and nobody waits.
        process.has_ended(None);
        let (offset, _) = process.write(b"{}", 0).expect("room");
        let last = random.edge() as u32;
        let slot = MessageSlot::of(&process.responses);
        slot.wait(last, None, || process.is_dead());
        let _ = process.command(offset, None);
    });
}

/// Runs `body` on the inputs of kept seeds, and then on many more, from time's seed on; or on that
/// of the variable alone. A seed that fails is printed.
fn run(variable: &str, kept: &[u64], count: u64, body: impl Fn(&mut Random) + RefUnwindSafe) {
    let given = std::env::var(variable)
        .ok()
        .and_then(|seed| seed.parse().ok());
    let now = || {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(1, |elapsed| elapsed.as_nanos() as u64)
    };
    let (kept, first, count) =
        given.map_or_else(|| (kept, now(), count), |seed| (&[][..], seed, 1));
    for seed in kept
        .iter()
        .copied()
        .chain(first..first.saturating_add(count))
    {
        let result =
            catch_unwind(|| body(&mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)));
        assert!(result.is_ok(), "failed; repeat with {variable}={seed}");
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// A number that is likely to be at an edge.
    fn edge(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next(),
            1 => self.next() % SEGMENT_BYTES / ALIGNMENT_BYTES * ALIGNMENT_BYTES,
            _ => EDGES[self.below(EDGES.len())],
        }
    }

    /// Changes, removes and repeats some bytes, or puts a number of an edge among them.
    fn mutate(&mut self, text: &mut Vec<u8>) {
        for _ in 0..=self.below(6) {
            let at = self.below(text.len() + 1);
            match self.below(5) {
                0 if at < text.len() => text[at] = self.next() as u8,
                1 if at < text.len() => {
                    text.remove(at);
                }
                2 => text.insert(at, b"{}[]:,\"\\-.e0129nult\xFF\0"[self.below(21)]),
                3 => text.truncate(text.len() - self.below(4).min(text.len())),
                _ => {
                    let number = self.edge().to_string().into_bytes();
                    // In the place of a number that is there, if there is one behind.
                    let digits = |byte: &u8| byte.is_ascii_digit();
                    let begin = text[at..].iter().position(digits).map_or(at, |it| at + it);
                    let len = text[begin..].iter().take_while(|it| digits(it)).count();
                    text.splice(begin..begin + len, number);
                }
            }
        }
    }

    /// Changes bits, puts a number of an edge over some bytes, cuts off or repeats.
    fn mutate_bytes(&mut self, message: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(message.len().max(1));
            let number = self.edge().to_le_bytes();
            match self.below(4) {
                0 if at < message.len() => message[at] ^= 1 << self.below(8),
                1 => {
                    let end = message.len().min(at + 1 + self.below(8));
                    message[at..end].copy_from_slice(&number[..end - at]);
                }
                2 => message.truncate(at),
                _ => {
                    let piece = message[at..].to_vec();
                    message.extend_from_slice(&piece);
                    message.truncate(4096);
                }
            }
        }
    }

    /// Writes some words anywhere in a segment, most of them where its sides look.
    fn scribble(&mut self, segment: &SharedSegment) {
        for _ in 0..self.below(30) {
            let at = match self.below(3) {
                0 => self.next() % SEGMENT_BYTES / 4 * 4,
                1 => 4096 + self.next() % 8 * 64,
                _ => self.next() % (CONTROL_BYTES / 4) * 4,
            };
            let word = self.edge();
            segment.write(at, &word.to_le_bytes());
        }
    }
}
