//! [`Collector`] of mimalloc, for the program whose allocator that is.

use crate::unused::Collector;

/// Pages of the calling thread in which nothing lives go to others, or to the system.
pub const MIMALLOC: Collector = Collector {
    to_threads: collect::<false>,
    to_system: collect::<true>,
};

// Generic so that only programs that name it have it, and mimalloc with it.
fn collect<const IS_FORCED: bool>() {
    // SAFETY: any thread may call it at any time. It looks at the pages of the thread's own heap.
    unsafe { libmimalloc_sys::mi_collect(IS_FORCED) }
}
