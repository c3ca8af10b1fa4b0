"""gRPC: server and model calls, the standard health service, typed and raw contents, deadlines and cancellation."""

import threading
import time
import unittest

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from case import IS_TRITON, ServerCase, conch_only, pack
from repository import identity

# Field of InferTensorContents by data type, and values for it.
TYPED = [
    ("BOOL", "bool_contents", [True, False], "?"), ("INT8", "int_contents", [-128, 127], "b"),
    ("INT16", "int_contents", [-32768, 32767], "h"), ("INT32", "int_contents", [-(2**31), 2**31 - 1], "i"),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], "q"), ("UINT8", "uint_contents", [0, 255], "B"),
    ("UINT16", "uint_contents", [0, 65535], "H"), ("UINT32", "uint_contents", [0, 2**32 - 1], "I"),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], "Q"), ("FP32", "fp32_contents", [-1.5, 2.5], "f"),
    ("FP64", "fp64_contents", [-1e300, 0.1], "d"),
]


class GrpcCase(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.server.grpc, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
        cls.addClassCleanup(cls.channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(cls.channel)

    def message(self, model="identity", raw=pack([1.0, 2.0]), shape=(1, 2), datatype="FP32", **more):
        value = pb.ModelInferRequest(model_name=model, **more)
        value.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
        value.raw_input_contents.append(raw)
        return value


def models(repository):
    repository.model("identity", identity(batch=8))
    for name, _, _, _ in TYPED:
        repository.model(f"type_{name}", identity([("INPUT0", name, (-1,))]))
    repository.model("type_BYTES", identity([("INPUT0", "STRING", (-1,))]))
    repository.model("slow", identity([("INPUT0", "FP32", (-1, -1))], parameters={"execute_delay_ms": "300"}))


class Calls(GrpcCase):
    models = staticmethod(models)

    def test_live_and_ready(self):
        self.assertTrue(self.stub.ServerLive(pb.ServerLiveRequest()).live)
        self.assertTrue(self.stub.ServerReady(pb.ServerReadyRequest()).ready)
        self.assertTrue(self.stub.ModelReady(pb.ModelReadyRequest(name="identity")).ready)
        self.assertTrue(self.stub.ModelReady(pb.ModelReadyRequest(name="identity", version="1")).ready)

    def health(self, method, response_kind="unary_unary"):
        return getattr(self.channel, response_kind)(f"/grpc.health.v1.Health/{method}")

    def test_health_check(self):
        for service in (b"", b"\x0a\x01x"):
            self.assertEqual(self.health("Check")(service, timeout=5), b"\x08\x01")

    @conch_only
    def test_health_watch(self):
        stream = self.health("Watch", "unary_stream")(b"", timeout=5)
        self.assertEqual(next(iter(stream)), b"\x08\x01")
        stream.cancel()

    def test_server_metadata(self):
        meta = self.stub.ServerMetadata(pb.ServerMetadataRequest())
        self.assertEqual(meta.name, "triton")
        self.assertIn("binary_tensor_data", meta.extensions)

    def test_model_metadata(self):
        meta = self.stub.ModelMetadata(pb.ModelMetadataRequest(name="identity"))
        self.assertEqual((meta.name, list(meta.versions)), ("identity", ["1"]))
        self.assertEqual([(row.name, row.datatype, list(row.shape)) for row in meta.inputs], [("INPUT0", "FP32", [-1, -1])])
        self.assertEqual([(row.name, row.datatype, list(row.shape)) for row in meta.outputs], [("OUTPUT0", "FP32", [-1, -1])])

    def test_model_config(self):
        config = self.stub.ModelConfig(pb.ModelConfigRequest(name="identity")).config
        self.assertEqual((config.name, config.backend, config.max_batch_size), ("identity", "identity", 8))
        self.assertEqual((config.input[0].name, list(config.input[0].dims)), ("INPUT0", [-1]))
        self.assertEqual(config.version_policy.latest.num_versions, 1)
        self.assertEqual((config.instance_group[0].name, config.instance_group[0].count), ("identity_0", 1))

    def test_statistics(self):
        def read():
            return self.stub.ModelStatistics(pb.ModelStatisticsRequest(name="identity")).model_stats[0]
        before = read()
        self.stub.ModelInfer(self.message(raw=pack([1.0] * 4), shape=(2, 2)))
        after = read()
        self.assertEqual(after.inference_count - before.inference_count, 2)
        self.assertEqual(after.execution_count - before.execution_count, 1)
        self.assertEqual(after.inference_stats.success.count - before.inference_stats.success.count, 1)

    def test_repository_index(self):
        rows = {row.name: row for row in self.stub.RepositoryIndex(pb.RepositoryIndexRequest()).models}
        self.assertEqual((rows["identity"].version, rows["identity"].state), ("1", "READY"))

    def test_raw_contents(self):
        reply = self.stub.ModelInfer(self.message(id="mine"))
        self.assertEqual((reply.id, reply.model_name, reply.model_version), ("mine", "identity", "1"))
        output = reply.outputs[0]
        self.assertEqual((output.name, output.datatype, list(output.shape)), ("OUTPUT0", "FP32", [1, 2]))
        self.assertEqual(list(reply.raw_output_contents), [pack([1.0, 2.0])])

    def test_typed_contents(self):
        for name, field, values, code in TYPED:
            with self.subTest(name):
                value = pb.ModelInferRequest(model_name=f"type_{name}")
                entry = value.inputs.add(name="INPUT0", datatype=name, shape=[2])
                getattr(entry.contents, field).extend(values)
                self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack(values, code))
        value = pb.ModelInferRequest(model_name="type_BYTES")
        entry = value.inputs.add(name="INPUT0", datatype="BYTES", shape=[2])
        entry.contents.bytes_contents.extend([b"", b"\xff\0"])
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], b"\0\0\0\0\2\0\0\0\xff\0")

    def test_extra_raw_contents_are_ignored(self):
        value = self.message()
        value.raw_input_contents.append(b"more")
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack([1.0, 2.0]))

    def test_zero_size_tensor(self):
        reply = self.stub.ModelInfer(self.message("type_FP32", raw=b"", shape=(0,)))
        self.assertEqual((list(reply.outputs[0].shape), list(reply.raw_output_contents)), ([0], [b""]))

    def test_parameters(self):
        value = self.message()
        value.parameters["sequence_id"].int64_param = 3
        value.parameters["sequence_start"].bool_param = True
        value.parameters["text"].string_param = "x"
        value.parameters["whole"].int64_param = 1
        self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack([1.0, 2.0]))

    def test_large_message(self):
        raw = bytes(range(256)) * (64 << 10)  # 16 MiB, above every default limit of gRPC libraries
        reply = self.stub.ModelInfer(self.message(raw=raw, shape=(1, len(raw) // 4)), timeout=30)
        self.assertTrue(reply.raw_output_contents[0] == raw)

    def test_many_calls_at_once(self):
        calls = [self.stub.ModelInfer.future(self.message(raw=pack([float(i), 0.0]))) for i in range(500)]
        for index, call in enumerate(calls):
            self.assertEqual(call.result(timeout=20).raw_output_contents[0], pack([float(index), 0.0]))

    def test_deadline(self):
        started = time.monotonic()
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(self.message("slow"), timeout=0.05)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertLess(time.monotonic() - started, 0.25)
        self.assertEqual(self.stub.ModelInfer(self.message("slow"), timeout=5).raw_output_contents[0], pack([1.0, 2.0]))

    @conch_only
    def test_cancelled_requests_are_not_executed(self):
        before = self.server.statistics("slow")["execution_count"]
        calls = [self.stub.ModelInfer.future(self.message("slow")) for _ in range(6)]
        time.sleep(0.1)
        for call in calls[1:]:
            call.cancel()
        calls[0].result(timeout=5)
        self.stub.ModelInfer(self.message("slow"), timeout=5)
        executed = self.server.statistics("slow")["execution_count"] - before
        self.assertLessEqual(executed, 3)  # the first, the last, and at most one more that had begun


class Overlap(GrpcCase):
    """Three instances execute three requests at once, and a fourth waits for one of them."""

    @staticmethod
    def models(repository):
        repository.model("three", identity([("INPUT0", "FP32", (-1, -1))], count=3, parameters={"execute_delay_ms": "400"}))

    def test_three_instances(self):
        ends, lock, begun = [], threading.Lock(), time.monotonic()

        def done(_):
            with lock:
                ends.append(time.monotonic() - begun)

        calls = [self.stub.ModelInfer.future(self.message("three")) for _ in range(4)]
        for call in calls:
            call.add_done_callback(done)
        for call in calls:
            call.result(timeout=10)
        deadline = time.monotonic() + 5
        while len(ends) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        ends.sort()
        self.assertGreater(ends[0], 0.39)
        self.assertLess(ends[2], 0.75, ends)
        self.assertGreater(ends[3], 0.79, ends)


if __name__ == "__main__":
    unittest.main()
