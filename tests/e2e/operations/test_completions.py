"""`conch completions` and `conch man`, as a shell and man read them."""

import shutil
import subprocess
import tempfile
import unittest

from case import conch_only
from test_process import PROGRAM, run

# Completes the words that bash makes of a line, and prints what it offers.
ASK = """
source <("$1" completions bash)
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_conch
printf '%s\\n' "${COMPREPLY[@]}"
"""


@conch_only
class Completions(unittest.TestCase):
    def offered(self, *words, folder=None):
        done = subprocess.run(["bash", "-c", ASK, "bash", PROGRAM, "conch", *words], capture_output=True, text=True, timeout=60,
                              check=True, cwd=folder)
        self.assertEqual(done.stderr, "")
        return done.stdout.split("\n")[:-1]

    def test_bash(self):
        for words, expected in (
                (("--model-control-mode", ""), ["none", "poll", "explicit"]),
                (("--model-control-mode", "=", "e"), ["explicit"]),
                (("--model-control-mode", "="), ["none", "poll", "explicit"]),
                (("--allow-http", "t"), ["true"]),
                (("--http-port", ""), [""]),
                (("--http-por",), ["--http-port"]),
                (("--model-repository", "m", "--grpc-por"), ["--grpc-port"]),
                (("completions", ""), ["bash", "zsh", "fish"]),
                (("completions", "z"), ["zsh"]),
                (("doctor", ""), ["--json"]),
                (("top", "--"), ["--once", "--header", "--ca-certificate"]),
                (("man", ""), [""]),
                (("check", "--js"), ["--json"]),
                (("check", "--model-repo"), ["--model-repository"])):
            self.assertEqual(self.offered(*words), expected, words)

    def test_every_flag(self):
        flags = [line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  --")]
        self.assertGreater(len(flags), 100)
        self.assertEqual(self.offered("--"), flags)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("net.onnx", "my net.onnx"):
                open(f"{folder}/{name}", "w").close()
            self.assertEqual(sorted(self.offered("", folder=folder)),
                             ["bench", "check", "completions", "doctor", "infer", "man", "my net.onnx", "net.onnx", "top"])
            self.assertEqual(self.offered("--log-file", "=", "my", folder=folder), ["my net.onnx"])
            self.assertEqual(self.offered("c", folder=folder), ["check", "completions"])

    def test_scripts_have_no_errors(self):
        for shell in ("bash", "zsh", "fish"):
            code, script, errors = run("completions", shell)
            self.assertEqual((code, errors), (0, ""))
            if shutil.which(shell):
                done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)

    def test_wrong_words(self):
        for words, reason in ((("completions",), "Usage: conch completions bash|zsh|fish"), (("completions", "tcsh"), "Unexpected argument: tcsh"),
                              (("man", "x"), "Usage: conch man")):
            code, out, errors = run(*words)
            self.assertEqual((code, out), (1, ""))
            self.assertIn(reason, errors)
        for word in ("completions", "man"):
            code, out, errors = run(word, "--help")
            self.assertEqual((code, errors), (0, ""))
            self.assertIn(f"Usage: conch {word}", out)


@conch_only
class Manual(unittest.TestCase):
    def test_page(self):
        code, page, errors = run("man")
        self.assertEqual((code, errors), (0, ""))
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-cbou"], input=page, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for text in ("--model-control-mode none|poll|explicit", "Default: none.", "EXIT STATUS", "conch check REPOSITORY..."):
            self.assertIn(text, done.stdout.replace("\u2010", "-"))


if __name__ == "__main__":
    unittest.main()
