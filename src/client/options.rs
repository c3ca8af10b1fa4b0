//! What the command line asks for.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::load::{Arrivals, LoadProtocol};
use crate::url::ServerUrl;

/// A server, and how it is reached.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    pub url: ServerUrl,
    /// Names and values that every request has.
    pub headers: Vec<(String, String)>,
    /// For a request and its answer.
    pub timeout: Duration,
    /// A file in PEM with the certificates that vouch for the server; none: those of the system.
    pub ca_certificate: Option<PathBuf>,
}

/// `--input NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputArgument {
    pub name: String,
    /// A text, or `@` and a file's path.
    pub value: String,
}

/// What becomes of inputs that no value is given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFill {
    Zeros,
    Random,
}

/// What becomes of the values of an image's pixels, of 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PixelScaling {
    /// As they are.
    #[default]
    None,
    /// From 0 to 1.
    Unit,
    /// From -1 to 1.
    Inception,
    /// Less the mean of each channel.
    Vgg,
    /// From 0 to 1, less the mean of each channel, in units of its deviation.
    Imagenet,
}

impl PixelScaling {
    pub const ALL: [(&'static str, PixelScaling); 5] = [
        ("none", PixelScaling::None),
        ("unit", PixelScaling::Unit),
        ("inception", PixelScaling::Inception),
        ("vgg", PixelScaling::Vgg),
        ("imagenet", PixelScaling::Imagenet),
    ];
}

/// Where the channels of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelLayout {
    Nchw,
    Nhwc,
}

/// Where the tensors of a request come from.
#[derive(Clone, Debug, Default)]
pub struct TensorOptions {
    pub inputs: Vec<InputArgument>,
    /// Shapes that are sent as they are, by the name of the input.
    pub shapes: Vec<(String, Vec<i64>)>,
    pub fill: Option<InputFill>,
    pub scaling: PixelScaling,
    pub layout: Option<PixelLayout>,
}

/// `conch infer`.
#[derive(Clone, Debug)]
pub struct InferOptions {
    pub server: ConnectionOptions,
    pub model: String,
    pub version: Option<String>,
    pub tensors: TensorOptions,
    /// The outputs to ask for; none: all.
    pub outputs: Vec<String>,
    pub parameters: Vec<(String, Value)>,
    pub id: Option<String>,
    /// How many of the largest values are shown, with their labels.
    pub classes: Option<u32>,
    /// Print what the server answers.
    pub prints_json: bool,
    /// Send and ask for tensors in JSON: for servers without the binary extension.
    pub has_json_tensors: bool,
    /// A folder for the outputs.
    pub save: Option<PathBuf>,
}

/// `conch bench`.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    pub server: ConnectionOptions,
    pub protocol: LoadProtocol,
    pub model: String,
    pub version: Option<String>,
    pub tensors: TensorOptions,
    pub parameters: Vec<(String, Value)>,
    pub rates: RateLadder,
    /// Of each rate.
    pub measured: Duration,
    pub warm_up: Duration,
    pub arrivals: Arrivals,
    pub connection_count: usize,
    /// Calls that are open at a time, of all connections, over gRPC.
    pub calls_max: usize,
    /// Beyond this at the 99th percentile a rate is too much.
    pub latency_limit: Option<Duration>,
    /// A file for curves of latency over the rate.
    pub svg: Option<PathBuf>,
    /// A file for the figures.
    pub json: Option<PathBuf>,
}

/// The rates that are offered, in requests per second.
#[derive(Clone, Debug, PartialEq)]
pub enum RateLadder {
    /// These.
    Given(Vec<f64>),
    /// Twice as much each time, until it is too much.
    Doubling { first: f64 },
}

/// Where a server is unless the command line says otherwise.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8000";
/// Where it speaks gRPC.
pub const DEFAULT_GRPC_URL: &str = "http://127.0.0.1:8001";
