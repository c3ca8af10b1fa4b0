//! The compressed forms.

/// A compressed form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Gzip,
    Deflate,
}

impl ContentCoding {
    /// As both protocols write it; case matters, as it does upstream.
    pub(crate) fn of(name: &[u8]) -> Option<ContentCoding> {
        match name {
            b"gzip" => Some(ContentCoding::Gzip),
            b"deflate" => Some(ContentCoding::Deflate),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            ContentCoding::Gzip => "gzip",
            ContentCoding::Deflate => "deflate",
        }
    }
}
