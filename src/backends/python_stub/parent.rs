//! The end of this process with that of the server, however that ends: with all that the model
//! started in its process group.

use std::ffi::c_int;
use std::mem::MaybeUninit;

/// Has the kernel end this process' group when the process `parent` ends. False if it has ended.
pub(crate) fn follow(parent: i32) -> bool {
    // Nobody else uses the last ones; SIGKILL would end this process alone.
    let signal = libc::SIGRTMAX() - 1;
    let handler: extern "C" fn(c_int) = end_group;
    // SAFETY: an action of zeros blocks nothing and has no flags; the handler only calls what may
    // be called in one.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
    // SAFETY: the call takes a number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    // SAFETY: it takes nothing.
    unsafe { libc::getppid() == parent }
}

extern "C" fn end_group(_signal: c_int) {
    // SAFETY: both take numbers; 0 is this process' group, of which it is the first. Were it not,
    // it ends alone.
    unsafe {
        let group = if libc::getpgrp() == libc::getpid() {
            0
        } else {
            libc::getpid()
        };
        libc::kill(group, libc::SIGKILL);
    }
}
