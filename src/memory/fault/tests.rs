use std::process::Command;

use super::*;
use crate::shared::tests::{Object, bytes_of};

/// Runs the test `name` of this module in a process of its own. None in that process; else its exit
/// code, or minus its signal.
fn apart(name: &str) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    const MARK: &str = "CONCH_TEST_APART";
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let path = format!("fault::tests::{name}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&path, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let status = output.status;
    Some(status.code().unwrap_or_else(|| -status.signal().unwrap()))
}

#[test]
fn a_range_whose_file_shrinks_is_lost_and_others_are_not() {
    install().unwrap();
    install().unwrap();
    let (object, other) = (Object::new(1 << 20), Object::new(4096));
    let (shared, sound) = (
        object.open(0, 1 << 20).unwrap(),
        other.open(0, 4096).unwrap(),
    );
    let first = shared.view(0, 4, ()).unwrap();
    let last = shared.view((1 << 20) - 4, 4, ()).unwrap();
    assert!(first.write(b"head") && last.write(b"tail"));
    object.resize(4096);
    assert_eq!(bytes_of(&first), b"head");
    assert!(!shared.is_lost(), "nobody has stumbled over it yet");
    assert_eq!(bytes_of(&last), [0; 4]);
    assert!(shared.is_lost() && !sound.is_lost());
    // It can be used on, to no effect.
    assert!(first.write(b"x") && last.write(b"y"));
    assert_eq!(
        (bytes_of(&first), bytes_of(&last)),
        (b"x\0\0\0".to_vec(), b"y\0\0\0".to_vec())
    );
    let again = object.open(0, 4).unwrap();
    assert_eq!(bytes_of(&again.view(0, 4, ()).unwrap()), b"head");
    drop((shared, first, last));
    // Whoever gets the place in the table next begins unharmed.
    assert!(!other.open(0, 4096).unwrap().is_lost());
}

#[test]
fn writes_and_many_threads_at_a_time_are_contained() {
    install().unwrap();
    for _ in 0..50 {
        let object = Object::new(1 << 18);
        let shared = object.open(0, 1 << 18).unwrap();
        std::thread::scope(|scope| {
            for number in 0..4_usize {
                let shared = &shared;
                scope.spawn(move || {
                    for page in 0..64 {
                        let place = (page * 4 + number) % 64 * 4096;
                        let view = shared.view(place, 1, ()).unwrap();
                        assert!(view.write(b"z"));
                    }
                });
            }
            object.resize(0);
        });
        let last = shared.view(63 * 4096, 1, ()).unwrap();
        assert!(last.write(b"z"));
        assert!(shared.is_lost());
    }
}

/// The handler before ours: says that it was called by ending the process.
extern "C" fn earlier(number: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's own argument, passed on; `_exit` is async-signal-safe.
    unsafe {
        let has_address = (*info).si_code == libc::BUS_ADRERR && !(*info).si_addr().is_null();
        libc::_exit(if number == libc::SIGBUS && has_address {
            42
        } else {
            43
        });
    }
}

/// Touches memory behind the end of its file that nobody watches.
fn fault_elsewhere() {
    let object = Object::new(8192);
    let shared = object.open(0, 8192).unwrap();
    let view = shared.view(4096, 1, ()).unwrap();
    // As if it were a mapping of a backend's.
    let index = USED_COUNT.load(Ordering::Relaxed) - 1;
    SLOTS[index].set(0, 0);
    object.resize(0);
    drop(object);
    bytes_of(&view);
}

#[test]
fn other_faults_go_to_the_handler_that_was_there_before() {
    let Some(code) = apart("other_faults_go_to_the_handler_that_was_there_before") else {
        // SAFETY: all-zero bytes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = earlier as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is readable, its handler has the signature that its flags say.
        let code = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) };
        assert_eq!(code, 0);
        install().unwrap();
        return fault_elsewhere();
    };
    assert_eq!(code, 42);
}

#[test]
fn other_faults_end_the_process_as_they_would_without_us() {
    let name = "other_faults_end_the_process_as_they_would_without_us";
    let Some(code) = apart(name) else {
        install().unwrap();
        return fault_elsewhere();
    };
    assert_eq!(code, -libc::SIGBUS);
}

#[test]
fn a_signal_that_was_sent_does_what_it_did_before() {
    let Some(code) = apart("a_signal_that_was_sent_does_what_it_did_before") else {
        // SAFETY: no pointers are passed.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_IGN);
            install().unwrap();
            libc::raise(libc::SIGBUS);
        }
        return;
    };
    assert_eq!(code, 0, "ignored");
}

#[test]
fn a_signal_that_was_sent_ends_the_process_if_it_did_before() {
    let Some(code) = apart("a_signal_that_was_sent_ends_the_process_if_it_did_before") else {
        // SAFETY: no pointers are passed.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            install().unwrap();
            libc::raise(libc::SIGBUS);
        }
        return;
    };
    assert_eq!(code, -libc::SIGBUS);
}

#[test]
fn ranges_are_bounded_and_reused() {
    let Some(code) = apart("ranges_are_bounded_and_reused") else {
        let mut watches: Vec<AddressWatch> = (0..RANGES_MAX)
            .map(|number| AddressWatch::over((number + 1) << 12, (number + 2) << 12).unwrap())
            .collect();
        assert!(AddressWatch::over(1 << 12, 2 << 12).is_none());
        let freed = watches.swap_remove(77).index;
        assert_eq!(AddressWatch::over(1 << 12, 2 << 12).unwrap().index, freed);
        return;
    };
    assert_eq!(code, 0);
}
