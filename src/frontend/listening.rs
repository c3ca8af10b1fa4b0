//! Where the server listens: sockets that are bound, and those that it was started with.

use std::sync::Arc;

use conch_engine::Error;
use conch_log as log;
use conch_net::{Listener, PassedSocket};

use crate::options::{Endpoint, FrontendOptions};
use crate::shard::link::Protocol;

/// The listeners that `options` ask for, in the order in which upstream starts them.
fn endpoints(options: &FrontendOptions) -> Vec<(Protocol, &Endpoint)> {
    let sagemaker = options.sagemaker.as_ref().map(|it| &it.endpoint);
    let vertex_ai = options.vertex_ai.as_ref().map(|it| &it.endpoint);
    let endpoints = [
        (Protocol::Grpc, options.grpc.as_ref()),
        (Protocol::Http, options.http.as_ref()),
        (Protocol::SageMaker, sagemaker),
        (Protocol::VertexAi, vertex_ai),
        (Protocol::Metrics, options.metrics.as_ref()),
    ];
    let wanted = endpoints.into_iter();
    wanted
        .filter_map(|(protocol, endpoint)| Some((protocol, endpoint?)))
        .collect()
}

/// Looks whether [`crate::start`] will get its addresses, so that a server which will not does not
/// load its models first. Blocks on the resolution of names.
///
/// # Errors
/// UNAVAILABLE in upstream's words for the first that cannot be had.
pub fn check_addresses(options: &FrontendOptions) -> Result<(), Error> {
    let passed = passed_by_protocol(options)?;
    for (protocol, endpoint) in endpoints(options) {
        if passed.iter().any(|(its, _)| *its == protocol) {
            continue;
        }
        endpoint
            .check()
            .map_err(|error| refused(protocol, endpoint, &error))?;
    }
    Ok(())
}

/// The listeners, bound or passed, in the order in which upstream starts them.
///
/// # Errors
/// As [`check_addresses`].
pub(crate) fn open(options: &FrontendOptions) -> Result<Vec<(Protocol, Arc<Listener>)>, Error> {
    let passed = passed_by_protocol(options)?;
    let mut listeners = Vec::new();
    for (protocol, endpoint) in endpoints(options) {
        let own = passed.iter().filter(|(its, _)| *its == protocol);
        let count = listeners.len();
        listeners.extend(own.cloned());
        if listeners.len() == count {
            let bound = endpoint
                .bind(options.unix_socket_mode)
                .map_err(|error| refused(protocol, endpoint, &error))?;
            listeners.push((protocol, Arc::new(bound)));
        }
    }
    Ok(listeners)
}

/// What the sockets are called that are passed for a protocol.
const NAMES: [(&str, Protocol); 5] = [
    ("http", Protocol::Http),
    ("grpc", Protocol::Grpc),
    ("metrics", Protocol::Metrics),
    ("sagemaker", Protocol::SageMaker),
    ("vertex-ai", Protocol::VertexAi),
];

/// What the socket of a protocol is called that is passed on.
pub(crate) fn name_of(protocol: Protocol) -> &'static str {
    let known = NAMES.iter().find(|(_, its)| *its == protocol);
    known.map_or("", |(name, _)| name)
}

/// Which protocol each passed socket is for: by its name, or else the one that was to listen there.
/// All sockets of one systemd unit have one name, by default the unit's.
fn passed_by_protocol(options: &FrontendOptions) -> Result<Vec<(Protocol, Arc<Listener>)>, Error> {
    let endpoints = endpoints(options);
    let protocol_of = |socket: &PassedSocket| {
        let (name, address) = (&socket.name, socket.listener.address());
        if let Some((_, protocol)) = NAMES.iter().find(|(known, _)| known == name) {
            let is_on = endpoints.iter().any(|(on, _)| on == protocol);
            return match is_on {
                true => Ok(*protocol),
                false => Err(Error::invalid(format!(
                    "the socket '{name}' at {address} was passed, but that listener is off"
                ))),
            };
        }
        let at_address = endpoints.iter().find(|(_, it)| it.is_at(address));
        at_address.map(|(protocol, _)| *protocol).ok_or_else(|| {
            Error::invalid(format!(
                "the socket '{name}' at {address} was passed, but no listener is to be there; \
                 name it http, grpc, metrics, sagemaker or vertex-ai (FileDescriptorName= of \
                 systemd), or give a listener its port or path"
            ))
        })
    };
    let passed = options.passed_sockets.iter();
    passed
        .map(|socket| Ok((protocol_of(socket)?, Arc::clone(&socket.listener))))
        .collect()
}

/// A service that cannot listen.
fn refused(protocol: Protocol, endpoint: &Endpoint, error: &std::io::Error) -> Error {
    let reason = match error.kind() {
        // With upstream's blank at its end.
        std::io::ErrorKind::AddrInUse => {
            format!("Socket '{endpoint}' already in use ")
        }
        _ => error.to_string(),
    };
    failed_to_start(protocol, &Error::unavailable(reason))
}

pub(crate) fn failed_to_start(protocol: Protocol, error: &Error) -> Error {
    let service = match protocol {
        Protocol::Http => "HTTP",
        Protocol::Grpc => "GRPC",
        Protocol::Metrics => "Metrics",
        Protocol::SageMaker => "Sagemaker",
        Protocol::VertexAi => "Vertex AI",
    };
    let reason = format!("{} - {}", error.code.name(), error.message);
    let error = Error::new(
        error.code,
        format!("failed to start {service} service: {reason}"),
    );
    log::error!("{}", error.message);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Option<Endpoint> {
        Some(Endpoint {
            address: String::from("127.0.0.1"),
            port,
            reuse_port: false,
        })
    }

    #[test]
    fn a_name_or_else_the_port_says_whose_a_socket_is() {
        let listener = Arc::new(Listener::bind("127.0.0.1", 0, false).unwrap());
        let port = listener.address().tcp().unwrap().port();
        let protocol_of = |name: &str, http_port, grpc| {
            let options = FrontendOptions {
                http: endpoint(http_port),
                grpc,
                passed_sockets: vec![PassedSocket {
                    name: String::from(name),
                    listener: Arc::clone(&listener),
                }],
                ..FrontendOptions::default()
            };
            passed_by_protocol(&options).map(|found| found[0].0)
        };
        for (name, http_port, expected) in [
            ("http", 0, Some(Protocol::Http)),
            // The name counts for more than the port.
            ("grpc", port, Some(Protocol::Grpc)),
            ("conch.socket", port, Some(Protocol::Http)),
            ("", port, Some(Protocol::Http)),
            ("conch.socket", 0, None),
            // Off.
            ("metrics", port, None),
        ] {
            let found = protocol_of(name, http_port, endpoint(0));
            assert_eq!(found.ok(), expected, "{name} {http_port}");
        }
        let error = protocol_of("grpc", port, None).unwrap_err();
        assert!(error.message.ends_with("that listener is off"), "{error:?}");
    }

    #[test]
    fn what_is_passed_is_not_bound_as_well() {
        let taken = Arc::new(Listener::bind("127.0.0.1", 0, false).unwrap());
        let port = taken.address().tcp().unwrap().port();
        let mut options = FrontendOptions {
            http: endpoint(port),
            metrics: endpoint(0),
            ..FrontendOptions::default()
        };
        assert!(check_addresses(&options).is_err());
        options.passed_sockets.push(PassedSocket {
            name: String::new(),
            listener: Arc::clone(&taken),
        });
        check_addresses(&options).unwrap();
        let opened = open(&options).unwrap();
        let protocols: Vec<_> = opened.iter().map(|(protocol, _)| *protocol).collect();
        assert_eq!(protocols, [Protocol::Http, Protocol::Metrics]);
        assert!(Arc::ptr_eq(&opened[0].1, &taken));
    }
}
