//! h2's client and a connection of ours, in memory.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use http::Request;

use super::*;
use crate::hpack::HeaderField;

/// The answer to a request: its own bytes, backwards.
struct TestAnswer {
    payload: Option<Bytes>,
}

const FIELDS: [HeaderField<'_>; 2] = [
    HeaderField::repeated(0, "content-type", b"application/grpc"),
    HeaderField::new("x-own", b"text"),
];
const TRAILERS: [HeaderField<'_>; 1] = [HeaderField::repeated(1, "grpc-status", b"0")];

/// Answers what has come in full. Whether anything was done.
fn answer(server: &mut TestServer, answers: &mut BTreeMap<u32, TestAnswer>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut has_moved = false;
    for (id, call) in &server.calls {
        if call.state != CallState::Ended {
            continue;
        }
        let answer = answers.entry(*id).or_insert_with(|| {
            has_moved = true;
            let sent = server.http2.send_head(*id, 200, &FIELDS, false);
            sent.expect("an open stream");
            let mut body = call.body();
            body.reverse();
            TestAnswer {
                payload: Some(Bytes::from(body)),
            }
        });
        let Some(payload) = &mut answer.payload else {
            continue;
        };
        while !payload.is_empty() {
            match server.http2.poll_send_body(*id, payload, &mut context) {
                Poll::Ready(sent) => {
                    sent.expect("an open stream");
                    has_moved = true;
                }
                Poll::Pending => break,
            }
        }
        if payload.is_empty() {
            has_moved = true;
            answer.payload = None;
            let sent = server.http2.send_trailers(*id, &TRAILERS);
            sent.expect("an open stream");
            server.http2.release(*id);
        }
    }
    has_moved
}

/// One request of h2's client: sends `body` as the windows allow, and checks what comes back.
async fn ask(client: h2::client::SendRequest<Bytes>, index: usize, mut body: Bytes) {
    let mut client = client.ready().await.expect("a connection");
    let request = Request::post(format!("http://authority/service/method{}", index % 3))
        .header("te", "trailers")
        .header("x-index", index)
        .header("x-long", "v".repeat(index * 37 % 3000))
        .body(())
        .expect("a request");
    let (response, mut stream) = client.send_request(request, false).expect("a stream");
    let mut expected = body.to_vec();
    expected.reverse();
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.expect("open").expect("room");
        let part = body.split_to(room.min(body.len()));
        stream.send_data(part, body.is_empty()).expect("open");
    }
    let response = response.await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["x-own"], "text");
    let mut answer = response.into_body();
    let mut seen = Vec::new();
    while let Some(part) = answer.data().await {
        let part = part.expect("a part");
        seen.extend_from_slice(&part);
        let released = answer.flow_control().release_capacity(part.len());
        released.expect("what came");
    }
    let trailers = answer.trailers().await.expect("trailers").expect("some");
    assert_eq!(trailers["grpc-status"], "0");
    assert!(seen == expected, "{index}");
}

/// Runs `count` requests of random sizes, some at a time, over one connection.
fn converse(seed: u64, count: usize, attaches_readers: bool) {
    let mut random = Random(seed);
    let pipe = Rc::new(RefCell::new(MemoryPipe::default()));
    let mut server = TestServer::new(attaches_readers);
    server.receive_max = random.pick(&[1000, 16 << 10, 1 << 20]);
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(random.pick(&[100, 65_535, 1 << 20]))
        .initial_connection_window_size(random.pick(&[65_535, 1 << 20]))
        .max_frame_size(random.pick(&[16_384, 100_000]))
        .header_table_size(random.pick(&[0, 100, 4096, 65_536]));
    let mut context = Context::from_waker(Waker::noop());
    let mut handshake = Box::pin(builder.handshake::<_, Bytes>(MemorySocket(Rc::clone(&pipe))));
    let Poll::Ready(Ok((client, connection))) = handshake.as_mut().poll(&mut context) else {
        panic!("a handshake waits for nothing");
    };
    let mut connection = Box::pin(connection);
    let mut waiting: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for index in 0..count {
        let length = random.pick(&[1, 100, 20_000, 300_000]);
        let content_bytes = random.below(length);
        let content = message(&random.bytes(content_bytes));
        waiting.push(Box::pin(ask(client.clone(), index, Bytes::from(content))));
    }
    let mut answers = BTreeMap::new();
    let at_once = 1 + random.below(20);
    let mut idle_rounds = 0;
    while !waiting.is_empty() {
        let mut has_moved = false;
        let mut place = 0;
        while place < waiting.len().min(at_once) {
            match waiting[place].as_mut().poll(&mut context) {
                Poll::Ready(()) => {
                    drop(waiting.remove(place));
                    has_moved = true;
                }
                Poll::Pending => place += 1,
            }
        }
        assert!(
            connection.as_mut().poll(&mut context).is_pending(),
            "it lives"
        );
        let arrived = std::mem::take(&mut pipe.borrow_mut().written);
        has_moved |= !arrived.is_empty();
        server.arrive(&arrived);
        assert_eq!(server.error, None);
        has_moved |= answer(&mut server, &mut answers);
        server.arrive(&[]);
        let sent = std::mem::take(&mut server.sent);
        has_moved |= !sent.is_empty();
        pipe.borrow_mut().arrived.extend(sent);
        idle_rounds = if has_moved { 0 } else { idle_rounds + 1 };
        assert!(
            idle_rounds < 10,
            "seed {seed}: {} wait for ever",
            waiting.len()
        );
    }
    assert_eq!(answers.len(), count);
    assert!(!server.http2.has_streams());
}

#[test]
fn h2s_client_gets_all_its_answers() {
    for seed in seeds(&[], 60) {
        for attaches_readers in [false, true] {
            converse(seed, 40, attaches_readers);
        }
    }
}
