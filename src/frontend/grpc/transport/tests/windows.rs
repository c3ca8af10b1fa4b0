//! Flow control of frames that h2 does not see.

use super::*;

/// Sends messages as far as the windows go, `burst` bytes at a time, and says what is left of the
/// connection's window at the end.
fn send_within_windows(is_direct: bool, frame_bytes: usize, burst: usize) -> usize {
    let mut server = Server::start(is_direct);
    // Of them, h2 gave all but the protocol's default by an update.
    let mut connection = 65_535 + server.opened()[&0];
    assert_eq!(connection, CONNECTION_WINDOW_BYTES as usize);
    let tensor = noise(1, 3 << 20);
    let whole = message(&[&tensor]);
    for stream in (1..).step_by(2).take(10) {
        server.arrive(&headers(stream));
        let mut window = STREAM_WINDOW_BYTES as usize;
        let mut frames = data(stream, &whole, frame_bytes, END_STREAM)
            .into_iter()
            .peekable();
        while frames.peek().is_some() {
            let mut bytes = Vec::new();
            while let Some(next) = frames
                .next_if(|next| next.len() - 9 <= window.min(connection) && bytes.len() < burst)
            {
                window -= next.len() - 9;
                connection -= next.len() - 9;
                bytes.extend(next);
            }
            assert!(!bytes.is_empty(), "starved: {window} {connection}");
            server.arrive(&bytes);
            for (opened, bytes) in server.opened() {
                match opened {
                    0 => connection += bytes,
                    _ if opened == stream => window += bytes,
                    _ => {}
                }
            }
            assert!(window <= STREAM_WINDOW_BYTES as usize);
            assert!(connection <= CONNECTION_WINDOW_BYTES as usize);
        }
        assert!(server.outcomes.borrow()[&stream] == Ok(vec![tensor.clone()]));
    }
    if is_direct {
        let routed = server.incoming.borrow().sinks.routed_bytes();
        assert!(routed > 10 * (tensor.len() - 100_000), "{routed}");
        check_account(&mut server);
    }
    connection
}

#[test]
fn a_client_that_keeps_to_its_windows_never_starves() {
    for frame_bytes in [16_384, 65_536] {
        for burst in [1, 200_000, WHOLE] {
            for is_direct in [true, false] {
                let left = send_within_windows(is_direct, frame_bytes, burst);
                assert!(left >= CONNECTION_WINDOW_BYTES as usize / 6, "{left}");
            }
        }
    }
}

#[test]
fn windows_are_opened_no_further_than_they_need() {
    let mut server = Server::start(true);
    server.opened();
    let frames = data(1, &message(&[noise(1, 600_000)]), 16_384, END_STREAM);
    server.arrive(&[headers(1), frames.concat()].concat());
    assert_eq!(
        server.opened(),
        BTreeMap::new(),
        "the message fits into the window"
    );
}

#[test]
fn a_client_that_exceeds_its_windows_is_told() {
    // Nothing is given back, so what is sent beyond a window has no right to be.
    let mut server = Server::start(true);
    server.opens_windows = false;
    let whole = message(&[noise(1, 2 << 20)]);
    server.arrive(&[headers(1), data(1, &whole, 16_384, END_STREAM).concat()].concat());
    let outcome = server.outcomes.borrow()[&1].clone();
    assert_eq!(outcome, Err("Reset(FLOW_CONTROL_ERROR)".to_owned()));
    assert!(!server.is_over);
    let mut server = Server::start(true);
    server.opens_windows = false;
    let fitting = message(&[noise(1, 1_000_000)]);
    let mut streams = (1..).step_by(2);
    while !server.is_over {
        let stream = streams.next().expect("there are enough numbers");
        let frames = data(stream, &fitting, 16_384, END_STREAM).concat();
        server.arrive(&[headers(stream), frames].concat());
    }
    let routed = server.incoming.borrow().sinks.routed_bytes();
    let window = CONNECTION_WINDOW_BYTES as usize;
    assert!(
        (window - 1_000_000..=window + 1_000_000).contains(&routed),
        "{routed}"
    );
}
