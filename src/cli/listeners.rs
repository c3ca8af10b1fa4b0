//! The listeners: which are enabled, where they listen, and the ports that they may have.

use conch_frontend::Endpoint;

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFlags {
    pub is_enabled: bool,
    pub endpoint: Endpoint,
}

impl ListenerFlags {
    fn new(is_enabled: bool, address: &str, port: u16) -> ListenerFlags {
        ListenerFlags {
            is_enabled,
            endpoint: Endpoint {
                address: String::from(address),
                port,
                reuse_port: false,
            },
        }
    }

    /// The address and port, if the listener is enabled.
    pub fn enabled(&self) -> Option<Endpoint> {
        self.is_enabled.then(|| self.endpoint.clone())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Http,
    Grpc,
    Metrics,
    SageMaker,
    VertexAi,
}

impl ListenerKind {
    const ALL: [ListenerKind; 5] = [
        ListenerKind::Http,
        ListenerKind::Grpc,
        ListenerKind::Metrics,
        ListenerKind::SageMaker,
        ListenerKind::VertexAi,
    ];

    /// As upstream's messages call the listener.
    fn name(self) -> &'static str {
        match self {
            ListenerKind::Http => "HTTP",
            ListenerKind::Grpc => "GRPC",
            ListenerKind::Metrics => "metrics",
            ListenerKind::SageMaker => "SageMaker",
            ListenerKind::VertexAi => "Vertex AI",
        }
    }
}

/// The value of a port flag that is no port, which matters only if the listener is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPort {
    kind: ListenerKind,
    pub flag: &'static str,
    pub value: String,
}

/// All listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners {
    pub http: ListenerFlags,
    pub grpc: ListenerFlags,
    /// An empty address is that of HTTP.
    pub metrics: ListenerFlags,
    pub sagemaker: ListenerFlags,
    pub vertex_ai: ListenerFlags,
    /// The ports that the other listeners on SageMaker's address may have.
    pub safe_ports: Option<(u16, u16)>,
    /// In the order of the command line.
    invalid_ports: Vec<InvalidPort>,
}

impl Default for Listeners {
    fn default() -> Listeners {
        Listeners {
            http: ListenerFlags::new(true, ANY_ADDRESS, 8000),
            grpc: ListenerFlags::new(true, ANY_ADDRESS, 8001),
            metrics: ListenerFlags::new(true, "", 8002),
            sagemaker: ListenerFlags::new(false, ANY_ADDRESS, 8080),
            vertex_ai: ListenerFlags::new(false, ANY_ADDRESS, 8080),
            safe_ports: None,
            invalid_ports: Vec::new(),
        }
    }
}

const ANY_ADDRESS: &str = "0.0.0.0";
const LOOPBACK_ADDRESS: &str = "127.0.0.1";

impl Listeners {
    pub fn of(&self, kind: ListenerKind) -> &ListenerFlags {
        match kind {
            ListenerKind::Http => &self.http,
            ListenerKind::Grpc => &self.grpc,
            ListenerKind::Metrics => &self.metrics,
            ListenerKind::SageMaker => &self.sagemaker,
            ListenerKind::VertexAi => &self.vertex_ai,
        }
    }

    fn of_mut(&mut self, kind: ListenerKind) -> &mut ListenerFlags {
        match kind {
            ListenerKind::Http => &mut self.http,
            ListenerKind::Grpc => &mut self.grpc,
            ListenerKind::Metrics => &mut self.metrics,
            ListenerKind::SageMaker => &mut self.sagemaker,
            ListenerKind::VertexAi => &mut self.vertex_ai,
        }
    }

    /// Sets the port that `flag` gives as `value`; `port` is none if that is no port. The last
    /// value of a flag counts.
    pub fn set_port(
        &mut self,
        kind: ListenerKind,
        flag: &'static str,
        value: &str,
        port: Option<u16>,
    ) {
        self.invalid_ports.retain(|invalid| invalid.kind != kind);
        if port.is_none() {
            self.invalid_ports.push(InvalidPort {
                kind,
                flag,
                value: String::from(value),
            });
        }
        self.of_mut(kind).endpoint.port = port.unwrap_or(0);
    }

    /// The first port that does not exist, of a listener that is enabled. As upstream, the port of
    /// any other may be anything.
    pub fn invalid_port(&self) -> Option<&InvalidPort> {
        self.invalid_ports
            .iter()
            .find(|invalid| self.of(invalid.kind).is_enabled)
    }

    /// Gives metrics that have no address that of HTTP, or the loopback where that is a Unix
    /// socket. Returns a warning if they can therefore not be served.
    pub fn resolve_metrics(&mut self) -> Option<String> {
        if !self.metrics.endpoint.address.is_empty() {
            return None;
        }
        if self.http.endpoint.unix_path().is_some() {
            // Collectors scrape over TCP. No outside interface is opened that HTTP does not use.
            self.metrics.endpoint.address = String::from(LOOPBACK_ADDRESS);
            return None;
        }
        let address = self.http.endpoint.address.clone();
        // Upstream starts then, with metrics that nobody can reach.
        let warning = (!self.http.is_enabled && !may_be_address(&address)).then(|| {
            self.metrics.is_enabled = false;
            format!(
                "metrics are not served: --metrics-address is not given, and '{address}' of \
                 --http-address is none"
            )
        });
        self.metrics.endpoint.address = address;
        warning
    }

    /// What has no effect, of flags for Unix sockets and for all others.
    pub fn unix_warnings(&self, has_mode: bool) -> Vec<String> {
        let listeners = ListenerKind::ALL.map(|kind| (kind, self.of(kind)));
        let enabled = listeners
            .into_iter()
            .filter(|(_, listener)| listener.is_enabled);
        let of_unix: Vec<_> = enabled
            .filter(|(_, listener)| listener.endpoint.unix_path().is_some())
            .collect();
        let mut warnings = Vec::new();
        if has_mode && of_unix.is_empty() {
            warnings.push(String::from(
                "--unix-socket-mode has no effect: no listener is on a Unix socket",
            ));
        }
        let shared = of_unix
            .iter()
            .filter(|(_, listener)| listener.endpoint.reuse_port);
        warnings.extend(shared.map(|(kind, listener)| {
            format!(
                "the {} listener's Unix socket {} is not shared with other servers: only ports are",
                kind.name(),
                listener.endpoint
            )
        }));
        warnings
    }

    /// # Errors
    /// Two listeners of one address and port, or a port that SageMaker does not allow.
    pub fn check(&self) -> Result<(), String> {
        self.check_safe_ports()?;
        for (index, earlier) in ListenerKind::ALL.into_iter().enumerate() {
            for later in ListenerKind::ALL.into_iter().skip(index + 1) {
                let (one, other) = (self.of(earlier), self.of(later));
                let both_listen = one.is_enabled && other.is_enabled;
                if both_listen && one.endpoint.conflicts_with(&other.endpoint) {
                    return Err(format!(
                        "The server cannot listen to {} requests and {} requests at the same \
                         address and port {}",
                        earlier.name(),
                        later.name(),
                        other.endpoint
                    ));
                }
            }
        }
        Ok(())
    }

    /// On SageMaker's address, other listeners keep to the ports that it allows.
    fn check_safe_ports(&self) -> Result<(), String> {
        let Some((low, high)) = self.safe_ports.filter(|_| self.sagemaker.is_enabled) else {
            return Ok(());
        };
        for kind in ListenerKind::ALL {
            let listener = self.of(kind);
            let port = listener.endpoint.port;
            if kind != ListenerKind::SageMaker
                && listener.is_enabled
                && listener.endpoint.address == self.sagemaker.endpoint.address
                && !(low..=high).contains(&port)
            {
                return Err(format!(
                    "The server cannot listen to {} requests at port {port}, allowed port range \
                     is [{low}, {high}]",
                    kind.name()
                ));
            }
        }
        Ok(())
    }
}

/// Whether `text` has the form of an address or of the name of a host.
fn may_be_address(text: &str) -> bool {
    let is_name = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_plain)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    text.contains(':') || name.split('.').all(is_name)
}
