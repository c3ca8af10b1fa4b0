//! What a client may do, and what it may not.

use super::*;
use crate::error::Reason;
use crate::frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HAS_PRIORITY, HEADERS, PADDED, PING, PRIORITY,
    PUSH_PROMISE, WINDOW_UPDATE,
};
use crate::hpack::HeaderField;

const OPEN: u8 = END_HEADERS;
const WHOLE: u8 = END_HEADERS | END_STREAM;

fn request(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags, stream, &usual_fields())
}

/// What becomes of a connection that is sent `wire`.
fn outcome(wire: &[Vec<u8>]) -> (BTreeMap<u32, u32>, Vec<(u32, CallState)>) {
    let mut server = TestServer::greeted(false);
    server.arrive(&wire.concat());
    let states = server.calls.iter().map(|(id, call)| (*id, call.state));
    let states = states.collect();
    (reasons(&server.take_sent()), states)
}

/// Checks that each row's frames end the connection for its reason.
fn assert_ended(table: Vec<(Vec<Vec<u8>>, Reason)>) {
    for (wire, reason) in table {
        let (reasons, _) = outcome(&wire);
        assert_eq!(reasons.get(&0), Some(&reason.0), "{wire:?}");
    }
}

fn settings(name: u16, value: u32) -> Vec<u8> {
    let mut payload = name.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

fn update(stream: u32, value: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &value.to_be_bytes())
}

#[test]
fn requests_that_end_the_connection() {
    let open = request(1, OPEN);
    assert_ended(vec![
        (vec![frame(DATA, 0, 0, b"x")], Reason::PROTOCOL_ERROR),
        (vec![frame(DATA, 0, 1, b"x")], Reason::PROTOCOL_ERROR),
        (
            vec![open.clone(), frame(DATA, PADDED, 1, &[])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![open.clone(), frame(DATA, PADDED, 1, &[3, 0, 0])],
            Reason::PROTOCOL_ERROR,
        ),
        (vec![request(0, OPEN)], Reason::PROTOCOL_ERROR),
        (vec![request(2, OPEN)], Reason::PROTOCOL_ERROR),
        (
            vec![request(3, WHOLE), request(1, WHOLE)],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![request(1, 0), frame(PING, 0, 0, &[0; 8])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![request(1, 0), request(3, OPEN)],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![request(1, 0), frame(CONTINUATION, 4, 3, &[])],
            Reason::PROTOCOL_ERROR,
        ),
        (vec![frame(CONTINUATION, 4, 1, &[])], Reason::PROTOCOL_ERROR),
        (
            vec![frame(HEADERS, PADDED | OPEN, 1, &[])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            vec![frame(HEADERS, PADDED | OPEN, 1, &[1])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![frame(HEADERS, HAS_PRIORITY | OPEN, 1, &[0; 4])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            vec![frame(HEADERS, OPEN, 1, &[0x80])],
            Reason::COMPRESSION_ERROR,
        ),
        (
            vec![frame(HEADERS, OPEN, 1, &[0x40, 9])],
            Reason::COMPRESSION_ERROR,
        ),
        (
            vec![frame(DATA, 0, 1, &[0; (64 << 10) + 1])],
            Reason::FRAME_SIZE_ERROR,
        ),
    ]);
}

#[test]
fn control_frames_that_end_the_connection() {
    let open = request(1, OPEN);
    assert_ended(vec![
        (
            vec![frame(PRIORITY, 0, 1, &[0; 4])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (vec![frame(PRIORITY, 0, 0, &[0; 5])], Reason::PROTOCOL_ERROR),
        (
            vec![frame(RST_STREAM, 0, 0, &[0; 4])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![frame(RST_STREAM, 0, 1, &[0; 4])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![open.clone(), frame(RST_STREAM, 0, 1, &[0; 3])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (vec![frame(SETTINGS, 0, 1, &[])], Reason::PROTOCOL_ERROR),
        (
            vec![frame(SETTINGS, ACK, 0, &[0; 6])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (
            vec![frame(SETTINGS, 0, 0, &[0; 5])],
            Reason::FRAME_SIZE_ERROR,
        ),
        (vec![settings(2, 2)], Reason::PROTOCOL_ERROR),
        (vec![settings(4, 1 << 31)], Reason::FLOW_CONTROL_ERROR),
        (vec![settings(5, 16_383)], Reason::PROTOCOL_ERROR),
        (vec![settings(5, 1 << 24)], Reason::PROTOCOL_ERROR),
        (
            vec![frame(PUSH_PROMISE, 4, 1, &[0; 4])],
            Reason::PROTOCOL_ERROR,
        ),
        (vec![frame(PING, 0, 0, &[0; 7])], Reason::FRAME_SIZE_ERROR),
        (vec![frame(PING, 0, 1, &[0; 8])], Reason::PROTOCOL_ERROR),
        (vec![frame(GOAWAY, 0, 0, &[0; 7])], Reason::FRAME_SIZE_ERROR),
        (vec![frame(GOAWAY, 0, 1, &[0; 8])], Reason::PROTOCOL_ERROR),
        (vec![update(0, 0)], Reason::PROTOCOL_ERROR),
        (vec![update(1, 5)], Reason::PROTOCOL_ERROR),
        (vec![update(0, 0x7fff_ffff)], Reason::FLOW_CONTROL_ERROR),
        (
            vec![frame(WINDOW_UPDATE, 0, 0, &[0; 5])],
            Reason::FRAME_SIZE_ERROR,
        ),
    ]);
}

#[test]
fn a_window_may_not_grow_too_large_by_settings_either() {
    let wire = [
        request(1, OPEN),
        settings(4, 0x7fff_ffff),
        update(1, 1),
        settings(4, 1 << 30),
    ];
    let (reasons, _) = outcome(&wire);
    assert_eq!(reasons, BTreeMap::from([(1, Reason::FLOW_CONTROL_ERROR.0)]));
}

#[test]
fn of_several_windows_in_a_frame_the_last_counts() {
    let window = |value: u32| [&[0, 4][..], &value.to_be_bytes()].concat();
    let several = [window(0x7fff_ffff), window(0), window(1000)].concat();
    let wire = [
        request(1, OPEN),
        update(1, 5000),
        frame(SETTINGS, 0, 0, &several),
    ];
    let mut server = TestServer::greeted(false);
    server.arrive(&wire.concat());
    assert_eq!(reasons(&server.take_sent()), BTreeMap::new());
    let stream = server.http2.streams.get(1).expect("open");
    assert_eq!(stream.send_window, 6000);
}

#[test]
fn what_ends_a_stream() {
    let open = request(1, OPEN);
    let with_length = |length: u8| {
        let mut block = usual_fields();
        block.extend([0x0f, 0x0d, 1, b'0' + length]);
        frame(HEADERS, OPEN, 1, &block)
    };
    let own_parent = [&[0, 0, 0, 1, 16][..], &usual_fields()].concat();
    let trailers = |flags| frame(HEADERS, flags, 1, &[0x00, 1, b'a', 1, b'b']);
    let table: Vec<(Vec<Vec<u8>>, Reason)> = vec![
        (
            vec![frame(HEADERS, OPEN, 1, &[0x83])],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![frame(HEADERS, OPEN | HAS_PRIORITY, 1, &own_parent)],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![request(1, WHOLE), frame(DATA, 0, 1, b"x")],
            Reason::STREAM_CLOSED,
        ),
        (
            vec![request(1, WHOLE), trailers(WHOLE)],
            Reason::STREAM_CLOSED,
        ),
        (vec![open.clone(), trailers(OPEN)], Reason::PROTOCOL_ERROR),
        (
            vec![open.clone(), request(1, WHOLE)],
            Reason::PROTOCOL_ERROR,
        ),
        (vec![open.clone(), update(1, 0)], Reason::PROTOCOL_ERROR),
        (
            vec![open.clone(), update(1, 0x7fff_ffff)],
            Reason::FLOW_CONTROL_ERROR,
        ),
        (
            vec![with_length(3), frame(DATA, END_STREAM, 1, b"ab")],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![with_length(3), frame(DATA, 0, 1, b"abcd")],
            Reason::PROTOCOL_ERROR,
        ),
        (
            vec![with_length(3), frame(DATA, 0, 1, b"ab"), trailers(WHOLE)],
            Reason::PROTOCOL_ERROR,
        ),
    ];
    for (wire, reason) in table {
        let (reasons, states) = outcome(&wire);
        assert_eq!(reasons, BTreeMap::from([(1, reason.0)]), "{wire:?}");
        assert!(
            states.iter().all(|(_, state)| *state != CallState::Open),
            "{wire:?}"
        );
    }
}

#[test]
fn what_is_allowed() {
    let (first, second) = {
        let block = usual_fields();
        let (first, second) = block.split_at(6);
        (first.to_vec(), second.to_vec())
    };
    let with_priority = [&[0x80, 0, 0, 7, 200][..], &usual_fields()].concat();
    let padded = [&[3][..], &usual_fields(), &[0; 3]].concat();
    let trailers = [0x00, 1, b'a', 1, b'b'];
    let content = message(b"hello");
    let table: Vec<Vec<Vec<u8>>> = vec![
        vec![request(1, OPEN), frame(DATA, END_STREAM, 1, &content)],
        vec![
            request(1, OPEN),
            frame(DATA, 0, 1, &content),
            frame(HEADERS, WHOLE, 1, &trailers),
        ],
        vec![
            request(1, OPEN),
            frame(DATA, PADDED, 1, &[&[2][..], &content, &[0; 2]].concat()),
            frame(DATA, PADDED | END_STREAM, 1, &[0]),
        ],
        vec![
            frame(HEADERS, 0, 1, &first),
            frame(CONTINUATION, 0, 1, &[]),
            frame(CONTINUATION, END_HEADERS, 1, &second),
            frame(DATA, END_STREAM, 1, &content),
        ],
        vec![
            frame(HEADERS, OPEN | HAS_PRIORITY, 1, &with_priority),
            frame(PRIORITY, 0, 9, &[0; 5]),
            frame(DATA, END_STREAM, 1, &content),
        ],
        vec![
            frame(HEADERS, OPEN | PADDED, 1, &padded),
            frame(DATA, END_STREAM, 1, &content),
        ],
        vec![
            frame(77, 0xff, 5, &[0; 300]),
            frame(GOAWAY, 0, 0, &[0; 12]),
            request(1, OPEN),
            frame(DATA, 0, 1, &[]),
            frame(DATA, END_STREAM, 1, &content),
        ],
    ];
    for wire in table {
        let whole = wire.concat();
        for cut in [1, 3, 9, 10, whole.len()] {
            let mut server = TestServer::greeted(false);
            whole.chunks(cut).for_each(|piece| server.arrive(piece));
            assert_eq!(reasons(&server.take_sent()), BTreeMap::new(), "{wire:?}");
            let call = &server.calls[&1];
            assert_eq!(
                (call.state, call.body()),
                (CallState::Ended, content.clone()),
                "{cut}"
            );
            assert_eq!(
                (&call.head.path[..], call.head.fields.get("te")),
                (&b"/a/b"[..], Some(&b"trailers"[..]))
            );
        }
    }
}

#[test]
fn frames_of_streams_that_are_over_change_nothing() {
    let mut server = TestServer::greeted(false);
    server.arrive(&request(1, OPEN));
    server.http2.reset(1, Reason::CANCEL);
    server.release_calls();
    for late in [
        frame(DATA, 0, 1, &[0; 100]),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
        frame(HEADERS, WHOLE, 1, &[0x00, 1, b'a', 1, b'b']),
        frame(RST_STREAM, 0, 1, &[0; 4]),
        frame(PRIORITY, 0, 1, &[0; 5]),
    ] {
        server.arrive(&late);
    }
    server.arrive(&request(3, WHOLE));
    assert_eq!(
        reasons(&server.take_sent()),
        BTreeMap::from([(1, Reason::CANCEL.0)])
    );
    assert_eq!(server.calls[&3].state, CallState::Ended);
    assert_eq!(
        server.http2.taken_bytes, 100,
        "the connection's window gets them back"
    );
}

#[test]
fn pings_and_settings_are_answered() {
    let mut server = TestServer::greeted(false);
    server.arrive(&frame(PING, 0, 0, b"12345678"));
    server.arrive(&frame(SETTINGS, 0, 0, &[]));
    assert!(!server.http2.is_client_leaving());
    server.arrive(&frame(GOAWAY, 0, 0, &[0; 8]));
    assert!(server.http2.is_client_leaving());
    let sent = server.take_sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(
        (sent[0].0.kind, sent[0].0.flags, &sent[0].1[..]),
        (PING, ACK, &b"12345678"[..])
    );
    assert_eq!((sent[1].0.kind, sent[1].0.flags), (SETTINGS, ACK));
    server.http2.send_ping();
    assert!(!server.http2.take_pong());
    server.arrive(&frame(PING, ACK, 0, &[0; 8]));
    assert!(server.http2.take_pong() && !server.http2.take_pong());
}

#[test]
fn the_end_is_announced_and_named() {
    let mut server = TestServer::greeted(false);
    server.arrive(&request(1, OPEN));
    server.http2.announce_end();
    server.arrive(&request(3, OPEN));
    server.http2.name_last();
    server.arrive(&request(5, OPEN));
    server.arrive(&frame(DATA, END_STREAM, 5, &message(b"late")));
    server.arrive(&frame(DATA, END_STREAM, 3, &message(b"in time")));
    let sent = server.take_sent();
    let last: Vec<_> = sent
        .iter()
        .filter(|(head, _)| head.kind == GOAWAY)
        .map(|(_, payload)| u32::from_be_bytes(*payload.first_chunk().expect("a stream")))
        .collect();
    assert_eq!(last, [0x7fff_ffff, 3]);
    assert_eq!(server.calls.len(), 2);
    assert_eq!(server.calls[&3].state, CallState::Ended);
    assert!(server.http2.has_streams());
    server.release_calls();
    assert!(!server.http2.has_streams());
}

#[test]
fn answers_go_as_the_windows_allow() {
    let mut server = TestServer::greeted(false);
    let mut context = Context::from_waker(Waker::noop());
    server.arrive(&request(1, WHOLE));
    let status = [HeaderField::repeated(0, "grpc-status", b"0")];
    assert!(server.http2.send_trailers(1, &status).is_err(), "no head");
    server.http2.send_head(1, 200, &[], false).expect("open");
    assert!(
        server.http2.send_head(1, 200, &[], false).is_err(),
        "a second head"
    );
    let mut payload = bytes::Bytes::from(vec![7; 100_000]);
    let sent = server.http2.poll_send_body(1, &mut payload, &mut context);
    assert_eq!(sent, Poll::Ready(Ok(65_535)), "the protocol's first window");
    assert!(
        server
            .http2
            .poll_send_body(1, &mut payload, &mut context)
            .is_pending()
    );
    server.arrive(&frame(WINDOW_UPDATE, 0, 1, &50_000u32.to_be_bytes()));
    assert!(
        server
            .http2
            .poll_send_body(1, &mut payload, &mut context)
            .is_pending()
    );
    server.arrive(&frame(WINDOW_UPDATE, 0, 0, &10_000u32.to_be_bytes()));
    let sent = server.http2.poll_send_body(1, &mut payload, &mut context);
    assert_eq!(sent, Poll::Ready(Ok(10_000)));
    server.arrive(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    server.arrive(&frame(WINDOW_UPDATE, 0, 0, &100_000u32.to_be_bytes()));
    assert!(
        server
            .http2
            .poll_send_body(1, &mut payload, &mut context)
            .is_pending(),
        "it shrank"
    );
    server.arrive(&frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]));
    let rest = payload.len();
    let sent = server.http2.poll_send_body(1, &mut payload, &mut context);
    assert_eq!(sent, Poll::Ready(Ok(rest)));
    server.http2.send_trailers(1, &status).expect("open");
    server.arrive(&[]);
    let sent = server.take_sent();
    let data: Vec<_> = sent.iter().filter(|(head, _)| head.kind == DATA).collect();
    assert!(data.iter().all(|(head, _)| head.length <= 16 << 10));
    assert_eq!(
        data.iter().map(|(head, _)| head.length).sum::<usize>(),
        100_000
    );
    let (head, block) = sent.last().expect("trailers");
    assert_eq!((head.kind, head.flags), (HEADERS, WHOLE));
    let mut decoder = Decoder::new();
    assert_eq!(
        fields(&mut decoder, &sent[0].1),
        [(":status".into(), "200".into())]
    );
    assert_eq!(
        fields(&mut decoder, block),
        [("grpc-status".into(), "0".into())]
    );
}

#[test]
fn those_who_wait_for_the_connections_window_take_turns() {
    let mut server = TestServer::greeted(false);
    let mut context = Context::from_waker(Waker::noop());
    let streams = [1, 3, 5];
    let mut payloads: Vec<_> = streams
        .iter()
        .map(|_| bytes::Bytes::from(vec![7; 60_000]))
        .collect();
    for id in streams {
        server.arrive(&request(id, WHOLE));
        server.http2.send_head(id, 200, &[], false).expect("open");
    }
    // The first takes nearly all of the window, the second the rest.
    for (id, payload) in streams.into_iter().zip(&mut payloads) {
        while let Poll::Ready(sent) = server.http2.poll_send_body(id, payload, &mut context) {
            if sent.expect("open") == 0 {
                break;
            }
        }
    }
    let left: Vec<_> = payloads.iter().map(bytes::Bytes::len).collect();
    assert_eq!(left, [0, 54_465, 60_000]);
    assert_eq!(server.http2.waiting, [3, 5]);
    server.arrive(&frame(WINDOW_UPDATE, 0, 0, &1000u32.to_be_bytes()));
    assert!(server.http2.waiting.is_empty(), "both are woken");
    for index in [1, 2] {
        let _ = server
            .http2
            .poll_send_body(streams[index], &mut payloads[index], &mut context);
        let _ = server
            .http2
            .poll_send_body(streams[index], &mut payloads[index], &mut context);
    }
    assert_eq!(server.http2.waiting, [3, 5]);
}

#[test]
fn a_full_queue_holds_answers_back() {
    let mut server = TestServer::greeted(false);
    let mut context = Context::from_waker(Waker::noop());
    server.arrive(&frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0, 0, 0]));
    server.arrive(&frame(WINDOW_UPDATE, 0, 0, &0x7f00_0000u32.to_be_bytes()));
    server.arrive(&request(1, WHOLE));
    server.http2.send_head(1, 200, &[], false).expect("open");
    let mut payload = bytes::Bytes::from(vec![7; 1 << 20]);
    let mut rounds = 0;
    while !payload.is_empty() {
        let before = payload.len();
        while let Poll::Ready(sent) = server.http2.poll_send_body(1, &mut payload, &mut context) {
            if sent.expect("open") == 0 {
                break;
            }
        }
        assert!(before - payload.len() <= 256 << 10);
        assert!(server.http2.is_queue_full() || payload.is_empty());
        server.arrive(&[]);
        rounds += 1;
    }
    assert!(rounds > 3);
}

#[test]
fn who_resets_too_much_is_left() {
    let both = |count: u32| -> Vec<Vec<u8>> {
        (0..count)
            .flat_map(|index| {
                let id = 2 * index + 1;
                [request(id, OPEN), frame(RST_STREAM, 0, id, &[0; 4])]
            })
            .collect()
    };
    let mut server = TestServer::greeted(false);
    server.receive_max = usize::MAX;
    server.http2.receive(&both(200).concat(), 1).expect("borne");
    assert!(server.http2.next_accepted().is_none());
    assert!(!server.http2.has_streams());
    let mut server = TestServer::greeted(false);
    let error = server
        .http2
        .receive(&both(201).concat(), 1)
        .expect_err("too many");
    assert_eq!(error, ConnectionError::excess("too_many_resets"));
    // Made to be reset.
    let wrong: Vec<_> = (0..201)
        .map(|index| frame(HEADERS, OPEN, 2 * index + 1, &[0x83]))
        .collect();
    let (reasons, _) = outcome(&wrong);
    assert_eq!(reasons.len(), 201, "200 streams and the connection");
    assert_eq!(reasons[&0], Reason::ENHANCE_YOUR_CALM.0);
}

#[test]
fn more_streams_than_there_may_be_are_refused() {
    let mut wire: Vec<_> = (0..1025)
        .map(|index| request(2 * index + 1, OPEN))
        .collect();
    let (reasons, states) = outcome(&wire);
    assert_eq!(reasons, BTreeMap::from([(2049, Reason::REFUSED_STREAM.0)]));
    assert_eq!(states.len(), 1024);
    wire.truncate(1024);
    assert_eq!(outcome(&wire).0, BTreeMap::new());
}

#[test]
fn long_lists_get_an_answer() {
    let mut wire = vec![frame(HEADERS, 0, 1, &usual_fields())];
    for _ in 0..5 {
        let mut block = vec![0x00, 1, b'a', 0x7f, 0xa1, 0x7f];
        block.extend(vec![b'v'; 16_416]);
        assert_eq!(block.len(), 6 + 16_416);
        wire.push(frame(CONTINUATION, 0, 1, &block));
    }
    wire.push(frame(CONTINUATION, END_HEADERS, 1, &[]));
    let mut server = TestServer::greeted(false);
    server.arrive(&wire.concat());
    let sent = server.take_sent();
    assert_eq!(
        fields(&mut Decoder::new(), &sent[0].1),
        [(":status".into(), "431".into())]
    );
    assert_eq!(reasons(&sent), BTreeMap::from([(1, 0)]));
    assert!(server.calls.is_empty());
    server.arrive(&request(3, WHOLE));
    assert_eq!(server.calls.len(), 1);
}

#[test]
fn windows_bound_what_waits() {
    let mut server = TestServer::greeted(false);
    // Of a call that takes nothing.
    let payload = [0; 64 << 10];
    server
        .http2
        .receive(&request(1, OPEN), 1)
        .expect("a request");
    for _ in 0..16 {
        server
            .http2
            .receive(&frame(DATA, 0, 1, &payload), 1)
            .expect("within the window");
    }
    server
        .http2
        .receive(&frame(DATA, 0, 1, b"x"), 1)
        .expect("the stream ends");
    server.arrive(&[]);
    assert_eq!(reasons(&server.take_sent()), BTreeMap::from([(1, 3)]));
    assert_eq!(server.http2.taken_bytes, (1 << 20) + 1);
    // Tiny parts cost no more than their bytes.
    let mut server = TestServer::greeted(false);
    server
        .http2
        .receive(&request(1, OPEN), 1)
        .expect("a request");
    for _ in 0..100_000 {
        server
            .http2
            .receive(&frame(DATA, 0, 1, b"x"), 1)
            .expect("a byte");
    }
    let stream = server.http2.streams.get(1).expect("open");
    assert_eq!(stream.queued_bytes, 100_000);
    assert!(std::iter::from_fn(|| stream.take()).count() <= 7);
}

#[test]
fn other_protocols_are_told() {
    let mut server = TestServer::new(false);
    assert!(!server.http2.has_begun());
    server.arrive(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(reasons(&server.take_sent()), BTreeMap::from([(0, 1)]));
    assert!(!server.http2.has_begun());
}
