"""Models that share a number of executions by weight: never more execute at a time, and turns go by weight."""

import contextlib
import pathlib
import tempfile
import unittest

import grpc
from tritonclient.grpc import service_pb2_grpc

import server as servers
from case import conch_only, needs_library
from probe import ProbeCase, probe
from repository import Repository, identity
from test_control import wait_until
from test_limits import WAIT, message


@conch_only
@needs_library("probe")
class Shares(ProbeCase):
    flags = ("--executions-max=2",)
    # As large a difference as can be: how long each execution takes does not matter beside it.
    MODELS = {"held_much": 10_000, "held_little": 1}
    ROUNDS = 60

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="conch-shares-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.gate = pathlib.Path(cls.folder.name) / "gate"
        cls.gate.write_text("0")
        super().setUpClass()

    @classmethod
    def models(cls, repository):
        for name, weight in cls.MODELS.items():
            repository.model(name, probe(batch=1, count=3, CONCH_SHARE_WEIGHT=weight))
        repository.model("held_first", probe(batch=1, count=2, gate=cls.gate))

    def pending(self, model):
        return self.server.metrics()[f'nv_inference_pending_request_count{{model="{model}",version="1"}}']

    def test_turns_go_by_weight(self):
        """Everybody is in line before the first turn is to be had; then the turns are counted."""
        with contextlib.ExitStack() as stack:
            def ask(model, count):
                channel = stack.enter_context(grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]))
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                return [stub.ModelInfer.future(message(model), timeout=WAIT) for _ in range(count)]

            asked = ask("held_first", 2)
            self.record.wait_for(2, "begin", "Execute")
            for model in self.MODELS:
                asked += ask(model, self.ROUNDS)
            wait_until(lambda: all(self.pending(model) == self.ROUNDS for model in self.MODELS), "not all are in line")
            self.gate.write_text("2")
            for one in asked:
                one.result(WAIT)
        events = self.record.events("Execute")
        running = most = 0
        for event in events:
            running += {"begin": 1}.get(event.edge, -1)
            most = max(most, running)
        self.assertEqual(most, 2)
        turns = [event.object.split(":")[0] for event in events if event.edge == "begin"]
        self.assertEqual(turns[:2], ["held_first"] * 2)
        last = len(turns) - turns[::-1].index("held_much")
        # Those that were let in before its first turn had cost it anything, and one while that was being booked.
        self.assertLessEqual(turns[:last].count("held_little"), 3, turns)
        self.assertEqual({name: turns.count(name) for name in self.MODELS}, dict.fromkeys(self.MODELS, self.ROUNDS))


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
