//! Memory that two processes share.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;

use super::children::hex;
use super::support::{NONE, Session, alloc, child, count, cu, ok, read, run_child, write};
use crate::ipc::Handle;

fn handle(address: u64) -> Handle {
    let mut handle = Handle { bytes: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, address));
    handle
}

/// The rest of the first line that begins with a word.
fn await_line(process: &mut Child, word: &str) -> String {
    let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
    let line = lines.find_map(|line| {
        line.unwrap()
            .split_once(word)
            .map(|found| found.1.to_owned())
    });
    line.unwrap_or_else(|| panic!("no line with {word}"))
        .trim()
        .to_owned()
}

fn finish(mut process: Child) {
    process.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn another_process_maps_the_whole_allocation() {
    let _session = Session::start();
    let address = alloc(10_000);
    write(address, b"shared");
    let text = hex(&handle(address + 77));
    let mut process = child("import", &[("HANDLE", &text), ("WANT", "0")])
        .spawn()
        .unwrap();
    await_line(&mut process, "ready");
    assert_eq!(read(address, 6), b"answer");
    ok!(cuMemFree_v2(address));
    assert_eq!(count("live_allocations"), 0);
    finish(process);
    // Nobody has the memory any more.
    run_child("import", &[("HANDLE", &text), ("WANT", "1")]);
}

#[test]
fn memory_outlives_the_process_that_exported_it() {
    let mut exporter = child("export", &[]).spawn().unwrap();
    let text = await_line(&mut exporter, "handle ");
    let mut importer = child("import", &[("HANDLE", &text), ("WANT", "0")])
        .spawn()
        .unwrap();
    await_line(&mut importer, "ready");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    finish(importer);
    run_child("import", &[("HANDLE", &text), ("WANT", "1")]);
}

#[test]
fn the_exporter_cannot_open_its_own_handle() {
    let _session = Session::start();
    let own = handle(alloc(4096));
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut 0, own, 1)), 201);
    assert_eq!(
        cu!(cuIpcOpenMemHandle_v2(&mut 0, Handle { bytes: [7; 64] }, 1)),
        1
    );
    ok!(cuCtxSetCurrent(NONE));
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&mut 0, own, 1)), 201);
}

#[test]
fn handles_of_nothing_are_refused() {
    let _session = Session::start();
    let mut handle = Handle { bytes: [0; 64] };
    let address = alloc(4096);
    assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, address + 4096)), 1);
    assert_eq!(cu!(cuIpcGetMemHandle(&mut handle, 4096)), 1);
    assert_eq!(cu!(cuIpcGetMemHandle(std::ptr::null_mut(), address)), 1);
    assert_eq!(cu!(cuIpcCloseMemHandle(address)), 1);
}

#[test]
fn another_device_needs_peer_access() {
    let session = Session::start();
    ok!(cuCtxSetCurrent(session.contexts[1]));
    let address = alloc(10_000);
    write(address, b"shared");
    let text = hex(&handle(address));
    let environment = |peer, want| {
        [
            ("HANDLE", text.as_str()),
            ("CONCH_CUDA_DOUBLE", peer),
            ("WANT", want),
        ]
    };
    run_child("import", &environment("devices=2;peer=0", "217"));
    let mut process = child("import", &environment("devices=2", "0"))
        .spawn()
        .unwrap();
    await_line(&mut process, "ready");
    assert_eq!(read(address, 6), b"answer");
    finish(process);
}
