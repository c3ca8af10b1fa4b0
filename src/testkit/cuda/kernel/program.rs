//! A module as the interpreter runs it: kernels whose registers are numbers and whose branches are
//! places of instructions.

use super::instruction::Instruction;

/// What a text says.
#[derive(Debug, PartialEq)]
pub struct Module {
    /// Of `.version`.
    pub version: (u32, u32),
    /// Of `.target`: 50 for `sm_50`.
    pub target: u32,
    pub kernels: Vec<Kernel>,
}

/// One `.entry`.
#[derive(Debug, PartialEq)]
pub struct Kernel {
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// Of `.maxntid`.
    pub block_max: Option<u32>,
    pub register_count: usize,
    pub instructions: Vec<Instruction>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub bytes: usize,
    /// In the block of all parameters.
    pub offset: usize,
}

impl Kernel {
    /// Bytes of all parameters.
    pub fn parameter_bytes(&self) -> usize {
        let last = self.parameters.last();
        last.map_or(0, |last| last.offset + last.bytes)
    }
}

/// Why a text is no module, with the line.
#[derive(Clone, Debug, PartialEq)]
pub struct ParseError {
    pub line: usize,
    pub message: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // As the driver's compiler begins its rows.
        write!(
            formatter,
            "ptxas application ptx input, line {}; error   : {}",
            self.line, self.message
        )
    }
}
