"""Trace and log settings."""

import json

from tritonclient.grpc import service_pb2 as pb

from .entry import call, entry, get, post

ENTRIES = []
TRACE, MODEL, LOG = "/v2/trace/setting", "/v2/models/identity/trace/setting", "/v2/logging"


def add(name, rows, *steps, world="traced"):
    ENTRIES.append(entry(world, name, rows, *steps))


def put(path, **settings):
    return post(path, json.dumps(settings).encode())


def trace(model="", **settings):
    made = pb.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        made.settings[name].SetInParent()
        made.settings[name].value.extend(values)
    return call("TraceSetting", made)


def logs(**settings):
    made = pb.LogSettingsRequest()
    for name, (field, value) in settings.items():
        setattr(made.settings[name], field, value)
    return call("LogSettings", made)


# Named so that they run in this order: reads first, each change taken back.
add("a_trace_settings", "http-trace", get(TRACE), get(MODEL), trace(), trace("identity"))
add("b_trace_update", "http-trace", put(TRACE, trace_rate="5", trace_count="7"), get(MODEL), put(MODEL, trace_rate="9", trace_level=["TIMESTAMPS", "TENSORS"]), get(TRACE), get(MODEL),
    put(MODEL, trace_rate=None, trace_level=None), get(MODEL), put(TRACE, trace_rate=None, trace_count=None), get(TRACE))
add("b_trace_update_grpc", "http-trace", trace(trace_rate=["5"]), trace("identity", trace_count=["3"], trace_level=["OFF"]), trace("identity"), trace("identity", trace_count=[], trace_level=[]),
    trace(trace_rate=[]))
add("c_trace_file", "settings/trace-file", put(TRACE, trace_file="/tmp/x"), trace(trace_file=["/tmp/x"]))
add("c_trace_off_and_more", "settings/off-among-others", put(TRACE, trace_level=["OFF", "TENSORS"]), trace(trace_level=["OFF", "TIMESTAMPS"]))
add("c_trace_numbers", "settings/numbers", *[put(TRACE, **{name: value}) for name in ("trace_rate", "trace_count", "log_frequency") for value in ("x", "-2", "99999999999", 7, "")],
    *[trace(**{name: values}) for name in ("trace_rate", "trace_count", "log_frequency") for values in (["x"], ["-2"], ["99999999999"], ["1", "2"])])
add("c_trace_level", "settings/tracer-invalid http-trace", put(TRACE, trace_level="OFF"), put(TRACE, trace_level=["SOMETHING"]), get(TRACE), put(TRACE, trace_level=["TIMESTAMPS"]), put(TRACE, trace_rate="0"), put(TRACE, trace_rate="1000", trace_level=["OFF"]))
add("c_trace_unknown_model", "settings/unknown-model", get("/v2/models/absent/trace/setting"), put("/v2/models/absent/trace/setting", trace_rate="1"), trace("absent"))
add("c_trace_unknown_setting", "http-trace", put(TRACE, other="x"), trace(other=["x"]), post(TRACE, b"{"), post(TRACE, b""))
add("d_log_settings", "http-logging", get(LOG), logs())
add("e_log_update", "http-logging", put(LOG, log_verbose_level=1, log_info=False, log_format="ISO8601"), get(LOG), put(LOG, log_verbose_level=0, log_info=True, log_format="default"),
    logs(log_verbose_level=("uint32_param", 0), log_warning=("bool_param", True)))
add("f_log_file", "settings/log-file", put(LOG, log_file="/tmp/x"), logs(log_file=("string_param", "/tmp/x")))
add("f_log_format", "settings/log-format", put(LOG, log_format="other"), logs(log_format=("string_param", "other")))
add("f_log_kinds", "settings/kinds", *[put(LOG, **{name: "x"}) for name in ("log_info", "log_warning", "log_error", "log_verbose_level")], put(LOG, log_verbose_level=-1), put(LOG, log_format=7),
    put(LOG, log_info=None), put(LOG, other=1), post(LOG, b"{"), post(LOG, b""),
    *[logs(**{name: ("string_param", "x")}) for name in ("log_info", "log_warning", "log_error", "log_verbose_level")], logs(log_format=("bool_param", True)), logs(other=("bool_param", True)))
