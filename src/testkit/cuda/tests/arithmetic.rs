//! Results of instructions, through the driver's functions.

use super::kernel::{function, launch, load, one};
use super::support::{NONE, Session, alloc, cu, ok, read, write};

/// What the kernel stores at `out`, of three inputs.
fn computed(body: &str, inputs: [u64; 3]) -> u64 {
    let (source, target) = (alloc(24), alloc(8));
    write(source, &inputs.map(u64::to_le_bytes).concat());
    write(target, &[0; 8]);
    let module = load(&one(body));
    let words = &mut [source, target];
    assert_eq!(launch(function(module), 1, 1, NONE, words), 0, "{body}");
    ok!(cuStreamSynchronize(NONE));
    let found = read(target, 8);
    ok!(cuModuleUnload(module));
    ok!(cuMemFree_v2(source));
    ok!(cuMemFree_v2(target));
    u64::from_le_bytes(found.try_into().unwrap())
}

const fn bits(value: f32) -> u64 {
    value.to_bits() as u64
}

const fn minus(value: i64) -> u64 {
    value as u64
}

/// What a kernel computes and stores, its inputs, and what it stores.
const INTEGERS: &[(&str, [u64; 3], u64)] = &[
    (
        "add.s32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 2, 0],
        1,
    ),
    (
        "add.sat.s32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [0x7fff_ffff, 2, 0],
        0x7fff_ffff,
    ),
    (
        "sub.s64 %d4, %d1, 5; st.global.u64 [%out], %d4;",
        [3, 0, 0],
        minus(-2),
    ),
    (
        "mul.lo.u64 %d4, %d1, %d2; st.global.b64 [%out], %d4;",
        [1 << 40, 1 << 23, 0],
        1 << 63,
    ),
    (
        "mul.hi.s32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 2, 0],
        0xffff_ffff,
    ),
    (
        "mul.hi.u64 %d4, %d1, %d2; st.global.u64 [%out], %d4;",
        [1 << 63, 6, 0],
        3,
    ),
    (
        "mul.wide.s32 %d4, %r1, %r2; st.global.u64 [%out], %d4;",
        [0xffff_ffff, 3, 0],
        minus(-3),
    ),
    (
        "mul.wide.u32 %d4, %r1, -1; st.global.u64 [%out], %d4;",
        [2, 0, 0],
        0x1_ffff_fffe,
    ),
    (
        "mad.wide.u32 %d4, %r1, 4, %d2; st.global.u64 [%out], %d4;",
        [5, 1 << 40, 0],
        (1 << 40) + 20,
    ),
    (
        "mad.lo.u32 %r4, %r1, %r2, %r3; st.global.u32 [%out], %r4;",
        [1 << 31, 2, 9],
        9,
    ),
    (
        "div.s32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [0xffff_fff9, 2, 0],
        0xffff_fffd,
    ),
    (
        "rem.s32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [0xffff_fff9, 2, 0],
        0xffff_ffff,
    ),
    (
        "div.u32 %r4, %r1, 7; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 0, 0],
        613_566_756,
    ),
    (
        "min.s64 %d4, %d1, %d2; st.global.u64 [%out], %d4;",
        [minus(-1), 1, 0],
        minus(-1),
    ),
    (
        "min.u64 %d4, %d1, %d2; st.global.u64 [%out], %d4;",
        [minus(-1), 1, 0],
        1,
    ),
    (
        "max.s32 %r4, %r1, -128; st.global.u32 [%out], %r4;",
        [0xffff_0000, 0, 0],
        0xffff_ff80,
    ),
    (
        "shl.b32 %r4, %r1, 31; st.global.u32 [%out], %r4;",
        [3, 0, 0],
        1 << 31,
    ),
    (
        "shl.b32 %r4, %r1, 32; st.global.u32 [%out], %r4;",
        [3, 0, 0],
        0,
    ),
    (
        "shr.s32 %r4, %r1, 40; st.global.u32 [%out], %r4;",
        [1 << 31, 0, 0],
        0xffff_ffff,
    ),
    (
        "shr.u32 %r4, %r1, %r2; st.global.u32 [%out], %r4;",
        [1 << 31, 31, 0],
        1,
    ),
    (
        "and.b32 %r4, %r1, 0xff00; not.b32 %r4, %r4; st.global.u32 [%out], %r4;",
        [0x1234, 0, 0],
        0xffff_edff,
    ),
    (
        "xor.b64 %d4, %d1, %d2; or.b64 %d4, %d4, 1; st.global.u64 [%out], %d4;",
        [6, 2, 0],
        5,
    ),
    (
        "neg.s32 %r4, %r1; abs.s32 %r4, %r4; st.global.u32 [%out], %r4;",
        [5, 0, 0],
        5,
    ),
    // Narrow loads spread their sign where they have one; narrow stores cut.
    (
        "ld.global.s8 %r4, [%in]; st.global.u32 [%out], %r4;",
        [0x80, 0, 0],
        0xffff_ff80,
    ),
    (
        "ld.global.u8 %r4, [%in+1]; st.global.u32 [%out], %r4;",
        [0x8000, 0, 0],
        0x80,
    ),
    (
        "ld.global.nc.s16 %d4, [%in]; st.global.u64 [%out], %d4;",
        [0x8000, 0, 0],
        minus(-32768),
    ),
    ("st.global.u8 [%out+1], %r1;", [0x1234, 0, 0], 0x3400),
    (
        "cvt.s64.s32 %d4, %r1; st.global.u64 [%out], %d4;",
        [0xffff_ffff, 0, 0],
        minus(-1),
    ),
    (
        "cvt.s64.u32 %d4, %r1; st.global.u64 [%out], %d4;",
        [0xffff_ffff, 0, 0],
        0xffff_ffff,
    ),
    (
        "cvt.sat.u8.s32 %r4, %r1; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 0, 0],
        0,
    ),
    (
        "cvt.sat.s8.s64 %r4, %d1; st.global.u32 [%out], %r4;",
        [minus(-300), 0, 0],
        0xffff_ff80,
    ),
    (
        "cvt.u16.u32 %h4, %r1; st.global.u16 [%out], %h4;",
        [0x12345, 0, 0],
        0x2345,
    ),
    // Comparisons, guards and choices.
    (
        "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, 7, 9, %p1; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 1, 0],
        7,
    ),
    (
        "setp.lt.u32 %p1, %r1, %r2; selp.b32 %r4, 7, 9, %p1; st.global.u32 [%out], %r4;",
        [0xffff_ffff, 1, 0],
        9,
    ),
    (
        "setp.ge.s64 %p1, %d1, %d2; not.pred %p2, %p1; and.pred %p3, %p1, %p2; \
         @!%p3 st.global.u8 [%out], 3;",
        [2, 2, 0],
        3,
    ),
    (
        "mov.u32 %r4, 0; LOOP: add.u32 %r4, %r4, %r1; setp.lt.u32 %p1, %r4, 9; \
         @%p1 bra LOOP; st.global.u32 [%out], %r4;",
        [2, 0, 0],
        10,
    ),
];

#[test]
fn integers_are_computed() {
    let _session = Session::start();
    for (body, inputs, expected) in INTEGERS {
        assert_eq!(computed(body, *inputs), *expected, "{body}");
    }
}

const NAN: u64 = 0x7fff_ffff;
const TINY: f32 = f32::MIN_POSITIVE;
/// Its square is not exact.
const MORE: f32 = 1.0 + 3.0 * f32::EPSILON;

/// As [`INTEGERS`]; %f4 is stored.
const FLOATS: &[(&str, [f32; 3], u64)] = &[
    ("add.rn.f32 %f4, %f1, %f2;", [1e8, 1.0, 0.0], bits(1e8)),
    (
        "add.f32 %f4, %f1, %f2;",
        [f32::INFINITY, f32::NEG_INFINITY, 0.0],
        NAN,
    ),
    ("sub.rn.f32 %f4, %f1, %f2;", [1.0, 0.25, 0.0], bits(0.75)),
    (
        "mul.rn.f32 %f4, %f1, %f2;",
        [TINY, 0.5, 0.0],
        bits(TINY / 2.0),
    ),
    (
        "mul.rn.f32 %f4, %f1, 0f40000000;",
        [3e38, 0.0, 0.0],
        bits(f32::INFINITY),
    ),
    (
        "div.rn.f32 %f4, %f1, %f2;",
        [1.0, 3.0, 0.0],
        bits(1.0 / 3.0),
    ),
    // Rounded once, or twice.
    (
        "fma.rn.f32 %f4, %f1, %f2, %f3;",
        [MORE, MORE, -1.0],
        bits(6.0 * f32::EPSILON) + 2,
    ),
    (
        "mul.rn.f32 %f4, %f1, %f2; add.rn.f32 %f4, %f4, %f3;",
        [MORE, MORE, -1.0],
        bits(6.0 * f32::EPSILON),
    ),
    (
        "sqrt.rn.f32 %f4, %f1;",
        [2.0, 0.0, 0.0],
        bits(std::f32::consts::SQRT_2),
    ),
    ("min.f32 %f4, %f1, %f2;", [f32::NAN, 2.0, 0.0], bits(2.0)),
    ("min.f32 %f4, %f1, %f2;", [0.0, -0.0, 0.0], bits(-0.0)),
    ("max.f32 %f4, %f1, %f2;", [-0.0, 0.0, 0.0], bits(0.0)),
    (
        "neg.f32 %f4, %f1; abs.f32 %f4, %f4;",
        [3.0, 0.0, 0.0],
        bits(3.0),
    ),
    ("mov.f32 %f4, 0f7FC00001;", [0.0, 0.0, 0.0], 0x7fc0_0001),
    (
        "mov.b32 %r4, %f1; mov.b32 %f4, %r4;",
        [2.5, 0.0, 0.0],
        bits(2.5),
    ),
    ("cvt.rni.f32.f32 %f4, %f1;", [2.5, 0.0, 0.0], bits(2.0)),
    ("cvt.rpi.f32.f32 %f4, %f1;", [2.1, 0.0, 0.0], bits(3.0)),
    ("cvt.sat.f32.f32 %f4, %f1;", [f32::NAN, 0.0, 0.0], 0),
    (
        "cvt.rni.s32.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [-2.5, 0.0, 0.0],
        0xffff_fffe,
    ),
    (
        "cvt.rzi.s32.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [-2.9, 0.0, 0.0],
        0xffff_fffe,
    ),
    (
        "cvt.rmi.s32.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [-2.1, 0.0, 0.0],
        0xffff_fffd,
    ),
    (
        "cvt.rni.s32.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [3e9, 0.0, 0.0],
        0x7fff_ffff,
    ),
    (
        "cvt.rni.s32.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [f32::NAN, 0.0, 0.0],
        0,
    ),
    (
        "cvt.rni.u8.f32 %r4, %f1; mov.b32 %f4, %r4;",
        [300.0, 0.0, 0.0],
        255,
    ),
    (
        "cvt.rni.s64.f32 %d4, %f1; shr.u64 %d4, %d4, 32; cvt.u32.u64 %r4, %d4; mov.b32 %f4, %r4;",
        [f32::NAN, 0.0, 0.0],
        1 << 31,
    ),
    (
        "mov.u32 %r4, 16777217; cvt.rn.f32.s32 %f4, %r4;",
        [0.0, 0.0, 0.0],
        bits(16_777_216.0),
    ),
    (
        "mov.u32 %r4, -1; cvt.rn.f32.s32 %f4, %r4;",
        [0.0, 0.0, 0.0],
        bits(-1.0),
    ),
    (
        "mov.u32 %r4, -1; cvt.rn.f32.u32 %f4, %r4;",
        [0.0, 0.0, 0.0],
        bits(4_294_967_296.0),
    ),
    // FP16 in the low half of a register.
    (
        "cvt.rn.f16.f32 %h4, %f1; cvt.f32.f16 %f4, %h4;",
        [0.1, 0.0, 0.0],
        bits(0.099_975_586),
    ),
    (
        "cvt.rz.f16.f32 %h4, %f1; cvt.u32.u16 %r4, %h4; mov.b32 %f4, %r4;",
        [1e9, 0.0, 0.0],
        0x7bff,
    ),
    (
        "cvt.rn.f16.f32 %h4, %f1; cvt.rn.f16.f32 %h5, %f2; \
         mul.rn.f16 %h4, %h4, %h5; cvt.f32.f16 %f4, %h4;",
        [300.0, 300.0, 0.0],
        bits(f32::INFINITY),
    ),
    (
        "setp.nan.f32 %p1, %f1, %f1; selp.f32 %f4, %f2, %f3, %p1;",
        [f32::NAN, 1.0, 2.0],
        bits(1.0),
    ),
    (
        "setp.lt.f32 %p1, %f1, %f2; selp.f32 %f4, %f2, %f3, %p1;",
        [f32::NAN, 1.0, 2.0],
        bits(2.0),
    ),
    (
        "setp.ltu.f32 %p1, %f1, %f2; selp.f32 %f4, %f2, %f3, %p1;",
        [f32::NAN, 1.0, 2.0],
        bits(1.0),
    ),
    (
        "setp.ne.f32 %p1, %f1, %f2; selp.f32 %f4, %f2, %f3, %p1;",
        [f32::NAN, 1.0, 2.0],
        bits(2.0),
    ),
    (
        "setp.num.f32 %p1, %f1, %f2; selp.f32 %f4, %f2, %f3, %p1;",
        [0.0, 1.0, 2.0],
        bits(1.0),
    ),
];

#[test]
fn floats_are_computed() {
    let _session = Session::start();
    for (body, inputs, expected) in FLOATS {
        let whole = format!("{body} st.global.f32 [%out], %f4;");
        assert_eq!(computed(&whole, inputs.map(bits)), *expected, "{body}");
    }
}
