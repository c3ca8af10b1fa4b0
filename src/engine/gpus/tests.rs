//! A host with two GPUs, by the double of the driver, at the two sockets of a recorded machine.

use std::collections::BTreeMap;

use conch_net::machine::testing::{RecordedMachine, TWO_SOCKETS};
use conch_testkit_cuda::LoadedDouble;

use super::*;
use crate::Code;

const MIB: u64 = 1 << 20;

fn host(options: &GpuOptions) -> (GpuHost, RecordedMachine) {
    LoadedDouble::get("devices=2;bytes=67108864;pci=0000:3b:00.0,0000:af:00.0");
    let recorded = RecordedMachine::new(TWO_SOCKETS);
    let host = GpuHost::find(options, || recorded.read(&[]));
    (host, recorded)
}

fn small() -> GpuOptions {
    GpuOptions {
        pinned_pool_bytes: MIB,
        device_pool_bytes: BTreeMap::from([(0, MIB), (1, 0)]),
        ..GpuOptions::default()
    }
}

/// One test: the pools are the devices', which all tests of the process would share.
#[test]
fn memory_is_taken_with_the_first_user() {
    let (host, _recorded) = host(&small());
    assert_eq!(host.for_config().ids, [0, 1]);
    assert!(host.gpus().iter().all(|gpu| gpu.memory().is_none()));
    assert_eq!(host.pinned_usage(), None);

    let near = host.memory(0).unwrap();
    assert_eq!(near.pool_usage().unwrap().total_bytes, MIB);
    let pooled = near.allocate(MIB / 2).unwrap();
    let direct = near.allocate(MIB).unwrap();
    assert_eq!(near.direct_bytes(), MIB, "the pool has no room");
    assert!(near.free(pooled) && near.free(direct) && !near.free(direct));
    assert_eq!(
        (near.direct_bytes(), near.pool_usage().unwrap().used_bytes),
        (0, 0)
    );
    let refused = near.allocate(65 * MIB).unwrap_err();
    assert!(refused.is_out_of_memory());

    assert_eq!(host.pinned_usage().unwrap().total_bytes, MIB, "of one node");
    let far = host.memory(1).unwrap();
    assert_eq!(far.pool_usage(), None, "it is to have no bytes");
    assert_eq!(host.pinned_usage().unwrap().total_bytes, 2 * MIB, "of two");
    let first = host.allocate_pinned(MIB).unwrap().unwrap();
    let second = host.allocate_pinned(MIB).unwrap().unwrap();
    assert_eq!(host.allocate_pinned(1).unwrap(), None, "both are full");
    assert!(host.free_pinned(first) && host.free_pinned(second) && !host.free_pinned(first));

    let unknown = host.memory(2).unwrap_err();
    assert_eq!(unknown.code, Code::InvalidArg);
}

#[test]
fn limits_of_loads() {
    let limits = GpuOptions {
        load_limits: BTreeMap::from([(0, 1.0), (1, 0.0)]),
        pinned_pool_bytes: 0,
        device_pool_bytes: BTreeMap::from([(0, 0), (1, 4096)]),
        ..GpuOptions::default()
    };
    let (host, _recorded) = host(&limits);
    host.check_load_limit("m", 0).unwrap();
    let refused = host.check_load_limit("m", 1).unwrap_err();
    assert_eq!(
        refused.message,
        "can not create model 'm': memory limit set for GPU 1 has exceeded, model loading is \
         rejected."
    );
    assert_eq!(host.pinned_usage(), None, "it is to have no bytes");
}

#[test]
fn old_devices_are_left_alone() {
    let (host, _recorded) = host(&GpuOptions {
        capability_min: 9.1,
        ..GpuOptions::default()
    });
    assert!(host.gpus().is_empty() && host.for_config().ids.is_empty());
    assert_eq!(host.allocate_pinned(1).unwrap_err().code, Code::InvalidArg);
}
