//! Custom parameters of requests and responses.

#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    Text(Box<str>),
    Int(i64),
    Bool(bool),
    Double(f64),
}

/// A custom request or response parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: Box<str>,
    pub value: ParameterValue,
}
