"""What the methods of a class read beside their arguments: globals, what they close over, attributes, entries of dictionaries.

JAX keeps what it has traced by the structure of the arguments. A notebook that says ``G = 1.62`` after ``G = 9.81`` would get the run with
the old one again, so that these values are a part of the structure: whatever has a name that is written in one of the functions, ``G``,
``constants.G``, ``CONSTANTS["G"]``. What has none, an entry of a list or of an array that is changed in place, or one of a dictionary whose
key is no text, is not seen, and neither is what a function read that has a `jax.jit`, or a `jax.checkpoint`, of its own.
"""

import argparse
import builtins
import collections
import contextlib
import dis
import functools
import operator
import sys
import types
import weakref

from ..native.jax_internals import is_traced
from .fingerprint import PLAIN, WRAPPERS, imported, is_installed, is_named, names_in

_MISSING = object()

#: Methods that dataclasses are given.
_OF_DATACLASSES = {"__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}


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
    """The `Surroundings` of a class and of what its static fields hold, each time it is called; None of a class of this package."""

    def __init__(self, cls):
        self.cls = cls
        self.last = None, (), [], [], None

    @functools.cached_property
    def parts(self):
        """The attributes of the user's classes among those it is derived from; asked for once their modules are complete."""
        return [vars(part) for part in self.cls.__mro__ if not _is_of_a_package(part)]

    def __call__(self, statics):
        statics = [x for x in statics if type(x) not in PLAIN]
        if not self.parts and not statics:
            return None
        # Other threads may ask for other static fields meanwhile.
        last_size, last_statics, places, cells, found = self.last
        size = sum(map(len, self.parts))
        # As it was, in nearly all cases: looked up, but not looked for.
        if size == last_size and _are(statics, last_statics):
            values = _look(places, cells)
            if _are(values, found.values) or _are(_held(values), found.values):
                return found
        places, cells = _search(self.cls, statics)
        found = Surroundings(_held(_look(places, cells)))
        self.last = size, statics, places, cells, found
        return found


def _look(places, cells):
    """The values that are read now."""
    return [get(name, _MISSING) for get, name in places] + [_content(cell) for cell in cells]


def _held(values):
    """Values that live on with what JAX keeps. What is traced must not: a reference to it does, and no other has its identity."""
    return [weakref.ref(x) if is_traced(x) else x for x in values]


def _are(these, those):
    return len(these) == len(those) and all(map(operator.is_, these, those))


def _search(cls, statics):
    """``(places, cells)``: where functions of a class, of objects, and those that they call, read, as far as they are the user's.

    A place is a function of a name, which gives what the name is of, and the name.
    """
    names, found = None, _Search(cls, [], set())
    while found.names != names:
        # A name may be one of a dictionary that was gone through before the function that reads it.
        names = found.names
        found = _Search(cls, names, found.written)
        found.through([cls, *statics])
    return tuple([place for key, place in of.items() if key not in found.own] for of in (found.places, found.cells))


class _Search:
    """One way through objects; ``among`` are the names of attributes and entries that their functions read, ``without`` what they write."""

    def __init__(self, cls, among, without):
        self.mro, self.among, self.without = cls.__mro__, among, without
        self.places, self.cells, self.seen = {}, {}, {}
        self.read, self.written, self.own = set(), set(), set()

    @property
    def names(self):
        """Names of attributes and entries that are read and not written, in order: a count of calls is no other program."""
        return sorted(self.read - self.written)

    def through(self, objects):
        waiting = list(objects)
        while waiting:
            x = waiting.pop()
            if type(x) not in PLAIN and id(x) not in self.seen:
                self.seen[id(x)] = x
                # What an object answers when it is asked what it is, is its own affair: proxies raise.
                with contextlib.suppress(Exception):
                    waiting += self.parts(x)

    def parts(self, x):
        """What an object consists of."""
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if isinstance(x, type):
            return () if _is_of_a_package(x) else [*self.at(vars(x), self.attributes(x)), *x.__bases__]
        if isinstance(x, types.ModuleType):
            return () if is_installed(x) else self.at(vars(x), self.among)
        if isinstance(x, dict):
            return [*self.at(x, self.among, absent=True), *dict.values(x)]
        if isinstance(x, types.MappingProxyType):
            return [*self.at(x, self.among, absent=True), *x.values()]
        if type(x) in (collections.UserDict, collections.ChainMap):
            return vars(x).values()
        if isinstance(x, (list, tuple, set, frozenset)):
            return x
        if isinstance(x, property):
            return (x.fget,)
        if isinstance(x, (staticmethod, classmethod)):
            return (x.__func__,)
        if isinstance(x, types.MethodType):
            return x.__func__, x.__self__
        if isinstance(x, functools.partial):
            return x.func, *x.args, *x.keywords.values()
        if isinstance(x, functools.cached_property):
            return (x.func,)
        if isinstance(x, WRAPPERS):
            return (x.__wrapped__,)
        of = getattr(x, "__dict__", {})
        if "__wrapped__" in of:  # of custom_jvp, with its rules
            return of.values()
        if isinstance(x, (types.SimpleNamespace, argparse.Namespace)):
            return self.at(of, self.among, absent=True)
        if not _is_of_a_package(type(x)):
            # An attribute of the object may come before one of its class.
            return [type(x), *self.at(of, [name for name in self.among if name in of or hasattr(type(x), name)], absent=True)]
        return ()

    def at(self, mapping, names, absent=False):
        """What a mapping has under these names, which are places from now on; also if they are ``absent`` as yet."""
        get = dict.get.__get__(mapping) if isinstance(mapping, dict) else mapping.get
        names = [name for name in names if absent or name in mapping]
        self.places.update({(id(mapping), name): (get, name) for name in names})
        return [get(name) for name in names]

    def attributes(self, cls):
        """Names of attributes of the user's class: all of the system's own, of others those that are read, and operators."""
        return [
            name
            for name, value in vars(cls).items()
            if (isinstance(value, types.FunctionType) and name not in _OF_DATACLASSES)
            or (not name.startswith("__") and name not in self.without and (cls in self.mro or name in self.among))
        ]

    def function(self, f):
        if is_named(f):  # it has nothing of the user's in it
            return ()
        cells, of, code = f.__closure__ or (), f.__globals__, f.__code__
        parts = [*map(_content, cells), *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values(), *vars(f).values()]
        if is_installed(sys.modules.get(of.get("__name__"))):
            return parts
        self.cells.update({id(cell): cell for cell in cells})
        attributes, read, modules = names_in(code)
        anew, variables, entries = _written(code)
        self.read.update(attributes)
        self.written.update(entries)
        self.own.update((id(of), name) for name in variables)
        self.own.update(id(cell) for name, cell in zip(code.co_freevars, cells, strict=True) if name in anew)
        for name in modules:
            with contextlib.suppress(Exception):  # the function says so, once it runs
                parts.append(imported(name, of))
        return parts + self.at(of, [name for name in read if name in of or not hasattr(builtins, name)], absent=True)


def _is_of_a_package(cls):
    return is_installed(sys.modules.get(cls.__module__))


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _MISSING


@functools.lru_cache(maxsize=4096)
def _written(code):
    """Names that code, with the functions in it, writes: of variables around it, of globals, and of attributes and entries that it reads.

    An entry is one that is counted up, ``calls["force"] += 1``: its name stands before the copies that this takes.
    """
    cells, variables, entries = set(), set(), set()
    instructions = list(dis.get_instructions(code))
    read = {of.argval for of in instructions if of.opname in ("LOAD_ATTR", "LOAD_METHOD")} | {x for x in code.co_consts if type(x) is str}
    last = counted = None
    for of in instructions:
        if of.opname == "STORE_DEREF" and of.argval in code.co_freevars:
            cells.add(of.argval)
        elif of.opname == "STORE_GLOBAL":
            variables.add(of.argval)
        elif of.opname == "STORE_ATTR" and of.argval in read:
            entries.add(of.argval)
        elif of.opname == "COPY" and last.opname == "LOAD_CONST" and type(last.argval) is str:
            counted = last.argval
        elif of.opname == "STORE_SUBSCR":
            entries |= {counted} - {None}
            counted = None
        last = of
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, more in zip((cells, variables, entries), _written(constant), strict=True):
                names.update(more)
    return cells, variables, entries
