"""Cases of a model in a file: feeds and answers by name. Programs for the Pythons of frameworks write them and tests read them, so that
this needs numpy alone."""

import numpy


def write(path, cases):
    """As arrays `in.<case>.<name>` and `out.<case>.<name>`."""
    numpy.savez(path, **{f"{side}.{number}.{name}": value for number, case in enumerate(cases)
                         for side, values in zip(("in", "out"), case) for name, value in values.items()})


def read(path):
    """Pairs of feeds and answers."""
    found = []
    with numpy.load(path) as arrays:
        for key in arrays.files:
            side, number, name = key.split(".", 2)
            while len(found) <= int(number):
                found.append(({}, {}))
            found[int(number)][side == "out"][name] = arrays[key]
    return found
