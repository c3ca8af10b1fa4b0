"""Which public methods of a library's classes, and which public functions of its modules, were called from outside of it, and with which
parameters: what shows that a test left none out."""

import contextlib
import functools
import inspect
import sys
import unittest.mock


def public_classes(modules, library):
    """Name -> class, for each public class of the modules; a class that several of them show is named after the first."""
    found = {}
    for module in modules:
        for name, value in sorted(vars(module).items()):
            ours = inspect.isclass(value) and value.__module__.startswith(library)
            if ours and not name.startswith("_") and value not in found.values():
                found[f"{module.__name__}.{name}"] = value
    return found


def public_methods(cls, library):
    """The public methods of a class, its constructor among them, less those that it has from outside the library."""
    for name in dir(cls):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        static = inspect.getattr_static(cls, name)
        is_method = inspect.isfunction(static) or isinstance(static, (staticmethod, classmethod))
        if is_method and owner.__module__.startswith(library) and (not name.startswith("_") or name == "__init__"):
            yield name


def parameters(function):
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name != "self"]


class Watch:
    """While it is entered, calls are noted: `called` holds `place` and, for each parameter that was given, `place(parameter)`."""

    def __init__(self, library, classes, modules=()):
        self.library, self.classes, self.modules = library, classes, modules
        self.called, self._patches = set(), contextlib.ExitStack()

    def everything(self):
        """All that could be called."""
        places = set()
        for place, owner, name in self._places():
            places.add(place)
            places.update(f"{place}({parameter})" for parameter in parameters(getattr(owner, name)))
        return places

    def _places(self):
        """(how it is called here, owner, name) of each method and function."""
        for label, cls in self.classes.items():
            for name in public_methods(cls, self.library):
                yield (label if name == "__init__" else f"{label}.{name}"), cls, name
        for module in self.modules:
            for name, value in sorted(vars(module).items()):
                if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__:
                    yield f"{module.__name__}.{name}", module, name

    def _noting(self, place, function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(*positional, **named):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith(self.library):
                self.called.add(place)
                given = signature.bind(*positional, **named).arguments
                self.called.update(f"{place}({name})" for name in given if name != "self")
            return function(*positional, **named)
        return noted

    def __enter__(self):
        # All are looked up before the first is replaced: classes inherit from each other.
        found = [(place, owner, name, getattr(owner, name), inspect.getattr_static(owner, name)) for place, owner, name in self._places()]
        for place, owner, name, function, static in found:
            noted = self._noting(place, function)
            # What is bound already stays as it is.
            is_plain = inspect.ismodule(owner) or inspect.isfunction(static)
            self._patches.enter_context(unittest.mock.patch.object(owner, name, noted if is_plain else staticmethod(noted)))
        return self

    def __exit__(self, *_):
        self._patches.close()
