//! The values of single options: numbers, switches, and the texts with parts of their own.

use conch_engine::{HostPolicies, ResourceCapacity};
use conch_memory::AllowedOwners;

/// Upstream's spellings of yes and no.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(format!("invalid value for bool option: {text}")),
    }
}

/// A whole number, with blanks around it as upstream takes them.
pub fn parse_int(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("Invalid option value. Got {text}"));
    }
    text.parse().map_err(|_| out_of_bound(text))
}

pub fn out_of_bound(text: &str) -> String {
    format!("Provided option value is out of bound. Got {text}")
}

/// None for a number that is no port.
pub fn parse_port(text: &str) -> Result<Option<u16>, String> {
    let number = i32::try_from(parse_int(text)?).map_err(|_| out_of_bound(text))?;
    Ok(u16::try_from(number).ok())
}

/// `<first>:<second>`, as upstream splits pairs.
fn parse_pair(text: &str) -> Result<(&str, &str), String> {
    text.split_once(':').ok_or_else(|| {
        format!(
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument \
             requires format <first>:<second>. Found: {text}"
        )
    })
}

/// A number with or without a fraction, such as the version 7.5.
pub fn parse_number(text: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("Invalid option value. Got {text}"))
}

/// `<gpu>:<fraction>`.
pub fn parse_gpu_limit(text: &str) -> Result<(i32, f64), String> {
    let (device, fraction) = parse_pair(text)?;
    let (device, fraction) = (parse_int(device)?, parse_number(fraction)?);
    let refused = "error: setting model load GPU limit: Invalid argument - ";
    if device < 0 {
        return Err(format!("{refused}expects device ID >= 0, got {device}"));
    }
    if !(0.0..=1.0).contains(&fraction) {
        return Err(format!(
            "{refused}expects limit fraction to be in range [0.0, 1.0], got {fraction}"
        ));
    }
    Ok((device_id(device)?, fraction))
}

/// `<gpu>:<bytes>`; bytes below 0 count as 0.
pub fn parse_gpu_bytes(text: &str) -> Result<(i32, u64), String> {
    let (device, bytes) = parse_pair(text)?;
    Ok((device_id(parse_int(device)?)?, parse_clamped(bytes)?))
}

fn device_id(number: i64) -> Result<i32, String> {
    i32::try_from(number).map_err(|_| out_of_bound(&number.to_string()))
}

/// The value of `flag`, which upstream wants above 0.
pub fn parse_above_zero(flag: &str, text: &str) -> Result<u64, String> {
    u64::try_from(parse_int(text)?)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("Error: --{flag} must be greater than 0."))
}

/// A number; below 0 it counts as 0, as upstream has it.
pub fn parse_clamped(text: &str) -> Result<u64, String> {
    Ok(parse_int(text)?.max(0).unsigned_abs())
}

/// A number, 0 or more.
pub fn parse_unsigned(text: &str) -> Result<u64, String> {
    u64::try_from(parse_int(text)?).map_err(|_| out_of_bound(text))
}

/// A number of things, at least one.
pub fn parse_some(text: &str) -> Result<u64, String> {
    parse_count(text, 1).map(|count| count as u64)
}

/// `all`, or numbers of users with commas between them.
pub fn parse_uids(text: &str) -> Result<AllowedOwners, String> {
    if text.trim() == "all" {
        return Ok(AllowedOwners::All);
    }
    let uid = |text| {
        let number = parse_int(text)?;
        u32::try_from(number).map_err(|_| out_of_bound(text))
    };
    text.split(',')
        .map(uid)
        .collect::<Result<_, _>>()
        .map(AllowedOwners::Only)
}

/// A number of things, at least `least`.
pub fn parse_count(text: &str, least: usize) -> Result<usize, String> {
    usize::try_from(parse_int(text)?)
        .ok()
        .filter(|count| *count >= least)
        .ok_or_else(|| out_of_bound(text))
}

/// `<name>:<count>[:<device>]`; without a device, or with -1, of every device.
pub fn parse_capacity(text: &str) -> Result<ResourceCapacity, String> {
    let mut parts = text.split(':');
    let (Some(name), Some(count), device, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(format!(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
             '<resource_name>:<count>'. Got {text}"
        ));
    };
    let count = parse_int(count).and_then(|number| {
        let count = u32::try_from(number).map_err(|_| out_of_bound(count))?;
        Ok(u64::from(count))
    })?;
    let device = match device.map(parse_int).transpose()? {
        None | Some(-1) => None,
        Some(number) => {
            let device = i32::try_from(number).ok().filter(|device| *device >= 0);
            Some(device.ok_or_else(|| out_of_bound(&number.to_string()))?)
        }
    };
    Ok(ResourceCapacity {
        name: name.to_owned(),
        count,
        device,
    })
}

/// `<cache>,<setting>=<value>`, with upstream's refusals.
pub fn parse_cache_config(text: &str) -> Result<(String, String, String), String> {
    let (name, rest) = text
        .split_once(',')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| {
            format!(
                "No cache specified. --cache-config option format is <cache \
                 name>,<setting>=<value>. Got {text}"
            )
        })?;
    let (setting, value) = rest
        .split_once('=')
        .filter(|(setting, value)| !setting.is_empty() && !value.is_empty())
        .ok_or_else(|| {
            format!("--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
        })?;
    Ok((name.into(), setting.into(), value.into()))
}

/// `[<backend>,]<setting>=<value>`: backend (empty for all), setting, value.
pub fn parse_backend_config(text: &str) -> Result<(String, String, String), String> {
    const FORMAT: &str = "--backend-config option format is";
    let malformed = || format!("{FORMAT} '<backend name>,<setting>=<value>'. Got {text}");
    let (backend, rest) = match text.split_once(',') {
        Some(("", _)) => {
            return Err(format!(
                "No backend specified. {FORMAT} <backend name>,<setting>=<value> or \
                 <setting>=<value>. Got {text}"
            ));
        }
        Some(parts) => parts,
        None => ("", text),
    };
    let (setting, value) = rest
        .split_once('=')
        .filter(|(setting, value)| !setting.is_empty() && !value.is_empty())
        .ok_or_else(malformed)?;
    Ok((backend.into(), setting.into(), value.into()))
}

/// `<policy>,<setting>=<value>`; the value may have commas.
pub fn set_host_policy(policies: &mut HostPolicies, text: &str) -> Result<(), String> {
    let parts = text.split_once(',').and_then(|(policy, rest)| {
        let (setting, value) = rest.split_once('=')?;
        let is_whole = [policy, setting, value].iter().all(|part| !part.is_empty());
        is_whole.then_some((policy, setting, value))
    });
    let (policy, setting, value) = parts.ok_or_else(|| {
        format!("--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}")
    })?;
    policies
        .set(policy, setting, value)
        .map_err(|error| error.message.into_owned())
}
