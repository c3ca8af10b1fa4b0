//! The ends of copies.

/// Which memory a copy function takes at one of its ends.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Device,
    Host,
    /// Either, told by the address.
    Any,
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub struct End {
    pub address: u64,
    pub kind: Kind,
}
