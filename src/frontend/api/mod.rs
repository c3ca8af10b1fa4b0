//! Operations that both protocols share.
