//! Flags of the rate limiter, of devices and their memory, and of shared memory.

use super::row::{inert, served};
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{Number, Other, Shown, Switch};
use crate::values::{
    parse_capacity, parse_clamped, parse_gpu_bytes, parse_gpu_limit, parse_number, parse_uids,
    set_host_policy,
};

pub const RATE_LIMITER: &[Flag] = &[
    served(
        "rate-limit",
        Text("off|execution_count"),
        "Let instances execute only while they hold the resources that their groups name, in the \
         order of their priorities. Default: {}.",
        Shown {
            set: |to, text| {
                to.engine.limits_rate = match text.to_ascii_lowercase().as_str() {
                    "execution_count" => true,
                    "off" => false,
                    _ => return Err(String::from("invalid argument for --rate-limit")),
                };
                Ok(())
            },
            show: |of| match of.engine.limits_rate {
                true => String::from("execution_count"),
                false => String::from("off"),
            },
        },
    ),
    served(
        "rate-limit-resource",
        Text("<name>:<count>[:<device>]"),
        "How much of a resource there is, on each device or on one. Without any, as much as the \
         neediest instance asks for; with one, none of those not named. Matters only with \
         --rate-limit. May repeat.",
        Other(|to, text| {
            to.engine.rate_capacities.push(parse_capacity(text)?);
            Ok(())
        }),
    ),
];

pub const MEMORY: &[Flag] = &[
    served(
        "pinned-memory-pool-byte-size",
        Int,
        "Bytes of pinned memory for transfers to and from GPUs, taken when the first GPU is used. \
         Default: {}.",
        Number(|to| &mut to.engine.gpu.pinned_pool_bytes, parse_clamped),
    ),
    served(
        "cuda-memory-pool-byte-size",
        Text("<gpu>:<bytes>"),
        "Bytes of a GPU's memory kept for tensors, taken when the GPU is first used: 67108864 on \
         each unless told. May repeat.",
        Other(|to, text| {
            let (device_id, bytes) = parse_gpu_bytes(text)?;
            to.engine.gpu.device_pool_bytes.insert(device_id, bytes);
            Ok(())
        }),
    ),
    served(
        "cuda-virtual-address-size",
        Text("<gpu>:<bytes>"),
        "Bytes that each growable state of a sequence may reach on a GPU: 1073741824 on each \
         unless told. May repeat.",
        Other(|to, text| {
            let (device_id, bytes) = parse_gpu_bytes(text)?;
            let sizes = &mut to.engine.gpu.device_virtual_bytes;
            sizes.insert(device_id, bytes);
            Ok(())
        }),
    ),
    served(
        "min-supported-compute-capability",
        Text("<version>"),
        "Oldest GPU generation to use. Default: {}.",
        Shown {
            set: |to, text| {
                to.engine.gpu.capability_min = parse_number(text)?;
                Ok(())
            },
            show: |of| format!("{:.1}", of.engine.gpu.capability_min),
        },
    ),
    inert(
        "buffer-manager-thread-count",
        Int,
        "Threads that copy tensors.",
        "cores copy their own batches",
    ),
    served(
        "host-policy",
        Text("<policy>,<setting>=<value>"),
        "Bind instances of a policy to CPUs (cpu-cores=0-3,6-6) or to the memory of a NUMA node \
         (numa-node=0). Repeatable.",
        Other(|to, text| set_host_policy(&mut to.engine.host_policies, text)),
    ),
    served(
        "model-load-gpu-limit",
        Text("<gpu>:<fraction>"),
        "No instance is made on a GPU of whose memory more than this fraction is in use. May \
         repeat.",
        Other(|to, text| {
            let (device_id, fraction) = parse_gpu_limit(text)?;
            to.engine.gpu.load_limits.insert(device_id, fraction);
            Ok(())
        }),
    ),
];

pub const SHARED_MEMORY: &[Flag] = &[
    served(
        "allow-client-shm",
        Bool,
        "Let clients register shared memory of their own for the tensors of their requests \
         (default {}).",
        Switch(|to| &mut to.engine.allow_client_shm),
    ),
    served(
        "shm-allowed-uids",
        Text("all|<uid>[,<uid>]"),
        "Whose shared memory clients may register. Default: of the user that the server runs as; \
         of all users if that is root.",
        Other(|to, text| {
            to.engine.shm_owners = parse_uids(text)?;
            Ok(())
        }),
    ),
];
