//! A window onto bytes that something else owns, cloned at no cost.
//!
//! The bytes stay as they are while the view lives, with one exception: those of a view of memory
//! that is shared with other processes may change at any moment. Such a view shows no slice; see
//! `shared`.

use std::any::Any;
use std::io::IoSlice;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::shared_block::SharedBlock;
use crate::{Block, Charge, MemoryPlace, OutOfMemory};

/// `len` bytes at an address that stays valid while the view lives. Cloning shares the owner; no
/// bytes are copied.
#[derive(Clone)]
pub struct ByteView {
    base: NonNull<u8>,
    len: usize,
    place: MemoryPlace,
    writers: Writers,
    owner: ViewOwner,
}

/// What keeps the bytes of a view alive. As small as a pointer to anything is.
#[derive(Clone)]
enum ViewOwner {
    /// A small block; none: nothing has to.
    Block(Option<SharedBlock>),
    Other(Arc<dyn Any + Send + Sync>),
}

const _: () = assert!(size_of::<ViewOwner>() == size_of::<Arc<dyn Any>>());

impl From<Option<Arc<dyn Any + Send + Sync>>> for ViewOwner {
    fn from(owner: Option<Arc<dyn Any + Send + Sync>>) -> ViewOwner {
        owner.map_or(ViewOwner::Block(None), ViewOwner::Other)
    }
}

/// What may change the bytes of a view while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    Nobody,
    /// A client, in memory that it registered.
    Client,
    /// A plug-in or its processes, in memory that it lent.
    PlugIn,
}

// SAFETY: the owner keeps the bytes alive and (unless they are shared, when none are borrowed)
// unchanged on whatever thread: contract of the constructors.
unsafe impl Send for ByteView {}
// SAFETY: as above.
unsafe impl Sync for ByteView {}

impl ByteView {
    /// No bytes.
    pub fn empty() -> ByteView {
        ByteView {
            base: NonNull::dangling(),
            len: 0,
            place: MemoryPlace::CPU,
            writers: Writers::Nobody,
            owner: ViewOwner::Block(None),
        }
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has none.
    pub fn try_copy_of(bytes: &[u8]) -> Result<ByteView, OutOfMemory> {
        if bytes.is_empty() {
            return Ok(ByteView::empty());
        }
        Ok(ByteView::from(Block::try_copy_of(bytes)?))
    }

    /// As [`ByteView::try_copy_of`], for few bytes; ends the process if the system has no memory.
    pub fn copy_of(bytes: &[u8]) -> ByteView {
        if bytes.is_empty() {
            ByteView::empty()
        } else {
            ByteView::from(Block::copy_of(bytes))
        }
    }

    /// Bytes that outlive the program, such as a constant.
    pub fn from_static(bytes: &'static [u8]) -> ByteView {
        ByteView {
            base: NonNull::from(bytes).cast(),
            len: bytes.len(),
            place: MemoryPlace::CPU,
            writers: Writers::Nobody,
            owner: ViewOwner::Block(None),
        }
    }

    /// Bytes owned by foreign code.
    ///
    /// # Safety
    /// `base..base+len` stays valid and unchanged until `owner` is dropped (for `None`: until the
    /// last clone of this view is), on every thread. For a GPU place the address is a device
    /// address and is never read here.
    pub unsafe fn foreign(
        base: *const u8,
        len: usize,
        place: MemoryPlace,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> ByteView {
        let base = NonNull::new(base.cast_mut()).unwrap_or(NonNull::dangling());
        ByteView {
            base,
            len,
            place,
            writers: Writers::Nobody,
            owner: owner.into(),
        }
    }

    /// Bytes in memory that other processes may write at any time.
    ///
    /// # Safety
    /// `base..base+len` stays readable and writable on every thread until `owner` is dropped, and
    /// is never borrowed as a reference.
    pub unsafe fn shared(
        base: NonNull<u8>,
        len: usize,
        place: MemoryPlace,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> ByteView {
        ByteView {
            base,
            len,
            place,
            writers: Writers::Client,
            owner: ViewOwner::Other(owner),
        }
    }

    /// Host memory of a plug-in, which it or its processes may write at any time; `owner` gives it
    /// back when it is dropped.
    ///
    /// # Safety
    /// `base..base+len` stays readable on every thread until `owner` is dropped, and is never
    /// borrowed as a reference.
    pub unsafe fn lent(
        base: NonNull<u8>,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> ByteView {
        ByteView {
            base,
            len,
            place: MemoryPlace::CPU,
            writers: Writers::PlugIn,
            owner: ViewOwner::Other(owner),
        }
    }

    /// Whether other processes may change the bytes at any time.
    pub fn is_shared(&self) -> bool {
        self.writers != Writers::Nobody
    }

    /// Whether the bytes lie in memory that a plug-in lent.
    pub fn is_lent(&self) -> bool {
        self.writers == Writers::PlugIn
    }

    /// The same bytes; `charge` is held for as long as they are used.
    pub fn with_charge(mut self, charge: Charge) -> ByteView {
        let owner = std::mem::replace(&mut self.owner, ViewOwner::Block(None));
        self.owner = ViewOwner::Other(Arc::new((owner, charge)));
        self
    }

    /// Says of what the bytes are charged with that it waits for the server, see
    /// [`Charge::mark_complete`].
    pub fn mark_complete(&self) {
        type Charged = (ViewOwner, Charge);
        let Some(owner) = self.owner() else { return };
        let charge = match owner.downcast_ref::<Block>() {
            Some(block) => block.charge(),
            None => owner.downcast_ref::<Charged>().map(|(_, charge)| charge),
        };
        if let Some(charge) = charge {
            charge.mark_complete();
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// What keeps the bytes alive, as its maker knows it.
    pub fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        match &self.owner {
            ViewOwner::Block(block) => block.as_ref().map(|block| &**block as _),
            ViewOwner::Other(owner) => Some(&**owner),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn place(&self) -> MemoryPlace {
        self.place
    }

    /// Address of the first byte; dangling (but aligned to 1) if empty.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// The bytes, if the CPU can read them and nobody changes them; none for GPU memory, and for
    /// memory shared with other processes.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if !self.place.is_host() || self.is_shared() {
            return None;
        }
        // SAFETY: valid, unchanged host memory while `self` keeps the owner alive.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) })
    }

    /// The bytes for a vectored write; empty for GPU memory. Unlike [`ByteView::as_slice`] it also
    /// gives memory that others may write: what is sent is what lies there at that moment.
    pub fn to_send(&self) -> IoSlice<'_> {
        if !self.place.is_host() {
            return IoSlice::new(&[]);
        }
        // SAFETY: readable host memory while `self` keeps the owner alive. Where others may write,
        // only the kernel reads through the slice, in the system call that it is for.
        IoSlice::new(unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) })
    }

    /// The part `start..end`; none if it does not lie inside.
    pub fn slice(&self, start: usize, end: usize) -> Option<ByteView> {
        if start > end || end > self.len {
            return None;
        }
        // SAFETY: `start <= len`, so the address stays inside (or one past) the same memory.
        let base = unsafe { self.base.add(start) };
        Some(ByteView {
            base,
            len: end - start,
            place: self.place,
            writers: self.writers,
            owner: self.owner.clone(),
        })
    }
}

impl From<Block> for ByteView {
    /// Freezes a block: its readable bytes become shared.
    fn from(block: Block) -> ByteView {
        ByteView {
            base: block.base(),
            len: block.len(),
            place: block.place(),
            writers: Writers::Nobody,
            owner: match SharedBlock::new(block) {
                Ok(shared) => ViewOwner::Block(Some(shared)),
                Err(block) => ViewOwner::Other(Arc::new(block)),
            },
        }
    }
}

impl From<Arc<Block>> for ByteView {
    fn from(block: Arc<Block>) -> ByteView {
        ByteView {
            base: block.base(),
            len: block.len(),
            place: block.place(),
            writers: Writers::Nobody,
            owner: ViewOwner::Other(block),
        }
    }
}

impl AsRef<[u8]> for ByteView {
    /// The bytes; empty for GPU memory and for memory shared with other processes, which have none
    /// to show.
    fn as_ref(&self) -> &[u8] {
        self.as_slice().unwrap_or(&[])
    }
}

impl std::fmt::Debug for ByteView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len)
            .field("place", &self.place)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_refuse_what_lies_outside() {
        let view = ByteView::copy_of(b"abcdef");
        let middle = view.slice(2, 5).unwrap();
        drop(view);
        assert_eq!(middle.as_ref(), b"cde");
        assert!(middle.slice(0, 4).is_none());
        assert!(middle.slice(3, 2).is_none());
        assert_eq!(middle.slice(3, 3).unwrap().len(), 0);
    }

    #[test]
    fn lent_bytes_are_sent_and_not_shown() {
        let block: Arc<Vec<u8>> = Arc::new(b"abcdef".to_vec());
        let base = NonNull::new(block.as_ptr().cast_mut()).unwrap();
        // SAFETY: the vector keeps its bytes, and nobody borrows them below.
        let view = unsafe { ByteView::lent(base, 6, Arc::clone(&block) as _) };
        let part = view.slice(2, 5).unwrap();
        assert!(part.is_lent() && part.is_shared());
        assert_eq!((part.as_slice(), part.as_ref()), (None, &b""[..]));
        assert_eq!(&*part.to_send(), b"cde");
        assert_eq!(&*ByteView::copy_of(b"own").to_send(), b"own");
        drop((view, part));
        assert_eq!(Arc::strong_count(&block), 1);
    }

    #[test]
    fn a_charge_goes_with_the_last_who_uses_the_bytes() {
        let budget = crate::Budget::new(1 << 20);
        let mut charge = Charge::empty(&budget);
        charge.cover(1).unwrap();
        let view = ByteView::copy_of(b"abc").with_charge(charge);
        let part = view.slice(1, 2).unwrap();
        drop(view);
        assert_eq!(
            (part.as_ref(), budget.used_bytes()),
            (&b"b"[..], Charge::STEP_BYTES)
        );
        drop(part);
        assert_eq!(budget.used_bytes(), 0);
    }
}
