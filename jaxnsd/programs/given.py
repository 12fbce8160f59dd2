"""What a user gives: how messages show it, whether it is a number or a function, and what an error in a user's function means."""

import contextlib
import difflib
import inspect
import re
import traceback
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced, known_array

#: Most characters of a value that a message shows.
LONGEST = 100

#: What JAX raises where the value of a traced array is asked for: by if and float(), by NumPy's functions, by an index of a NumPy array.
VALUES = jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError

HERE = str(Path(__file__).parents[1])
LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (jax, np))


# ------------------------------------------------------------------------------------------------------------------- values
def shown(value):
    """A value as messages show it: in one line that can be read, without what only Python knows of it."""
    if is_traced(value):
        return f"a traced value of shape {np.shape(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return "a function" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"an array of shape {value.shape}"
    text = re.sub(r"\bnp\.\w+\(([^()]*)\)", r"\1", " ".join(repr(value).split()))
    if len(text) <= LONGEST and not re.search(r"<lambda>| at 0x|<class|Struct\(|Tracer", text):
        return text
    if isinstance(value, np.ndarray | jax.Array):
        return f"an array of shape {value.shape}"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"[:LONGEST]
    return f"a {type(value).__name__}" + (f" of {len(value)} entries" if isinstance(value, list | tuple | set) else "")


def numbers(value):
    """An array of real numbers, or None for what is none; of NumPy unless it is traced. Parts of it may be traced."""
    if isinstance(value, jax.Array):
        value = value if is_traced(value) else np.asarray(value)
        return value if value.dtype == bool or (jnp.issubdtype(value.dtype, np.number) and value.dtype.kind != "c") else None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        # Of parts that are traced NumPy makes no array.
        several = isinstance(value, list | tuple) and any(map(is_traced, jax.tree.leaves(value)))
        parts = [numbers(part) for part in value] if several else [None]
        shapes = {None if part is None else np.shape(part) for part in parts}
        return None if len(shapes) > 1 or None in shapes else jax.ShapeDtypeStruct((len(parts), *shapes.pop()), np.dtype(float))
    return array if array.dtype.kind in "biuf" else None


def as_array(value):
    """An array of JAX's of `numbers`."""
    known = not isinstance(value, jax.Array) and isinstance(found := numbers(value), np.ndarray)
    return known_array(found) if known else jnp.asarray(value)


def number(what, value, wanted="a number"):
    """Raise TypeError, or ValueError for NaN, for what is no real number; it may be traced."""
    array = numbers(value)
    if array is None or np.shape(array) or isinstance(value, bool):
        raise TypeError(f"{what} must be {wanted}, got {shown(value)}")
    if not is_traced(value) and np.isnan(array):
        raise ValueError(f"{what} must be {wanted}, got {shown(value)}")


def whole(what, value, least=0, most=None):
    """A whole number from ``least`` to ``most``, as Python's own; ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least or (most and value > most):
        raise ValueError(f"{what} must be a whole number{f' up to {most}' if most else ''}, {least} or more, got {shown(value)}")
    return int(value)


def flag(what, value):
    """Raise TypeError for what is neither True nor False."""
    if not isinstance(value, bool | int | np.bool_):
        raise TypeError(f"{what} must be True or False, got {shown(value)}")


def array(caller, name, value, ndim):
    """An array of a floating dtype with ``ndim`` axes and finite entries."""
    if value is None:
        raise TypeError(f"{caller}: {name} must be an array of numbers, got None; models have initial_state(), which gives (q0, u0)")
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{caller}: {name} must be an array of numbers, got {shown(value)}; join its parts with jnp.stack") from error
    if value.dtype.kind in "OSU":
        raise TypeError(f"{caller}: {name} must be an array of numbers, got one of {value.dtype}: {shown(value)}")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{caller}: {name} must be of a floating dtype, got {value.dtype}; write 1.0 for 1")
    if jnp.finfo(value.dtype).bits not in (32, 64):
        why = ", too coarse for contact laws" if jnp.finfo(value.dtype).bits < 32 else ""
        raise TypeError(f"{caller}: {name} must be float32 or float64, got {value.dtype}{why}; convert it")
    if value.ndim != ndim:
        axes = f"{ndim} ax{'e' if ndim > 1 else 'i'}s"
        raise ValueError(f"{caller}: {name} must have {axes}, got shape {value.shape}; make batches with jax.vmap")
    if not is_traced(value) and not np.all(np.isfinite(value)):
        raise ValueError(f"{caller}: {name} must be finite, got {shown(np.asarray(value))}")
    return as_array(value)  # what is known stays known inside a transformation


# ---------------------------------------------------------------------------------------------------------------- functions
def takes(call, function, arguments, why=""):
    """Raise TypeError for what is no function of these arguments, ``"t, q, u"``; messages name it by ``call``, and may say why."""
    if not callable(function):
        raise TypeError(f"{call} must be a function of ({arguments}), got {shown(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it does not say what it takes
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        raise TypeError(f"{call} must take ({arguments}){why}, got a function of ({', '.join(signature.parameters)})") from None


@contextlib.contextmanager
def calling(call, at=""):
    """Where a user's function is called or traced: what goes wrong in it is said in plain words, with the line.

    call: by which messages name it; at: for what it was called, behind " failed"
    """
    try:
        yield
    except VALUES as error:
        raise asks(call, error) from error
    except Exception as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(f"{call} failed{at}{line(error)}: {reason(error)}") from error


@contextlib.contextmanager
def asking(call):
    """Where a method is called, by ``call``: if it asks for the value of an array, the error says so with the cure."""
    try:
        yield
    except VALUES as error:
        raise asks(call, error) from error


def asks(call, error):
    """The error of a function that asks for a value, with its cure."""
    return TypeError(
        f"{call} must not ask for the value of an array, which it has not yet while it is traced{line(error)}; use jax.numpy: write "
        "jnp.where(condition, a, b) for if, jnp.sin for np.sin or math.sin, and leave float() out"
    )


def line(error):
    """Where in the user's code an error arose, in words."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*LIBRARIES, HERE))]
    if not frames or not frames[-1].line:
        return ""
    text = frames[-1].line
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {text})"


def reason(error):
    """What an error in a user's function says, in plain words; one that the function, or this library, raises itself says it."""
    if isinstance(error, AttributeError) and error.name:
        return _lacks(error.obj, error.name)
    if isinstance(error, NameError) and error.name:
        return f"there is no {error.name!r}"
    if isinstance(error, KeyError) and error.args and not isinstance(error.args[0], tuple):
        return f"there is no entry {error.args[0]!r}" if " " not in str(error.args[0]) else str(error.args[0])
    last = traceback.extract_tb(error.__traceback__)[-1]
    plain = not isinstance(error, TypeError | ValueError | IndexError)
    # Of errors in JAX and NumPy the frames in there may be hidden: the last one is then a line that calls them.
    if plain or (last.line.startswith("raise") and not last.filename.startswith(LIBRARIES)):
        return " ".join(str(error).split())
    shapes = list(dict.fromkeys(re.findall(r"\(\d[\d, ]*\)", str(error))))
    if len(shapes) > 1:
        return f"arrays of shapes {' and '.join(shapes[:3])} do not go together there"
    return "an operation there does not take what it is given"


def _lacks(thing, name):
    of = f"the module {thing.__name__}" if isinstance(thing, types.ModuleType) else type(thing).__name__
    of = "None" if thing is None else "an array" if isinstance(thing, np.ndarray | jax.Array) or is_traced(thing) else of
    close = difflib.get_close_matches(name, [other for other in dir(thing) if not other.startswith("_")], n=1)
    return f"{of} has no {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
