//! TraceSetting: what is traced, read and set. And the stations of a traced call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use conch_engine::{Error, clock, truncated};
use conch_proto::inference as proto;
use smallvec::SmallVec;

use super::status::{GrpcCode, GrpcStatus};
use crate::api;
use crate::shard::Shard;
use crate::trace::{ActiveTrace, FieldChange, SettingsUpdate};

type TraceSettingValues = BTreeMap<String, proto::trace_setting_request::SettingValue>;

/// Sets what the request names, and tells what is in force then.
///
/// # Errors
/// In upstream's words.
pub(super) fn answer(
    shard: &Shard,
    request: &proto::TraceSettingRequest,
) -> Result<proto::TraceSettingResponse, GrpcStatus> {
    let model = &*request.model_name;
    api::check_traced_model(shard, model)?;
    let tracing = &shard.tracing;
    if !request.settings.is_empty() {
        tracing.update(model, &read(&request.settings)?)?;
    }
    let values = tracing.values(model);
    let mut settings = BTreeMap::<String, proto::trace_setting_response::SettingValue>::new();
    let mut add = |name: &str, value: String| {
        settings
            .entry(name.to_owned())
            .or_default()
            .value
            .push(value);
    };
    for level in api::level_names(values.levels) {
        add("trace_level", level.to_owned());
    }
    add("trace_rate", values.rate.to_string());
    add("trace_count", values.count.to_string());
    if let Some(collector) = tracing.collector() {
        add("trace_mode", api::SPAN_MODE.to_owned());
        for (name, value) in &collector.shown {
            add(name, value.clone());
        }
    } else {
        add("log_frequency", values.log_frequency.to_string());
        add("trace_file", tracing.file().to_owned());
        add("trace_mode", api::FILE_MODE.to_owned());
    }
    Ok(proto::TraceSettingResponse { settings })
}

/// No value clears a field, what is not named stays.
fn read(settings: &TraceSettingValues) -> Result<SettingsUpdate, GrpcStatus> {
    if settings.contains_key("trace_file") {
        return Err(api::trace_file_refusal().into());
    }
    let levels = match settings.get("trace_level").map(|given| &*given.value) {
        None => FieldChange::Keep,
        Some([]) => FieldChange::Clear,
        Some(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            api::parse_levels(&names)?
        }
    };
    Ok(SettingsUpdate {
        levels,
        rate: field(settings, "trace_rate", |text| {
            api::parse_unsigned("trace_rate", text)
        })?,
        count: field(settings, "trace_count", |text| api::parse_count(text, " "))?,
        log_frequency: field(settings, "log_frequency", |text| {
            api::parse_unsigned("log_frequency", text)
        })?,
    })
}

fn field<T>(
    settings: &TraceSettingValues,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<FieldChange<T>, GrpcStatus> {
    match settings.get(name).map(|given| &*given.value) {
        None => Ok(FieldChange::Keep),
        Some([]) => Ok(FieldChange::Clear),
        Some([text]) => Ok(FieldChange::Set(parse(text)?)),
        Some(_) => Err(GrpcStatus::new(
            GrpcCode::InvalidArgument,
            format!("expect only 1 value for '{name}'", name = truncated(&name)),
        )),
    }
}

/// When the server began to wait for a request, and when that was there; nothing while tracing is
/// off. Boxed: every call has room for it.
pub(super) struct RequestWait(Option<Box<(u64, u64)>>);

impl RequestWait {
    pub(super) fn begin(shard: &Shard) -> RequestWait {
        RequestWait(shard.tracing.is_on().then(|| {
            let now_ns = clock::monotonic_ns();
            Box::new((now_ns, now_ns))
        }))
    }

    /// By value: what is borrowed takes up room for as long as its scope lasts.
    pub(super) fn end(mut self) -> RequestWait {
        if let RequestWait(Some(wait)) = &mut self {
            wait.1 = clock::monotonic_ns();
        }
        self
    }
}

/// A traced request of a call. Its stations are reported when it is over, behind those of the
/// engine, as upstream.
pub(super) struct CallTrace {
    traced: Arc<ActiveTrace>,
    reached: RefCell<SmallVec<[(&'static str, u64); 6]>>,
    has_response: Cell<bool>,
}

impl CallTrace {
    pub(super) fn new(traced: Arc<ActiveTrace>, wait: RequestWait) -> Rc<CallTrace> {
        let mut reached = SmallVec::new();
        // Tracing may have been switched on in between.
        if let RequestWait(Some(wait)) = wait {
            let (from_ns, until_ns) = *wait;
            reached.push(("GRPC_WAITREAD_START", from_ns));
            reached.push(("GRPC_WAITREAD_END", until_ns));
        }
        let reached = RefCell::new(reached);
        Rc::new(CallTrace {
            traced,
            reached,
            has_response: Cell::new(false),
        })
    }

    pub(super) fn traced(&self) -> &Arc<ActiveTrace> {
        &self.traced
    }

    /// The engine has responded: the first time counts, as upstream.
    pub(super) fn note_response(&self) {
        if !self.has_response.replace(true) {
            self.reach(RESPONSE_COMPLETE);
        }
    }

    pub(super) fn reach(&self, station: &'static str) {
        let mut reached = self.reached.borrow_mut();
        if reached.len() < STATIONS_MAX {
            reached.push((station, clock::monotonic_ns()));
        }
    }
}

/// Of one request: a decoupled one may have any number of responses.
const STATIONS_MAX: usize = 1_024;

const RESPONSE_COMPLETE: &str = "INFER_RESPONSE_COMPLETE";
pub(super) const SEND_START: &str = "GRPC_SEND_START";
pub(super) const SEND_END: &str = "GRPC_SEND_END";

/// [`CallTrace::reach`] for a request that may not be traced.
pub(super) fn note(call_trace: Option<&Rc<CallTrace>>, station: &'static str) {
    if let Some(call_trace) = call_trace {
        call_trace.reach(station);
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        for (station, timestamp_ns) in self.reached.get_mut().drain(..) {
            self.traced.reached_at(station, timestamp_ns);
        }
    }
}
