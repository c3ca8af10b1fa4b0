"""Models that share a number of executions by weight: never more execute at a time, and time goes by weight."""

import threading
import unittest

import grpc
from tritonclient.grpc import service_pb2_grpc

import server as servers
from case import ServerCase, conch_only, needs_library
from probe import Record, probe
from repository import Repository, identity
from test_limits import WAIT, message


@conch_only
@needs_library("probe")
class Shares(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.record = Record()
        cls.addClassCleanup(cls.record.close)
        cls.flags = ("--executions-max=2", cls.record.flag)
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        for name, weight in (("held_much", 400), ("held_little", 100)):
            repository.model(name, probe(batch=1, count=3, execute_ms=5, CONCH_SHARE_WEIGHT=weight))

    def test_time_goes_by_weight(self):
        """Both models have requests for more instances than may execute, until one of them has executed often enough."""
        is_over = threading.Event()
        counts = {"held_much": 0, "held_little": 0}
        lock = threading.Lock()

        def ask(name):
            with grpc.insecure_channel(self.server.grpc) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                while not is_over.is_set():
                    stub.ModelInfer(message(name), timeout=WAIT)
                    with lock:
                        counts[name] += 1
                        if counts[name] == 240:
                            is_over.set()

        askers = [threading.Thread(target=ask, args=(name,)) for name in counts for _ in range(6)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(4 * WAIT)
        self.assertTrue(is_over.is_set())
        running = most = 0
        for event in self.record.events("Execute"):
            running += {"begin": 1}.get(event.edge, -1)
            most = max(most, running)
        self.assertEqual(most, 2)
        # Four times as much, but for a machine that has other things to do.
        self.assertEqual(counts["held_much"], max(counts.values()))
        self.assertGreater(counts["held_much"], 2 * counts["held_little"])
        self.assertLess(counts["held_much"], 8 * counts["held_little"])


@conch_only
@needs_library("identity")
class Refusals(unittest.TestCase):
    def test_what_cannot_be(self):
        for parameters, flags, reason in (
                ({"CONCH_SHARE_WEIGHT": "0"}, (), "parameter 'CONCH_SHARE_WEIGHT' of model 'm' must be a number from 1 to 10000, got '0'"),
                ({}, ("--rate-limit=execution_count",), "--executions-max excludes --rate-limit=execution_count")):
            with self.subTest(reason), Repository() as repository:
                repository.model("m", identity(parameters=parameters))
                with self.assertRaises(servers.StartFailed) as failed:
                    servers.Server(repository, "--executions-max=1", *flags).kill()
                self.assertIn(reason, failed.exception.output)


if __name__ == "__main__":
    unittest.main()
