//! Blocks of 64 KiB and more, in a few large mappings: the number of mappings does not grow with
//! the number of blocks.
//!
//! The kernel allows a process 65,530 mappings by default, and clients decide how many blocks there
//! are. So address space is taken in *chunks*, readable and writable as a whole (changing the
//! protection of a part would split the mapping), without reserving memory for them. A bitmap per
//! chunk says which units of 64 KiB are taken; the first run that is long enough is given out.
//! Pages that are given back lose their content (`MADV_DONTNEED`), so they cost nothing and are
//! zero for the next owner.
//!
//! Usually a chunk is 16 GiB of address space and stays. Where address space is limited (`ulimit
//! -v`, strict overcommit) chunks are small, fall back to smaller ones, and go back to the kernel
//! once they are empty.
//!
//! Fragmentation: memory has none, as free units hold no pages. Of address space blocks from 2 MiB
//! on lie in chunks of their own kind, so that small ones that live long do not cut up the room of
//! large ones; what cannot be placed is refused, not waited for.
//!
//! Blocks above 8 MiB have the kernel's huge pages, in chunks of a third kind: without them its
//! page faults cost several times what the bytes do that are written. Each of those blocks begins
//! at a huge page and has whole ones, so none is split when a block goes. The last one is in use as
//! a whole, and so is the first as soon as a byte is written: who takes such a block for a client
//! has had 1 MiB from it.
//!
//! One lock, held for a search in the bitmaps (a microsecond), where a mapping per block held the
//! kernel's lock of the whole address space for longer. The kernel drops pages outside of it.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{OutOfMemory, runs, scarcity};

/// What is given out is a multiple of this.
pub(crate) const UNIT_BYTES: usize = 64 << 10;
/// Blocks from here on lie in chunks of their own: the size of the kernel's huge pages, which
/// smaller blocks must not have, as one of them would make all of it resident.
const LARGE_FROM_BYTES: usize = HUGE_PAGE_BYTES;
/// Of the kernel.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Larger blocks have huge pages, unless address space is limited: at most a fifth of what they
/// hold is unused. A size class of the pool, which gives nothing larger to who asks for less.
pub const HUGE_ABOVE_BYTES: usize = 8 << 20;

/// What `used` bytes of a block with this capacity take up: whole huge pages, where it has such.
pub fn held_bytes(used: usize, capacity: usize) -> usize {
    if capacity > HUGE_ABOVE_BYTES {
        used.next_multiple_of(HUGE_PAGE_BYTES)
    } else {
        used
    }
}

/// Of address space, where that is free: 64 of them hold a terabyte.
const CHUNK_BYTES: usize = 16 << 30;
/// Of chunks where address space is limited: a part of it, within these bounds.
const CHUNK_BYTES_MIN: usize = 16 << 20;
const LIMITED_CHUNK_BYTES_MAX: usize = 1 << 30;
const LIMIT_PARTS: usize = 64;
/// Far below what the kernel allows. With 16 GiB each this is 64 TiB.
const CHUNKS_MAX: usize = 4096;
/// A block that had to move gets so many times its size of address space, where that is free, so
/// that it moves seldom.
const ROOM_FACTOR: usize = 4;

/// A part of a chunk; to be given back to the arena that it came from.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) base: NonNull<u8>,
    unit_count: u32,
    chunk: u32,
}

/// Which part of which chunk an extent is; its address is kept elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct ExtentPlace {
    unit_count: u32,
    chunk: u32,
}

impl Extent {
    /// The extent that begins at `base`; made from what [`Extent::place`] returned, once.
    pub(crate) fn at(base: NonNull<u8>, place: ExtentPlace) -> Extent {
        Extent {
            base,
            unit_count: place.unit_count,
            chunk: place.chunk,
        }
    }

    pub(crate) fn place(&self) -> ExtentPlace {
        ExtentPlace {
            unit_count: self.unit_count,
            chunk: self.chunk,
        }
    }

    /// What can be used of it.
    pub(crate) fn bytes(&self) -> usize {
        self.unit_count as usize * UNIT_BYTES
    }
}

/// All chunks of the process. To be a static: what lies in it may outlive everything.
pub(crate) struct Arena {
    state: Mutex<ArenaState>,
}

struct ArenaState {
    /// Places keep their numbers; one without a chunk is used again.
    chunks: Vec<Option<Chunk>>,
    /// None until it is first wanted.
    terms: Option<ArenaTerms>,
}

/// How chunks are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaTerms {
    pub(crate) chunk_bytes: usize,
    /// Empty chunks go back to the kernel, and nothing gets more room than it needs.
    pub(crate) is_limited: bool,
    pub(crate) chunks_max: usize,
}

struct Chunk {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// Where its units begin.
    base: NonNull<u8>,
    unit_count: usize,
    taken_count: usize,
    /// There is no free unit before this.
    first_free: usize,
    /// No run of free units is longer.
    longest_run_max: usize,
    taken: Vec<u64>,
    /// Units whose pages the kernel would not drop; they are zeroed by hand. Empty while there are
    /// none.
    dirty: Vec<u64>,
    kind: ChunkKind,
}

/// Which blocks a chunk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkKind {
    Small,
    /// From [`LARGE_FROM_BYTES`] on.
    Large,
    /// Above [`HUGE_ABOVE_BYTES`].
    Huge,
}

impl ChunkKind {
    /// Of a block of `bytes` with address space for `room`.
    fn of(bytes: usize, room: usize, terms: &ArenaTerms) -> ChunkKind {
        if bytes > HUGE_ABOVE_BYTES && !terms.is_limited {
            ChunkKind::Huge
        } else if room.div_ceil(UNIT_BYTES) * UNIT_BYTES >= LARGE_FROM_BYTES {
            ChunkKind::Large
        } else {
            ChunkKind::Small
        }
    }

    /// So many units, and those that must be given out with them.
    fn whole_units(self, unit_count: usize) -> usize {
        match self {
            ChunkKind::Small | ChunkKind::Large => unit_count,
            ChunkKind::Huge => unit_count.next_multiple_of(HUGE_PAGE_BYTES / UNIT_BYTES),
        }
    }
}

// SAFETY: the mapping that a chunk describes has no thread affinity.
unsafe impl Send for Chunk {}

impl Arena {
    pub(crate) const fn new() -> Arena {
        Arena::with_terms(None)
    }

    const fn with_terms(terms: Option<ArenaTerms>) -> Arena {
        Arena {
            state: Mutex::new(ArenaState {
                chunks: Vec::new(),
                terms,
            }),
        }
    }

    /// Room for `bytes` zero bytes.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Extent, OutOfMemory> {
        self.allocate_with_room(bytes, bytes)
    }

    /// As [`Arena::allocate`], with address space for `room` bytes if that costs nothing.
    fn allocate_with_room(&self, bytes: usize, room: usize) -> Result<Extent, OutOfMemory> {
        let refused = OutOfMemory { asked_bytes: bytes };
        // Further than any machine's memory, and so that no sum below overflows.
        if bytes > isize::MAX as usize / 4 || scarcity::is_refused() {
            return Err(refused);
        }
        let mut state = self.lock();
        let terms = state.terms();
        let room = if terms.is_limited { bytes } else { room };
        let units = |bytes: usize| bytes.div_ceil(UNIT_BYTES).max(1);
        let kind = |room| ChunkKind::of(bytes, room, &terms);
        let (extent, is_dirty) = state
            .place(units(room), kind(room), &terms)
            .or_else(|| state.place(units(bytes), kind(bytes), &terms))
            .ok_or(refused)?;
        drop(state);
        if is_dirty {
            // SAFETY: the units were taken above and are nobody else's.
            unsafe { std::ptr::write_bytes(extent.base.as_ptr(), 0, extent.bytes()) };
        }
        Ok(extent)
    }

    /// Makes `extent` usable for `bytes` bytes. What lies in its first `used` bytes is kept, and
    /// what lies beyond those that it had is zero. It moves if it must: then those `used` bytes are
    /// copied.
    pub(crate) fn grow(
        &self,
        extent: &mut Extent,
        used: usize,
        bytes: usize,
    ) -> Result<(), OutOfMemory> {
        if bytes <= extent.bytes() || self.extend(extent, bytes) {
            return Ok(());
        }
        let moved = self.allocate_with_room(bytes, bytes.saturating_mul(ROOM_FACTOR))?;
        // SAFETY: both are this arena's, distinct, and hold at least `used` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                extent.base.as_ptr(),
                moved.base.as_ptr(),
                used.min(extent.bytes()),
            );
        }
        let previous = std::mem::replace(extent, moved);
        self.free(previous);
        Ok(())
    }

    /// Takes the units behind `extent`, if they are free.
    fn extend(&self, extent: &mut Extent, bytes: usize) -> bool {
        let mut state = self.lock();
        let Some(chunk) = state.chunk(extent.chunk) else {
            return false;
        };
        let start = chunk.unit_of(extent) + extent.unit_count as usize;
        let wanted = chunk.kind.whole_units(bytes.div_ceil(UNIT_BYTES));
        let more = wanted - extent.unit_count as usize;
        let fits = start + more <= chunk.unit_count && !runs::any(&chunk.taken, start, more);
        // Dirty units would have to be zeroed, which is no quicker than moving.
        if !fits || (!chunk.dirty.is_empty() && runs::any(&chunk.dirty, start, more)) {
            return false;
        }
        runs::set(&mut chunk.taken, start, more);
        chunk.taken_count += more;
        extent.unit_count += u32::try_from(more).expect("a chunk has fewer units");
        true
    }

    /// Drops the content and makes the units free.
    pub(crate) fn free(&self, extent: Extent) {
        // SAFETY: the pages belong to the extent, which nobody uses any more. The range lies within
        // one mapping, so nothing is split.
        let is_dropped = unsafe {
            libc::madvise(
                extent.base.as_ptr().cast(),
                extent.bytes(),
                libc::MADV_DONTNEED,
            ) == 0
        };
        let mut state = self.lock();
        let terms = state.terms();
        let Some(chunk) = state.chunk(extent.chunk) else {
            return;
        };
        let (start, count) = (chunk.unit_of(&extent), extent.unit_count as usize);
        if !is_dropped && !chunk.note_dirty(start, count) {
            // No memory for that note either: the units stay taken rather than show what is in
            // them.
            return;
        }
        runs::clear(&mut chunk.taken, start, count);
        chunk.taken_count -= count;
        chunk.first_free = chunk.first_free.min(start);
        chunk.longest_run_max = chunk.unit_count;
        if chunk.taken_count == 0 {
            state.empty(extent.chunk as usize, &terms);
        }
    }

    /// Chunks there are.
    #[cfg(test)]
    fn chunk_count(&self) -> usize {
        self.lock().chunks.iter().flatten().count()
    }

    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaState {
    fn terms(&mut self) -> ArenaTerms {
        *self.terms.get_or_insert_with(ArenaTerms::of_process)
    }

    fn chunk(&mut self, index: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(index as usize)?.as_mut()
    }

    /// So many units, in a chunk that is there or in a new one, and whether they must be zeroed.
    fn place(
        &mut self,
        unit_count: usize,
        kind: ChunkKind,
        terms: &ArenaTerms,
    ) -> Option<(Extent, bool)> {
        let of_kind = |chunk: &Chunk| chunk.kind == kind;
        if let Some(placed) = self.place_in(unit_count, of_kind) {
            return Some(placed);
        }
        // Chunks that are kept for the other kind are not worth a refusal; nor is a stay among the
        // others.
        if self.add_chunk(unit_count, kind, terms)
            || self.release_empty() && self.add_chunk(unit_count, kind, terms)
        {
            return self.place_in(unit_count, of_kind);
        }
        self.place_in(unit_count, |_| true)
    }

    fn place_in(
        &mut self,
        unit_count: usize,
        suits: impl Fn(&Chunk) -> bool,
    ) -> Option<(Extent, bool)> {
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = chunk else { continue };
            if suits(chunk)
                && let Some((extent, is_dirty)) = chunk.place(index, unit_count)
            {
                return Some((extent, is_dirty));
            }
        }
        None
    }

    /// A new chunk for at least so many units, as large as the terms and the kernel allow.
    fn add_chunk(&mut self, unit_count: usize, kind: ChunkKind, terms: &ArenaTerms) -> bool {
        let index = match self.chunks.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.chunks.len() < terms.chunks_max => {
                if self.chunks.try_reserve(1).is_err() {
                    return false;
                }
                self.chunks.push(None);
                self.chunks.len() - 1
            }
            None => return false,
        };
        let needed_bytes = kind.whole_units(unit_count) * UNIT_BYTES;
        let mut bytes = terms.chunk_bytes.max(needed_bytes);
        loop {
            if let Some(chunk) = Chunk::map(bytes, kind) {
                self.chunks[index] = Some(chunk);
                return true;
            }
            if bytes == needed_bytes {
                return false;
            }
            let half = kind.whole_units(bytes / 2 / UNIT_BYTES) * UNIT_BYTES;
            bytes = if half < CHUNK_BYTES_MIN {
                needed_bytes
            } else {
                half.max(needed_bytes)
            };
        }
    }

    /// A chunk has become empty: it goes if address space is limited, but for one that the next
    /// block would want again, and if it was made for one block larger than usual.
    fn empty(&mut self, index: usize, terms: &ArenaTerms) {
        let Some(chunk) = self.chunks.get(index).and_then(Option::as_ref) else {
            return;
        };
        let is_usual = chunk.unit_count * UNIT_BYTES <= terms.chunk_bytes;
        let kind = chunk.kind;
        let is_alone = !self.chunks.iter().enumerate().any(|(other, chunk)| {
            other != index
                && chunk
                    .as_ref()
                    .is_some_and(|chunk| chunk.kind == kind && chunk.taken_count == 0)
        });
        if is_usual && (is_alone || !terms.is_limited) {
            return;
        }
        self.unmap(index);
    }

    /// Gives all empty chunks back; says whether there were any.
    fn release_empty(&mut self) -> bool {
        let mut has_released = false;
        for index in 0..self.chunks.len() {
            if let Some(chunk) = &self.chunks[index]
                && chunk.taken_count == 0
            {
                has_released |= self.unmap(index);
            }
        }
        has_released
    }

    /// If the kernel refuses (unmapping the middle of what it has joined makes one mapping more),
    /// the chunk stays, to be used again.
    fn unmap(&mut self, index: usize) -> bool {
        let place = &mut self.chunks[index];
        let Some(chunk) = place else { return false };
        // SAFETY: the chunk is a mapping of its own, and nothing in it is taken.
        let outcome = unsafe { libc::munmap(chunk.mapped.as_ptr().cast(), chunk.mapped_bytes) };
        if outcome == 0 {
            *place = None;
        }
        outcome == 0
    }
}

impl Chunk {
    fn map(bytes: usize, kind: ChunkKind) -> Option<Chunk> {
        let unit_count = bytes / UNIT_BYTES;
        u32::try_from(unit_count).ok()?;
        let mut taken = Vec::new();
        let words = runs::word_count(unit_count);
        crate::fallible(|| taken.try_reserve_exact(words)).ok()?;
        taken.resize(words, 0);
        // Where the kernel does not align it by itself, a part at its start stays unused.
        let spare_bytes = match kind {
            ChunkKind::Small | ChunkKind::Large => 0,
            ChunkKind::Huge => HUGE_PAGE_BYTES,
        };
        let mapped_bytes = bytes.checked_add(spare_bytes)?;
        // SAFETY: an anonymous private mapping touches no existing memory.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let advice = match kind {
            ChunkKind::Small => Some(libc::MADV_NOHUGEPAGE),
            ChunkKind::Large => None,
            ChunkKind::Huge => Some(libc::MADV_HUGEPAGE),
        };
        if let Some(advice) = advice {
            // SAFETY: concerns the mapping made above. A kernel without huge pages refuses, which
            // is as good.
            unsafe { libc::madvise(mapped, mapped_bytes, advice) };
        }
        let mapped: NonNull<u8> = NonNull::new(mapped.cast())?;
        let unused_bytes = match kind {
            ChunkKind::Small | ChunkKind::Large => 0,
            ChunkKind::Huge => {
                mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get()
            }
        };
        // SAFETY: less than the bytes by which the mapping is larger than the chunk.
        let base = unsafe { mapped.add(unused_bytes) };
        Some(Chunk {
            mapped,
            mapped_bytes,
            base,
            unit_count,
            taken_count: 0,
            first_free: 0,
            longest_run_max: unit_count,
            taken,
            dirty: Vec::new(),
            kind,
        })
    }

    /// So many free units, and whether any of them is dirty; none if there is no such run.
    fn place(&mut self, index: usize, unit_count: usize) -> Option<(Extent, bool)> {
        let unit_count = self.kind.whole_units(unit_count);
        if unit_count > self.longest_run_max.min(self.unit_count - self.taken_count) {
            return None;
        }
        let start = match runs::find(&self.taken, self.unit_count, unit_count, self.first_free) {
            Ok(start) => start,
            Err(longest) => {
                self.longest_run_max = longest;
                return None;
            }
        };
        runs::set(&mut self.taken, start, unit_count);
        self.taken_count += unit_count;
        if start == self.first_free {
            self.first_free += unit_count;
        }
        let is_dirty = !self.dirty.is_empty() && runs::any(&self.dirty, start, unit_count);
        if is_dirty {
            runs::clear(&mut self.dirty, start, unit_count);
        }
        // SAFETY: the unit lies inside the mapping.
        let base = unsafe { self.base.add(start * UNIT_BYTES) };
        let extent = Extent {
            base,
            unit_count: u32::try_from(unit_count).ok()?,
            chunk: u32::try_from(index).ok()?,
        };
        Some((extent, is_dirty))
    }

    fn unit_of(&self, extent: &Extent) -> usize {
        (extent.base.addr().get() - self.base.addr().get()) / UNIT_BYTES
    }

    fn note_dirty(&mut self, start: usize, count: usize) -> bool {
        if self.dirty.is_empty() {
            let words = self.taken.len();
            if crate::fallible(|| self.dirty.try_reserve_exact(words)).is_err() {
                return false;
            }
            self.dirty.resize(words, 0);
        }
        runs::set(&mut self.dirty, start, count);
        true
    }
}

impl ArenaTerms {
    fn of_process() -> ArenaTerms {
        let mut limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: writes to the struct that it is given. If it fails there is no limit to be seen.
        unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
        // Under strict overcommit the kernel counts a mapping as used, whatever is in it.
        let is_strict = std::fs::read("/proc/sys/vm/overcommit_memory")
            .is_ok_and(|text| text.first() == Some(&b'2'));
        ArenaTerms::under(
            (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur),
            is_strict,
        )
    }

    fn under(limit_bytes: Option<u64>, is_strict: bool) -> ArenaTerms {
        let limited_bytes = |limit: u64| {
            let part = usize::try_from(limit).unwrap_or(usize::MAX) / LIMIT_PARTS;
            let part = part.clamp(CHUNK_BYTES_MIN, LIMITED_CHUNK_BYTES_MAX);
            part / UNIT_BYTES * UNIT_BYTES
        };
        let chunk_bytes = match (limit_bytes, is_strict) {
            (Some(limit), _) => limited_bytes(limit),
            (None, true) => LIMITED_CHUNK_BYTES_MAX / 4,
            (None, false) => CHUNK_BYTES,
        };
        ArenaTerms {
            chunk_bytes,
            is_limited: limit_bytes.is_some() || is_strict,
            chunks_max: CHUNKS_MAX,
        }
    }
}

#[cfg(test)]
mod tests;
