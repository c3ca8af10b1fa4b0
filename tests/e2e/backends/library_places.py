"""Where a backend looks for its framework's library: tests with a backend directory that has the backend alone."""

import shutil
import unittest

import numpy
import tritonclient.http as httpclient

import server as servers
from case import KIND, conch_only
from framework import infer, load
from repository import Repository
from server import Server, StartFailed


class LibraryCase(unittest.TestCase):
    """Starts servers whose repositories `add_models` fills."""

    runtime = None

    def add_models(self, repository):
        raise NotImplementedError

    def start(self, environment, *flags):
        name = self.runtime.backend
        repository, backends = Repository(), Repository()
        self.addCleanup(repository.close)
        self.addCleanup(backends.close)
        self.add_models(repository)
        (backends.path / name).mkdir()
        shutil.copy(servers.built(f"libtriton_{name}.so"), backends.path / name)
        return Server(repository.path, *flags, kind=KIND, environment=environment, backends=backends.path)

    def assert_does_not_start(self, text, environment, *flags):
        with self.assertRaises(StartFailed) as raised:
            self.start(environment, *flags)
        self.assertIn(text, raised.exception.output)

    def assert_not_loaded(self, environment, texts):
        """`texts`: by the names of models, what is in the one line that says why they are refused."""
        with self.start(environment, "--model-control-mode=explicit") as server:
            for name, text in texts.items():
                with self.subTest(model=name):
                    status, error = load(server, name)
                    self.assertEqual(status, 400, error)
                    self.assertIn(text, error)
                    self.assertEqual(len(error.strip().splitlines()), 1, error)


class AllPlaces(LibraryCase):
    """No library, another one, and the folder of the right one; `add_models` adds the oracle's model `addsub`. A test file imports the
    module, since what it imports by name counts as a case of its own."""

    oracle = None
    # Pairs of a library that is not the framework's, and what the server says of it.
    others = ()

    @conch_only
    def test_none_says_how_to_get_one(self):
        self.assert_does_not_start(f"run scripts/fetch-runtime {self.runtime.name}", {self.runtime.variable: ""})

    @conch_only
    def test_another_library(self):
        for library, text in self.others:
            with self.subTest(library=library):
                self.assert_does_not_start(text, {}, f"--backend-config={self.runtime.backend},library={library}")

    def test_a_setting_names_a_folder(self):
        folder = f"--backend-config={self.runtime.backend},library={self.runtime.library.parent}"
        with self.start({self.runtime.variable: "/nowhere"}, folder) as server, httpclient.InferenceServerClient(server.http) as client:
            feeds, answers = self.oracle.cases("addsub")[0]
            got = infer(httpclient, client, "addsub", feeds)
            self.assertEqual(set(got), set(answers))
            for name, value in answers.items():
                numpy.testing.assert_array_equal(got[name], value)
