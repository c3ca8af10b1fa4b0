//! The head of a request: what its header block says.

use smallvec::SmallVec;

use crate::memory;

/// What a list may have, counted as HTTP/2 counts: a field costs 32 bytes beside its own.
pub const LIST_BYTES_MAX: usize = 64 << 10;
const FIELD_BYTES: usize = 32;

/// HeaderList in their order; names are lower-case.
#[derive(Debug, Default)]
pub struct HeaderList {
    bytes: Vec<u8>,
    /// Where each name, and each value, ends.
    ends: SmallVec<[(u32, u32); 16]>,
}

impl HeaderList {
    /// The value of the first field called `name`, in capitals or not.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.iter();
        fields
            .find(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// All fields, each its name and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        let mut start = 0;
        self.ends.iter().map(move |(name_end, end)| {
            let (name, behind) = rest.split_at((name_end - start) as usize);
            let (value, behind) = behind.split_at((end - name_end) as usize);
            rest = behind;
            start = *end;
            (name, value)
        })
    }

    /// What the list counts for HTTP/2.
    pub fn list_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * FIELD_BYTES
    }

    /// Appends a field; says whether there was memory for it.
    fn push(&mut self, name: &[u8], value: &[u8]) -> bool {
        if self.bytes.is_empty() {
            self.bytes.reserve(USUAL_BYTES);
        }
        if memory::extend(&mut self.bytes, name).is_err()
            || memory::extend(&mut self.bytes, value).is_err()
        {
            return false;
        }
        let end = self.bytes.len() as u32;
        self.ends.push((end - value.len() as u32, end));
        true
    }
}

impl FromIterator<(&'static str, &'static str)> for HeaderList {
    fn from_iter<I: IntoIterator<Item = (&'static str, &'static str)>>(pairs: I) -> HeaderList {
        let mut fields = HeaderList::default();
        for (name, value) in pairs {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }
}

/// Names and values of a usual request for inference.
const USUAL_BYTES: usize = 256;

/// What a request is for, and its fields.
#[derive(Debug, Default)]
pub struct RequestHeaders {
    pub fields: HeaderList,
    pub method: SmallVec<[u8; 8]>,
    pub path: SmallVec<[u8; 64]>,
}

impl RequestHeaders {
    /// The path; empty if it is no text.
    pub fn path_text(&self) -> &str {
        std::str::from_utf8(&self.path).unwrap_or("")
    }
}

/// How a list of fields is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderListState {
    Fine,
    /// It has more than [`LIST_BYTES_MAX`].
    TooLong,
    /// It is no request.
    Malformed,
    OutOfMemory,
}

/// A list under way.
pub(crate) struct HeaderListBuilder {
    head: RequestHeaders,
    pub(crate) state: HeaderListState,
    byte_count: usize,
    has_scheme: bool,
    has_authority: bool,
    pub(crate) content_length: Option<u64>,
}

impl HeaderListBuilder {
    pub(crate) fn new() -> HeaderListBuilder {
        HeaderListBuilder {
            head: RequestHeaders::default(),
            state: HeaderListState::Fine,
            byte_count: 0,
            has_scheme: false,
            has_authority: false,
            content_length: None,
        }
    }

    /// Takes the next field.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) {
        self.byte_count += name.len() + value.len() + FIELD_BYTES;
        if self.state != HeaderListState::Fine {
            return;
        }
        if self.byte_count > LIST_BYTES_MAX {
            self.state = HeaderListState::TooLong;
        } else if let Err(state) = self.try_take(name, value) {
            self.state = state;
        }
    }

    fn try_take(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeaderListState> {
        if let Some(pseudo) = name.strip_prefix(b":") {
            return self.take_pseudo(pseudo, value);
        }
        if !is_name(name) || !is_value(value) || is_of_connection(name, value) {
            return Err(HeaderListState::Malformed);
        }
        if name == b"content-length" {
            let length = parse_length(value).ok_or(HeaderListState::Malformed)?;
            if self
                .content_length
                .replace(length)
                .is_some_and(|own| own != length)
            {
                return Err(HeaderListState::Malformed);
            }
        }
        match self.head.fields.push(name, value) {
            true => Ok(()),
            false => Err(HeaderListState::OutOfMemory),
        }
    }

    /// A field whose name begins with a colon: it stands before all others, and but once.
    fn take_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeaderListState> {
        let head = &mut self.head;
        let is_first = match name {
            _ if head.fields.list_bytes() > 0 => false,
            b"method" => is_name_of_any_case(value) && fill(&mut head.method, value),
            b"path" => is_path(value) && fill(&mut head.path, value),
            b"scheme" => !std::mem::replace(&mut self.has_scheme, true),
            b"authority" => is_value(value) && !std::mem::replace(&mut self.has_authority, true),
            _ => false,
        };
        match is_first {
            true => Ok(()),
            false => Err(HeaderListState::Malformed),
        }
    }

    /// The head of a request, or why the list is none.
    pub(crate) fn finish(self) -> Result<(RequestHeaders, Option<u64>), HeaderListState> {
        if self.state != HeaderListState::Fine {
            return Err(self.state);
        }
        let head = self.head;
        if head.method.is_empty() || head.path.is_empty() || !self.has_scheme {
            return Err(HeaderListState::Malformed);
        }
        Ok((head, self.content_length))
    }

    /// Whether the list may be that of trailers.
    pub(crate) fn are_trailers(&self) -> bool {
        let head = &self.head;
        let has_pseudo = !head.method.is_empty()
            || !head.path.is_empty()
            || self.has_scheme
            || self.has_authority;
        self.state == HeaderListState::Fine && !has_pseudo
    }
}

/// Fills a field that is empty yet.
fn fill<A: smallvec::Array<Item = u8>>(place: &mut SmallVec<A>, value: &[u8]) -> bool {
    let is_free = place.is_empty();
    if is_free {
        place.extend_from_slice(value);
    }
    is_free
}

/// Characters of names (RFC 9110, token), by their bytes.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let c = byte as u8;
        table[byte] = c.is_ascii_alphanumeric()
            || matches!(
                c,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

fn is_name(name: &[u8]) -> bool {
    is_name_of_any_case(name) && !name.iter().any(u8::is_ascii_uppercase)
}

fn is_name_of_any_case(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| NAME[usize::from(*byte)])
}

/// Visible characters, spaces, tabs, and what is beyond ASCII.
fn is_value(value: &[u8]) -> bool {
    value
        .iter()
        .all(|byte| *byte >= 0x20 && *byte != 0x7f || *byte == b'\t')
}

/// Absolute, or the star of OPTIONS.
fn is_path(path: &[u8]) -> bool {
    (path.first() == Some(&b'/') || path == b"*")
        && path.iter().all(|byte| *byte > 0x20 && *byte != 0x7f)
}

/// HeaderList that say something about an HTTP/1 connection.
fn is_of_connection(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"te" => value != b"trailers",
        b"connection" | b"transfer-encoding" | b"upgrade" | b"keep-alive" | b"proxy-connection" => {
            true
        }
        _ => false,
    }
}

fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0u64, |length, digit| {
        let is_digit = digit.is_ascii_digit();
        is_digit.then(|| length * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [(&str, &str); 4] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.b/C"),
        (":authority", "%2Ftmp%2Fsocket"),
    ];

    fn read(fields: &[(&str, &str)]) -> Result<(RequestHeaders, Option<u64>), HeaderListState> {
        let mut list = HeaderListBuilder::new();
        for (name, value) in fields {
            list.take(name.as_bytes(), value.as_bytes());
        }
        list.finish()
    }

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        [&HEAD[..], more].concat()
    }

    #[test]
    fn heads_are_read() {
        let fields = with(&[
            ("te", "trailers"),
            ("a", "1"),
            ("content-length", "12"),
            ("a", ""),
            ("b-bin", "\u{e9}\t"),
        ]);
        let (head, content_length) = read(&fields).expect("a request");
        assert_eq!(
            (&head.method[..], &head.path[..]),
            (&b"POST"[..], &b"/a.b/C"[..])
        );
        assert_eq!(content_length, Some(12));
        assert_eq!(head.fields.get("a"), Some(&b"1"[..]));
        assert_eq!(head.fields.get("A"), Some(&b"1"[..]));
        assert_eq!(head.fields.get("nothing"), None);
        let pairs: Vec<_> = head.fields.iter().collect();
        assert_eq!(pairs.len(), 5);
        assert_eq!(pairs[4], (&b"b-bin"[..], "\u{e9}\t".as_bytes()));
        assert_eq!(
            head.fields.list_bytes(),
            2 + 8 + 2 + 14 + 2 + 1 + 5 + 3 + 5 * 32
        );
    }

    #[test]
    fn what_is_no_request_is_malformed() {
        for more in [
            &[("A", "1")][..],
            &[("", "1")],
            &[("a b", "1")],
            &[("a", "1\n2")],
            &[("a", "\0")],
            &[("te", "gzip")],
            &[("connection", "close")],
            &[("a", "1"), (":authority", "x")],
            &[(":path", "/")],
            &[(":scheme", "http")],
            &[(":status", "200")],
            &[(":protocol", "websocket")],
            &[("content-length", "1"), ("content-length", "2")],
            &[("content-length", "+1")],
            &[("content-length", "")],
        ] {
            assert_eq!(
                read(&with(more)).err(),
                Some(HeaderListState::Malformed),
                "{more:?}"
            );
        }
        for missing in 0..3 {
            let mut fields = HEAD.to_vec();
            fields.remove(missing);
            assert_eq!(
                read(&fields).err(),
                Some(HeaderListState::Malformed),
                "{missing}"
            );
        }
        for path in ["", "a", "/a b", "/\u{7f}"] {
            let fields = [HEAD[0], HEAD[1], (":path", path)];
            assert_eq!(
                read(&fields).err(),
                Some(HeaderListState::Malformed),
                "{path:?}"
            );
        }
    }

    #[test]
    fn long_lists_are_not_kept() {
        let value = "v".repeat(LIST_BYTES_MAX / 4);
        let mut list = HeaderListBuilder::new();
        for (name, own) in HEAD {
            list.take(name.as_bytes(), own.as_bytes());
        }
        for _ in 0..1000 {
            list.take(b"a", value.as_bytes());
        }
        assert!(list.head.fields.bytes.len() <= LIST_BYTES_MAX);
        assert_eq!(list.finish().err(), Some(HeaderListState::TooLong));
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        let mut list = HeaderListBuilder::new();
        list.take(b"grpc-status", b"0");
        assert!(list.are_trailers());
        list.take(b":path", b"/");
        assert!(!list.are_trailers());
    }
}
