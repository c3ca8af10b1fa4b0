"""Upstream's own Python clients, unmodified: HTTP, gRPC and both asyncio variants, over every data type."""

import asyncio
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from case import ServerCase
from repository import identity

ARRAYS = [
    numpy.array([[True, False, True]]), numpy.array([[0, 1, 255]], numpy.uint8), numpy.array([[0, 1, 65535]], numpy.uint16),
    numpy.array([[0, 2**32 - 1]], numpy.uint32), numpy.array([[0, 2**64 - 1]], numpy.uint64),
    numpy.array([[-128, 127]], numpy.int8), numpy.array([[-32768, 32767]], numpy.int16),
    numpy.array([[-(2**31), 2**31 - 1]], numpy.int32), numpy.array([[-(2**63), 2**63 - 1]], numpy.int64),
    numpy.array([[-1.5, 65504.0]], numpy.float16), numpy.array([[-1.5, 3.4e38]], numpy.float32),
    numpy.array([[-1e300, 0.1]], numpy.float64), numpy.array([[b"", b"a\0b", "ä\u20ac".encode()]], numpy.object_),
]


def models(repository):
    for array in ARRAYS:
        name = np_to_triton_dtype(array.dtype)
        kind = "STRING" if name == "BYTES" else name
        repository.model(f"type_{name}", identity([("INPUT0", kind, (-1,))], batch=8))


def parts(client, array, **more):
    """(model, inputs, outputs) for one client module."""
    name = np_to_triton_dtype(array.dtype)
    value = client.InferInput("INPUT0", list(array.shape), name)
    value.set_data_from_numpy(array, **more)
    return f"type_{name}", [value], [client.InferRequestedOutput("OUTPUT0", **more)]


class Clients(ServerCase):
    models = staticmethod(models)

    def assert_same(self, got, array):
        self.assertEqual(got.dtype, array.dtype)
        numpy.testing.assert_array_equal(got, array)

    def test_http(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            self.assertTrue(client.is_server_live() and client.is_server_ready())
            self.assertTrue(client.is_model_ready("type_FP32"))
            self.assertEqual(client.get_server_metadata()["name"], "triton")
            self.assertEqual(client.get_model_config("type_FP32")["max_batch_size"], 8)
            for array in ARRAYS:
                model, inputs, outputs = parts(httpclient, array, binary_data=True)
                for wanted in (outputs, None):
                    self.assert_same(client.infer(model, inputs, outputs=wanted).as_numpy("OUTPUT0"), array)
            statistics = client.get_inference_statistics("type_FP32")["model_stats"][0]
            self.assertEqual(statistics["inference_count"], statistics["inference_stats"]["success"]["count"])

    def test_http_json(self):
        with httpclient.InferenceServerClient(self.server.http) as client:
            for array in ARRAYS:
                if array.dtype in (numpy.float16, numpy.object_):
                    continue
                model, inputs, outputs = parts(httpclient, array, binary_data=False)
                self.assert_same(client.infer(model, inputs, outputs=outputs).as_numpy("OUTPUT0"), array)

    def test_http_async_infer(self):
        with httpclient.InferenceServerClient(self.server.http, concurrency=8) as client:
            array = ARRAYS[10]
            model, inputs, outputs = parts(httpclient, array, binary_data=True)
            waiting = [client.async_infer(model, inputs, outputs=outputs) for _ in range(64)]
            for entry in waiting:
                self.assert_same(entry.get_result().as_numpy("OUTPUT0"), array)

    def test_grpc(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            self.assertTrue(client.is_server_live() and client.is_server_ready())
            self.assertTrue(client.is_model_ready("type_FP32"))
            self.assertEqual(client.get_server_metadata().name, "triton")
            self.assertEqual(client.get_model_config("type_FP32").config.max_batch_size, 8)
            for array in ARRAYS:
                model, inputs, outputs = parts(grpcclient, array)
                result = client.infer(model, inputs, outputs=outputs, request_id="7", parameters={"a": "b"})
                self.assertEqual(result.get_response().id, "7")
                self.assert_same(result.as_numpy("OUTPUT0"), array)

    def test_grpc_async_infer(self):
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            import queue
            answers, array = queue.Queue(), ARRAYS[10]
            model, inputs, outputs = parts(grpcclient, array)
            for _ in range(64):
                client.async_infer(model, inputs, lambda result, error: answers.put((result, error)), outputs=outputs)
            for _ in range(64):
                result, error = answers.get(timeout=10)
                self.assertIsNone(error)
                self.assert_same(result.as_numpy("OUTPUT0"), array)

    def test_http_aio(self):
        async def run():
            async with httpaio.InferenceServerClient(self.server.http) as client:
                self.assertTrue(await client.is_server_ready())
                rows = [parts(httpclient, array, binary_data=True) for array in ARRAYS]
                answers = await asyncio.gather(*(client.infer(m, i, outputs=o) for m, i, o in rows * 4))
                for answer, array in zip(answers, ARRAYS * 4):
                    self.assert_same(answer.as_numpy("OUTPUT0"), array)
        asyncio.run(run())

    def test_grpc_aio(self):
        async def run():
            async with grpcaio.InferenceServerClient(self.server.grpc) as client:
                self.assertTrue(await client.is_server_ready())
                rows = [parts(grpcclient, array) for array in ARRAYS]
                answers = await asyncio.gather(*(client.infer(m, i, outputs=o) for m, i, o in rows * 4))
                for answer, array in zip(answers, ARRAYS * 4):
                    self.assert_same(answer.as_numpy("OUTPUT0"), array)
        asyncio.run(run())

    def test_errors_reach_the_clients(self):
        model, inputs, _ = parts(httpclient, ARRAYS[10], binary_data=True)
        with httpclient.InferenceServerClient(self.server.http) as client:
            with self.assertRaisesRegex(InferenceServerException, "Request for unknown model: 'absent' is not found"):
                client.infer("absent", inputs)
        model, inputs, _ = parts(grpcclient, ARRAYS[10])
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            with self.assertRaises(InferenceServerException) as caught:
                client.infer("absent", inputs)
            self.assertEqual(caught.exception.status(), "StatusCode.NOT_FOUND")


if __name__ == "__main__":
    unittest.main()
