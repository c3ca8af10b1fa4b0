"""Models named on the command line, in no repository: names, what belongs to them, the request that is printed for each, reloads, the
folder of links, and what is refused."""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import onnx_model
import server as servers
from case import conch_only, needs_library
from onnx_model import FLOAT, FLOAT16, STRING, model, node
from repository import Repository, identity, tensors
from test_process import run
from waiting import until_equal

FREE = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def scale(factor, dims=("n", 2), kind=FLOAT):
    """Y = X * factor."""
    if kind == FLOAT16:
        return model([("X", kind, dims)], [("Y", kind, dims)], [node("Add", ["X", "X"], ["Y"])])
    return model([("X", kind, dims)], [("Y", kind, dims)], [node("Mul", ["X", "f"], ["Y"])],
                 [onnx_model.constant("f", [factor], FLOAT)])


@conch_only
@needs_library("onnxruntime")
class Standalone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="conch-standalone-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()

    def write(self, place, content):
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def serve(self, *words, repository=(), **more):
        environment = {"TMPDIR": str(self.temporary), **more.pop("environment", {})}
        server = servers.Server(list(repository), *map(str, words), environment=environment, **more)
        self.addCleanup(server.kill)
        return server

    def command(self, server, name):
        """The command that is printed for a model."""
        server.wait_for_match(rf"Ask model '{re.escape(name)}', in another terminal:\n\n.*curl .+")
        lines = server.output.splitlines()
        return lines[lines.index(f"Ask model '{name}', in another terminal:") + 2]

    def ask(self, server, name, shell="sh"):
        """What the shell prints that is given the command."""
        done = subprocess.run([shell, "-c", self.command(server, name)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def outputs(self, server, name, shell="sh"):
        answer = json.loads(self.ask(server, name, shell))
        self.assertEqual(answer["model_name"], name)
        return {output["name"]: (output["datatype"], output["shape"], output["data"]) for output in answer["outputs"]}

    def test_files(self):
        weights = model([("X", FLOAT, ("n", 4))], [("Y", FLOAT, ("n", 4))], [node("Add", ["X", "W"], ["Y"])],
                        [onnx_model.outside("W", FLOAT, [4], "weights.bin", 0, 16)])
        self.write("weights.bin", struct.pack("<4f", 1, 2, 3, 4))
        strings = model([("it's", STRING, ("n", 2))], [("T", STRING, ("n", 2))], [node("Identity", ["it's"], ["T"])])
        files = [self.write("beside.onnx", weights), self.write("my net (2).onnx", scale(3.0)), self.write("UPPER.ONNX", scale(4.0, ("n", 1))),
                 self.write("strings.onnx", strings), self.write("image.onnx", scale(2.0, (1, 3, 64, 64))),
                 self.write("half.onnx", scale(2.0, ("n", 2), FLOAT16)), self.write("minilm/onnx/model.onnx", scale(5.0)),
                 f"named={self.write('-odd$(x).onnx', scale(6.0))}"]
        with self.serve(*files) as server:
            index = json.loads(server.request("POST", "/v2/repository/index")[2])
            names = ["UPPER", "beside", "half", "image", "minilm", "my_net_2_", "named", "strings"]
            self.assertEqual([(row["name"], row["state"]) for row in index], [(name, "READY") for name in names])
            self.assertEqual(self.outputs(server, "beside"), {"Y": ("FP32", [1, 4], [2, 3, 4, 5])})
            self.assertEqual(self.outputs(server, "my_net_2_", "bash"), {"Y": ("FP32", [1, 2], [3, 3])})
            self.assertEqual(self.outputs(server, "minilm"), {"Y": ("FP32", [1, 2], [5, 5])})
            self.assertEqual(self.outputs(server, "named"), {"Y": ("FP32", [1, 2], [6, 6])})
            self.assertEqual(self.outputs(server, "strings"), {"T": ("BYTES", [1, 2], ["text", "text"])})
            image = self.ask(server, "image")
            self.assertRegex(image, r'^\{"model_name":"image".*"shape":\[1,3,64,64\],"data":\[0\.0,0\.0,')
            self.assertEqual(len(image.rstrip("\n")), 400)
            self.assertRegex(self.ask(server, "half"), r'"datatype":"FP16","shape":\[1,2\],"parameters":\{"binary_data_size":4\}')
            # As for any model without a configuration: what can batch batches.
            config = server.get_json("/v2/models/UPPER/config")
            self.assertEqual((config["max_batch_size"], "dynamic_batching" in config, config["backend"]), (4, True, "onnxruntime"))
            self.assertEqual(config["default_model_filename"], "UPPER.ONNX")
            self.assertEqual(server.get_json("/v2/models/image/config")["max_batch_size"], 0)

    def test_models_of_others(self):
        """Real ones, with names as their authors gave them."""
        places = {"alexa_v0.1": "openwakeword/alexa_v0.1.onnx", "ch_ppocr_mobile_v2.0_cls_infer": "rapidocr/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                  "embedding_model": "openwakeword/embedding_model.onnx"}
        if not all((servers.CACHE / "models" / place).exists() for place in places.values()):
            self.skipTest("the models are not there: run scripts/fetch-models")
        with self.serve(*(servers.CACHE / "models" / place for place in places.values())) as server:
            for name in places:
                metadata = server.get_json(f"/v2/models/{name}")
                command = self.command(server, name)
                for tensor in metadata["inputs"]:
                    shape = ",".join(str(max(dim, 1)) for dim in tensor["shape"])
                    self.assertIn(f'"name":"{tensor["name"]}","datatype":"{tensor["datatype"]}","shape":[{shape}]', command)
            answer = self.ask(server, "alexa_v0.1")
            self.assertIn('"model_name":"alexa_v0.1"', answer)
            self.assertIn('"shape":[1,1]', answer)

    def test_a_directory_beside_a_repository(self):
        path = self.folder / "doubled"
        Repository.model(self.holder(path.parent), "doubled", identity(extra="sequence_batching { }", batch=2), versions=("1", "3"))
        Repository.model(self.holder(path.parent), "repeat", 'backend: "repeat" model_transaction_policy { decoupled: true }\n' + tensors(
            "input", [("IN", "INT32", (1,)), ("DELAY", "UINT32", (1,)), ("WAIT", "UINT32", (1,))]) + tensors(
                "output", [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))]))
        with Repository().model("other", identity()) as repository:
            with self.serve("doubled", "repeat/", repository=[repository], prefix=("env", "-C", self.folder)) as server:
                self.assertEqual(server.get_json("/v2/models/doubled")["versions"], ["3"])
                self.assertEqual(server.get("/v2/models/other/ready")[0], 200)
                self.assertNotIn("Ask model 'other'", server.output)
                self.assertEqual(self.outputs(server, "doubled"), {"OUTPUT0": ("FP32", [1, 1], [1])})
                self.assertIn('data: {"IDX":0,"OUT":1', self.ask(server, "repeat").replace('"OUT":1,"IDX":0', '"IDX":0,"OUT":1'))

    @staticmethod
    def holder(path):
        """A repository at a path of ours, for the method that writes models."""
        holder = Repository.__new__(Repository)
        holder.path = path
        return holder

    def test_a_python_file_and_what_it_imports(self):
        if not servers.built("libtriton_python.so").exists():
            self.skipTest("the Python backend is not built")
        self.write("helper.py", b"FACTOR = 3\n")
        self.write("tools/__init__.py", b"OFFSET = 1\n")
        path = self.write("triple.py", b'''
import triton_python_backend_utils as pb_utils
import helper, tools

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * helper.FACTOR
                                                            + tools.OFFSET)]) for request in requests]
''')
        with self.serve(path, environment={"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}) as server:
            self.assertEqual(self.outputs(server, "triple"), {"Y": ("FP32", [2], [4, 4])})

    def test_forests(self):
        """The suffix says the format, whatever the file is called; what is beside it is not looked at."""
        if not servers.built("libtriton_fil.so").exists():
            self.skipTest("the fil backend is not built")
        import numpy
        import fil_models
        rows, labels = numpy.random.default_rng(1).random((64, 3), numpy.float32), numpy.arange(64) % 2
        for kind, suffix in (("xgboost_json", "json"), ("xgboost_ubj", "ubj")):
            self.write(f"trees.{suffix}", fil_models.boosted(rows, labels, kind=kind)[1])
        files = [self.folder / "trees.json", f"ubj={self.folder / 'trees.ubj'}"]
        with self.serve(*files) as server:
            answers = [self.outputs(server, name)["output__0"] for name in ("trees", "ubj")]
            self.assertEqual(answers[0][:2], ("FP32", answers[0][1]))
            self.assertEqual(answers[0], answers[1])
            self.assertIn('"name":"input__0","datatype":"FP32","shape":[1,3]', self.command(server, "trees"))

    def test_openvino(self):
        """Weights lie beside the file under its name, and another model's do not matter."""
        import openvino_models
        if not (servers.CACHE / "openvino").is_dir():
            self.skipTest("OpenVINO is not there: run scripts/fetch-runtime openvino")
        for name, weights in (("first", (1, 2, 3, 4)), ("second", (5, 6, 7, 8))):
            for place, content in openvino_models.scaled(weights=weights).items():
                self.write(place.replace("model", name), content)
        with self.serve(self.folder / "first.xml", self.folder / "second.xml") as server:
            self.assertEqual(self.outputs(server, "first"), {"Y": ("FP32", [1, 4], [1, 2, 3, 4])})
            self.assertEqual(self.outputs(server, "second"), {"Y": ("FP32", [1, 4], [5, 6, 7, 8])})

    def test_a_configuration_beside_the_file(self):
        """It says what it says; backend and file name are completed."""
        path = self.write("net.onnx", scale(2.0))
        self.write("net.pbtxt", b'max_batch_size: 7\ninstance_group [ { count: 2 kind: KIND_CPU } ]')
        with self.serve(path) as server:
            config = server.get_json("/v2/models/net/config")
            self.assertEqual((config["max_batch_size"], config["instance_group"][0]["count"]), (7, 2))
            self.assertEqual((config["backend"], config["default_model_filename"]), ("onnxruntime", "net.onnx"))
            self.assertEqual(self.outputs(server, "net")["Y"][2], [2, 2])
        self.write("net.pbtxt", b"no_such_field: 7")
        self.assertIn("net.pbtxt", self.refused(path))

    def test_reloads(self):
        """By request, in explicit mode, and by polling: a file that was replaced under its name."""
        path = self.write("net.onnx", scale(2.0))

        def replace(factor):
            fresh = self.write("fresh", scale(factor))
            os.utime(fresh, ns=(0, int(factor) * 10**9))
            fresh.rename(path)

        with self.serve(path, "--model-control-mode=explicit") as server:
            self.assertEqual(self.outputs(server, "net")["Y"][2], [2, 2])
            replace(3.0)
            self.assertEqual(server.post_json("/v2/repository/models/net/load", {})[0], 200)
            self.assertEqual(self.outputs(server, "net")["Y"][2], [3, 3])
            self.assertEqual(server.post_json("/v2/repository/models/net/unload", {})[0], 200)
        with self.serve(path, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
            self.assertEqual(self.outputs(server, "net")["Y"][2], [3, 3])
            replace(5.0)
            until_equal(lambda: self.outputs(server, "net")["Y"][2], [5, 5], "the answer of the new file", 60)
        with self.serve(path) as server:
            self.assertEqual(server.post_json("/v2/repository/models/net/load", {})[0], 503)

    def test_the_folder_of_links(self):
        path = self.write("net.onnx", scale(2.0))
        server = self.serve(path)
        folder, = self.temporary.glob("conch-files-*")
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        self.assertEqual(os.readlink(folder / "models/net/1/net.onnx"), str(path))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        self.assertTrue(folder.exists())
        with self.serve(path) as server:
            fresh, = self.temporary.glob("conch-files-*")
            self.assertNotEqual(fresh, folder, "what a killed server left is gone")
            self.assertTrue(server.is_alive())
            # A second server at the same time leaves the first alone.
            with self.serve(path):
                self.assertTrue(fresh.exists())
        self.assertEqual(list(self.temporary.glob("conch-files-*")), [])
        self.assertTrue(path.exists())

    def test_the_listener(self):
        path = self.write("net.onnx", scale(2.0))
        socket = self.folder / "a socket"
        with self.serve(path, f"--http-address=unix:{socket}") as server:
            self.assertEqual(self.outputs(server, "net")["Y"][2], [2, 2])
        with self.serve(path, "--http-restricted-api=inference:key=secret") as server:
            command = self.command(server, "net")
            self.assertIn("-H 'key: <value>'", command)
            self.assertNotIn("secret", server.output)
        with self.serve(path, "--allow-http=false", expect_ready=False) as server:
            server.wait_for_line("serving: gRPC")
            self.assertNotIn("curl", server.output)
        with self.serve(path, "--log-format=json") as server:
            server.wait_for_line("curl -sS")
            for line in server.lines:
                self.assertEqual(line, line and json.dumps(json.loads(line), separators=(",", ":"), ensure_ascii=False), "lines of JSON and nothing else")

    def refused(self, *words, **more):
        code, out, errors = run(*FREE, f"--backend-directory={servers.backend_directory()}", *map(str, words),
                                env={**os.environ, "TMPDIR": str(self.temporary)}, **more)
        self.assertEqual(code, 1)
        self.assertNotIn("curl", out)
        self.assertEqual(list(self.temporary.glob("conch-files-*")), [])
        return errors

    def test_refusals(self):
        path = self.write("net.onnx", scale(2.0))
        other = self.write("other/net.onnx", scale(2.0))
        bare, unknown = self.write("bare.pt", b""), self.write("net.h5", b"")
        for words, reason in (
                (("nosuch.onnx",), "Unexpected argument: nosuch.onnx\nIt is neither an option nor a command"),
                ((unknown,), "the name of a model's file ends with one of .onnx, .plan"),
                ((path, other), f"'{path}' and '{other}' would both be model 'net'. Name one of them: <name>={other}"),
                ((bare,), "write a configuration with `input` and `output` beside it, 'bare.pbtxt'"),
                ((f"na/me={path}",), "'na/me' cannot be the name of a model"),
                ((self.folder,), f"--model-repository={self.folder}"),
                (("s3://bucket/net.onnx",), "--model-repository")):
            errors = self.refused(*words)
            self.assertIn(reason, errors)
            self.assertTrue(errors.rstrip().endswith("'conch --help' lists all options."), errors)
        with Repository().model("net", identity()) as repository:
            errors = self.refused(f"--model-repository={repository}", path)
            self.assertRegex(errors, "(?s)net.*(unique|two or more)")
        with tempfile.TemporaryDirectory() as empty:
            errors = self.refused(path, f"--backend-directory={empty}")
            self.assertRegex(errors, rf"backend 'onnxruntime' of model 'net' is not found: .*backend directory '{empty}'")

    def test_by_scripts_serve(self):
        """The script takes files, too, relative to where it is called."""
        from test_serve import PORTS, Scripted
        if os.geteuid() != 0 and not shutil.which("gcc"):
            self.skipTest("system packages are missing")
        self.write("net.onnx", scale(2.0))
        script = Scripted(self.folder, *PORTS, "net.onnx")
        self.addCleanup(script.process.kill)
        index = script.index()
        self.assertIn('"net"', index)
        self.assertNotIn("addsub", index)
        self.assertEqual(script.end(), 0)


if __name__ == "__main__":
    unittest.main()
