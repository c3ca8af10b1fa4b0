//! Finds the sequence of a request, and checks that the request may belong to it.

use std::sync::atomic::Ordering;

use conch_config::{DataType, ResolvedConfig, Scheduling, SequenceBatching};
use conch_scheduler::{SequenceContext, SequenceKey};

use crate::request::correlation_id::CorrelationId;
use crate::request::draft::Draft;
use crate::request::messages::RequestIdPrefix;
use crate::{Error, ModelVersion, SequenceFlags};

/// The part of `draft` in its sequence, if `model` has sequences. A request of an iterative model
/// without an id gets one.
///
/// # Errors
/// INVALID_ARG in upstream's words: an id of the wrong type, or none; or a batch.
pub(crate) fn check(
    model: &ModelVersion,
    draft: &mut Draft<'_>,
    batch_size: u32,
) -> Result<Option<Box<SequenceContext>>, Error> {
    let Scheduling::Sequence(settings) = &model.config.scheduling else {
        return Ok(None);
    };
    check_type(&model.config, settings, draft)?;
    if batch_size > 1 {
        return Err(Error::invalid(format!(
            "inference request to model '{}' must specify batch-size 1 due to requirements of \
             sequence batcher",
            model.name
        )));
    }
    let key = match draft.correlation_id.sequence_key() {
        Some(key) => key,
        None if settings.is_iterative => {
            // Relaxed: only uniqueness matters.
            let number = model.sequence_names.made.fetch_add(1, Ordering::Relaxed) + 1;
            draft.correlation_id = CorrelationId::Unsigned(number);
            draft.sequence_flags = SequenceFlags::START;
            SequenceKey::Generated(number)
        }
        None => {
            return Err(Error::invalid(format!(
                "inference request to model '{}' must specify a non-zero or non-empty correlation \
                 ID",
                model.name
            )));
        }
    };
    let flags = draft.sequence_flags;
    Ok(Some(Box::new(SequenceContext::new(
        key,
        flags.is_start(),
        flags.is_end(),
    ))))
}

/// An id is of its control tensor's type.
fn check_type(
    config: &ResolvedConfig,
    settings: &SequenceBatching,
    draft: &Draft<'_>,
) -> Result<(), Error> {
    let Some(control) = &settings.controls.correlation_id else {
        return Ok(());
    };
    let got = match draft.correlation_id {
        CorrelationId::Unsigned(_) => DataType::Uint64,
        CorrelationId::Text(_) => DataType::Bytes,
    };
    if (got == DataType::Bytes) == (control.data_type == DataType::Bytes) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}sequence batching control '{}' data-type is '{}', but model '{}' expects '{}'",
        RequestIdPrefix(draft.id),
        control.name,
        got.name(),
        config.name,
        control.data_type.name()
    )))
}
