//! Models that share the core of a GPU. A machine that is so busy that a thread loses its CPU for
//! long in the middle of a turn lets the core seem blocked: then there are more cores than there
//! would be, and never more than models.

use crate::execution::cores::tests::streams::{Device, StreamBed, TIMEOUT, error_of};
use crate::execution::cores::tests::*;
use crate::execution::streams::device_cores::DeviceCores;
use crate::testing::until;

/// Models on one GPU, each with a device of its own, whose number names its instances.
struct SharedGpu {
    device_cores: Arc<DeviceCores>,
    beds: Vec<StreamBed>,
}

impl SharedGpu {
    fn new(config: &str, devices: Vec<Device>) -> SharedGpu {
        let mut gpu = SharedGpu {
            device_cores: Arc::default(),
            beds: Vec::new(),
        };
        for device in devices {
            gpu.load(config, &Arc::new(device));
        }
        gpu
    }

    fn load(&mut self, config: &str, device: &Arc<Device>) {
        let specs = vec![InstanceSpec {
            name: self.beds.len().to_string(),
            ..spec(0, InstanceKind::Gpu, 0)
        }];
        self.beds
            .push(StreamBed::beside(&self.device_cores, config, device, specs));
    }

    /// The threads that enqueued batches, over all models.
    fn thread_count(&self) -> usize {
        let threads = |bed: &StreamBed| bed.device.threads.lock().unwrap().clone();
        self.beds
            .iter()
            .flat_map(threads)
            .collect::<HashSet<_>>()
            .len()
    }

    /// Ends all, whose threads end with the last model.
    fn stop(self) {
        for bed in self.beds {
            bed.stop(1);
        }
        until("no core is left", || self.device_cores.is_empty());
    }
}

#[test]
fn models_of_one_gpu_share_a_core() {
    let gpu = SharedGpu::new(CONFIG, (0..4).map(|_| Device::held(2)).collect());
    for bed in &gpu.beds {
        bed.submit(0..3);
    }
    for bed in &gpu.beds {
        bed.device.wait_in_flight(2);
    }
    for bed in &gpu.beds {
        bed.device.let_go(3);
        assert_eq!(StreamBed::slots_of(&bed.recorder.wait(3)), [0, 1, 2]);
    }
    assert!(gpu.thread_count() < gpu.beds.len());
    gpu.stop();
}

#[test]
fn models_of_other_gpus_and_policies_have_other_cores() {
    let mut gpu = SharedGpu::new(CONFIG, Vec::new());
    for (device_id, host_policy) in [(0, "gpu_0"), (1, "gpu_1"), (0, "own")] {
        let specs = vec![InstanceSpec {
            device_id,
            host_policy: host_policy.to_owned(),
            ..spec(0, InstanceKind::Gpu, 0)
        }];
        let device = Arc::new(Device {
            depth_max: 1,
            ..Device::default()
        });
        let bed = StreamBed::beside(&gpu.device_cores, CONFIG, &device, specs);
        bed.submit(0..1);
        bed.recorder.wait(1);
        gpu.beds.push(bed);
    }
    assert_eq!(gpu.thread_count(), 3);
    gpu.stop();
}

/// Whose batches two models with the same device enqueued, one after the other; none if they were
/// driven by two cores.
fn turns_of_two(count: u64) -> Option<Vec<String>> {
    let mut gpu = SharedGpu::new(CONFIG, Vec::new());
    let device = Arc::new(Device::held(1));
    gpu.load(CONFIG, &device);
    gpu.load(CONFIG, &device);
    for bed in &gpu.beds {
        bed.submit(0..count);
    }
    device.wait_in_flight(2);
    device.let_go(2 * count as usize);
    for bed in &gpu.beds {
        bed.recorder.wait(count as usize);
    }
    let is_shared = gpu.thread_count() == 1;
    let batches = device.batches.lock().unwrap();
    let names = batches.iter().map(|(name, _)| name.clone()).collect();
    drop(batches);
    // Both are one fake's.
    for bed in gpu.beds {
        bed.cores.stop();
    }
    is_shared.then_some(names)
}

#[test]
fn models_take_turns() {
    let names = (0..20).find_map(|_| turns_of_two(40));
    let names = names.expect("they share a core");
    // Each has one in flight; from then on one batch of each follows one of the other.
    let is_turn =
        |pair: &[String]| pair.iter().any(|name| name == "0") && pair.contains(&"1".into());
    assert!(names.chunks(2).all(is_turn), "{names:?}");
}

#[test]
fn a_device_that_hangs_holds_up_no_other_model() {
    let gpu = SharedGpu::new(CONFIG, vec![Device::held(1), Device::held(1)]);
    let [stuck, other] = &*gpu.beds else {
        unreachable!()
    };
    stuck.submit(0..3);
    stuck.device.wait_in_flight(1);
    for slot in 0..20 {
        other.submit(slot..slot + 1);
        other.device.let_go(1);
        assert_eq!(StreamBed::slots_of(&other.recorder.wait(1)), [slot]);
    }
    stuck.device.let_go(3);
    stuck.recorder.wait(3);
    gpu.stop();
}

#[test]
fn an_execution_that_never_ends_fails_its_model_alone() {
    let config = format!("{TIMEOUT} {CONFIG}");
    let gpu = SharedGpu::new(&config, vec![Device::held(1), Device::held(1)]);
    let [stuck, other] = &*gpu.beds else {
        unreachable!()
    };
    stuck.submit(0..2);
    for failed in stuck.recorder.wait(2) {
        error_of(failed);
    }
    assert!(stuck.version.fault().is_some() && other.version.fault().is_none());
    other.device.let_go(1);
    other.submit(0..1);
    other.recorder.wait(1);
    // The instance of the one that failed is never dropped, and nobody waits for it.
    for bed in &gpu.beds {
        bed.cores.stop();
    }
    until("no core is left", || gpu.device_cores.is_empty());
}

#[test]
fn models_come_and_go_while_another_has_batches_in_flight() {
    let mut gpu = SharedGpu::new(CONFIG, vec![Device::held(2)]);
    gpu.beds[0].submit(0..2);
    gpu.beds[0].device.wait_in_flight(2);
    for _ in 0..5 {
        gpu.load(CONFIG, &Arc::new(Device::held(1)));
        let bed = gpu.beds.pop().unwrap();
        bed.device.let_go(2);
        bed.submit(0..2);
        bed.recorder.wait(2);
        bed.stop(1);
    }
    until("one core is left", || gpu.device_cores.core_count() == 1);
    gpu.beds[0].device.let_go(2);
    gpu.beds[0].recorder.wait(2);
    gpu.stop();
}

#[test]
fn a_call_that_does_not_return_leaves_the_others_a_new_core() {
    let devices = (0..3).map(|_| Device::held(1)).collect();
    let mut gpu = SharedGpu::new(CONFIG, devices);
    // All have been driven by the first core, and sleep there.
    for bed in &gpu.beds {
        bed.device.let_go(99);
        bed.submit(0..1);
        bed.recorder.wait(1);
    }
    gpu.beds[1].device.blocks.store(true, Ordering::SeqCst);
    gpu.beds[1].submit(1..3);
    for slot in 1..4 {
        for index in [0, 2] {
            gpu.beds[index].submit(slot..slot + 1);
            let done = gpu.beds[index].recorder.wait(1);
            assert_eq!(StreamBed::slots_of(&done), [slot]);
        }
    }
    assert!(gpu.device_cores.core_count() > 1 && gpu.thread_count() > 1);
    // Others come and go meanwhile.
    gpu.load(CONFIG, &Arc::new(Device::held(1)));
    let bed = gpu.beds.pop().unwrap();
    bed.device.let_go(1);
    bed.submit(0..1);
    bed.recorder.wait(1);
    bed.stop(1);
    // It keeps its core when it has come back.
    gpu.beds[1].device.blocks.store(false, Ordering::SeqCst);
    assert_eq!(StreamBed::slots_of(&gpu.beds[1].recorder.wait(2)), [1, 2]);
    gpu.beds[1].submit(3..4);
    gpu.beds[1].recorder.wait(1);
    assert!(gpu.device_cores.core_count() > 1);
    gpu.stop();
}

#[test]
fn instances_whose_calls_take_much_of_a_core_get_cores_of_their_own() {
    let device = Arc::new(Device {
        call_ms: 5,
        ..Device::held(2)
    });
    // As often as it is asked for.
    device.let_go(usize::MAX >> 1);
    let device_cores: Arc<DeviceCores> = Arc::default();
    let specs = (0..2).map(|index| spec(index, InstanceKind::Gpu, 0));
    let bed = StreamBed::beside(&device_cores, CONFIG, &device, specs.collect());
    let next = AtomicU64::new(0);
    until("each instance has a core", || {
        let first = next.fetch_add(8, Ordering::SeqCst);
        bed.submit(first..first + 8);
        bed.recorder.wait(8);
        device_cores.core_count() == 2
    });
    bed.stop(2);
    until("no core is left", || device_cores.is_empty());
}

#[test]
fn calls_that_block_and_add_up_get_their_model_a_core_of_its_own() {
    let slow = Device {
        call_ms: 60,
        ..Device::held(1)
    };
    let gpu = SharedGpu::new(CONFIG, vec![slow, Device::held(1)]);
    for bed in &gpu.beds {
        bed.device.let_go(99);
    }
    // Five are enough, also less what is forgotten meanwhile.
    for slot in 0..8 {
        gpu.beds[0].submit(slot..slot + 1);
        gpu.beds[0].recorder.wait(1);
    }
    until("it has a core of its own", || {
        gpu.device_cores.core_count() == 2
    });
    for bed in &gpu.beds {
        bed.submit(8..9);
        bed.recorder.wait(1);
    }
    assert!(gpu.thread_count() > 1);
    gpu.stop();
}

#[test]
fn a_panic_of_one_model_fails_that_batch_alone() {
    let broken = Device {
        panics_at: Some(0),
        ..Device::held(1)
    };
    let gpu = SharedGpu::new(CONFIG, vec![broken, Device::held(1)]);
    for bed in &gpu.beds {
        bed.device.let_go(1);
        bed.submit(0..2);
    }
    let failed = gpu.beds[0].recorder.wait(2).remove(0);
    assert_eq!(error_of(failed).code, Code::Internal);
    gpu.beds[1].device.let_go(1);
    gpu.beds[1].recorder.wait(2);
    gpu.stop();
}
