//! Deflating a whole message.

use conch_memory::{OutOfMemory, try_reserve};
use flate2::{Compress, Compression, FlushCompress, Status};

use super::format::ContentCoding;

const WINDOW_BITS: u8 = 15;
/// Room is made in steps of at least so much.
const ROOM_BYTES_MIN: usize = 1 << 10;

/// Appends the compressed form of `pieces` to `target`, at zlib's default level, as upstream does.
///
/// # Errors
/// Without memory for it.
pub(crate) fn deflate_into<'a>(
    coding: ContentCoding,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    target: &mut Vec<u8>,
) -> Result<(), OutOfMemory> {
    let level = Compression::default();
    let mut state = match coding {
        ContentCoding::Gzip => Compress::new_gzip(level, WINDOW_BITS),
        ContentCoding::Deflate => Compress::new_with_window_bits(level, true, WINDOW_BITS),
    };
    for piece in pieces {
        run(&mut state, piece, target, FlushCompress::None)?;
    }
    run(&mut state, &[], target, FlushCompress::Finish)
}

fn run(
    state: &mut Compress,
    mut input: &[u8],
    target: &mut Vec<u8>,
    flush: FlushCompress,
) -> Result<(), OutOfMemory> {
    let is_last = matches!(flush, FlushCompress::Finish);
    while !input.is_empty() || is_last {
        if target.capacity() - target.len() < ROOM_BYTES_MIN {
            // Half of what is to come, as tensors shrink by little: at least double, so that
            // growing stays linear.
            let room = (input.len() / 2).max(target.len()).max(ROOM_BYTES_MIN);
            try_reserve(target, room)?;
        }
        let before = state.total_in();
        let status = state
            .compress_vec(input, target, flush)
            .expect("a fresh stream takes any bytes");
        let used = usize::try_from(state.total_in() - before).unwrap_or(usize::MAX);
        input = input.get(used..).unwrap_or(&[]);
        if status == Status::StreamEnd {
            break;
        }
    }
    Ok(())
}
