//! The flag of traces.

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::Text;
use crate::flag::Setter::Other;

pub const FLAGS: &[Flag] = &[served(
    "trace-config",
    Text("[<mode>,]<setting>=<value>"),
    "Traces of requests, into a file: level=<OFF|TIMESTAMPS|TENSORS> (they add up), rate=<one \
     request in so many>, count=<traces at most>, triton,file=<path>, triton,log-frequency=<traces \
     per file>. May be repeated.",
    Other(|to, text| {
        let warning = to.combined.trace.set_config(text)?;
        to.warnings.extend(warning);
        Ok(())
    }),
)];
