"""What can happen to a model file of any format, by name: other bytes in its place, or a part of it."""

import numpy

NOISE = numpy.random.default_rng(7).bytes(4096)
# Nothing of a model.
OTHERS = {
    "empty": b"",
    "zeros": bytes(4096),
    "noise": NOISE,
    "text": b"<html>404 Not Found</html>",
}


def cut(sound, start=7, end=1):
    """A sound file of which the first `start` bytes are left, the first half, or all but the last `end`."""
    return {
        "cut_at_the_start": sound[:start],
        "cut_in_the_middle": sound[:len(sound) // 2],
        "cut_at_the_end": sound[:-end],
    }
