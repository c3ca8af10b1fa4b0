"""Requests that are answered well: every endpoint, every data type, every form of input and output."""

import json
import struct

import numpy
from tritonclient.grpc import service_pb2 as pb

import wire
from case import pack
from waiting import until_equal
from .entry import call, entry, get, infer_message, other_call, post, raw, send, stream

ENTRIES = []


def add(name, rows, *steps, world="plain"):
    ENTRIES.append(entry(world, name, rows, *steps))


def infer(value, tail=b"", model="identity", **headers):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    if tail:
        headers["Inference_Header_Content_Length"] = str(len(text))
    return post(f"/v2/models/{model}/infer", text + tail, **headers)


def tensor(data, shape, kind="FP32", name="INPUT0", **more):
    return {"name": name, "datatype": kind, "shape": shape, "data": data, **more}


def request(*inputs, **more):
    return {"inputs": list(inputs), **more}


ONE = request(tensor([1, 2, 3, 4], [1, 4]))
BINARY = request({"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}})
BYTES = pack([1, 2, 3, 4])


def counted(model, executions):
    """Waits for the statistics: Triton counts a request after it has answered it."""
    def step(side):
        until_equal(lambda: side.server.statistics(model)["execution_count"], executions, f"executions of {model}")
        return {}
    return step


def endpoints():
    add("live", "http-live/ready", get("/v2/health/live"), send("HEAD", "/v2/health/live"))
    add("ready", "http-live/ready ready-strict", get("/v2/health/ready"))
    add("ready_strict", "ready-strict http-live/ready", get("/v2/health/ready"), world="small")
    add("model_ready", "http-model-ready", get("/v2/models/identity/ready"), get("/v2/models/identity/versions/1/ready"),
        get("/v2/models/identity/versions/2/ready"), get("/v2/models/broken/ready"))
    add("server_metadata", "http-server-meta", get("/v2"))
    add("model_metadata", "http-model-meta", *[get(f"/v2/models/{path}") for path in
                                              ("identity", "pair", "wide", "two", "two/versions/3", "labelled", "choosy", "square")])
    add("model_config", "http-config", *[get(f"/v2/models/{path}/config") for path in
                                         ("identity", "two/versions/3", "labelled", "choosy", "square", "repeat", "type_string")])
    add("statistics", "http-stats", infer(ONE, model="counted"), infer(ONE, model="counted"), counted("counted", 2),
        get("/v2/models/counted/stats"))
    add("statistics_of_all", "http-stats", get("/v2/models/stats"), world="idle")
    add("index", "http-repo", post("/v2/repository/index"), post("/v2/repository/index", b"{}"),
        post("/v2/repository/index", b'{"ready":true}'), post("/v2/repository/x/index"))
    add("options", "http-cors", send("OPTIONS", "/v2"), send("OPTIONS", "/v2/models/identity/infer"), send("OPTIONS", "/nothing"),
        send("PUT", "/v2/models/identity/infer", b"x"), send("DELETE", "/v2/models/identity"))
    add("keep_alive", "http-keepalive", raw(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"),
        raw(b"GET /v2/health/live HTTP/1.0\r\nHost: t\r\n\r\n"), raw(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"))
    add("json_surroundings", "http-infer-json", *[infer(around) for around in (
        b"\xef\xbb\xbf" + json.dumps(ONE).encode(), json.dumps(ONE).encode() + b"\0\0", json.dumps(ONE).encode() + b" \0 [", b"\0" + json.dumps(ONE).encode(),
        b" \xef\xbb\xbf{}", b"\xef\xbb\xbf\xef\xbb\xbf{}", json.dumps(ONE).encode()[:-1] + b"\0}")])
    add("json_deep", "http-repo", post("/v2/repository/index", b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}"),
        post("/v2/repository/index", b'{"ready":' + b"[" * 2000 + b"]" * 2000 + b"}"), infer(json.dumps(ONE).encode()[:-1] + b',"x":' + b'{"a":' * 500 + b"1" + b"}" * 501))
    add("parameters_twice", "http-params", *[infer(json.dumps(ONE).encode()[:-1] + b',"parameters":{' + text + b"}}") for text in (
        b'"binary_data_output":true,"binary_data_output":false', b'"timeout":1000000,"timeout":"x"', b'"timeout":"x","timeout":1', b'"a":1,"a":"x"')])
    add("chunked", "http-chunked-in", raw(wire.post("/v2/models/identity/infer", chunked(json.dumps(ONE).encode(), 7),
                                                    "Transfer-Encoding: chunked", length=False)))
    add("bad_content_length", "http-infer/content-length",
        *[raw(wire.post("/v2/models/identity/infer", b"{}", f"Content-Length: {value}", length=False))
          for value in ("abc", "-1", "99999999999999999999")])
    add("empty_names", "lookup/empty-name", call("ModelMetadata", pb.ModelMetadataRequest()), call("ModelConfig", pb.ModelConfigRequest()),
        call("ModelReady", pb.ModelReadyRequest()), get("/v2/models//ready"), get("/v2/models//config"))


def failing(parameter, **more):
    value = infer_message("ordered", raw=BYTES, **more)
    value.parameters[parameter].string_param = "no luck"
    return value


def chunked(body, size):
    pieces = [body[at:at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def inference():
    add("infer", "http-infer http-infer-json http-resp-order", infer(ONE), infer({**ONE, "id": "seven"}),
        infer(request(tensor([[1, 2, 3, 4]], [1, 4]))), infer(request(tensor([[[1], [2]], [[3, 4]]], [1, 4]))),
        post("/v2/models/two/versions/3/infer", json.dumps(request(tensor([1, 2], [2], "INT32"))).encode()))
    add("infer_binary", "http-bin-in http-bin-out", infer(BINARY, BYTES), infer({**BINARY, "parameters": {"binary_data_output": True}}, BYTES),
        infer({**BINARY, "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}, BYTES),
        infer({**BINARY, "parameters": {"binary_data_output": True},
               "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}]}, BYTES),
        infer({**BINARY, "parameters": {"binary_data_output": True}, "outputs": [{"name": "OUTPUT0"}]}, BYTES))
    add("infer_empty_tensor", "http-bin-out http-infer-json", infer(request(tensor([], [1, 0]))),
        infer(request(tensor([], [1, 0]), parameters={"binary_data_output": True})))
    add("infer_mixed", "http-bin-in http-bin-out http-output-subset",
        infer(request({**BINARY["inputs"][0]}, tensor([9, 8, 7, 6], [1, 4], name="INPUT1"),
                      outputs=[{"name": "OUTPUT1", "parameters": {"binary_data": True}}, {"name": "OUTPUT0"}]), BYTES, "pair"),
        infer(request(tensor([1], [1, 1]), tensor([9], [1, 1], name="INPUT1"), outputs=[{"name": "OUTPUT1"}]), model="pair"),
        infer(request(tensor([1], [1, 1]), tensor([9], [1, 1], name="INPUT1"), outputs=[]), model="pair"))
    add("infer_raw", "http-raw", post("/v2/models/fixed/infer", BYTES, Inference_Header_Content_Length="0"),
        post("/v2/models/identity/infer", BYTES, Inference_Header_Content_Length="0"),
        post("/v2/models/text/infer", b"abc", Inference_Header_Content_Length="0"))
    add("infer_parameters", "http-params http-resp-params",
        infer({**ONE, "parameters": {"text": "x", "whole": 7, "flag": True, "real": 1.5, "priority": 1, "timeout": 10_000_000}}),
        infer({**ONE, "parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True}}),
        infer({**ONE, "parameters": {"sequence_id": "five", "sequence_start": True}}), infer({**ONE, "parameters": {}}),
        infer({**ONE, "parameters": []}))
    add("infer_bytes", "http-json-bytes", *[infer(request(tensor(values, [len(values)], "BYTES")), model="text") for values in
                                            (["a", "", "\u00e9\U0001f600", "with \"quotes\" \\ and \n"], ["\u0000\u0001"])],
        infer(request({"name": "INPUT0", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}},
                      parameters={"binary_data_output": True}), b"\3\0\0\0\0\xff\0", "text"))
    add("infer_bytes_not_utf8", "http-json-bytes",
        infer(request({"name": "INPUT0", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}), b"\2\0\0\0\xff\xfe", "text"))
    add("infer_not_finite", "http-json-nan", infer(b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,3],"data":[NaN,Infinity,-Infinity]}]}'),
        infer(request({"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}),
              pack([float("nan"), float("inf"), -float("inf")])))
    for kind, code, values in (("BOOL", "?", [True, False]), ("UINT8", "B", [0, 255]), ("UINT16", "H", [0, 65535]), ("UINT32", "I", [0, 2**32 - 1]),
                               ("UINT64", "Q", [0, 2**64 - 1]), ("INT8", "b", [-128, 127]), ("INT16", "h", [-2**15, 2**15 - 1]),
                               ("INT32", "i", [-2**31, 2**31 - 1]), ("INT64", "q", [-2**63, 2**63 - 1]),
                               ("FP32", "f", [0.1, -3.5e38 / 2]), ("FP64", "d", [0.1, 1e308])):
        model = f"type_{kind.lower()}"
        data = struct.pack(f"<2{code}", *values)
        add(f"type_{kind}", "http-infer-json http-bin-in http-bin-out", infer(request(tensor(values, [2], kind)), model=model),
            infer(request({"name": "INPUT0", "datatype": kind, "shape": [2], "parameters": {"binary_data_size": len(data)}},
                          parameters={"binary_data_output": True}), data, model),
            infer(request({"name": "INPUT0", "datatype": kind, "shape": [2], "parameters": {"binary_data_size": len(data)}}), data, model))
    for kind, code, value in (("INT8", "b", 128), ("UINT8", "B", 256), ("INT32", "i", 2**31), ("UINT64", "Q", 2**64), ("FP32", "f", 1e39),
                              ("INT64", "q", 1.5), ("UINT32", "I", 1.5), ("INT16", "h", "1")):
        add(f"range_{kind}", "http-infer-json http-infer/value-of-wrong-type",
            infer(request(tensor([value], [1], kind)), model=f"type_{kind.lower()}"))
    add("optional_inputs", "http-infer validation/input-count-with-optional",
        infer(request(tensor([1], [1])), model="choosy"), infer(request(tensor([1], [1], name="INPUT1")), model="choosy"),
        infer(request(tensor([1], [1]), tensor([1], [1], name="INPUT3")), model="choosy"), infer(request(), model="choosy"))
    add("json_too_large", "http-infer/json-too-large http-max-input", infer(request(tensor([1.0] * 4000, [1, 4000]))), world="small")
    add("json_shorter_than_stated", "http-infer/json-shorter-than-stated http-infer/inference-header-length",
        post("/v2/models/identity/infer", b"{}", Inference_Header_Content_Length="3"))
    add("raw_too_large", "http-infer/raw-body-too-large http-max-input",
        post("/v2/models/identity/infer", bytes(8192), Inference_Header_Content_Length="0"), world="small")
    add("binary_tail_of_any_size", "http-max-input", infer(request({"name": "INPUT0", "datatype": "FP32", "shape": [1, 2048],
                                                                    "parameters": {"binary_data_size": 8192}},
                                                                   parameters={"binary_data_output": True}), bytes(8192)), world="small")
    add("depth", "http-json-depth", infer(b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":' + b"[" * 90 + b"1" + b"]" * 90 + b"}]}"))
    add("backend_fails", "scheduling/backend-error", *[
        infer({**ONE, "parameters": parameters}, model="ordered") for parameters in
        ({"error": "no luck"}, {"error": "busy", "error_code": "unavailable"}, {"error": "not there", "error_code": "not_found"},
         {"execute_error": "the whole batch failed"}, {"error": "no luck", "binary_data_output": True})],
        infer({**ONE, "id": "seven", "parameters": {"error": "no luck"}}, model="ordered"), call("ModelInfer", failing("error")),
        call("ModelInfer", failing("execute_error")), stream([failing("error", id="e"), failing("execute_error", id="x")]))
    add("shapes_of_a_grid", "http-infer validation/shape", infer(request(tensor([1, 2], [2])), model="grid"), infer(ONE, model="grid"),
        infer(request(tensor([1, 2, 3, 4], [1, 2, 2])), model="grid"))
    add("output_size_mismatch", "http-infer/output-size-mismatch", infer(request(tensor([1, 2], [1, 2])), model="identity"))


def grpc():
    add("g_calls", "grpc-service grpc-modelready grpc-config grpc-index grpc-numbers-req grpc-numbers-resp",
        call("ServerLive", pb.ServerLiveRequest()), call("ServerReady", pb.ServerReadyRequest()),
        call("ModelReady", pb.ModelReadyRequest(name="identity")), call("ModelReady", pb.ModelReadyRequest(name="identity", version="1")),
        call("ModelMetadata", pb.ModelMetadataRequest(name="two")), call("ModelMetadata", pb.ModelMetadataRequest(name="two", version="1")),
        call("RepositoryIndex", pb.RepositoryIndexRequest()), call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True)))
    add("g_metadata", "grpc-service grpc-proto-pkg", call("ServerMetadata", pb.ServerMetadataRequest()))
    add("g_config", "grpc-config", *[call("ModelConfig", pb.ModelConfigRequest(name=name)) for name in ("identity", "labelled", "repeat", "two")])
    add("g_statistics", "grpc-service", call("ModelInfer", infer_message("counted_too")), call("ModelInfer", infer_message("counted_too")),
        counted("counted_too", 2), call("ModelStatistics", pb.ModelStatisticsRequest(name="counted_too")))
    add("g_health", "grpc-health", other_call("/grpc.health.v1.Health/Check"), other_call("/grpc.health.v1.Health/Check", b"\x0a\x03abc"))
    add("g_unknown", "transport/unknown-path grpc-service", other_call("/inference.GRPCInferenceService/Nothing"), other_call("/a.B/C"))
    add("g_infer", "grpc-unary grpc-raw grpc-raw-out grpc-contents", call("ModelInfer", infer_message()), call("ModelInfer", infer_message(raw=BYTES)),
        call("ModelInfer", infer_message(raw=BYTES, id="seven", version="1")))
    extra = infer_message(raw=BYTES)
    extra.raw_input_contents.append(b"more")
    add("g_extra_raw", "grpc-infer/extra-raw-contents", call("ModelInfer", extra))
    for kind, field, values in (("BOOL", "bool_contents", [True, False]), ("UINT8", "uint_contents", [0, 255]), ("UINT16", "uint_contents", [1, 65536]),
                                ("UINT32", "uint_contents", [0, 2**32 - 1]), ("UINT64", "uint64_contents", [0, 2**64 - 1]),
                                ("INT8", "int_contents", [-128, 300]), ("INT16", "int_contents", [-1, 2**16]), ("INT32", "int_contents", [-2**31, 1]),
                                ("INT64", "int64_contents", [-2**63, 1]), ("FP32", "fp32_contents", [0.5, -1.5]), ("FP64", "fp64_contents", [0.5, 1e300]),
                                ("BYTES", "bytes_contents", [b"", b"\xff\0x"])):
        value = pb.ModelInferRequest(model_name="type_string" if kind == "BYTES" else f"type_{kind.lower()}")
        getattr(value.inputs.add(name="INPUT0", datatype=kind, shape=[2]).contents, field).extend(values)
        add(f"g_contents_{kind}", "grpc-contents grpc-raw-out", call("ModelInfer", value))
    for kind in ("FP16", "BF16"):
        value = pb.ModelInferRequest(model_name=f"type_{kind.lower()}", raw_input_contents=[b"\0\x3c\0\0"])
        value.inputs.add(name="INPUT0", datatype=kind, shape=[2])
        half = pb.ModelInferRequest(model_name=f"type_{kind.lower()}")
        half.inputs.add(name="INPUT0", datatype=kind, shape=[2]).contents.fp32_contents.extend([1, 2])
        add(f"g_half_{kind}", "grpc-raw grpc-contents", call("ModelInfer", value), call("ModelInfer", half))
    kinds = infer_message()
    for name, field, content in (("a", "int64_param", -1), ("b", "bool_param", True), ("c", "string_param", "x"), ("d", "double_param", 1.5)):
        setattr(kinds.parameters[name], field, content)
    priority = infer_message()
    priority.parameters["priority"].uint64_param = 1
    add("g_parameters", "grpc-param-type", call("ModelInfer", kinds), call("ModelInfer", priority))
    subset = pb.ModelInferRequest(model_name="pair", raw_input_contents=[BYTES, BYTES])
    for name in ("INPUT0", "INPUT1"):
        subset.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    subset.outputs.add(name="OUTPUT1")
    add("g_outputs", "grpc-numbers-resp grpc-raw-out", call("ModelInfer", subset))


def streams():
    def square(value, request_id="", **parameters):
        made = pb.ModelInferRequest(model_name="square", id=request_id, raw_input_contents=[struct.pack("<i", value)])
        made.inputs.add(name="IN", datatype="INT32", shape=[1])
        for name, flag in parameters.items():
            made.parameters[name].bool_param = flag
        return made

    def repeat(values, request_id=""):
        arrays = (("IN", "INT32", numpy.array(values, numpy.int32)), ("DELAY", "UINT32", numpy.zeros(len(values), numpy.uint32)),
                  ("WAIT", "UINT32", numpy.zeros(1, numpy.uint32)))
        made = pb.ModelInferRequest(model_name="repeat", id=request_id)
        for name, kind, array in arrays:
            made.inputs.add(name=name, datatype=kind, shape=array.shape)
            made.raw_input_contents.append(array.tobytes())
        return made

    flag = "triton_enable_empty_final_response"
    add("s_one_to_one", "grpc-stream grpc-stream-order grpc-stream-final", stream([infer_message(id=str(index), raw=BYTES) for index in range(5)]))
    add("s_decoupled", "grpc-stream grpc-stream-order", stream([repeat([4, 5, 6], "r")]), stream([square(3, "s")]))
    add("s_empty_final", "grpc-empty-final grpc-stream-final", stream([square(3, "s", **{flag: True})]), stream([square(0, "s", **{flag: True})]),
        stream([square(0, "s")]), stream([infer_message(raw=BYTES)]))
    wrong = infer_message(id="w", raw=bytes(12))
    add("s_errors", "stream/error-of-one-request grpc-stream", stream([wrong]), stream([infer_message("absent", id="x")]),
        stream([infer_message(id="a", raw=BYTES), wrong, infer_message(id="b", raw=BYTES)]), stream([infer_message(version="x", id="v")]))
    mode = (("triton_grpc_error", "true"),)
    add("s_error_mode", "stream/error-ends-the-call grpc-error-mode", stream([infer_message(id="a", raw=BYTES)], mode),
        stream([infer_message("absent", id="x")], mode), stream([infer_message("grid", shape=(1, 4), raw=BYTES)], mode))
    # Not an error of the backend in that mode: the Triton that is compared with ends some moments later.
    add("s_error_mode_off", "grpc-error-mode", *[stream([failing("error", id="e"), infer_message(id="a", raw=BYTES)], (("triton_grpc_error", value),))
                                                 for value in ("false", "1", "TRUE", "")])
    add("s_empty", "grpc-stream", stream([]))
    two = pb.ModelInferRequest(model_name="two", model_version="3", id="t", raw_input_contents=[struct.pack("<2i", 5, 6)])
    two.inputs.add(name="INPUT0", datatype="INT32", shape=[2])
    add("s_models", "grpc-stream grpc-stream-order", stream([infer_message(id="a", raw=BYTES), two, infer_message("labelled", id="c"), two, infer_message(id="e")]))
    add("s_large", "grpc-stream", stream([infer_message(id=str(count), raw=bytes(4 * count), shape=(1, count)) for count in (1, 300_000, 0, 70_000)]))
    subset = pb.ModelInferRequest(model_name="pair", id="p", raw_input_contents=[BYTES, BYTES])
    for name in ("INPUT0", "INPUT1"):
        subset.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    subset.outputs.add(name="OUTPUT1")
    unknown = pb.ModelInferRequest()
    unknown.CopyFrom(subset)
    unknown.outputs.add(name="OUTPUT7")
    add("s_outputs", "grpc-stream grpc-numbers-resp", stream([subset, unknown, subset]))
    both = infer_message(id="both")
    both.raw_input_contents.append(BYTES)
    none = pb.ModelInferRequest(model_name="identity", id="none")
    none.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    refused = [both, none, infer_message("two", version="2", id="version"), infer_message("broken", id="broken"),
               infer_message("identity", name="INPUT9", id="name", raw=BYTES)]
    add("s_refused", "stream/error-of-one-request grpc-stream", stream(refused), *[stream([one]) for one in refused])
    kinds = []
    for name, field, value in (("priority", "string_param", "x"), ("priority", "int64_param", -1), ("triton_other", "int64_param", 1), (flag, "int64_param", 1),
                               ("sequence_start", "int64_param", 1), ("custom", "uint64_param", 1), ("timeout", "bool_param", True)):
        made = infer_message(id=f"{name} {field}", raw=BYTES)
        setattr(made.parameters[name], field, value)
        kinds.append(made)
    add("s_parameters", "grpc-infer/parameter-kind grpc-infer/reserved-parameter grpc-infer/empty-final-flag grpc-stream", stream(kinds), stream([square(2, "q", **{flag: False})]))
    mute = square(2, "m")
    mute.parameters[flag].string_param = "true"
    add("s_decoupled_refused", "stream/error-of-one-request grpc-empty-final", stream([mute]), stream([infer_message("square", id="s", raw=BYTES)]))


endpoints()
inference()
grpc()
streams()
