//! The flag of traces.

use super::row::served;
use crate::flag::Flag;
use crate::flag::FlagValueKind::Text;
use crate::flag::Setter::Other;

pub const FLAGS: &[Flag] = &[served(
    "trace-config",
    Text("[<mode>,]<setting>=<value>"),
    "Traces of requests: level=<OFF|TIMESTAMPS|TENSORS> (they add up), rate=<one request in so \
     many>, count=<traces at most>, mode=<triton|opentelemetry>. Into a file: triton,file=<path>, \
     triton,log-frequency=<traces per file>. As spans to an OpenTelemetry collector: \
     opentelemetry,url=<http[s]://host:port/path>, opentelemetry,resource=<key>=<value>, \
     opentelemetry,bsp_max_queue_size=<spans>, opentelemetry,bsp_schedule_delay=<milliseconds>, \
     opentelemetry,bsp_max_export_batch_size=<spans>. May be repeated.",
    Other(|to, text| {
        let warning = to.combined.trace.set_config(text)?;
        to.warnings.extend(warning);
        Ok(())
    }),
)];
