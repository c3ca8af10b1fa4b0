//! A client of the plug-in's models: what it asks, and what it got.

#![allow(clippy::unwrap_used, reason = "part of the tests")]

use std::sync::Mutex;

use conch_engine::{Completion, CorrelationId, Delivery, Parameter, ParameterValue};

/// A request to make.
pub struct Call {
    pub id: &'static str,
    pub parameters: Vec<Parameter>,
    pub correlation_id: CorrelationId,
    pub timeout_us: u64,
    pub requested_outputs: Vec<&'static str>,
    pub content: Vec<Vec<u8>>,
}

impl Call {
    /// One whose input has these pieces.
    pub fn new(act: &str, content: &[&[u8]]) -> Call {
        Call {
            id: "",
            parameters: vec![Parameter {
                name: "act".into(),
                value: ParameterValue::Text(act.into()),
            }],
            correlation_id: CorrelationId::default(),
            timeout_us: 0,
            requested_outputs: Vec::new(),
            content: content.iter().map(|piece| piece.to_vec()).collect(),
        }
    }
}

/// Notes what a client gets.
#[derive(Default)]
pub struct Client {
    pub answers: Mutex<Vec<String>>,
    pub wakes: Mutex<usize>,
}

impl Completion for Client {
    fn deliver(&self, delivery: Delivery) {
        let mut line = format!("{} ", delivery.slot());
        let is_final = delivery.is_final();
        match delivery.into_outcome() {
            None => line.push_str("end"),
            Some(Err(error)) => line.push_str(&error.to_string()),
            Some(Ok(response)) => {
                line.push_str("ok");
                for output in &response.outputs {
                    line.push_str(&format!(
                        " {}={}",
                        output.name,
                        String::from_utf8_lossy(output.data.as_ref())
                    ));
                }
                for parameter in &response.parameters {
                    match &parameter.value {
                        ParameterValue::Text(value) => {
                            line.push_str(&format!(" {}={value}", parameter.name))
                        }
                        ParameterValue::Int(value) => {
                            line.push_str(&format!(" {}={value}", parameter.name))
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        if is_final {
            line.push_str(" final");
        }
        self.answers.lock().unwrap().push(line);
    }

    fn wake(&self) {
        *self.wakes.lock().unwrap() += 1;
    }
}
