//! A host with GPUs at the two sockets of a recorded machine, by the double of the driver. The
//! third one is for the test that breaks it.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_memory::{Block, ByteView, MemoryKind, Owner, Pool};
use conch_net::machine::testing::{RecordedMachine, TWO_SOCKETS};
use conch_testkit_cuda::LoadedDouble;

use super::*;
use crate::Code;

const MIB: u64 = 1 << 20;

const ILLEGAL_ADDRESS: u32 = 700;

fn double() -> &'static LoadedDouble {
    LoadedDouble::get("devices=3;bytes=67108864;pci=0000:3b:00.0,0000:af:00.0,0000:b0:00.0")
}

fn host(options: &GpuOptions) -> (GpuHost, RecordedMachine) {
    double();
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
    assert_eq!(host.for_config().ids, [0, 1, 2]);
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

    let unknown = host.memory(3).unwrap_err();
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
fn a_device_whose_errors_stay_is_out_of_service() {
    let (host, _recorded) = host(&small());
    let found = || {
        let broken = host.look_after_devices();
        let fault = host.gpus()[2].fault();
        (broken, fault.map(|error| error.message))
    };
    double().fail(c"device:2", 0, 1, ILLEGAL_ADDRESS);
    assert_eq!(found(), (vec![], None), "nobody uses it");
    double().fail(c"device:2", 0, 1, 0);
    host.memory(2).unwrap();
    assert_eq!(found(), (vec![], None));
    double().fail(c"device:2", 0, 1, ILLEGAL_ADDRESS);
    assert_eq!(found().0, [2]);
    let (broken, fault) = found();
    assert_eq!(broken, [2], "it stays so");
    let fault = fault.unwrap();
    assert!(
        fault.starts_with("GPU 2 is out of service: cu")
            && fault.contains(": CUDA_ERROR_ILLEGAL_ADDRESS: "),
        "{fault}"
    );
    double().fail(c"device:2", 0, 1, 0);
    assert_eq!(found(), (vec![], None));
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

#[test]
fn outputs_stay_with_their_model() {
    let (host, _recorded) = host(&GpuOptions {
        pinned_pool_bytes: MIB,
        device_pool_bytes: BTreeMap::from([(0, MIB), (1, 0)]),
        ..GpuOptions::default()
    });
    let memory = host.memory(0).unwrap();
    let (own, other) = (Owner::new(), Owner::new());
    let used_bytes = || memory.pool_usage().unwrap().used_bytes;
    let bytes_of = |view: &ByteView| {
        let mut target = Block::with_capacity(view.len());
        memory.read(view, &mut target).unwrap();
        target.as_slice().to_vec()
    };
    let block = memory.block_for(own, 1000).unwrap();
    let address = block.address();
    let view = block.freeze(1000);
    assert_eq!((bytes_of(&view), used_bytes()), (vec![0; 1000], 1024));
    drop(view);
    assert_eq!(used_bytes(), 0, "only kept");
    let again = memory.block_for(own, 900).unwrap();
    assert_eq!(again.address(), address, "its own block");
    drop(again);
    let others = memory.block_for(other, 1000).unwrap();
    assert_ne!(others.address(), address);
    drop(others);
    // Backends that allocate come before what is kept.
    let all = memory.allocate(MIB).unwrap();
    assert_eq!((used_bytes(), memory.direct_bytes()), (MIB, 0));
    assert!(memory.block_for(own, 1).is_none(), "no room");
    assert!(memory.free(all));
    for _ in 0..100 {
        let blocks: Vec<_> = (0..8).map(|_| memory.block_for(own, 70_000)).collect();
        assert!(blocks.iter().all(Option::is_some));
    }
    assert_eq!(used_bytes(), 0);
    let far = host.memory(1).unwrap();
    assert!(far.block_for(own, 1).is_none(), "it has no pool");
}

#[test]
fn bodies_and_outputs_leave_a_quarter_of_pinned_memory() {
    let (host, _recorded) = host(&small());
    assert!(host.pinned.bodies().is_none(), "no device is in use");
    host.memory(0).unwrap();
    let (bodies, outputs) = (
        host.pinned.bodies().unwrap(),
        host.pinned.outputs().unwrap(),
    );
    let take = |pool: &Arc<Pool>, bytes: u64| {
        let block = pool.try_take(usize::try_from(bytes).unwrap()).unwrap();
        let is_pinned = block.place().kind == MemoryKind::CpuPinned;
        (block, is_pinned)
    };
    let (body, is_pinned) = take(&bodies, MIB / 4);
    assert!(is_pinned);
    let (beyond, is_pinned) = take(&bodies, 4096);
    assert!(!is_pinned, "a quarter of the pool is lent");
    let (output, is_pinned) = take(&outputs, MIB / 2);
    assert!(is_pinned);
    let (further, is_pinned) = take(&outputs, 4096);
    assert!(!is_pinned, "half of the pool is lent");
    assert_eq!(host.pinned_usage().unwrap().used_bytes, 3 * MIB / 4);
    drop((body, beyond, output, further));
    assert_eq!(host.pinned_usage().unwrap().used_bytes, 0);
    let all = host.allocate_pinned(MIB).unwrap().unwrap();
    assert!(host.free_pinned(all), "what was kept made room");
}
