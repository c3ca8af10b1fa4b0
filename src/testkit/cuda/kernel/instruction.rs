//! Instructions, operands and types.

/// The type that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Predicate,
    /// Bits, of 1, 2, 4 or 8 bytes.
    Bits(u32),
    Unsigned(u32),
    Signed(u32),
    F16,
    F32,
}

impl Type {
    pub fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Predicate,
            "f16" => Type::F16,
            "f32" => Type::F32,
            _ => {
                let (kind, bits) = text.split_at_checked(1)?;
                let bytes = match bits {
                    "8" => 1,
                    "16" => 2,
                    "32" => 4,
                    "64" => 8,
                    _ => return None,
                };
                match kind {
                    "b" => Type::Bits(bytes),
                    "u" => Type::Unsigned(bytes),
                    "s" => Type::Signed(bytes),
                    _ => return None,
                }
            }
        })
    }

    pub fn bytes(self) -> u32 {
        match self {
            Type::Predicate => 1,
            Type::Bits(bytes) | Type::Unsigned(bytes) | Type::Signed(bytes) => bytes,
            Type::F16 => 2,
            Type::F32 => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::F32)
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::Signed(_))
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Type::Signed(_) | Type::Unsigned(_))
    }
}

/// The number of a register of a kernel.
pub type Register = usize;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    Register(Register),
    /// The bits of a literal.
    Literal(u64),
    Special(Special),
}

/// What tells a thread which one it is; the dimension is 0 for x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Move,
    Not,
    Negate,
    Absolute,
    SquareRoot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    /// The upper half of the product.
    MultiplyHigh,
    Divide,
    Remainder,
    Minimum,
    Maximum,
    And,
    Or,
    ExclusiveOr,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Neither is a NaN.
    Numbers,
    /// One is a NaN.
    NaN,
}

/// `.rn` and its kin; those to an integer, such as `.rni`, are the same here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    LoadParameter {
        data_type: Type,
        to: Register,
        offset: usize,
    },
    /// Of a parameter whose address is in a register.
    LoadParameterAt {
        data_type: Type,
        to: Register,
        address: Register,
        offset: i64,
    },
    Load {
        data_type: Type,
        to: Register,
        address: Operand,
        offset: i64,
    },
    Store {
        data_type: Type,
        address: Operand,
        offset: i64,
        value: Operand,
    },
    Unary {
        what: Unary,
        data_type: Type,
        to: Register,
        from: Operand,
    },
    Binary {
        what: Binary,
        data_type: Type,
        saturates: bool,
        to: Register,
        operands: [Operand; 2],
    },
    /// The product of two numbers in twice their width, and a third added to it.
    MultiplyWide {
        data_type: Type,
        to: Register,
        operands: [Operand; 2],
        addend: Option<Operand>,
    },
    /// The lower half of a product of integers, or a product of floats that is not rounded, and a
    /// third added to it.
    MultiplyAdd {
        data_type: Type,
        to: Register,
        operands: [Operand; 3],
    },
    Compare {
        what: Comparison,
        /// True where a NaN takes part.
        is_unordered: bool,
        data_type: Type,
        to: Register,
        operands: [Operand; 2],
    },
    Select {
        to: Register,
        operands: [Operand; 2],
        condition: Register,
    },
    Convert {
        to_type: Type,
        from_type: Type,
        rounding: Option<Rounding>,
        /// Of a float: to a float that is an integer.
        is_integral: bool,
        saturates: bool,
        to: Register,
        from: Operand,
    },
    /// To the place of an instruction.
    Branch(usize),
    Return,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instruction {
    /// It runs if the register is true, or, negated, if it is false.
    pub guard: Option<(Register, bool)>,
    pub operation: Operation,
}
