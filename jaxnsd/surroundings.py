"""What the methods of a class read beside their arguments: globals, what they close over, and attributes of the class.

JAX keeps what it has traced by the structure of the arguments. A notebook that says ``G = 1.62`` after ``G = 9.81`` would get the run with
the old one again, so that these values are a part of the structure. What is assigned anew is seen, what is changed in place is not.
"""

import dis
import functools
import operator
import sys
import types
import weakref

import jax

from .fingerprint import PLAIN, WRAPPERS, is_installed, is_named, names_in

_MISSING = object()


class Surroundings:
    """Values that were found, equal to others where numbers and texts are equal, and everything else is the same object."""

    def __init__(self, values):
        self.values = values
        self.key = tuple(map(_key, values))

    def __eq__(self, other):
        return isinstance(other, Surroundings) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def __reduce__(self):
        # For a fingerprint: that of the class has all of it.
        return type(self), ((),)

    def __repr__(self):
        return f"<{len(self.values)} values that its methods read>"


def _key(x):
    """A number or a text by what it is, with the sign of a zero; else by its identity: who has the key has the object, which lives on."""
    if isinstance(x, tuple):
        return tuple, *map(_key, x)
    return (type(x), repr(x)) if type(x) in PLAIN else id(x)


class Watch:
    """The `Surroundings` of a class, each time it is called; None of a class of this package."""

    def __init__(self, cls):
        self.cls = cls
        self.found, self.size = None, None
        self.places, self.cells = [], []

    @functools.cached_property
    def parts(self):
        """The attributes of the user's classes among those it is derived from; asked for once their modules are complete."""
        return [vars(part) for part in self.cls.__mro__ if not is_named(part)]

    def __call__(self):
        if not self.parts:
            return None
        # As it was, in nearly all cases: looked up, but not looked for.
        size, values = sum(map(len, self.parts)), self.look()
        if size != self.size or not all(map(operator.is_, values, self.found.values)):
            self.places, self.cells = self.search()
            self.size, self.found = size, Surroundings(self.look())
        return self.found

    def look(self):
        """The values that are read now."""
        values = [of.get(name, _MISSING) for of, name in self.places] + [_content(cell) for cell in self.cells]
        # What is traced must not live on with what JAX keeps. The reference does, and no other has its identity.
        return [weakref.ref(x) if isinstance(x, jax.core.Tracer) else x for x in values]

    def search(self):
        """``(places, cells)`` where the methods read, and the functions that they call, as far as these are the user's."""
        places, cells = [(part, name) for part in self.parts for name in part if not name.startswith("__")], []
        waiting, seen = [part[name] for part, name in places], set()
        while waiting:
            x = waiting.pop()
            cls = x if isinstance(x, type) else type(x)
            if id(cls) not in seen and not is_installed(sys.modules.get(cls.__module__)):
                # What they call may be an object of the user's.
                seen.add(id(cls))
                of_class = [(vars(cls), name) for name, value in vars(cls).items() if _function(value)]
                waiting += [of[name] for of, name in of_class] + list(cls.__mro__[1:])
                places += of_class
            x = _function(x)
            if x is None or id(x) in seen:
                continue
            seen.add(id(x))
            written = _written(x.__code__)
            closed_over = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
            own = [cell for name, cell in closed_over if name not in written]
            read = [(x.__globals__, name) for name in names_in(x.__code__)[1] if name not in written]
            waiting += [of.get(name) for of, name in read] + [_content(cell) for cell in own]
            places += read
            cells += own
        return places, cells


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _MISSING


def _function(x):
    """The user's Python function in ``x``, or None."""
    while not (isinstance(x, types.FunctionType) and not is_installed(sys.modules.get(x.__globals__.get("__name__")))):
        if isinstance(x, property):
            x = x.fget
        elif isinstance(x, (staticmethod, classmethod, types.MethodType)):
            x = x.__func__
        elif isinstance(x, (functools.partial, functools.cached_property)):
            x = x.func
        elif isinstance(x, WRAPPERS) or "__wrapped__" in getattr(x, "__dict__", ()):  # of jit, vmap, custom_jvp, a cache
            x = x.__wrapped__
        else:
            return None
    return x


@functools.lru_cache(maxsize=4096)
def _written(code):
    """Names outside of it that code, with the functions in it, writes itself: a count of calls, say."""
    found = {of.argval for of in dis.get_instructions(code) if of.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    return found.union(*(_written(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)))
