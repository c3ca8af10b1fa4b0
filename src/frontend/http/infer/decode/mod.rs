//! From body to draft.
//!
//! Checks run in upstream's order (id, parameters, inputs, left-over bytes, outputs), so that a
//! request with several faults gets the same answer. Everything is owned by [`InferRequest`]:
//! decoding may happen on another thread than the shard.

mod cache;
mod input;

use std::sync::Arc;

use conch_config::DataType;
use conch_engine::shared_memory::RequestRegions;
use conch_engine::{
    CorrelationId, Draft, DraftInput, Error, ModelVersion, Parameter, ParameterValue, Regions,
    SequenceFlags, Shape, TENSORS_IN_PLACE, truncated,
};
use conch_memory::{Budget, ByteView, try_push, try_reserve, try_text};
use smallvec::SmallVec;

use super::region::read_window;
use crate::api::{Classes, regions};
use crate::http::json::{JsonDocument, JsonValue, within};
use crate::options::FrontendOptions;
use crate::shard::Shard;
pub(crate) use cache::decode_cached;
use input::read_input;

/// From this much JSON on, decoding leaves the shard: about half a millisecond of work.
pub(crate) const OFFLOAD_FROM_BYTES: usize = 64 << 10;

/// How one output is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputForm {
    Json,
    Binary,
    /// Where the client wants it in registered memory: it is not sent.
    Region,
}

/// What the client wants of one output. The name is an index into the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedOutput {
    name: usize,
    form: OutputForm,
    /// As how many classes; 0: as it is.
    class_count: u32,
}

struct GivenInput {
    name: usize,
    data_type: DataType,
    shape: Shape,
    chunks: SmallVec<[ByteView; 1]>,
}

/// Where the id of a request is.
#[derive(Clone)]
enum RequestId {
    Absent,
    /// At this node of the document.
    Node(usize),
    /// In the body: the document is that of an earlier request.
    Text(ByteView),
}

impl RequestId {
    fn text<'a>(&'a self, document: Option<&'a JsonDocument>) -> &'a str {
        match self {
            RequestId::Absent => "",
            RequestId::Node(index) => text_of(document, *index),
            RequestId::Text(text) => std::str::from_utf8(text.as_ref()).unwrap_or(""),
        }
    }
}

fn text_of(document: Option<&JsonDocument>, index: usize) -> &str {
    document.map_or("", |document| document.string(index))
}

/// A decoded request. Boxed where it is made: it lives across waits, and would make every
/// connection larger.
pub(crate) struct InferRequest {
    /// None for a raw request.
    document: Option<Arc<JsonDocument>>,
    id: RequestId,
    correlation_id: CorrelationId,
    sequence_flags: SequenceFlags,
    priority: u64,
    timeout_us: u64,
    parameters: Vec<Parameter>,
    inputs: SmallVec<[GivenInput; TENSORS_IN_PLACE]>,
    wanted: SmallVec<[WantedOutput; TENSORS_IN_PLACE]>,
    default_form: OutputForm,
    raw: Option<ByteView>,
    /// The registered memory that inputs and outputs are in.
    usage: Option<Box<RequestRegions>>,
}

/// What the options say about JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonLimits {
    pub(crate) input_bytes_max: u64,
    pub(crate) strict_integers: bool,
}

impl JsonLimits {
    pub(crate) fn of(options: &FrontendOptions) -> JsonLimits {
        JsonLimits {
            input_bytes_max: options.http_input_bytes_max,
            strict_integers: options.strict_integers,
        }
    }
}

/// What decoding goes by, beside the body. The model's name is for messages alone.
#[derive(Clone, Copy)]
pub(crate) struct DecodeBounds<'a> {
    pub(crate) model_name: &'a str,
    pub(crate) limits: JsonLimits,
    pub(crate) regions: &'a Regions,
}

/// Decodes `body`, whose first `json_length` bytes are JSON. 0 means a raw request: all of it is
/// the model's one input.
///
/// # Errors
/// In upstream's words and codes.
pub(crate) fn decode(
    body: &ByteView,
    json_length: usize,
    bounds: &DecodeBounds<'_>,
) -> Result<Box<InferRequest>, Error> {
    let input_bytes_max = bounds.limits.input_bytes_max;
    if json_length == 0 {
        return decode_raw(body, input_bytes_max);
    }
    if json_length as u64 > input_bytes_max {
        return Err(too_long(json_length as u64, input_bytes_max));
    }
    let Some(text) = body.slice(0, json_length) else {
        let missing = json_length.saturating_sub(body.len());
        return Err(Error::invalid(format!(
            "unexpected size for request JSON, expecting {missing} more bytes"
        )));
    };
    let tail = body
        .slice(json_length, body.len())
        .unwrap_or_else(ByteView::empty);
    read_document(Arc::new(JsonDocument::parse(text)?), &tail, bounds)
}

/// Decodes a request from its JSON and what lies behind it.
fn read_document(
    document: Arc<JsonDocument>,
    tail: &ByteView,
    bounds: &DecodeBounds<'_>,
) -> Result<Box<InferRequest>, Error> {
    let mut decoded = InferRequest::empty();
    let root = document.root();
    if let Some(id) = root.find("id") {
        decoded.id = RequestId::Node(
            id.as_string_index()
                .map_err(within("Unable to parse 'id'"))?,
        );
    }
    if let Some(parameters) = root.find("parameters") {
        decoded.read_parameters(parameters)?;
    }
    decoded.read_inputs(root, tail, bounds)?;
    if let Some(outputs) = root.find("outputs") {
        for output in outputs
            .as_array()
            .map_err(within("Unable to parse 'outputs'"))?
        {
            let wanted = decoded.read_output(output, bounds.regions)?;
            try_push(&mut decoded.wanted, wanted)?;
        }
    }
    decoded.document = Some(document);
    Ok(decoded)
}

fn decode_raw(body: &ByteView, input_bytes_max: u64) -> Result<Box<InferRequest>, Error> {
    if body.len() as u64 > input_bytes_max {
        return Err(Error::invalid(format!(
            "Raw input has a byte_size ({} bytes) that exceeds the maximum allowed value of \
             {input_bytes_max} bytes. Use --http-max-input-size to increase the limit.",
            body.len()
        )));
    }
    let mut decoded = InferRequest::empty();
    decoded.default_form = OutputForm::Binary;
    decoded.raw = Some(body.clone());
    Ok(decoded)
}

impl InferRequest {
    fn empty() -> Box<InferRequest> {
        Box::new(InferRequest {
            document: None,
            id: RequestId::Absent,
            correlation_id: CorrelationId::default(),
            sequence_flags: SequenceFlags::NONE,
            priority: 0,
            timeout_us: 0,
            parameters: Vec::new(),
            inputs: SmallVec::new(),
            wanted: SmallVec::new(),
            default_form: OutputForm::Json,
            raw: None,
            usage: None,
        })
    }

    /// Its tensors have arrived in full: what waits from here on is the server.
    pub(crate) fn mark_complete(&self) {
        let chunks = self.inputs.iter().flat_map(|input| &input.chunks);
        chunks.chain(&self.raw).for_each(ByteView::mark_complete);
    }

    /// Whether any tensor is in registered memory.
    pub(crate) fn uses_regions(&self) -> bool {
        self.usage.is_some()
    }

    /// Copies what must not be read in registered memory. Yields between slices.
    ///
    /// # Errors
    /// UNAVAILABLE if the budget has no room for a copy.
    pub(crate) async fn copy_shared(
        &mut self,
        stores: (&Shard, &Arc<Budget>),
        model: &ModelVersion,
    ) -> Result<(), Error> {
        let mut inputs = std::mem::take(&mut self.inputs);
        for given in &mut inputs {
            let name = self.text(given.name);
            regions::copy_where_needed(stores, model, name, given.data_type, &mut given.chunks)
                .await?;
        }
        self.inputs = inputs;
        Ok(())
    }

    fn text(&self, index: usize) -> &str {
        text_of(self.document.as_deref(), index)
    }

    pub(crate) fn id(&self) -> &str {
        self.id.text(self.document.as_deref())
    }

    /// How to send the output called `name`.
    pub(crate) fn form_of(&self, name: &str) -> OutputForm {
        self.wanted
            .iter()
            .find(|wanted| self.text(wanted.name) == name)
            .map_or(self.default_form, |wanted| wanted.form)
    }

    /// Whether all outputs are sent as they are, and read by nobody here.
    pub(crate) fn is_all_binary(&self) -> bool {
        let is_binary =
            |wanted: &WantedOutput| wanted.form == OutputForm::Binary && wanted.class_count == 0;
        match self.wanted.is_empty() {
            true => self.default_form == OutputForm::Binary,
            false => self.wanted.iter().all(is_binary),
        }
    }

    /// The outputs that are wanted as classes. To be asked once the request has been admitted: no
    /// output is named twice then.
    pub(crate) fn classes(&self, budget: &Arc<Budget>) -> Classes {
        let wanted = self.wanted.iter().filter(|wanted| wanted.class_count > 0);
        let counts = wanted.map(|wanted| (self.text(wanted.name).into(), wanted.class_count));
        Classes::new(counts.collect(), budget)
    }

    /// Moves tensors and parameters into the draft for the engine: call it once. The draft is large
    /// and stays where it is.
    ///
    /// # Errors
    /// Without memory for as many inputs and outputs as the request names.
    pub(crate) fn move_to<'a>(&'a mut self, draft: &mut Draft<'a>) -> Result<(), Error> {
        draft.correlation_id = std::mem::take(&mut self.correlation_id);
        draft.sequence_flags = self.sequence_flags;
        draft.priority = self.priority;
        draft.timeout_us = self.timeout_us;
        draft.parameters = std::mem::take(&mut self.parameters);
        draft.features.regions = self.usage.take().map(Arc::from);
        if let Some(raw) = self.raw.take() {
            draft.is_raw = true;
            // Admission takes name, type and shape from the model.
            draft.inputs.push(DraftInput {
                name: "raw_input",
                data_type: DataType::Uint8,
                shape: Shape::new(),
                chunks: SmallVec::from_iter([raw]),
            });
        }
        let document = self.document.as_deref();
        draft.id = self.id.text(document);
        try_reserve(&mut draft.inputs, self.inputs.len())?;
        try_reserve(&mut draft.requested_outputs, self.wanted.len())?;
        for input in self.inputs.drain(..) {
            draft.inputs.push(DraftInput {
                name: text_of(document, input.name),
                data_type: input.data_type,
                shape: input.shape,
                chunks: input.chunks,
            });
        }
        let names = self.wanted.iter();
        let names = names.map(|wanted| text_of(document, wanted.name));
        draft.requested_outputs.extend(names);
        Ok(())
    }

    fn read_parameters(&mut self, parameters: JsonValue<'_>) -> Result<(), Error> {
        if !parameters.is_object() {
            return Err(Error::internal(
                "failed to get request params.: attempt to get members for non-object",
            ));
        }
        for (name, value, is_first) in parameters.members_marked() {
            if !is_first {
                continue;
            }
            match name {
                b"sequence_id" => {
                    self.correlation_id = match value.as_unsigned() {
                        Ok(number) => CorrelationId::Unsigned(number),
                        Err(_) => {
                            let text = value
                                .as_str()
                                .map_err(within("Unable to parse 'sequence_id'"))?;
                            CorrelationId::Text(try_text(text)?)
                        }
                    };
                }
                b"sequence_start" => {
                    let is_start = value
                        .as_bool()
                        .map_err(within("Unable to parse 'sequence_start'"))?;
                    self.sequence_flags |= SequenceFlags::START.when(is_start);
                }
                b"sequence_end" => {
                    let is_end = value
                        .as_bool()
                        .map_err(within("Unable to parse 'sequence_end'"))?;
                    self.sequence_flags |= SequenceFlags::END.when(is_end);
                }
                b"priority" => {
                    self.priority = value
                        .as_unsigned()
                        .map_err(within("Unable to parse 'priority'"))?;
                }
                b"timeout" => {
                    self.timeout_us = value
                        .as_unsigned()
                        .map_err(within("Unable to parse 'timeout'"))?;
                }
                b"binary_data_output" => {
                    let is_binary = value
                        .as_bool()
                        .map_err(within("Unable to parse 'binary_data_output'"))?;
                    self.default_form = if is_binary {
                        OutputForm::Binary
                    } else {
                        OutputForm::Json
                    };
                }
                name if name.starts_with(b"triton_") => {
                    return Err(Error::invalid(
                        "parameter keys starting with 'triton_' are reserved for Triton usage and \
                         should not be specified.",
                    ));
                }
                name => {
                    let name = std::str::from_utf8(name).map_err(|_| {
                        Error::invalid("a string in the request JSON is not valid UTF-8")
                    })?;
                    let parameter = Parameter {
                        name: try_text(name)?,
                        value: parameter_value(name, value)?,
                    };
                    try_push(&mut self.parameters, parameter)?;
                }
            }
        }
        Ok(())
    }

    fn read_inputs(
        &mut self,
        root: JsonValue<'_>,
        tail: &ByteView,
        bounds: &DecodeBounds<'_>,
    ) -> Result<(), Error> {
        let model_name = bounds.model_name;
        let inputs = root
            .member("inputs")
            .and_then(JsonValue::as_array)
            .map_err(within("Unable to parse 'inputs'"))?;
        let mut used = 0;
        for input in inputs {
            let given = read_input(input, tail, &mut used, bounds, &mut self.usage)?;
            try_push(&mut self.inputs, given)?;
        }
        if used != tail.len() {
            return Err(Error::invalid(format!(
                "unexpected additional input data for model '{model_name}'"
            )));
        }
        Ok(())
    }

    fn read_output(
        &mut self,
        output: JsonValue<'_>,
        regions: &Regions,
    ) -> Result<WantedOutput, Error> {
        let parameters = output.find("parameters");
        let parameter = |key: &str| parameters.and_then(|parameters| parameters.find(key));
        if parameter("shared_memory_region").is_some() {
            if parameter("classification").is_some() {
                return Err(Error::invalid(
                    "Output can't set both 'shared_memory_region' and 'classification'",
                ));
            }
            if let Some(binary) = parameter("binary_data")
                && binary
                    .as_bool()
                    .map_err(within("Unable to set 'binary_data'"))?
            {
                return Err(Error::invalid(
                    "Output can't set both 'shared_memory_region' and 'binary_data'",
                ));
            }
        }
        let name = output
            .member("name")
            .map_err(within("Unable to parse 'name'"))?;
        let name_index = name
            .as_string_index()
            .map_err(within("Unable to parse 'name'"))?;
        let class_count = match parameter("classification") {
            Some(classes) => classes
                .as_unsigned()
                .map_err(within("Unable to set 'classification'"))?,
            None => 0,
        };
        if let Some(parameters) = parameters
            && let Some(window) = read_window(parameters, regions)?
        {
            let usage = self.usage.get_or_insert_default();
            usage.add_output(name.as_str()?, window);
            return Ok(WantedOutput {
                name: name_index,
                form: OutputForm::Region,
                class_count: 0,
            });
        }
        let is_binary = match parameter("binary_data") {
            Some(binary) => binary
                .as_bool()
                .map_err(within("Unable to parse 'binary_data'"))?,
            None => false,
        };
        Ok(WantedOutput {
            name: name_index,
            form: if is_binary {
                OutputForm::Binary
            } else {
                OutputForm::Json
            },
            // More than there are elements is all of them.
            class_count: u32::try_from(class_count).unwrap_or(u32::MAX),
        })
    }
}

pub(crate) fn parameter_value(name: &str, value: JsonValue<'_>) -> Result<ParameterValue, Error> {
    if value.is_string() {
        return Ok(ParameterValue::Text(try_text(value.as_str()?)?));
    }
    if let Ok(number) = value.as_signed() {
        return Ok(ParameterValue::Int(number));
    }
    if let Ok(flag) = value.as_bool() {
        return Ok(ParameterValue::Bool(flag));
    }
    value.as_double().map(ParameterValue::Double).map_err(|_| {
        Error::invalid(format!(
            "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.",
            name = truncated(&name)
        ))
    })
}

/// The refusal of JSON that is longer than the limit, in upstream's words.
pub(crate) fn too_long(length: u64, limit_bytes: u64) -> Error {
    Error::invalid(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of \
         {limit_bytes} bytes. Use --http-max-input-size to increase the limit."
    ))
}
