//! The interpreter by itself: what instructions make of their operands, and what is refused.

use super::instruction::Rounding;
use super::number::{from_half, to_half};
use super::parse;

const HEAD: &str = ".version 6.0\n.target sm_50\n.address_size 64\n";

/// A kernel with registers of every kind.
fn text(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 out, .param .u32 n)\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .f32 %f<4>;\n\
         .reg .b64 %d<4>;\n{body}\nret;\n}}\n"
    )
}

fn refusal(body: &str) -> String {
    parse(&text(body)).map(drop).unwrap_err().to_string()
}

#[test]
fn texts_are_read() {
    let module = parse(&text(
        "// a comment\n/* another\n one */ LOOP: @!%p1 bra LOOP; @%p2 bra.uni END;\nEND:",
    ))
    .unwrap();
    assert_eq!((module.version, module.target), ((6, 0), 50));
    let [kernel] = &module.kernels[..] else {
        panic!("one kernel")
    };
    assert_eq!(kernel.name, "k");
    assert_eq!(kernel.instructions.len(), 3);
    assert_eq!(kernel.register_count, 20);
    assert_eq!(kernel.block_max, None);
    // Parameters lie at multiples of their size.
    let offsets: Vec<_> = kernel.parameters.iter().map(|found| found.offset).collect();
    assert_eq!((offsets, kernel.parameter_bytes()), (vec![0, 8], 12));
}

#[test]
fn parameters_lie_as_they_are_aligned() {
    let list = ".param .u8 a, .param .align 16 .b8 b[20], .param .u32 c, .param .b64 d[2]";
    let module = parse(&format!("{HEAD}.entry k({list}) {{ ret; }}")).unwrap();
    let places: Vec<_> = module.kernels[0]
        .parameters
        .iter()
        .map(|found| (found.name.as_str(), found.offset, found.bytes))
        .collect();
    let expected = [("a", 0, 1), ("b", 16, 20), ("c", 36, 4), ("d", 40, 16)];
    assert_eq!(places, expected);
    for wrong in [
        ".param .align 3 .b8 b[8]",
        ".param .align .b8 b[8]",
        ".param .b8 b[]",
        ".param .b8 b[8",
        ".param .b8 b[0]",
        ".param .b8 b[4353]",
        ".param .pred b",
        ".align 8 .b8 b[8]",
    ] {
        let text = format!("{HEAD}.entry k({wrong}) {{ ret; }}");
        assert!(parse(&text).is_err(), "{wrong}");
    }
}

#[test]
fn the_largest_block_is_a_product() {
    for (sizes, expected) in [("64, 4, 2", 512), ("65536, 65536", u32::MAX)] {
        let text = format!("{HEAD}.entry k() .maxntid {sizes} {{ ret; }}");
        let module = parse(&text).unwrap();
        assert_eq!(module.kernels[0].block_max, Some(expected), "{sizes}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    for (body, expected) in [
        ("bar.sync 0;", "instruction: 'bar.sync'"),
        ("add.ftz.f32 %f1, %f1, %f1;", "instruction: 'add.ftz.f32'"),
        ("add.rn.f64 %d1, %d1, %d1;", "instruction: 'add.rn.f64'"),
        ("add.u8 %h1, %h1, %h1;", "instruction: 'add.u8'"),
        ("mul.s32 %r1, %r1, %r1;", "instruction: 'mul.s32'"),
        ("add.lo.s32 %r1, %r1, %r1;", "instruction: 'add.lo.s32'"),
        ("add.sat.u32 %r1, %r1, %r1;", "instruction: 'add.sat.u32'"),
        ("div.f32 %f1, %f1, %f1;", "instruction: 'div.f32'"),
        ("div.rn.s32 %r1, %r1, %r1;", "instruction: 'div.rn.s32'"),
        ("add.rn.s32 %r1, %r1, %r1;", "instruction: 'add.rn.s32'"),
        ("min.rn.f32 %f1, %f1, %f1;", "instruction: 'min.rn.f32'"),
        ("fma.f32 %f1, %f1, %f1, %f1;", "instruction: 'fma.f32'"),
        ("and.u32 %r1, %r1, %r1;", "instruction: 'and.u32'"),
        ("cvt.f32.s32 %f1, %r1;", "instruction: 'cvt.f32.s32'"),
        ("cvt.rn.s32.f32 %r1, %f1;", "instruction: 'cvt.rn.s32.f32'"),
        ("cvt.f16.f32 %h1, %f1;", "instruction: 'cvt.f16.f32'"),
        ("cvt.rn.f32.f16 %f1, %h1;", "instruction: 'cvt.rn.f32.f16'"),
        ("ld.shared.u32 %r1, [%d1];", "instruction: 'ld.shared.u32'"),
        ("setp.lt.b32 %p1, %r1, %r2;", "instruction: 'setp.lt.b32'"),
        ("setp.nan.s32 %p1, %r1, %r2;", "instruction: 'setp.nan.s32'"),
        ("ld.global.u32 %r9, [%d1];", "symbol '%r9'"),
        ("ld.global.u32 %r1, [%r2];", "mismatch: '%r2'"),
        ("ld.param.u32 %r1, [m];", "symbol 'm'"),
        ("ld.param.u64 %d1, [n];", "reads beyond its parameter"),
        ("ld.param.u32 %r1, [%r2];", "mismatch: '%r2'"),
        ("mov.u32 %r1, n;", "symbol 'n'"),
        ("add.s64 %d1, %d1, out;", "symbol 'out'"),
        ("add.f32 %f1, %f1, 1.0;", "symbol '1.0'"),
        ("add.f32 %r1, %f1, %h1;", "mismatch: '%h1'"),
        ("add.s32 %f1, %r1, %r1;", "mismatch: '%f1'"),
        ("add.s32 %r1, %r1;", "mismatch for instruction 'add.s32'"),
        ("add.s32 %r1, %r1, 0f3F800000;", "'0f3F800000' is a float"),
        ("bra NOWHERE;", "symbol 'NOWHERE'"),
        ("A: A: ret;", "label 'A'"),
        (".reg .f32 %f1;", "definition of '%f1'"),
        (".shared .b8 s[4];", "instruction: '.shared'"),
        ("mov.b64 %d1, %tid.x;", "'%tid.x' has 32 bits"),
    ] {
        let message = refusal(body);
        assert!(message.contains(expected), "{body}: {message}");
        let line = if body.starts_with("bra") { 4 } else { 8 };
        assert!(message.contains(&format!("line {line};")), "{message}");
    }
    for wrong in [
        "",
        ".version 6.0\n",
        ".version six\n.target sm_50\n",
        &format!("{HEAD}.func f {{ ret; }}"),
        &format!("{HEAD}.visible .entry k("),
        &format!("{HEAD}.visible .entry k() {{ ret;"),
        &format!("{HEAD}.visible .entry k(.param .u64) {{ }}"),
        &format!("{HEAD}.entry k() {{ }} .entry k() {{ }}"),
        &format!("{HEAD}.extern .shared .b8 s[];"),
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn halves_come_back_as_they_were() {
    for bits in 0..=u16::MAX {
        let value = from_half(bits);
        let expected = if value.is_nan() { 0x7fff } else { bits };
        for mode in [Rounding::Nearest, Rounding::Zero, Rounding::Up] {
            assert_eq!(to_half(value, mode), expected, "{bits:#x} is {value}");
        }
    }
}

#[test]
fn halves_round_as_told() {
    use Rounding::{Down, Nearest, Up, Zero};
    let tiny = 2_f32.powi(-25);
    for (value, mode, expected) in [
        // Between 1 and the next, to the even one.
        (1.0 + 2_f32.powi(-11), Nearest, 0x3c00),
        (1.0 + 3.0 * 2_f32.powi(-11), Nearest, 0x3c02),
        (1.0 + 2_f32.powi(-11) + 2_f32.powi(-20), Nearest, 0x3c01),
        (1.0 + 2_f32.powi(-20), Up, 0x3c01),
        (-1.0 - 2_f32.powi(-20), Up, 0xbc00),
        (-1.0 - 2_f32.powi(-20), Down, 0xbc01),
        (2.0 - 2_f32.powi(-20), Nearest, 0x4000),
        // The largest number, and beyond.
        (65519.9, Nearest, 0x7bff),
        (65520.0, Nearest, 0x7c00),
        (1e9, Zero, 0x7bff),
        (-1e9, Up, 0xfbff),
        (-1e9, Down, 0xfc00),
        (f32::INFINITY, Zero, 0x7c00),
        // Denormals, and the smallest number.
        (tiny, Nearest, 0x0000),
        (1.5 * tiny, Nearest, 0x0001),
        (3.0 * tiny, Nearest, 0x0002),
        (tiny, Up, 0x0001),
        (-tiny, Nearest, 0x8000),
        (2_f32.powi(-14) - 2_f32.powi(-30), Nearest, 0x0400),
        (f32::MIN_POSITIVE / 4.0, Nearest, 0x0000),
        (f32::NAN, Down, 0x7fff),
    ] {
        assert_eq!(to_half(value, mode), expected, "{value:e} {mode:?}");
    }
}
