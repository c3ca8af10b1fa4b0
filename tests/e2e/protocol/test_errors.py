"""Every error that a client can reach with a request: its status and its text, each followed by a request that must work.

One row is one request; a row becomes a test named after it. `newer` marks rows whose text or status is that of the newest
upstream release and differs in the release that the tests can run against.
"""

import collections
import json
import re
import struct
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

import wire
from case import IS_TRITON, ServerCase, conch_only, pack
from repository import identity

INFER = "/v2/models/{}/infer"
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size.")
# The text comes from whoever reads the tensor first, the backend or the writer of JSON.
ANY_ERROR = None
MAX = 9223372036854775807
CONTROL = "explicit model load / unload is not allowed if polling is enabled"


def models(repository):
    repository.model("identity", identity(batch=8))
    repository.model("fixed", identity([("INPUT0", "FP32", (4,))]))
    repository.model("batched", identity([("INPUT0", "FP32", (4,))], batch=8))
    repository.model("pair", identity([("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))], batch=8))
    repository.model("half", identity([("INPUT0", "FP16", (-1,))]))
    repository.model("brain", identity([("INPUT0", "BF16", (-1,))]))
    repository.model("text", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("text2", identity([("INPUT0", "STRING", (2,))]))
    repository.model("wide", identity([("INPUT0", "FP32", (-1, -1))]))
    repository.model("flags", identity([("INPUT0", "BOOL", (-1,))]))
    repository.model("whole", identity([("INPUT0", "INT32", (-1,))]))
    repository.model("natural", identity([("INPUT0", "UINT32", (-1,))]))
    repository.model("decoupled", identity(extra="model_transaction_policy { decoupled: true }\n"))
    repository.model("ordered", identity(batch=8, parameters={"enable_request_controls": "true"}))
    optional = identity([("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))], batch=8)
    repository.model("optional", optional.replace('"INPUT1" data_type: TYPE_FP32', '"INPUT1" optional: true data_type: TYPE_FP32'))
    repository.model("broken", 'backend: "no_such_backend"\nmax_batch_size: 0\n')


def tensor(name="INPUT0", datatype="FP32", shape=(1, 4), **more):
    value = {"name": name, "datatype": datatype, "shape": list(shape)}
    value.update(more or {"data": [1.0] * 4})
    return value


def request(*tensors, **more):
    return {"inputs": list(tensors), **more}


def binary(size, **more):
    return tensor(parameters={"binary_data_size": size}, **more)


# What a backend may answer with: the name that our identity backend knows it by, the HTTP status, the gRPC code.
CODES = [
    ("unknown", 400, grpc.StatusCode.UNKNOWN), ("internal", 500, grpc.StatusCode.INTERNAL),
    ("not_found", 404, grpc.StatusCode.NOT_FOUND), ("invalid_argument", 400, grpc.StatusCode.INVALID_ARGUMENT),
    ("unavailable", 503, grpc.StatusCode.UNAVAILABLE), ("unsupported", 501, grpc.StatusCode.UNIMPLEMENTED),
    ("already_exists", 400, grpc.StatusCode.ALREADY_EXISTS), ("cancelled", 400, grpc.StatusCode.CANCELLED),
]

Row = collections.namedtuple("Row", "name raw status message newer")


def row(name, raw, status, message, newer=False):
    return Row(name, raw, status, message, newer)


def infer(name, value, status, message, model="identity", tail=b"", newer=False, headers=()):
    """A row that posts JSON, with binary tensors behind it, to a model's infer path."""
    return row(name, wire.infer_json(value, tail, INFER.format(model), *headers), status, message, newer)


def get(name, path, status, message, verb="GET", newer=False):
    return row(name, f"{verb} {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode(), status, message, newer)


def post(name, path, body, status, message, *headers, newer=False, length=True):
    return row(name, wire.post(path, body, *headers, length=length), status, message, newer)


def members():
    """Wrong types of members of the request: each names the member and both kinds."""
    whole, text = "unsigned-integer", "string"
    rows = [
        ("id", request(tensor(), id=7), text), ("sequence_start", request(tensor(), parameters={"sequence_start": 1}), "boolean"),
        ("sequence_end", request(tensor(), parameters={"sequence_end": "x"}), "boolean"),
        ("priority", request(tensor(), parameters={"priority": "x"}), whole),
        ("timeout", request(tensor(), parameters={"timeout": "x"}), whole),
        ("binary_data_output", request(tensor(), parameters={"binary_data_output": 1}), "boolean"),
        ("name", request({**tensor(), "name": 3}), text), ("datatype", request({**tensor(), "datatype": 3}), text),
        ("shape", request({**tensor(), "shape": 3}), "array"), ("outputs", request(tensor(), outputs=3), "array"),
        ("binary_data_size", request(tensor(parameters={"binary_data_size": "x"})), whole),
        ("binary_data", request(tensor(), outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]), "boolean"),
    ]
    # A number that is no id is taken for a text, which it is not either.
    rows += [("sequence_id", request(tensor(), parameters={"sequence_id": value}), text) for value in (True, 1.5, -1)]
    rows += [("data", request({**tensor(), "data": value}), "array") for value in (3, "x")]
    rows.append(("inputs", {"inputs": 3}, "array"))
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 0}
    for name, value, kind in (("shared_memory_region", 1, text), ("shared_memory_byte_size", "x", whole), ("shared_memory_offset", "x", whole)):
        wrong = {**region, name: value}
        rows += [(name, request({key: given for key, given in tensor(parameters=wrong).items() if key != "data"}), kind),
                 (name, request(tensor(), outputs=[{"name": "OUTPUT0", "parameters": wrong}]), kind)]
    names = [name for name, *_ in rows]
    for index, (name, value, kind) in enumerate(rows):
        again = names[:index].count(name)
        yield infer(f"member_{name}_of_wrong_type{f'_{again + 1}' if again else ''}", value, 500,
                    re.compile(rf"Unable to parse '{name}': attempt to access JSON non-{kind} as {kind}"))
    yield infer("member_classification_of_wrong_type", request(tensor(), outputs=[{"name": "OUTPUT0", "parameters": {"classification": "x"}}]), 500,
                "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer")
    yield infer("member_parameters_of_wrong_type", request(tensor(), parameters=3), 500,
                "failed to get request params.: attempt to get members for non-object")
    yield infer("member_of_output_missing", request(tensor(), outputs=[3]), 500,
                "Unable to parse 'name': attempt to access non-existing object member 'name'")


HTTP = [
    # Transport and routing
    get("unknown_path", "/v2/nothing", 404, "Not Found"), get("root", "/", 404, "Not Found"),
    get("trailing_slash", "/v2/", 404, "Not Found"),
    get("versioned_trace_path", "/v2/models/identity/versions/1/trace/setting", 404, "Not Found"),
    get("wrong_verb_on_health", "/v2/health/live", 405, "Method Not Allowed", verb="POST"),
    get("wrong_verb_on_infer", INFER.format("identity"), 405, "Method Not Allowed"),
    get("wrong_verb_on_index", "/v2/repository/index", 405, "Method Not Allowed"),
    post("too_many_chunks", INFER.format("identity"), b"1\r\n \r\n" * 65537 + b"0\r\n\r\n", 400,
         "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.",
         "Transfer-Encoding: chunked", length=False, newer=True),
    # Model lookup
    infer("unknown_model", request(tensor()), 404, "Request for unknown model: 'absent' is not found", model="absent"),
    post("unknown_version", "/v2/models/identity/versions/9/infer", json.dumps(request(tensor())).encode(), 404,
         "Request for unknown model: 'identity' version 9 is not found"),
    get("version_not_a_number", "/v2/models/identity/versions/abc", 404, "Not Found"),
    post("version_not_ready", "/v2/models/broken/versions/1/infer", json.dumps(request(tensor())).encode(), 503,
         "Request for unknown model: 'broken' version 1 is not at ready state", newer=True),
    infer("no_version_ready", request(tensor()), 404, "Request for unknown model: 'broken' has no available versions",
          model="broken", newer=True),
    get("ready_of_unknown_model", "/v2/models/absent/ready", 404, "Request for unknown model: 'absent' is not found", newer=True),
    get("metadata_of_unknown_model", "/v2/models/absent", 404, "Request for unknown model: 'absent' is not found"),
    get("config_of_unknown_model", "/v2/models/absent/config", 404, "Request for unknown model: 'absent' is not found"),
    get("statistics_of_unknown_model", "/v2/models/absent/stats", 400, "requested model 'absent' is not available"),
    get("statistics_of_unknown_version", "/v2/models/identity/versions/9/stats", 400,
        "requested model version is not available for model 'identity'"),
    infer("decoupled_model", request(tensor(shape=(4,))), 501,
          "HTTP end point doesn't support models with decoupled transaction policy", model="decoupled"),
    # Lengths
    post("inference_header_length_not_a_number", INFER.format("identity"), b"{}", 400,
         "Unable to parse Inference-Header-Content-Length, got: abc", "Inference-Header-Content-Length: abc",
         newer=True),
    post("inference_header_length_out_of_range", INFER.format("identity"), b"{}", 400,
         re.compile(r"Unable to parse Inference-Header-Content-Length, value is out of range \[ .*, got: 99999999999"),
         "Inference-Header-Content-Length: 99999999999", newer=True),
    post("inference_header_longer_than_body", INFER.format("identity"), b"{}", 400,
         "inference header size should be in range (0, 2), got: 3", "Inference-Header-Content-Length: 3"),
    post("inference_header_negative", INFER.format("identity"), b"{}", 400,
         "inference header size should be in range (0, 2), got: -1", "Inference-Header-Content-Length: -1"),
    post("unknown_content_encoding", INFER.format("identity"), b"{}", 501, "Unsupported compression type",
         "Content-Encoding: br"),
    # JSON
    infer("invalid_json", b'{"inputs":[}', 500, re.compile(r"failed to parse the request JSON buffer: .+ at \d+")),
    infer("invalid_json_at_member", b'{1:2}', 500,
          "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    infer("json_of_bad_utf8", b'{"id":"\xff\xfe"}', 400,
          "Unable to parse 'id': a string in the request JSON is not valid UTF-8", newer=True),  # upstream takes any bytes
    infer("inputs_missing", {}, 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    infer("negative_dimension", request(tensor(shape=(-1, 4))), 500,
          "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"),
    infer("dimension_is_text", request(tensor(shape=("4",))), 500,
          "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"),
    infer("dimension_above_range", request(tensor(shape=(2**63, 1))), 400, re.compile("invalid shape for input 'INPUT0'"), newer=True),
    infer("element_count_overflow", request(tensor(shape=(2**32, 2**32))), 400,
          f"invalid shape for input 'INPUT0': shape [4294967296,4294967296] causes total element count to exceed maximum size of {MAX}",
          newer=True),
    infer("byte_size_overflow", request(tensor(shape=(2**31, 2**31))), 400,
          f"byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (4) exceeds maximum "
          f"allowed size ({MAX})", newer=True),
    infer("json_tensor_too_large", request(tensor(shape=(1, 2**30))), 400,
          "JSON input 'INPUT0' has a byte_size (4294967296 bytes) that exceeds the maximum allowed value of 67108864 bytes. "
          "Use --http-max-input-size to increase the limit.", newer=True),
    infer("too_many_values", request(tensor(data=[1.0] * 5)), 500,
          "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    infer("too_few_values", request(tensor(data=[1.0] * 3)), 500,
          "Failed to parse 'data' field: shape does not match true shape", newer=True),
    infer("nesting_too_deep", b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":' + b"[" * 101 + b"1"
          + b"]" * 101 + b"}]}", 400, "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)", newer=True),
    infer("text_for_a_number", request(tensor(data=["x", 1, 1, 1])), 500,
          "Unable to parse 'data': attempt to access JSON non-number as double"),
    infer("number_for_a_flag", request(tensor(datatype="BOOL", shape=(1,), data=[1])), 500,
          re.compile("Unable to parse 'data': attempt to access JSON non-bool"), model="flags"),
    infer("text_for_a_whole_number", request(tensor(datatype="INT32", shape=(1,), data=["x"])), 500,
          "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer", model="whole"),
    infer("negative_for_a_natural_number", request(tensor(datatype="UINT32", shape=(1,), data=[-1])), 500,
          "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer", model="natural"),
    infer("number_for_bytes", request(tensor(datatype="BYTES", shape=(1,), data=[1])), 500,
          re.compile("Unable to parse JSON bytes array: attempt to access JSON non-string as string"), model="text"),
    infer("fp16_as_json", request(tensor(datatype="FP16", shape=(1,), data=[1])), 400,
          "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0", model="half"),
    infer("bf16_as_json", request(tensor(datatype="BF16", shape=(1,), data=[1])), 400,
          "receiving BF16 data via JSON is not supported. Please use the binary data format for input INPUT0", model="brain"),
    infer("fp16_output_as_json", request(tensor(datatype="FP16", shape=(1,), parameters={"binary_data_size": 2})), 400,
          "sending FP16 data via JSON is not supported. Please use the binary data format for output", model="half", tail=b"\0\0"),
    infer("unknown_data_type", request(tensor(datatype="FP31")), 400, "invalid datatype for input INPUT0"),
    infer("no_data", request({"name": "INPUT0", "datatype": "FP32", "shape": [1, 4]}), 400,
          "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
          "'shared_memory_region' in 'parameters'. But no field is set"),
    infer("data_twice", request(tensor(data=[1.0] * 4, parameters={"binary_data_size": 16})), 400,
          "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
          "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'", tail=bytes(16)),
    *members(),
    # Binary tensors
    infer("binary_without_header_length", request(binary(16)), 400,
          re.compile("must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing "
                     "inputs in binary data format|unexpected size for input 'INPUT0', expecting 16 additional bytes")),
    infer("binary_too_short", request(binary(16)), 400,
          "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'identity'", tail=bytes(12)),
    infer("binary_too_long", request(binary(16)), 400, "unexpected additional input data for model 'identity'", tail=bytes(20)),
    infer("reserved_parameter", request(tensor(), parameters={"triton_x": 1}), 400,
          "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
    *[infer(f"parameter_of_type_{kind}", request(tensor(), parameters={"p": value}), 400,
            "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.")
      for kind, value in (("array", [1]), ("object", {"a": 1}), ("null", None))],
    # Validation in the core
    infer("duplicate_input", request(tensor(), tensor()), 400, "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
    infer("duplicate_output", request(tensor(), outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]), 400,
          "[request id: <id_unknown>] output 'OUTPUT0' already exists in request", newer=True),
    infer("unknown_input", request(tensor(name="X")), 400, "unexpected inference input 'X' for model 'identity'"),
    infer("unknown_output", request(tensor(), outputs=[{"name": "X"}]), 400,
          "unexpected inference output 'X' for model 'identity'"),
    infer("missing_input", request(tensor(), id="abc"), 400,
          "[request id: abc] expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['INPUT0'], but missing "
          "required input(s) ['INPUT1']. Please provide all required input(s).", model="pair"),
    infer("no_input", request(), 400,
          "[request id: <id_unknown>] expected 2 inputs but got 0 inputs for model 'pair'. Got input(s) [], but missing "
          "required input(s) ['INPUT0','INPUT1']. Please provide all required input(s).", model="pair"),
    infer("no_batch_dimension", request(tensor(shape=(), data=[1])), 400,
          "[request id: <id_unknown>] input 'INPUT0' has no shape but model requires batch dimension for 'identity'"),
    infer("batch_mismatch", request(tensor(shape=(2, 2)), tensor("INPUT1", shape=(1, 4))), 400,
          re.compile(r"^\[request id: <id_unknown>\] input 'INPUT[01]' batch size does not match other inputs for 'pair'$"),
          model="pair"),
    infer("batch_too_large", request(tensor(shape=(9, 1), data=[1] * 9)), 400,
          "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'identity'"),
    infer("data_type_mismatch", request(tensor(datatype="INT32", data=[1] * 4)), 400,
          "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'"),
    infer("shape_mismatch", request(tensor(shape=(3,), data=[1] * 3)), 400,
          "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [3]. ", model="fixed"),
    infer("shape_mismatch_with_batch", request(tensor(shape=(1, 3), data=[1] * 3)), 400,
          "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'batched'. Expected [-1,4], got [1,3]. "
          + BATCH_NOTE, model="batched"),
    infer("byte_size_mismatch", request(binary(12)), 400,
          "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 12",
          tail=bytes(12)),
    infer("string_without_length", request(tensor(datatype="BYTES", shape=(1,), parameters={"binary_data_size": 2})), 400,
          "[request id: <id_unknown>] incomplete string length indicator for inference input 'INPUT0' for model 'text', "
          "expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer.",
          model="text", tail=bytes(2)),
    infer("string_longer_than_the_tensor", request(tensor(datatype="BYTES", shape=(1,), parameters={"binary_data_size": 6})),
          ANY_ERROR, re.compile("."), model="text", tail=struct.pack("<I", 9) + b"ab"),
    infer("too_many_strings", request(tensor(datatype="BYTES", shape=(1,), parameters={"binary_data_size": 8})), 400,
          "[request id: <id_unknown>] unexpected number of string elements 2 for inference input 'INPUT0' for model 'text', "
          "expecting 1", model="text", tail=bytes(8)),
    infer("too_few_strings", request(tensor(datatype="BYTES", shape=(3,), parameters={"binary_data_size": 8})), 400,
          "[request id: <id_unknown>] expected 3 string elements for inference input 'INPUT0' for model 'text', got 2",
          model="text", tail=bytes(8)),
    infer("correlation_id_too_long", request(tensor(), parameters={"sequence_id": "x" * 129}), 501,
          "string correlation ID cannot be longer than 128 characters"),
    infer("too_many_inputs_beside_optional_ones", request(tensor(), tensor("INPUT1"), tensor("INPUT2")), 400,
          re.compile(r"^\[request id: <id_unknown>\] expected number of inputs between 1 and 2 but got 3 inputs for model 'optional'. "
                     r"Got input\(s\) \['INPUT.','INPUT.','INPUT.'\], but missing required input\(s\) \]. Please provide all required "
                     r"input\(s\).$"), model="optional"),
    infer("optional_input_only", request(id="7"), 400,
          "[request id: 7] expected number of inputs between 1 and 2 but got 0 inputs for model 'optional'. Got input(s) [], but "
          "missing required input(s) ['INPUT0']. Please provide all required input(s).", model="optional"),
    # The backend's own errors, and what it may do wrong
    *[infer(f"backend_says_{code}", request(tensor(), parameters={"error": 'as "told"', "error_code": code}), status, 'as "told"',
            model="ordered") for code, status, _ in CODES],
    infer("backend_fails_to_execute", request(tensor(), parameters={"execute_error": "not today"}), 500, "not today", model="ordered"),
    # Raw requests
    post("raw_with_two_inputs", INFER.format("pair"), bytes(16), 400,
         "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'pair' model "
         "configuration", "Inference-Header-Content-Length: 0"),
    post("raw_with_two_variable_dimensions", INFER.format("wide"), bytes(16), 400,
         "[request id: <id_unknown>] The shape of the raw input 'INPUT0' can not be deduced because there are more than one "
         "variable-sized dimension", "Inference-Header-Content-Length: 0"),
    post("raw_bytes_of_other_shape", INFER.format("text2"), bytes(16), 400,
         "[request id: <id_unknown>] For BYTE datatype raw input 'INPUT0', the model must have input shape [1]",
         "Inference-Header-Content-Length: 0"),
    post("raw_of_wrong_size", INFER.format("fixed"), bytes(12), 400,
         "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model 'fixed'. Expected 16, got 12",
         "Inference-Header-Content-Length: 0"),
    # Repository
    post("load_without_explicit_mode", "/v2/repository/models/identity/load", b"{}", 503,
         "explicit model load / unload is not allowed if polling is enabled"),
    post("unload_without_explicit_mode", "/v2/repository/models/identity/unload", b"{}", 503,
         "explicit model load / unload is not allowed if polling is enabled"),
    post("load_from_one_repository", "/v2/repository/x/models/identity/load", b"{", 501,
         "'repository_name' specification is not supported"),
    post("unload_from_one_repository", "/v2/repository/x/models/identity/unload", b"", 501,
         "'repository_name' specification is not supported"),
    post("load_of_unknown_model", "/v2/repository/models/absent/load", b"", 503, CONTROL),
    post("load_of_bad_json", "/v2/repository/models/identity/load", b'{"parameters"', 500,
         re.compile("failed to parse the request JSON buffer: ")),
    post("load_parameter_unknown", "/v2/repository/models/identity/load", b'{"parameters":{"other":"x"}}', 500,
         "unexpected error on creating Triton parameter"),
    post("load_parameter_not_text", "/v2/repository/models/identity/load", b'{"parameters":{"config":1}}', 500,
         "attempt to access JSON non-string as string"),
    post("load_parameters_sound", "/v2/repository/models/identity/load",
         b'{"parameters":{"config":"{}","file:1/model.x":"AAAA"}}', 503, CONTROL),
    post("unload_dependents_not_a_flag", "/v2/repository/models/identity/unload", b'{"parameters":{"unload_dependents":1}}',
         503, CONTROL),
    get("wrong_verb_on_load", "/v2/repository/models/identity/load", 405, "Method Not Allowed"),
    post("index_ready_not_a_flag", "/v2/repository/index", b'{"ready":"x"}', 400,
         "Invalid value for 'ready': expected a boolean", newer=True),
    post("index_of_bad_json", "/v2/repository/index", b'{"ready"', 500, re.compile("failed to parse the request JSON buffer: ")),
]


class Http(ServerCase):
    """Each row: the status, a body that is exactly {"error": message}, and a server that goes on serving."""

    models = staticmethod(models)
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    def check(self, entry):
        if entry.newer and IS_TRITON:
            self.skipTest("the text or status of a newer release")
        status, _, body, _ = self.exchange(entry.raw)
        try:
            value = json.loads(body)
        except ValueError:
            self.fail(f"not JSON: {status} {body!r}")
        if IS_TRITON and body == b"":
            value = {"error": ""}
        self.assertEqual(list(value), ["error"], body)
        if isinstance(entry.message, re.Pattern):
            self.assertRegex(value["error"], entry.message)
        else:
            self.assertEqual(value["error"], entry.message)
        if entry.status is ANY_ERROR:
            self.assertIn(status, (400, 500))
        else:
            self.assertEqual(status, entry.status)
        self.assert_serves()


for entry in HTTP:
    setattr(Http, f"test_{entry.name}", lambda self, entry=entry: self.check(entry))


@conch_only  # of a newer release
class InputLimit(ServerCase):
    """`--http-max-input-size` bounds the JSON, each tensor in it and a raw body, not what comes as binary tensors."""

    models = staticmethod(models)
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--http-max-input-size=1024")
    END = "exceeds the maximum allowed {} of 1024 bytes. Use --http-max-input-size to increase the limit."

    def refused(self, raw, text):
        status, _, body, _ = self.exchange(raw)
        self.assertEqual((status, json.loads(body)), (400, {"error": text}))
        self.assert_serves()

    def test_json(self):
        value = json.dumps(request(tensor(), id="x" * 1000)).encode()
        self.refused(wire.infer_json(value), f"request JSON size of {len(value)} bytes " + self.END.format("input size"))

    def test_tensor_in_json(self):
        self.refused(wire.infer_json(request(tensor(shape=(1, 257), data=[1] * 257))),
                     "JSON input 'INPUT0' has a byte_size (1028 bytes) that " + self.END.format("value"))

    def test_raw(self):
        self.refused(wire.post(INFER.format("identity"), bytes(1028), "Inference-Header-Content-Length: 0"),
                     "Raw input has a byte_size (1028 bytes) that " + self.END.format("value"))

    def test_as_much_as_allowed(self):
        for raw in (wire.infer_json(request(tensor(shape=(1, 256), data=[1] * 256))), wire.infer_json(
                request(tensor(shape=(1, 4096), parameters={"binary_data_size": 16384})), bytes(16384)),
                wire.post(INFER.format("identity"), bytes(1024), "Inference-Header-Content-Length: 0")):
            self.assertEqual(self.exchange(raw)[0], 200)


# gRPC

def message(model="identity", shape=(1, 4), name="INPUT0", datatype="FP32", raw=None, version="", **more):
    value = pb.ModelInferRequest(model_name=model, model_version=version, **more)
    entry = value.inputs.add(name=name, datatype=datatype, shape=shape)
    if raw is None:
        entry.contents.fp32_contents.extend([1.0] * 4)
    elif raw is not False:
        value.raw_input_contents.append(raw)
    return value


def with_parameter(key, **setting):
    value = message()
    (field, content), = setting.items()
    setattr(value.parameters[key], field, content)
    return value


def ordered(**texts):
    value = message("ordered")
    for key, text in texts.items():
        value.parameters[key].string_param = text
    return value


def contents(*fields, **more):
    value = message(raw=False, **more)
    for field, content in fields:
        getattr(value.inputs[0].contents, field).extend(content)
    return value


def mixed():
    value = message()
    value.raw_input_contents.append(bytes(16))
    return value


def twice():
    value = message()
    value.inputs.add().CopyFrom(value.inputs[0])
    return value


def control(kind, **parameters):
    value = kind(model_name="identity")
    for key, (field, content) in parameters.items():
        setattr(value.parameters[key], field, content)
    return value


Load, Unload = pb.RepositoryModelLoadRequest, pb.RepositoryModelUnloadRequest
Code = grpc.StatusCode
GRPC = [
    # name, method, message, code, text, newer
    ("unknown_model", "ModelInfer", message("absent"), Code.NOT_FOUND, "Request for unknown model: 'absent' is not found"),
    ("unknown_version", "ModelInfer", message(version="9"), Code.NOT_FOUND,
     "Request for unknown model: 'identity' version 9 is not found"),
    ("version_not_a_number", "ModelInfer", message(version="abc"), Code.INVALID_ARGUMENT,
     "failed to get model version from specified version string 'abc' (details: stol), version should be an integral value > 0"),
    ("version_negative", "ModelInfer", message(version="-3"), Code.INVALID_ARGUMENT,
     "invalid model version specified '-3' , version should be an integral value > 0", True),
    ("metadata_of_unknown_model", "ModelMetadata", pb.ModelMetadataRequest(name="absent"), Code.NOT_FOUND,
     "Request for unknown model: 'absent' is not found"),
    ("config_of_unknown_model", "ModelConfig", pb.ModelConfigRequest(name="absent"), Code.NOT_FOUND,
     "Request for unknown model: 'absent' is not found"),
    ("statistics_of_unknown_model", "ModelStatistics", pb.ModelStatisticsRequest(name="absent"), Code.INVALID_ARGUMENT,
     "requested model 'absent' is not available"),
    ("decoupled_model", "ModelInfer", message("decoupled", shape=(4,)), Code.UNIMPLEMENTED,
     "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    ("index_of_one_repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="x"), Code.UNIMPLEMENTED,
     "'repository_name' specification is not supported"),
    ("load_without_explicit_mode", "RepositoryModelLoad", control(Load, config=("string_param", "{}")), Code.UNAVAILABLE, CONTROL),
    ("unload_without_explicit_mode", "RepositoryModelUnload", control(Unload, unload_dependents=("bool_param", True)),
     Code.UNAVAILABLE, CONTROL),
    ("load_from_one_repository", "RepositoryModelLoad", Load(repository_name="x", model_name="identity"), Code.UNIMPLEMENTED,
     "'repository_name' specification is not supported"),
    ("unload_from_one_repository", "RepositoryModelUnload", Unload(repository_name="x"), Code.UNIMPLEMENTED,
     "'repository_name' specification is not supported"),
    ("load_config_kind", "RepositoryModelLoad", control(Load, config=("bytes_param", b"{}")), Code.INVALID_ARGUMENT,
     "invalid value type for load parameter 'config', expected string_param."),
    ("load_file_kind", "RepositoryModelLoad", control(Load, **{"file:1/x": ("string_param", "x")}), Code.INVALID_ARGUMENT,
     "invalid value type for load parameter 'file:1/x', expected bytes_param."),
    ("load_parameter_unknown", "RepositoryModelLoad", control(Load, other=("string_param", "x")), Code.INVALID_ARGUMENT,
     "unrecognized load parameter 'other'."),
    ("unload_dependents_kind", "RepositoryModelUnload", control(Unload, unload_dependents=("string_param", "x")),
     Code.INVALID_ARGUMENT, "invalid value type for 'unload_dependents' parameter, expected bool_param."),
    ("sequence_id_kind", "ModelInfer", with_parameter("sequence_id", bool_param=True), Code.INVALID_ARGUMENT,
     "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    ("sequence_start_kind", "ModelInfer", with_parameter("sequence_start", int64_param=1), Code.INVALID_ARGUMENT,
     "invalid value type for 'sequence_start' parameter, expected bool_param."),
    ("sequence_end_kind", "ModelInfer", with_parameter("sequence_end", string_param="x"), Code.INVALID_ARGUMENT,
     "invalid value type for 'sequence_end' parameter, expected bool_param."),
    ("priority_kind", "ModelInfer", with_parameter("priority", string_param="x"), Code.INVALID_ARGUMENT,
     "invalid value type for 'priority' parameter, expected int64_param or uint64_param.", True),
    ("priority_negative", "ModelInfer", with_parameter("priority", int64_param=-1), Code.INVALID_ARGUMENT,
     "invalid value for 'priority', expected value >= 0.", True),
    ("timeout_kind", "ModelInfer", with_parameter("timeout", string_param="x"), Code.INVALID_ARGUMENT,
     "invalid value type for 'timeout' parameter, expected int64_param."),
    ("custom_parameter_kind", "ModelInfer", with_parameter("p", uint64_param=1), Code.INVALID_ARGUMENT,
     "invalid value type for 'p' parameter, expected int64_param, bool_param, or string_param.", True),
    ("reserved_parameter", "ModelInfer", with_parameter("triton_x", int64_param=1), Code.INVALID_ARGUMENT,
     "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' "
     "are allowed: triton_enable_empty_final_response"),
    ("empty_final_flag_kind", "ModelInfer", with_parameter("triton_enable_empty_final_response", int64_param=1),
     Code.INVALID_ARGUMENT, "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."),
    ("contents_and_raw", "ModelInfer", mixed(), Code.INVALID_ARGUMENT,
     "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'identity'"),
    ("two_content_arrays", "ModelInfer", contents(("fp32_contents", [1.0]), ("int_contents", [1])), Code.INVALID_ARGUMENT,
     re.compile("unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity'")),
    ("contents_of_wrong_type", "ModelInfer", contents(("int_contents", [1] * 4)), Code.INVALID_ARGUMENT,
     re.compile("unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity' of type '.*', expected datatype "
                "'FP32'")),
    ("no_data", "ModelInfer", message(raw=False), Code.INVALID_ARGUMENT,
     "unable to find data for input tensor 'INPUT0' for model 'identity' in request."),
    ("duplicate_input", "ModelInfer", twice(), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] input 'INPUT0' already exists in request"),
    ("unknown_input", "ModelInfer", message(name="X"), Code.INVALID_ARGUMENT,
     "unexpected inference input 'X' for model 'identity'"),
    ("missing_input", "ModelInfer", message("pair"), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['INPUT0'], but missing "
     "required input(s) ['INPUT1']. Please provide all required input(s)."),
    ("batch_too_large", "ModelInfer", message(shape=(9, 1), raw=bytes(36)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'identity'"),
    ("data_type_mismatch", "ModelInfer", message(datatype="INT32", raw=bytes(16)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'"),
    ("unknown_data_type", "ModelInfer", message(datatype="FP31", raw=bytes(16)), Code.INVALID_ARGUMENT,
     re.compile("data-?type.*INPUT0|INPUT0.*data-?type", re.I)),
    ("negative_dimension", "ModelInfer", message(shape=(1, -1), raw=bytes(16)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] All input dimensions should be specified for input 'INPUT0' for model 'identity', got [1,-1]"),
    ("shape_mismatch", "ModelInfer", message("fixed", shape=(3,), raw=bytes(12)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] unexpected shape for input 'INPUT0' for model 'fixed'. Expected [4], got [3]. "),
    ("byte_size_mismatch", "ModelInfer", message(raw=bytes(12)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 12"),
    ("no_batch_dimension", "ModelInfer", message(shape=(), raw=bytes(4)), Code.INVALID_ARGUMENT,
     "[request id: <id_unknown>] input 'INPUT0' has no shape but model requires batch dimension for 'identity'"),
    *[(f"backend_says_{name}", "ModelInfer", ordered(error='as "told"', error_code=name), code, 'as "told"') for name, _, code in CODES],
    ("backend_fails_to_execute", "ModelInfer", ordered(execute_error="not today"), Code.INTERNAL, "not today"),
    ("element_count_overflow", "ModelInfer", message(shape=(1, 2**62, 2**62), raw=bytes(16)), Code.INVALID_ARGUMENT,
     re.compile("INPUT0")),
]


class Grpc(ServerCase):
    """Each row: the code and the text, and a server that goes on serving on the same connection."""

    models = staticmethod(models)
    flags = ("--exit-on-error=false", "--strict-readiness=false")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.grpc)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(cls.channel)

    def check(self, method, value, code, text, newer=False):
        if newer and IS_TRITON:
            self.skipTest("the text or status of a newer release")
        with self.assertRaises(grpc.RpcError) as caught:
            getattr(self.stub, method)(value, timeout=10)
        if isinstance(text, re.Pattern):
            self.assertRegex(caught.exception.details(), text)
        else:
            self.assertEqual(caught.exception.details(), text)
        self.assertEqual(caught.exception.code(), code)
        self.assertEqual(self.stub.ModelInfer(message(), timeout=10).raw_output_contents[0], pack([1.0] * 4))

    def test_unknown_method(self):
        call = self.channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"", timeout=10)
        self.assertEqual(caught.exception.code(), Code.UNIMPLEMENTED)

    def test_unknown_service(self):
        call = self.channel.unary_unary("/other.Service/ModelInfer")
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"", timeout=10)
        self.assertEqual(caught.exception.code(), Code.UNIMPLEMENTED)

    def test_message_is_not_a_message(self):
        call = self.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for value in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe"):
            with self.assertRaises(grpc.RpcError) as caught:
                call(value, timeout=10)
            self.assertIn(caught.exception.code(), (Code.INTERNAL, Code.INVALID_ARGUMENT))
        self.assertEqual(self.stub.ModelInfer(message(), timeout=10).raw_output_contents[0], pack([1.0] * 4))


for name, *entry in GRPC:
    setattr(Grpc, f"test_{name}", lambda self, entry=tuple(entry): self.check(*entry))


if __name__ == "__main__":
    unittest.main()
