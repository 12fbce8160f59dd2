"""What was typed: a model, a scheme, a distribution, a file. What makes no sense is an `ArgumentError`, whose message says what does."""

import ast
import difflib
import inspect
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

from .. import schemes
from ..ensemble.samples import DISTRIBUTIONS
from ..models import MODELS, SCENES
from ..programs.files import writable
from ..schemes.projection import project_position

SCHEMES = {name: getattr(schemes, name) for name in schemes.__all__ if name != "Scheme"}

#: Arguments of what reads a file that no text says.
NO_TEXT = ("control", "motion", "motors", "plane")
#: Loops of a file that are open by more than this at its start, in m or rad, are closed before the run.
OPEN = 1e-9


class ArgumentError(Exception):
    """What a user typed makes no sense; the message says what does."""


def parameters(cls):
    """``(fields of the model, arguments of its initial state)``, each a dict of names and default values."""
    fields = inspect.signature(cls).parameters
    # A model is a class, or a function that makes an instance of the class it is annotated with.
    made = cls if isinstance(cls, type) else cls.__annotations__["return"]
    arguments = inspect.signature(made.initial_state).parameters
    return tuple({name: argument.default for name, argument in part.items() if name != "self"} for part in (fields, arguments))


def choose(kind, name, choices):
    """The value of this name in a dict; ArgumentError, with the likely name or all of them, where it is none."""
    if name in choices:
        return choices[name]
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]}?" if close else f"one of {', '.join(choices)}"
    raise ArgumentError(f"unknown {kind} {name!r}; {hint}")


def model_file(name):
    """The file of MJCF or URDF that a model argument is, or names; None for a name of a model."""
    if name in MODELS:
        return None
    path = SCENES.get(name, Path(name))
    return path if name in SCENES or path.suffix.lower() in (".xml", ".urdf") or path.is_file() else None


def _from_file(path, settings):
    """``(system, q0, u0)`` of a model file, as it is in the file, at rest or in the state of a keyframe."""
    from .. import bodies

    if not path.is_file():
        raise ArgumentError(f"there is no file {str(path)!r}")
    read = bodies.from_urdf if path.suffix.lower() == ".urdf" else bodies.from_mjcf
    parameters = inspect.signature(read).parameters.values()
    options = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in NO_TEXT} | {"key": ""}
    values = settings_of(path.name, settings, options)
    key = values.pop("key", None)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            system = read(path, **values)
        q0, u0 = system.initial_state(int(key) if key and key.isdecimal() else key)
    except ImportError as error:
        raise ArgumentError(error) from error
    except KeyError as error:
        raise ArgumentError(error.args[0]) from error
    for warning in caught:
        print(f"jaxnsd run: {warning.message}", file=sys.stderr)
    away = np.abs(np.asarray(system.constraint(0.0, q0)))
    if away.size and away.max() > OPEN:
        q0 = project_position(system, q0, 0.0)
        print(f"jaxnsd run: loops of {path.name} are open by {away.max():.3g} at its start, which was moved to close them", file=sys.stderr)
    return system, q0, u0


def settings_of(name, settings, options):
    """``NAME=VALUE`` settings as a dict, of the types of the defaults ``options``."""
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ArgumentError(f"--set takes NAME=VALUE, got {setting!r}")
        if key not in options:
            raise ArgumentError(f"{name} has no parameter {key!r}; it has {', '.join(options)}")
        values[key] = value_of(key, text, options[key])
    return values


def model(name, settings):
    """``(system, q0, u0)`` of a model with ``NAME=VALUE`` settings, or of a file."""
    path = model_file(name)
    if path is not None:
        return _from_file(path, settings)
    cls = choose("model", name, MODELS)
    fields, start = parameters(cls)
    values = settings_of(name, settings, fields | start)
    system = cls(**{key: value for key, value in values.items() if key in fields})
    return system, *system.initial_state(**{key: value for key, value in values.items() if key in start})


def scheme(text):
    """A scheme from its name, or from a call with numbers or a scheme: ``MoreauJean(theta=0.6)``, ``LocatedImpacts(Lobatto(2))``."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = None
    return _called(node, text)


def _called(node, text):
    call = isinstance(node, ast.Call)
    try:
        name = (node.func if call else node).id
        values = [_argument(value) for value in node.args] if call else []
        keywords = {keyword.arg: _argument(keyword.value) for keyword in node.keywords} if call else {}
        if None in keywords:  # of two stars
            raise ValueError
    except (ValueError, AttributeError):
        raise ArgumentError(f"--scheme takes a name or a call with numbers, such as MoreauJean(theta=0.6), got {text!r}") from None
    make = choose("scheme", name, SCHEMES)
    parameters = inspect.signature(make).parameters
    for keyword in keywords:
        if keyword not in parameters:
            raise ArgumentError(f"{text}: {name} has no parameter {keyword!r}; it has {', '.join(parameters) or 'none'}")
    if len(values) > len(parameters):
        raise ArgumentError(f"{text}: {name} takes {', '.join(parameters) or 'nothing'}, got {len(values)} numbers")
    try:
        return make(*values, **keywords)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{text}: {error}") from error


def _argument(node):
    return _called(node, ast.unparse(node)) if isinstance(node, (ast.Call, ast.Name)) else ast.literal_eval(node)


def value_of(key, text, default):
    """Value of a parameter, of the type of its default; several numbers with commas between them make an array."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ArgumentError(f"{key} is true or false, got {text!r}")
        return text.lower() == "true"
    try:
        if isinstance(default, int):
            return int(text)
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{key} must be a {'whole ' if isinstance(default, int) else ''}number, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else jax.numpy.asarray(numbers)


def distribution(text):
    """``(name, distribution)`` of ``mu=normal(0.3,0.02)``."""
    name, equals, call = text.partition("=")
    try:
        node = ast.parse(call, mode="eval").body
        kind, values = node.func.id, [ast.literal_eval(value) for value in node.args]
    except (SyntaxError, AttributeError, ValueError):
        equals = ""
    if not equals:
        raise ArgumentError(f"--sample takes NAME=DISTRIBUTION, such as mu=normal(0.3,0.02), got {text!r}")
    make = choose("distribution", kind, DISTRIBUTIONS)
    try:
        return name, make(*values)
    except TypeError:
        wanted = ", ".join(inspect.signature(make).parameters)
        raise ArgumentError(f"--sample {text}: {kind} takes {wanted}") from None


def cyclic():
    """Names of the models that know of a limit cycle."""
    return [name for name, cls in MODELS.items() if hasattr(cls, "limit_cycle")]


def check_file(option, path, endings):
    """Raise ArgumentError, before the run, for a file with another ending or that cannot be written; no path is no file to write."""
    if path is None:
        return
    if path.suffix not in endings:
        raise ArgumentError(f"{option} must end in {' or '.join(endings)}, got {str(path)!r}")
    try:
        writable(path)
    except OSError as error:
        raise ArgumentError(f"{option}: {error}") from error


def make_directory(option, path):
    """Make a directory, and those above it, unless it is there; ArgumentError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{option}: cannot make the directory {str(path)!r}: {error.strerror}") from error


def check_films(args, system, q0):
    """Complain, before the run, of a film or a page that cannot be made."""
    if not (args.film or args.page):
        return
    from .. import drawing

    try:
        drawing.check(system, q0, film=args.film, page=args.page, speed=args.speed, follow=args.follow)
    except ImportError as error:
        raise ArgumentError(error) from error
    except KeyError as error:
        raise ArgumentError(error.args[0]) from error
