//! Deprecated flags, which other flags replace.

use crate::deprecated as warnings;
use crate::flag::Flag;
use crate::flag::FlagEffect::Deprecated;
use crate::flag::FlagValueKind::{Bool, Int, Text};
use crate::flag::Setter::Other;
use crate::trace::TraceFlag;
use crate::values::{parse_bool, parse_int};

pub const FLAGS: &[Flag] = &[
    Flag {
        name: "strict-model-config",
        takes: Bool,
        effect: Deprecated {
            instead: "--disable-auto-complete-config",
            warning: |_| String::from(warnings::STRICT_MODEL_CONFIG),
            setter: Other(|to, text| {
                to.combined.strict_model_config = Some(parse_bool(text)?);
                Ok(())
            }),
        },
        help: "true is --disable-auto-complete-config.",
    },
    Flag {
        name: "response-cache-byte-size",
        takes: Int,
        effect: Deprecated {
            instead: "--cache-config=local,size=<bytes>",
            warning: warnings::response_cache,
            setter: Other(|to, text| {
                to.combined.cache.local_bytes = Some(parse_int(text)?);
                Ok(())
            }),
        },
        help: "Size of the response cache.",
    },
    Flag {
        name: "trace-file",
        takes: Text("<path>"),
        effect: Deprecated {
            instead: "--trace-config=triton,file=<path>",
            warning: |_| warnings::trace("file", "triton,file=<filepath>"),
            setter: Other(|to, text| to.combined.trace.set_deprecated(TraceFlag::File, text)),
        },
        help: "File for traces.",
    },
    Flag {
        name: "trace-level",
        takes: Text("<level>"),
        effect: Deprecated {
            instead: "--trace-config=level=<level>",
            warning: |_| warnings::trace("level", "level=<OFF|TIMESTAMPS|TENSORS>"),
            setter: Other(|to, text| to.combined.trace.set_deprecated(TraceFlag::Level, text)),
        },
        help: "What to trace.",
    },
    Flag {
        name: "trace-rate",
        takes: Int,
        effect: Deprecated {
            instead: "--trace-config=rate=<number>",
            warning: |_| warnings::trace("rate", "rate=<rate value>"),
            setter: Other(|to, text| to.combined.trace.set_deprecated(TraceFlag::Rate, text)),
        },
        help: "One request in this many is traced.",
    },
    Flag {
        name: "trace-count",
        takes: Int,
        effect: Deprecated {
            instead: "--trace-config=count=<number>",
            warning: |_| warnings::trace("count", "count=<count value>"),
            setter: Other(|to, text| to.combined.trace.set_deprecated(TraceFlag::Count, text)),
        },
        help: "Traces to take.",
    },
    Flag {
        name: "trace-log-frequency",
        takes: Int,
        effect: Deprecated {
            instead: "--trace-config=triton,log-frequency=<number>",
            warning: |_| {
                warnings::trace(
                    "log-frequency",
                    "triton,log-frequency=<log frequency value>",
                )
            },
            setter: Other(|to, text| {
                to.combined
                    .trace
                    .set_deprecated(TraceFlag::LogFrequency, text)
            }),
        },
        help: "Traces per file.",
    },
];
