//! Admitted and refused requests, with upstream's error messages.

mod inputs;
mod queue;
mod raw;
mod request;

use std::sync::Arc;

use conch_config::DataType::{self, Bytes, Fp32, Int32, Int64};

use crate::testing::admit;
use crate::testing::{Recorder, draft, input, model, model_with};
use crate::{Code, CorrelationId, Draft, Error, ModelVersion, RequestHandle, Timestamps, cancel};

const PLAIN: &str = "input [ { name: 'a' data_type: TYPE_INT32 dims: [ 2 ] }, \
                     { name: 'b' data_type: TYPE_FP32 dims: [ -1 ] } ] output [ \
                     { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] }, \
                     { name: 'y' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const BATCHING: &str = "max_batch_size: 4 input [ { name: 'a' data_type: TYPE_INT32 dims: [ 2 ] }, \
                        { name: 'b' data_type: TYPE_FP32 dims: [ -1 ] } ] output [ \
                        { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const TEXT: &str = "input [ { name: 's' data_type: TYPE_STRING dims: [ -1 ] } ] output [ \
                    { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";
const OPTIONAL: &str = "max_batch_size: 4 dynamic_batching { } input [ \
                        { name: 'a' data_type: TYPE_INT32 dims: [ 1 ] }, \
                        { name: 'b' data_type: TYPE_INT32 dims: [ 1 ] optional: true } ] output [ \
                        { name: 'x' data_type: TYPE_INT32 dims: [ 1 ] } ]";

fn try_admit(model: &Arc<ModelVersion>, draft: Draft<'_>) -> Result<RequestHandle, Error> {
    let completion: Arc<dyn crate::Completion> = Arc::new(Recorder::default());
    admit(model, draft, &completion, 7, Timestamps::default())
}

fn bytes(count: usize) -> Vec<u8> {
    vec![0; count]
}

type Input<'a> = (&'a str, DataType, &'a [i64], usize);

fn of<'a>(inputs: &[Input<'a>]) -> Draft<'a> {
    draft(
        inputs
            .iter()
            .map(|(name, data_type, shape, size)| input(name, *data_type, shape, &[&bytes(*size)]))
            .collect(),
    )
}

fn check(config: &str, inputs: &[Input<'_>], expected: &str) {
    match try_admit(&model(config), of(inputs)) {
        Ok(_) => assert_eq!(expected, "", "{inputs:?} was admitted"),
        Err(error) => {
            assert_eq!(error.message, expected, "{inputs:?}");
            assert_eq!(error.code, Code::InvalidArg);
        }
    }
}
