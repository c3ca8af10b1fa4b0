"""generate and generate_stream: JSON objects in, flat JSON objects out."""

import json

from .entry import entry, get, post

ENTRIES = []
ONE, ALL = "/v2/models/{}/generate", "/v2/models/{}/generate_stream"


def add(name, rows, *steps, world="plain"):
    ENTRIES.append(entry(world, name, rows, *steps))


def generate(value, model="identity", path=ONE, **headers):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return post(path.format(model), text, **headers)


def both(name, rows, value, model="identity"):
    add(name, rows, generate(value, model), generate(value, model, ALL))


both("generate", "http-generate gen-response gen-stream", {"INPUT0": [1, 2, 3, 4]})
both("generate_single", "gen-response", {"INPUT0": 1.5, "id": "seven"})
both("generate_scalar_of_model_without_batches", "gen-shape", {"INPUT0": 1}, "fixed")
both("generate_fixed_shape", "gen-shape", {"INPUT0": [1, 2, 3, 4]}, "fixed")
both("generate_fixed_shape_wrong", "gen-shape generate/shape", {"INPUT0": [1, 2, 3]}, "fixed")
both("generate_grid", "gen-shape", {"INPUT0": [1, 2, 3, 4]}, "grid")
both("generate_grid_wrong", "gen-shape generate/shape", {"INPUT0": [1, 2, 3]}, "grid")
both("generate_wide", "gen-shape", {"INPUT0": [1, 2, 3]}, "wide")
both("generate_null", "generate/shape", {"INPUT0": None})
both("generate_object", "generate/shape", {"INPUT0": {"a": 1}})
both("generate_nested_array", "gen-shape generate/shape", {"INPUT0": [[1, 2], [3, 4]]})
both("generate_text_for_a_number", "generate/shape http-generate", {"INPUT0": "x"})
both("generate_text", "http-generate gen-response", {"INPUT0": "hello \u00e9 \"x\"\n"}, "text")
both("generate_texts", "http-generate gen-response", {"INPUT0": ["a", "", "c"]}, "text")
both("generate_empty_array", "gen-shape generate/shape", {"INPUT0": []})
both("generate_parameters", "http-generate gen-priority/timeout", {"INPUT0": [1], "flag": True, "text": "x", "whole": 7, "real": 1.5, "priority": 1,
                                                                   "sequence_id": 7, "timeout": 10_000_000})
both("generate_nested_parameters", "http-generate", {"INPUT0": [1], "parameters": {"flag": True, "text": "x"}})
both("generate_tensor_in_parameters", "http-generate", {"parameters": {"INPUT0": [1, 2]}})
both("generate_parameters_not_an_object", "generate/parameters-not-an-object", {"INPUT0": [1], "parameters": 7})
both("generate_parameter_of_a_kind", "http-generate generate/parameters-not-an-object", {"INPUT0": [1], "parameters": {"list": [1]}})
both("generate_parameter_list", "http-generate", {"INPUT0": [1], "list": [1, 2]})
both("generate_reserved_parameter", "http-generate", {"INPUT0": [1], "triton_x": 1})
both("generate_input_called_parameters", "generate/input-called-parameters", {"parameters": [1]}, "parameters")
both("generate_data_types", "http-generate generate/data-type", {"INPUT0": [1]}, "half")
for kind, values in (("bool", [True, False]), ("uint8", [0, 255]), ("int64", [-2**63, 2**63 - 1]), ("uint64", [2**64 - 1]), ("fp64", [0.1, 1e300]), ("int8", [300]),
                     ("uint32", [-1]), ("int32", [1.5])):
    both(f"generate_{kind}", "http-generate gen-response generate/data-type", {"INPUT0": values}, f"type_{kind}")
both("generate_missing_input", "http-generate", {})
both("generate_bad_json", "http-generate", b'{"INPUT0":')
both("generate_not_an_object", "http-generate", b"[1]")
both("generate_empty_body", "http-generate", b"")
both("generate_unknown_model", "http-generate lookup/unknown-model", {}, "absent")
both("generate_model_not_ready", "http-generate lookup/no-version-ready", {}, "broken")
both("generate_backend_error", "generate/error-in-first-response gen-error scheduling/backend-error", {"INPUT0": [1], "error": "no luck"})
both("generate_backend_busy", "generate/error-in-first-response gen-error", {"INPUT0": [1], "error": "no luck", "error_code": "unavailable"})
both("generate_several_responses", "generate/response-count gen-stream", {"IN": [4, 5, 6], "DELAY": [0, 0, 0], "WAIT": 0}, "repeat")
both("generate_no_response", "generate/response-count gen-stream", {"IN": 0}, "square")
both("generate_one_of_many", "generate/response-count gen-stream", {"IN": 1}, "square")
add("generate_versions", "http-generate lookup/unknown-version", post("/v2/models/two/versions/3/generate", b'{"INPUT0":[1,2]}'),
    post("/v2/models/two/versions/2/generate", b'{"INPUT0":[1,2]}'), post("/v2/models/two/versions/x/generate", b"{}"))
add("generate_verbs", "transport/wrong-verb", get(ONE.format("identity")), get(ALL.format("identity")))
add("generate_encoding", "http-infer/content-encoding-on-generate", generate({"INPUT0": [1]}, Content_Encoding="gzip"),
    generate({"INPUT0": [1]}, Content_Encoding="identity"), generate({"INPUT0": [1]}, path=ALL, Content_Encoding="br"))
add("generate_forwards_no_header", "gen-headers", generate({"INPUT0": [1]}, X_Mine="1"), world="forwarding")
add("generate_too_large", "generate/size http-max-input", generate({"INPUT0": [1.0] * 2000}), world="small")
add("orca", "http-orca", generate({"INPUT0": [1]}, Endpoint_Load_Metrics_Format="json"), generate({"INPUT0": [1]}, Endpoint_Load_Metrics_Format="text"),
    generate({"INPUT0": [1]}, Endpoint_Load_Metrics_Format="other"))
