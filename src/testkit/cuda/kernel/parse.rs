//! PTX text to a [`Module`]. Refuses what it does not know, and what the driver's compiler refuses
//! for the same instructions: registers that are not declared or have another width, wrong counts
//! of operands, labels that there are not, modifiers that are missing.

use std::collections::HashMap;

use super::instruction::{Instruction, Operation, Type};
use super::operations;
use super::program::{Kernel, Module, Parameter, ParseError};
use super::statement::{Kind, Statement, statements, without_comments};
use super::symbols::{Outcome, Symbols};

/// Of all parameters of a kernel, before PTX 8.1.
const PARAMETER_BYTES_MAX: usize = 4352;

pub fn parse(text: &str) -> Result<Module, ParseError> {
    let plain = without_comments(text);
    let mut module = Module {
        version: (0, 0),
        target: 0,
        kernels: Vec::new(),
    };
    let statements = statements(&plain)?;
    let mut rest = statements.iter();
    while let Some(statement) = rest.next() {
        let at = |message: String| ParseError {
            line: statement.line,
            message,
        };
        match &statement.kind {
            Kind::Text(text) => directive(&mut module, text).map_err(at)?,
            Kind::Open(head) => {
                let mut kernel = KernelParser::new(head).map_err(at)?;
                kernel.read(&mut rest)?;
                let kernel = kernel.finish().map_err(at)?;
                if module.kernels.iter().any(|other| other.name == kernel.name) {
                    return Err(at(format!("Duplicate definition of '{}'", kernel.name)));
                }
                module.kernels.push(kernel);
            }
            _ => return Err(at("Parsing error".to_owned())),
        }
    }
    if module.version == (0, 0) || module.target == 0 {
        return Err(ParseError {
            line: 1,
            message: "Missing .version or .target directive at start of file".to_owned(),
        });
    }
    Ok(module)
}

fn directive(module: &mut Module, text: &str) -> Outcome<()> {
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let value = value.trim();
    let wrong = || format!("Parsing error near '{text}'");
    match name {
        ".version" => {
            let (major, minor) = value.split_once('.').ok_or_else(wrong)?;
            let number = |text: &str| text.parse().map_err(|_| wrong());
            module.version = (number(major)?, number(minor)?);
        }
        ".target" => {
            let digits = value.strip_prefix("sm_").ok_or_else(wrong)?;
            module.target = digits.parse().map_err(|_| wrong())?;
        }
        ".address_size" if value == "64" => {}
        _ => return Err(wrong()),
    }
    Ok(())
}

/// Reads `.param .u64 a` or `.param .align 8 .b8 a[64]`, which lies behind `end` bytes of others.
fn parameter(text: &str, end: usize) -> Option<Parameter> {
    let mut words = text.split_whitespace().peekable();
    if words.next() != Some(".param") {
        return None;
    }
    let alignment = match words.next_if_eq(&".align") {
        None => None,
        Some(_) => Some(words.next()?.parse::<usize>().ok()?),
    };
    let alignment = match alignment {
        None => None,
        Some(bytes) if bytes.is_power_of_two() && bytes <= 128 => Some(bytes),
        Some(_) => return None,
    };
    let data_type = words.next()?.strip_prefix('.').and_then(Type::parse);
    let data_type = data_type.filter(|found| *found != Type::Predicate);
    let element_bytes = data_type?.bytes() as usize;
    let name = words.next()?;
    if words.next().is_some() {
        return None;
    }
    let (name, count) = match name.split_once('[') {
        None => (name, 1),
        Some((name, count)) => (name, count.strip_suffix(']')?.parse().ok()?),
    };
    // What a kernel can have at all.
    let bytes = element_bytes.checked_mul(count)?;
    if bytes == 0 || bytes > PARAMETER_BYTES_MAX {
        return None;
    }
    Some(Parameter {
        name: name.to_owned(),
        bytes,
        offset: end.next_multiple_of(alignment.unwrap_or(element_bytes)),
    })
}

/// Reads one kernel: its head, its statements, and then the targets of its branches.
struct KernelParser {
    name: String,
    symbols: Symbols,
    block_max: Option<u32>,
    labels: HashMap<String, usize>,
    instructions: Vec<Instruction>,
    /// Branches by place, to labels that may come later.
    branches: Vec<(usize, String)>,
}

impl KernelParser {
    /// Reads `.visible .entry name(.param .u64 a, ...) .maxntid 256`.
    fn new(head: &str) -> Outcome<KernelParser> {
        let unknown = || format!("Parsing error near '{head}'");
        let head = head.strip_prefix(".visible").unwrap_or(head).trim();
        let head = head.strip_prefix(".entry").ok_or_else(unknown)?.trim();
        let (name, rest) = head.split_once('(').ok_or_else(unknown)?;
        let (list, rest) = rest.split_once(')').ok_or_else(unknown)?;
        let mut parameters: Vec<Parameter> = Vec::new();
        for text in list
            .split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty())
        {
            let end = parameters.last().map_or(0, |last| last.offset + last.bytes);
            let parameter = parameter(text, end);
            parameters.push(parameter.ok_or_else(|| format!("Parsing error near '{text}'"))?);
        }
        let rest = rest.trim();
        let block_max = match rest.strip_prefix(".maxntid") {
            Some(list) => {
                let sizes = list.split(',').map(|size| size.trim().parse::<u32>());
                let sizes = sizes
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|_| unknown())?;
                let product = |threads: u32, size: &u32| threads.saturating_mul(*size);
                Some(sizes.iter().fold(1, product))
            }
            None if rest.is_empty() => None,
            None => return Err(format!("Parsing error near '{rest}'")),
        };
        Ok(KernelParser {
            name: name.trim().to_owned(),
            symbols: Symbols::new(parameters),
            block_max,
            labels: HashMap::new(),
            instructions: Vec::new(),
            branches: Vec::new(),
        })
    }

    /// Reads statements up to the brace that ends the kernel.
    fn read<'t>(
        &mut self,
        statements: &mut impl Iterator<Item = &'t Statement<'t>>,
    ) -> Result<(), ParseError> {
        let mut line = 0;
        for statement in statements {
            line = statement.line;
            let outcome = match &statement.kind {
                Kind::Close => return Ok(()),
                Kind::Label(name) => self.label(name),
                Kind::Text(text) if text.starts_with(".reg") => self.symbols.declare(text),
                Kind::Text(text) => self.instruction(text),
                Kind::Open(head) => Err(format!("Parsing error near '{head}'")),
            };
            outcome.map_err(|message| ParseError { line, message })?;
        }
        let message = "the text ends within a kernel".to_owned();
        Err(ParseError { line, message })
    }

    fn label(&mut self, name: &str) -> Outcome<()> {
        let place = self.instructions.len();
        match self.labels.insert(name.to_owned(), place) {
            None => Ok(()),
            Some(_) => Err(format!("Duplicate definition of label '{name}'")),
        }
    }

    fn instruction(&mut self, text: &str) -> Outcome<()> {
        let (guard, text) = match text.strip_prefix('@') {
            None => (None, text),
            Some(rest) => {
                let (condition, text) = rest
                    .split_once(char::is_whitespace)
                    .ok_or_else(|| format!("Parsing error near '{text}'"))?;
                let (name, is_negated) = match condition.strip_prefix('!') {
                    Some(name) => (name, true),
                    None => (condition, false),
                };
                let register = self.symbols.register(name, Type::Predicate)?;
                (Some((register, is_negated)), text.trim())
            }
        };
        let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let operands: Vec<&str> = match operands.trim() {
            "" => Vec::new(),
            list => list.split(',').map(str::trim).collect(),
        };
        let place = self.instructions.len();
        let operation = if name == "bra" || name == "bra.uni" {
            let [label] = operands[..] else {
                return Err(format!("Arguments mismatch for instruction '{name}'"));
            };
            self.branches.push((place, label.to_owned()));
            Operation::Branch(usize::MAX)
        } else {
            operations::parse(&self.symbols, name, &operands)?
        };
        self.instructions.push(Instruction { guard, operation });
        Ok(())
    }

    fn finish(mut self) -> Outcome<Kernel> {
        for (place, label) in std::mem::take(&mut self.branches) {
            let target = self.labels.get(&label).copied();
            let target = target.ok_or_else(|| format!("Unknown symbol '{label}'"))?;
            if let Some(instruction) = self.instructions.get_mut(place) {
                instruction.operation = Operation::Branch(target);
            }
        }
        Ok(Kernel {
            name: self.name,
            block_max: self.block_max,
            register_count: self.symbols.register_count(),
            parameters: self.symbols.into_parameters(),
            instructions: self.instructions,
        })
    }
}
