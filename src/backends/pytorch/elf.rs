//! Changes to the copy of a compiled model's library that is opened.
//!
//! Linking against torch makes a library need `libtorch.so`, which has nothing in it and exists to
//! pull in `libtorch_cuda.so` and 3 GB of CUDA. All that the model calls is in `libtorch_cpu.so`,
//! which it needs as well. So the name of the former is replaced by that of the latter in the
//! library's copy.

/// What is replaced.
const PULLS_EVERYTHING: &[u8] = b"libtorch.so";

/// `PT_LOAD`, `PT_DYNAMIC`; `DT_NULL`, `DT_NEEDED`, `DT_STRTAB`.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const END: u64 = 0;
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;

/// A `PT_LOAD` or `PT_DYNAMIC` segment.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    file_bytes: usize,
}

/// Makes the library in `file` not need `libtorch.so`. `None` if it is no such library, or does not
/// lie whole in the file: opening it would kill the process.
pub fn drop_need_of_libtorch(file: &mut [u8]) -> Option<()> {
    // 64 bits, little endian, version 1; a shared library for x86-64 or AArch64.
    if file.get(..7)? != b"\x7fELF\x02\x01\x01" || read_u16(file, 16)? != 3 {
        return None;
    }
    let segments = segments(file)?;
    let dynamic = *segments.iter().find(|segment| segment.kind == DYNAMIC)?;
    let mut needed = Vec::new();
    let mut strings = None;
    for at in (dynamic.offset..dynamic.offset.checked_add(dynamic.file_bytes)?).step_by(16) {
        let (tag, value) = (read_u64(file, at)?, read_u64(file, at + 8)?);
        match tag {
            END => break,
            NEEDED => needed.push((at + 8, value)),
            STRING_TABLE => strings = Some(value),
            _ => {}
        }
    }
    let strings = offset_of(&segments, strings?)?;
    let name = |value: u64| {
        let start = strings.checked_add(usize::try_from(value).ok()?)?;
        file.get(start..)?.split(|&byte| byte == 0).next()
    };
    let mut unwanted = None;
    let mut instead = None;
    for &(at, value) in &needed {
        if name(value)? == PULLS_EVERYTHING {
            unwanted = Some(at);
        } else if instead.is_none() || name(value)?.starts_with(b"libtorch_cpu.so") {
            instead = Some(value);
        }
    }
    if let (Some(at), Some(instead)) = (unwanted, instead) {
        file.get_mut(at..at + 8)?
            .copy_from_slice(&instead.to_le_bytes());
    }
    Some(())
}

/// Makes the library look for another environment variable than `name`, which nobody sets.
pub fn rename_variable(file: &mut [u8], name: &str) {
    let wanted: Vec<u8> = name.bytes().chain([0]).collect();
    let mut from = 0;
    while let Some(found) = file
        .get(from..)
        .and_then(|rest| rest.windows(wanted.len()).position(|bytes| bytes == wanted))
    {
        from += found;
        if let Some(first) = file.get_mut(from) {
            // No name that is in use, and the same length.
            *first = b'=';
        }
    }
}

/// The segments, each of which lies in the file.
fn segments(file: &[u8]) -> Option<Vec<Segment>> {
    let table = usize::try_from(read_u64(file, 32)?).ok()?;
    let entry_bytes = usize::from(read_u16(file, 54)?);
    let count = usize::from(read_u16(file, 56)?);
    let mut segments = Vec::new();
    for index in 0..count {
        let at = table.checked_add(index.checked_mul(entry_bytes)?)?;
        let kind = read_u32(file, at)?;
        if kind != LOAD && kind != DYNAMIC {
            continue;
        }
        let segment = Segment {
            kind,
            offset: usize::try_from(read_u64(file, at.checked_add(8)?)?).ok()?,
            address: read_u64(file, at.checked_add(16)?)?,
            file_bytes: usize::try_from(read_u64(file, at.checked_add(32)?)?).ok()?,
        };
        if segment.offset.checked_add(segment.file_bytes)? > file.len() {
            return None;
        }
        segments.push(segment);
    }
    Some(segments)
}

/// Where in the file an address lies.
fn offset_of(segments: &[Segment], address: u64) -> Option<usize> {
    segments
        .iter()
        .filter(|segment| segment.kind == LOAD)
        .find_map(|segment| {
            let inside = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            (inside < segment.file_bytes).then(|| segment.offset + inside)
        })
}

fn read_u16(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

fn read_u32(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

fn read_u64(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library whose one segment is the whole file: header, two program headers, names, dynamic
    /// entries.
    fn library(needed: &[&str]) -> Vec<u8> {
        let mut names = vec![0];
        let mut dynamic = Vec::new();
        for name in needed {
            dynamic.extend(1_u64.to_le_bytes());
            dynamic.extend((names.len() as u64).to_le_bytes());
            names.extend(name.bytes().chain([0]));
        }
        let names_at = 64 + 2 * 56;
        dynamic.extend(5_u64.to_le_bytes());
        dynamic.extend((0x1000 + names_at as u64).to_le_bytes());
        dynamic.extend([0; 16]);
        let dynamic_at = names_at + names.len();
        let total = dynamic_at + dynamic.len();
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[16] = 3;
        file[32] = 64;
        file[54] = 56;
        file[56] = 2;
        for (kind, offset, size) in [(1_u32, 0, total), (2, dynamic_at, dynamic.len())] {
            file.extend(kind.to_le_bytes());
            file.extend([0; 4]);
            file.extend((offset as u64).to_le_bytes());
            file.extend((0x1000 + offset as u64).to_le_bytes());
            file.extend([0; 8]);
            file.extend((size as u64).to_le_bytes());
            file.extend([0; 16]);
        }
        file.extend(names);
        file.extend(dynamic);
        file
    }

    /// Names that a library of [`library`] needs.
    fn needs(file: &[u8]) -> Vec<String> {
        let dynamic = usize::try_from(read_u64(file, 64 + 56 + 8).unwrap()).unwrap();
        let names_at = 64 + 2 * 56;
        (dynamic..file.len())
            .step_by(16)
            .take_while(|&at| read_u64(file, at) == Some(1))
            .map(|at| {
                let start = names_at + usize::try_from(read_u64(file, at + 8).unwrap()).unwrap();
                let name = file[start..].split(|&byte| byte == 0).next().unwrap();
                String::from_utf8(name.to_vec()).unwrap()
            })
            .collect()
    }

    #[test]
    fn replaces_the_need_of_libtorch() {
        for (needed, expected) in [
            (
                &["libtorch.so", "libtorch_cpu.so", "libc.so.6"][..],
                &["libtorch_cpu.so", "libtorch_cpu.so", "libc.so.6"][..],
            ),
            (
                &["libc.so.6", "libtorch.so", "libtorch_cpu.so"],
                &["libc.so.6", "libtorch_cpu.so", "libtorch_cpu.so"],
            ),
            (&["libtorch.so", "libm.so.6"], &["libm.so.6", "libm.so.6"]),
            (&["libtorch_cpu.so"], &["libtorch_cpu.so"]),
            (&["libtorch.so"], &["libtorch.so"]),
            (&[], &[]),
        ] {
            let mut file = library(needed);
            assert_eq!(drop_need_of_libtorch(&mut file), Some(()), "{needed:?}");
            assert_eq!(needs(&file), expected, "{needed:?}");
        }
    }

    #[test]
    fn renames_variables() {
        for (file, expected) in [
            (
                &b"..VARIABLE\0..VARIABLE\0"[..],
                &b"..=ARIABLE\0..=ARIABLE\0"[..],
            ),
            (b"VARIABLES\0", b"VARIABLES\0"),
            (b"VARIABLE", b"VARIABLE"),
            (b"", b""),
        ] {
            let mut renamed = file.to_vec();
            rename_variable(&mut renamed, "VARIABLE");
            assert_eq!(renamed, expected);
        }
    }

    #[test]
    fn refuses_what_does_not_lie_in_the_file() {
        let whole = library(&["libtorch.so", "libtorch_cpu.so"]);
        for length in 0..whole.len() {
            let mut file = whole[..length].to_vec();
            assert_eq!(drop_need_of_libtorch(&mut file), None, "{length} bytes");
        }
        // Any byte changed: an answer, whatever it is.
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                let _ = drop_need_of_libtorch(&mut file);
            }
        }
    }
}
