//! Bytes of a file, taken from the front.

/// What is left of a file.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Bytes { rest: bytes }
    }

    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// # Errors
    /// If fewer are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (front, rest) = self.rest.split_at_checked(count).ok_or_else(|| {
            format!(
                "the file is cut off: {count} bytes are wanted where {} are left",
                self.rest.len()
            )
        })?;
        self.rest = rest;
        Ok(front)
    }

    /// # Errors
    /// If fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let front = self.take(N)?;
        front
            .try_into()
            .map_err(|_| "the file is cut off".to_owned())
    }

    /// # Errors
    /// If none is left.
    pub fn byte(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    /// The next byte, which stays.
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }
}
