"""Shared memory registered by clients: the calls, tensors in place over every protocol, and upstream's tools with it. What upstream does too
is tried there as well (`--server=triton`). What clients do to hurt the server is in test_shared_memory_safety."""

import csv
import json
import pathlib
import queue
import struct
import subprocess
import tempfile
import threading
import unittest

import grpc as grpcio
import numpy
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

import server as servers
from case import IS_TRITON, ServerCase, conch_only, needs_library, needs_peer, pack
from region import FLAG, Sharing, clients, listed, mapping_count, part, path, register, unregister
from repository import identity, tensors

CODE = grpcio.StatusCode
FLAGS = () if IS_TRITON else (FLAG,)
newer = unittest.skipIf(IS_TRITON, "follows a newer release than the installed one")
VALUES = [1.5, -2.0, 3.25, 4.0]
SQUARE = ('backend: "square"\nmax_batch_size: 0\n' + tensors("input", [("IN", "INT32", (1,))]) + tensors("output", [("OUT", "INT32", (1,))])
          + "model_transaction_policy { decoupled: true }\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n")


def models(repository):
    repository.model("identity", identity([("INPUT0", "FP32", (-1,))], batch=8))
    repository.model("pair", identity([("INPUT0", "INT32", (-1,)), ("INPUT1", "INT32", (-1,))]))
    repository.model("strings", identity([("INPUT0", "STRING", (-1,))], batch=8))
    repository.model("slow", identity([("INPUT0", "FP32", (-1,))], parameters={"execute_delay_ms": "400"}))
    repository.model("square", SQUARE)


class Case(Sharing, ServerCase):
    flags = FLAGS
    models = staticmethod(models)

    def ask(self, source, target=None, model="identity", shape=(1, 4), datatype="FP32", **more):
        """An HTTP inference with an input in shared memory, and its output there, too, if `target` is given: (status, value)."""
        body = {"inputs": [{"name": "INPUT0", "datatype": datatype, "shape": list(shape), "parameters": source}], **more}
        if target is not None:
            body["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
        status, _, reply = self.infer(body, model=model)
        return status, json.loads(reply)

    def assert_refused(self, status, message, got):
        self.assertEqual(got, (status, {"error": message}))


class Calls(Case):
    """Registration, status and unregistration, over HTTP and gRPC."""

    def test_life_of_a_region(self):
        target = self.object(8192)
        self.assertEqual(self.server.get_json(path("status")), [])
        self.assertEqual(register(self.server, "a", target.key, 4096, 4096), (200, b""))
        self.assertEqual(register(self.server, "b", target.key[1:], 100), (200, b""))
        first = {"name": "a", "key": target.key, "offset": 4096, "byte_size": 4096}
        second = {"name": "b", "key": target.key[1:], "offset": 0, "byte_size": 100}
        self.assertEqual(self.server.get_json(path("status")), [first, second])
        self.assertEqual(self.server.get_json(path("status", "b")), [second])
        self.assertEqual(self.server.get(path("status"))[1],
                         json.dumps([first, second], separators=(",", ":")).encode())
        self.assertEqual(unregister(self.server, "a"), (200, b""))
        self.assertEqual(listed(self.server), ["b"])
        self.assertEqual(unregister(self.server, "a"), (200, b""), "unknown is no error")
        self.assertEqual(unregister(self.server), (200, b""))
        self.assertEqual(listed(self.server), [])
        self.assertEqual(mapping_count(self.server, target), 0)

    def test_life_of_a_region_over_grpc(self):
        target = self.object(8192)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.register_system_shared_memory("a", target.key, 4096, offset=4096)
            # The installed upstream cannot register one key twice.
            client.register_system_shared_memory("b", target.key[1:], 100)
            rows = client.get_system_shared_memory_status().regions
            self.assertEqual(sorted(rows), ["a", "b"])
            self.assertEqual((rows["a"].name, rows["a"].key, rows["a"].offset, rows["a"].byte_size), ("a", target.key, 4096, 4096))
            self.assertEqual(list(client.get_system_shared_memory_status("b").regions), ["b"])
            client.unregister_system_shared_memory("a")
            client.unregister_system_shared_memory("a")
            self.assertEqual(list(client.get_system_shared_memory_status().regions), ["b"])
            client.unregister_system_shared_memory()
            self.assertEqual(len(client.get_system_shared_memory_status().regions), 0)
            self.assertEqual(len(client.get_cuda_shared_memory_status().regions), 0)
            client.unregister_cuda_shared_memory()

    def test_upstreams_clients(self):
        target = self.object()
        for module, client in clients(self.server):
            with self.subTest(module.__name__):
                client.register_system_shared_memory("a b/c" if module is grpcclient else "abc", target.key, 10)
                self.assertEqual(len(listed(self.server)), 1)
                client.unregister_system_shared_memory()
                client.close()

    def test_refused_registrations(self):
        target = self.object(8192)
        taken = self.registered("taken")
        key, refused = target.key, "failed to register shared memory region 'r': "
        invalid = "attempt to access JSON non-unsigned-integer as unsigned-integer"
        for body, status, message in [
                (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
                (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
                (b"{}", 400, "Shared memory register request has no 'key' field"),
                (b"[]", 400, "Shared memory register request has no 'key' field"),
                (b'{"key":1}', 500, "attempt to access JSON non-string as string"),
                (b'{"key":"/x"}', 400, "Shared memory register request has no 'byte_size' field"),
                (b'{"key":"/x","offset":-1}', 500, invalid),
                (b'{"key":"/x","byte_size":"1"}', 500, invalid),
                ({"key": "/conch_nobody", "byte_size": 1}, 500, "Unable to open shared memory region: '/conch_nobody'"),
                ({"key": key, "byte_size": 8193}, 400, refused + "invalid args"),
                ({"key": key, "byte_size": 8192, "offset": 4096}, 400, refused + "invalid args"),
                ({"key": key, "byte_size": 10, "offset": 5}, 400, refused + "unable to process address spaceInvalid argument"),
                ({"key": key, "byte_size": 0}, 400, refused + "unable to process address spaceInvalid argument")]:
            with self.subTest(body):
                got, reply = self.server.post_json(path("register", "r"), body)
                self.assert_refused(status, message, (got, json.loads(reply)))
        status, reply = register(self.server, "taken", taken.key, 1)
        self.assert_refused(400, "shared memory region 'taken' already in manager", (status, json.loads(reply)))
        self.assertEqual(listed(self.server), ["taken"])

    @newer
    def test_refused_keys(self):
        for key, message in [
                ("", "cannot register shared memory region 'r' - invalid shm key ''"),
                ("//", "cannot register shared memory region 'r' - invalid shm key '//'")]:
            got, reply = register(self.server, "r", key, 1)
            self.assert_refused(400, message, (got, json.loads(reply)))

    def test_refused_calls(self):
        self.registered("a")
        for method, target, status, message in [
                ("POST", path("register"), 400, "'region name' is necessary to register system shared memory region"),
                ("POST", path("register", kind="cuda"), 400, "'region name' is necessary to register cuda shared memory region"),
                ("GET", path("status", "x"), 404, "Unable to find system shared memory region: 'x'"),
                ("GET", path("status", "x", "cuda"), 404, "Unable to find cuda shared memory region: 'x'"),
                ("GET", path("status", "a", "cuda"), 404,
                 "The region named 'a' is registered as system shared memory, not CUDA shared memory"),
                ("GET", path("unregister"), 405, "Method Not Allowed"),
                ("GET", path("register", "a"), 405, "Method Not Allowed"),
                ("POST", path("status"), 405, "Method Not Allowed"),
                ("GET", "/v2/systemsharedmemory/other", 404, "Not Found")]:
            with self.subTest(f"{method} {target}"):
                got, headers, reply = self.server.request(method, target)
                self.assert_refused(status, message, (got, json.loads(reply)))
                self.assertEqual(headers["content-type"], "text/plain" if status == 404 and "other" in target else "application/json")

    def test_refused_calls_over_grpc(self):
        taken, target = self.registered("taken", 8192), self.object(8192)
        refused = "failed to register shared memory region 'r': "
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for call, code, message in [
                    (lambda: client.register_system_shared_memory("taken", taken.key, 1), CODE.ALREADY_EXISTS,
                     "shared memory region 'taken' already in manager"),
                    (lambda: client.register_system_shared_memory("r", "/conch_nobody", 1), CODE.INTERNAL,
                     "Unable to open shared memory region: '/conch_nobody'"),
                    (lambda: client.register_system_shared_memory("r", target.key, 8193), CODE.INVALID_ARGUMENT,
                     refused + "invalid args"),
                    (lambda: client.register_system_shared_memory("r", target.key, 8, offset=5), CODE.INVALID_ARGUMENT,
                     refused + "unable to process address spaceInvalid argument"),
                    (lambda: client.get_system_shared_memory_status("x"), CODE.NOT_FOUND,
                     "Unable to find system shared memory region: 'x'"),
                    (lambda: client.get_cuda_shared_memory_status("x"), CODE.NOT_FOUND,
                     "Unable to find cuda shared memory region: 'x'"),
                    (lambda: client.get_cuda_shared_memory_status("taken"), CODE.NOT_FOUND,
                     "The region named 'taken' is registered as system shared memory, not CUDA shared memory")]:
                with self.subTest(message), self.assertRaises(InferenceServerException) as raised:
                    call()
                self.assertEqual((raised.exception.status(), raised.exception.message()), (f"StatusCode.{code.name}", message))

    def test_cuda_without_a_gpu(self):
        """The installed upstream knows GPUs and finds none; ours says so in the words of an upstream that was built without."""
        no_handle = "Shared memory register request has no 'raw_handle' field"
        whole = {"raw_handle": {"b64": "A" * 86 + "=="}, "byte_size": 4, "device_id": 0}
        short = {**whole, "raw_handle": {"b64": "AAAA"}}
        for body, status, message in [
                (b"{}", 400, no_handle),
                ({"raw_handle": {}}, 500, "attempt to access non-existing object member 'b64'"),
                ({"raw_handle": {"b64": "AA=="}}, 500, "attempt to access non-existing object member 'byte_size'"),
                (short, 400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
                (whole, 400, "failed to register shared memory region: invalid args" if IS_TRITON
                 else "failed to register CUDA shared memory region: 'r', GPUs not supported")]:
            with self.subTest(body):
                got, reply = self.server.post_json(path("register", "r", "cuda"), body)
                self.assert_refused(status, message, (got, json.loads(reply)))
        self.assertEqual(self.server.get_json(path("status", kind="cuda")), [])
        for name in (None, "r"):
            self.assertEqual(self.server.post_json(path("unregister", name, "cuda"), b""), (200, b""))

    @conch_only
    def test_cuda_without_a_gpu_over_grpc(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client, self.assertRaises(InferenceServerException) as raised:
            client.register_cuda_shared_memory("r", b"A" * 88, 0, 4)
        self.assertEqual((raised.exception.status(), raised.exception.message()),
                         ("StatusCode.INVALID_ARGUMENT", "failed to register CUDA shared memory region: 'r', GPUs not supported"))

    @conch_only
    def test_a_thread_is_there_for_it(self):
        self.assertIn(" regions ", self.server.threads())

    def test_the_extensions_are_named(self):
        extensions = self.server.get_json("/v2")["extensions"]
        at = extensions.index("system_shared_memory")
        self.assertEqual(extensions[at - 1:at + 3],
                         ["model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data"])


class Tensors(Case):
    """Inputs read and outputs written where the client wants them."""

    def test_in_and_out_over_http(self):
        target = self.registered("r", 4096, pack(VALUES))
        status, reply = self.ask(part("r"), part("r", 64))
        self.assertEqual(status, 200, reply)
        # No data, no parameters.
        self.assertEqual(reply["outputs"], [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 4]}])
        self.assertEqual(target.read(64, 16), pack(VALUES))
        # The input alone, and the output alone.
        status, reply = self.ask(part("r"))
        self.assertEqual((status, reply["outputs"][0]["data"]), (200, VALUES))
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [7.0, 8.0]}],
                "outputs": [{"name": "OUTPUT0", "parameters": part("r", 128, 100)}]}
        self.assertEqual(self.infer(body)[0], 200)
        self.assertEqual(target.read(128, 12), pack([7.0, 8.0]) + bytes(4), "no more than there is")

    def test_shared_memory_beside_other_tensors(self):
        """INPUT0 in a region, INPUT1 behind the JSON; OUTPUT0 behind the JSON, OUTPUT1 in a region."""
        target = self.registered("r", 4096, pack([1, 2, 3], "i"))
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3], "parameters": part("r", 0, 12)},
                           {"name": "INPUT1", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1", "parameters": part("r", 64, 8)}]}
        status, headers, reply = self.infer(body, pack([8, 9], "i"), model="pair")
        self.assertEqual(status, 200, reply)
        at = int(headers["inference-header-content-length"])
        self.assertEqual(reply[at:], pack([1, 2, 3], "i"))
        rows = {row["name"]: row for row in json.loads(reply[:at])["outputs"]}
        self.assertEqual(rows["OUTPUT0"]["parameters"], {"binary_data_size": 12})
        self.assertEqual(sorted(rows["OUTPUT1"]), ["datatype", "name", "shape"])
        self.assertEqual(target.read(64, 8), pack([8, 9], "i"))

    def test_grpc_messages(self):
        """Raw contents are those of the other inputs, in order; an output in a region has an empty one."""
        target = self.registered("r", 4096, pack([1, 2, 3], "i"))
        request = pb.ModelInferRequest(model_name="pair")
        first = request.inputs.add(name="INPUT0", datatype="INT32", shape=[3])
        first.parameters["shared_memory_region"].string_param = "r"
        first.parameters["shared_memory_byte_size"].int64_param = 12
        request.inputs.add(name="INPUT1", datatype="INT32", shape=[2])
        request.raw_input_contents.append(pack([8, 9], "i"))
        request.outputs.add(name="OUTPUT0")
        output = request.outputs.add(name="OUTPUT1")
        output.parameters["shared_memory_region"].string_param = "r"
        output.parameters["shared_memory_offset"].int64_param = 64
        output.parameters["shared_memory_byte_size"].int64_param = 8
        with grpcio.insecure_channel(self.server.grpc) as channel:
            reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
        self.assertEqual([(row.name, list(row.shape), len(row.parameters)) for row in reply.outputs],
                         [("OUTPUT0", [3], 0), ("OUTPUT1", [2], 0)])
        self.assertEqual(list(reply.raw_output_contents), [pack([1, 2, 3], "i"), b""])
        self.assertEqual(target.read(64, 8), pack([8, 9], "i"))

    def test_upstreams_helpers(self):
        """tritonclient.utils.shared_memory, over both protocols, with fixed and with variable lengths."""
        floats = numpy.array([VALUES], numpy.float32)
        words = numpy.array([[b"", b"a\0b", b"words of some length"]], numpy.object_)
        serialized = b"".join(struct.pack("<I", len(word)) + word for word in words.flat)
        for module, client in clients(self.server):
            for model, datatype, array, byte_size in [
                    ("identity", "FP32", floats, floats.nbytes), ("strings", "BYTES", words, len(serialized))]:
                with self.subTest(f"{module.__name__} {datatype}"):
                    key = f"conch_helpers_{module.__name__}"
                    handle = shm.create_shared_memory_region("data", key, 4096)
                    try:
                        values = [array] if datatype == "FP32" else [numpy.array(serialized, numpy.object_)]
                        shm.set_shared_memory_region(handle, values)
                        client.register_system_shared_memory("data", f"/{key}", 4096)
                        source = module.InferInput("INPUT0", list(array.shape), datatype)
                        source.set_shared_memory("data", byte_size)
                        wanted = module.InferRequestedOutput("OUTPUT0")
                        wanted.set_shared_memory("data", 1024, offset=2048)
                        result = client.infer(model, [source], outputs=[wanted])
                        row = result.get_output("OUTPUT0")
                        shape = row["shape"] if module is httpclient else list(row.shape)
                        self.assertEqual(shape, list(array.shape))
                        got = shm.get_contents_as_numpy(handle, array.dtype, shape, offset=2048)
                        numpy.testing.assert_array_equal(got, array)
                        del got
                        client.unregister_system_shared_memory("data")
                    finally:
                        shm.destroy_shared_memory_region(handle)
            client.close()
        self.assertEqual(listed(self.server), [])

    def test_stream(self):
        """Many requests on one stream, each in its own part of a region."""
        count = 20
        target = self.registered("r", 8192, b"".join(pack([index] * 4) for index in range(count)))
        results = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: results.put((result, error)))
            for index in range(count):
                source = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
                source.set_shared_memory("r", 16, offset=16 * index)
                wanted = grpcclient.InferRequestedOutput("OUTPUT0")
                wanted.set_shared_memory("r", 16, offset=4096 + 16 * index)
                client.async_stream_infer("identity", [source], outputs=[wanted], request_id=str(index))
            for index in range(count):
                result, error = results.get(timeout=10)
                self.assertIsNone(error)
                self.assertEqual(result.get_response().id, str(index))
            client.stop_stream()
        self.assertEqual(target.read(4096, 16 * count), target.read(0, 16 * count))

    @needs_library("square")
    def test_stream_of_a_decoupled_model(self):
        """Each response overwrites the one before."""
        target = self.registered("r", 4096, pack([5], "i"))
        results = queue.Queue()
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: results.put((result, error)))
            source = grpcclient.InferInput("IN", [1], "INT32")
            source.set_shared_memory("r", 4)
            wanted = grpcclient.InferRequestedOutput("OUT")
            wanted.set_shared_memory("r", 4, offset=100)
            client.async_stream_infer("square", [source], outputs=[wanted], enable_empty_final_response=True)
            finals = []
            while True not in finals:
                result, error = results.get(timeout=10)
                self.assertIsNone(error)
                finals.append(result.get_response().parameters["triton_final_response"].bool_param)
            client.stop_stream()
        self.assertEqual(len(finals), 6)
        self.assertEqual(target.read(100, 4), pack([5], "i"))

    def test_refused_tensors(self):
        self.registered("r", 4096, pack(VALUES))
        unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
        for source, target, status, message in [
                (part("x"), None, 404, "Unable to find shared memory region: 'x'"),
                (part("r"), part("x"), 404, "Unable to find shared memory region: 'x'"),
                (part("r", 0, 4097), None, 400, "Invalid offset + byte size for shared memory region: 'r'"),
                (part("r"), part("r", 4090), 400, "Invalid offset + byte size for shared memory region: 'r'"),
                (part("r", 0, 12), None, 400,
                 "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 12"),
                ({"shared_memory_region": 1}, None, 500,
                 "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string"),
                ({**part("r"), "shared_memory_offset": "0"}, None, 500, f"Unable to parse 'shared_memory_offset': {unsigned}"),
                ({**part("r"), "shared_memory_byte_size": -1}, None, 500, f"Unable to parse 'shared_memory_byte_size': {unsigned}"),
                ({**part("r"), "binary_data_size": 16}, None, 400,
                 "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in"
                 " 'parameters'. But set 'binary_data_size' 'shared_memory_region'"),
                (part("r"), part("r", 64, 12), 500,
                 "shared memory size specified with the request for output 'OUTPUT0' (12 bytes) should be at least 16 bytes to hold the"
                 " results"),
                (part("r"), {**part("r", 64), "classification": 1}, 400,
                 "Output can't set both 'shared_memory_region' and 'classification'"),
                (part("r"), {**part("r", 64), "binary_data": True}, 400,
                 "Output can't set both 'shared_memory_region' and 'binary_data'")]:
            with self.subTest(message):
                self.assert_refused(status, message, self.ask(source, target))
        self.assertEqual(self.ask(part("r"))[0], 200)

    @newer
    def test_refused_offsets(self):
        """The installed upstream serves these from behind the region."""
        self.registered("r", 4096, pack(VALUES))
        limit = 2**64 - 1
        for source, message in [
                (part("r", 4096), "Invalid offset for shared memory region: 'r'"),
                (part("r", limit), "Invalid offset for shared memory region: 'r'"),
                (part("r", 1, limit), f"Integer overflow detected: byte_size ({limit}) + offset (1) exceeds maximum value ({limit}) for region"
                 " 'r'")]:
            self.assert_refused(400, message, self.ask(source))
        self.assertEqual(self.ask({"shared_memory_region": "r"})[1]["error"].split(" Expected ")[1], "16, got 0", "no size is none")
        # Without a region the others count for nothing.
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0],
                            "parameters": {"shared_memory_offset": 7, "shared_memory_byte_size": 9}}]}
        self.assertEqual(self.infer(body)[0], 200)

    def test_refused_tensors_over_grpc(self):
        self.registered("r", 4096, pack(VALUES))

        def ask(source, target=None, contents=False):
            request = pb.ModelInferRequest(model_name="identity")
            tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
            rows = [(tensor, source)]
            if contents:
                tensor.contents.fp32_contents.extend(VALUES)
            if target:
                rows.append((request.outputs.add(name="OUTPUT0"), target))
            for holder, parameters in rows:
                for name, value in parameters.items():
                    setattr(holder.parameters[name], {int: "int64_param", str: "string_param"}[type(value)], value)
            with grpcio.insecure_channel(self.server.grpc) as channel:
                try:
                    service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
                except grpcio.RpcError as error:
                    return error.code(), error.details()
            return None

        region, size = {"shared_memory_region": "r"}, {"shared_memory_byte_size": 16}
        invalid = CODE.INVALID_ARGUMENT
        for arguments, expected in [
                (({"shared_memory_region": 1, **size},),
                 (invalid, "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param.")),
                (({**region, **size, "shared_memory_offset": "1"},),
                 (invalid, "invalid value type for 'shared_memory_offset' parameter for tensor 'INPUT0', expected int64_param.")),
                (({**region, "shared_memory_byte_size": "1"},),
                 (invalid, "invalid value type for 'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param.")),
                ((region,), (invalid, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor"
                             " 'INPUT0'")),
                ((size,), (invalid, "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor"
                           " 'INPUT0'")),
                (({"shared_memory_offset": 1},), (invalid, "'shared_memory_offset' can not be specified without 'shared_memory_region'"
                                                  " parameter for tensor 'INPUT0'")),
                ((part("r"), None, True), (invalid, "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for"
                                           " model 'identity'")),
                ((part("x"),), (CODE.NOT_FOUND, "Unable to find shared memory region: 'x'")),
                ((part("r"), part("x")), (CODE.NOT_FOUND, "Unable to find shared memory region: 'x'")),
                ((part("r", 0, 4097),), (invalid, "Invalid offset + byte size for shared memory region: 'r'")),
                ((part("r"), {**part("r", 64), "classification": 1}),
                 (invalid, "output can't set both 'shared_memory_region' and 'classification'")),
                ((part("r"), part("r", 64, 12)),
                 (CODE.INTERNAL, "shared memory size specified with the request for output 'OUTPUT0' (12 bytes) should be at least 16 bytes to"
                  " hold the results"))]:
            with self.subTest(expected[1]):
                self.assertEqual(ask(*arguments), expected)
        self.assertIsNone(ask(part("r"), part("r", 64)))

    def test_strings_are_checked(self):
        target = self.registered("r", 4096, struct.pack("<I", 3) + b"abc" + struct.pack("<I", 100) + b"d")
        asked = {"model": "strings", "shape": (1, 2), "datatype": "BYTES"}
        self.assertEqual(self.ask(part("r", 0, 7), model="strings", shape=(1, 1), datatype="BYTES")[1]["outputs"][0]["data"], ["abc"])
        status, reply = self.ask(part("r", 0, 7), **asked)
        self.assert_refused(400, "[request id: <id_unknown>] expected 2 string elements for inference input 'INPUT0' for model 'strings', got 1",
                            (status, reply))
        self.assertNotEqual(self.ask(part("r", 0, 12), **asked)[0], 200, "the second is longer than its memory")
        self.assertEqual(target.read(0, 3), b"\3\0\0")

    def test_parts_at_any_offset(self):
        """No alignment is asked of clients; backends get it all the same."""
        target = self.registered("r", 4096, b"\0" + pack(VALUES))
        status, reply = self.ask(part("r", 1), part("r", 99))
        self.assertEqual(status, 200, reply)
        self.assertEqual(target.read(98, 18), b"\0" + pack(VALUES) + b"\0")


@newer
class InUse(Case):
    """Unregistered while a request uses it."""

    def test_unregistered_in_flight(self):
        target = self.registered("r", 4096, pack(VALUES))
        outcome = []
        asker = threading.Thread(target=lambda: outcome.append(self.ask(part("r"), part("r", 64), model="slow", shape=(4,), id="in-use")))
        with self.server.telling_states():
            asker.start()
            self.server.wait_for_state("in-use", "EXECUTING")
        self.assertEqual(unregister(self.server, "r"), (200, b""))
        self.assertEqual(listed(self.server), ["r"], "until the last request is done")
        self.assertEqual(register(self.server, "r", target.key, 4096)[0], 400, "the name is taken")
        self.assertEqual(self.ask(part("r"))[0], 200, "and may be used")
        asker.join()
        self.assertEqual(outcome[0][0], 200, outcome)
        self.assertEqual(target.read(64, 16), pack(VALUES))
        self.assertEqual(listed(self.server), [])
        self.assertEqual(register(self.server, "r", target.key, 4096), (200, b""))


@conch_only
class Off(ServerCase):
    """Without the option."""
    models = staticmethod(models)
    MESSAGE = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

    def test_registration_is_refused_and_status_works(self):
        for kind in ("system", "cuda"):
            for target in (path("register", "r", kind), path("unregister", "r", kind), path("unregister", None, kind),
                           path("register", None, kind)):
                with self.subTest(target):
                    status, reply = self.server.post_json(target, {"key": "/x", "byte_size": 1})
                    self.assertEqual((status, json.loads(reply)), (501, {"error": self.MESSAGE}))
            self.assertEqual(self.server.get_json(path("status", kind=kind)), [])
        status, _, reply = self.infer({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": part("r")}]})
        self.assertEqual((status, json.loads(reply)), (404, {"error": "Unable to find shared memory region: 'r'"}))

    def test_registration_is_refused_over_grpc(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            for call in (lambda: client.register_system_shared_memory("r", "/x", 1), client.unregister_system_shared_memory,
                         lambda: client.register_cuda_shared_memory("r", b"A" * 88, 0, 4), client.unregister_cuda_shared_memory):
                with self.assertRaises(InferenceServerException) as raised:
                    call()
                self.assertEqual((raised.exception.status(), raised.exception.message()), ("StatusCode.UNIMPLEMENTED", self.MESSAGE))
            self.assertEqual(len(client.get_system_shared_memory_status().regions), 0)

    def test_nothing_is_there_for_it(self):
        self.assertNotIn(" regions ", self.server.threads())


@needs_peer("perf_analyzer")
class PerfAnalyzer(ServerCase):
    flags = FLAGS

    @staticmethod
    def models(repository):
        repository.model("identity", identity([("INPUT0", "FP32", (16,))], batch=8))

    def check(self, protocol, *more):
        with tempfile.TemporaryDirectory() as directory:
            report = pathlib.Path(directory) / "report.csv"
            done = subprocess.run(
                [str(servers.PEERS / "perf_analyzer"), "-m", "identity", "-i", protocol, "-u", self.server.address(protocol),
                 "--shared-memory=system", "--output-shared-memory-size=64", "--concurrency-range=4", "--measurement-mode=count_windows",
                 "--measurement-request-count=200", "--stability-percentage=999", "--max-trials=5", "-f", str(report), "--verbose-csv",
                 *more], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            with report.open() as file:
                row, = csv.DictReader(file)
        self.assertGreater(float(row["Inferences/Second"]), 0)
        self.assertGreater(float(row["Server Queue"]), 0)
        self.assertNotIn("failed", done.stdout.lower())
        self.assertEqual(listed(self.server), [], "it unregisters what it registered")

    def test_http(self):
        self.check("http")

    def test_grpc(self):
        self.check("grpc")

    def test_stream(self):
        self.check("grpc", "--streaming")
