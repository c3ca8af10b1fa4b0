"""OpenTelemetry: traces as spans to a collector, and the contexts of clients, in and on to backends."""

import json
import os
import pathlib
import queue
import socket
import ssl
import sys
import unittest

import numpy
import tritonclient.grpc as grpcclient

import certificates
import server as servers
from case import IS_TRITON, KIND, ServerCase, conch_only, needs_library
from collector import SERVER_KIND, Collector, Relay, SpanTree, rotel
from repository import Repository, identity, tensors

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"

HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]
REQUEST = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]

TENSORS = tensors("input", [("INPUT0", "FP32", (-1,))]) + tensors("output", [("OUTPUT0", "FP32", (-1,))])
STEP = 'step {{ model_name: "{}" model_version: -1 input_map {{ key: "INPUT0" value: "{}" }} output_map {{ key: "OUTPUT0" value: "{}" }} }}'
ENSEMBLE = (f'platform: "ensemble"\nmax_batch_size: 4\n{TENSORS}ensemble_scheduling {{ {STEP.format("identity", "INPUT0", "middle")} '
            f'{STEP.format("other", "middle", "OUTPUT0")} }}\n')
TELLING = {"enable_custom_tracing": "true", "nested_span_count": "2"}


def models(repository):
    repository.model("identity", identity(batch=4)).model("other", identity(batch=4)).model("ensemble", ENSEMBLE)
    repository.model("telling", identity(batch=4, parameters=TELLING))
    repository.model("cached", identity(batch=4, extra="response_cache { enable: true }\n"))


def body(values=(1, 2), **more):
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}], **more}


def flags(collector, *settings, rate=1, delay=100):
    settings = ["mode=opentelemetry", "level=TIMESTAMPS", f"rate={rate}", f"opentelemetry,url={collector.url}",
                f"opentelemetry,bsp_schedule_delay={delay}", *settings]
    return tuple(f"--trace-config={setting}" for setting in settings)


class SpanCase(ServerCase):
    """A server that exports the spans of every request soon, to a collector that each test finds empty."""

    models = staticmethod(models)
    settings, more_flags = (), ()

    @classmethod
    def setUpClass(cls):
        cls.collector = Collector()
        cls.addClassCleanup(cls.collector.close)
        cls.flags = flags(cls.receiver(), *cls.settings) + tuple(cls.more_flags)
        super().setUpClass()

    @classmethod
    def receiver(cls):
        """To whom the server posts."""
        return cls.collector

    def setUp(self):
        self.collector.requests.clear()

    def ask(self, model="identity", expected=200, call="infer", request=None, headers=None, **more):
        status, reply = self.server.post_json(f"/v2/models/{model}/{call}", request or body(**more), headers=headers)
        self.assertEqual(status, expected, reply)
        return reply

    def spans(self, count):
        """The spans of one test, of which all must be there; what is true of each."""
        spans = self.collector.wait(count)
        self.assertEqual(len(spans), count, spans)
        for span in spans:
            self.assertEqual((span.kind, span.status), (SERVER_KIND, 0))
            self.assertLessEqual(span.start_ns, span.end_ns)
            self.assertEqual((len(span.trace_id), len(span.id)), (32, 16))
        return SpanTree(spans)

    def assert_model(self, tree, span, parent_number=0, request_id=None):
        """The span of a model, and that of its execution: what they hold, and that they begin and end with what is in them."""
        numbers = span.attributes["triton.trace_id"], span.attributes["triton.trace_parent_id"]
        expected = {"triton.model_name": span.name, "triton.model_version": 1, "triton.trace_id": numbers[0],
                    "triton.trace_parent_id": parent_number}
        if request_id:
            expected["triton.request_id"] = request_id
        self.assertEqual(span.attributes, expected)
        self.assertGreater(numbers[0], parent_number)
        compute = [child for child in tree.children(span) if child.name == "compute"]
        for part in (span, *compute):
            times = [time for _, time in part.events]
            self.assertEqual((part.start_ns, part.end_ns), (min(times), max(times)))
            self.assertEqual(part.trace_id, span.trace_id)
        for part in compute:
            self.assertEqual((part.event_names, part.attributes), (COMPUTE, {}))

    def grpc(self, headers=None, stream=False, ids=("",)):
        tensor = grpcclient.InferInput("INPUT0", [1, 2], "FP32").set_data_from_numpy(numpy.ones((1, 2), numpy.float32))
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            if not stream:
                client.infer("identity", [tensor], request_id=ids[0], headers=headers)
                return
            results = queue.Queue()
            client.start_stream(lambda result, error: results.put(error), headers=headers)
            for request_id in ids:
                client.async_stream_infer("identity", [tensor], request_id=request_id)
            self.assertEqual([results.get(timeout=30) for _ in ids], [None] * len(ids))
            client.stop_stream()


PLAIN = ("InferRequest", [("identity", [("compute", [])])])


@needs_library("identity")
class Spans(SpanCase):
    settings = ("count=-1", "opentelemetry,resource=a=b", "opentelemetry,resource=service.name=mine")
    more_flags = ("--cache-config=local,size=1048576",) if not IS_TRITON else ()
    content_type = "application/json" if IS_TRITON else "application/x-protobuf"

    def test_a_request_over_http(self):
        self.ask(id="re\"q")
        tree = self.spans(3)
        root, = tree.roots
        self.assertEqual(tree.shape(root), PLAIN)
        self.assertEqual((root.parent_id, root.attributes, root.event_names, root.trace_state), ("", {}, HTTP, ""))
        model = tree.find("identity")
        self.assertEqual(model.event_names, REQUEST)
        self.assert_model(tree, model, request_id="re\"q")
        path, kind, _ = self.collector.requests[0]
        self.assertEqual((path, kind), ("/v1/traces", self.content_type))
        self.assertEqual(self.collector.scopes, {"triton-server"})
        resource = self.collector.resources[0]
        self.assertEqual((resource["service.name"], resource["a"]), ("mine", "b"))
        self.assertEqual({key for key in resource if key.startswith("telemetry.sdk.")},
                         {"telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version"})

    def test_times_are_those_of_the_wall_clock_and_follow_each_other(self):
        self.ask()
        tree = self.spans(3)
        root, model, compute = (tree.find(name) for name in ("InferRequest", "identity", "compute"))
        self.assertEqual([time for _, time in root.events], sorted(time for _, time in root.events))
        self.assertLessEqual(root.start_ns, model.start_ns)
        self.assertLessEqual(model.start_ns, compute.start_ns)
        self.assertLessEqual(compute.end_ns, model.end_ns)
        # Within the life of this process, so not on another clock.
        born = pathlib.Path("/proc/self").stat().st_ctime_ns
        self.assertLess(born - 3_600 * 10**9, root.start_ns)
        self.assertLess(root.end_ns, born + 24 * 3_600 * 10**9)

    def test_a_request_over_grpc(self):
        self.grpc(ids=["g"])
        tree = self.spans(3)
        root, = tree.roots
        self.assertEqual((tree.shape(root), root.event_names, root.parent_id), (PLAIN, GRPC, ""))
        self.assert_model(tree, tree.find("identity"), request_id="g")

    def test_requests_of_a_stream_have_its_context(self):
        self.grpc(headers={"traceparent": PARENT}, stream=True, ids=["s0", "s1"])
        tree = self.spans(6)
        self.assertEqual([tree.shape(root) for root in tree.roots], [PLAIN, PLAIN])
        for root in tree.roots:
            self.assertEqual((root.trace_id, root.parent_id, root.event_names), (TRACE_ID, SPAN_ID, GRPC))
        ids = {span.attributes["triton.request_id"] for span in tree.spans if span.name == "identity"}
        self.assertEqual(ids, {"s0", "s1"})

    def test_generate(self):
        for call in ("generate", "generate_stream"):
            with self.subTest(call):
                self.setUp()
                self.ask(call=call, request={"INPUT0": [1.0, 2.0]}, headers={"traceparent": PARENT})
                tree = self.spans(3)
                root, = tree.roots
                self.assertEqual((tree.shape(root), root.event_names, root.parent_id), (PLAIN, HTTP, SPAN_ID))

    def test_steps_of_an_ensemble_are_below_it(self):
        self.ask("ensemble", id="e")
        tree = self.spans(6)
        root, = tree.roots
        steps = [("identity", [("compute", [])]), ("other", [("compute", [])])]
        self.assertEqual(tree.shape(root), ("InferRequest", [("ensemble", steps)]))
        ensemble = tree.find("ensemble")
        self.assertEqual(ensemble.event_names, REQUEST)
        self.assert_model(tree, ensemble, request_id="e")
        for name in ("identity", "other"):
            self.assert_model(tree, tree.find(name), ensemble.attributes["triton.trace_id"], "e")

    def test_activities_of_a_backend_are_spans_inside_each_other(self):
        self.ask("telling")
        tree = self.spans(6)
        root, = tree.roots
        inner = ("CUSTOM_ACTIVITY0", [("CUSTOM_ACTIVITY1", [])])
        self.assertEqual(tree.shape(root), ("InferRequest", [("telling", [("compute", []), ("CUSTOM_ACTIVITY", []), inner])]))
        self.assertEqual(tree.find("telling").event_names, ["REQUEST_START", "QUEUE_START", "CUSTOM_SINGLE_ACTIVITY", "REQUEST_END"])
        for name, single in (("CUSTOM_ACTIVITY", []), ("CUSTOM_ACTIVITY0", ["CUSTOM_SINGLE_ACTIVITY"]), ("CUSTOM_ACTIVITY1", ["CUSTOM_SINGLE_ACTIVITY"])):
            span = tree.find(name)
            self.assertEqual(span.event_names, [f"{name}_START", *single, f"{name}_END"])
            self.assertEqual((span.start_ns, span.end_ns), (span.events[0][1], span.events[-1][1]))
            self.assertEqual(span.attributes, {})

    @conch_only
    def test_what_the_cache_answers_has_no_execution(self):
        self.ask("cached")
        self.assertEqual(self.spans(3).shape(self.spans(3).roots[0]), ("InferRequest", [("cached", [("compute", [])])]))
        self.setUp()
        self.ask("cached")
        tree = self.spans(2)
        self.assertEqual(tree.shape(tree.roots[0]), ("InferRequest", [("cached", [])]))
        self.assertEqual(tree.find("InferRequest").event_names, HTTP)

    def test_a_body_that_cannot_be_read(self):
        self.ask(request="{", expected=500)
        root, = self.spans(1).spans
        self.assertEqual((root.name, root.event_names), ("InferRequest", ["HTTP_RECV_START", "HTTP_RECV_END"]))

    @conch_only
    def test_a_request_that_is_refused(self):
        """Upstream keeps its trace for ever."""
        wrong = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
        self.ask(request=wrong, expected=400)
        root, = self.spans(1).spans
        self.assertEqual((root.name, root.event_names), ("InferRequest", ["HTTP_RECV_START", "HTTP_RECV_END"]))

    def test_the_context_of_a_client(self):
        """Whether the client samples its trace does not matter."""
        for flag in ("00", "01"):
            self.setUp()
            self.ask(headers={"traceparent": PARENT[:-2] + flag, "tracestate": "x=y,z=1"})
            tree = self.spans(3)
            root, = tree.roots
            self.assertEqual((tree.shape(root), root.parent_id), (PLAIN, SPAN_ID))
            self.assertEqual({(span.trace_id, span.trace_state) for span in tree.spans}, {(TRACE_ID, "x=y,z=1")})

    def test_the_context_of_a_client_over_grpc(self):
        """Upstream drops `tracestate` there."""
        self.grpc(headers={"traceparent": PARENT, "tracestate": "x=y"})
        tree = self.spans(3)
        root, = tree.roots
        self.assertEqual((tree.shape(root), root.parent_id), (PLAIN, SPAN_ID))
        self.assertEqual({(span.trace_id, span.trace_state) for span in tree.spans}, {(TRACE_ID, "" if IS_TRITON else "x=y")})

    def test_a_malformed_context_is_none(self):
        for parent in ("00-0af-b7-01", "ff" + PARENT[2:], PARENT + "-more", PARENT[:-2] + "zz", PARENT.replace(TRACE_ID, "0" * 32)):
            self.setUp()
            self.ask(headers={"traceparent": parent, "tracestate": "x=y"})
            root, = self.spans(3).roots
            self.assertNotEqual(root.trace_id, TRACE_ID, parent)
            self.assertEqual((root.parent_id, root.trace_state), ("", ""), parent)

    def test_requests_have_traces_of_their_own(self):
        self.ask()
        self.ask()
        tree = self.spans(6)
        first, second = tree.roots
        self.assertNotEqual(first.trace_id, second.trace_id)
        self.assertEqual(sorted(span.trace_id for span in tree.spans), sorted([first.trace_id, second.trace_id] * 3))


@unittest.skipUnless(rotel(), "no Rotel here: its package is not installed, or not for this Python")
class ByRotel(Spans):
    """The same by way of a real collector: it takes what the server posts, and passes on what it understood."""

    content_type = "application/x-protobuf"

    @classmethod
    def receiver(cls):
        relay = Relay(cls.collector, [servers.free_port(), servers.free_port()])
        cls.addClassCleanup(relay.close)
        return relay


@needs_library("identity")
class Settings(SpanCase):
    """What is sampled, and the trace extension. Each test leaves the settings as they were."""

    settings = ("rate=1000", "opentelemetry,resource=a=b", "opentelemetry,resource=c=d=e", "opentelemetry,bsp_max_export_batch_size=50")

    @property
    def shown(self):
        return ('"trace_mode":"opentelemetry","url":"' + self.collector.url + '","bsp_schedule_delay":"100","resource":"a=b","resource":"c=d=e",'
                '"bsp_max_export_batch_size":"50","bsp_max_queue_size":"2048"}')

    def set(self, expected=200, model="", **changes):
        path = f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"
        status, reply = self.server.post_json(path, changes)
        self.assertEqual(status, expected, reply)
        return reply.decode()

    def setUp(self):
        super().setUp()
        self.set(trace_level=None, trace_rate=None, trace_count=None)

    def test_shape_of_an_answer(self):
        text = self.server.get("/v2/trace/setting")[1].decode()
        self.assertEqual(text, '{"trace_level":["TIMESTAMPS"],"trace_rate":"1000","trace_count":"-1",' + self.shown)
        with grpcclient.InferenceServerClient(self.server.grpc) as client:
            shown = client.get_trace_settings()
        self.assertEqual({name: list(value.value) for name, value in shown.settings.items()}, {
            "trace_level": ["TIMESTAMPS"], "trace_rate": ["1000"], "trace_count": ["-1"], "trace_mode": ["opentelemetry"],
            "url": [self.collector.url], "resource": ["a=b", "c=d=e"], "bsp_max_export_batch_size": ["50"], "bsp_schedule_delay": ["100"],
            "bsp_max_queue_size": ["2048"]})

    def test_changes(self):
        text = self.set(trace_level=["TIMESTAMPS", "TENSORS"], trace_rate="5", trace_count="7", trace_mode="triton", url="x", log_frequency="3")
        self.assertEqual(text, '{"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"5","trace_count":"7",' + self.shown)
        refusal = self.set(trace_file="x", expected=501)
        self.assertEqual(json.loads(refusal)["error"], "trace file location can not be updated through network protocol")
        refusal = self.set(trace_rate="0", expected=400)
        self.assertEqual(json.loads(refusal)["error"], "Attempting to set invalid trace setting :sample rate must be non-zero")

    def test_a_client_s_trace_is_traced_though_others_are_not(self):
        self.set(trace_count="1")
        self.ask()
        for _ in range(2):
            self.ask(headers={"traceparent": PARENT})
        tree = self.spans(6)
        self.assertEqual([root.parent_id for root in tree.roots], [SPAN_ID] * 2)
        self.assertIn('"trace_count":"1"', self.server.get("/v2/trace/setting")[1].decode())

    def test_a_client_s_trace_is_counted_where_it_would_have_been_chosen(self):
        self.set(trace_rate="1", trace_count="1")
        self.ask(headers={"traceparent": PARENT})
        self.ask()
        self.ask(headers={"traceparent": PARENT})
        tree = self.spans(6)
        self.assertEqual([root.parent_id for root in tree.roots], [SPAN_ID] * 2)
        self.assertIn('"trace_count":"0"', self.server.get("/v2/trace/setting")[1].decode())

    def test_nothing_is_traced_while_tracing_is_off(self):
        self.set(trace_level=["OFF"])
        self.ask(headers={"traceparent": PARENT})
        self.set(trace_level=None)
        self.set(model="identity", trace_level=["OFF"])
        self.ask(headers={"traceparent": PARENT})
        self.ask("other", headers={"traceparent": PARENT})
        self.set(model="identity", trace_level=None)
        self.assertEqual({span.name for span in self.spans(3).spans}, {"InferRequest", "other", "compute"})

    def test_tensors_are_no_spans(self):
        self.set(trace_level=["TENSORS"])
        self.ask(headers={"traceparent": PARENT})
        root, = self.spans(1).spans
        self.assertEqual((root.name, root.events, root.parent_id), ("InferRequest", [], SPAN_ID))


MODEL = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        trace = request.trace()
        for model in CALLS:
            call = pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor], trace=trace)
            if call.exec().has_error():
                raise pb_utils.TritonModelException("the call failed")
        text = numpy.array([[str(trace.get_context()).encode()]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)])
'''
TEXT = ('backend: "python"\nmax_batch_size: 4\n' + tensors("input", [("INPUT0", "FP32", (-1,))]) + tensors("output", [("OUTPUT0", "STRING", (-1,))])
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n")


@needs_library("identity")
@needs_library("python")
class Python(SpanCase):
    """Models in Python, which see the context of their request and hand it on."""

    settings = ("rate=1000",)
    environment = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

    @staticmethod
    def models(repository):
        models(repository)
        for name, calls in (("context", []), ("caller", ["identity", "context"])):
            repository.model(name, TEXT, files={"1/model.py": f"CALLS = {calls}\n{MODEL}".encode()})

    def context(self, model, headers):
        reply = json.loads(self.ask(model, headers=headers))
        return reply["outputs"][0]["data"][0]

    def test_a_model_sees_its_own_span(self):
        text = self.context("context", {"traceparent": PARENT, "tracestate": "x=y,z=1"})
        model = self.spans(3).find("context")
        self.assertEqual(json.loads(text), {"traceparent": f"00-{TRACE_ID}-{model.id}-01", "tracestate": "x=y,z=1"})
        self.setUp()
        text = self.context("context", {"traceparent": PARENT})
        model = self.spans(3).find("context")
        self.assertEqual(text, f'{{"traceparent":"00-{TRACE_ID}-{model.id}-01"}}')

    def test_a_request_that_is_not_traced_has_none(self):
        self.assertEqual(self.context("context", None), "None")

    def test_calls_are_below_their_model(self):
        self.context("caller", {"traceparent": PARENT})
        tree = self.spans(7)
        root, = tree.roots
        inner = [("compute", []), ("context", [("compute", [])]), ("identity", [("compute", [])])]
        name, ((model, children),) = tree.shape(root)
        self.assertEqual((name, model, sorted(children)), ("InferRequest", "caller", sorted(inner)))
        caller = tree.find("caller")
        for called in ("identity", "context"):
            self.assert_model(tree, tree.find(called), caller.attributes["triton.trace_id"])
        self.assertEqual({span.trace_id for span in tree.spans}, {TRACE_ID})


@needs_library("identity")
class Ends(unittest.TestCase):
    """Servers whose collector is slow, gone or refuses: no request and no end may wait for it."""

    def setUp(self):
        self.repository = Repository()
        self.addCleanup(self.repository.close)
        models(self.repository)

    def collector(self, *statuses):
        collector = Collector(statuses)
        self.addCleanup(collector.close)
        return collector

    def server(self, *given, environment=None):
        return servers.Server(self.repository.path, *given, kind=KIND, environment=environment)

    def ask(self, server, count=1, headers=None):
        for _ in range(count):
            status, reply = server.post_json("/v2/models/identity/infer", body(), headers=headers)
            self.assertEqual(status, 200, reply)

    def test_spans_that_wait_are_exported_at_the_end(self):
        collector = self.collector()
        with self.server(*flags(collector, delay=3_600_000)) as server:
            self.ask(server, 3)
        self.assertEqual(len(SpanTree(collector.wait(9)).roots), 3)

    def test_variables_of_opentelemetry(self):
        variables = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BSP_MAX_QUEUE_SIZE": "1000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "40"}
        collector = self.collector()
        given = [f"--trace-config={setting}" for setting in ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={collector.url}",
                                                             "opentelemetry,bsp_max_export_batch_size=2")]
        with self.server(*given, environment=variables) as server:
            shown = server.get_json("/v2/trace/setting")
            self.assertEqual([shown[f"bsp_{name}"] for name in ("schedule_delay", "max_queue_size", "max_export_batch_size")], ["50", "1000", "2"])
            self.ask(server, 3)
            SpanTree(collector.wait(9))
        sizes = [len(scope["spans"]) for _, _, message in collector.requests for part in message["resourceSpans"] for scope in part["scopeSpans"]]
        self.assertLessEqual(max(sizes), 2)

    def test_rate_0_traces_what_clients_trace(self):
        collector = self.collector()
        with self.server(*flags(collector, rate=0)) as server:
            self.ask(server, 2)
            self.ask(server, headers={"traceparent": PARENT})
        self.assertEqual([root.parent_id for root in SpanTree(collector.wait(3)).roots], [SPAN_ID])

    @conch_only
    def test_a_full_queue_costs_spans_and_no_request(self):
        collector = self.collector()
        collector.answers.clear()
        with self.server(*flags(collector, "opentelemetry,bsp_max_queue_size=9", "opentelemetry,bsp_max_export_batch_size=3")) as server:
            self.ask(server, 30)
            server.wait_for_text("spans come faster than the collector takes them")
            collector.answers.set()
            spans = SpanTree(collector.wait(3)).spans
            # Traces are there as a whole or not at all.
            self.assertEqual(len(spans) % 3, 0)

    @conch_only
    def test_a_collector_that_is_not_there(self):
        collector = self.collector()
        collector.close()
        with self.server(*flags(collector, delay=50)) as server:
            self.ask(server, 3)
            server.wait_for_line("failed to export spans to http://127.0.0.1:.*: cannot connect: .*refused", 30)
            self.ask(server, 3)
        self.assertIn("spans in all were not exported", server.output)

    @conch_only
    def test_a_collector_that_never_answers_does_not_keep_the_server(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            class Silent:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
            with self.server(*flags(Silent, delay=50)) as server:
                self.ask(server, 3)
                connection, _ = listener.accept()
                with connection:
                    self.ask(server, 3)
                    self.assertEqual(server.terminate(), 0)
        self.assertIn("the last spans are not exported: the collector takes too long", server.output)

    @conch_only
    def test_a_collector_that_is_busy_gets_them_again(self):
        collector = self.collector(503, 429)
        with self.server(*flags(collector)) as server:
            self.ask(server)
            SpanTree(collector.wait(3))
            self.assertEqual(collector.refused_count, 2)
        self.assertNotIn("failed to export", server.output)

    @conch_only
    def test_a_collector_that_refuses_does_not_get_them_again(self):
        collector = self.collector(400)
        with self.server(*flags(collector, delay=50)) as server:
            self.ask(server)
            server.wait_for_text(f"failed to export spans to {collector.url}: answered with status 400; 3 are lost until now")
            self.ask(server, headers={"traceparent": PARENT})
            server.wait_for_text(f"spans are exported to {collector.url} again; 3 were lost")
        self.assertEqual([root.parent_id for root in SpanTree(collector.wait(3)).roots], [SPAN_ID])

    def test_headers_and_attributes_of_the_environment(self):
        variables = {"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a,authorization=token", "OTEL_RESOURCE_ATTRIBUTES": "zone=b,service.name=c,rack=d"}
        collector = self.collector()
        with self.server(*flags(collector, "opentelemetry,resource=rack=e"), environment=variables) as server:
            self.ask(server)
            collector.wait(3)
            self.assertNotIn("token", json.dumps(server.get_json("/v2/trace/setting")))
        headers, resource = collector.headers[0], collector.resources[0]
        self.assertEqual((headers["x-tenant"], headers["authorization"]), ("a", "token"))
        # Its own name is the server's, as long as no setting says otherwise.
        self.assertEqual([resource[key] for key in ("zone", "service.name", "rack")], ["b", "triton-inference-server", "e"])

    @conch_only
    def test_by_https(self):
        files = certificates.Certificates()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.server, files.server_key)
        collector = Collector(context=context)
        self.addCleanup(collector.close)
        for variable in ("OTEL_EXPORTER_OTLP_CERTIFICATE", "SSL_CERT_FILE"):
            with self.server(*flags(collector), environment={variable: str(files.root)}) as server:
                self.ask(server)
                collector.wait(3)
                collector.requests.clear()
            self.assertNotIn("failed to export", server.output)
        # A collector that others vouch for.
        with self.server(*flags(collector), environment={"OTEL_EXPORTER_OTLP_CERTIFICATE": str(files.stranger)}) as server:
            self.ask(server)
            server.wait_for_line("failed to export spans to https://127.0.0.1:.*: .*UnknownIssuer")
        self.assertEqual(collector.requests, [])
        with self.assertRaises(servers.StartFailed) as caught:
            self.server(*flags(collector), environment={"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nonexistent/roots.pem"})
        self.assertIn("/nonexistent/roots.pem", caught.exception.output)

    @conch_only
    def test_settings_that_mean_nothing_are_refused_at_the_start(self):
        for setting, expected in (("url=ftp://localhost/v1/traces", "its scheme must be http or https"), ("bsp_max_queue_size=abc", "Got abc"),
                                  ("bsp_schedule_delay=0", "bsp_schedule_delay must be at least 1")):
            with self.assertRaises(servers.StartFailed) as caught:
                self.server("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,{setting}")
            self.assertEqual(caught.exception.code, 1)
            self.assertIn(expected, caught.exception.output)
