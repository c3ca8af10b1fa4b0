//! Reads the zip archives that torch writes: entries stored as they are or deflated, sizes that may
//! need 64 bits.
//!
//! Everything is checked against the file's length before it is used, and an entry's bytes against
//! their CRC: what comes out is what was put in.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use conch_backend_sdk::Error;
use flate2::read::DeflateDecoder;

const END: u32 = 0x0605_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;
const END_64: u32 = 0x0606_4b50;
const DIRECTORY_ENTRY: u32 = 0x0201_4b50;
const LOCAL_HEADER: u32 = 0x0403_4b50;

/// How an entry is stored.
const AS_IT_IS: u16 = 0;
const DEFLATED: u16 = 8;

/// The end record, and the longest comment that may follow it.
const END_BYTES: usize = 22;
const TAIL_BYTES_MAX: usize = END_BYTES + 0xffff;

/// Largest directory that is read: torch's archives have tens of entries.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    method: u16,
    crc: u32,
    size: u64,
    stored_size: u64,
    /// Of its local header.
    offset: u64,
}

/// An opened archive.
pub struct Archive {
    file: File,
    length: u64,
    entries: Vec<Entry>,
}

impl Archive {
    /// # Errors
    /// `Unavailable` if the file cannot be read; `InvalidArgument` if it is no archive, or not
    /// whole.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |error: std::io::Error| {
            Error::unavailable(format!("cannot read '{}': {error}", path.display()))
        };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let entries = read_directory(&file, length)
            .ok_or_else(|| Error::invalid("it is no zip archive, or not a whole one"))?;
        Ok(Archive {
            file,
            length,
            entries,
        })
    }

    /// # Errors
    /// As [`read`](Self::read), and `Unsupported` if it is larger than `bytes_max`.
    pub fn read_small(&self, entry: &Entry, bytes_max: u64) -> Result<Vec<u8>, Error> {
        if entry.size.max(entry.stored_size) > bytes_max {
            return Err(Error::unsupported(format!(
                "'{}' has more than {bytes_max} bytes",
                entry.name
            )));
        }
        self.read(entry)
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The bytes of an entry.
    ///
    /// # Errors
    /// `InvalidArgument` if they are damaged; `Unsupported` if they are compressed in a way that
    /// torch does not know; or out of memory.
    pub fn read(&self, entry: &Entry) -> Result<Vec<u8>, Error> {
        let damaged = || Error::invalid(format!("'{}' is damaged", entry.name));
        let start = self.start_of(entry).ok_or_else(damaged)?;
        let end = start.checked_add(entry.stored_size).ok_or_else(damaged)?;
        if end > self.length {
            return Err(damaged());
        }
        let size = usize::try_from(entry.stored_size).map_err(|_| damaged())?;
        let stored = read_at(&self.file, start, size).map_err(|error| match error {
            ReadError::Memory => Error::out_of_memory(size),
            ReadError::File => damaged(),
        })?;
        let bytes = match entry.method {
            AS_IT_IS => stored,
            DEFLATED => inflate(&stored, entry.size).ok_or_else(damaged)?,
            other => {
                return Err(Error::unsupported(format!(
                    "'{}' is compressed by method {other}, which torch does not know",
                    entry.name
                )));
            }
        };
        if bytes.len() as u64 != entry.size || crc32(&bytes) != entry.crc {
            return Err(damaged());
        }
        Ok(bytes)
    }

    /// Where an entry's bytes begin, which its local header says.
    fn start_of(&self, entry: &Entry) -> Option<u64> {
        let header = read_at(&self.file, entry.offset, 30).ok()?;
        if u32_at(&header, 0)? != LOCAL_HEADER {
            return None;
        }
        let names = u64::from(u16_at(&header, 26)?) + u64::from(u16_at(&header, 28)?);
        entry.offset.checked_add(30 + names)
    }
}

/// At most one byte more than `size`, so that memory is in proportion to what is there.
fn inflate(stored: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut plain = DeflateDecoder::new(stored).take(size.checked_add(1)?);
    let mut piece = [0; 1 << 14];
    loop {
        let count = plain.read(&mut piece).ok()?;
        if count == 0 {
            return Some(bytes);
        }
        bytes.try_reserve(count).ok()?;
        bytes.extend_from_slice(piece.get(..count)?);
    }
}

enum ReadError {
    Memory,
    File,
}

fn read_at(file: &File, offset: u64, size: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| ReadError::Memory)?;
    bytes.resize(size, 0);
    file.read_exact_at(&mut bytes, offset)
        .map_err(|_| ReadError::File)?;
    Ok(bytes)
}

fn read_directory(file: &File, length: u64) -> Option<Vec<Entry>> {
    let tail_bytes = usize::try_from(length).ok()?.min(TAIL_BYTES_MAX);
    let tail_start = length - tail_bytes as u64;
    let tail = read_at(file, tail_start, tail_bytes).ok()?;
    let end = (0..=tail_bytes.checked_sub(END_BYTES)?)
        .rev()
        .find(|&at| u32_at(&tail, at) == Some(END))?;
    let (mut size, mut offset) = (
        u64::from(u32_at(&tail, end + 12)?),
        u64::from(u32_at(&tail, end + 16)?),
    );
    // Where 32 bits do not do, or torch thinks so, another record has 64.
    let locator = end.checked_sub(20);
    if let Some(at) = locator.filter(|&at| u32_at(&tail, at) == Some(END_64_LOCATOR)) {
        let record = read_at(file, u64_at(&tail, at + 8)?, 56).ok()?;
        if u32_at(&record, 0)? != END_64 {
            return None;
        }
        size = u64_at(&record, 40)?;
        offset = u64_at(&record, 48)?;
    }
    if size > DIRECTORY_BYTES_MAX || offset.checked_add(size)? > length {
        return None;
    }
    let directory = read_at(file, offset, usize::try_from(size).ok()?).ok()?;
    let mut entries = Vec::new();
    let mut rest = &*directory;
    while u32_at(rest, 0) == Some(DIRECTORY_ENTRY) {
        let (entry, behind) = read_entry(rest)?;
        entries.push(entry);
        rest = behind;
    }
    Some(entries)
}

/// One entry off the front of the directory.
fn read_entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let name_bytes = usize::from(u16_at(bytes, 28)?);
    let extra_bytes = usize::from(u16_at(bytes, 30)?);
    let comment_bytes = usize::from(u16_at(bytes, 32)?);
    let (name, behind) = bytes.get(46..)?.split_at_checked(name_bytes)?;
    let (extra, behind) = behind.split_at_checked(extra_bytes)?;
    let mut entry = Entry {
        name: String::from_utf8_lossy(name).into_owned(),
        method: u16_at(bytes, 10)?,
        crc: u32_at(bytes, 16)?,
        stored_size: u64::from(u32_at(bytes, 20)?),
        size: u64::from(u32_at(bytes, 24)?),
        offset: u64::from(u32_at(bytes, 42)?),
    };
    widen(&mut entry, extra)?;
    Some((entry, behind.get(comment_bytes..)?))
}

/// Takes the numbers that do not fit 32 bits from the extra field of 64 bits, which has only those.
fn widen(entry: &mut Entry, mut extra: &[u8]) -> Option<()> {
    while extra.len() >= 4 {
        let (id, size) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let (field, behind) = extra.get(4..)?.split_at_checked(size)?;
        if id == 1 {
            let mut at = 0;
            for number in [&mut entry.size, &mut entry.stored_size, &mut entry.offset] {
                if *number == u64::from(u32::MAX) {
                    *number = u64_at(field, at)?;
                    at += 8;
                }
            }
        }
        extra = behind;
    }
    Some(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The CRC of zip archives, four bytes at a time: a model of 45 MB takes a tenth of a second.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let [a, b, c, d] = (crc ^ u32::from_le_bytes(*word)).to_le_bytes();
        crc = TABLES[3][usize::from(a)]
            ^ TABLES[2][usize::from(b)]
            ^ TABLES[1][usize::from(c)]
            ^ TABLES[0][usize::from(d)];
    }
    for byte in rest {
        let [low, ..] = crc.to_le_bytes();
        crc = TABLES[0][usize::from(low ^ byte)] ^ (crc >> 8);
    }
    !crc
}

const TABLES: [[u32; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut index = 0;
    while index < 256 {
        #[allow(clippy::cast_possible_truncation)] // Below 256.
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                0xedb8_8320 ^ (crc >> 1)
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][index] = crc;
        index += 1;
    }
    let mut table = 1;
    while table < 4 {
        let mut index = 0;
        while index < 256 {
            let before = tables[table - 1][index];
            tables[table][index] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            index += 1;
        }
        table += 1;
    }
    tables
};

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An archive of stored entries.
    pub fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut directory = Vec::new();
        for (name, bytes) in entries {
            let offset = u32::try_from(file.len()).unwrap();
            let size = u32::try_from(bytes.len()).unwrap();
            let name_bytes = u16::try_from(name.len()).unwrap();
            let mut facts = crc32(bytes).to_le_bytes().to_vec();
            facts.extend(size.to_le_bytes());
            facts.extend(size.to_le_bytes());
            facts.extend(name_bytes.to_le_bytes());
            facts.extend([0; 2]);
            file.extend(LOCAL_HEADER.to_le_bytes());
            file.extend([0; 10]);
            file.extend(&facts);
            file.extend(name.bytes());
            file.extend(*bytes);
            directory.extend(DIRECTORY_ENTRY.to_le_bytes());
            directory.extend([0; 12]);
            directory.extend(&facts);
            directory.extend([0; 10]);
            directory.extend(offset.to_le_bytes());
            directory.extend(name.bytes());
        }
        let offset = u32::try_from(file.len()).unwrap();
        file.extend(&directory);
        file.extend(END.to_le_bytes());
        file.extend([0; 8]);
        file.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
        file.extend(offset.to_le_bytes());
        file.extend([0; 2]);
        file
    }

    fn read(bytes: &[u8], case: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let path = std::env::temp_dir().join(format!("conch-zip-{case}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let archive = Archive::open(&path);
        std::fs::remove_file(&path).unwrap();
        let archive = archive?;
        archive
            .entries()
            .iter()
            .map(|entry| Ok((entry.name.clone(), archive.read(entry)?)))
            .collect()
    }

    #[test]
    fn reads_what_was_stored() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let bytes = archive(&[("m/a", b"first"), ("m/b", b""), ("m/c", &[7; 1000])]);
        let expected = vec![
            ("m/a".to_owned(), b"first".to_vec()),
            ("m/b".to_owned(), vec![]),
            ("m/c".to_owned(), vec![7; 1000]),
        ];
        assert_eq!(read(&bytes, "whole"), Ok(expected));
    }

    #[test]
    fn damage_is_an_error_or_changes_nothing() {
        let whole = archive(&[("m/a", b"first"), ("m/b", b"second")]);
        for length in 0..whole.len() {
            assert!(read(&whole[..length], "cut").is_err(), "{length} bytes");
        }
        let content = read(&whole, "damaged").unwrap();
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                // A name may differ, or an entry be missing; bytes that come out are those put in.
                for (_, bytes) in read(&bytes, "damaged").unwrap_or_default() {
                    assert!(
                        bytes.is_empty() || content.iter().any(|(_, put_in)| *put_in == bytes),
                        "{at}: {value}"
                    );
                }
            }
        }
    }
}
