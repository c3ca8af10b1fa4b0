//! Arguments of operators in a serialised pipeline: that each has the value that its type says.
//! DALI takes that for granted and reads through a null pointer where it is not so.

use conch_backend_sdk::Error;

use crate::wire::{FieldValue, MessageFields};

/// Numbers of fields of `OpDef` in DALI's `dali.proto`.
const OPERATOR_NAME: u64 = 1;
const ARGUMENT: u64 = 4;

/// Those of `Argument`.
const NAME: u64 = 1;
const TYPE: u64 = 2;
const FLOATS: u64 = 3;
const INTEGERS: u64 = 4;
const TEXTS: u64 = 5;
const TRUTHS: u64 = 6;
const ELEMENT: u64 = 7;
const IS_LIST: u64 = 8;

/// Checks the arguments of an operator.
///
/// # Errors
/// `InvalidArgument` if one has no value, or a message in it is cut short.
pub fn check(operator: &[u8]) -> Result<(), Error> {
    let mut name = "";
    for field in MessageFields::of(operator) {
        match field.ok_or_else(cut)? {
            (OPERATOR_NAME, FieldValue::Bytes(bytes)) => name = text(bytes),
            (ARGUMENT, FieldValue::Bytes(argument)) => check_argument(name, argument)?,
            _ => {}
        }
    }
    Ok(())
}

fn check_argument(operator: &str, argument: &[u8]) -> Result<(), Error> {
    let (mut name, mut type_name, mut is_list, mut elements) = ("", "", false, Vec::new());
    for field in MessageFields::of(argument) {
        match field.ok_or_else(cut)? {
            (NAME, FieldValue::Bytes(bytes)) => name = text(bytes),
            (TYPE, FieldValue::Bytes(bytes)) => type_name = text(bytes),
            (IS_LIST, FieldValue::Varint(value)) => is_list = value != 0,
            (ELEMENT, FieldValue::Bytes(element)) => elements.push(element),
            _ => {}
        }
    }
    let Some(field) = value_field(type_name) else {
        // DALI itself refuses types that it does not know.
        return Ok(());
    };
    let values = if is_list { elements } else { vec![argument] };
    for value in values {
        if !has_value(value, field)? {
            return Err(Error::invalid(format!(
                "argument '{name}' of operator '{operator}' has no value of its type {type_name}"
            )));
        }
    }
    Ok(())
}

/// The field with the value of an argument of a type; those of a list's elements, too.
fn value_field(type_name: &str) -> Option<u64> {
    Some(match type_name {
        "float" => FLOATS,
        "int64" => INTEGERS,
        "string" => TEXTS,
        "bool" => TRUTHS,
        _ => return None,
    })
}

fn has_value(argument: &[u8], wanted: u64) -> Result<bool, Error> {
    for field in MessageFields::of(argument) {
        let (number, value) = field.ok_or_else(cut)?;
        let is_value = match value {
            // Texts stand alone; numbers may be packed together.
            FieldValue::Bytes(packed) => wanted == TEXTS || !packed.is_empty(),
            FieldValue::Fixed32 => wanted == FLOATS,
            FieldValue::Varint(_) => wanted == INTEGERS || wanted == TRUTHS,
            FieldValue::Fixed64 => false,
        };
        if number == wanted && is_value {
            return Ok(true);
        }
    }
    Ok(false)
}

fn cut() -> Error {
    Error::invalid(
        "the file is not a pipeline that DALI serialised: an operator in it is cut short",
    )
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).unwrap();
        [&[number << 3 | 2, len], content].concat()
    }

    fn argument(type_name: &str, more: &[&[u8]]) -> Vec<u8> {
        [
            field(1, b"width"),
            field(2, type_name.as_bytes()),
            more.concat(),
        ]
        .concat()
    }

    #[test]
    fn wants_a_value_of_each_argument() {
        let (one, list) = (&[0x40, 0][..], &[0x40, 1][..]);
        let (float, integer, truth) = (&[0x1d, 0, 0, 0, 0][..], &[0x20, 3][..], &[0x30, 1][..]);
        let string = &field(5, b"cpu");
        let element = |value: &[u8]| field(7, &argument("int64", &[value, one]));
        for (argument, expected) in [
            (argument("float", &[float, one]), true),
            (argument("int64", &[integer, one]), true),
            (argument("bool", &[truth, one]), true),
            (argument("string", &[string, one]), true),
            (argument("string", &[&field(5, b""), one]), true),
            (argument("int64", &[&field(4, &[1, 2]), one]), true),
            (argument("int64", &[list]), true),
            (argument("int64", &[&element(integer), list]), true),
            (argument("a type of later", &[one]), true),
            // No value, one of another type, none in an element, none since it is no list.
            (argument("float", &[one]), false),
            (argument("string", &[integer, one]), false),
            (argument("int64", &[&field(4, b""), one]), false),
            (
                argument("int64", &[&element(integer), &element(truth), list]),
                false,
            ),
            (argument("int64", &[&element(integer), one]), false),
        ] {
            let operator = [field(1, b"Resize"), field(4, &argument)].concat();
            assert_eq!(check(&operator).is_ok(), expected, "{argument:?}");
        }
        let operator = [field(1, b"Resize"), field(4, &argument("bool", &[]))].concat();
        assert_eq!(
            check(&operator).unwrap_err().message(),
            "argument 'width' of operator 'Resize' has no value of its type bool"
        );
        assert!(check(&operator[..operator.len() - 1]).is_err());
        assert!(check(&field(4, &[0x0a, 9, 1])).is_err());
    }
}
