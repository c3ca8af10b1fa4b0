//! The executable's code and constants, in the page tables of its process.
//!
//! A start touches some hundred places all over them, and the kernel maps what lies around each:
//! most of what is resident of a small server is code that ran once. It lies in the page cache
//! anyway, so taking it out of the page tables costs one minor fault for each place that is used
//! again.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bits of an entry of `/proc/self/pagemap`: the page is there, and is a file's, not a copy.
const IS_PRESENT: u64 = 1 << 63;
const IS_FILE: u64 = 1 << 61;
const ENTRY_BYTES: usize = size_of::<u64>();

/// Takes the executable's code and constants out of the page tables; what runs next comes back as
/// it is touched. Pages that were written to stay, whoever did it: a debugger or a probe puts its
/// breakpoints there. Where the system does not tell which these are, nothing happens. For the end
/// of a start: some hundred microseconds.
pub fn unmap() {
    let Ok(page_map) = File::open("/proc/self/pagemap") else {
        return;
    };
    let page = rustix::param::page_size();
    for segment in segments() {
        let first = segment.start.div_ceil(page);
        let count = (segment.end / page).saturating_sub(first);
        let mut entries = vec![0; count * ENTRY_BYTES];
        let place = (first * ENTRY_BYTES) as u64;
        if page_map.read_exact_at(&mut entries, place).is_err() {
            continue;
        }
        for run in clean_runs(&entries) {
            let address = (first + run.start) * page;
            // SAFETY: these pages are a file's, as it is, mapped by the loader for as long as the
            // process lives. The next access of whatever thread maps them again.
            unsafe {
                libc::madvise(
                    address as *mut c_void,
                    run.len() * page,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }
}

/// The runs of pages that are there and are a file's.
fn clean_runs(entries: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    for (index, entry) in entries.iter().enumerate() {
        let wanted = IS_PRESENT | IS_FILE;
        if u64::from_ne_bytes(*entry) & wanted != wanted {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// Where the segments of the executable lie that nobody may write to.
fn segments() -> Vec<Range<usize>> {
    let mut segments: Vec<Range<usize>> = Vec::new();
    // SAFETY: calls the function with the address of `segments` before it returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut segments).cast()) };
    segments
}

/// Notes the segments of the first object, which is the executable.
unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _bytes: usize,
    segments: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description that lives during the call, and the address that
    // `segments` gave it.
    let (object, segments) = unsafe { (&*object, &mut *segments.cast::<Vec<Range<usize>>>()) };
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: one of the headers that the description counts.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let start = object.dlpi_addr.wrapping_add(header.p_vaddr);
            if let (Ok(start), Ok(bytes)) =
                (usize::try_from(start), usize::try_from(header.p_memsz))
            {
                segments.push(start..start.saturating_add(bytes));
            }
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_clean_pages() {
        let clean = IS_PRESENT | IS_FILE;
        let entries: Vec<u8> = [
            clean,
            clean | 1,
            IS_PRESENT,
            clean,
            IS_FILE,
            0,
            clean,
            clean,
        ]
        .iter()
        .flat_map(|entry| entry.to_ne_bytes())
        .collect();
        assert_eq!(clean_runs(&entries), [0..2, 3..4, 6..8]);
        assert!(clean_runs(&[]).is_empty());
    }

    #[test]
    fn code_and_constants_are_there_after_it() {
        const WORDS: [&str; 3] = ["some", "words", "here"];
        let code = unmap as *const () as usize;
        let segments = segments();
        assert!(segments.iter().any(|segment| segment.contains(&code)));
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..1000).map(|n| WORDS[n % 3].len()).sum::<usize>()))
            .collect();
        for _ in 0..20 {
            unmap();
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 4333);
        }
    }
}
