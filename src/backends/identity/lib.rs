//! The identity backend: every output repeats an input. For measuring the server itself, for trying
//! out clients, and, by way of delays and failures on demand, for tests of schedulers.
//!
//! Output *i* of the configuration repeats the input that has its name with `INPUT` for `OUTPUT`,
//! else input *i*. Only outputs that the client wants are made. Nothing is allocated per request on
//! CPUs. Instances on GPUs leave tensors on the device: see [`on_device`].

#![forbid(unsafe_code)]

mod activities;
mod controls;
mod on_device;
mod pairing;

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use conch_backend_sdk as sdk;
use sdk::{
    Batch, DetachedBatch, DeviceStream, Error, Input, InstanceContext, ModelConfig, ModelContext,
    Progress, Request,
};

use activities::Activities;
use controls::Controls;
use on_device::Batches;
use pairing::Pair;

sdk::export_backend!(Identity, open, stream);

/// What the models share.
pub struct Identity {
    /// How many bytes of inputs each model received, under the name that Triton's identity backend
    /// gives it.
    input_byte_counts: sdk::MetricFamily,
}

impl sdk::Backend for Identity {
    type Model = Model;

    fn initialize(_context: &sdk::BackendContext) -> Result<Self, Error> {
        Ok(Identity {
            input_byte_counts: sdk::MetricFamily::counter(
                "input_byte_size_counter",
                "Cumulative input byte size of all requests received by the model",
            )?,
        })
    }

    fn attributes(&self, attributes: &mut sdk::Attributes<'_>) -> Result<(), Error> {
        attributes.allow_parallel_instances()
    }
}

pub struct Model {
    pairs: Vec<Pair>,
    settings: Settings,
    instance_count: AtomicU64,
    input_byte_count: sdk::Metric,
    /// Of the streams of instances on GPUs.
    stream_priority: i32,
    is_decoupled: bool,
}

impl Model {
    /// The output `name` and its input.
    #[inline]
    fn pair_of(&self, name: &CStr) -> Result<&Pair, Error> {
        let pair = self.pairs.iter().find(|pair| *pair.output == *name);
        pair.ok_or_else(|| Error::invalid(format!("unknown output '{}'", name.to_string_lossy())))
    }

    fn count(&self, input_byte_count: usize) -> Result<(), Error> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "a double is what the server counts with"
        )]
        self.input_byte_count.increment(input_byte_count as f64)
    }
}

/// What the `parameters` of the configuration set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    /// `creation_delay_sec`: how long loading the model takes.
    creation_delay: Duration,
    /// `execute_delay_ms`: how long one execution takes.
    execute_delay: Duration,
    /// `instance_wise_delay_multiplier`: if not 0, the execution delay of an instance is multiplied
    /// by this and by its index (but at least by 1).
    delay_multiplier: u64,
    /// `enable_request_controls`: whether parameters of a request may order a delay or a failure;
    /// see [`Controls`].
    has_controls: bool,
    /// `example_response_parameters`: attach `param0` to `param3` to every response, as Triton's
    /// identity backend does; on unless it is set to false.
    has_example_parameters: bool,
    /// `echo_request_parameters`: responses carry the text parameters of their requests.
    echoes_parameters: bool,
    /// `enable_custom_tracing` and what belongs to it.
    activities: Option<Activities>,
}

impl Settings {
    fn read(config: &ModelConfig) -> Result<Self, Error> {
        let count = |name: &str| match config.integer_parameter(name)? {
            None => Ok(0),
            Some(value) => u64::try_from(value).map_err(|_| {
                Error::invalid(format!(
                    "parameter '{name}' must not be negative, got {value}"
                ))
            }),
        };
        let flag = |name: &str| Ok(config.boolean_parameter(name)?.unwrap_or(false));
        Ok(Settings {
            creation_delay: Duration::from_secs(count("creation_delay_sec")?),
            execute_delay: Duration::from_millis(count("execute_delay_ms")?),
            delay_multiplier: count("instance_wise_delay_multiplier")?,
            has_controls: flag("enable_request_controls")?,
            has_example_parameters: config
                .boolean_parameter("example_response_parameters")?
                .unwrap_or(true),
            echoes_parameters: flag("echo_request_parameters")?,
            activities: Activities::read(config)?,
        })
    }

    /// Attaches the parameters of a response.
    #[inline]
    fn set_parameters(
        &self,
        request: Request<'_>,
        response: &mut sdk::Response<'_>,
    ) -> Result<(), Error> {
        if self.has_example_parameters {
            response.set_text(c"param0", "an example string parameter")?;
            response.set_integer(c"param1", 42)?;
            response.set_boolean(c"param2", false)?;
            response.set_double_if_known(c"param3", 123.123)?;
        }
        if self.echoes_parameters {
            for index in 0..request.parameter_count()? {
                if let (name, sdk::Parameter::Text(value)) = request.parameter(index)? {
                    response.set_text(name, &value.to_string_lossy())?;
                }
            }
        }
        Ok(())
    }

    /// The delay of an instance's executions; instances are counted from 0 in the order of their
    /// creation.
    fn delay_of(&self, instance_index: u64) -> Duration {
        let factor = self.delay_multiplier.saturating_mul(instance_index).max(1);
        self.execute_delay
            .saturating_mul(u32::try_from(factor).unwrap_or(u32::MAX))
    }
}

impl sdk::Model for Model {
    type Backend = Identity;
    type Instance = Instance;

    fn initialize(backend: &Identity, context: &mut ModelContext) -> Result<Self, Error> {
        let version = context.version().to_string();
        let input_byte_count = backend
            .input_byte_counts
            .metric(&[("model", context.name()), ("version", &version)])?;
        let config = context.config();
        let settings = Settings::read(config)?;
        if !settings.creation_delay.is_zero() {
            sdk::info!("Creation delay is set to: {:?}", settings.creation_delay);
            thread::sleep(settings.creation_delay);
        }
        Ok(Model {
            pairs: pairing::pair(
                &config.inputs()?,
                &config.outputs()?,
                config.max_batch_size() > 0,
            )?,
            settings,
            stream_priority: config.stream_priority(),
            is_decoupled: config.is_decoupled(),
            instance_count: AtomicU64::new(0),
            input_byte_count,
        })
    }
}

pub struct Instance {
    delay: Duration,
    /// None on CPUs.
    device: Option<Device>,
}

/// How an instance on a GPU executes.
enum Device {
    /// One batch after the other: its responses take their time, or their number is not known.
    Blocking(DeviceStream),
    /// Several batches in flight.
    Streaming(Batches),
}

/// While one batch is copied to the device, one is copied there and one back; a fourth waits for
/// its turn.
const DEPTH_MAX: usize = 4;

impl sdk::Instance for Instance {
    type Model = Model;

    fn initialize(model: &Model, context: &InstanceContext) -> Result<Self, Error> {
        // Only a number that no other instance gets; nothing is published with it.
        let index = model.instance_count.fetch_add(1, Ordering::Relaxed);
        let stream = DeviceStream::open(context, model.stream_priority)?;
        let blocks = model.is_decoupled || model.settings.activities.is_some();
        let device = match stream {
            Some(stream) if blocks => Some(Device::Blocking(stream)),
            Some(stream) => Some(Device::Streaming(Batches::new(stream, DEPTH_MAX)?)),
            None => None,
        };
        Ok(Instance {
            delay: model.settings.delay_of(index),
            device,
        })
    }

    fn execute(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        let delay = self.delay_of(model, batch)?;
        batch.begin_compute();
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        batch.end_compute();
        let stream = match &mut self.device {
            Some(Device::Blocking(stream)) => Some(stream),
            Some(Device::Streaming(batches)) => Some(batches.stream()),
            None => None,
        };
        if let Some(stream) = stream {
            on_device::answer_all(stream, model, batch);
            return Ok(());
        }
        for request in batch.requests() {
            let reported = report_activities(model, request);
            if let Err(error) = reported.and_then(|()| answer(model, batch, request)) {
                request.fail(error);
            }
        }
        Ok(())
    }
}

impl Instance {
    /// Whether a batch is copied on the host, and nothing else.
    fn is_brief(&self, model: &Model, batch: &Batch<'_>) -> bool {
        let settings = &model.settings;
        self.device.is_none()
            && self.delay.is_zero()
            && !settings.has_controls
            && settings.activities.is_none()
            && !batch.is_decoupled()
    }

    /// How long a batch is to take.
    ///
    /// # Errors
    /// What one of its requests orders, for all of them: everything goes back to the server
    /// unanswered.
    fn delay_of(&self, model: &Model, batch: &Batch<'_>) -> Result<Duration, Error> {
        let mut delay = self.delay;
        if model.settings.has_controls {
            for request in batch.requests() {
                let controls = Controls::read(request)?;
                if let Some(message) = controls.execute_error {
                    return Err(Error::internal(message));
                }
                delay = delay.max(controls.delay);
            }
        }
        Ok(delay)
    }
}

impl sdk::OpenInstance for Instance {
    fn begin(
        &mut self,
        model: &Model,
        batch: &Batch<'_>,
        _limit: Duration,
    ) -> Result<Progress, Error> {
        if !self.is_brief(model, batch) {
            return Ok(Progress::Open);
        }
        sdk::Instance::execute(self, model, batch)?;
        Ok(Progress::Done)
    }

    fn end(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), Error> {
        sdk::Instance::execute(self, model, batch)
    }
}

impl sdk::StreamInstance for Instance {
    fn depth_max(&self) -> usize {
        match &self.device {
            Some(Device::Streaming(batches)) => batches.depth_max(),
            Some(Device::Blocking(_)) | None => 0,
        }
    }

    fn enqueue(&mut self, model: &Model, mut batch: DetachedBatch) {
        let ordered = batch.with(|batch| self.delay_of(model, batch));
        match (&mut self.device, ordered) {
            (_, Err(error)) => batch.finish(|_| Err(error)),
            (Some(Device::Streaming(batches)), Ok(delay)) => {
                batches.enqueue(model, batch, delay);
            }
            (_, Ok(_)) => batch.finish(|_| Err(Error::internal("the instance blocks"))),
        }
    }

    fn poll(&mut self, _model: &Model) -> usize {
        match &mut self.device {
            Some(Device::Streaming(batches)) => batches.poll(),
            Some(Device::Blocking(_)) | None => 0,
        }
    }
}

fn answer(model: &Model, batch: &Batch<'_>, request: Request<'_>) -> Result<(), Error> {
    if !model.settings.has_controls {
        return repeat(model, request)?.send();
    }
    let controls = Controls::read(request)?;
    if let Some(error) = controls.error {
        return Err(error);
    }
    if controls.panics {
        panic!("ordered by the request");
    }
    if !batch.is_decoupled() {
        return repeat(model, request)?.send();
    }
    // The SDK ends the stream after the last one.
    for index in 0..controls.response_count {
        pause(index, &controls, request)?;
        repeat(model, request)?.send_partial()?;
    }
    Ok(())
}

/// Lets time pass before the response `index` of a decoupled request.
///
/// # Errors
/// `Cancelled` if the client gave up.
fn pause(index: u64, controls: &Controls, request: Request<'_>) -> Result<(), Error> {
    if index > 0 && !controls.response_delay.is_zero() {
        thread::sleep(controls.response_delay);
    }
    if request.is_cancelled()? {
        return Err(Error::new(
            sdk::Code::Cancelled,
            "request has been cancelled",
        ));
    }
    Ok(())
}

fn report_activities(model: &Model, request: Request<'_>) -> Result<(), Error> {
    match model.settings.activities {
        Some(activities) => activities.report(request),
        None => Ok(()),
    }
}

#[inline]
fn log_input(input: &Input<'_>) {
    sdk::verbose!(
        "\tinput {}: datatype = {}, shape = [{}], byte_size = {}, buffer_count = {}",
        input.name().to_string_lossy(),
        input.data_type().name(),
        shown(input.shape()),
        input.byte_count(),
        input.buffer_count()
    );
}

/// As upstream writes a shape.
fn shown(shape: &[i64]) -> String {
    let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
    dims.join(",")
}

/// Makes a response whose outputs repeat the request's inputs.
fn repeat<'b>(model: &Model, request: Request<'b>) -> Result<sdk::Response<'b>, Error> {
    let mut response = request.respond()?;
    let mut input_byte_count = 0;
    for index in 0..request.output_count()? {
        let name = request.output_name(index)?;
        let pair = model.pair_of(name)?;
        match request.input(&pair.input) {
            Ok(input) => {
                log_input(&input);
                let mut buffer =
                    response.output(name, input.data_type(), input.shape(), input.byte_count())?;
                input.for_each_buffer(|piece| buffer.write(piece))?;
                input_byte_count += input.byte_count();
            }
            Err(error) => {
                let Some(absent) = &pair.absent else {
                    return Err(error);
                };
                absent.write(&mut response, name, request)?;
            }
        }
    }
    model.count(input_byte_count)?;
    model.settings.set_parameters(request, &mut response)?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSET: Settings = Settings {
        creation_delay: Duration::ZERO,
        execute_delay: Duration::ZERO,
        delay_multiplier: 0,
        has_controls: false,
        has_example_parameters: true,
        echoes_parameters: false,
        activities: None,
    };

    fn settings(parameters: &str) -> Result<Settings, Error> {
        let json = format!(r#"{{"parameters": {{{parameters}}}}}"#);
        Settings::read(&ModelConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn reads_its_settings() {
        assert_eq!(settings(""), Ok(UNSET));
        let all = r#""creation_delay_sec": {"string_value": "2"},
            "execute_delay_ms": {"string_value": "30"},
            "instance_wise_delay_multiplier": {"string_value": "4"},
            "enable_request_controls": {"string_value": "true"},
            "example_response_parameters": {"string_value": "0"},
            "echo_request_parameters": {"string_value": "true"}"#;
        assert_eq!(
            settings(all),
            Ok(Settings {
                creation_delay: Duration::from_secs(2),
                execute_delay: Duration::from_millis(30),
                delay_multiplier: 4,
                has_controls: true,
                has_example_parameters: false,
                echoes_parameters: true,
                activities: None,
            })
        );
        for wrong in [
            r#""execute_delay_ms": {"string_value": "soon"}"#,
            r#""execute_delay_ms": {"string_value": "-1"}"#,
            r#""enable_request_controls": {"string_value": "maybe"}"#,
        ] {
            assert!(settings(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn multiplies_delays_by_instance() {
        let mut settings = Settings {
            execute_delay: Duration::from_millis(10),
            ..UNSET
        };
        let delays = |settings: &Settings| [0, 1, 3].map(|i| settings.delay_of(i).as_millis());
        assert_eq!(delays(&settings), [10, 10, 10]);
        settings.delay_multiplier = 2;
        assert_eq!(delays(&settings), [10, 20, 60]);
        settings.delay_multiplier = u64::MAX;
        assert!(settings.delay_of(u64::MAX) > Duration::from_secs(1_000_000));
    }
}
