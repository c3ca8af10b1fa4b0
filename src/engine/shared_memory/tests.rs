use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conch_config::DataType;
use conch_memory::{AllowedOwners, ByteView};

use crate::admission::shm_completion::ShmCompletion;
use crate::private_copy::to_private;
use crate::shared_memory::regions::{DISABLED, NAME_BYTES_MAX};
use crate::shared_memory::*;
use crate::testing::{Recorder, admit, draft, model, until};
use crate::{
    Code, Completion, Delivery, DraftInput, Error, Output, Response, ResponseParts, Timestamps,
};

/// A shared memory object of its own: where Linux keeps them, they are files.
struct Object {
    key: String,
    path: PathBuf,
    file: File,
}

impl Object {
    fn new(bytes: u64) -> Object {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let key = format!("/conch_regions_{}_{number}", std::process::id());
        let path = PathBuf::from(format!("/dev/shm{key}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        file.set_len(bytes).unwrap();
        Object { key, path, file }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // Whether it could be removed is no matter of the test's.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn enabled() -> Arc<Regions> {
    Regions::start(true, AllowedOwners::Own).unwrap()
}

fn text<T>(outcome: Result<T, Error>) -> Result<T, (Code, String)> {
    outcome.map_err(|error| (error.code, error.message.into_owned()))
}

fn names(regions: &Regions) -> Vec<String> {
    let rows = regions.status(RegionKind::System, "").unwrap();
    rows.iter().map(|row| row.name.to_string()).collect()
}

fn content(view: &ByteView) -> Vec<u8> {
    to_private(view, None).unwrap().as_ref().to_vec()
}

/// How often a mapping of the object is in the process' address space.
fn mapping_count(object: &Object) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches(&*object.path.to_string_lossy()).count()
}

#[test]
fn nothing_is_registered_unless_allowed() {
    let regions = Regions::start(false, AllowedOwners::Own).unwrap();
    let refused = Err((Code::Unsupported, DISABLED.to_owned()));
    assert_eq!(text(regions.register("r", "/k", 0, 1)), refused);
    assert_eq!(text(regions.unregister(RegionKind::System, "r")), refused);
    assert_eq!(text(regions.unregister_all(RegionKind::System)), refused);
    assert!(names(&regions).is_empty());
    let unknown = "Unable to find shared memory region: 'r'".to_owned();
    assert_eq!(
        text(regions.window("r", 0, 0)).err(),
        Some((Code::NotFound, unknown))
    );
}

#[test]
fn registration_has_upstreams_words() {
    let (regions, object) = (enabled(), Object::new(100));
    let key = &*object.key;
    let invalid = |message: &str| Err((Code::InvalidArg, message.to_owned()));
    let reserved = |key: &str| {
        Err((
            Code::InvalidArg,
            format!(
                "cannot register shared memory region 'r' with key '{key}' as the key contains the \
                 reserved prefix 'triton_python_backend_shm_region_'"
            ),
        ))
    };
    let out_of_bounds = "failed to register shared memory region 'r': invalid args";
    let unmappable = "failed to register shared memory region 'r': unable to process address \
                      spaceInvalid argument";
    let unopened = |key: &str| {
        let message = format!("Unable to open shared memory region: '{key}'");
        Err((Code::Internal, message))
    };
    for (key, offset, byte_size, expected) in [
        (
            "",
            0,
            1,
            invalid("cannot register shared memory region 'r' - invalid shm key ''"),
        ),
        (
            "///",
            0,
            1,
            invalid("cannot register shared memory region 'r' - invalid shm key '///'"),
        ),
        (
            "triton_python_backend_shm_region_1",
            0,
            1,
            reserved("triton_python_backend_shm_region_1"),
        ),
        (
            "//triton_python_backend_shm_region_",
            0,
            1,
            reserved("//triton_python_backend_shm_region_"),
        ),
        (
            "/conch_no_such_object",
            0,
            1,
            unopened("/conch_no_such_object"),
        ),
        ("/a/b", 0, 1, unopened("/a/b")),
        ("/../shm/x", 0, 1, unopened("/../shm/x")),
        ("/x\0y", 0, 1, unopened("/x\0y")),
        (key, 0, 101, invalid(out_of_bounds)),
        (key, 1, 100, invalid(out_of_bounds)),
        (key, u64::MAX - 31, 32, invalid(out_of_bounds)),
        (key, u64::MAX, u64::MAX, invalid(out_of_bounds)),
        (key, 0, u64::MAX, invalid(out_of_bounds)),
        (key, 5, 10, invalid(unmappable)),
        (key, 0, 0, invalid(unmappable)),
        (key, 0, 100, Ok(())),
    ] {
        assert_eq!(
            text(regions.register("r", key, offset, byte_size)),
            expected,
            "{key} {offset} {byte_size}"
        );
    }
}

#[test]
fn what_is_asked_of_registered_regions_has_upstreams_words() {
    let (regions, object) = (enabled(), Object::new(100));
    let key = &*object.key;
    let bare = key.trim_start_matches('/');
    regions.register("r", key, 0, 100).unwrap();
    let taken = (
        Code::AlreadyExists,
        "shared memory region 'r' already in manager".to_owned(),
    );
    assert_eq!(text(regions.register("r", key, 0, 1)), Err(taken));
    regions.register("another", bare, 0, 1).unwrap();
    assert_eq!(names(&regions), ["another", "r"]);
    let expected = RegionStatus {
        name: "r".into(),
        source: RegionSource::System {
            key: key.into(),
            offset: 0,
        },
        byte_size: 100,
    };
    assert_eq!(regions.status(RegionKind::System, "r"), Ok(vec![expected]));
    let unknown = (
        Code::NotFound,
        "Unable to find system shared memory region: 'x'".to_owned(),
    );
    assert_eq!(text(regions.status(RegionKind::System, "x")), Err(unknown));
    let other_kind =
        "The region named 'r' is registered as system shared memory, not CUDA shared memory";
    assert_eq!(
        text(regions.status(RegionKind::Cuda, "r")),
        Err((Code::NotFound, other_kind.to_owned()))
    );
    assert_eq!(regions.status(RegionKind::Cuda, ""), Ok(Vec::new()));
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    let too_long = format!(
        "the name of a shared memory region must not be longer than {NAME_BYTES_MAX} bytes"
    );
    let too_long = Err((Code::InvalidArg, too_long));
    assert_eq!(text(regions.register(&long, key, 0, 1)), too_long);
    assert_eq!(regions.register(&long[1..], key, 0, 1), Ok(()));
    regions.unregister_all(RegionKind::System).unwrap();
    assert!(names(&regions).is_empty());
    assert_eq!(mapping_count(&object), 0);
}

#[test]
fn what_is_no_memory_is_refused() {
    let (regions, object) = (enabled(), Object::new(0));
    std::fs::remove_file(&object.path).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(&object.path)
        .status();
    assert!(made.unwrap().success());
    let message = format!("Invalid shared memory region: '{}'", object.key);
    assert_eq!(
        text(regions.register("r", &object.key, 0, 1)),
        Err((Code::Internal, message))
    );
}

#[test]
fn windows_lie_within_their_region() {
    let (regions, object) = (enabled(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let refused = |message: &str| Err((Code::InvalidArg, message.to_owned()));
    let outside = "Invalid offset + byte size for shared memory region: 'r'";
    let overflow = "Integer overflow detected: byte_size (18446744073709551615) + offset (1) \
                    exceeds maximum value (18446744073709551615) for region 'r'";
    for (offset, byte_size, expected) in [
        (0, 100, Ok(100)),
        (99, 1, Ok(1)),
        (99, 0, Ok(0)),
        (
            100,
            0,
            refused("Invalid offset for shared memory region: 'r'"),
        ),
        (
            u64::MAX,
            1,
            refused("Invalid offset for shared memory region: 'r'"),
        ),
        (99, 2, refused(outside)),
        (1, u64::MAX, refused(overflow)),
        (0, u64::MAX, refused(outside)),
        (32, u64::MAX - 32, refused(outside)),
    ] {
        let window = regions.window("r", offset, byte_size);
        let got = text(window.map(|window| window.view().len()));
        assert_eq!(got, expected, "{offset} {byte_size}");
    }
}

#[test]
fn a_region_in_use_goes_with_its_last_user_and_keeps_its_name_until_then() {
    let (regions, object) = (enabled(), Object::new(100));
    (&object.file).write_all(b"abcd").unwrap();
    regions.register("r", &object.key, 0, 100).unwrap();
    let mut usage = RequestRegions::default();
    let view = usage.add_input(regions.window("r", 0, 4).unwrap());
    regions.unregister(RegionKind::System, "r").unwrap();
    assert_eq!(names(&regions), ["r"]);
    assert_eq!(
        regions.register("r", &object.key, 0, 1).unwrap_err().code,
        Code::AlreadyExists
    );
    // As upstream: who knows the name may still use it.
    let late = regions.window("r", 1, 2).unwrap();
    usage.release();
    drop(view);
    assert_eq!(names(&regions), ["r"]);
    assert_eq!(content(late.view()), b"bc");
    drop(late);
    // At once for who asks by name.
    assert!(names(&regions).is_empty());
    assert_eq!(regions.window("r", 0, 1).unwrap_err().code, Code::NotFound);
    until("it is unmapped", || mapping_count(&object) == 0);
    regions.register("r", &object.key, 0, 100).unwrap();
    assert_eq!(names(&regions), ["r"]);
    // What is not in use goes at once.
    regions.unregister(RegionKind::System, "r").unwrap();
    assert_eq!(mapping_count(&object), 0);
}

#[test]
fn a_server_that_is_gone_leaves_its_users_their_memory() {
    let (regions, object) = (enabled(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let window = regions.window("r", 0, 4).unwrap();
    drop(regions);
    assert_eq!(content(window.view()), [0; 4]);
    drop(window);
    until("it is unmapped", || mapping_count(&object) == 0);
}

/// T6 of the security requirements: threads that use, register and unregister one name at the same
/// time.
#[test]
fn t6_races_of_use_and_unregistration_leave_nothing_behind() {
    let (regions, object) = (enabled(), Object::new(8192));
    let (is_over, used) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(window) = regions.window("r", 4096, 8) {
                        let mut usage = RequestRegions::default();
                        let view = usage.add_input(window);
                        assert!(view.write(b"12345678"));
                        assert_eq!(content(&view).len(), 8);
                        used.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut round_count = 0;
        // Long enough for races, and on a busy machine until each side has had its share.
        let is_enough = |rounds| rounds > 1000 && used.load(Ordering::Relaxed) > 100;
        while round_count < 100_000
            && (begun.elapsed() < Duration::from_secs(4) || !is_enough(round_count))
            && begun.elapsed() < Duration::from_secs(60)
        {
            match regions.register("r", &object.key, 0, 8192) {
                Ok(()) => round_count += 1,
                Err(error) => assert_eq!(error.code, Code::AlreadyExists),
            }
            regions.unregister(RegionKind::System, "r").unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(round_count > 1000, "{round_count} rounds");
    });
    assert!(used.load(Ordering::Relaxed) > 100);
    regions.unregister(RegionKind::System, "r").unwrap();
    assert!(names(&regions).is_empty());
    until("all is unmapped", || mapping_count(&object) == 0);
    assert!(regions.lock().is_empty(), "the table, too");
}

const CONFIG: &str = "input [ { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] } ] output [ \
                      { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

/// A request with an input and an output in region `r`, admitted.
fn admitted(regions: &Regions, recorder: &Arc<Recorder>) -> crate::RequestHandle {
    let mut usage = RequestRegions::default();
    let view = usage.add_input(regions.window("r", 0, 4).unwrap());
    usage.add_output("x", regions.window("r", 8, 4).unwrap());
    let input = DraftInput {
        name: "a",
        data_type: DataType::Int32,
        shape: [1].into_iter().collect(),
        chunks: [view].into_iter().collect(),
    };
    let mut drafted = draft(vec![input]);
    drafted.features.regions = Some(Arc::new(usage));
    let completion = Arc::clone(recorder) as Arc<dyn Completion>;
    admit(
        &model(CONFIG),
        drafted,
        &completion,
        7,
        Timestamps::default(),
    )
    .unwrap()
}

/// What the backend's part is: an answer with output `x`.
fn answer(handle: &crate::RequestHandle, data: ByteView, is_final: bool) {
    let origin = handle.shared();
    let output = Output {
        name: "x".into(),
        data_type: DataType::Int32,
        shape: [1].into_iter().collect(),
        data,
    };
    let response = Response::from(ResponseParts {
        model: Arc::clone(&origin.model),
        outputs: [output].into_iter().collect(),
        parameters: Vec::new(),
    });
    origin
        .completion
        .deliver(Delivery::new(origin.slot, Some(Ok(response)), is_final));
}

#[test]
fn outputs_are_left_in_their_region() {
    let (regions, object) = (enabled(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let recorder = Arc::<Recorder>::default();
    let handle = admitted(&regions, &recorder);
    let usage = handle.shared().features.regions.as_ref().unwrap();
    assert!(usage.place("other", 4, 4, |_| false).unwrap().is_none());
    let place = usage.place("x", 4, 4, |_| false).unwrap().unwrap();
    assert!(place.write(b"wxyz"));
    answer(&handle, place, false);
    // Made elsewhere: copied.
    answer(&handle, ByteView::copy_of(b"WXYZ"), true);
    let mut deliveries = recorder.wait_in_order(2);
    for delivery in deliveries.drain(..) {
        let response = delivery.into_outcome().unwrap().unwrap();
        assert!(response.outputs[0].data.is_empty());
        assert_eq!(response.outputs[0].shape[..], [1]);
    }
    assert_eq!(
        std::fs::read(&object.path).unwrap()[..12],
        *b"\0\0\0\0\0\0\0\0WXYZ"
    );
    // Its last response has left: only the input is still in use, until the request is given back.
    regions.unregister(RegionKind::System, "r").unwrap();
    assert_eq!(names(&regions), ["r"]);
    drop(handle);
    assert!(names(&regions).is_empty());
}

#[test]
fn outputs_need_room_and_alignment() {
    let (regions, object) = (enabled(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let mut usage = RequestRegions::default();
    usage.add_output("x", regions.window("r", 2, 8).unwrap());
    let usage = Arc::new(usage);
    let too_small = "shared memory size specified with the request for output 'x' (8 bytes) should \
                     be at least 9 bytes to hold the results";
    let expected = (Code::Internal, too_small.to_owned());
    assert_eq!(
        text(usage.place("x", 9, 1, |_| false)).err(),
        Some(expected.clone())
    );
    assert!(
        usage.place("x", 8, 4, |_| false).unwrap().is_none(),
        "made elsewhere"
    );
    assert!(usage.place("x", 8, 2, |_| false).unwrap().is_some());
    let recorder = Arc::<Recorder>::default();
    let completion = Arc::clone(&recorder) as Arc<dyn Completion>;
    let on_arrival: Arc<dyn Completion> = Arc::new(ShmCompletion::new(&completion, &usage));
    let output = Output {
        name: "x".into(),
        data_type: DataType::Int32,
        shape: [1].into_iter().collect(),
        data: ByteView::copy_of(b"123456789"),
    };
    on_arrival.deliver(Delivery::new(
        1,
        Some(Ok(Response::from(ResponseParts {
            model: model(CONFIG),
            outputs: [output].into_iter().collect(),
            parameters: Vec::new(),
        }))),
        true,
    ));
    let delivery = recorder.wait(1).remove(0);
    assert_eq!(text(delivery.into_outcome().unwrap()).err(), Some(expected));
}

/// T5 of the security requirements, in process: the region shrinks while it is in use.
#[test]
fn t5_a_region_that_shrank_fails_who_uses_it_and_nobody_else() {
    let (regions, object, sound) = (enabled(), Object::new(8192), Object::new(100));
    regions.register("r", &object.key, 0, 8192).unwrap();
    regions.register("sound", &sound.key, 0, 100).unwrap();
    let recorder = Arc::<Recorder>::default();
    let handle = admitted(&regions, &recorder);
    let before = regions.window("r", 4096, 4).unwrap();
    object.file.set_len(0).unwrap();
    assert!(before.check().is_ok());
    assert_eq!(content(before.view()), [0; 4]);
    let gone = before.check().unwrap_err();
    assert_eq!(gone.code, Code::InvalidArg);
    assert!(
        gone.message
            .contains("the memory of shared memory region 'r' is gone")
    );
    answer(&handle, ByteView::copy_of(b"WXYZ"), true);
    let delivery = recorder.wait(1).remove(0);
    assert_eq!(delivery.into_outcome().unwrap().unwrap_err(), gone);
    assert_eq!(regions.window("r", 0, 4).unwrap_err(), gone);
    assert!(regions.window("sound", 0, 4).is_ok());
    // Registered anew it serves again.
    drop((before, handle));
    regions.unregister(RegionKind::System, "r").unwrap();
    object.file.set_len(8192).unwrap();
    regions.register("r", &object.key, 0, 8192).unwrap();
    assert!(regions.window("r", 0, 4).is_ok());
}

#[test]
fn a_request_that_is_withdrawn_lets_go_although_its_handle_waits() {
    let (regions, object) = (enabled(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let handle = admitted(&regions, &Arc::default());
    regions.unregister(RegionKind::System, "r").unwrap();
    assert_eq!(names(&regions), ["r"]);
    assert!(crate::cancel(&handle).into_error().is_some());
    assert!(names(&regions).is_empty());
    until("it is unmapped", || mapping_count(&object) == 0);
}

#[test]
fn the_same_object_may_be_several_regions() {
    let (regions, object) = (enabled(), Object::new(8192));
    regions.register("a", &object.key, 0, 8192).unwrap();
    regions.register("b", &object.key, 4096, 4096).unwrap();
    assert!(regions.window("a", 4096, 2).unwrap().view().write(b"hi"));
    assert_eq!(content(regions.window("b", 0, 2).unwrap().view()), b"hi");
}
