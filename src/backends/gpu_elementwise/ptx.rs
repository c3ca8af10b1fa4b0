//! The kernel of a model, as PTX text for the driver's compiler. A thread makes one element.
//!
//! Nothing is contracted: `.rn` keeps a product and a sum two operations, each rounded, as on the
//! host. `sm_50` and PTX 6.0: what every device and driver of the last ten years takes.

use std::ffi::CString;
use std::fmt::Write;

use crate::element::{NAN_FP32, NAN_HALF, NumberType};
use crate::formula::Formula;
use crate::operation::{Channels, Operation, Order};

/// The kernel's name.
pub const NAME: &std::ffi::CStr = c"elementwise";

/// Segments of a launch: a row of threads computes one.
pub const SEGMENTS_MAX: usize = 16;

/// Of a segment, as the kernel reads it: the addresses of the two inputs and of the output, the
/// count of elements, and padding.
pub const SEGMENT_BYTES: usize = 32;

/// Parameters: the segments, the table of channels, and as in
/// [`Geometry`](crate::geometry::Geometry) `inner` and `channels`.
fn head() -> String {
    let bytes = SEGMENTS_MAX * SEGMENT_BYTES;
    format!(
        "\
.version 6.0
.target sm_50
.address_size 64
.visible .entry elementwise(
    .param .align 8 .b8 segments[{bytes}], .param .u64 table,
    .param .u32 inner, .param .u32 channels)
{{
{BEGIN}"
    )
}

/// Finds the segment of the thread and its element. %d9 is the address of the segment.
const BEGIN: &str = "\
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<16>;
    .reg .f32 %f<8>;
    .reg .b64 %d<12>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r0, %r1, %r2, %r3;
    mov.u64 %d9, segments;
    mov.u32 %r1, %ctaid.y;
    mad.wide.u32 %d9, %r1, 32, %d9;
    ld.param.u32 %r1, [%d9+24];
    setp.ge.u32 %p0, %r0, %r1;
    @%p0 ret;
    mov.u32 %r1, %r0;
    ld.param.u64 %d0, [%d9];
    cvta.to.global.u64 %d0, %d0;
    ld.param.u64 %d2, [%d9+16];
    cvta.to.global.u64 %d2, %d2;
";

/// The text for a formula. In it, %r0 is the place in the output, %r1 that in the input, %r2 the
/// channel.
pub fn text(formula: &Formula) -> CString {
    let mut code = Code { text: head() };
    code.places(&formula.operation);
    match (&formula.operation, formula.numbers) {
        (Operation::Layout(_), _) | (_, None) => code.move_bits(formula.element_bytes),
        (operation, Some((from, to))) => code.numbers(operation, from, to),
    }
    code.text.push_str("    ret;\n}\n");
    CString::new(code.text).expect("no NUL is written")
}

struct Code {
    text: String,
}

impl Code {
    fn line(&mut self, instruction: &str) {
        let _ = writeln!(self.text, "    {instruction};");
    }

    fn lines(&mut self, instructions: &[&str]) {
        for instruction in instructions {
            self.line(instruction);
        }
    }

    /// Computes the place in the input and the channel, where they are needed.
    fn places(&mut self, operation: &Operation) {
        match operation {
            Operation::Affine { channels, .. } if channels.count() > 1 => self.lines(&[
                "ld.param.u32 %r4, [inner]",
                "ld.param.u32 %r5, [channels]",
                "div.u32 %r2, %r0, %r4",
                "rem.u32 %r2, %r2, %r5",
            ]),
            Operation::Layout(Order::ChannelsFirst) | Operation::NormalizeImage { .. } => self
                .lines(&[
                    "ld.param.u32 %r4, [inner]",
                    "ld.param.u32 %r5, [channels]",
                    "div.u32 %r6, %r0, %r4",
                    "rem.u32 %r7, %r0, %r4",
                    "div.u32 %r8, %r6, %r5",
                    "rem.u32 %r2, %r6, %r5",
                    "mad.lo.u32 %r1, %r8, %r4, %r7",
                    "mad.lo.u32 %r1, %r1, %r5, %r2",
                ]),
            Operation::Layout(Order::ChannelsLast) => self.lines(&[
                "ld.param.u32 %r4, [inner]",
                "ld.param.u32 %r5, [channels]",
                "div.u32 %r6, %r0, %r5",
                "rem.u32 %r2, %r0, %r5",
                "div.u32 %r8, %r6, %r4",
                "rem.u32 %r7, %r6, %r4",
                "mad.lo.u32 %r1, %r8, %r5, %r2",
                "mad.lo.u32 %r1, %r1, %r4, %r7",
            ]),
            _ => {}
        }
    }

    fn move_bits(&mut self, bytes: usize) {
        let (register, bits) = match bytes {
            8 => ("%d5", 64),
            4 => ("%r9", 32),
            2 => ("%h1", 16),
            _ => ("%r9", 8),
        };
        self.address("%d3", "%d0", "%r1", bytes);
        self.line(&format!("ld.global.b{bits} {register}, [%d3]"));
        self.address("%d4", "%d2", "%r0", bytes);
        self.line(&format!("st.global.b{bits} [%d4], {register}"));
    }

    fn address(&mut self, to: &str, base: &str, place: &str, bytes: usize) {
        self.line(&format!("mad.wide.u32 {to}, {place}, {bytes}, {base}"));
    }

    fn numbers(&mut self, operation: &Operation, from: NumberType, to: NumberType) {
        let is_pair = matches!(operation, Operation::Add | Operation::Multiply);
        let is_integer =
            !from.is_float() && !to.is_float() && (is_pair || matches!(operation, Operation::Cast));
        self.address("%d3", "%d0", "%r1", from.bytes());
        if is_integer {
            self.load_integer(from, "%d3", "%d5");
        } else {
            self.load_float(from, "%d3", "%f0");
        }
        if is_pair {
            self.lines(&["ld.param.u64 %d1, [%d9+8]", "cvta.to.global.u64 %d1, %d1"]);
            self.address("%d3", "%d1", "%r1", from.bytes());
            let name = match operation {
                Operation::Add => "add",
                _ => "mul",
            };
            if is_integer {
                self.load_integer(from, "%d3", "%d6");
                let name = if name == "mul" { "mul.lo" } else { name };
                self.line(&format!("{name}.s64 %d5, %d5, %d6"));
            } else {
                self.load_float(from, "%d3", "%f1");
                self.line(&format!("{name}.rn.f32 %f0, %f0, %f1"));
            }
        }
        match operation {
            Operation::Affine { channels, .. } => {
                self.channel_values(channels);
                self.lines(&["mul.rn.f32 %f0, %f0, %f2", "add.rn.f32 %f0, %f0, %f3"]);
            }
            Operation::NormalizeImage { channels } => {
                self.channel_values(channels);
                self.lines(&["sub.rn.f32 %f0, %f0, %f3", "mul.rn.f32 %f0, %f0, %f2"]);
            }
            _ => {}
        }
        self.address("%d4", "%d2", "%r0", to.bytes());
        if is_integer {
            self.store_integer(to);
        } else {
            self.store_float(to);
        }
    }

    /// The factor of the channel in %f2, its shift in %f3.
    fn channel_values(&mut self, channels: &Channels) {
        if channels.count() == 1 {
            let (scale, shift) = channels.of(0);
            self.line(&format!("mov.f32 %f2, 0f{:08X}", scale.to_bits()));
            self.line(&format!("mov.f32 %f3, 0f{:08X}", shift.to_bits()));
            return;
        }
        self.lines(&[
            "ld.param.u64 %d7, [table]",
            "cvta.to.global.u64 %d7, %d7",
            "mad.wide.u32 %d8, %r2, 4, %d7",
            "ld.global.nc.f32 %f2, [%d8]",
            "mad.wide.u32 %d8, %r5, 4, %d8",
            "ld.global.nc.f32 %f3, [%d8]",
        ]);
    }

    fn load_integer(&mut self, from: NumberType, address: &str, to: &str) {
        let load = match from {
            NumberType::Int8 => "ld.global.s8",
            NumberType::Uint8 => "ld.global.u8",
            _ => "ld.global.s32",
        };
        self.line(&format!("{load} %r9, [{address}]"));
        self.line(&format!("cvt.s64.s32 {to}, %r9"));
    }

    fn load_float(&mut self, from: NumberType, address: &str, to: &str) {
        match from {
            NumberType::Fp32 => self.line(&format!("ld.global.f32 {to}, [{address}]")),
            NumberType::Fp16 => {
                self.line(&format!("ld.global.b16 %h0, [{address}]"));
                self.line(&format!("cvt.f32.f16 {to}, %h0"));
            }
            // The upper half of an FP32.
            NumberType::Bf16 => {
                self.line(&format!("ld.global.u16 %r9, [{address}]"));
                self.line("shl.b32 %r9, %r9, 16");
                self.line(&format!("mov.b32 {to}, %r9"));
            }
            integer => {
                let load = match integer {
                    NumberType::Int8 => "ld.global.s8",
                    NumberType::Uint8 => "ld.global.u8",
                    _ => "ld.global.s32",
                };
                self.line(&format!("{load} %r9, [{address}]"));
                self.line(&format!("cvt.rn.f32.s32 {to}, %r9"));
            }
        }
    }

    /// Stores %d5.
    fn store_integer(&mut self, to: NumberType) {
        let (least, most) = to.range();
        self.line(&format!("max.s64 %d5, %d5, {least}"));
        self.line(&format!("min.s64 %d5, %d5, {most}"));
        self.line("cvt.u32.u64 %r10, %d5");
        self.store_bits(to);
    }

    /// Stores %f0.
    fn store_float(&mut self, to: NumberType) {
        if to.is_float() {
            self.line("setp.nan.f32 %p1, %f0, %f0");
        }
        match to {
            NumberType::Fp32 => {
                self.line(&format!("selp.f32 %f0, 0f{NAN_FP32:08X}, %f0, %p1"));
                self.line("st.global.f32 [%d4], %f0");
            }
            NumberType::Fp16 => {
                self.line("cvt.rn.f16.f32 %h1, %f0");
                self.line(&format!("mov.b16 %h2, 0x{NAN_HALF:x}"));
                self.lines(&["selp.b16 %h1, %h2, %h1, %p1", "st.global.b16 [%d4], %h1"]);
            }
            // Rounded to nearest even: half of the last place is added, less one if it is even.
            NumberType::Bf16 => {
                self.lines(&[
                    "mov.b32 %r10, %f0",
                    "shr.u32 %r11, %r10, 16",
                    "and.b32 %r11, %r11, 1",
                    "add.u32 %r11, %r11, 0x7fff",
                    "add.u32 %r10, %r10, %r11",
                    "shr.u32 %r10, %r10, 16",
                ]);
                self.line(&format!("selp.b32 %r10, 0x{NAN_HALF:x}, %r10, %p1"));
                self.line("st.global.u16 [%d4], %r10");
            }
            integer => {
                // The range of 32 bits and a NaN are the conversion's own.
                self.line("cvt.rni.s32.f32 %r10, %f0");
                if integer != NumberType::Int32 {
                    let (least, most) = integer.range();
                    self.line(&format!("max.s32 %r10, %r10, {least}"));
                    self.line(&format!("min.s32 %r10, %r10, {most}"));
                }
                self.store_bits(integer);
            }
        }
    }

    /// Stores an integer in %r10.
    fn store_bits(&mut self, to: NumberType) {
        let store = if to.bytes() == 1 { "u8" } else { "u32" };
        self.line(&format!("st.global.{store} [%d4], %r10"));
    }
}
