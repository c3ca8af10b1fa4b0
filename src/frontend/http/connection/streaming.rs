//! Answers whose body comes in pieces, as they become ready: one chunk each, or for HTTP/1.0 all
//! that comes until the connection ends.

use std::future::poll_fn;
use std::io::IoSlice;
use std::task::{Context, Poll};

use super::send::COPIED_BYTES_MAX;
use super::source::BodySource;
use super::state::{ConnectionClosed, HttpConnection, RequestMeta, SendAhead};
use crate::http::answer::{BodyDelimiter, HttpResponse};
use crate::shard::{WaitReason, yield_now};

/// Collected pieces before they are sent: some 300 us of the shard's time.
const COLLECTED_BYTES_MAX: usize = 32 << 10;
const COLLECTED_COUNT_MAX: usize = 64;

/// What was collected at once.
#[derive(Default)]
struct CollectedPieces {
    count: usize,
    /// A last piece that is too large to be copied.
    large: Option<Vec<u8>>,
    is_over: bool,
    /// There was nothing more to collect.
    is_all: bool,
}

impl HttpConnection {
    /// Sends an answer's head and then what comes from `source`, until its end or until the client
    /// goes away.
    pub(super) async fn send_stream(
        &mut self,
        answer: &HttpResponse,
        mut source: Box<dyn BodySource>,
        meta: &RequestMeta,
        closes: bool,
    ) -> Result<(), ConnectionClosed> {
        let (delimiting, is_chunked) = match meta.is_version_1_0 {
            true => (BodyDelimiter::Close, false),
            false => (BodyDelimiter::Chunked, true),
        };
        self.note_sending();
        self.write_head(answer, meta, closes, delimiting);
        let mut piece = Vec::new();
        loop {
            let mut out = std::mem::take(&mut self.out);
            let collected = self
                .await_reply(poll_fn(|context| {
                    collect(&mut *source, context, &mut piece, &mut out, is_chunked)
                }))
                .await;
            self.out = out;
            let collected = collected?;
            match collected.large {
                Some(large) => self.send_large(&large, is_chunked).await?,
                None => self.flush().await?,
            }
            if is_chunked {
                self.ahead = SendAhead::ChunkSize;
            }
            self.guard.wait(WaitReason::Busy, 0);
            source.note_sent();
            if collected.is_over {
                return Ok(());
            }
            if !collected.is_all {
                yield_now().await;
            }
        }
    }

    /// Sends what is collected, and `piece` behind it.
    async fn send_large(&mut self, piece: &[u8], is_chunked: bool) -> Result<(), ConnectionClosed> {
        let out = std::mem::take(&mut self.out);
        let tail: &[u8] = if is_chunked { b"\r\n" } else { b"" };
        let mut pieces = [IoSlice::new(&out), IoSlice::new(piece), IoSlice::new(tail)];
        let outcome = self.send_pieces(&mut pieces).await;
        self.out = out;
        self.out.clear();
        outcome
    }
}

/// Takes what is there; ready if that is anything.
fn collect(
    source: &mut dyn BodySource,
    context: &mut Context<'_>,
    piece: &mut Vec<u8>,
    out: &mut Vec<u8>,
    is_chunked: bool,
) -> Poll<CollectedPieces> {
    let mut collected = CollectedPieces::default();
    while collected.count < COLLECTED_COUNT_MAX && out.len() < COLLECTED_BYTES_MAX {
        piece.clear();
        match source.poll_piece(context, piece) {
            Poll::Pending => {
                collected.is_all = true;
                break;
            }
            Poll::Ready(false) => {
                collected.is_over = true;
                if is_chunked {
                    out.extend_from_slice(b"0\r\n\r\n");
                }
                break;
            }
            Poll::Ready(true) => {
                collected.count += 1;
                if is_chunked {
                    out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                }
                if piece.len() > COPIED_BYTES_MAX {
                    collected.large = Some(std::mem::take(piece));
                    break;
                }
                out.extend_from_slice(piece);
                if is_chunked {
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }
    if collected.count == 0 && !collected.is_over {
        return Poll::Pending;
    }
    Poll::Ready(collected)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Lengths of pieces; none where it waits once.
    struct Fake(VecDeque<Option<usize>>);

    impl BodySource for Fake {
        fn poll_piece(&mut self, _: &mut Context<'_>, target: &mut Vec<u8>) -> Poll<bool> {
            assert!(target.is_empty());
            match self.0.pop_front() {
                None => Poll::Ready(false),
                Some(None) => Poll::Pending,
                Some(Some(length)) => {
                    target.resize(length, b'x');
                    Poll::Ready(true)
                }
            }
        }

        fn note_sent(&mut self) {}
    }

    /// What is collected in turn: the text, the length of a large piece behind it, and how it
    /// stands then.
    fn collected(pieces: &[Option<usize>], is_chunked: bool) -> Vec<(String, usize, &'static str)> {
        let mut source = Fake(pieces.iter().copied().collect());
        let mut context = Context::from_waker(Waker::noop());
        let (mut piece, mut out) = (Vec::new(), Vec::new());
        let mut rows = Vec::new();
        loop {
            let Poll::Ready(collected) =
                collect(&mut source, &mut context, &mut piece, &mut out, is_chunked)
            else {
                rows.push((String::new(), 0, "waits"));
                continue;
            };
            let state = match (collected.is_over, collected.is_all) {
                (true, _) => "over",
                (false, true) => "all",
                (false, false) => "more",
            };
            let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
            rows.push((text, collected.large.map_or(0, |large| large.len()), state));
            if collected.is_over {
                return rows;
            }
        }
    }

    #[test]
    fn pieces_are_framed_and_sent_together() {
        let row = |text: &str, large, state| (text.to_owned(), large, state);
        assert_eq!(collected(&[], true), [row("0\r\n\r\n", 0, "over")]);
        assert_eq!(collected(&[], false), [row("", 0, "over")]);
        assert_eq!(
            collected(&[Some(1), Some(17), None, None, Some(2)], true),
            [
                row("1\r\nx\r\n11\r\nxxxxxxxxxxxxxxxxx\r\n", 0, "all"),
                row("", 0, "waits"),
                row("2\r\nxx\r\n0\r\n\r\n", 0, "over"),
            ]
        );
        assert_eq!(
            collected(&[Some(1), Some(2)], false),
            [row("xxx", 0, "over")]
        );
    }

    #[test]
    fn turns_are_bounded() {
        let large = COPIED_BYTES_MAX + 1;
        let rows = collected(&[Some(1), Some(large), Some(1)], true);
        let head = format!("1\r\nx\r\n{large:x}\r\n");
        assert_eq!(rows[0], (head, large, "more"));
        assert_eq!(rows[1].0, "1\r\nx\r\n0\r\n\r\n");
        let rows = collected(&[Some(1); 3 * COLLECTED_COUNT_MAX], false);
        assert!(
            rows[..3]
                .iter()
                .all(|row| row.0.len() == COLLECTED_COUNT_MAX)
        );
        let rows = collected(&[Some(COPIED_BYTES_MAX); 4], false);
        assert!(
            rows.iter()
                .all(|row| row.0.len() <= COLLECTED_BYTES_MAX + COPIED_BYTES_MAX)
        );
        assert_eq!(rows.len(), 3, "two at a time, and the end");
    }
}
