"""The response cache: conch's own, and upstream's library where a machine has it, in conch and in the real Triton."""

import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import zlib

from tritonclient.grpc import service_pb2 as pb

import server as servers
from case import IS_TRITON, conch_only, needs_peer, pack
from repository import Repository, identity
from test_grpc import GrpcCase
from test_process import free_flags, run
from waiting import until, until_equal

CACHES = servers.PEERS / "abi/caches"
CONTROLS = {"enable_request_controls": "true"}
ENABLED = "response_cache { enable: true }\n"
# Upstream has its local cache in a library only.
FROM_LIBRARY = (f"--cache-directory={CACHES}",)
OWN = FROM_LIBRARY if IS_TRITON else ("--cache-directory=/nonexistent",)


def models(repository):
    two = [("INPUT0", "FP32", (-1,)), ("INPUT1", "FP32", (-1,))]
    repository.model("cached", identity(batch=8, parameters=CONTROLS, extra=ENABLED))
    repository.model("batched", identity(batch=8, parameters=CONTROLS, extra=ENABLED + "dynamic_batching { preferred_batch_size: 4 }\n"))
    repository.model("pair", identity(two, extra=ENABLED))
    repository.model("plain", identity(batch=8))


class CacheCase(GrpcCase):
    """Requests to models with a cache, counted."""

    models = staticmethod(models)

    def ask(self, values, model="cached", status=200, **parameters):
        """An inference over HTTP: the values of its output, or the refusal."""
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}], "parameters": parameters}
        got, _, reply = self.infer(body, model=model)
        self.assertEqual(got, status, reply)
        reply = json.loads(reply)
        if status != 200:
            return reply["error"]
        self.assertEqual(reply["outputs"][0]["shape"], [1, len(values)])
        return reply["outputs"][0]["data"]

    def counts(self, model="cached"):
        """Hits, misses, executions."""
        row = self.server.statistics(model)
        stats = row["inference_stats"]
        return stats["cache_hit"]["count"], stats["cache_miss"]["count"], row["execution_count"]

    def assert_counted(self, hits, misses, executions, model="cached"):
        """What was counted since the last call of this or of `mark`."""
        now = self.counts(model)
        self.assertEqual(tuple(a - b for a, b in zip(now, self.seen.get(model, (0, 0, 0)))), (hits, misses, executions))
        self.seen[model] = now

    def setUp(self):
        self.seen = {model: self.counts(model) for model in ("cached", "batched", "pair", "plain")}
        # Of no other test.
        self.own = float(zlib.crc32(self.id().encode()) % 100_000)


class Local(CacheCase):
    flags = ("--cache-config=local,size=16777216", *OWN)

    def test_second_request_is_a_hit(self):
        for model in ("cached", "batched"):
            with self.subTest(model):
                for _ in range(3):
                    self.assertEqual(self.ask([self.own, 2], model), [self.own, 2])
                self.assert_counted(2, 1, 1, model)

    def test_hits_over_both_protocols(self):
        value = self.message("cached", pack([self.own, 4.0]))
        first = self.stub.ModelInfer(value)
        self.assertEqual(self.ask([self.own, 4]), [self.own, 4])
        value.id = "mine"
        second = self.stub.ModelInfer(value)
        self.assert_counted(2, 1, 1)
        self.assertEqual((second.id, second.model_name, second.model_version), ("mine", "cached", "1"))
        self.assertEqual(second.raw_output_contents, first.raw_output_contents)
        self.assertEqual(second.outputs, first.outputs)

    def test_no_hit_without_the_setting(self):
        for _ in range(2):
            self.ask([self.own], "plain")
        self.assert_counted(0, 0, 2, "plain")

    def test_statistics(self):
        before = self.server.statistics("cached")
        for _ in range(4):
            self.ask([self.own, self.own])
        after = self.server.statistics("cached")

        def grown(name, part="count"):
            return after["inference_stats"][name][part] - before["inference_stats"][name][part]

        self.assertEqual([grown(name) for name in ("success", "fail", "queue", "cache_hit", "cache_miss")], [4, 0, 4, 3, 1])
        self.assertEqual([grown(name) for name in ("compute_input", "compute_infer", "compute_output")], [1, 1, 1])
        self.assertEqual(after["inference_count"] - before["inference_count"], 1)
        self.assertGreater(grown("cache_hit", "ns"), 0)
        self.assertGreater(grown("cache_miss", "ns"), 0)
        self.assertGreaterEqual(grown("success", "ns"), grown("cache_hit", "ns") + grown("cache_miss", "ns"))
        over_grpc = self.stub.ModelStatistics(pb.ModelStatisticsRequest(name="cached")).model_stats[0].inference_stats
        for name in ("cache_hit", "cache_miss"):
            row = getattr(over_grpc, name)
            self.assertEqual({"count": row.count, "ns": row.ns}, after["inference_stats"][name])

    def test_metrics_per_model(self):
        label = '{model="cached",version="1"}'
        before = self.server.metrics()
        for _ in range(3):
            self.ask([self.own, 9])
        after = self.server.metrics()
        families = ["nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model", "nv_inference_request_success", "nv_inference_exec_count"]
        self.assertEqual([after[name + label] - before[name + label] for name in families], [2, 1, 3, 1])
        for name in ("nv_cache_hit_duration_per_model", "nv_cache_miss_duration_per_model"):
            self.assertGreaterEqual(after[name + label], before[name + label])
        self.assertNotIn('nv_cache_num_hits_per_model{model="plain",version="1"}', after)

    def test_metrics_of_the_cache(self):
        def figures():
            if IS_TRITON or self.flags[1:] == FROM_LIBRARY:
                time.sleep(1.2)  # time must pass: the library reads its counters once per second, and does not say when
            values = self.server.metrics()
            self.assertGreater(values["nv_cache_util"], 0)
            self.assertLessEqual(values["nv_cache_util"], 1)
            self.assertGreaterEqual(values["nv_cache_lookup_duration"] + values["nv_cache_insertion_duration"], 0)
            return [values[f"nv_cache_num_{name}"] for name in ("lookups", "hits", "misses", "entries", "evictions")]

        self.ask([1.0])
        before = figures()
        for _ in range(3):
            self.ask([self.own, 11])
        self.assertEqual([after - was for was, after in zip(before, figures())], [3, 2, 1, 1, 0])

    @conch_only
    def test_failures_are_not_kept(self):
        """Upstream keeps a success without outputs in their place."""
        for _ in range(2):
            self.assertEqual(self.ask([self.own, 13], error="told to", status=500), "told to")
        self.assertEqual(self.counts()[0], self.seen["cached"][0])
        self.assertEqual(self.ask([self.own, 13]), [self.own, 13])

    def test_long_inputs(self):
        values = [self.own] * 300_000
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "parameters": {"binary_data_size": 4 * len(values)}}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
        data = pack(values)
        for _ in range(2):
            status, headers, reply = self.infer(body, data, model="cached")
            self.assertEqual((status, reply[int(headers["inference-header-content-length"]):]), (200, data))
        self.assert_counted(1, 1, 1)

    def test_hits_while_the_instance_is_blocked(self):
        self.ask([self.own, 5])
        blocker, waiting = (threading.Thread(target=self.ask, args=([self.own, value],), kwargs={"delay_us": 1_500_000}) for value in (6, 7))
        blocker.start()
        waiting.start()
        self.server.wait_for_pending("cached", 1)  # the other one executes
        value = self.message("cached", pack([self.own, 5.0]))
        for _ in range(20):
            self.assertEqual(self.ask([self.own, 5]), [self.own, 5])
            self.assertEqual(self.stub.ModelInfer(value).raw_output_contents[0], pack([self.own, 5.0]))
        self.assertTrue(blocker.is_alive() or waiting.is_alive(), "the instance was never free meanwhile")
        blocker.join()
        waiting.join()
        self.assert_counted(40, 3, 3)

    @conch_only
    def test_what_the_key_covers(self):
        """Upstream's has names and bytes of inputs only."""
        def ask(*inputs, **more):
            body = {"inputs": [{"name": f"INPUT{place}", "datatype": "FP32", "shape": shape, "data": data} for place, shape, data in inputs]}
            status, _, reply = self.infer({**body, **more}, model="pair")
            self.assertEqual(status, 200, reply)
            return [(row["name"], row["shape"], row["data"]) for row in json.loads(reply)["outputs"]]

        first, second = (0, [2], [self.own, 2]), (1, [1], [3])
        whole = ask(first, second)
        self.assertEqual(len(whole), 2)
        self.assertEqual(ask(second, first), whole)
        self.assert_counted(1, 1, 1, "pair")
        one = {"outputs": [{"name": "OUTPUT1"}]}
        self.assertEqual(ask(first, second, **one), whole[1:])
        self.assertEqual(ask(first, second, **one), whole[1:])
        self.assert_counted(1, 1, 1, "pair")
        for parameters in ({"a": 1}, {"a": True}, {"a": "1"}, {"b": 1}):
            self.assertEqual(ask(first, second, parameters=parameters), whole)
        self.assert_counted(0, 4, 4, "pair")
        self.assertEqual(ask((0, [1], [self.own]), (1, [2], [2, 3])), [("OUTPUT0", [1], [self.own]), ("OUTPUT1", [2], [2, 3])])
        self.assert_counted(0, 1, 1, "pair")

    @conch_only
    def test_shapes_do_not_mix(self):
        def ask(shape):
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": [self.own, 2, 3, 4]}]}
            return json.loads(self.infer(body, model="cached")[2])["outputs"][0]["shape"]

        for shape in ([1, 4], [2, 2], [4, 1], [2, 2]):
            self.assertEqual(ask(shape), shape)
        self.assert_counted(1, 3, 3)


@needs_peer("abi/caches/local/libtritoncache_local.so")
class UpstreamsLibrary(Local):
    """The same, by upstream's library, unmodified."""

    flags = ("--cache-config=local,size=16777216", *FROM_LIBRARY)

    @conch_only
    def test_it_is_the_library(self):
        self.server.wait_for_match("opened response cache 'local' of .*/libtritoncache_local.so")


class Small(CacheCase):
    """A cache for some dozens of entries."""

    flags = ("--cache-config=local,size=65536", *OWN)

    def test_eviction(self):
        for number in range(60):
            self.ask([float(number)] * 1_000)
        self.assert_counted(0, 60, 60)
        # The last few are there, the first are not.
        for number in (59, 58, 57):
            self.assertEqual(self.ask([float(number)] * 1_000), [float(number)] * 1_000)
        self.assert_counted(3, 0, 0)
        self.ask([0.0] * 1_000)
        self.assert_counted(0, 1, 1)
        if self.flags[1:] == FROM_LIBRARY:
            until(lambda: self.server.metrics()["nv_cache_num_evictions"], "more than 40 evictions", accept=lambda count: count > 40)
        values = self.server.metrics()
        self.assertGreater(values["nv_cache_num_evictions"], 40)
        self.assertLess(values["nv_cache_num_entries"], 17)
        self.assertLessEqual(values["nv_cache_util"], 1)

    def test_nobody_gets_anothers_answer(self):
        """Many clients, more inputs than there is room for, on connections that stay: HTTP and gRPC."""
        wrong, asked = [], 0

        def client(number):
            random_ = random.Random(number)
            connection = http.client.HTTPConnection("127.0.0.1", self.server.ports["http"], timeout=30)
            for _ in range(150):
                values = [float(random_.randrange(40))] * random_.choice([1, 500, 1_000])
                if number % 2:
                    got = list(struct.unpack(f"<{len(values)}f", self.stub.ModelInfer(
                        self.message("batched", pack(values), (1, len(values)))).raw_output_contents[0]))
                else:
                    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}
                    connection.request("POST", "/v2/models/batched/infer", json.dumps(body))
                    got = json.loads(connection.getresponse().read())["outputs"][0]["data"]
                if got != values:
                    wrong.append((values[:2], got[:2]))
            connection.close()
            return 150

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = sum(pool.map(client, range(8)))
        self.assertEqual(wrong, [])
        hits, misses, _ = (now - was for now, was in zip(self.counts("batched"), self.seen["batched"]))
        self.assertGreater(hits, 0)
        self.assertGreater(misses, 50)
        # Two at a time may miss the same key; it is kept, and counted, once.
        self.assertLessEqual(hits + misses, asked)

    def test_oversized_response(self):
        values = [5.0] * 20_000
        for _ in range(2):
            self.assertEqual(self.ask(values), values)
        self.assert_counted(0, 2, 2)
        self.server.wait_for_line(r"Failed to insert key .* into response cache: Requested byte_size: \d+ is greater than total cache size: \d+")
        self.ask([6.0])
        self.ask([6.0])
        self.assert_counted(1, 1, 1)


@needs_peer("abi/caches/local/libtritoncache_local.so")
class SmallUpstreams(Small):
    flags = ("--cache-config=local,size=65536", *FROM_LIBRARY)


class Off(CacheCase):
    """Without a cache, models that ask for one are served without."""

    def test_no_cache(self):
        for _ in range(2):
            self.assertEqual(self.ask([self.own]), [self.own])
        self.assert_counted(0, 0, 2)
        self.assertEqual(self.ask([self.own], error="told to", status=500), "told to")
        # The families of the models are there for all that ask for a cache, those of the cache are not.
        values = {name: value for name, value in self.server.metrics().items() if name.startswith("nv_cache")}
        self.assertEqual(len(values), 3 * 4)
        self.assertEqual({name for name in values if "_per_model{" not in name}, set())
        self.assertEqual(set(values.values()), {0})


@needs_peer("perf_analyzer")
class PerfAnalyzer(CacheCase):
    """Upstream's tool reads hits and misses out of the statistics."""

    flags = ("--cache-config=local,size=16777216", *OWN)

    def test_hits_are_reported(self):
        for protocol, address in (("http", self.server.http), ("grpc", self.server.grpc)):
            with self.subTest(protocol):
                done = subprocess.run(
                    [str(servers.PEERS / "perf_analyzer"), "-m", "cached", "-i", protocol, "-u", address, "--shape", "INPUT0:16",
                     "--concurrency-range", "4", "--measurement-mode", "count_windows", "--measurement-request-count", "500",
                     "--stability-percentage", "999", "--max-trials", "4"], capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
                match = re.search(r"Cache hit count: (\d+)", done.stdout)
                self.assertTrue(match, done.stdout[-3000:])
                self.assertGreater(int(match[1]), 400)
        hits, _, executions = self.counts()
        self.assertGreater(hits, 800)
        self.assertLess(executions, hits / 10)


@conch_only
class Reload(CacheCase):
    flags = ("--cache-config=local,size=16777216", *OWN, "--model-control-mode=explicit", "--load-model=*")

    def test_a_model_that_was_reloaded_answers_for_itself(self):
        """Upstream answers from before."""
        for _ in range(2):
            self.ask([self.own])
        self.assert_counted(1, 1, 1)
        for verb in ("unload", "load"):
            status, reply = self.server.post_json(f"/v2/repository/models/cached/{verb}", {})
            self.assertEqual(status, 200, reply)
        until_equal(lambda: self.server.get("/v2/models/cached/ready")[0], 200, "the status of the model's readiness")
        self.seen.clear()
        for _ in range(2):
            self.assertEqual(self.ask([self.own]), [self.own])
        self.assert_counted(1, 1, 1)


class Refused(unittest.TestCase):
    """Caches that are no good end the start."""

    def refuse(self, *flags):
        with Repository().model("identity", identity()) as repository:
            code, out, error = run(f"--model-repository={repository}", *flags, *free_flags())
        self.assertEqual(code, 1, out + error)
        return out + error

    @conch_only
    def test_refusals(self):
        for flags, expected in [
            (("--cache-config=local,size=1048576", "--cache-config=redis,host=h"),
             "found multiple cache configurations, but only a single cache is currently supported"),
            (("--cache-config=redis,host=h", "--cache-directory=/nonexistent"),
             "unable to find 'libtritoncache_redis.so' for cache. Searched: /nonexistent"),
            (("--cache-config=local,sizes=1", "--cache-directory=/nonexistent"),
             "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
            (("--response-cache-byte-size=0", "--cache-directory=/nonexistent"), "Failed to initialize LocalCache: "),
            (("--cache-config=local,size=1", "--response-cache-byte-size=1"), "Incompatible flags"),
            (("--cache-config=size=1",), "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got size=1"),
        ]:
            with self.subTest(flags):
                self.assertIn(expected, self.refuse(*flags))

    @conch_only
    def test_a_library_that_is_no_cache(self):
        with tempfile.TemporaryDirectory() as directory:
            library = pathlib.Path(directory) / "odd/libtritoncache_odd.so"
            library.parent.mkdir()
            library.write_text("no library")
            flags = ("--cache-config=odd,a=b", f"--cache-directory={directory}")
            self.assertIn("unable to load shared library: ", self.refuse(*flags))
            library.unlink()
            library.symlink_to(servers.built("libtriton_identity.so"))
            self.assertIn("unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in shared library: ", self.refuse(*flags))

    @conch_only
    @needs_peer("abi/caches/local/libtritoncache_local.so")
    def test_what_the_library_refuses(self):
        output = self.refuse("--cache-config=local,sizes=1", *FROM_LIBRARY)
        self.assertIn("Failed to initialize LocalCache: config didn't contain a valid 'size' field.", output)

    @conch_only
    def test_deprecated_flag(self):
        with Repository().model("cached", identity(extra=ENABLED)) as repository:
            with servers.Server(repository, "--response-cache-byte-size=1048576", "--cache-directory=/nonexistent") as server:
                self.assertIn("nv_cache_num_entries", server.metrics())
                server.wait_for_match("opened response cache 'local' with 1048576 bytes")
                server.wait_for_match(r"\| cache_enabled +\| 1 ")


if __name__ == "__main__":
    unittest.main()
