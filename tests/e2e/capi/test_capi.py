"""The server in process: C programs (built here against our headers) and a Python one embed libtritonserver.so, opened RTLD_LOCAL."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import cuda
import onnx_model
import server as servers
from case import conch_only, needs_library, needs_peer
from repository import Repository, identity, tensors

SOURCES = servers.ROOT / "tests/capi"
LIBRARY = servers.built("libtritonserver.so")
CHECKSUM = servers.built("libtritonrepoagent_checksum.so")
CONTROLS = {"enable_request_controls": "true"}
# What valgrind is to look at: all that is read or written wrongly, and memory that nothing points to any more.
VALGRIND = ("valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite,indirect",
            "--errors-for-leak-kinds=definite,indirect")


@conch_only
@unittest.skipUnless(LIBRARY.exists(), f"{LIBRARY.name} is not built in profile {servers.PROFILE}")
@unittest.skipUnless(shutil.which("gcc"), "there is no gcc")
@needs_library("identity")
class Embedded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="conch-capi-")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.backends = servers.backend_directory()

    def compile(self, source, target, *options):
        compiler = ("g++", "-std=c++17") if str(source).endswith(".cc") else ("gcc", "-std=gnu11")
        built = subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I", str(servers.ROOT / "src/abi/include"),
                                str(SOURCES / source), "-o", str(target), *options], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(built.returncode, 0, built.stderr[-3000:])
        return target

    def build(self, name, suffix="c"):
        return self.compile(f"{name}.{suffix}", pathlib.Path(self.directory.name) / name, "-ldl", "-lpthread")

    def run_program(self, *words, timeout=120, environment=None):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])
        return done.stdout

    def repository(self):
        repository = Repository()
        self.addCleanup(repository.close)
        return repository.model("identity", identity(parameters=CONTROLS))

    def flood(self, *prefix, model="identity", engine="", repository=None):
        repository = repository or (self.add_sub(engine) if model == "add_sub" else self.repository())
        printed = self.run_program(*prefix, self.build("flood"), LIBRARY, repository, self.backends, 10000, 4, model, timeout=500)
        good, cancelled = (int(part.split()[1]) for part in printed.split(","))
        self.assertEqual(good + cancelled, 10000)
        self.assertGreater(good, 5000, "those that nobody cancelled")
        self.assertGreater(cancelled, 0)

    def test_flood(self):
        self.flood()

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_flood_is_clean(self):
        self.flood(*VALGRIND)

    def calling(self):
        """A model `identity` that has another one answer."""
        repository = Repository()
        self.addCleanup(repository.close)
        repository.model("echo", identity(parameters=CONTROLS))
        return repository.model("identity", identity(parameters={"model_name": "echo"}).replace('"identity"', '"forward"'))

    @needs_library("forward")
    def test_flood_of_calls(self):
        self.flood(repository=self.calling())

    @needs_library("forward")
    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_flood_of_calls_is_clean(self):
        self.flood(*VALGRIND, repository=self.calling())

    def add_sub(self, engine):
        """An ONNX model of two inputs and outputs."""
        extra = f'parameters {{ key: "onnxruntime-library" value {{ string_value: "{engine}" }} }}\n' if engine else ""
        repository = Repository()
        self.addCleanup(repository.close)
        two = [("INPUT0", onnx_model.FLOAT, (16,)), ("INPUT1", onnx_model.FLOAT, (16,))]
        return repository.model("add_sub", 'backend: "onnxruntime"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n' + extra, files={
            "1/model.onnx": onnx_model.model(two, [("OUTPUT0", onnx_model.FLOAT, (16,)), ("OUTPUT1", onnx_model.FLOAT, (16,))], [
                onnx_model.node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), onnx_model.node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])])})

    @needs_library("onnxruntime")
    def test_flood_of_add_sub(self):
        self.flood(model="add_sub")

    @needs_library("onnxruntime")
    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_flood_of_add_sub_is_clean(self):
        """By the embedded engine: ONNX Runtime itself copies memory onto itself when it starts, which valgrind tells."""
        self.flood(*VALGRIND, model="add_sub", engine="embedded")

    def backends_with_caller(self):
        """The backends of the tree, and the one that contract.c brings."""
        directory = pathlib.Path(self.directory.name) / "backends"
        if not directory.exists():
            (directory / "caller").mkdir(parents=True)
            (directory / "identity").symlink_to(self.backends / "identity")
            self.compile("caller.c", directory / "caller/libtriton_caller.so", "-shared", "-fPIC", "-Wl,--no-undefined", str(LIBRARY))
        return directory

    def contract(self, *prefix):
        """Each of the programs that go through what the API promises."""
        outputs = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }\n'
        config = identity(outputs=(), parameters=CONTROLS) + outputs
        caller = identity().replace('"identity"', '"caller"')
        hurried = identity(parameters=CONTROLS, extra=(
            'dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 50000 } }\n'))
        with Repository() as repository, Repository() as other, Repository() as third:
            repository.model("identity", config, files={"labels.txt": b"first\nsecond\n"}).model("caller", caller).model("hurried", hurried)
            other.model("other", identity()).model("caller", caller)
            third.model("other", identity()).model("broken", identity().replace('"identity"', '"nowhere"'))
            backends = self.backends_with_caller()
            for name, *more in (("contract",), ("views",), ("servers", other, third)):
                with self.subTest(name):
                    printed = self.run_program(*prefix, self.build(name), LIBRARY, repository, backends, *more, timeout=300)
                    self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_contract(self):
        self.contract()

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_contract_is_clean(self):
        self.contract(*VALGRIND)

    def options(self, *prefix):
        """Each option of a server, by its effect."""
        caller = identity().replace('"identity"', '"caller"')
        slow = identity(parameters={"execute_delay_ms": "3000"})
        guarded = identity(extra='model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/file" value: "98bf7d8c15784f0a3d63204441e1e2aa" } } }\n')
        agents = pathlib.Path(self.directory.name) / "agents"
        servers.place(agents / "checksum" / CHECKSUM.name, CHECKSUM)
        with Repository() as repository, Repository() as other:
            repository.model("identity", identity()).model("slow", slow).model("flaky", caller).model("broken", 'backend: "nowhere"')
            repository.model("bounded", identity(parameters={"execute_delay_ms": "1000", "CONCH_REQUESTS_MAX": "1"}))
            repository.model("caller", caller, files={"configs/second.pbtxt": caller.replace("OUTPUT0", "SECOND").encode()})
            repository.model("guarded", guarded, files={"1/file": b"contents"})
            other.model("identity", identity()).model("added", identity())
            printed = self.run_program(*prefix, self.build("options"), LIBRARY, repository, self.backends_with_caller(), other, agents,
                                       timeout=300)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    @unittest.skipUnless(CHECKSUM.exists(), f"{CHECKSUM.name} is not built in profile {servers.PROFILE}")
    def test_options(self):
        self.options()

    @unittest.skipUnless(CHECKSUM.exists(), f"{CHECKSUM.name} is not built in profile {servers.PROFILE}")
    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_options_are_clean(self):
        self.options(*VALGRIND)

    def backends_with_gpus(self):
        """The backends of the tree, and the one that copies on a GPU."""
        directory = pathlib.Path(self.directory.name) / "gpu-backends"
        if not directory.exists():
            (directory / "gpu_backend").mkdir(parents=True)
            (directory / "identity").symlink_to(self.backends / "identity")
            source = servers.ROOT / "tests/e2e/backends/gpu_backend.c"
            self.compile(source, directory / "gpu_backend/libtriton_gpu_backend.so", "-shared", "-fPIC", str(LIBRARY), "-ldl")
        return directory

    @unittest.skipUnless(cuda.IS_REAL or cuda.DOUBLE.exists(), f"{cuda.DOUBLE} is not built")
    def test_devices(self):
        """Inputs and outputs in memory of GPUs, with and without a GPU."""
        def copier(kind, output):
            return ('backend: "gpu_backend"\n' + tensors("input", [("INPUT0", "UINT8", (-1,))]) + tensors("output", [("OUTPUT0", "UINT8", (-1,))])
                    + f"instance_group [ {{ kind: {kind} }} ]\n"
                    + f'parameters {{ key: "output" value {{ string_value: "{output}" }} }}\n')
        steps = ('ensemble_scheduling { step { model_name: "identity" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } '
                 'output_map { key: "OUTPUT0" value: "OUTPUT0" } } }\n')
        with Repository() as repository, Repository() as plain:
            repository.model("gpu", copier("KIND_GPU", "gpu")).model("cpu", copier("KIND_CPU", "cpu"))
            for each in (repository, plain):
                each.model("identity", identity([("INPUT0", "UINT8", (-1,))])).model("strings", identity([("INPUT0", "STRING", (-1,))]))
            repository.model("ensemble", 'platform: "ensemble"\n' + tensors("input", [("INPUT0", "UINT8", (-1,))])
                             + tensors("output", [("OUTPUT0", "UINT8", (-1,))]) + steps)
            program, backends = self.build("devices"), self.backends_with_gpus()
            printed = self.run_program(program, LIBRARY, repository, backends, "present", environment=cuda.environment(devices=1))
            self.assertTrue(printed.endswith("ok\n"), printed[-3000:])
            if not cuda.IS_REAL:
                printed = self.run_program(program, LIBRARY, plain, backends, "absent")
                self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_refusals(self):
        """What functions refuse, in words."""
        self.assertEqual(self.run_program(self.build("refusals"), LIBRARY, self.repository(), self.backends)[-3:], "ok\n")

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_refusals_are_clean(self):
        self.run_program(*VALGRIND, self.build("refusals"), LIBRARY, self.repository(), self.backends)

    def values(self, *prefix):
        levels = identity(batch=4, extra="dynamic_batching { priority_levels: 5 default_priority_level: 2 }\n")
        with Repository() as repository:
            repository.model("identity", identity()).model("caller", identity().replace('"identity"', '"caller"')).model("levels", levels)
            repository.model("decoupled", identity(extra="model_transaction_policy { decoupled: true }\n"))
            printed = self.run_program(*prefix, self.build("values"), LIBRARY, repository, self.backends_with_caller())
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_values(self):
        self.values()

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_values_are_clean(self):
        self.values(*VALGRIND)

    def cached(self, caches, size, *prefix):
        with Repository() as repository:
            repository.model("cached", identity(extra="response_cache { enable: true }\n"))
            printed = self.run_program(*prefix, self.build("cached"), LIBRARY, repository, self.backends, caches, size)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_response_cache(self):
        for size in (400, 1 << 20):
            self.cached("/nonexistent", size)

    @needs_peer("abi/caches/local/libtritoncache_local.so")
    def test_response_cache_of_upstream(self):
        for size in (400, 1 << 20):
            self.cached(servers.PEERS / "abi/caches", size)

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_response_cache_is_clean(self):
        self.cached("/nonexistent", 400, *VALGRIND)

    def callers(self, *prefix):
        own = {"CONCH_INLINE": "callers"}
        step = ('{ model_name: "callers" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } '
                'output_map { key: "OUTPUT0" value: "OUTPUT0" } }')
        ensemble = ('platform: "ensemble"\n' + tensors("input", [("INPUT0", "FP32", (-1,))]) + tensors("output", [("OUTPUT0", "FP32", (-1,))])
                    + f"ensemble_scheduling {{ step [ {step} ] }}\n"
                    + 'parameters { key: "CONCH_INLINE" value { string_value: "callers" } }\n')
        with Repository() as repository:
            repository.model("callers", identity(parameters=own)).model("plain", identity()).model("ensemble", ensemble)
            printed = self.run_program(*prefix, self.build("callers"), LIBRARY, repository, self.backends)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_threads_that_call_execute(self):
        self.callers()

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_threads_that_call_execute_cleanly(self):
        self.callers(*VALGRIND)

    def streams(self, *prefix):
        one = [("IN", "INT32", (1,))]
        repeat = [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))]
        tail = "model_transaction_policy { decoupled: true }\ninstance_group [ { kind: KIND_CPU } ]\n"
        with Repository() as repository:
            repository.model("repeat", 'backend: "repeat"\n' + tensors("input", repeat) +
                             tensors("output", [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))]) + tail)
            repository.model("square", 'backend: "square"\nmax_batch_size: 4\n' + tensors("input", one) +
                             tensors("output", [("OUT", "INT32", (1,))]) + tail)
            printed = self.run_program(*prefix, self.build("streams"), LIBRARY, repository, self.backends)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    @needs_library("repeat")
    @needs_library("square")
    def test_streams(self):
        self.streams()

    @needs_library("repeat")
    @needs_library("square")
    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_streams_are_clean(self):
        self.streams(*VALGRIND)

    def sequences(self, *prefix):
        idle = "max_sequence_idle_microseconds: 60000000"
        with Repository() as repository:
            repository.model("identity", identity(count=2, extra=f"sequence_batching {{ {idle} }}\n"))
            printed = self.run_program(*prefix, self.build("sequences"), LIBRARY, repository, self.backends)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    def test_sequences_while_their_model_is_loaded_anew(self):
        self.sequences()

    @unittest.skipUnless(shutil.which("valgrind"), "there is no valgrind")
    def test_sequences_while_their_model_is_loaded_anew_are_clean(self):
        self.sequences(*VALGRIND)

    @unittest.skipUnless(shutil.which("g++"), "there is no g++")
    def test_callbacks_that_throw(self):
        repository = self.repository().model("caller", identity().replace('"identity"', '"caller"'))
        printed = self.run_program(self.build("throwing", "cc"), LIBRARY, repository, self.backends_with_caller())
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])

    @needs_library("square")
    def test_python(self):
        io = tensors("input", [("IN", "INT32", (1,))]) + tensors("output", [("OUT", "INT32", (1,))])
        repository = self.repository().model(
            "several", f'backend: "square"\nmodel_transaction_policy {{ decoupled: true }}\n{io}instance_group [ {{ kind: KIND_CPU }} ]\n')
        printed = self.run_program(sys.executable, SOURCES / "embedded.py", LIBRARY, repository, self.backends)
        self.assertTrue(printed.endswith("ok\n"), printed[-3000:])


if __name__ == "__main__":
    unittest.main()
