"""Whether parts are parts: names that are names, numbers that are numbers, as many as there must be; asked once for all kinds of parts."""

import dataclasses

import numpy as np

from ..mechanics.laws import ImpactLaw
from ..native.jax_internals import is_traced
from ..programs.given import numbers, shown, takes
from . import forces
from .parts import IDENTITY, ZERO, Body, Connect, Joint, Shape, Site, Spring, Tendon, Weld, several
from .sensors import VOLUMES

#: What a field of a part holds, whatever the part: a number, or so many. What is None by default may be None.
SIZES = {
    (): "mass carried radius length stiffness reference rest limit mu e_N e_F drilling rolling damping gain offset slope rate cutoff "
    "dry_friction armature",
    (2,): "limits motor_limits control_limits force_limits",
    (3,): "center position edges half_axes axis second_position anchor",
    (4,): "orientation",
}
SHAPES = {name: shape for shape, names in SIZES.items() for name in names.split()}

#: In a sentence.
WANTED = {(): "a number", (2,): "(lower, upper), two numbers", (3,): "3 numbers", (4,): "4 numbers (w, x, y, z)"}

#: Names of the other end, and of what is driven: a name, or several.
NAMES = ("first", "second", "joint", "parent", "tendon")

#: What is one word or name.
WORDS = ("kind", "of", "body", "frame")


def check_parts(bodies, contacts, *others):
    """Raise TypeError or ValueError for a field of a part that holds something else than it must."""
    pairs = () if isinstance(contacts, str) else several(contacts)
    for body in bodies:
        _check(body)
        for part in (*several(body.joints), *several(body.shapes)):
            _check(part, f" of {body.name!r}")
    for part in (*(part for parts in others for part in parts), *pairs):
        _check(part)


def check_options(gravity, control, medium, law, **values):
    """The same for what is no part."""
    _numbers("gravity", gravity, (3,))
    for name, value in values.items():
        _numbers(name, value, ())
    if not isinstance(law, ImpactLaw):
        raise TypeError(f"assemble: law must be a law such as jaxnsd.NewtonImpact(), got {shown(law)}")
    if medium is not None and not isinstance(medium, forces.Medium):
        raise TypeError(f"assemble: medium must be a bodies.Medium, got {shown(medium)}")
    if isinstance(control, forces.Rows):
        _numbers("rows of control", control.values, None)
        _numbers("dt of the rows of control", control.dt, ())
        if not is_traced(control.dt) and not control.dt > 0:
            raise ValueError(f"assemble: dt of the rows of control must be positive, got {shown(control.dt)}")
    elif callable(control) and not hasattr(control, "func"):
        takes("assemble: control", control, "t, q, u")
    elif control is not None and not callable(control):
        _numbers("control", control, None)


def _check(part, owner=""):
    kind = type(part).__name__
    own = getattr(part, "name", "")
    if not isinstance(own, str) or (isinstance(part, Body | Site | Tendon) and not own):
        raise TypeError(f"assemble: the name of a {kind} must be text, got {shown(own)}")
    who = f" of the {kind.lower()} {own!r}" if own else f" of {'the' if owner else 'a'} {kind.lower()}{owner}"
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value is None and field.default is None:
            continue
        if field.name in NAMES:
            _name(f"{field.name}{who}", value)
        elif field.name in ("joints", "sites") and isinstance(part, Tendon):
            for one in several(value):
                _name(f"{field.name}{who}", one)
        elif field.name in ("coefficients", "divisors"):
            _numbers(f"{field.name}{who}", value, None, "a number for each", lambda shape: len(shape) == 1)
        elif field.name == "spring_length":
            _numbers(f"{field.name}{who}", value, None, "a number or (shortest, longest)", lambda shape: shape in ((), (2,)))
        elif field.name in WORDS:
            _word(f"{field.name}{who}", value)
        elif field.name == "volume":
            _volume(f"volume{who}", value)
        elif field.name == "motion":
            takes(f"assemble: motion{who}", value, "t")
        elif field.name == "points":
            _numbers(f"points{who}", value, None, "(n, 3) numbers", lambda shape: (len(shape) == 2 and shape[1] == 3) or shape == (0,))
        elif field.name in ("damping", "armature", "dry_friction") and isinstance(part, Joint):
            wanted = "a number" if part.n_u == 1 else f"a number, or one for each of its {part.n_u} velocities"
            _numbers(f"{field.name}{who}", value, None, wanted, lambda shape: shape in ((), (part.n_u,)))
        elif field.name == "gear":
            _numbers(f"gear{who}", value, None, "a number, or one for each velocity", lambda shape: len(shape) < 2)
        elif field.name == "inertia":
            wanted = "(3,) moments or a tensor (3, 3)"
            _numbers(f"inertia{who}", value, None, wanted, lambda shape: shape in ((3,), (3, 3)))
        elif field.name == "polynomial":
            _numbers(f"polynomial{who}", value, None, "up to 5 coefficients", lambda shape: len(shape) == 1 and shape[0] < 6)
        elif field.name == "rest" and isinstance(field.default, tuple):
            _numbers(f"rest{who}", value, (4,))
        elif field.name in SHAPES:
            _numbers(f"{field.name}{who}", value, SHAPES[field.name])
    if isinstance(part, Connect | Weld | Spring) and part.first == part.second:
        raise ValueError(f"assemble: a {kind} must join two bodies, got {part.first!r} twice")


def _name(what, value):
    for one in several(value) if not isinstance(value, str) else (value,):
        if not isinstance(one, str):
            raise TypeError(f"assemble: {what} must be a name, got {shown(one)}")


def _word(what, value):
    if not isinstance(value, str):
        raise TypeError(f"assemble: {what} must be text, got {shown(value)}")


def _volume(what, value):
    if not isinstance(value, Shape) or value.kind not in VOLUMES:
        raise TypeError(f"assemble: {what} must be a shape of the kinds {', '.join(VOLUMES)}, got {shown(value)}")
    for own, none in ((value.position, ZERO), (value.orientation, IDENTITY)):
        if not isinstance(own, tuple) or own != none:
            raise ValueError(f"assemble: {what} must be about the site, with no place of its own, got {shown(own)}; move the site")
    _check(value)


def _numbers(what, value, shape, wanted=None, fits=None):
    """Raise TypeError for what are no numbers, ValueError for another number of them than ``shape`` says, or than ``fits``."""
    array = numbers(value)
    wanted = wanted or WANTED.get(shape, "numbers")
    if array is None or array.dtype == bool:
        raise TypeError(f"assemble: {what} must be {wanted}, got {shown(value)}")
    fits = fits or (lambda got: shape in (None, got))
    if not fits(np.shape(array)):
        raise ValueError(f"assemble: {what} must be {wanted}, got {shown(value)}")
