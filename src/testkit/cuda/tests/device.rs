//! The library, its errors, its devices, and the environment that makes them.

use std::ffi::CStr;

use super::support::{BYTES, Session, cu, ok, run_child};
use crate::config::{Config, Pci, uuid_text};

#[test]
fn nothing_works_before_init() {
    run_child("before_init", &[("CONCH_CUDA_DOUBLE", "driver=12040")]);
}

#[test]
fn the_environment_says_which_devices_there_are() {
    let four = "devices=4;pci=0000:1b:00.0,0000:3d:00.0";
    let second = uuid_text(&Config::parse(four).devices[1].uuid);
    let prefix = second[..8].to_owned();
    let rows = [
        ("", None, "1", "1"),
        ("devices=2", None, "2", "1"),
        ("devices=0", None, "0", ""),
        (four, None, "4", "1b"),
        (four, Some("1,0"), "2", "3d"),
        (four, Some(" 3 "), "1", "4"),
        (four, Some("0,9,1"), "1", "1b"),
        (four, Some("1,-1,0"), "1", "3d"),
        (four, Some(second.as_str()), "1", "3d"),
        (four, Some(prefix.as_str()), "1", "3d"),
        (four, Some("GPU-"), "0", ""),
        (four, Some("GPU-none"), "0", ""),
        (four, Some("0,0"), "0", ""),
        (four, Some("-1"), "0", ""),
        (four, Some(""), "0", ""),
    ];
    for (double, visible, want, bus) in rows {
        let mut environment = vec![("CONCH_CUDA_DOUBLE", double), ("WANT", want), ("BUS", bus)];
        environment.extend(visible.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
        run_child("count", &environment);
    }
}

#[test]
fn keys_have_defaults() {
    let config = Config::parse("bytes=x;capability=8;nonsense;copy_us=7");
    assert_eq!(config.devices.len(), 1);
    assert_eq!(config.bytes, 1 << 30);
    assert_eq!(config.capability, (9, 0));
    assert_eq!(
        (config.copy_us, config.version, config.can_access_peer),
        (7, 12080, true)
    );
    let config = Config::parse("capability=8.6;peer=0;pci=0001:3d:02.0");
    assert_eq!(config.capability, (8, 6));
    assert!(!config.can_access_peer);
    assert_eq!(
        config.devices[0].pci,
        Pci {
            domain: 1,
            bus: 0x3d,
            device: 2
        }
    );
}

#[test]
fn devices_describe_themselves() {
    let _session = Session::start();
    let mut number = 0;
    ok!(cuDeviceGetCount(&mut number));
    assert_eq!(number, 2);
    ok!(cuDeviceGet(&mut number, 1));
    assert_eq!(number, 1);
    for (attribute, want) in [
        (75, 9),
        (76, 0),
        (33, 2),
        (34, 0),
        (50, 0),
        (41, 1),
        (102, 1),
        (7, 0),
    ] {
        ok!(cuDeviceGetAttribute(&mut number, attribute, 1));
        assert_eq!(number, want, "attribute {attribute}");
    }
    ok!(cuDeviceGetAttribute(&mut number, 16, 1));
    assert!(number > 0);
    let mut bytes = 0;
    ok!(cuDeviceTotalMem_v2(&mut bytes, 0));
    assert_eq!(bytes, BYTES);
    let (mut first, mut second, mut newer) = ([0; 16], [0; 16], [0; 16]);
    ok!(cuDeviceGetUuid(&mut first, 0));
    ok!(cuDeviceGetUuid(&mut second, 1));
    ok!(cuDeviceGetUuid_v2(&mut newer, 1));
    assert_ne!(first, second);
    assert_eq!(second, newer);
    ok!(cuDeviceCanAccessPeer(&mut number, 0, 1));
    assert_eq!(number, 1);
    for ordinal in [-1, 2] {
        assert_eq!(cu!(cuDeviceGet(&mut number, ordinal)), 101);
        assert_eq!(cu!(cuDeviceTotalMem_v2(&mut bytes, ordinal)), 101);
    }
    assert_eq!(cu!(cuDeviceGet(std::ptr::null_mut(), 0)), 1);
}

#[test]
fn texts_end_where_the_room_does() {
    let _session = Session::start();
    for (len, want) in [
        (32, "0000:02:00.0"),
        (13, "0000:02:00.0"),
        (5, "0000"),
        (1, ""),
    ] {
        let mut text = [1; 32];
        ok!(cuDeviceGetPCIBusId(text.as_mut_ptr(), len, 1));
        // SAFETY: the driver ended the text inside the array.
        let found = unsafe { CStr::from_ptr(text.as_ptr()) };
        assert_eq!(found.to_str().unwrap(), want);
    }
    let mut text = [0; 64];
    assert_eq!(cu!(cuDeviceGetName(text.as_mut_ptr(), 0, 0)), 1);
    ok!(cuDeviceGetName(text.as_mut_ptr(), 64, 0));
}

#[test]
fn errors_have_names() {
    let mut text = std::ptr::null();
    ok!(cuGetErrorName(700, &mut text));
    // SAFETY: the driver's texts are C strings that live forever.
    let name = unsafe { CStr::from_ptr(text) };
    assert_eq!(name, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    ok!(cuGetErrorString(2, &mut text));
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"out of memory");
    assert_eq!(cu!(cuGetErrorString(123_456, &mut text)), 1);
    assert!(text.is_null());
}
