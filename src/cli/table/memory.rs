//! Flags of the rate limiter, of devices and their memory, and of shared memory.

use super::row::{NO_GPU, inert, inert_checked, served};
use crate::flag::Flag;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::{Number, Other, Shown, Switch};
use crate::values::{
    check_gpu_bytes, check_gpu_limit, check_version, parse_capacity, parse_clamped, parse_uids,
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
        "Bytes of pinned memory for transfers to a GPU; without one it is only shown by the \
         metrics. Default: {}.",
        Number(|to| &mut to.engine.pinned_pool_bytes, parse_clamped),
    ),
    inert_checked(
        "cuda-memory-pool-byte-size",
        Text("<gpu>:<bytes>"),
        "Bytes of GPU memory kept for transfers.",
        NO_GPU,
        check_gpu_bytes,
    ),
    inert_checked(
        "cuda-virtual-address-size",
        Text("<gpu>:<bytes>"),
        "Address space for growable state.",
        NO_GPU,
        check_gpu_bytes,
    ),
    inert_checked(
        "min-supported-compute-capability",
        Text("<version>"),
        "Oldest GPU generation to use.",
        NO_GPU,
        check_version,
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
    inert_checked(
        "model-load-gpu-limit",
        Text("<gpu>:<fraction>"),
        "Fraction of GPU memory that models may fill.",
        NO_GPU,
        check_gpu_limit,
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
