"""All that upstream's Python client offers, in its four forms: each public method and each of its parameters is used here, against conch and
against the real Triton, or is excused by name. What a new release of the client adds fails `test_nothing_is_left_out`."""

import asyncio
import contextlib
import inspect
import io
import json
import pkgutil
import queue
import secrets
import tempfile
import time
import unittest

import numpy
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.grpc.aio.auth
import tritonclient.grpc.auth
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
import tritonclient.http.aio.auth
import tritonclient.http.auth
import tritonclient.utils
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc._client import CallContext
from tritonclient.utils import InferenceServerException

from case import IS_TRITON, ServerCase, needs_library
from region import FLAG, unregister
from repository import identity
from test_stream import square
from waiting import until_async
from watch import Watch, public_classes

LIBRARY = "tritonclient"
ROWS = numpy.array([[1.5, -2.0, 3.25, 4.0]], numpy.float32)
WORDS = numpy.array([[b"", b"a\0b", b"words of some length"]], numpy.object_)
PARTS = {"request_id": "7", "sequence_id": 5, "sequence_start": True, "sequence_end": True, "priority": 0, "timeout": 20_000_000,
         "parameters": {"key": "value"}}
CLASSES = public_classes([httpclient, httpaio, grpcclient, grpcaio, tritonclient.utils, shm, httpclient.auth, grpcclient.auth], LIBRARY)
CLASSES["tritonclient.grpc.CallContext"] = CallContext

PLAIN = "HTTP has no TLS, as upstream's server has none"
ELSEWHERE = "test_grpc_tls has clients with certificates, of the synchronous kind"
MADE = "is made by the client, not by its user"
EXCUSED = {
    **{f"tritonclient.http.InferenceServerClient({name})": PLAIN for name in ("ssl", "ssl_options", "ssl_context_factory", "insecure")},
    **{f"tritonclient.http.aio.InferenceServerClient({name})": PLAIN for name in ("ssl", "ssl_context")},
    **{f"tritonclient.grpc{form}.InferenceServerClient({name})": ELSEWHERE for form in ("", ".aio")
       for name in ("ssl", "root_certificates", "private_key", "certificate_chain", "creds")},
    **{f"tritonclient.{name}": MADE for name in (
        "http.InferResult", "http.InferResult(response)", "http.InferResult(verbose)", "http.InferAsyncRequest",
        "http.InferAsyncRequest(greenlet)", "http.InferAsyncRequest(verbose)", "grpc.InferResult", "grpc.InferResult(result)",
        "grpc.CallContext", "grpc.CallContext(grpc_future)")},
    **{f"tritonclient.http.aio.InferenceServerClientBase{name}": "is what the four clients have in common" for name in (
        "", ".plugin", ".register_plugin", ".register_plugin(plugin)", ".unregister_plugin")},
    **{f"tritonclient.utils.shared_memory.SharedMemoryRegion{name}": "is made by create_shared_memory_region" for name in (
        "", "(triton_shm_name)", "(shm_key)")},
}
# Modules that are not looked into.
APART = {
    "tritonclient.utils.cuda_shared_memory": "needs a GPU",
    "tritonclient.grpc.service_pb2": "generated from the protocol", "tritonclient.grpc.service_pb2_grpc": "generated from the protocol",
    "tritonclient.grpc.model_config_pb2": "generated from the protocol",
}
MODULES = {module.__name__ for module in (
    httpclient, httpaio, grpcclient, grpcaio, tritonclient.utils, shm, httpclient.auth, httpaio.auth, grpcclient.auth, grpcaio.auth)}


def public_modules(package=LIBRARY, paths=tritonclient.__path__):
    """The names of all public modules, found without loading them."""
    for found in pkgutil.iter_modules(paths):
        name = f"{package}.{found.name}"
        if found.name.startswith("_"):
            continue
        yield name
        if found.ispkg and name not in APART:
            yield from public_modules(name, [f"{path}/{found.name}" for path in paths])


class Dialect:
    """One of the four clients, in one way of speaking: what it is asked is awaited where it is asynchronous, carries headers and the other
    things that any call can carry, and is answered as JSON."""

    def __init__(self, module, base, address, **options):
        self.base, self.is_http = base, base is httpclient
        self.is_async = module is not base
        self.module, self.client = module, module.InferenceServerClient(address, **options)

    async def __call__(self, method, *positional, **named):
        function = getattr(self.client, method)
        general = {"headers": {"x-test": "1"}, "query_params": {"a": "b c"}, "client_timeout": 20, "as_json": True}
        taken = inspect.signature(function).parameters
        value = function(*positional, **{name: value for name, value in general.items() if name in taken}, **named)
        return await value if inspect.isawaitable(value) else value

    async def close(self):
        value = self.client.close()
        if inspect.isawaitable(value):
            await value

    def input(self, array=ROWS, name="INPUT0"):
        value = self.base.InferInput(name, list(array.shape), tritonclient.utils.np_to_triton_dtype(array.dtype))
        value.set_data_from_numpy(array)
        return value

    async def settings(self, method, *positional, **named):
        """Settings as one flat object, whichever protocol they came by."""
        reply = await self(method, *positional, **named)
        if not self.is_http:
            reply = {name: next(iter(value.values()), None) for name, value in reply["settings"].items()}
            reply = {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in reply.items()}
        return reply


class Scenes:
    """What is done with each client. One that speaks of some clients only says so at once."""

    async def metadata(self, client):
        self.assertIs(await client("is_server_live"), True)
        self.assertIs(await client("is_server_ready"), True)
        self.assertIs(await client("is_model_ready", "identity", model_version="1"), True)
        self.assertEqual((await client("get_server_metadata"))["name"], "triton")
        model = await client("get_model_metadata", "identity", model_version="1")
        self.assertEqual((model["name"], model["versions"], model["inputs"][0]["name"]), ("identity", ["1"], "INPUT0"))
        config = await client("get_model_config", "identity", model_version="1")
        self.assertEqual(config.get("config", config)["max_batch_size"], 8)
        index = await client("get_model_repository_index")
        rows = {row["name"]: row.get("state") for row in (index if client.is_http else index["models"])}
        self.assertEqual((rows["identity"], "spare" in rows), ("READY", True))
        everything = await client("get_inference_statistics")
        self.assertGreater(len(everything["model_stats"]), 1)

    async def count(self, client):
        row, = (await client("get_inference_statistics", model_name="identity", model_version="1"))["model_stats"]
        return int(row.get("inference_count", 0))

    async def inference(self, client):
        before, base = await self.count(client), client.base
        value = base.InferInput(name="INPUT0", shape=[1, 2], datatype="FP32").set_shape(shape=[1, 4])
        self.assertEqual((value.name(), value.shape(), value.datatype()), ("INPUT0", [1, 4], "FP32"))
        forms = [{"binary_data": False}, {"binary_data": True}] if client.is_http else [{}]
        for form in forms:
            value.set_data_from_numpy(input_tensor=ROWS, **form)
            wanted = base.InferRequestedOutput(name="OUTPUT0", class_count=0, **form)
            self.assertEqual(wanted.name(), "OUTPUT0")
            result = await client("infer", "identity", [value], model_version="1", outputs=[wanted], **PARTS)
            numpy.testing.assert_array_equal(result.as_numpy(name="OUTPUT0"), ROWS)
            numpy.testing.assert_array_equal(result.as_numpy("absent"), None)
            as_json = {} if client.is_http else {"as_json": True}
            self.assertEqual(result.get_response(**as_json)["id"], "7")
            output = result.get_output(name="OUTPUT0")
            self.assertEqual(output["shape"] if client.is_http else list(output.shape), [1, 4])
            if not client.is_http:
                result.get_output("OUTPUT0", as_json=True)  # returns nothing, whatever the server says
        classes = await client("infer", "identity", [value], outputs=[base.InferRequestedOutput("OUTPUT0", class_count=2)])
        self.assertEqual(classes.as_numpy("OUTPUT0").tolist(), [[b"4.000000:3", b"3.250000:2"]])
        self.assertEqual(await self.count(client) - before, len(forms) + 1)
        words = await client("infer", "words", [client.input(WORDS)])
        numpy.testing.assert_array_equal(words.as_numpy("OUTPUT0"), WORDS)

    async def bodies(self, client):
        """What the HTTP clients make and read without sending it."""
        if not client.is_http:
            return
        wanted = [httpclient.InferRequestedOutput("OUTPUT0")]
        body, length = client.client.generate_request_body(inputs=[client.input()], outputs=wanted, **PARTS)
        for encoding in (None, "gzip", "deflate"):
            headers = {"Inference-Header-Content-Length": str(length), **({"Accept-Encoding": encoding} if encoding else {})}
            status, got, reply = self.server.request("POST", "/v2/models/identity/infer", body, headers)
            self.assertEqual((status, got.get("content-encoding")), (200, encoding))
            size = int(got["inference-header-content-length"])
            for read in (client.client.parse_response_body, httpclient.InferResult.from_response_body):
                result = read(response_body=reply, verbose=False, header_length=size, content_encoding=encoding)
                numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS)

    async def compression(self, client):
        large = numpy.tile(ROWS, (4, 5000))
        name = "request_compression_algorithm" if client.is_http else "compression_algorithm"
        for there in (None, "gzip", "deflate"):
            for back in (None, "gzip", "deflate") if client.is_http else (None,):
                more = {name: there, **({"response_compression_algorithm": back} if client.is_http else {})}
                result = await client("infer", "identity", [client.input(large)], **more)
                numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), large)

    async def asynchronous(self, client):
        """`async_infer` of the synchronous clients."""
        if client.is_async:
            return
        answers = queue.Queue()
        more = {"model_version": "1", "outputs": [client.base.InferRequestedOutput("OUTPUT0")], **PARTS}
        if client.is_http:
            more |= {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
            started = [await client("async_infer", "identity", [client.input()], **more) for _ in range(8)]
            for result in [entry.get_result(block=True, timeout=10) for entry in started]:
                numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS)
            late = await client("async_infer", "slow", [client.input()])
            with self.assertRaisesRegex(InferenceServerException, "failed to obtain inference response"):
                late.get_result(timeout=0.05)
            numpy.testing.assert_array_equal(late.get_result().as_numpy("OUTPUT0"), ROWS)
            return

        def callback(result, error):
            answers.put((result, error))
        for _ in range(8):
            await client("async_infer", "identity", [client.input()], callback=callback, compression_algorithm="gzip", **more)
        for result, error in [answers.get(timeout=10) for _ in range(8)]:
            self.assertIsNone(error)
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS)
        (await client("async_infer", "slow", [client.input()], callback=callback)).cancel()
        self.assertEqual(answers.get(timeout=10)[1].status(), "StatusCode.CANCELLED")

    async def streams(self, client):
        """Four answers of a decoupled model, the last one empty; then one stream that is cancelled."""
        if client.is_http:
            return
        general = {"stream_timeout": 20, "headers": {"x-test": "1"}, "compression_algorithm": "gzip"}
        three = {"inputs": [client.input(numpy.array([3], numpy.int32), "IN")], "enable_empty_final_response": True, "model_version": "1",
                 "outputs": [grpcclient.InferRequestedOutput("OUT")], **PARTS}
        endless = [client.input(numpy.array([1000], numpy.int32), "IN")]
        if client.is_async:
            async def requests(*rows):
                for row in rows:
                    yield row
            three.pop("enable_empty_final_response")
            calls = client.client.stream_infer(inputs_iterator=requests({"model_name": "square", **three}), **general)
            got = [result.as_numpy("OUT") async for result, error in calls if error is None]
            self.assertEqual([int(value[0]) for value in got], [3, 3, 3])
            calls = client.client.stream_infer(requests({"model_name": "steady", "inputs": endless}))
            await calls.__anext__()
            self.assertTrue(calls.cancel())
            with self.assertRaises(asyncio.CancelledError):
                async for _ in calls:
                    pass
            return
        answers = queue.Queue()
        client.client.start_stream(callback=lambda result, error: answers.put((result, error)), **general)
        client.client.async_stream_infer("square", **three)
        for expected in (3, 3, 3, None):
            result, error = answers.get(timeout=10)
            self.assertIsNone(error)
            self.assertEqual((result.get_response().id, result.as_numpy("OUT")), ("7", expected))
        client.client.stop_stream()
        client.client.start_stream(lambda result, error: answers.put((result, error)))
        client.client.async_stream_infer("steady", endless)
        self.assertIsNone(answers.get(timeout=10)[1])
        begun = time.monotonic()
        client.client.stop_stream(cancel_requests=True)
        self.assertLess(time.monotonic() - begun, 10, "a thousand answers would take longer")

    async def shared_memory(self, client):
        serialized = tritonclient.utils.serialize_byte_tensor(WORDS).item()
        for model, array, values, byte_size in [("identity", ROWS, [ROWS], ROWS.nbytes), (
                "words", WORDS, [numpy.array(serialized, numpy.object_)], len(serialized))]:
            key = f"conch_api_{secrets.token_hex(4)}"
            handle = shm.create_shared_memory_region(triton_shm_name="data", shm_key=key, byte_size=8192, create_only=True)
            try:
                self.assertIn(key, shm.mapped_shared_memory_regions())
                shm.set_shared_memory_region(shm_handle=handle, input_values=values, offset=64)
                await client("register_system_shared_memory", "data", f"/{key}", 4096, offset=0)
                for region in ("data", ""):
                    status = await client("get_system_shared_memory_status", region_name=region)
                    row, = status if client.is_http else status["regions"].values()
                    self.assertEqual((row["name"], row["key"], int(row["byte_size"])), ("data", f"/{key}", 4096))
                source = client.base.InferInput("INPUT0", list(array.shape), tritonclient.utils.np_to_triton_dtype(array.dtype))
                source.set_shared_memory(region_name="data", byte_size=byte_size, offset=64)
                wanted = client.base.InferRequestedOutput("OUTPUT0")
                wanted.set_shared_memory(region_name="data", byte_size=1024, offset=2048)
                result = await client("infer", model, [source], outputs=[wanted])
                if client.is_http:
                    self.assertNotIn("data", result.get_output("OUTPUT0"))
                else:
                    self.assertEqual(b"".join(result.get_response().raw_output_contents), b"")
                got = shm.get_contents_as_numpy(shm_handle=handle, datatype=array.dtype, shape=list(array.shape), offset=2048)
                numpy.testing.assert_array_equal(got, array)
                del got
                wanted.unset_shared_memory()
                result = await client("infer", model, [source], outputs=[wanted])
                numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
                with self.assertRaises(InferenceServerException):
                    await client("get_system_shared_memory_status", region_name="other")
                await client("unregister_system_shared_memory", name="data" if model == "words" else "")
                status = await client("get_system_shared_memory_status")
                self.assertFalse(status if client.is_http else status.get("regions"))
            finally:
                shm.destroy_shared_memory_region(shm_handle=handle)
            self.assertNotIn(key, shm.mapped_shared_memory_regions())
        with self.assertRaises(shm.SharedMemoryException):
            shm.set_shared_memory_region(handle, ["no array"])

    async def cuda_shared_memory(self, client):
        """The calls, on a machine without a GPU."""
        status = await client("get_cuda_shared_memory_status")
        self.assertFalse(status if client.is_http else status.get("regions"))
        with self.assertRaises(InferenceServerException):
            await client("get_cuda_shared_memory_status", region_name="absent")
        with self.assertRaisesRegex(InferenceServerException, "failed to register"):
            await client("register_cuda_shared_memory", "r", b"A" * 86 + b"==" if client.is_http else bytes(64), 0, 4)
        await client("unregister_cuda_shared_memory", name="")

    async def is_ready(self, client, model):
        with contextlib.suppress(InferenceServerException):
            return await client("is_model_ready", model)
        return False

    async def loading(self, client):
        config = {"backend": "identity", "max_batch_size": 8, "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                  "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}], "instance_group": [{"kind": "KIND_CPU"}]}
        await client("load_model", "made", config=json.dumps(config), files={"file:4/model": b"its content"})
        self.assertEqual((await client("get_model_metadata", "made"))["versions"], ["4"])
        await client("load_model", "spare")
        for model in ("made", "spare"):
            numpy.testing.assert_array_equal((await client("infer", model, [client.input()])).as_numpy("OUTPUT0"), ROWS)
            await client("unload_model", model, unload_dependents=model == "made")

            async def is_unloaded():
                # A server is not ready while it unloads.
                return not await self.is_ready(client, model) and await client("is_server_ready")
            await until_async(is_unloaded, f"{model} is unloaded, and the server ready")
        with self.assertRaisesRegex(InferenceServerException, "failed to load 'absent'"):
            await client("load_model", "absent")

    async def trace(self, client):
        start = await client.settings("get_trace_settings")
        for model in ("identity", None):
            changed = await client.settings("update_trace_settings", model_name=model, settings={"trace_rate": "5", "log_frequency": "2"})
            self.assertEqual((changed["trace_rate"], changed["log_frequency"]), ("5", "2"))
            self.assertEqual(await client.settings("get_trace_settings", model_name=model), changed)
            await client("update_trace_settings", model_name=model, settings={"trace_rate": None, "log_frequency": None})
            self.assertEqual(await client.settings("get_trace_settings", model_name=model), start)

    async def log(self, client):
        start = await client.settings("get_log_settings")
        changed = await client.settings("update_log_settings", {"log_verbose_level": 1, "log_format": "ISO8601"})
        self.assertEqual((changed["log_verbose_level"], changed["log_format"]), (1, "ISO8601"))
        self.assertEqual(await client.settings("get_log_settings"), changed)
        await client("update_log_settings", {"log_verbose_level": 0, "log_format": "default"})
        self.assertEqual(await client.settings("get_log_settings"), start)

    async def plugins(self, client):
        seen = []

        class Noting(client.base.InferenceServerClientPlugin):
            def __call__(self, request):
                self.auth(request)
                seen.append(request.headers)

            auth = client.module.auth.BasicAuth(username="user", password="pass")
        plugin = Noting()
        client.client.register_plugin(plugin=plugin)
        self.assertIs(client.client.plugin(), plugin)
        with self.assertRaisesRegex(InferenceServerException, "already registered"):
            client.client.register_plugin(plugin)
        self.assertTrue(await client("is_server_live"))
        client.client.unregister_plugin()
        with self.assertRaisesRegex(InferenceServerException, "No plugin"):
            client.client.unregister_plugin()
        self.assertTrue(await client("is_server_live"))
        self.assertEqual([headers["authorization"] for headers in seen], ["Basic dXNlcjpwYXNz"])
        request = client.base.Request(headers=None)
        plugin(request)
        self.assertEqual(list(request.headers), ["authorization"])

    async def options(self, client):
        """Clients with each option of their own."""
        options = {"verbose": True}
        if client.is_http:
            options |= ({"conn_limit": 2, "conn_timeout": 5.0} if client.is_async else
                        {"concurrency": 2, "connection_timeout": 5.0, "network_timeout": 5.0, "max_greenlets": 2})
        else:
            options["keepalive_options"] = grpcclient.KeepAliveOptions(
                keepalive_time_ms=60_000, keepalive_timeout_ms=20_000, keepalive_permit_without_calls=False,
                http2_max_pings_without_data=2)
        rounds = [options] if client.is_http else [options, {"channel_args": [("grpc.max_receive_message_length", 1 << 20)]}]
        for more in rounds:
            with contextlib.redirect_stdout(io.StringIO()):
                other = Dialect(client.module, client.base, self.addresses[client.is_http], **more)
                result = await other("infer", "identity", [client.input()])
                await other.close()
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), ROWS)

    async def refusals(self, client):
        with self.assertRaises(InferenceServerException) as raised:
            await client("infer", "absent", [client.input()])
        error = raised.exception
        self.assertEqual((error.message(), error.status()), (
            "Request for unknown model: 'absent' is not found", "404" if client.is_http else "StatusCode.NOT_FOUND"))
        self.assertEqual(error.debug_details() is None, client.is_http)
        made = InferenceServerException(msg="text", status="7", debug_details="more")
        self.assertEqual((made.message(), made.status(), made.debug_details()), ("text", "7", "more"))

    async def utilities(self, _client):
        utils = tritonclient.utils
        for datatype in ("BOOL", "INT8", "INT64", "UINT8", "UINT64", "FP16", "FP32", "FP64"):
            self.assertEqual(utils.np_to_triton_dtype(np_dtype=utils.triton_to_np_dtype(dtype=datatype)), datatype)
        packed = utils.serialize_byte_tensor(input_tensor=WORDS)
        self.assertEqual(utils.deserialize_bytes_tensor(encoded_tensor=packed.item()).tolist(), WORDS[0].tolist())
        self.assertEqual(utils.serialized_byte_size(tensor_value=WORDS), sum(len(word) for word in WORDS.flat))
        with self.assertRaisesRegex(InferenceServerException, "said"):
            utils.raise_error(msg="said")


SCENES = [name for name, value in vars(Scenes).items() if inspect.iscoroutinefunction(value) and name not in ("count", "is_ready")]
DIALECTS = {"http": (httpclient, httpclient), "http_aio": (httpaio, httpclient), "grpc": (grpcclient, grpcclient),
            "grpc_aio": (grpcaio, grpcclient)}


@needs_library("square")
class ClientApi(Scenes, ServerCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.flags = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in ("identity", "words", "slow", "square", "steady")),
                     f"--trace-config=triton,file={directory.name}/trace.json", *(() if IS_TRITON else (FLAG,)))
        super().setUpClass()
        cls.addresses = {True: cls.server.http, False: cls.server.grpc}

    @staticmethod
    def models(repository):
        repository.model("identity", identity(batch=8)).model("spare", identity(batch=8))
        repository.model("words", identity([("INPUT0", "STRING", (-1,))], batch=8))
        repository.model("slow", identity(batch=8, parameters={"execute_delay_ms": "300"}))
        # Without an end to speak of: twenty answers per second.
        repository.model("square", square()).model("steady", square(CUSTOM_INFER_DELAY_NS=50_000_000))

    def play(self, dialect, scene):
        async def run():
            client = Dialect(*DIALECTS[dialect], self.addresses[dialect.startswith("http")])
            try:
                await getattr(self, scene)(client)
            finally:
                await client.close()
                unregister(self.server)
        asyncio.run(run())

    def test_no_module_is_left_out(self):
        self.assertEqual(set(public_modules()), MODULES | APART.keys())

    def test_nothing_is_left_out(self):
        """Each public method of each class, with each of its parameters, was used from here, or is excused and was not."""
        with Watch(LIBRARY, CLASSES, [tritonclient.utils, shm]) as watch:
            for dialect in DIALECTS:
                for scene in SCENES:
                    self.play(dialect, scene)
        everything = watch.everything()
        self.assertEqual(sorted(everything - watch.called - EXCUSED.keys()), [], "is not used")
        self.assertEqual(sorted(EXCUSED.keys() - everything), [], "is excused, but there is no such thing")
        self.assertEqual(sorted(EXCUSED.keys() & watch.called), [], "is excused, but used")


for dialect in DIALECTS:
    for scene in SCENES:
        setattr(ClientApi, f"test_{dialect}_{scene}", lambda self, entry=(dialect, scene): self.play(*entry))


if __name__ == "__main__":
    unittest.main()
