"""What a test does about processes that its server left behind: they hold the server's output open, and nobody may wait for them without
bound."""

import os
import pathlib
import sys
import unittest
from unittest import mock

import server as servers
from case import conch_only
from repository import Repository, identity
from waiting import until

# Starts a process in a session of its own that inherits the output, and becomes the server.
PREFIX = [sys.executable, "-c", "import os, subprocess, sys; subprocess.Popen(['sleep', '3600'], start_new_session=True); "
          "os.execvp(sys.argv[1], sys.argv[1:])"]


@conch_only
class LeftBehind(unittest.TestCase):
    def setUp(self):
        self.repository = Repository().model("identity", identity())
        self.addCleanup(self.repository.close)
        self.enterContext(mock.patch.object(servers, "END_OF_OUTPUT_S", 0.5))

    def start(self):
        server = servers.Server(self.repository, prefix=PREFIX)
        self.addCleanup(server.kill)
        heirs = {pid for pid, command in server._heirs().items() if command == "sleep 3600"}
        self.assertEqual(len(heirs), 1)
        return server, heirs.pop()

    def assert_gone(self, server, pid):
        # Whoever has become its parent may not have asked for its end yet.
        stat = pathlib.Path(f"/proc/{pid}/stat")
        until(lambda: not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", f"the end of process {pid}")
        self.assertFalse(any(reader.is_alive() for reader in server._readers))

    def test_the_end_names_and_kills_them(self):
        server, pid = self.start()
        with self.assertRaisesRegex(AssertionError, rf"ended with code 0 and left processes, which were killed: {pid} sleep 3600"):
            server.terminate()
        self.assert_gone(server, pid)
        self.assertEqual(server._heirs(), {})

    def test_a_kill_kills_them(self):
        server, pid = self.start()
        server.kill()
        self.assert_gone(server, pid)
        self.assertTrue(server.process.stdout.closed)

    def test_none_is_found_where_none_is(self):
        with servers.Server(self.repository) as server:
            self.assertEqual(set(server._heirs()), {server.pid})
            self.assertNotIn(os.getpid(), server._heirs())


if __name__ == "__main__":
    unittest.main()
