//! Where the text of a number is written, by copies whose length is known.

/// Room for the text of a number. The longest is a sign, a point, 17 digits and six zeros; more
/// than the text may be written, as copies whose length is known cost the least.
pub(crate) type NumberRoom = [u8; 32];

/// Writes `text` at `begin`, by copies whose length is known; returns its end.
#[inline]
pub(super) fn put_text(room: &mut NumberRoom, begin: usize, text: &[u8]) -> usize {
    let end = begin + text.len();
    if let (Some(head), Some(tail)) = (text.first_chunk::<16>(), text.last_chunk::<16>()) {
        put(room, begin, head);
        put(room, end - 16, tail);
    } else if let (Some(head), Some(tail)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        put(room, begin, head);
        put(room, end - 8, tail);
    } else if let Some(place) = room.get_mut(begin..end) {
        place.copy_from_slice(text);
    }
    end
}

/// Writes `bytes` at `begin`; returns their end.
#[inline]
pub(super) fn put<const N: usize>(room: &mut NumberRoom, begin: usize, bytes: &[u8; N]) -> usize {
    if let Some(place) = room.get_mut(begin..begin + N) {
        place.copy_from_slice(bytes);
    }
    begin + N
}
