"""What must not hold up the control plane: backends that hang, files that are none, requests without measure, signals at any time."""

import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import tritonclient.grpc as client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
import grpc

import certificates
from case import conch_only, needs_library
from repository import Repository, identity
from server import Server, backend_directory, built
from waiting import until, until_equal

EXPLICIT = "--model-control-mode=explicit"
HANGS = {"creation_delay_sec": "1000"}


def infer(server, model):
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    return server.post_json(f"/v2/models/{model}/infer", body)


def control(server, model, action, body=b""):
    status, _, reply = server.request("POST", f"/v2/repository/models/{model}/{action}", body, timeout=60)
    return status, json.loads(reply)["error"] if reply else ""


@needs_library("identity")
@conch_only
class ControlPlaneCase(unittest.TestCase):
    def repository(self, **models):
        repository = Repository().model("identity", identity(batch=4))
        self.addCleanup(repository.close)
        for name, more in models.items():
            repository.model(name, identity(batch=4, **more))
        return repository

    def start(self, repository, *flags, **more):
        server = Server(repository, EXPLICIT, "--load-model=identity", *flags, **more)
        self.addCleanup(server.kill)
        return server


class Hanging(ControlPlaneCase):
    """A backend that does not return from the creation of an instance."""

    def test_a_load_that_hangs_fails_and_nothing_waits_for_it(self):
        repository = self.repository(stuck={"parameters": HANGS}, late={})
        server = self.start(repository, "--model-load-timeout-secs=1", "--model-load-thread-count=1", "--exit-timeout-secs=5")
        status, error = control(server, "stuck", "load")
        self.assertEqual(status, 400)
        self.assertRegex(error, r"took longer than 1 seconds \(--model-load-timeout-secs\) and was given up while it was ")
        # One thread hangs, not one per attempt.
        before = len(os.listdir(f"/proc/{server.pid}/task"))
        for _ in range(5):
            status, error = control(server, "stuck", "load")
            self.assertEqual(status, 400)
            self.assertIn("its backend has not returned yet from a load that was given up", error)
        self.assertLessEqual(len(os.listdir(f"/proc/{server.pid}/task")), before + 4)
        # Its permit and its turn are free again, and so is the backend for other models.
        self.assertEqual(control(server, "late", "load"), (200, ""))
        self.assertEqual(infer(server, "late")[0], 200)
        self.assertEqual(control(server, "stuck", "unload"), (200, ""))
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
        self.assertLess(time.monotonic() - began, 25, "the backend would take a thousand seconds")

    def test_a_start_that_hangs_fails(self):
        repository = self.repository(stuck={"parameters": HANGS})
        with self.assertRaises(Exception) as caught:
            Server(repository, "--model-load-timeout-secs=1", "--exit-timeout-secs=2", ready_within=40)
        self.assertEqual(caught.exception.code, 1)
        self.assertIn("took longer than 1 seconds", caught.exception.output)

    def test_what_a_late_backend_brings_is_taken_down(self):
        repository = self.repository(slow={"parameters": {"creation_delay_sec": "3"}})
        server = self.start(repository, "--model-load-timeout-secs=1")
        self.assertEqual(control(server, "slow", "load")[0], 400)
        server.wait_for_line("the backend of 'slow' version 1 has returned from a load that was given up", within=30)
        self.assertEqual(infer(server, "slow")[0], 404)
        (repository.path / "slow/config.pbtxt").write_text(identity(batch=4))
        deadline = time.monotonic() + 20
        while control(server, "slow", "load")[0] != 200:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(infer(server, "slow")[0], 200)
        self.assertEqual(server.terminate(), 0)


class Files(ControlPlaneCase):
    """FIFOs and devices where files are expected: refused, and nobody waits."""

    def odd(self, path, kind):
        path.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            self.enterContext(socket.socket(socket.AF_UNIX)).bind(str(path))
        else:
            path.symlink_to("/dev/zero")

    def test_configurations(self):
        repository = self.repository(odd={}, custom={})
        server = self.start(repository, "--model-config-name=mine")
        (repository.path / "custom/configs").mkdir()
        for kind in ("fifo", "socket", "device"):
            for model, file in (("odd", "odd/config.pbtxt"), ("custom", "custom/configs/mine.pbtxt")):
                self.odd(repository.path / file, kind)
                status, error = control(server, model, "load")
                self.assertEqual((status, error), (500, f"failed to load '{model}', failed to poll from model repository"), (kind, model))
        server.wait_for_match(r"config\.pbtxt: it is no regular file")
        self.assertEqual(server.post_json("/v2/repository/index", {})[0], 200)
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_files_of_a_request_that_cannot_be_written(self):
        """The client learns why, and not where; the log says both."""
        with tempfile.TemporaryDirectory() as directory:
            server = self.start(self.repository(), environment={"TMPDIR": f"{directory}/absent"})
            body = json.dumps({"parameters": {"config": '{"backend": "identity"}', "file:1/data": "eA=="}})
            self.assertEqual(control(server, "identity", "load", body), (500, (
                "failed to load 'identity', failed to poll from model repository: failed to create a temporary directory: "
                "No such file or directory (os error 2)")))
            server.wait_for_line(f"no temporary directory in '{directory}/absent'")
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_polling_goes_on(self):
        repository = self.repository(odd={})
        server = Server(repository, "--model-control-mode=poll", "--repository-poll-secs=1")
        self.addCleanup(server.kill)
        self.odd(repository.path / "odd/config.pbtxt", "fifo")
        server.wait_for_line(r"Poll failed for model directory 'odd'.*no regular file", within=20)
        repository.model("late", identity(batch=4))
        until_equal(lambda: infer(server, "late")[0], 200, "the status of an inference of the new model")
        self.assertEqual(infer(server, "odd")[0], 200, "what served goes on")
        self.assertEqual(server.terminate(), 0)

    def test_model_files(self):
        repository = self.repository(odd={}, named={"extra": 'default_model_filename: "weights"\n'})
        server = self.start(repository)
        for model, file in (("odd", "model.onnx"), ("named", "weights")):
            self.odd(repository.path / model / "1" / file, "fifo")
            status, error = control(server, model, "load")
            self.assertEqual(status, 400)
            self.assertIn(f"unable to load model '{model}', version 1: '{file}' is no regular file", error)
        self.assertEqual(server.terminate(), 0)

    def test_labels(self):
        config = identity(batch=4).replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels"')
        repository = self.repository()
        repository.model("odd", config)
        self.odd(repository.path / "odd/labels", "fifo")
        server = self.start(repository)
        self.assertEqual(control(server, "odd", "load")[0], 400)
        self.assertEqual(server.terminate(), 0)

    def test_certificates(self):
        repository = self.repository()
        odd = repository.path / "odd.pem"
        os.mkfifo(odd)
        done = subprocess.run(
            [str(built("conch")), f"--model-repository={repository}", "--http-port=0", "--grpc-port=0", "--metrics-port=0",
             "--grpc-use-ssl=true", f"--grpc-server-cert={odd}", f"--grpc-server-key={odd}"],
            capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is no regular file", done.stderr)


class Measure(ControlPlaneCase):
    """Requests for model control that are larger than any model."""

    @classmethod
    def config(cls, count=0):
        def tensor(name):
            return [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]}]
        parameters = {f"p{number}": {"string_value": "x"} for number in range(count)}
        return json.dumps({"backend": "identity", "max_batch_size": 4, "input": tensor("INPUT0"), "output": tensor("OUTPUT0"),
                           "parameters": parameters})

    def test_loads_are_bounded(self):
        server = self.start(self.repository())
        before = server.resident_bytes()
        # By hand: the encoder would take longer than the server.
        inner = ",".join(f'"p{number}":{{"string_value":"x"}}' for number in range(1_000_000))
        many = '{"parameters":{"config":"' + f'{{"parameters":{{{inner}}}}}'.replace('"', '\\"') + '"}}'
        self.assertGreater(len(many), 35_000_000)
        table = [
            (many, "load parameter 'config' has at most 4194304 bytes, got "),
            (json.dumps({"parameters": {"config": self.config(50_000)}}), "load parameter 'config' has at most 131072 names and values"),
            (json.dumps({"parameters": {"config": self.config(), **{f"file:1/{n}": "" for n in range(100_000)}}}),
             "a load request brings at most 4096 files, got 4097"),
        ]
        for body, reason in table:
            status, error = control(server, "identity", "load", body)
            self.assertEqual(status, 400, error)
            self.assertIn(reason, error)
        # The million of parameters took a gigabyte, and half a minute.
        self.assertLess(server.resident_bytes() - before, 400 << 20)
        body = json.dumps({"parameters": {"config": self.config(1_000)}})
        self.assertEqual(control(server, "identity", "load", body), (200, ""))
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_loads_over_grpc_are_bounded(self):
        server = self.start(self.repository())
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(server.grpc, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = pb.RepositoryModelLoadRequest(model_name="identity")
            for number in range(200_000):
                request.parameters[f"file:1/{number}"].bytes_param = b""
            with self.assertRaises(grpc.RpcError) as caught:
                stub.RepositoryModelLoad(request, timeout=60)
            self.assertEqual((caught.exception.code(), caught.exception.details()),
                             (grpc.StatusCode.INVALID_ARGUMENT, "a request for model control has at most 4104 fields"))
            with self.assertRaises(grpc.RpcError) as caught:
                stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="x" * (5 << 20)), timeout=60)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_other_requests_are_bounded(self):
        server = self.start(self.repository(), "--allow-client-shm=true")
        body = json.dumps({"x": "y" * (5 << 20)})
        for path in ("/v2/repository/index", "/v2/repository/models/identity/unload", "/v2/logging", "/v2/trace/setting",
                     "/v2/systemsharedmemory/region/r/register"):
            status, reply = server.post_json(path, body)
            self.assertEqual(status, 400, path)
            self.assertIn(b"has at most 4194304 bytes", reply, path)
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_sizes_in_a_configuration(self):
        """What a few bytes of a configuration ask for is refused, not tried."""
        server = self.start(self.repository())
        described = json.loads(self.config())
        state = {"input_name": "S", "output_name": "T", "data_type": "TYPE_FP32", "dims": [1 << 45],
                 "initial_state": [{"name": "zeros", "data_type": "TYPE_FP32", "dims": [1 << 45], "zero_data": True}]}
        sample = {"name": "s", "batch_size": 1, "inputs": {"INPUT0": {"data_type": "TYPE_FP32", "dims": [1 << 45], "zero_data": True}}}
        table = [
            ({"sequence_batching": {"state": [state]}}, "initial_state of 'S' needs 140737488355328 bytes, which the memory limit of "),
            ({"model_warmup": [sample]}, "warmup sample 's' needs 140737488355328 bytes, which the memory limit of "),
            ({"model_warmup": [{**sample, "count": 4294967295}]},
             "warmup sample 's' of model 'identity' asks for 4294967295 executions, at most 1000000 are allowed"),
        ]
        for more, reason in table:
            body = json.dumps({"parameters": {"config": json.dumps({**described, **more})}})
            status, error = control(server, "identity", "load", body)
            self.assertGreaterEqual(status, 400, more)
            self.assertIn(reason, error)
            self.assertEqual(infer(server, "identity")[0], 200, more)
        self.assertEqual(server.terminate(), 0)

    def test_long_names_do_not_come_back(self):
        server = self.start(self.repository(), "--log-verbose=1")
        long = "x" * 30_000
        described = json.loads(self.config())
        tensor = {"name": long, "data_type": "TYPE_FP32", "dims": [0]}
        loads = [{"config": json.dumps({**described, **more})} for more in (
            {"backend": long}, {"runtime": long}, {"input": [tensor]}, {"output": [tensor]}, {"name": long})]
        calls = [
            *(("GET", f"/v2/models/{long}{rest}", "") for rest in ("", "/config", "/stats", "/ready", "/trace/setting", "/versions/1")),
            *(("POST", f"/v2/models/{long}/{rest}", "{}") for rest in ("infer", "generate", "generate_stream")),
            *(("POST", f"/v2/repository/models/{long}/{action}", "") for action in ("load", "unload")),
            *(("POST", "/v2/repository/models/identity/load", json.dumps({"parameters": load})) for load in loads),
            ("POST", "/v2/models/identity/infer", json.dumps({"id": long, "inputs": [{"name": long, "datatype": "FP32", "shape": [1], "data": [1]}]})),
            ("POST", "/v2/models/identity/infer", json.dumps({"inputs": [{"name": "INPUT0", "datatype": long, "shape": [1, 1], "data": [1]}]})),
            ("GET", f"/v2/systemsharedmemory/region/{long}/status", ""),
        ]
        for method, path, body in calls:
            status, _, reply = server.request(method, path, body)
            if not path.endswith("unload"):  # of what is not there
                self.assertGreaterEqual(status, 400, path[:60])
            self.assertLess(len(reply), 5_000, (path[:60], body[:60]))
        with grpc.insecure_channel(server.grpc, options=[("grpc.max_metadata_size", 1 << 20)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for call, message in ((stub.ModelStatistics, pb.ModelStatisticsRequest(name=long)), (stub.ModelConfig, pb.ModelConfigRequest(name=long)),
                                  (stub.ModelMetadata, pb.ModelMetadataRequest(name=long)), (stub.TraceSetting, pb.TraceSettingRequest(model_name=long)),
                                  (stub.ModelInfer, pb.ModelInferRequest(model_name=long))):
                with self.assertRaises(grpc.RpcError) as caught:
                    call(message, timeout=20)
                self.assertLess(len(caught.exception.details()), 5_000)
        self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)
        # The first load was refused with a log line that names the backend.
        # The path of a request is shown as it came: its head has at most 64 KiB.
        longest = max((line for line in server.output.splitlines() if "HTTP request: " not in line), key=len)
        self.assertLess(len(longest), 10_000, longest[:300])

    def test_configurations_are_charged_to_the_budget(self):
        server = self.start(self.repository(), "--memory-limit-bytes=16777216")
        status, error = control(server, "identity", "load", json.dumps({"parameters": {"config": self.config(20_000)}}))
        self.assertEqual((status, error), (429, "the server has no memory left to read the configuration of this load"))
        self.assertEqual(control(server, "identity", "load", json.dumps({"parameters": {"config": self.config()}})), (200, ""))
        self.assertEqual(server.terminate(), 0)


class Signals(ControlPlaneCase):
    def start_alone(self, repository, *flags):
        """A server that is not waited for, as it is to be stopped while it starts."""
        process = subprocess.Popen(
            [str(built("conch")), f"--model-repository={repository}", f"--backend-directory={backend_directory()}",
             "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def stop_while(self, process, loading):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if loading in line:
                break
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        lines.extend(process.stdout)
        return process.wait(60), time.monotonic() - began, "".join(lines)

    def test_a_start_that_hangs_ends_within_the_exit_timeout(self):
        repository = self.repository(stuck={"parameters": HANGS})
        process = self.start_alone(repository, "--exit-timeout-secs=1")
        # Only then does the backend hang: a model that had not begun to load would be refused, and nothing would be waited for.
        code, seconds, output = self.stop_while(process, "Creation delay")
        self.assertEqual(code, 1, output)
        self.assertLess(seconds, 30)
        self.assertIn("SIGTERM received while models load, stopping", output)
        self.assertIn("Exit timeout expired. Exiting immediately.", output)

    def test_a_start_that_is_stopped_loads_nothing_more(self):
        models = {f"m{number}": {"parameters": {"creation_delay_sec": "1"}} for number in range(30)}
        process = self.start_alone(self.repository(**models), "--model-load-thread-count=1", "--exit-timeout-secs=25")
        code, _, output = self.stop_while(process, "Creation delay")
        self.assertEqual(code, 0, output)
        self.assertLess(output.count("Creation delay"), 10)

    def test_stray_signals_change_nothing(self):
        server = self.start(self.repository())
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR,
                       signal.SIGHUP):
            server.process.send_signal(number)
            self.assertEqual(infer(server, "identity")[0], 200)
        self.assertEqual(server.terminate(), 0)

    def test_sighup_opens_the_log_file_anew(self):
        with tempfile.TemporaryDirectory() as directory:
            log, old = pathlib.Path(directory) / "log", pathlib.Path(directory) / "log.1"
            repository = self.repository()
            process = self.start_alone(repository, f"--log-file={log}", "--log-verbose=1")
            self.wait_for(log, "Started HTTPService")
            log.rename(old)
            process.send_signal(signal.SIGHUP)
            self.wait_for(log, "SIGHUP received, the log file is open anew")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(30), 0)
            self.assertIn("SIGTERM received", log.read_text())
            self.assertNotIn("SIGTERM received", old.read_text())

    def wait_for(self, path, text):
        until(lambda: path.exists() and text in path.read_text(), f"'{text}' in {path}", 30)

    def test_sighup_reads_the_certificates_anew(self):
        files = certificates.Certificates()
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = pathlib.Path(directory) / "own.pem", pathlib.Path(directory) / "own.key"
            shutil.copy(files.server, certificate)
            shutil.copy(files.server_key, key)
            server = self.start(self.repository(), "--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
            own = client.InferenceServerClient(f"localhost:{server.ports['grpc']}", ssl=True, root_certificates=str(files.root))
            self.addCleanup(own.close)
            self.assertTrue(own.is_server_live())
            self.assertEqual(self.presented(server), files.server.read_text().strip())
            # What is of no use changes nothing.
            certificate.write_text("nonsense")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_line("certificates stay as they were")
            self.assertEqual(self.presented(server), files.server.read_text().strip())
            fresh, fresh_key = files.make("fresh", "ec", issuer="root")
            shutil.copy(fresh, certificate)
            shutil.copy(fresh_key, key)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_line("new connections use the certificates as they are now")
            self.assertEqual(self.presented(server), fresh.read_text().strip())
            self.assertTrue(own.is_server_live(), "open connections go on")
            self.assertEqual(server.terminate(), 0)

    def presented(self, server):
        return ssl.get_server_certificate(("127.0.0.1", server.ports["grpc"])).strip()


del ControlPlaneCase

if __name__ == "__main__":
    unittest.main()
