//! Metrics as text.

use std::ffi::c_char;

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{borrow, delete, handles, write};
use crate::objects::JsonMessage;

/// The text of all metrics at one moment.
pub(crate) struct MetricsText(pub(crate) JsonMessage);

handles! {
    TRITONSERVER_Metrics => MetricsText, "metrics";
}

export! {
    fn TRITONSERVER_MetricsDelete(metrics: *mut abi::TRITONSERVER_Metrics) {
        delete(metrics)
    }

    fn TRITONSERVER_MetricsFormatted(
        metrics: *mut abi::TRITONSERVER_Metrics,
        format: abi::TRITONSERVER_MetricFormat,
        base: *mut *const c_char,
        byte_size: *mut usize,
    ) {
        if format != abi::TRITONSERVER_METRIC_PROMETHEUS {
            return Err(Error::invalid(format!("unknown metrics format '{format}'")));
        }
        let bytes = borrow(metrics)?.0.as_bytes();
        write(base, bytes.as_ptr().cast())?;
        write(byte_size, bytes.len())
    }
}
