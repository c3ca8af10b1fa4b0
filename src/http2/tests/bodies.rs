//! Random bodies, queued and received into readers.

use super::*;
use crate::connection::limits::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use crate::frame::{DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, WINDOW_UPDATE};

/// A call's frames, with whatever a client may do wrong or does seldom.
fn random_call(random: &mut Random, id: u32) -> VecDeque<Vec<u8>> {
    let length = random.pick(&[10, 5000, 70_000, 300_000]);
    let content_bytes = random.below(length);
    let mut whole = message(&random.bytes(content_bytes));
    if random.is_one_in(10) {
        whole.extend(random.bytes(10));
    }
    if random.is_one_in(10) {
        let kept = random.below(whole.len());
        whole.truncate(kept + 1);
    }
    let frame_bytes = random.pick(&[100, 9000, 16_384, 16_384, 65_536]);
    let is_padded = random.is_one_in(8);
    let mut block = usual_fields();
    if random.is_one_in(4) {
        let text = (whole.len() + random.below(10) / 9).to_string();
        block.extend([0x0f, 0x0d, text.len() as u8]);
        block.extend(text.as_bytes());
    }
    let mut frames = VecDeque::from([frame(HEADERS, END_HEADERS, id, &block)]);
    let mut rest = &whole[..];
    while !rest.is_empty() {
        let length = match random.is_one_in(5) {
            true => random.below(frame_bytes) + 1,
            false => frame_bytes,
        };
        let (part, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        let flags = match rest.is_empty() {
            true => random.below(2) as u8,
            false => 0,
        };
        frames.push_back(
            match is_padded && part.len() < 65_000 && random.is_one_in(3) {
                true => frame(
                    DATA,
                    PADDED | flags,
                    id,
                    &[&[7][..], part, &[0; 7]].concat(),
                ),
                false => frame(DATA, flags, id, part),
            },
        );
        match random.below(200) {
            0 => frames.push_back(frame(DATA, 0, id, &[])),
            1 => frames.push_back(frame(DATA, END_STREAM, id, &[])),
            2 => frames.push_back(frame(RST_STREAM, 0, id, &[0, 0, 0, 8])),
            3 => frames.push_back(frame(HEADERS, 5, id, &[])),
            4 => frames.push_back(frame(PING, 0, 0, &[0; 8])),
            5 => frames.push_back(frame(WINDOW_UPDATE, 0, id, &[0, 0, 0, 100])),
            6 => frames.push_back(frame(77, 3, id, &[0; 300])),
            _ => {}
        }
    }
    frames
}

/// Frames of some calls, as one client sends them.
fn random_wire(random: &mut Random) -> Vec<u8> {
    let count = 1 + random.below(4);
    let mut calls: Vec<_> = (0..count)
        .map(|index| random_call(random, 2 * index as u32 + 1))
        .collect();
    let mut wire = Vec::new();
    // StreamTable are opened in order.
    let mut open = 1;
    while !calls.iter().all(VecDeque::is_empty) {
        let index = random.below(open);
        // Several frames of one, or one of each.
        for _ in 0..1 + random.below(6) {
            wire.extend(calls[index].pop_front().unwrap_or_default());
        }
        let has_begun = calls[open - 1]
            .front()
            .is_none_or(|frame| frame[3] != HEADERS)
            || calls[open - 1].is_empty();
        open = (open + usize::from(has_begun)).min(count);
    }
    wire
}

/// Feeds `wire` in random pieces.
fn feed(server: &mut TestServer, wire: &[u8], random: &mut Random) {
    let cut_max = random.pick(&[10, 2000, 20_000, 400_000]);
    server.receive_max = random.pick(&[1000, 16 << 10, 300 << 10]);
    let mut rest = wire;
    while !rest.is_empty() {
        let length = match cut_max {
            // Byte by byte it takes too long for all of it.
            10 if !random.is_one_in(50) => random.below(10) + 1,
            10 => 100_000,
            _ => random.below(cut_max) + 1,
        };
        let (piece, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        server.arrive(piece);
    }
}

/// Every byte is in a window, in a queue or on account.
fn check_account(server: &mut TestServer) {
    let http2 = &mut server.http2;
    let mut queued = 0;
    for (id, stream) in http2.streams.iter_mut() {
        queued += stream.queued_bytes as i64;
        if stream.reset.is_none() {
            let account =
                stream.receive_window + stream.queued_bytes as i64 + stream.taken_bytes as i64;
            assert!(account <= STREAM_WINDOW_BYTES, "{id}: {account}");
        }
    }
    let account = http2.receive_window + http2.taken_bytes as i64 + queued;
    // Less what has not come of the current frame.
    let missing = CONNECTION_WINDOW_BYTES - account;
    assert!((0..=65_536).contains(&missing), "{missing}");
}

#[test]
fn bodies_are_the_same_queued_and_received_into_readers() {
    let (mut direct_bytes, mut over) = (0, 0);
    let seeds = seeds(&[], 400);
    let seed_count = seeds.len();
    for seed in seeds {
        let wire = random_wire(&mut Random(seed));
        let mut outcomes = Vec::new();
        for attaches_readers in [false, true] {
            let mut server = TestServer::greeted(attaches_readers);
            feed(&mut server, &wire, &mut Random(seed + 1));
            if server.error.is_none() {
                check_account(&mut server);
            }
            server.take_back_readers();
            direct_bytes += server.direct_bytes;
            over += usize::from(server.error.is_some());
            let seen: BTreeMap<u32, (CallState, Vec<u8>)> = server
                .calls
                .iter()
                // What a reset call has seen of its body depends on when it looked.
                .map(|(id, call)| match call.state {
                    CallState::Reset => (*id, (call.state, Vec::new())),
                    state => (*id, (state, call.body())),
                })
                .collect();
            outcomes.push((server.error, seen, reasons(&server.take_sent())));
        }
        let [queued, direct] = &outcomes[..] else {
            unreachable!("two runs");
        };
        assert_eq!(queued.0, direct.0, "seed {seed}");
        assert_eq!(queued.2, direct.2, "seed {seed}");
        let brief = |(state, body): &(CallState, Vec<u8>)| (*state, body.len());
        // Whether a call has seen the end of its body before a reset depends on when it looked.
        let may_differ = |id: &u32| {
            [&queued.1, &direct.1].iter().any(|seen| {
                seen.get(id)
                    .is_none_or(|(state, _)| *state == CallState::Reset)
            }) || queued.0.is_some()
        };
        let mut ids = queued.1.keys();
        let same = ids.all(|id| queued.1.get(id) == direct.1.get(id) || may_differ(id));
        let lengths = |seen: &BTreeMap<u32, _>| seen.values().map(brief).collect::<Vec<_>>();
        assert!(
            same,
            "seed {seed}: {:?} {:?}",
            lengths(&queued.1),
            lengths(&direct.1)
        );
    }
    if seed_count > 1 {
        assert!(direct_bytes > 10_000_000, "{direct_bytes}");
        assert!(over < seed_count, "{over}");
    }
}

/// Sends bodies as far as the windows go, `burst` bytes at a time.
fn send_within_windows(attaches_readers: bool, frame_bytes: usize, burst: usize) {
    let mut server = TestServer::greeted(attaches_readers);
    let mut connection = CONNECTION_WINDOW_BYTES as usize;
    let content = Random(1).bytes(3 << 20);
    let whole = message(&content);
    for id in (1..).step_by(2).take(10) {
        server.arrive(&frame(HEADERS, END_HEADERS, id, &usual_fields()));
        let mut window = STREAM_WINDOW_BYTES as usize;
        let mut rest = whole.chunks(frame_bytes).peekable();
        while rest.peek().is_some() {
            let mut bytes = Vec::new();
            while let Some(part) =
                rest.next_if(|part| part.len() <= window.min(connection) && bytes.len() < burst)
            {
                window -= part.len();
                connection -= part.len();
                let flags = if rest.peek().is_none() { END_STREAM } else { 0 };
                bytes.extend(frame(DATA, flags, id, part));
            }
            assert!(!bytes.is_empty(), "starved: {window} {connection}");
            server.arrive(&bytes);
            for (head, payload) in server.take_sent() {
                assert_eq!(head.kind, WINDOW_UPDATE);
                let opened = u32::from_be_bytes(*payload.first_chunk().expect("4 bytes")) as usize;
                match head.stream {
                    0 => connection += opened,
                    own if own == id => window += opened,
                    _ => {}
                }
            }
            assert!(window <= STREAM_WINDOW_BYTES as usize);
            assert!(connection <= CONNECTION_WINDOW_BYTES as usize);
        }
        let call = &server.calls[&id];
        assert!(call.state == CallState::Ended && call.body() == whole);
    }
    assert!(
        connection >= CONNECTION_WINDOW_BYTES as usize / 3,
        "{connection}"
    );
    check_account(&mut server);
}

#[test]
fn a_client_that_keeps_to_its_windows_never_starves() {
    for frame_bytes in [16_384, 65_536] {
        for burst in [1, 200_000, usize::MAX] {
            for attaches_readers in [true, false] {
                send_within_windows(attaches_readers, frame_bytes, burst);
            }
        }
    }
}

/// Large frames of several streams by turns are received where they belong, without a copy.
#[test]
fn streams_that_take_turns_are_expected() {
    let mut server = TestServer::greeted(true);
    server.receive_max = usize::MAX;
    let content = Random(2).bytes(600_000);
    let whole = message(&content);
    let ids = [1, 3, 5, 7];
    for id in ids {
        server.arrive(&frame(HEADERS, END_HEADERS, id, &usual_fields()));
        server.arrive(&frame(DATA, 0, id, &whole[..16_384]));
    }
    let before = server.direct_bytes;
    let mut wire = Vec::new();
    for part in whole[16_384..].chunks(16_384) {
        ids.iter()
            .for_each(|id| wire.extend(frame(DATA, 0, *id, part)));
    }
    server.arrive(&wire);
    let direct = server.direct_bytes - before;
    assert!(direct * 100 > wire.len() * 95, "{direct} of {}", wire.len());
    for id in ids {
        assert!(server.calls[&id].body() == whole);
    }
}
