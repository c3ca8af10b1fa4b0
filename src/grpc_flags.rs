//! The flags that say how gRPC connections are secured, kept and ended, and how its responses are
//! compressed.

use std::path::PathBuf;
use std::time::Duration;

use conch_engine::Error;
use conch_frontend::{CompressionLevel, GrpcConnections, TlsConfig, TlsFiles};

use crate::flag_values::{out_of_bound, parse_bool, parse_count, parse_int};

/// What the flags of this page set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrpcFlags {
    pub compression: CompressionLevel,
    pub connections: GrpcConnections,
    /// None: the default.
    pub inflated_bytes_max: Option<u64>,
    uses_tls: bool,
    verifies_clients: bool,
    tls_files: TlsFiles,
}

impl GrpcFlags {
    /// Sets the flag `name`, if it is one of these.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let set: fn(&mut GrpcFlags, &str) -> Result<(), String> = match name {
            "grpc-infer-response-compression-level" => |flags, value| {
                flags.compression = parse_level(value)?;
                Ok(())
            },
            "grpc-max-inflated-size" => |flags, value| {
                let bytes = u64::try_from(parse_int(value)?).ok();
                let bytes = bytes.filter(|bytes| *bytes > 0);
                let reason = "Error: --grpc-max-inflated-size must be greater than 0.";
                flags.inflated_bytes_max = Some(bytes.ok_or(reason)?);
                Ok(())
            },
            "grpc-keepalive-time" => |flags, value| {
                let milliseconds = parse_milliseconds(value)?;
                // The largest number means never, and nothing may be pinged without a pause: both
                // as upstream's library has it.
                flags.connections.keepalive_time = (milliseconds != i32::MAX.unsigned_abs())
                    .then(|| Duration::from_millis(milliseconds.max(1).into()));
                Ok(())
            },
            "grpc-keepalive-timeout" => |flags, value| {
                let milliseconds = parse_milliseconds(value)?;
                flags.connections.keepalive_timeout = Duration::from_millis(milliseconds.into());
                Ok(())
            },
            "grpc-keepalive-permit-without-calls" => |flags, value| {
                flags.connections.pings_without_calls = parse_bool(value)?;
                Ok(())
            },
            "grpc-http2-min-recv-ping-interval-without-data" => |flags, value| {
                let milliseconds = parse_milliseconds(value)?;
                flags.connections.ping_interval_min = Duration::from_millis(milliseconds.into());
                Ok(())
            },
            "grpc-http2-max-ping-strikes" => |flags, value| {
                flags.connections.ping_strikes_max = parse_milliseconds(value)?;
                Ok(())
            },
            "grpc-max-connection-age" => |flags, value| {
                flags.connections.age_max = parse_age(value)?;
                Ok(())
            },
            "grpc-max-connection-age-grace" => |flags, value| {
                flags.connections.age_grace = parse_age(value)?;
                Ok(())
            },
            "grpc-handshakes-max" => |flags, value| {
                flags.connections.handshakes_max = parse_count(value, 1)?;
                Ok(())
            },
            "grpc-use-ssl" => |flags, value| {
                flags.uses_tls = parse_bool(value)?;
                Ok(())
            },
            // As upstream has it, whatever the value: nobody's calls are to go in the clear here
            // that did not there.
            "grpc-use-ssl-mutual" => |flags, value| {
                flags.verifies_clients = parse_bool(value)?;
                flags.uses_tls = true;
                Ok(())
            },
            "grpc-server-cert" => |flags, value| {
                flags.tls_files.certificate = PathBuf::from(value);
                Ok(())
            },
            "grpc-server-key" => |flags, value| {
                flags.tls_files.key = PathBuf::from(value);
                Ok(())
            },
            "grpc-root-cert" => |flags, value| {
                flags.tls_files.roots = PathBuf::from(value);
                Ok(())
            },
            _ => return None,
        };
        Some(set(self, value))
    }

    /// Reads the files that TLS takes, if gRPC is served and over TLS.
    ///
    /// # Errors
    /// What is wrong with one of them, and which flag named it.
    pub fn load_tls(&self, is_served: bool) -> Result<Option<TlsConfig>, Error> {
        if !is_served || !self.uses_tls {
            return Ok(None);
        }
        TlsConfig::load(&self.tls_files, self.verifies_clients).map(Some)
    }
}

fn parse_level(text: &str) -> Result<CompressionLevel, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "none" => CompressionLevel::None,
        "low" => CompressionLevel::Low,
        "medium" => CompressionLevel::Medium,
        "high" => CompressionLevel::High,
        _ => {
            let reason = "invalid argument for --grpc_infer_response_compression_level";
            return Err(String::from(reason));
        }
    })
}

/// A number that upstream reads into an int; what is below 0 counts as 0, as its library has it.
fn parse_milliseconds(text: &str) -> Result<u32, String> {
    let number = i32::try_from(parse_int(text)?).map_err(|_| out_of_bound(text))?;
    Ok(number.max(0).unsigned_abs())
}

/// 0 is not set, and the largest number means never.
fn parse_age(text: &str) -> Result<Option<Duration>, String> {
    let milliseconds = parse_milliseconds(text)?;
    let is_set = milliseconds != 0 && milliseconds != i32::MAX.unsigned_abs();
    Ok(is_set.then(|| Duration::from_millis(milliseconds.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_sets_its_own() {
        let mut flags = GrpcFlags::default();
        for (name, value) in [
            ("grpc-infer-response-compression-level", "Medium"),
            ("grpc-keepalive-time", "1500"),
            ("grpc-keepalive-timeout", "250"),
            ("grpc-keepalive-permit-without-calls", "on"),
            ("grpc-http2-min-recv-ping-interval-without-data", "-1"),
            ("grpc-http2-max-ping-strikes", "7"),
            ("grpc-max-connection-age", "60000"),
            ("grpc-max-connection-age-grace", "5000"),
            ("grpc-handshakes-max", "9"),
            ("grpc-max-inflated-size", "4096"),
            ("grpc-use-ssl-mutual", "true"),
            ("grpc-server-cert", "c.pem"),
            ("grpc-server-key", "k.pem"),
            ("grpc-root-cert", "r.pem"),
        ] {
            assert_eq!(flags.set(name, value), Some(Ok(())), "{name}");
        }
        let expected = GrpcFlags {
            compression: CompressionLevel::Medium,
            connections: GrpcConnections {
                keepalive_time: Some(Duration::from_millis(1500)),
                keepalive_timeout: Duration::from_millis(250),
                pings_without_calls: true,
                ping_interval_min: Duration::ZERO,
                ping_strikes_max: 7,
                age_max: Some(Duration::from_secs(60)),
                age_grace: Some(Duration::from_secs(5)),
                handshakes_max: 9,
                ..GrpcConnections::default()
            },
            inflated_bytes_max: Some(4096),
            uses_tls: true,
            verifies_clients: true,
            tls_files: TlsFiles {
                certificate: "c.pem".into(),
                key: "k.pem".into(),
                roots: "r.pem".into(),
            },
        };
        assert_eq!(flags, expected);
        assert!(flags.load_tls(true).is_err());
        assert!(matches!(flags.load_tls(false), Ok(None)));
        let mut flags = GrpcFlags::default();
        for (name, value, expected) in [
            ("grpc-use-ssl", "true", (true, false)),
            ("grpc-use-ssl", "false", (false, false)),
            ("grpc-use-ssl-mutual", "false", (true, false)),
        ] {
            assert_eq!(flags.set(name, value), Some(Ok(())), "{name}");
            assert_eq!((flags.uses_tls, flags.verifies_clients), expected);
        }
        assert!(flags.set("grpc-handshakes-max", "0").unwrap().is_err());
        assert_eq!(flags.set("grpc-keepalive-time", "2147483647"), Some(Ok(())));
        assert_eq!(flags.set("grpc-max-connection-age", "0"), Some(Ok(())));
        assert_eq!(
            (flags.connections.keepalive_time, flags.connections.age_max),
            (None, None)
        );
        assert_eq!(flags.set("grpc-port", "1"), None);
        for (name, value, reason) in [
            (
                "grpc-infer-response-compression-level",
                "max",
                "invalid argument for --grpc_infer_response_compression_level",
            ),
            (
                "grpc-keepalive-time",
                "soon",
                "Invalid option value. Got soon",
            ),
            (
                "grpc-max-connection-age",
                "2147483648",
                "Provided option value is out of bound. Got 2147483648",
            ),
        ] {
            assert_eq!(flags.set(name, value), Some(Err(reason.into())));
        }
    }
}
