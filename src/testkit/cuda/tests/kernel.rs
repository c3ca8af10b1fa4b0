//! Modules and launches through the driver's functions.

use std::ffi::{CStr, CString, c_void};

use super::support::{
    NONE, Session, alloc, count, cu, event, fail, hold_copies, let_copies_go, ok, pinned, read,
    run_child, stream, write,
};

const HEAD: &str = ".version 6.0\n.target sm_50\n.address_size 64\n";

/// A kernel of one thread: it loads eight bytes of each of three places, computes, and stores the
/// predicate and registers of every width.
pub fn one(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<6>; .reg .b32 %r<6>; .reg .f32 %f<6>;\n\
         .reg .b64 %d<6>; .reg .b64 %in, %out;\n\
         ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n\
         ld.global.u64 %d1, [%in]; ld.global.u64 %d2, [%in+8]; ld.global.u64 %d3, [%in+16];\n\
         ld.global.u32 %r1, [%in]; ld.global.u32 %r2, [%in+8]; ld.global.u32 %r3, [%in+16];\n\
         ld.global.u16 %h1, [%in]; ld.global.u16 %h2, [%in+8];\n\
         ld.global.f32 %f1, [%in]; ld.global.f32 %f2, [%in+8]; ld.global.f32 %f3, [%in+16];\n\
         {body}\nret;\n}}\n"
    )
}

fn load_with_log(text: &str) -> (u32, *mut c_void, String) {
    let text = CString::new(text).unwrap();
    let (mut module, mut log) = (NONE, [0_u8; 200]);
    let options = [5_u32, 6];
    let mut values = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(log.len()),
    ];
    let code = cu!(cuModuleLoadDataEx(
        &mut module,
        text.as_ptr().cast(),
        2,
        options.as_ptr(),
        values.as_mut_ptr(),
    ));
    let written = CStr::from_bytes_until_nul(&log).unwrap();
    assert!(code == 0 || values[1].addr() == written.count_bytes());
    (code, module, written.to_str().unwrap().to_owned())
}

pub fn load(text: &str) -> *mut c_void {
    let (code, module, log) = load_with_log(text);
    assert_eq!(code, 0, "{log}");
    module
}

pub fn function(module: *mut c_void) -> *mut c_void {
    let mut function = NONE;
    ok!(cuModuleGetFunction(&mut function, module, c"k".as_ptr()));
    function
}

/// Launches over blocks of threads with one word for each parameter.
pub fn launch(
    function: *mut c_void,
    blocks: u32,
    threads: u32,
    stream: *mut c_void,
    words: &mut [u64],
) -> u32 {
    let mut places: Vec<*mut c_void> = Vec::new();
    for word in words {
        places.push((&raw mut *word).cast());
    }
    let places = places.as_mut_ptr();
    cu!(cuLaunchKernel(
        function,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        stream,
        places,
        NONE.cast()
    ))
}

/// Adds 1 to `n` words; each thread one.
pub fn counting() -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 at, .param .u32 n) .maxntid 128, 1, 1\n{{\n\
         .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<3>;\n\
         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n\
         mad.lo.u32 %r1, %r1, %r2, %r3; ld.param.u32 %r2, [n];\n\
         setp.ge.u32 %p, %r1, %r2; @%p ret;\n\
         ld.param.u64 %d1, [at]; cvta.to.global.u64 %d1, %d1; mad.wide.u32 %d1, %r1, 4, %d1;\n\
         ld.global.u32 %r4, [%d1]; add.u32 %r4, %r4, 1; st.global.u32 [%d1], %r4;\nret;\n}}\n"
    )
}

#[test]
fn arrays_among_parameters_are_read_by_address() {
    let _session = Session::start();
    // Stores the word of the thread's block in the list, at the place that is the first.
    let listed = |at: &str| {
        format!(
            "{HEAD}.visible .entry k(.param .align 8 .b8 list[24])\n{{\n\
             .reg .b32 %r<3>; .reg .b64 %d<5>;\n\
             mov.u64 %d1, list; mov.u32 %r1, %ctaid.x; mad.wide.u32 %d2, %r1, 8, %d1;\n\
             ld.param.u64 %d3, [%d2+8]; ld.param.u64 %d4, [{at}]; mad.wide.u32 %d4, %r1, 8, %d4;\n\
             st.global.u64 [%d4], %d3;\nret;\n}}\n"
        )
    };
    let address = alloc(16);
    for at in ["%d1", "list"] {
        write(address, &[0; 16]);
        let own = stream();
        let words = &mut [address, 7, 1 << 40];
        assert_eq!(launch(function(load(&listed(at))), 2, 1, own, words), 0);
        ok!(cuStreamSynchronize(own));
        let expected: Vec<u8> = [7_u64, 1 << 40]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(read(address, 16), expected);
    }
}

#[test]
fn every_thread_knows_its_place() {
    let _session = Session::start();
    let (address, module) = (alloc(4000), load(&counting()));
    let function = function(module);
    write(address, &[0; 4000]);
    let own = stream();
    let pass = &mut [address, 999];
    assert_eq!(launch(function, 8, 128, own, pass), 0);
    assert_eq!(launch(function, 8, 128, own, pass), 0);
    ok!(cuStreamSynchronize(own));
    let words: Vec<u8> = read(address, 4000);
    let expected: Vec<u8> = (0..1000_u32)
        .flat_map(|at| (2 * u32::from(at < 999)).to_le_bytes())
        .collect();
    assert_eq!(words, expected);
    // Pinned memory of the host is reached at its address.
    let host = pinned(16);
    host.fill(0);
    assert_eq!(
        launch(function, 1, 4, own, &mut [host.as_ptr().addr() as u64, 4]),
        0
    );
    ok!(cuStreamSynchronize(own));
    assert_eq!(host, [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(count("live_modules"), 1);
    ok!(cuModuleUnload(module));
    assert_eq!(count("live_modules"), 0);
    assert_eq!(
        launch(function, 1, 1, own, pass),
        400,
        "it went with its module"
    );
    assert_eq!(cu!(cuModuleUnload(module)), 400);
}

#[test]
fn wrong_texts_and_launches_are_refused() {
    let session = Session::start();
    let (code, _, log) = load_with_log(&one("bar.sync 0;"));
    assert_eq!(code, 218);
    assert!(
        log.contains("line 13;") && log.contains("'bar.sync'"),
        "{log}"
    );
    // The log is cut to its room.
    let (code, _, log) = load_with_log(&one(&format!("{} 0;", "x".repeat(400))));
    assert_eq!((code, log.len()), (218, 199));
    assert_eq!(load_with_log(&one("").replace("6.0", "8.8")).0, 222);
    assert_eq!(load_with_log(&one("").replace("sm_50", "sm_91")).0, 209);
    assert_eq!(load_with_log("\u{7f}ELF").0, 200);
    let mut place = NONE;
    assert_eq!(cu!(cuModuleLoadData(&mut place, NONE)), 1);
    let text = CString::new(one("")).unwrap();
    ok!(cuModuleLoadData(&mut place, text.as_ptr().cast()));
    assert_eq!(
        cu!(cuModuleGetFunction(&mut { NONE }, place, c"other".as_ptr())),
        500
    );
    assert_eq!(
        cu!(cuModuleGetFunction(&mut { NONE }, NONE, c"k".as_ptr())),
        400
    );
    let function = function(load(&counting()));
    let words = &mut [alloc(16), 4];
    for (blocks, threads, expected) in [(0, 1, 1), (1, 0, 1), (1, 129, 1), (1, 128, 0)] {
        assert_eq!(launch(function, blocks, threads, NONE, words), expected);
    }
    let bare = |shared, parameters: *mut *mut c_void| {
        cu!(cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            shared,
            NONE,
            parameters,
            NONE.cast()
        ))
    };
    assert_eq!(bare(0, NONE.cast()), 1);
    assert_eq!(bare(1, NONE.cast()), 801);
    // A stream of another device.
    ok!(cuCtxSetCurrent(session.contexts[1]));
    assert_eq!(launch(function, 1, 1, NONE, words), 400);
    let other = stream();
    ok!(cuCtxSetCurrent(session.contexts[0]));
    assert_eq!(launch(function, 1, 1, other, words), 400);
    ok!(cuStreamSynchronize(NONE));
}

#[test]
fn a_wrong_address_breaks_the_context() {
    let session = Session::start();
    for (address, expected) in [(0, 700), (1, 716), (0xdead_0000, 700)] {
        let kept = alloc(16);
        // One word beyond the end, or somewhere else.
        let address = if address == 0 { kept + 16 } else { address };
        let function = function(load(&counting()));
        assert_eq!(launch(function, 1, 1, NONE, &mut [address, 1]), 0);
        assert_eq!(cu!(cuStreamSynchronize(NONE)), expected);
        assert_eq!(launch(function, 1, 1, NONE, &mut [kept, 1]), expected);
        assert_eq!(cu!(cuMemFree_v2(kept)), expected);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuDevicePrimaryCtxRetain(&mut { NONE }, 0));
        ok!(cuCtxSetCurrent(session.contexts[0]));
    }
}

#[test]
fn kernels_fail_hang_and_take_time_as_ordered() {
    let session = Session::start();
    let (address, own, done) = (alloc(16), stream(), event());
    write(address, &[0; 16]);
    let module = load(&counting());
    let kernel = function(module);
    let go = || launch(kernel, 1, 4, own, &mut [address, 4]);
    // Another stream works while one is held.
    crate::conch_cuda_double_set_kernel_us(u64::MAX);
    assert_eq!(go(), 0);
    ok!(cuEventRecord(done, own));
    ok!(cuMemsetD8Async(address + 4, 9, 4, NONE));
    ok!(cuStreamSynchronize(NONE));
    assert_eq!(
        (cu!(cuEventQuery(done)), cu!(cuStreamQuery(own))),
        (600, 600)
    );
    crate::conch_cuda_double_set_kernel_us(0);
    ok!(cuEventSynchronize(done));
    assert_eq!(read(address, 8), [1, 0, 0, 0, 10, 9, 9, 9]);
    // Copies that are held do not hold kernels.
    hold_copies();
    assert_eq!(go(), 0);
    ok!(cuStreamSynchronize(own));
    let_copies_go();
    fail("kernel", 0, 1, 999);
    assert_eq!(go(), 0);
    assert_eq!(cu!(cuStreamSynchronize(own)), 999);
    // One that never ends, until the order is taken back.
    fail("hang", 0, 1, 719);
    assert_eq!(go(), 0);
    ok!(cuEventRecord(done, own));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(cu!(cuEventQuery(done)), 600);
    fail("hang", 0, 0, 0);
    ok!(cuEventSynchronize(done));
    // And one that the loss of its context ends.
    let endless = load(&counting().replace("@%p ret;", "AGAIN: bra AGAIN;"));
    assert_eq!(launch(function(endless), 1, 1, own, &mut [address, 4]), 0);
    fail("device:0", 0, 1, 719);
    assert_eq!(cu!(cuStreamSynchronize(own)), 719);
    drop(session);
}

#[test]
fn a_kernel_sees_what_changes_in_pinned_memory() {
    let _session = Session::start();
    let waiting = format!(
        "{HEAD}.visible .entry k(.param .u64 flag, .param .u64 out)\n{{\n\
         .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %d<2>;\n\
         ld.param.u64 %d0, [flag]; ld.param.u64 %d1, [out];\n\
         AGAIN: ld.volatile.global.u32 %r0, [%d0]; setp.eq.u32 %p, %r0, 0; @%p bra AGAIN;\n\
         st.global.u32 [%d1], %r0;\nret;\n}}\n"
    );
    let (own, done, out) = (stream(), event(), alloc(4));
    let (flag, set) = (pinned(4), pinned(4));
    flag.fill(0);
    set.fill(7);
    let [flag, set] = [flag, set].map(|memory| memory.as_ptr().addr() as u64);
    let words = &mut [flag, out];
    assert_eq!(launch(function(load(&waiting)), 1, 1, own, words), 0);
    ok!(cuEventRecord(done, own));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(cu!(cuEventQuery(done)), 600);
    ok!(cuMemcpyAsync(flag, set, 4, NONE));
    ok!(cuEventSynchronize(done));
    assert_eq!(read(out, 4), [7; 4]);
}

#[test]
fn events_tell_the_times_of_kernels() {
    let _session = Session::start();
    let timed = || {
        let mut event = NONE;
        ok!(cuEventCreate(&mut event, 1));
        event
    };
    let (first, second, own) = (timed(), timed(), stream());
    let function = function(load(&counting()));
    let address = alloc(16);
    crate::conch_cuda_double_set_kernel_us(20_000);
    ok!(cuEventRecord(first, own));
    assert_eq!(launch(function, 1, 4, own, &mut [address, 4]), 0);
    ok!(cuEventRecord(second, own));
    ok!(cuEventSynchronize(second));
    crate::conch_cuda_double_set_kernel_us(0);
    let mut found = 0.0;
    ok!(cuEventElapsedTime(&mut found, first, second));
    assert!(found >= 20.0, "{found}");
}

#[test]
fn kernels_are_tallied() {
    let path = std::env::temp_dir().join(format!("conch-cuda-tally-{}", std::process::id()));
    let place = path.to_str().unwrap();
    run_child("tally", &[("CONCH_CUDA_DOUBLE_TALLY", place)]);
    let rows = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(rows.contains("kernel k 2 12\n"), "{rows}");
}

/// Runs in a process of its own.
pub fn tally() {
    let address = alloc(64);
    let function = function(load(&counting()));
    for blocks in [1, 2] {
        assert_eq!(launch(function, blocks, 4, NONE, &mut [address, 8]), 0);
    }
    ok!(cuStreamSynchronize(NONE));
}
