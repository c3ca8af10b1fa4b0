//! Tables of texts.
