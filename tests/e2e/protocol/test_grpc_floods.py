"""Frames that cost a client nothing: each kind ends the connection at a bound, and clients that only cancel or ping a lot live on."""

import struct
import threading
import time
import unittest

import wire
from case import conch_only
from test_grpc_transport import Base

PRIORITY, ENHANCE_YOUR_CALM, REFUSED_STREAM = 2, 11, 7
CANCEL = struct.pack(">I", 8)
LIVE = b"\0\0\0\0\0"


def call(stream, method="ServerLive", flags=4):
    return wire.frame(wire.HEADERS, flags, stream, wire.call_head(method))


@conch_only
class Floods(Base):
    """What an attacker sends within milliseconds. Bounds are counts: 20,000 frames are more than any of them."""

    COUNT = 20_000

    def flood(self, raw, has_call=False):
        """Sends `raw`, and reads until the connection ends: (code, words) of the server's farewell, where it got through."""
        connection = self.connect(has_call)
        connection.link.settimeout(60)
        try:
            connection.link.sendall(raw)
        except ConnectionError:
            pass
        farewells = []
        while (got := connection.next()) is not None:
            if got[0] == wire.GOAWAY:
                farewells.append((int.from_bytes(got[3][4:8], "big"), got[3][8:]))
        self.assert_serves()
        return farewells

    def assert_calmed(self, raw, words, has_call=False):
        # A reset may overtake the farewell where the client still sends; in five attempts it does not each time.
        for _ in range(5):
            farewells = self.flood(raw, has_call)
            if farewells:
                break
        self.assertEqual(farewells, [(ENHANCE_YOUR_CALM, words)])

    def test_settings(self):
        self.assert_calmed(wire.frame(wire.SETTINGS, 0, 0) * self.COUNT, b"too_many_settings")

    def test_table_sizes_in_settings(self):
        rows = b"".join(wire.frame(wire.SETTINGS, 0, 0, struct.pack(">HI", 1, size % 4096)) for size in range(self.COUNT))
        self.assert_calmed(rows, b"too_many_settings")

    def test_table_sizes_in_headers(self):
        block = b"\x20\x3f\xe1\x1f" * 100 + wire.call_head("ServerLive")
        self.assert_calmed(wire.frame(wire.HEADERS, 4, 1, block), b"too_many_table_updates")

    def test_two_table_sizes_are_fine(self):
        connection = self.connect()
        connection.send(wire.frame(wire.HEADERS, 4, 1, b"\x20\x3f\xe1\x1f" + wire.call_head("ServerLive")), wire.frame(wire.DATA, 1, 1, LIVE))
        self.assertEqual(connection.wait_for(wire.DATA)[3], b"\0\0\0\0\x02\x08\x01")

    def test_pings(self):
        """They come too soon after one another."""
        self.assert_calmed(wire.frame(wire.PING, 0, 0, bytes(8)) * self.COUNT, b"too_many_pings")

    def test_answers_to_pings_that_nobody_sent(self):
        self.assert_calmed(wire.frame(wire.PING, 1, 0, bytes(8)) * self.COUNT, b"too_many_control_frames")

    def test_empty_data(self):
        self.assert_calmed(call(3, "ModelStreamInfer") + wire.frame(wire.DATA, 0, 3) * self.COUNT, b"too_many_empty_frames")

    def test_padding(self):
        self.assert_calmed(call(3, "ModelStreamInfer") + wire.frame(wire.DATA, 8, 3, b"\x07" + bytes(7)) * self.COUNT, b"too_many_empty_frames")

    def test_priorities(self):
        self.assert_calmed(wire.frame(PRIORITY, 0, 1, bytes(4) + b"\x10") * self.COUNT, b"too_many_control_frames")

    def test_window_updates(self):
        self.assert_calmed(wire.frame(wire.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * self.COUNT, b"too_many_control_frames")

    def test_unknown_frames(self):
        self.assert_calmed(wire.frame(99, 0, 0, b"x") * self.COUNT, b"too_many_control_frames")

    def test_continuations(self):
        """Of one block, which never ends."""
        self.assert_calmed(call(1, flags=0) + wire.frame(wire.CONTINUATION, 0, 1) * self.COUNT, b"too_many_continuations")

    def test_resets_at_once(self):
        streams = range(3, 3 + 2 * self.COUNT, 2)
        self.assert_calmed(b"".join(call(stream) + wire.frame(wire.RST_STREAM, 0, stream, CANCEL) for stream in streams), b"too_many_resets")

    def test_resets_of_one_call(self):
        """It is under way at the first one, and over at all others."""
        self.assert_calmed(wire.frame(wire.RST_STREAM, 0, 1, CANCEL) * self.COUNT, b"too_many_resets", has_call=True)

    def test_a_client_that_cancels_every_second_call_lives(self):
        """More resets than an attacker may send, each earned by an answered call."""
        connection = self.connect()
        connection.link.settimeout(60)
        for stream in range(3, 3 + 4 * 2600, 4):
            connection.send(call(stream), wire.frame(wire.DATA, 1, stream, LIVE), call(stream + 2, "ModelStreamInfer"))
            has_ended = has_begun = False
            while not (has_ended and has_begun):
                _, flags, number, _ = connection.wait_for(wire.HEADERS)
                has_ended |= number == stream and bool(flags & 1)
                has_begun |= number == stream + 2
            connection.send(wire.frame(wire.RST_STREAM, 0, stream + 2, CANCEL),
                            wire.frame(wire.WINDOW_UPDATE, 0, 0, struct.pack(">I", 7)))
        connection.send(wire.frame(wire.PING, 0, 0, bytes(8)))
        while (got := connection.wait_for(wire.PING, wire.GOAWAY))[0] != wire.PING:
            self.fail(got)

    def test_calls_beyond_the_bound_are_refused_to_the_last(self):
        """Also those that came while the refusals of others filled the queue, whether the client reads them at once or not."""
        for more_count, pause_s in ((30_000, 0), (60_000, 0), (200_000, 1)):
            with self.subTest(more_count):
                self.refuse_beyond(1024, more_count, pause_s)

    def refuse_beyond(self, open_count, more_count, pause_s):
        connection = self.connect()
        connection.link.settimeout(60)
        connection.send(*(call(2 * index + 1, "ModelStreamInfer") for index in range(open_count)))
        first = 2 * open_count + 1
        beyond = b"".join(wire.frame(wire.HEADERS, 4, first + 2 * index, b"\x83\x86\x84") for index in range(more_count))
        sender = threading.Thread(target=connection.link.sendall, args=(beyond + wire.frame(wire.PING, 0, 0, bytes(8)),))
        sender.start()
        self.addCleanup(sender.join)
        time.sleep(pause_s)
        refused = 0
        while (got := connection.wait_for(wire.RST_STREAM, wire.PING, wire.GOAWAY))[0] == wire.RST_STREAM:
            self.assertEqual((got[2], got[3]), (first + 2 * refused, struct.pack(">I", REFUSED_STREAM)))
            refused += 1
        self.assertEqual((got[0], refused), (wire.PING, more_count))


if __name__ == "__main__":
    unittest.main()
