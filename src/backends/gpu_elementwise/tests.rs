//! Every formula on the double of the driver and on the host: the same bytes.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use conch_cuda::{
    Argument, Device, DeviceAddress, DeviceMemory, Driver, Function, Grid, Module, Stream,
};
use conch_testkit_cuda::LoadedDouble;
use sdk::{DataType, TensorBytes};

use crate::element::NumberType;
use crate::formula::Formula;
use crate::geometry::{self, Geometry};
use crate::host::compute;
use crate::launch::launches;
use crate::operation::{Channels, Operation, Order};
use crate::ptx::{self, SEGMENTS_MAX};

fn device() -> Arc<Device> {
    LoadedDouble::get("devices=1;bytes=67108864");
    let driver = Driver::load().expect("the double is there");
    let properties = driver.devices().unwrap().swap_remove(0);
    driver.open(properties).unwrap()
}

/// Bytes of elements: every edge that the type has, and what lies between.
fn elements(data_type: DataType, count: usize, seed: u64) -> Vec<u8> {
    let bits = |values: &[u32], bytes: usize| {
        let values = values.iter().flat_map(|value| {
            let bytes = value.to_le_bytes()[..bytes].to_vec();
            bytes.into_iter()
        });
        values.collect::<Vec<u8>>()
    };
    let edges = match data_type {
        DataType::Fp32 => bits(&FP32_EDGES, 4),
        DataType::Fp16 => bits(
            &[
                0, 0x8000, 1, 0x3ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x3c00, 0x5bff,
            ],
            2,
        ),
        DataType::Bf16 => bits(
            &[
                0, 0x8000, 1, 0x7f, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x3f80, 0x4f00,
            ],
            2,
        ),
        DataType::Int32 => bits(
            &[
                0,
                1,
                u32::MAX,
                1 << 31,
                i32::MAX as u32,
                16_777_217,
                127,
                128,
                255,
                256,
                -129_i32 as u32,
            ],
            4,
        ),
        _ => (0..=255).collect(),
    };
    let bytes = data_type.element_bytes().unwrap() * count;
    let mut all = edges;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while all.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(bytes);
    // The second input of a pair does not meet the first one's edges alone.
    let turn = seed as usize * 8 % all.len().max(1);
    all.rotate_left(turn);
    all
}

const FP32_EDGES: [u32; 24] = [
    0,
    0x8000_0000,
    1,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0001,
    0x7f80_0001,
    0x3f00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0xc020_0000,
    0x477f_f000,
    0x477f_efff,
    0x4f00_0000,
    0xcf00_0000,
    0x3300_0000,
    0x3f80_8000,
    0x3f81_8000,
    0x43ff_8000,
];

fn channels(scale: &[f32], shift: &[f32]) -> Channels {
    Channels {
        scale: scale.to_vec(),
        shift: shift.to_vec(),
    }
}

/// Every formula that there is, with a shape.
fn formulas() -> Vec<(Formula, Vec<i64>)> {
    let one = channels(&[0.1], &[-3.5]);
    let three = channels(&[0.1, -2.0, 1e30], &[1.0, 0.3, -1e30]);
    let affine = |channels: &Channels, axis| Operation::Affine {
        channels: channels.clone(),
        axis,
    };
    let mut all = Vec::new();
    let mut add = |operation: Operation, from, to, shape: &[i64]| {
        let formula = Formula::new(operation, from, to).expect("it is one");
        all.push((formula, shape.to_vec()));
    };
    let numbers = NumberType::ALL.map(NumberType::data_type);
    for from in numbers {
        add(Operation::Add, from, from, &[3, 171]);
        add(Operation::Multiply, from, from, &[600]);
        for to in numbers {
            add(Operation::Cast, from, to, &[700]);
            add(affine(&one, None), from, to, &[300]);
            add(affine(&three, Some(1)), from, to, &[7, 3, 25]);
        }
    }
    for data_type in [
        DataType::Bool,
        DataType::Fp16,
        DataType::Int32,
        DataType::Fp64,
    ] {
        for order in [Order::ChannelsFirst, Order::ChannelsLast] {
            add(
                Operation::Layout(order),
                data_type,
                data_type,
                &[2, 9, 8, 3],
            );
        }
    }
    for to in [DataType::Fp32, DataType::Fp16, DataType::Bf16] {
        let channels = channels(
            &[1.0 / 58.395, 1.0 / 57.12, 1.0 / 57.375],
            &[123.675, 116.28, 103.53],
        );
        let normalize = |channels| Operation::NormalizeImage { channels };
        add(normalize(channels), DataType::Uint8, to, &[2, 11, 13, 3]);
        add(normalize(one.clone()), DataType::Uint8, to, &[32, 8, 1]);
    }
    all
}

fn on_host(formula: &Formula, geometry: Geometry, inputs: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<TensorBytes<'_>> = inputs.iter().map(TensorBytes::from).collect();
    let mut output = Vec::new();
    compute(formula, geometry, &inputs, &mut |chunk| {
        output.extend_from_slice(chunk);
        Ok(())
    })
    .unwrap();
    output
}

/// Memory of the device with these bytes.
fn memory(stream: &Stream, bytes: &[u8]) -> DeviceMemory {
    let memory = DeviceMemory::allocate(stream.device(), bytes.len() as u64).unwrap();
    let host = DeviceAddress(bytes.as_ptr().addr() as u64);
    // SAFETY: both outlive the wait, and nobody else uses them.
    unsafe { stream.copy(memory.base(), host, bytes.len()) }.unwrap();
    stream.synchronize().unwrap();
    memory
}

fn compiled(device: &Arc<Device>, formula: &Formula) -> Function {
    let module = Module::compile(device, &ptx::text(formula));
    let module = module.unwrap_or_else(|error| panic!("{formula:?}: {error}"));
    module.function(ptx::NAME).unwrap()
}

/// A request's elements, and the bytes of its inputs.
type RequestElements = (Geometry, Vec<Vec<u8>>);

/// The outputs of requests, computed by as few launches as may be.
fn on_device(stream: &Stream, formula: &Formula, requests: &[RequestElements]) -> Vec<Vec<u8>> {
    let function = compiled(stream.device(), formula);
    let table = formula.operation.table();
    let table = table.map(|bytes| memory(stream, &bytes));
    let address = |memory: Option<&DeviceMemory>| memory.map_or(0, |memory| memory.base().0);
    let placed: Vec<(Vec<DeviceMemory>, DeviceMemory)> = requests
        .iter()
        .map(|(geometry, inputs)| {
            let inputs = inputs.iter().map(|bytes| memory(stream, bytes)).collect();
            let len = geometry.count * formula.output_bytes;
            (inputs, memory(stream, &vec![0x77; len + 8]))
        })
        .collect();
    let addresses = requests.iter().zip(&placed);
    let addresses = addresses.map(|((geometry, _), (inputs, output))| {
        let inputs = [address(inputs.first()), address(inputs.get(1))];
        (inputs, address(Some(output)), *geometry)
    });
    for launch in launches(addresses, formula, formula.operation.input_count()) {
        let segments = launch.parameter();
        let arguments = [
            Argument::Bytes(&segments),
            Argument::Address(DeviceAddress(address(table.as_ref()))),
            Argument::U32(launch.inner as u32),
            Argument::U32(launch.channels as u32),
        ];
        let grid = Grid {
            blocks: launch.count().div_ceil(64) as u32,
            rows: launch.rows() as u32,
            threads_per_block: 64,
        };
        // SAFETY: the arguments are the kernel's, and all memory outlives the wait.
        unsafe { stream.launch(&function, grid, &arguments) }.unwrap();
    }
    let outputs = requests.iter().zip(&placed);
    let outputs = outputs.map(|((geometry, _), (_, output))| {
        let len = geometry.count * formula.output_bytes;
        let bytes = vec![0; len + 8];
        let host = DeviceAddress(bytes.as_ptr().addr() as u64);
        // SAFETY: both outlive the wait, and nobody else uses them.
        unsafe { stream.copy(host, output.base(), bytes.len()) }.unwrap();
        stream.synchronize().unwrap();
        let (bytes, rest) = bytes.split_at(len);
        assert_eq!(rest, [0x77; 8], "nothing is written behind the output");
        bytes.to_vec()
    });
    outputs.collect()
}

#[test]
fn requests_of_a_batch_are_rows_of_launches() {
    let device = device();
    let stream = Stream::new(&device, 0).unwrap();
    let operation = Operation::Affine {
        channels: channels(&[0.5, 2.0, -3.0], &[1.0, 0.0, 7.0]),
        axis: Some(1),
    };
    let formula = Formula::new(operation, DataType::Fp32, DataType::Fp32).unwrap();
    // More than a launch has rows, some longer than others, the last one in other groups.
    let last = SEGMENTS_MAX as i64 + 2;
    let shapes = (0..=last).map(|number| [1 + number % 2, 3, 40 + number / last]);
    let requests: Vec<RequestElements> = shapes
        .enumerate()
        .map(|(number, shape)| {
            let (geometry, _) = geometry::of(&formula.operation, &shape, false).unwrap();
            let input = elements(formula.input_type, geometry.count, number as u64);
            (geometry, vec![input])
        })
        .collect();
    let found = on_device(&stream, &formula, &requests);
    for (number, ((geometry, inputs), found)) in requests.iter().zip(&found).enumerate() {
        assert_eq!(*found, on_host(&formula, *geometry, inputs), "{number}");
    }
}

#[test]
fn device_and_host_agree_bit_for_bit() {
    let device = device();
    let stream = Stream::new(&device, 0).unwrap();
    let all = formulas();
    assert_eq!(all.len(), 6 * 2 + 36 * 3 + 8 + 6);
    for (formula, shape) in all {
        let (geometry, _) = geometry::of(&formula.operation, &shape, false).unwrap();
        let inputs: Vec<Vec<u8>> = (0..formula.operation.input_count())
            .map(|index| elements(formula.input_type, geometry.count, index as u64))
            .collect();
        let expected = on_host(&formula, geometry, &inputs);
        let found = on_device(&stream, &formula, &[(geometry, inputs)]).remove(0);
        let size = formula.output_bytes;
        for (place, (one, other)) in expected.chunks(size).zip(found.chunks(size)).enumerate() {
            assert_eq!(one, other, "{formula:?}: element {place}");
        }
        assert_eq!(expected.len(), found.len());
    }
}

#[test]
fn results_are_those_of_the_rules() {
    let values = |numbers: &[f32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    };
    let case = |operation: Operation, to, inputs: &[Vec<u8>], shape: &[i64]| {
        let formula = Formula::new(operation, DataType::Fp32, to).unwrap();
        let (geometry, _) = geometry::of(&formula.operation, shape, false).unwrap();
        on_host(&formula, geometry, inputs)
    };
    let tiny = f32::MIN_POSITIVE;
    let sum = case(
        Operation::Add,
        DataType::Fp32,
        &[
            values(&[1.0, f32::INFINITY, tiny]),
            values(&[2.0, f32::NEG_INFINITY, -tiny / 2.0]),
        ],
        &[3],
    );
    assert_eq!(
        sum,
        [
            values(&[3.0]),
            vec![255, 255, 255, 127],
            values(&[tiny / 2.0])
        ]
        .concat()
    );
    // A product and a sum, each rounded: not fused.
    let more = 1.0 + 3.0 * f32::EPSILON;
    let affine = Operation::Affine {
        channels: channels(&[more], &[-1.0]),
        axis: None,
    };
    let found = case(affine, DataType::Fp32, &[values(&[more])], &[1]);
    assert_eq!(found, values(&[more * more - 1.0]));
    assert_ne!(found, values(&[more.mul_add(more, -1.0)]));
    let affine = Operation::Affine {
        channels: channels(&[1.0, 10.0], &[0.5, 0.0]),
        axis: Some(0),
    };
    let found = case(
        affine,
        DataType::Uint8,
        &[values(&[1.0, 2.0, 3.0, 400.0])],
        &[2, 2],
    );
    assert_eq!(found, [2, 2, 30, 255]);
    let cast = case(
        Operation::Cast,
        DataType::Int8,
        &[values(&[-0.5, 1.5, 1e9, f32::NAN])],
        &[4],
    );
    assert_eq!(cast, [0, 2, 127, 0]);
    let turned = case(
        Operation::Layout(Order::ChannelsFirst),
        DataType::Fp32,
        &[values(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])],
        &[1, 3, 2],
    );
    assert_eq!(turned, values(&[0.0, 2.0, 4.0, 1.0, 3.0, 5.0]));
}

/// What NVIDIA's assembler says of the texts, where the variable PTXAS names one.
#[test]
fn the_assembler_takes_every_text() {
    let Some(program) = std::env::var_os("PTXAS") else {
        println!("skipped: PTXAS names no assembler");
        return;
    };
    for target in std::env::var("PTXAS_TARGETS")
        .unwrap_or("sm_50 sm_90".to_owned())
        .split(' ')
    {
        for (formula, _) in formulas() {
            let mut child = Command::new(&program)
                .args(["--gpu-name", target, "--output-file", "/dev/null", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            input.write_all(ptx::text(&formula).as_bytes()).unwrap();
            drop(input);
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{formula:?} for {target}: {text}");
        }
    }
}
