//! What clients may send, cut in all kinds of places.

use super::*;

#[test]
fn a_large_tensor_takes_few_receives_and_passes_h2_by() {
    let tensor = noise(1, 600_000);
    let frames = [
        vec![headers(1)],
        data(1, &message(&[&tensor]), 16_384, END_STREAM),
    ];
    let mut counts = Vec::new();
    for is_direct in [true, false] {
        let mut server = Server::start(is_direct);
        server.link.borrow_mut().script.receive_count = 0;
        server.arrive(&frames.concat().concat());
        assert_eq!(server.outcomes.borrow()[&1], Ok(vec![tensor.clone()]));
        counts.push(server.link.borrow().script.receive_count);
        let routed = server.incoming.borrow().sinks.routed_bytes();
        assert_eq!(routed > 580_000, is_direct, "{routed}");
    }
    assert!(counts[0] <= 6 && counts[1] > 60, "{counts:?}");
}

#[test]
fn large_tensors_that_take_turns_take_few_receives() {
    let tensors: Vec<Vec<u8>> = (1..4).map(|seed| noise(seed, 600_000)).collect();
    let streams = [1, 3, 5];
    let frames = streams.map(|stream| {
        let tensor = &tensors[stream as usize / 2];
        data(stream, &message(&[tensor]), 16_384, END_STREAM)
    });
    let mut counts = Vec::new();
    for stream_count in 1..4 {
        let mut wire: Vec<Vec<u8>> = streams.map(headers).into();
        wire.truncate(stream_count);
        let frames = &frames[..stream_count];
        wire.extend(
            (0..frames[0].len()).flat_map(|index| frames.iter().map(move |own| own[index].clone())),
        );
        let mut server = Server::start(true);
        server.link.borrow_mut().script.receive_count = 0;
        server.arrive(&wire.concat());
        let outcomes = server.outcomes.borrow();
        assert!(
            (0..stream_count)
                .all(|index| outcomes[&streams[index]] == Ok(vec![tensors[index].clone()]))
        );
        counts.push(server.link.borrow().script.receive_count);
    }
    assert!(counts[2] <= 12, "{counts:?}");
}

/// Serves `frames`, which arrive in pieces of `cut` bytes.
fn serve(is_direct: bool, frames: &[Vec<u8>], cut: usize) -> Server {
    let mut server = Server::start(is_direct);
    let wire = frames.concat();
    for piece in wire.chunks(cut.min(wire.len())) {
        server.arrive(piece);
    }
    server
}

/// Serves `frames` in all kinds of pieces, and says what the calls saw; the same without sinks.
fn served(frames: &[Vec<u8>]) -> BTreeMap<u32, Outcome> {
    let plain = serve(false, frames, WHOLE).outcomes.take();
    for cut in [9, 10, 1000, 8192, 16_393, 70_001, WHOLE] {
        let mut server = serve(true, frames, cut);
        let outcomes = server.outcomes.take();
        assert!(
            outcomes == plain,
            "cut {cut}: {:?} {:?}",
            brief(&outcomes),
            brief(&plain)
        );
        assert!(server.incoming.borrow().sinks.is_empty() || outcomes.is_empty());
        check_account(&mut server);
    }
    plain
}

/// A message of two large tensors in frames as clients send them, and with other frames in between.
fn whole_messages(whole: &[u8]) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let (first, second) = whole.split_at(100_000);
    let (third, fourth) = second.split_at(100_000);
    let plain = |flags| data(1, whole, 16_384, flags);
    let around = |between: Vec<Vec<u8>>| {
        let (first, second) = (
            data(1, first, 16_384, 0),
            data(1, second, 16_384, END_STREAM),
        );
        [first, between, second].concat()
    };
    let end = frame(DATA, END_STREAM, 1, &[]);
    let updates = vec![window_update(1, 5).to_vec(), window_update(0, 5).to_vec()];
    let paddings = third
        .chunks(10_000)
        .map(|part| padded(1, part, 9))
        .collect();
    let with_padding = [
        data(1, first, 16_384, 0),
        paddings,
        data(1, fourth, 16_384, END_STREAM),
    ];
    vec![
        ("the last frame ends the stream", plain(END_STREAM)),
        ("nothing ends it", plain(0)),
        ("an empty frame ends it", [plain(0), vec![end]].concat()),
        ("large frames", data(1, whole, 65_536, END_STREAM)),
        ("small frames", data(1, whole, 700, END_STREAM)),
        ("a ping", around(vec![frame(PING, 0, 0, &PING_BYTES)])),
        ("an empty frame", around(vec![frame(DATA, 0, 1, &[])])),
        ("window updates", around(updates)),
        (
            "a frame of no known kind",
            around(vec![frame(99, 0, 1, &[1; 20_000])]),
        ),
        ("padded frames", with_padding.concat()),
    ]
}

/// The same where something ends it before its time, and how the call fails.
fn broken_messages(whole: &[u8]) -> Vec<(&'static str, Vec<Vec<u8>>, &'static str)> {
    let first = || data(1, &whole[..100_000], 16_384, 0);
    let then = |last: Vec<u8>| [first(), vec![last]].concat();
    let ended = data(1, &whole[..100_000], 16_384, END_STREAM);
    let surplus = data(1, &[whole, b"more"].concat(), 16_384, END_STREAM);
    vec![
        ("the end in the middle", ended, "cut off"),
        (
            "an empty frame in the middle",
            then(frame(DATA, END_STREAM, 1, &[])),
            "cut off",
        ),
        (
            "trailers in the middle",
            then(frame(HEADERS, 5, 1, &[])),
            "cut off",
        ),
        (
            "a reset",
            then(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
            "stream",
        ),
        ("surplus bytes", surplus, "surplus"),
    ]
}

#[test]
fn every_cut_of_every_sequence_is_the_same_to_calls() {
    let large = vec![noise(1, 200_000), noise(2, 90_000)];
    let whole = message(&large);
    let other = noise(3, 150_000);
    let good = whole_messages(&whole).into_iter();
    let good = good.map(|(name, frames)| (name, frames, Ok(large.clone())));
    let bad = broken_messages(&whole).into_iter();
    let bad = bad.map(|(name, frames, words)| (name, frames, Err(words.to_owned())));
    for (name, frames, expected) in good.chain(bad) {
        let frames = [vec![headers(1)], frames].concat();
        let seen = served(&frames);
        assert!(seen[&1] == expected, "{name}: {:?}", brief(&seen));
        // Another call beside it, frame by frame.
        let beside = data(3, &message(&[&other]), 16_384, END_STREAM);
        let beside = [vec![headers(3)], beside].concat();
        let mut mixed = Vec::new();
        for index in 0..frames.len().max(beside.len()) {
            mixed.extend(frames.get(index).cloned());
            mixed.extend(beside.get(index).cloned());
        }
        let seen = served(&mixed);
        assert!(seen[&1] == expected, "{name}: {:?}", brief(&seen));
        assert!(
            seen[&3] == Ok(vec![other.clone()]),
            "{name}: {:?}",
            brief(&seen)
        );
    }
}

#[test]
fn a_call_that_ends_within_a_frame_leaves_the_rest_to_nobody() {
    let whole = message(&[noise(1, 300_000)]);
    let other = noise(3, 150_000);
    let wire = [headers(1), data(1, &whole, 16_384, END_STREAM).concat()].concat();
    // Into a head, behind it, into a payload, between two frames.
    for end in [
        50_000,
        2 * 16_393 + 12 + 4,
        2 * 16_393 + 12 + 9,
        3 * 16_393 + 12,
    ] {
        for cut in [1000, WHOLE] {
            let mut server = Server::start(true);
            let (before, after) = wire.split_at(end);
            for piece in before.chunks(cut.min(before.len())) {
                server.arrive(piece);
            }
            assert!(!server.incoming.borrow().sinks.is_empty());
            server.stop(1);
            assert!(server.incoming.borrow().sinks.is_empty());
            let rest = [
                after,
                &headers(3),
                &data(3, &message(&[&other]), 16_384, END_STREAM).concat(),
            ];
            let rest = rest.concat();
            for piece in rest.chunks(cut.min(rest.len())) {
                server.arrive(piece);
            }
            let outcomes = server.outcomes.borrow().clone();
            assert_eq!(outcomes[&1], Err("stopped".to_owned()));
            assert!(
                outcomes[&3] == Ok(vec![other.clone()]),
                "{end} {:?}",
                brief(&outcomes)
            );
            assert!(!server.is_over);
            check_account(&mut server);
            let resets = server.sent(RST_STREAM);
            assert_eq!(resets.first().map(|reset| reset.0), Some(1));
        }
    }
}

#[test]
fn a_budget_without_room_ends_the_call_alone() {
    let mut server = Server::start(true);
    server.budget = Budget::new(256 << 10);
    let frames = data(1, &message(&[noise(1, 600_000)]), 16_384, END_STREAM);
    server.arrive(&[headers(1), frames.concat()].concat());
    let outcome = server.outcomes.borrow()[&1].clone();
    assert!(
        outcome
            .clone()
            .is_err_and(|error| error.contains("Exhausted")),
        "{outcome:?}"
    );
    assert!(!server.credited.contains_key(&1), "its stream is reset");
    let small = noise(3, 100_000);
    let frames = data(3, &message(&[&small]), 16_384, END_STREAM);
    server.arrive(&[headers(3), frames.concat()].concat());
    assert!(server.outcomes.borrow()[&3] == Ok(vec![small]));
    assert_eq!(server.budget.used_bytes(), 0);
    check_account(&mut server);
}

/// Memory pressure ends connections that hold much and move little: room that is charged ahead is
/// not to hide them.
#[test]
fn a_trickle_moves_no_more_than_it_brings() {
    let mut server = Server::start(true);
    let usage = Arc::<ConnectionUsage>::default();
    server.budget = server.budget.share(&usage, server.budget.client(b"a"));
    let frames = data(1, &message(&[noise(1, 600_000)]), 16_384, 0);
    server.arrive(&[headers(1), frames.concat()[..200_000].to_vec()].concat());
    let routed = |server: &Server| server.incoming.borrow().sinks.routed_bytes();
    let (moved_before, routed_before) = (usage.moved_bytes(), routed(&server));
    for piece in frames.concat()[200_000..210_000].chunks(10) {
        server.arrive(piece);
    }
    assert!(routed(&server) - routed_before > 9_900);
    let moved = usage.moved_bytes() - moved_before;
    assert!(moved <= 4 * Charge::STEP_BYTES, "{moved}");
}

#[test]
fn only_so_many_calls_receive_past_h2_at_a_time() {
    let mut server = Server::start(true);
    let tensor = noise(1, 200_000);
    let frames = data(1, &message(&[&tensor]), 16_384, 0);
    let streams = || (1..).step_by(2).take(40);
    let of = |frame: &[u8], stream: u32| {
        let mut frame = frame.to_vec();
        frame[5..9].copy_from_slice(&stream.to_be_bytes());
        frame
    };
    for stream in streams() {
        server.arrive(&headers(stream));
    }
    for frame in &frames {
        for stream in streams() {
            server.arrive(&of(frame, stream));
        }
    }
    let outcomes = server.outcomes.borrow().clone();
    assert!(streams().all(|stream| outcomes[&stream] == Ok(vec![tensor.clone()])));
    let routed = server.incoming.borrow().sinks.routed_bytes();
    assert!((16 * 100_000..16 * 200_000).contains(&routed), "{routed}");
    check_account(&mut server);
}
