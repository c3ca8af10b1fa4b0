"""Latencies and gauges of the metrics page: upstream's summaries and its histogram of first responses, conch's own histograms, gauges and
counts of refusals, and the page on the HTTP port."""

import collections
import concurrent.futures
import json
import math
import socket
import unittest

import server as servers
from case import IS_TRITON, ServerCase, conch_only, needs_library
from exposition import check_by_promtool, check_families, families, needs_promtool
from repository import Repository, identity
from waiting import until, until_equal

CACHES = servers.PEERS / "abi/caches"
# Upstream has its local cache in a library only.
CACHE = ("--cache-config=local,size=1048576", f"--cache-directory={CACHES if IS_TRITON else '/nonexistent'}")
ENABLED = "response_cache { enable: true }\n"
STAGES = ("request", "queue", "compute_input", "compute_infer", "compute_output")


def page(server, port="metrics"):
    status, body = server.get("/metrics", port=port)
    assert status == 200, status
    return body.decode()


class PageCase(ServerCase):
    """Requests, and what the page says afterwards."""

    def ask(self, model, size=2, status=200, value=1):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [size, 1], "data": [value] * size}]}
        got, _, reply = self.infer(body, model=model)
        self.assertEqual(got, status, reply)

    def family(self, name, model, server=None):
        """The type of a family and the samples of one model: {name without the family's: {the label that tells lines apart: value}}."""
        family = families(page(server or self.server)).get(name)
        if family is None:
            return None, {}
        rows = collections.defaultdict(dict)
        for sample, labels, value in family.samples:
            if labels.pop("model", None) == model:
                self.assertEqual(labels.pop("version"), "1")
                self.assertLessEqual(len(labels), 1, labels)
                rows[sample[len(name):]][next(iter(labels.values()), "")] = value
        return family.kind, dict(rows)


class Summaries(PageCase):
    """In both servers."""

    flags = ("--metrics-config=summary_latencies=true", *CACHE)

    @staticmethod
    def models(repository):
        for name in ("plain", "idle"):
            repository.model(name, identity(batch=8))
        repository.model("cached", identity(batch=8, extra=ENABLED))
        repository.model("slow", identity(batch=8, parameters={"execute_delay_ms": "50"}))

    def test_lines_have_upstreams_order(self):
        name = "nv_inference_queue_summary_us"
        lines = [line for line in page(self.server).splitlines() if name in line and (line.startswith("#") or 'model="idle"' in line)]
        labels = 'model="idle",version="1"'
        self.assertEqual(lines, [
            f"# HELP {name} Summary of inference queuing duration in microseconds (includes cached requests)", f"# TYPE {name} summary",
            f"{name}_count{{{labels}}} 0", f"{name}_sum{{{labels}}} 0",
            *(f'{name}{{{labels},quantile="{quantile}"}} Nan' for quantile in ("0.5", "0.9", "0.95", "0.99", "0.999"))])

    def test_each_stage_has_one(self):
        for _ in range(7):
            self.ask("plain")
        for stage in STAGES:
            with self.subTest(stage):
                # The statistics of a request may follow its answer.
                until_equal(lambda: self.family(f"nv_inference_{stage}_summary_us", "plain")[1]["_count"][""], 7, f"the count of {stage}")
                kind, rows = self.family(f"nv_inference_{stage}_summary_us", "plain")
                self.assertEqual(kind, "summary")
                quantiles = list(rows[""].values())
                self.assertEqual(quantiles, sorted(quantiles))
                self.assertLessEqual(quantiles[-1], rows["_sum"][""] * 1.01)
        counters = self.server.metrics()
        for stage in STAGES:
            counter = counters[f'nv_inference_{stage}_duration_us{{model="plain",version="1"}}']
            total = self.family(f"nv_inference_{stage}_summary_us", "plain")[1]["_sum"][""]
            # Each of the seven durations is cut to whole microseconds, of the counter's only the sum, or each as well.
            self.assertTrue(0 <= counter - total <= 7, (stage, counter, total))

    def test_values_are_those_of_the_requests(self):
        for _ in range(4):
            self.ask("slow")
        until_equal(lambda: self.family("nv_inference_compute_infer_summary_us", "slow")[1]["_count"][""], 4, "the count")
        compute, request = ([value for value in self.family(f"nv_inference_{stage}_summary_us", "slow")[1][""].values()]
                            for stage in ("compute_infer", "request"))
        # The delay is the backend's own, within its execution; a busy machine makes it longer.
        self.assertGreaterEqual(request[0], 49_000)
        self.assertGreaterEqual(request[-1] * 1.01, compute[-1])

    def test_cached_models(self):
        for _ in range(3):
            self.ask("cached", value=3)
        until_equal(lambda: self.family("nv_cache_hit_summary_per_model", "cached")[1]["_count"][""], 2, "the count of hits")
        counts = {name: self.family(name, "cached")[1].get("_count", {}).get("") for name in (
            "nv_cache_miss_summary_per_model", "nv_inference_queue_summary_us", "nv_inference_compute_infer_summary_us",
            "nv_inference_request_summary_us")}
        self.assertEqual(list(counts.values()), [1, 3, 1, None])
        self.assertEqual(self.family("nv_cache_hit_summary_per_model", "plain"), ("summary", {}))


class Quantiles(PageCase):
    """In both servers: those that are of use."""

    flags = ("--metrics-config=summary_latencies=true", "--metrics-config=summary_quantiles=0.25:0.05,nonsense,0.75:0.01",
             "--metrics-config=counter_latencies=false")

    @staticmethod
    def models(repository):
        repository.model("plain", identity(batch=8))

    def test_quantiles(self):
        self.assertEqual(list(self.family("nv_inference_queue_summary_us", "plain")[1][""]), ["0.25", "0.75"])
        self.server.wait_for_text("Invalid option: [nonsense]. No ':' delimiter found. Expected format is <quantile>:<error>")
        self.assertNotIn("nv_inference_request_duration_us", page(self.server))


class Off(PageCase):
    """In both servers: nothing of it without the flags."""

    @staticmethod
    def models(repository):
        repository.model("plain", identity(batch=8))

    def test_neither_summaries_nor_first_responses(self):
        self.ask("plain")
        for word in ("_summary_", "first_response"):
            self.assertNotIn(word, page(self.server))


def metric_control(family, *buckets):
    return (f'metric_control {{ metric_identifier {{ family: "{family}" }} '
            f'histogram_options {{ buckets: [ {", ".join(map(str, buckets))} ] }} }}\n')


@conch_only
class FirstResponses(PageCase):
    """Newer than the release that the suite compares with."""

    FAMILY = "nv_inference_first_response_histogram_ms"
    flags = ("--metrics-config=histogram_latencies=true", "--exit-on-error=false", "--strict-readiness=false")

    @staticmethod
    def models(repository):
        name = FirstResponses.FAMILY
        repository.model("plain", identity(batch=8))
        repository.model("chosen", identity(batch=8, parameters={"execute_delay_ms": "60"}, extra="model_metrics {\n" + metric_control(
            "other", 1) + metric_control(name, 0.5, 50, 3600000) + "}\n"))
        repository.model("wrong", identity(extra="model_metrics {\n" + metric_control(name, 5, 5) + "}\n"))
        repository.model("hasty", identity(parameters={"execute_delay_ms": "300"}, batch=8, extra="dynamic_batching { "
                         "default_queue_policy { default_timeout_microseconds: 50000 } }\n"))

    def test_buckets(self):
        self.assertEqual(self.family(self.FAMILY, "plain"), ("histogram", {
            "_count": {"": 0}, "_sum": {"": 0}, "_bucket": {"100": 0, "500": 0, "2000": 0, "5000": 0, "+Inf": 0}}))
        for _ in range(3):
            self.ask("chosen")
        _, rows = self.family(self.FAMILY, "chosen")
        self.assertEqual((rows["_count"], rows["_bucket"]), ({"": 3}, {"0.5": 0, "50": 0, "3600000": 3, "+Inf": 3}))
        self.assertGreaterEqual(rows["_sum"][""], 3 * 59)
        self.server.wait_for_text("Metric family 'other' in 'metric_identifier' is not a customizable metric in Triton core.")

    def test_buckets_that_no_histogram_can_have(self):
        self.assertEqual(self.server.get("/v2/models/wrong/ready")[0], 404)
        self.server.wait_for_match("failed to load 'wrong' version 1: .*must be in strictly increasing order")

    def test_refusals_are_responses(self):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [8, 1], "data": [1] * 8}]}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            got = [answer[0] for answer in pool.map(lambda _: self.infer(body, model="hasty"), range(4))]
        self.assertEqual(set(got), {200, 503})
        self.assertEqual(self.family(self.FAMILY, "hasty")[1]["_count"], {"": 4})

    @needs_library("repeat")
    def test_one_per_request_of_a_decoupled_model(self):
        config = ('backend: "repeat"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
                  'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }, '
                  '{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n'
                  'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n')
        with Repository().model("repeat", config) as repository, servers.Server(repository, self.flags[0]) as server:
            status, _, reply = server.request("POST", "/v2/models/repeat/generate_stream", json.dumps(
                {"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": 0}))
            self.assertEqual((status, reply.count(b"data:")), (200, 3), reply)
            self.assertEqual(self.family(self.FAMILY, "repeat", server)[1]["_count"], {"": 1})


@conch_only
class Histograms(PageCase):
    STAGES = ("queue", "compute", "request")

    @staticmethod
    def models(repository):
        repository.model("plain", identity(batch=8))
        repository.model("slow", identity(batch=8, parameters={"execute_delay_ms": "50"}))
        repository.model("idle", identity(batch=8))
        repository.model("reloaded", identity(batch=8))

    flags = ("--model-control-mode=explicit", "--load-model=*")

    def stage(self, stage, model):
        return self.family(f"conch_inference_{stage}_duration_seconds", model)

    def test_unused_models_have_none(self):
        self.ask("plain")
        self.assertEqual(self.stage("queue", "idle")[1], {})

    def test_stages(self):
        for _ in range(5):
            self.ask("slow")
        nv = self.server.metrics()
        for stage in self.STAGES:
            kind, rows = self.stage(stage, "slow")
            self.assertEqual(kind, "histogram")
            buckets = list(rows["_bucket"].values())
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual((buckets[-1], rows["_count"][""]), (5, 5))
            parts = ("compute_input", "compute_infer", "compute_output") if stage == "compute" else (stage,)
            counters = sum(nv[f'nv_inference_{part}_duration_us{{model="slow",version="1"}}'] for part in parts)
            self.assertAlmostEqual(rows["_sum"][""], counters / 1e6, delta=3e-6)
        # Nothing ended before the backend's delay was over.
        _, rows = self.stage("request", "slow")
        self.assertEqual(rows["_bucket"]["0.047"], 0)
        self.assertGreaterEqual(rows["_sum"][""], 5 * 0.049)

    def test_bounds_have_two_significant_digits(self):
        self.ask("plain")
        bounds = [list(self.stage(stage, "plain")[1]["_bucket"]) for stage in self.STAGES]
        self.assertTrue(all(other == bounds[0] for other in bounds))
        self.assertEqual(bounds[0][-1], "+Inf")
        numbers = [float(bound) for bound in bounds[0][:-1]]
        self.assertEqual((numbers[0], numbers[-1], len(numbers)), (1e-5, 91, 168))
        for low, high in zip(numbers, numbers[1:]):
            self.assertTrue(1.05 < high / low < 1.17, (low, high))
        for number in numbers:
            self.assertEqual(float(f"{number:.1e}"), number)

    def test_batch_sizes(self):
        before = self.family("conch_inference_batch_size", "plain")[1]
        before = before.get("_bucket", collections.Counter())
        for size in (1, 3, 3, 8):
            self.ask("plain", size)
        kind, rows = self.family("conch_inference_batch_size", "plain")
        self.assertEqual(kind, "histogram")
        more = {bound: count - before.get(bound, 0) for bound, count in rows["_bucket"].items()}
        self.assertEqual(more, {"1": 1, "2": 1, "4": 3, **{str(2 ** power): 4 for power in range(3, 11)}, "+Inf": 4})

    def test_a_reload_goes_on(self):
        for count in (2, 4):
            for _ in range(2):
                self.ask("reloaded")
            self.assertEqual(self.stage("queue", "reloaded")[1]["_count"], {"": count})
            self.assertEqual(self.family("conch_inference_batch_size", "reloaded")[1]["_count"], {"": count})
            (self.repository.path / "reloaded" / "config.pbtxt").write_text(
                identity(batch=8, parameters={"execute_delay_ms": "1"}))
            self.assertEqual(self.server.post_json("/v2/repository/models/reloaded/load", {})[0], 200)

    def test_off(self):
        with Repository().model("plain", identity(batch=8)) as repository, servers.Server(
                repository, "--metrics-config=conch_histograms=false") as server:
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
            self.assertEqual(server.post_json("/v2/models/plain/infer", body)[0], 200)
            self.assertEqual([name for name, family in families(page(server)).items() if family.kind == "histogram"], [])


@conch_only
class Usage(PageCase):
    @staticmethod
    def models(repository):
        slow = {"execute_delay_ms": "700"}
        repository.model("pair", identity(batch=1, count=2, parameters=slow))
        narrow = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
        repository.model("narrow", identity(parameters=slow, batch=1, extra=narrow))
        hasty = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 50000 } }\n"
        repository.model("hasty", identity(parameters=slow, batch=1, extra=hasty))
        limited = {**slow, "CONCH_REQUESTS_MAX": "1"}
        repository.model("limited", identity(parameters=limited, batch=1))
        repository.model("sequences", identity(batch=4, extra="sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"))

    flags = ("--limit-wait-ms=0",)

    def gauge(self, name, model):
        return self.family(f"conch_{name}", model)[1].get("", {}).get("")

    def gauges(self, model):
        return [self.gauge(name, model) for name in (
            "inference_in_flight_requests", "inference_pending_requests", "model_instances", "model_instances_busy")]

    def refused(self, model):
        return {reason: count for reason, count in self.family("conch_inference_refused_total", model)[1][""].items() if count}

    def statuses(self, model, count):
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return collections.Counter(answer[0] for answer in pool.map(lambda _: self.infer(body, model=model), range(count)))

    def test_requests_and_instances(self):
        self.assertEqual(self.gauges("pair"), [0, 0, 2, 0])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answers = pool.submit(self.statuses, "pair", 3)
            until_equal(lambda: self.gauges("pair"), [3, 1, 2, 2], "three requests at two instances")
            self.assertEqual(answers.result(), {200: 3})
        until_equal(lambda: self.gauges("pair"), [0, 0, 2, 0], "rest")

    def test_a_full_queue(self):
        got = self.statuses("narrow", 5)
        self.assertEqual(set(got), {200, 503})
        self.assertEqual(self.refused("narrow"), {"queue_full": got[503]})

    def test_timeouts(self):
        got = self.statuses("hasty", 4)
        self.assertEqual(set(got), {200, 503})
        self.assertEqual(self.refused("hasty"), {"timeout": got[503]})

    def test_limits(self):
        got = self.statuses("limited", 4)
        self.assertEqual(set(got), {200, 429})
        self.assertEqual(self.refused("limited"), {"model_limit": got[429]})

    def test_slots(self):
        def slots():
            return self.gauge("model_sequence_slots_used", "sequences"), self.gauge("model_sequence_slots", "sequences")

        def ask(**parameters):
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
                    "parameters": {"sequence_id": 5, "sequence_start": False, "sequence_end": False, **parameters}}
            status, _, reply = self.infer(body, model="sequences")
            self.assertEqual(status, 200, reply)
        self.assertEqual(slots(), (0, 4))
        ask(sequence_start=True)
        self.assertEqual(slots(), (1, 4))
        ask(sequence_end=True)
        until_equal(slots, (0, 4), "a free slot")
        self.assertIsNone(self.gauge("model_sequence_slots", "pair"))

    def connections(self, family="conch_connections"):
        return {labels["protocol"]: value for _, labels, value in families(page(self.server))[family].samples}

    def test_connections(self):
        with socket.create_connection(("127.0.0.1", self.server.ports["http"])), \
                socket.create_connection(("127.0.0.1", self.server.ports["grpc"])):
            # That of the look itself as well.
            until(lambda: all(self.connections()[protocol] >= 1 for protocol in ("http", "grpc", "metrics")), "open connections")
        until_equal(lambda: self.connections()["grpc"], 0, "no connection of gRPC")
        self.assertEqual(set(self.connections("conch_connections_refused_total").values()), {0})

    def test_connections_beyond_the_limit(self):
        with Repository().model("plain", identity()) as repository, servers.Server(repository, "--connections-max=2") as server:
            opened = lambda: sum(value for _, labels, value in families(page(server))["conch_connections"].samples if labels["protocol"] != "metrics")  # noqa: E731
            # Those that asked whether it is ready.
            until_equal(opened, 0, "connections that were open before")
            with socket.create_connection(("127.0.0.1", server.ports["http"])) as first:
                until_equal(lambda: families(page(server))["conch_connections"].samples[0][2], 1, "an open connection")
                with socket.create_connection(("127.0.0.1", server.ports["grpc"])):
                    # Each listener takes its connections by itself: a later one may be the earlier to be taken. The page is served
                    # beyond the limit.
                    until_equal(opened, 2, "open connections")
                    with socket.create_connection(("127.0.0.1", server.ports["http"])) as third:
                        self.assertEqual(third.recv(1), b"")
                first.close()
            until_equal(lambda: families(page(server))["conch_connections_refused_total"].samples[0][1:], ({"protocol": "http"}, 1),
                        "one that was refused")

    def test_memory(self):
        metrics = self.server.metrics()
        self.assertGreater(metrics["conch_request_memory_limit_bytes"], 0)
        self.assertEqual(metrics["conch_request_memory_refused_total"], 0)
        length = 3 << 20
        head = f"POST /v2/models/narrow/infer HTTP/1.1\r\nHost: conch\r\nContent-Length: {length}\r\n\r\n".encode()
        before = metrics["conch_request_memory_held_bytes"]
        with socket.create_connection(("127.0.0.1", self.server.ports["http"])) as client:
            client.sendall(head + b"x" * (length - 1))
            until(lambda: self.server.metrics()["conch_request_memory_held_bytes"] - before >= length - 1, "a body that is held")
        until(lambda: self.server.metrics()["conch_request_memory_held_bytes"] - before < length - 1, "memory that is free again")


@conch_only
class Exposition(PageCase):
    """The whole page is one that a collector takes."""

    flags = ("--metrics-config=summary_latencies=true", "--metrics-config=histogram_latencies=true", *CACHE)

    @staticmethod
    def models(repository):
        repository.model("plain", identity(batch=8, extra='metric_tags { key: "team" value: "a\\"b" }\n'))
        repository.model("cached", identity(batch=8, extra=ENABLED))
        repository.model("sequences", identity(batch=4, extra="sequence_batching { }\n"))

    def setUp(self):
        for model in ("plain", "cached", "cached"):
            self.ask(model)

    def test_families_are_whole(self):
        found = check_families(page(self.server))
        self.assertGreater(len([name for name in found if name.startswith("conch_")]), 15)

    @needs_promtool
    def test_promtool(self):
        check_by_promtool(page(self.server))


@conch_only
class OnHttp(unittest.TestCase):
    """`--metrics-on-http`."""

    def start(self, *flags):
        repository = Repository().model("plain", identity())
        self.addCleanup(repository.close)
        server = servers.Server(repository, *flags)
        self.addCleanup(server.kill)
        return server

    def test_the_page_is_on_both_ports(self):
        with self.start("--metrics-on-http=true") as server:
            shown = [[name for name in families(page(server, *port)) if "long_turn" not in name] for port in (("http",), ())]
            # Long turns are shown once there was one.
            self.assertEqual(*shown)
            status, headers, body = server.request("HEAD", "/metrics/")
            self.assertEqual((status, body, headers["content-type"]), (200, b"", "text/plain; charset=utf-8"))
            self.assertEqual(server.request("POST", "/metrics", b"")[0], 405)

    def test_only_if_asked_for(self):
        with self.start() as server:
            self.assertEqual(server.get("/metrics")[0], 404)
        with self.start("--metrics-on-http=true", "--allow-metrics=false") as server:
            self.assertEqual(server.get("/metrics")[0], 404)

    def test_it_belongs_to_the_statistics(self):
        with self.start("--metrics-on-http=true", "--http-restricted-api=statistics:key=secret") as server:
            self.assertEqual(server.get("/metrics")[0], 403)
            self.assertEqual(server.request("GET", "/metrics", headers={"key": "secret"})[0], 200)


if __name__ == "__main__":
    unittest.main()
