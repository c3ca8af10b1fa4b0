//! The rules of connections: framing, order, ends, time limits.

use super::*;

#[test]
fn any_cut_and_any_framing_gives_the_same_answer() {
    let whole = post(ECHO, None, ECHO_BODY);
    for cut in (1..whole.len()).step_by(7) {
        let mut stream = connect(http());
        stream.set_nodelay(true).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        stream.write_all(&whole[cut..]).unwrap();
        assert_eq!(
            String::from_utf8(read_answer(&mut stream, true).2).unwrap(),
            ECHO_ANSWER,
            "{cut}"
        );
    }
    let mut chunked =
        format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            .into_bytes();
    for piece in ECHO_BODY.chunks(9) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    check(&chunked, 200, ECHO_ANSWER);

    let mut stream = connect(http());
    let head = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        ECHO_BODY.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, true).0, 100);
    stream.write_all(ECHO_BODY).unwrap();
    assert_eq!(read_answer(&mut stream, true).0, 200);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut stream = connect(http());
    let mut text = Vec::new();
    for id in 0..50 {
        let body = format!(
            "{{\"id\":\"{id}\",\"inputs\":[{{\"name\":\"IN\",\"shape\":[1],\
                 \"datatype\":\"FP32\",\"data\":[{id}]}}]}}"
        );
        text.extend(post(ECHO, None, body.as_bytes()));
        text.extend(get("/v2/health/live"));
    }
    stream.write_all(&text).unwrap();
    for id in 0..50 {
        let (status, _, body) = read_answer(&mut stream, true);
        assert!(status == 200 && body.starts_with(format!("{{\"id\":\"{id}\"").as_bytes()));
        assert_eq!(read_answer(&mut stream, true).0, 200);
    }
}

#[test]
fn what_could_be_smuggled_ends_the_connection() {
    for text in [
        "GET / HTTP/1.1\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nGET /v2 \
         HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\nContent-Length: 5\n\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \
         chunked\r\n\r\n5\nhello\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        "\0\0\0",
    ] {
        let mut stream = connect(http());
        stream.write_all(text.as_bytes()).unwrap();
        if text.len() < 10 {
            stream.write_all(b"\r\n\r\n").unwrap();
        }
        let (status, head, _) = read_answer(&mut stream, true);
        assert!(
            status == 400 && head.contains("Connection: close\r\n"),
            "{text:?}: {head}"
        );
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{text:?}: nothing more is answered");
    }
}

#[test]
fn the_ways_to_end_a_connection() {
    let mut stream = connect(http());
    stream
        .write_all(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.0 200 OK\r\nConnection: close\r\n"),
        "{text}"
    );

    let mut stream = connect(http());
    stream
        .write_all(
            b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /v2/health/live \
              HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        .unwrap();
    assert_eq!(read_answer(&mut stream, false).0, 200);
    assert_eq!(read_answer(&mut stream, true).0, 200);

    // What is delimited twice is read by its chunks, and nothing behind them.
    let mut stream = connect(http());
    let chunks = format!(
        "{:x}\r\n{}\r\n0\r\n\r\n",
        ECHO_BODY.len(),
        String::from_utf8_lossy(ECHO_BODY)
    );
    let text = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: \
         chunked\r\n\r\n{chunks}GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let (status, head, body) = read_answer(&mut stream, true);
    assert_eq!((status, &*body), (200, ECHO_ANSWER.as_bytes()));
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(
        stream.read(&mut [0; 1]).unwrap(),
        0,
        "nothing more is answered"
    );

    // Whoever speaks TLS here is told at once that nobody understands it.
    let mut stream = connect(http());
    stream.write_all(&[0x16, 3, 1, 0, 165]).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
}

#[test]
fn heads_and_bodies_have_time_limits() {
    // A head that never ends, and a body that stops.
    for (text, part) in [
        ("GET /v2 HTT".to_owned(), "head"),
        (
            format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"),
            "body",
        ),
        (
            format!(
                "POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"
            ),
            "body",
        ),
    ] {
        let mut stream = connect(http());
        stream.write_all(text.as_bytes()).unwrap();
        let (status, _, body) = read_answer(&mut stream, true);
        assert_eq!(
            (status, String::from_utf8(body).unwrap()),
            (
                408,
                format!(r#"{{"error":"the request's {part} did not arrive in time"}}"#)
            ),
            "{text}"
        );
    }
}

#[test]
fn headers_of_a_call_that_never_end_end_the_connection() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Frames HEADERS (1) and CONTINUATION (9) of stream 1; flag END_HEADERS (4). The field is
    // `:method: GET`.
    let table: [(&[u8], bool); 5] = [
        (b"\0\0\x01\x01\x00\0\0\0\x01\x82", true),
        (b"\0\0\x09\x01\x04\0\0\0\x01\x82", true),
        (
            b"\0\0\x00\x01\x00\0\0\0\x01\0\0\x01\x09\x00\0\0\0\x01\x82",
            true,
        ),
        (
            b"\0\0\x01\x01\x00\0\0\0\x01\x82\0\0\x00\x09\x04\0\0\0\x01",
            false,
        ),
        (b"", false),
    ];
    for (frames, ends) in table {
        let mut stream = connect(SHARED.0.addresses().grpc.as_ref().unwrap().tcp().unwrap());
        stream.write_all(&[PREFACE, frames].concat()).unwrap();
        let patience = if ends { 10_000 } else { 1000 };
        stream
            .set_read_timeout(Some(Duration::from_millis(patience)))
            .unwrap();
        let mut received = Vec::new();
        let outcome = stream.read_to_end(&mut received);
        assert_eq!(outcome.is_ok(), ends, "{frames:?}: {outcome:?}");
        assert!(!received.is_empty(), "the server has shown its settings");
    }
}

#[test]
fn a_chunked_body_has_a_largest_size() {
    let mut stream = connect(http());
    // Said before the chunk comes.
    let text =
        format!("POST {ECHO} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1000001\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let (status, head, body) = read_answer(&mut stream, true);
    assert_eq!(
        (status, String::from_utf8(body).unwrap()),
        (
            413,
            r#"{"error":"the request's body is too large"}"#.to_owned()
        )
    );
    assert!(head.contains("Connection: close\r\n"), "{head}");
}

/// Were the connection closed while the client sends, the reset would fail its send, and it might
/// never read the answer.
#[test]
fn who_is_refused_in_the_middle_of_a_body_may_finish_and_reads_why() {
    let (mut frontend, server) = start();
    let budget = server.budget();
    let mut held = Charge::empty(budget);
    held.cover(budget.limit_bytes() - (512 << 10)).unwrap();
    let mut stream = connect(frontend.addresses().http.as_ref().unwrap().tcp().unwrap());
    let head = format!(
        "POST {ECHO} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        8 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..48 {
        stream.write_all(&[b' '; 64 << 10]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let (status, head, body) = read_answer(&mut stream, true);
    let body = String::from_utf8(body).unwrap();
    assert!(
        status == 503 && head.contains("Connection: close\r\n") && body.contains("no memory left"),
        "{head}{body}"
    );
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    drop(held);
    assert!(frontend.drain(Instant::now() + Duration::from_secs(5), |_| {}));
    frontend.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    let body = ECHO_BODY;
    let mut first = connect(http());
    first
        .write_all(&post("/v2/models/slow/infer", None, body))
        .unwrap();
    // Also behind large bodies, for which the connection gives its own buffer back.
    let large = [body, &[b' '; 300 << 10]].concat();
    let waiting: Vec<TcpStream> = [body, large.as_slice()]
        .repeat(3)
        .into_iter()
        .map(|body| {
            let mut stream = connect(http());
            stream
                .write_all(&post("/v2/models/slow/infer", None, body))
                .unwrap();
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    for stream in &waiting {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    assert_eq!(read_answer(&mut first, true).0, 200);
    first
        .write_all(&post("/v2/models/slow/infer", None, body))
        .unwrap();
    assert_eq!(read_answer(&mut first, true).0, 200);
    assert_eq!(
        SLOW_COUNT.load(Ordering::SeqCst),
        2,
        "those whose clients left were not executed"
    );
}

/// It has only said that it sends nothing more. What it gets is what it would get otherwise, byte
/// for byte.
#[test]
fn a_client_that_ends_its_side_is_answered() {
    let request = post("/v2/models/leisurely/infer", None, ECHO_BODY);
    let mut open = connect(http());
    open.write_all(&request).unwrap();
    let (_, head, body) = read_answer(&mut open, true);
    let mut stream = connect(http());
    stream.write_all(&request.repeat(2)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut held = Vec::new();
    stream.read_to_end(&mut held).unwrap();
    let expected = [head.as_bytes(), &body].concat();
    assert_eq!(
        String::from_utf8_lossy(&held),
        String::from_utf8_lossy(&expected.repeat(2))
    );
}

#[test]
fn draining_finishes_what_was_begun() {
    let (mut frontend, server) = start();
    let address = frontend.addresses().http.as_ref().unwrap().tcp().unwrap();
    let mut idle = connect(address);
    let mut busy = connect(address);
    busy.write_all(&post("/v2/models/leisurely/infer", None, ECHO_BODY))
        .unwrap();
    idle.write_all(&get("/v2/health/ready")).unwrap();
    assert_eq!(read_answer(&mut idle, true).0, 200);
    server.begin_drain();
    idle.write_all(&get("/v2/health/ready")).unwrap();
    assert_eq!(read_answer(&mut idle, true).0, 503);
    assert!(
        frontend.drain(Instant::now() + Duration::from_secs(5), |_| {}),
        "everything ended in time"
    );
    let (status, head, _) = read_answer(&mut busy, true);
    assert!(
        status == 200 && head.contains("Connection: close\r\n"),
        "{head}"
    );
    assert_eq!(
        idle.read(&mut [0]).unwrap(),
        0,
        "idle connections are closed"
    );
    assert!(
        TcpStream::connect(address).is_err(),
        "no new ones are taken"
    );
    frontend.stop().unwrap();
    server.stop().unwrap();
}

/// What an idle connection costs beside its buffer of 8 KiB.
#[test]
fn a_connection_is_small() {
    fn future_bytes<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    let bytes = future_bytes(crate::http::serve);
    println!("an HTTP connection's task takes {bytes} bytes");
    assert!(bytes < 4096, "{bytes}");
}
