"""Fingerprints of functions: what has the same one computes the same, in another process too.

A function is its bytecode, its defaults, what it closes over, and the globals that it reads, each by its value, and so on through whatever
these consist of. What belongs to an installed package, or to Python, is a name and a version. What cannot be read that way, a lock or an
open file say, has none: a TypeError says what it is. What a function asks for while it runs, an environment variable or a file, no
fingerprint tells.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import os
import site
import sys
import sysconfig
import types
from pathlib import Path

import jax
import numpy as np

from ..native.jax_internals import is_traced

#: The name of this library.
PACKAGE = __name__.partition(".")[0]

#: Where Python keeps what is installed, and itself; JAX and NumPy may be elsewhere.
_FOLDERS = *sysconfig.get_paths().values(), *site.getsitepackages(), *(os.path.dirname(package.__file__) for package in (jax, np))
_LIBRARIES = tuple({os.path.realpath(path) + os.sep for path in _FOLDERS})
#: Folders of what is installed for a user, or for another Python from whose packages this one takes them.
_PACKAGES = {"site-packages", "dist-packages"}

#: What a class has that says nothing of what its instances do.
_SAYS_NOTHING = {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__", "_abc_impl"}
_SAYS_NOTHING |= {"__slotnames__", "__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"}

#: Functions in C around one in Python, of which nothing but that can be read.
WRAPPERS = (type(jax.jit(len)), functools._lru_cache_wrapper)

PLAIN = (types.NoneType, bool, int, float, complex, str, bytes, types.EllipsisType, types.NotImplementedType)


def fingerprint(*objects):
    """Digest of objects, a hexadecimal number of 32 digits. Raises TypeError for what has none."""
    return _Digest({}).add(*objects).text()


class _Digest:
    """Reads objects into a hash; ``seen`` are those that were read, with their numbers, so that what refers to itself ends."""

    def __init__(self, seen):
        self.hash, self.seen, self.modules = hashlib.blake2b(digest_size=16), seen, set()

    def text(self):
        return self.hash.hexdigest()

    def say(self, *words):
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode(errors="surrogatepass")
            self.hash.update(len(data).to_bytes(8) + data)

    def add(self, *objects):
        for x in objects:
            self.read(x)
        return self

    def read(self, x):
        kind = type(x)
        self.say(kind.__qualname__)
        if kind in PLAIN:
            self.say(repr(x))
        elif kind in (list, tuple):
            self.say(len(x))
            self.add(*x)
        elif kind in (set, frozenset):
            self.say(*sorted(_Digest(dict(self.seen)).add(entry).text() for entry in x))
        elif id(x) in self.seen:
            self.say("again", self.seen[id(x)][0])
        else:
            # Held, so that no other object gets its number.
            self.seen[id(x)] = len(self.seen), x
            self.structured(x)

    def structured(self, x):
        if isinstance(x, (dict, types.MappingProxyType)):
            self.say(len(x))
            self.add(*(part for item in x.items() for part in item))
        elif isinstance(x, types.ModuleType):
            self.module(x, ())
        elif is_named(x):
            self.named(x)
        elif isinstance(x, types.FunctionType):
            self.function(x)
        elif isinstance(x, types.CodeType):
            self.code(x)
        elif isinstance(x, type):
            of = {name: value for name, value in vars(x).items() if name not in _SAYS_NOTHING and not _is_slot(value)}
            self.say(x.__qualname__)
            self.add(x.__bases__, of)
        elif isinstance(x, (types.MethodType, types.BuiltinMethodType)):
            self.say(x.__name__)
            self.add(x.__self__, getattr(x, "__func__", None))
        elif isinstance(x, (staticmethod, classmethod)):
            self.read(x.__func__)
        elif isinstance(x, property):
            self.add(x.fget, x.fset, x.fdel)
        elif isinstance(x, functools.cached_property):
            self.read(x.func)
        elif isinstance(x, functools.partial):
            self.add(x.func, x.args, x.keywords)
        elif is_traced(x):
            raise TypeError(f"a value that is being traced, {x}, has no fingerprint: make it an argument")
        elif isinstance(x, (np.ndarray, np.generic, jax.Array)):
            self.array(x)
        elif isinstance(x, WRAPPERS):
            self.read(x.__wrapped__)
        elif isinstance(x, jax.Device):
            self.say(x.platform, x.device_kind, x.id)
        elif isinstance(x, jax.tree_util.PyTreeDef):
            self.tree(x)
        else:
            self.instance(x)

    def tree(self, x):
        """The structure of a pytree: not as it prints, which shows where in memory a function lies."""
        self.say(x.num_nodes, x.num_leaves)
        self.add(x.node_data())
        for child in x.children():
            self.tree(child)

    def array(self, x):
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            self.say(x.dtype)
            x = jax.random.key_data(x)
        x = np.asarray(x)
        self.say(x.dtype, x.shape)
        if x.dtype.hasobject:
            self.read(x.tolist())
        else:
            self.say(x.tobytes())

    def instance(self, x):
        """An object, as `pickle` takes it apart."""
        self.read(type(x))
        if isinstance(x, enum.Enum):
            self.say(x.name)
            return
        try:
            parts = x.__reduce_ex__(4)
        except Exception as error:
            raise TypeError(f"{x!r} of type {type(x).__name__} has no fingerprint: {error}") from error
        if isinstance(parts, str):
            self.say(parts)
            return
        made_by, args, state, *contents = (*parts, None, None, None)[:5]
        # What is computed once it is asked for belongs to the rest.
        lazy = {name for of in type(x).__mro__ for name, value in vars(of).items() if isinstance(value, functools.cached_property)}
        if isinstance(state, dict):
            # What takes no part in a comparison takes none here.
            lazy |= {field.name for field in dataclasses.fields(x) if not field.compare} if dataclasses.is_dataclass(x) else set()
            state = {name: value for name, value in state.items() if name not in lazy}
        self.add(made_by, args, state, *(None if part is None else list(part) for part in contents))

    def named(self, x):
        """What belongs to a package that is installed."""
        self.say(x.__module__, x.__qualname__, _version(x.__module__))

    def module(self, module, names):
        """A module: of one that is not installed its source, and what it has of these names."""
        self.say(module.__name__)
        if is_installed(module):
            self.say(_version(module.__name__))
            return
        if (module.__name__, names) in self.modules:
            return
        self.modules.add((module.__name__, names))
        file = getattr(module, "__file__", None)
        if file and os.path.isfile(file):
            self.say(Path(file).read_bytes())
        for name in sorted(set(names) & set(vars(module))):
            self.say(name)
            self.through(vars(module)[name], names)

    def through(self, x, names):
        """What a function reads under a name, where it goes on with these names of attributes."""
        if isinstance(x, types.ModuleType):
            # Each time with the names of another function.
            self.module(x, names)
        else:
            self.read(x)

    def function(self, f):
        self.code(f.__code__)
        self.add(f.__defaults__, f.__kwdefaults__)
        attributes, globals_, imported = names_in(f.__code__)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            self.say(name)
            try:
                self.through(cell.cell_contents, attributes)
            except ValueError:  # not filled yet
                self.say("empty")
        # A library's function that wraps one of the user's: what it reads itself is in its version.
        if is_installed(sys.modules.get(f.__globals__.get("__name__"))):
            self.say(_version(f.__globals__["__name__"]))
            return
        for name in globals_:
            if name in f.__globals__:
                self.say(name)
                self.through(f.__globals__[name], attributes)
        for name in imported:
            self.module(imported(name, f.__globals__), attributes)

    def code(self, code):
        self.say(code.co_code, code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_exceptiontable)
        self.add(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        for constant in code.co_consts:
            # Where a function inside stands in its file is not what it does.
            self.code(constant) if isinstance(constant, types.CodeType) else self.read(constant)


def nodes(tree):
    """``(type, what it keeps beside its children)`` of every node of a pytree's structure."""
    of = tree.node_data()
    if of is not None:
        yield of
    for child in tree.children():
        yield from nodes(child)


def _is_slot(x):
    return isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType))


@functools.lru_cache(maxsize=4096)
def names_in(code):
    """Names that code, with the functions in it, reads of objects, of globals, and imports: sorted tuples."""
    attributes, read, imported = set(), set(), set()
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(name)
        elif operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(name)
        elif operation == "IMPORT_NAME":
            imported.add(name)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, more in zip((attributes, read, imported), names_in(constant), strict=True):
                names.update(more)
        elif isinstance(constant, str):  # getattr(module, "name")
            attributes.add(constant)
    return tuple(sorted(attributes)), tuple(sorted(read)), tuple(sorted(imported))


def imported(name, of):
    """The module that a function with these globals imports under a name; of a relative import its package."""
    try:
        return importlib.import_module(name or of.get("__package__") or "__main__")
    except ImportError:
        # From a package beside it, or not there: then the function says so when it runs.
        package = of.get("__package__")
        return importlib.import_module(f"{package}.{name}") if package else sys.modules["__main__"]


def is_installed(module):
    """Whether a module is one of Python, of an installed package, or of this one."""
    if module is None:
        return False
    name, file = module.__name__, getattr(module, "__file__", None)
    if name.partition(".")[0] == PACKAGE:
        return True
    if file is None:
        return getattr(module.__spec__, "origin", None) in ("built-in", "frozen")
    path = os.path.realpath(file)
    return path.startswith(_LIBRARIES) or not _PACKAGES.isdisjoint(path.split(os.sep))


def is_named(x):
    """Whether a module that is installed has ``x`` under the name that it has itself."""
    module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_installed(sys.modules.get(module)):
        return False
    found = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is x


@functools.cache
def _version(name):
    """Version of the package that a module belongs to: what it says of itself, else the size and the time of its file."""
    package = name.partition(".")[0]
    if package == PACKAGE:
        return own_version()
    module = sys.modules.get(package)
    if (version := getattr(module, "__version__", None)) is not None:
        return str(version)
    file = getattr(module, "__file__", None)
    return str((os.stat(file).st_size, os.stat(file).st_mtime_ns)) if file else sys.version


@functools.cache
def own_version():
    """Digest of this package's source."""
    digest, folder = hashlib.blake2b(digest_size=16), Path(__file__).parents[1]
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()
