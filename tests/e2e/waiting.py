"""Waits for what a server tells, with a deadline, instead of sleeping for as long as it usually takes."""

import asyncio
import time

# Between two looks: short beside the requests of the tests, and long beside the CPU time of a look.
LOOK_S = 0.002


def until(read, what, seconds=20, accept=bool):
    """Calls `read` until `accept` of its value is true, and returns that value.

    `what` says what is waited for, as text or as a function that is called at the end. The failure tells it and the last value."""
    deadline = time.monotonic() + seconds
    while not accept(value := read()):
        fail_after(deadline, what, seconds, value)
        time.sleep(LOOK_S)
    return value


def until_equal(read, expected, what, seconds=20):
    """Calls `read` until its value is `expected`; `what` names that value."""
    return until(read, f"{what} should be {expected!r}", seconds, lambda value: value == expected)


async def until_async(read, what, seconds=20):
    """Awaits `read` until its value is true, and returns that value."""
    deadline = time.monotonic() + seconds
    while not (value := await read()):
        fail_after(deadline, what, seconds, value)
        await asyncio.sleep(LOOK_S)
    return value


def fail_after(deadline, what, seconds, value):
    if time.monotonic() > deadline:
        text = repr(value)
        if len(text) > 2_000:
            text = f"{text[:2_000]}... ({len(text)} characters)"
        raise AssertionError(f"waited {seconds} s: {what() if callable(what) else what}; the last value was {text}")
