//! The flags of gRPC: how responses are compressed, and the times of connections.

use std::time::Duration;

use conch_frontend::CompressionLevel;

use crate::values::{out_of_bound, parse_int};

/// The name of `level` on the command line.
pub fn level_name(level: CompressionLevel) -> &'static str {
    match level {
        CompressionLevel::None => "none",
        CompressionLevel::Low => "low",
        CompressionLevel::Medium => "medium",
        CompressionLevel::High => "high",
    }
}

/// Upstream's names of levels, in any case.
pub fn parse_level(text: &str) -> Result<CompressionLevel, String> {
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
pub fn parse_milliseconds(text: &str) -> Result<u32, String> {
    let number = i32::try_from(parse_int(text)?).map_err(|_| out_of_bound(text))?;
    Ok(number.max(0).unsigned_abs())
}

/// Where nothing may be pinged without a pause, and the largest number means never: both as
/// upstream's library has it.
pub fn parse_keepalive(text: &str) -> Result<Option<Duration>, String> {
    let milliseconds = parse_milliseconds(text)?;
    Ok((milliseconds != i32::MAX.unsigned_abs())
        .then(|| Duration::from_millis(milliseconds.max(1).into())))
}

/// 0 is not set, and the largest number means never.
pub fn parse_age(text: &str) -> Result<Option<Duration>, String> {
    let milliseconds = parse_milliseconds(text)?;
    let is_set = milliseconds != 0 && milliseconds != i32::MAX.unsigned_abs();
    Ok(is_set.then(|| Duration::from_millis(milliseconds.into())))
}

#[cfg(test)]
mod tests {
    use conch_frontend::GrpcConnections;

    use super::*;
    use crate::{Arguments, lookup};

    fn set(arguments: &mut Arguments, name: &str, value: &str) -> Result<(), String> {
        let flag = lookup::find(name).map_err(|_| lookup::unknown(name))?;
        flag.apply(arguments, value)
    }

    #[test]
    fn each_flag_sets_its_own() {
        let mut flags = Arguments::default();
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
        ] {
            assert_eq!(set(&mut flags, name, value), Ok(()), "{name}");
        }
        let expected = GrpcConnections {
            keepalive_time: Some(Duration::from_millis(1500)),
            keepalive_timeout: Duration::from_millis(250),
            pings_without_calls: true,
            ping_interval_min: Duration::ZERO,
            ping_strikes_max: 7,
            age_max: Some(Duration::from_secs(60)),
            age_grace: Some(Duration::from_secs(5)),
            handshakes_max: 9,
            ..GrpcConnections::default()
        };
        assert_eq!(flags.frontend.grpc_connections, expected);
        assert_eq!(flags.frontend.grpc_compression, CompressionLevel::Medium);
        assert_eq!(flags.frontend.grpc_inflated_bytes_max, 4096);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let mut flags = Arguments::default();
        assert!(set(&mut flags, "grpc-handshakes-max", "0").is_err());
        assert_eq!(set(&mut flags, "grpc-keepalive-time", "2147483647"), Ok(()));
        assert_eq!(set(&mut flags, "grpc-max-connection-age", "0"), Ok(()));
        let connections = &flags.frontend.grpc_connections;
        assert_eq!(
            (connections.keepalive_time, connections.age_max),
            (None, None)
        );
        for (name, value, reason) in [
            (
                "grpc-infer-response-compression-level",
                "max",
                "invalid argument for --grpc_infer_response_compression_level. \
                 It takes one of: none, low, medium, high",
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
            assert_eq!(set(&mut flags, name, value), Err(reason.into()));
        }
    }
}
