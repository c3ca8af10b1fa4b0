//! Registered regions as clients name them.

use conch_memory::ByteView;

use crate::Error;
use crate::shared_memory::region;
use crate::shared_memory::region::RegionUse;

/// A part of a region that a request may use.
#[derive(Debug)]
pub struct RegionWindow {
    pub(crate) view: ByteView,
    pub(crate) used: RegionUse,
}

impl RegionWindow {
    pub fn view(&self) -> &ByteView {
        &self.view
    }

    /// To be asked after the window's bytes were read.
    ///
    /// # Errors
    /// INVALID_ARG if they are gone: what was read are zeros.
    pub fn check(&self) -> Result<(), Error> {
        region::check(self.used.region())
    }
}

/// The two kinds of memory that clients may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    System,
    Cuda,
}
