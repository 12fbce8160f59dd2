"""Wrong inputs of the whole public surface, as a new user may give them: each is refused with one sentence in the words of this library."""

import contextlib
import dataclasses
import functools
import io
import os
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, MoreauJean, bodies, drawing, ensemble, identify, models, orbits, plotting, sets
from jaxnsd.bodies import Body, Box, Capsule, Connect, Couple, Free, Motor, Pair, Plane, Points, Revolute, Rows, Sphere, Spherical
from jaxnsd.command_line import cli
from jaxnsd.drawing import plots
from jaxnsd.models import BouncingBall

#: Words of JAX, NumPy and Python's operators, which say nothing to who gave a wrong input.
RAW = (
    "tracer", "broadcast", "dot_general", "incompatible shapes", "concretiz", "unsupported operand", "object has no attribute",
    "not subscriptable", "not iterable", "not callable", "ufunc", "aval", "shapedarray", "float64[", "float32[", "pytree structure",
    "could not convert", "inhomogeneous", "cannot reshape", "positional argument", "keyword argument", "len() of unsized",
    "out of bounds for axis", "not supported between", "cannot interpret", "jaxpr", "weak_type", "setting an array element",
    "is not a valid jax", "argument must be", "invalid literal", "unhashable", "<lambda>", "expected str, bytes", "nonetype",
    "got multiple values", "operands", "size-1", "too many values", "not enough values", "must be real number", "bad operand",
    "arraylike", "dtype('", " at 0x", "<class",
)  # fmt: skip

#: Most characters of a message.
LONGEST = 400

PACKAGE = str(Path(jaxnsd.__file__).parent)


def said(call):
    """The message of the error that a wrong call raises, after what holds for all of them is checked."""
    with pytest.raises((ValueError, TypeError, KeyError, OSError, ImportError, IndexError)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    error = caught.value
    text = error.args[0] if isinstance(error, KeyError) else str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert last.filename.startswith(PACKAGE), f"raised by {last.filename}:{last.lineno}: {text}"
    return text


def looks_right(text, word):
    """Check that a message is one sentence of this library with this word in it."""
    raw = [words for words in RAW if words in text.lower()]
    assert not raw, f"{raw} in: {text}"
    assert len(text) <= LONGEST, f"{len(text)} characters: {text}"
    assert "\n" not in text.strip(), f"several lines: {text}"
    assert word in text, f"{word!r} is not in: {text}"


# ---------------------------------------------------------------------------------------------------------------- systems
@jaxnsd.system
class Puck(jaxnsd.System):
    """A puck over a floor, q = (x, y)."""

    mass: float = 1.0
    e_N: object = 0.5
    e_F: object = 0.0
    mu: object = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[:1, None]


class Plain(jaxnsd.System):
    """The same without parameters and without a decorator."""

    kinetic_energy = lambda self, t, q, u: 0.5 * u @ u  # noqa: E731
    gap, tangential_velocity = Puck.gap, Puck.tangential_velocity


def like(base=Plain, /, **methods):
    """A system of a new class with other methods."""
    return jaxnsd.system(type("Own", (base,), {"__annotations__": {}, **methods}))()


Q0, U0 = np.array([0.0, 1.0]), np.array([1.0, 0.0])


def run(system=None, scheme=None, q0=Q0, u0=U0, t1=0.05, dt=0.01, **options):
    system, scheme = Puck() if system is None else system, Moreau() if scheme is None else scheme
    return jaxnsd.simulate(system, scheme, q0, u0, t1, dt, **options)


@functools.cache
def motion():
    """A short motion of a ball."""
    return jaxnsd.simulate(BouncingBall(), MoreauJean(), np.array([1.0]), np.zeros(1), 0.1, 0.01)


def batch():
    return jax.tree.map(lambda x: jnp.stack([x, x]), motion())


# name: (word that the message has, arguments of `run`)
RUNS = {
    # the scheme and the options
    "scheme as text": ("scheme must be a scheme", {"scheme": "Moreau"}),
    "scheme without parentheses": ("parentheses", {"scheme": Moreau}),
    "scheme as a number": ("scheme", {"scheme": 3}),
    "scheme as a list": ("scheme", {"scheme": [Moreau()]}),
    "solver as text": ("solver", {"solver": "newton"}),
    "solver without parentheses": ("solver", {"solver": jaxnsd.SemismoothNewton}),
    "sensitivity misspelt": ("sensitivity", {"sensitivity": "saltations"}),
    "sensitivity as a flag": ("sensitivity", {"sensitivity": True}),
    "sensitivity as a list": ("sensitivity", {"sensitivity": ["saltation"]}),
    "save_every zero": ("save_every", {"save_every": 0}),
    "save_every negative": ("save_every", {"save_every": -2}),
    "save_every half": ("save_every", {"save_every": 2.5}),
    "save_every text": ("save_every", {"save_every": "2"}),
    "save_every None": ("save_every", {"save_every": None}),
    "save_every list": ("save_every", {"save_every": [1, 2]}),
    "save_every does not divide": ("save_every must divide", {"save_every": 2}),
    "checkpoint zero": ("checkpoint", {"checkpoint": 0}),
    "checkpoint True": ("checkpoint", {"checkpoint": True}),
    "checkpoint text": ("checkpoint", {"checkpoint": "a"}),
    "checkpoint a folder": ("checkpoint", {"checkpoint": Path("/tmp")}),
    "progress as text": ("progress", {"progress": "no"}),
    "progress as an array": ("progress", {"progress": np.ones(2)}),
    "derivatives_of_failed None": ("derivatives_of_failed", {"derivatives_of_failed": None}),
    "derivatives_of_failed as text": ("derivatives_of_failed", {"derivatives_of_failed": "yes"}),
    "n_steps and both": ("n_steps", {"n_steps": 5}),
    "n_steps as text": ("n_steps", {"n_steps": "5", "t1": None}),
    "n_steps negative": ("n_steps", {"n_steps": -5, "t1": None}),
    "n_steps a float": ("n_steps", {"n_steps": 5.0, "t1": None}),
    "n_steps True": ("n_steps", {"n_steps": True, "t1": None}),
    "start a state": ("start", {"start": (Q0, U0), "q0": None, "u0": None}),
    "start text": ("start", {"start": "a.npz", "q0": None, "u0": None}),
    "start a path": ("start", {"start": Path("a.npz"), "q0": None, "u0": None}),
    "start beside q0": ("start", {"start": lambda: motion()}),
    "start of another system": ("start", {"start": lambda: motion(), "q0": None, "u0": None, "scheme": MoreauJean(), "t1": 0.2}),
    "start a batch": ("batch", {"start": lambda: batch(), "q0": None, "u0": None, "scheme": MoreauJean(), "system": BouncingBall()}),
    # times
    "dt zero": ("dt must be positive", {"dt": 0.0}),
    "dt zero as an int": ("dt must be positive", {"dt": 0}),
    "dt negative": ("dt must be positive", {"dt": -0.01}),
    "dt NaN": ("dt must be a finite number", {"dt": np.nan}),
    "dt text": ("dt must be a finite number", {"dt": "0.01"}),
    "dt True": ("dt", {"dt": True, "t1": 1.0}),
    "dt complex": ("dt must be a finite number", {"dt": 0.01 + 0j}),
    "dt a list": ("dt must be a finite number", {"dt": [0.01]}),
    "dt a ragged list": ("dt must be a finite number", {"dt": [0.01, [1]]}),
    "dt a dict": ("dt must be a finite number", {"dt": {"dt": 0.01}}),
    "dt does not divide": ("dt = 0.03 must divide", {"dt": 0.03}),
    "dt longer than the run": ("dt", {"dt": 0.07}),
    "dt None": ("dt is missing", {"dt": None}),
    "t1 infinite": ("t1", {"t1": np.inf}),
    "t1 before t0": ("t1 must be later", {"t1": -1.0}),
    "t1 a function": ("t1", {"t1": lambda t: t}),
    "t1 text": ("t1", {"t1": "one second"}),
    "t1 a pair": ("t1", {"t1": (0.0, 1.0)}),
    "t1 a range of times": ("t1", {"t1": np.linspace(0, 1, 101)}),
    "t0 text": ("t0", {"t0": "now"}),
    "t0 NaN": ("t0", {"t0": np.nan}),
    # states
    "q0 None": ("q0", {"q0": None}),
    "q0 text": ("q0", {"q0": "0, 1"}),
    "q0 a dict": ("q0", {"q0": {"x": 0.0, "y": 1.0}}),
    "q0 whole numbers": ("write 1.0 for 1", {"q0": [0, 1]}),
    "q0 booleans": ("q0", {"q0": [False, True]}),
    "q0 complex": ("q0", {"q0": Q0 + 0j}),
    "q0 a number": ("q0", {"q0": 1.0}),
    "q0 a matrix": ("vmap", {"q0": np.zeros((3, 2))}),
    "q0 ragged": ("q0", {"q0": [[0.0], [1.0, 2.0]]}),
    "q0 with None": ("q0", {"q0": [0.0, None]}),
    "q0 NaN": ("q0 must be finite", {"q0": [0.0, np.nan]}),
    "q0 half precision": ("q0", {"q0": Q0.astype(np.float16)}),
    "q0 long double": ("q0", {"q0": Q0.astype(np.longdouble)}),
    "q0 a set": ("q0", {"q0": {0.0, 1.0}}),
    "q0 dates": ("q0", {"q0": np.array(["2024-01-01", "2024-01-02"], "M8[D]")}),
    "q0 the pair of both": ("q0", {"q0": (Q0, U0)}),
    "u0 of other length": ("one shape", {"u0": np.zeros(3)}),
    "u0 infinite": ("u0 must be finite", {"u0": [np.inf, 0.0]}),
    "u0 single precision": ("one dtype", {"u0": U0.astype(np.float32)}),
    "u0 a scheme": ("u0", {"u0": Moreau()}),
    "both empty": ("at least one coordinate", {"q0": np.zeros(0), "u0": np.zeros(0)}),
    "penetration": ("contact 0 must be open", {"q0": [0.0, -0.5]}),
    # parameters
    "system a class": ("write Puck(...)", {"system": Puck}),
    "system text": ("system", {"system": "Puck"}),
    "system a number": ("system", {"system": 1.0}),
    "system a list": ("system", {"system": [Puck()]}),
    "system and scheme exchanged": ("scheme", {"system": Moreau(), "scheme": Puck()}),
    "mass a whole number": ("write 1.0 for 1", {"system": Puck(mass=1)}),
    "mass text": ("Puck.mass", {"system": Puck(mass="1 kg")}),
    "mass None": ("Puck.mass", {"system": Puck(mass=None)}),
    "mass complex": ("Puck.mass", {"system": Puck(mass=1j)}),
    "mass NaN": ("Puck.mass", {"system": Puck(mass=np.nan)}),
    "mass infinite": ("Puck", {"system": Puck(mass=np.inf)}),
    "mass zero": ("mass matrix", {"system": Puck(mass=0.0)}),
    "mass negative": ("mass matrix", {"system": Puck(mass=-1.0)}),
    "mass an array": ("kinetic_energy", {"system": Puck(mass=np.ones(3))}),
    "mass a function": ("Puck.mass", {"system": Puck(mass=lambda t: 1.0)}),
    "mass a dict": ("Puck", {"system": Puck(mass={"kg": 1.0})}),
    "mass single precision": ("Puck.mass", {"system": Puck(mass=np.float32(1))}),
    "mass True": ("Puck.mass", {"system": Puck(mass=True)}),
    "e_N above 1": ("e_N must lie in [0, 1]", {"system": Puck(e_N=1.5)}),
    "e_N negative": ("e_N must lie in [0, 1]", {"system": Puck(e_N=-0.1)}),
    "e_N None": ("e_N", {"system": Puck(e_N=None)}),
    "e_N in percent": ("e_N", {"system": Puck(e_N=50.0)}),
    "e_N text": ("e_N", {"system": Puck(e_N="0.5")}),
    "e_N of two contacts": ("e_N", {"system": Puck(e_N=np.array([0.5, 0.5]))}),
    "e_N a matrix": ("e_N", {"system": Puck(e_N=np.ones((1, 1)))}),
    "e_N a function of speed": ("e_N", {"system": Puck(e_N=lambda v: 0.5)}),
    "e_F above 1": ("e_F", {"system": Puck(e_F=2.0)}),
    "mu negative": ("mu must be finite and not negative", {"system": Puck(mu=-0.3)}),
    "mu infinite": ("mu", {"system": Puck(mu=np.inf)}),
    "mu of three contacts": ("mu", {"system": Puck(mu=np.ones(3))}),
    "mu a list of text": ("mu", {"system": Puck(mu=["a"])}),
    "law a number": ("law", {"system": like(law=0.5)}),
    "law text": ("law", {"system": like(law="Newton")}),
    "law with e_N above 1": ("law.e_N", {"system": like(law=jaxnsd.NewtonImpact(1.2))}),
    "law and field both": ("e_N", {"system": like(Puck, law=jaxnsd.NewtonImpact(0.5))}),
    "law with an ellipse in the plane": ("tangential_velocity", {"system": like(law=jaxnsd.NewtonImpact(friction=sets.Ellipse(0.1, 0.2)))}),
    "law with negative friction": ("mu", {"system": like(law=jaxnsd.NewtonImpact(friction=sets.Segment(-0.1)))}),
    "dry friction negative": ("dry_friction", {"system": like(dry_friction=lambda self: -1.0)}),
    "dry friction of three": ("dry_friction", {"system": like(dry_friction=lambda self: jnp.ones(3))}),
    "dry friction with Lobatto": ("Lobatto", {"system": like(dry_friction=lambda self: 1.0), "scheme": Lobatto(2)}),
    "until a number": ("until", {"until": 0.5}),
    "until of one argument": ("until must take (t, q, u)", {"until": lambda q: q[0] < 0}),
    "until of no argument": ("until must take (t, q, u)", {"until": lambda: True}),
    "until a place": ("until", {"until": lambda t, q, u: jnp.argmax(q)}),
    "until numbers": ("until", {"until": lambda t, q, u: q}),
    "save_at a word": ("save_at", {"save_at": "0.1"}),
    "save_at that falls": ("save_at", {"save_at": [0.002, 0.001]}),
    "save_at after the end": ("save_at", {"save_at": [1e6]}),
    "save_at before the start": ("save_at", {"save_at": [-1.0]}),
    "save_at of two axes": ("save_at", {"save_at": [[0.001]]}),
    "save_at empty": ("save_at", {"save_at": []}),
    "save_at booleans": ("save_at", {"save_at": [True]}),
    "save_at not a number": ("save_at", {"save_at": [float("nan")]}),
    "until of an array": ("until", {"until": lambda t, q, u: q < 0}),
    "until None": ("until", {"until": lambda t, q, u: None}),
    "until with and": ("until", {"until": lambda t, q, u: q[0] < 0 and u[0] < 0}),
    "until outside": ("until", {"until": lambda t, q, u: q[5] < 0}),
    "until text": ("until", {"until": "q[1] < 0"}),
    "until a wrong name": ("until", {"until": lambda t, q, u: qq[0] < 0}),  # noqa: F821
    "until wrong shapes": ("until", {"until": lambda t, q, u: jnp.all(q < jnp.ones(3))}),
    "KrenkHogsberg of a puck": ("LinearSystem", {"scheme": jaxnsd.KrenkHogsberg()}),
    "too long for memory": ("memory", {"n_steps": 10**12, "t1": None, "save_every": 10}),
}

# What a method of one's own returns, or how it is written.
METHODS = {
    "gap a scalar": ("Own.gap", {"gap": lambda self, t, q: q[1]}),
    "gap a list": ("Own.gap", {"gap": lambda self, t, q: [q[1]]}),
    "gap None": ("Own.gap", {"gap": lambda self, t, q: None}),
    "gap a matrix": ("Own.gap", {"gap": lambda self, t, q: q[None]}),
    "gap text": ("Own.gap", {"gap": lambda self, t, q: "open"}),
    "gap a tuple": ("Own.gap", {"gap": lambda self, t, q: (q[1], 0.0)}),
    "gap a dict": ("Own.gap", {"gap": lambda self, t, q: {"floor": q[1]}}),
    "gap a Python number": ("Own.gap", {"gap": lambda self, t, q: 0.0}),
    "gap without self": ("Own.gap", {"gap": lambda t, q: q[1:]}),
    "gap of q alone": ("Own.gap", {"gap": lambda self, q: q[1:]}),
    "gap of t, q and u": ("Own.gap", {"gap": lambda self, t, q, u: q[1:]}),
    "gap no function": ("the field gap", {"gap": 3.0}),
    "gap of booleans": ("Own.gap", {"gap": lambda self, t, q: q[1:] > 0}),
    "gap of whole numbers": ("Own.gap", {"gap": lambda self, t, q: jnp.ones(1, int)}),
    "gap complex": ("Own.gap", {"gap": lambda self, t, q: q[1:] + 0j}),
    "gap single precision": ("Own.gap", {"gap": lambda self, t, q: q[1:].astype(jnp.float32)}),
    "gap by an if": ("jnp.where", {"gap": lambda self, t, q: q[1:] if q[0] > 0 else -q[1:]}),
    "gap by NumPy": ("jnp.sin", {"gap": lambda self, t, q: np.sin(q[1:])}),
    "gap by float()": ("Own.gap", {"gap": lambda self, t, q: jnp.stack([float(q[1])])}),
    "gap outside": ("entry 2", {"gap": lambda self, t, q: jnp.stack([q[2]])}),
    "gap of wrong shapes": ("Own.gap", {"gap": lambda self, t, q: q @ jnp.ones(3)}),
    "gap of a sum of wrong shapes": ("Own.gap", {"gap": lambda self, t, q: q + jnp.ones(3)}),
    "gap of parts that cannot be joined": ("Own.gap", {"gap": lambda self, t, q: jnp.concatenate([q[1], q])}),
    "gap of a wrong reshape": ("Own.gap", {"gap": lambda self, t, q: q.reshape(3)}),
    "gap of unknown field": ("'heigth'", {"gap": lambda self, t, q: q[1:] - self.heigth}),
    "gap of unknown name": ("'height'", {"gap": lambda self, t, q: q[1:] - height}),  # noqa: F821
    "gap of unknown function": ("'sinus'", {"gap": lambda self, t, q: jnp.sinus(q[1:])}),
    "gap of a list times a float": ("Own.gap", {"gap": lambda self, t, q: jnp.asarray([1, 2] * 0.5)}),
    "gap minus None": ("Own.gap", {"gap": lambda self, t, q: q[1:] - None}),
    "gap minus text": ("Own.gap", {"gap": lambda self, t, q: q[1:] - "a"}),
    "gap by an index that is a float": ("Own.gap", {"gap": lambda self, t, q: q[1.0]}),
    "gap by two indices": ("Own.gap", {"gap": lambda self, t, q: q[0, 1]}),
    "gap by a key": ("Own.gap", {"gap": lambda self, t, q: q["y"]}),
    "gap by assignment": ("Own.gap", {"gap": lambda self, t, q: q.__setitem__(0, 1.0)}),
    "gap of a call of q": ("Own.gap", {"gap": lambda self, t, q: q(1)}),
    "gap by a division by zero": ("Own.gap", {"gap": lambda self, t, q: q[1:] * (1 / 0)}),
    "gap by unpacking": ("Own.gap", {"gap": lambda self, t, q: (lambda x, y, z: jnp.stack([z]))(*q)}),
    "gap NaN": ("Own.gap must be finite", {"gap": lambda self, t, q: q[1:] * jnp.nan}),
    "gap with a kink at the start": ("gap_velocity", {"gap": lambda self, t, q: jnp.sqrt(q[1:] - 1)}),
    "tangential velocity (n,)": ("[:, None]", {"tangential_velocity": lambda self, t, q, u: u[:1]}),
    "tangential velocity of 3": ("tangential_velocity", {"tangential_velocity": lambda self, t, q, u: jnp.ones((1, 3))}),
    "tangential velocity of 2 contacts": ("tangential_velocity", {"tangential_velocity": lambda self, t, q, u: u[:, None]}),
    "tangential velocity squared": ("affine", {"tangential_velocity": lambda self, t, q, u: u[:1, None] ** 2}),
    "tangential velocity of q": ("Own.tangential_velocity", {"tangential_velocity": lambda self, t, q: q[:1, None]}),
    "kinetic energy of an array": ("kinetic_energy", {"kinetic_energy": lambda self, t, q, u: 0.5 * u**2}),
    "kinetic energy None": ("kinetic_energy", {"kinetic_energy": lambda self, t, q, u: None}),
    "kinetic energy linear": ("Own", {"kinetic_energy": lambda self, t, q, u: jnp.sum(u)}),
    "kinetic energy of fourth order": ("quadratic", {"kinetic_energy": lambda self, t, q, u: 0.5 * u @ u + u[0] ** 4}),
    "kinetic energy of one velocity": ("mass matrix", {"kinetic_energy": lambda self, t, q, u: 0.5 * u[0] ** 2}),
    "kinetic energy of q alone": ("Own.kinetic_energy", {"kinetic_energy": lambda self, q, u: 0.5 * u @ u}),
    "kinetic energy negative": ("mass matrix", {"kinetic_energy": lambda self, t, q, u: -0.5 * u @ u}),
    "potential energy of an array": ("potential_energy", {"potential_energy": lambda self, t, q: q}),
    "potential energy None": ("potential_energy", {"potential_energy": lambda self, t, q: None}),
    "potential energy of u": ("Own.potential_energy", {"potential_energy": lambda self, t, q, u: q[1]}),
    "force of one": ("Own.force", {"force": lambda self, t, q, u: u[:1]}),
    "force a scalar": ("Own.force", {"force": lambda self, t, q, u: -9.81}),
    "force a list": ("Own.force", {"force": lambda self, t, q, u: [0.0, -9.81]}),
    "force NaN": ("Own.h", {"force": lambda self, t, q, u: u / 0.0}),
    "force without u": ("Own.force", {"force": lambda self, t, q: q}),
    "force by NumPy's array": ("Own.force", {"force": lambda self, t, q, u: np.array([q[0], 1.0])}),
    "force assigns": ("Own.force", {"force": lambda self, t, q, u: exec("u[0] = 1.0", {"u": u})}),
    "q_dot of one": ("Own.q_dot", {"q_dot": lambda self, t, q, u: u[:1]}),
    "q_dot not affine": ("affine", {"q_dot": lambda self, t, q, u: jnp.sin(u)}),
    "constraint a scalar": ("Own.constraint", {"constraint": lambda self, t, q: q[0]}),
    "constraint violated": ("must vanish", {"constraint": lambda self, t, q: q[:1] - 1.0}),
    "constraint velocity violated": ("must vanish", {"constraint": lambda self, t, q: q[:1]}),
    "constraint twice": ("independent", {"constraint": lambda self, t, q: jnp.stack([q[1] - 1, 2 * q[1] - 2])}),
    "constraint that binds nothing": ("constraint", {"constraint": lambda self, t, q: jnp.zeros(1)}),
    "velocity constraint a scalar": ("velocity_constraint", {"velocity_constraint": lambda self, t, q, u: u[0]}),
    "velocity constraint violated": ("must vanish", {"velocity_constraint": lambda self, t, q, u: u[:1]}),
    "velocity constraint quadratic": ("affine", {"velocity_constraint": lambda self, t, q, u: u[1:] * u[:1]}),
    "mass matrix of three": ("mass_matrix", {"mass_matrix": lambda self, t, q: jnp.eye(3), "kinetic_energy": None}),
    "mass matrix diagonal alone": ("mass_matrix", {"mass_matrix": lambda self, t, q: jnp.ones(2), "kinetic_energy": None}),
    "mass matrix asymmetric": (
        "symmetric",
        {"mass_matrix": lambda self, t, q: jnp.array([[1.0, 0.5], [0.0, 1.0]]), "kinetic_energy": None},
    ),
    "mass matrix singular": ("positive definite", {"mass_matrix": lambda self, t, q: jnp.ones((2, 2)), "kinetic_energy": None}),
    "mass matrix NaN": ("finite", {"mass_matrix": lambda self, t, q: jnp.full((2, 2), jnp.nan), "kinetic_energy": None}),
    "mass matrix and energy disagree": ("agree", {"mass_matrix": lambda self, t, q: 2 * jnp.eye(2)}),
    "W_N of wrong shape": ("Own.W_N", {"W_N": lambda self, t, q, u=None: jnp.ones((2, 2))}),
    "M of wrong shape": ("Own.M", {"M": lambda self, t, q, u=None: jnp.ones(2)}),
    "h of wrong shape": ("Own.h", {"h": lambda self, t, q, u: jnp.ones(3)}),
    "mu by the speed of slip": ("friction does not depend on the motion", {"mu": lambda self, speed: 0.3}),
    "mu a method of the state": ("Own", {"mu": lambda self, t, q: 0.3}),
    "mu a method of three": ("Own.mu", {"mu": lambda self: jnp.ones(3)}),
    "mu a method that is text": ("Own", {"mu": lambda self: "0.3"}),
    "mu a method that is None": ("Own", {"mu": lambda self: None}),
    "e_N a method above 1": ("Own.e_N", {"e_N": lambda self: 1.5}),
    "e_N a method that fails": ("Own", {"e_N": lambda self: self.rubber}),
    "coordinate names of one": ("coordinate_names", {"coordinate_names": ("x",)}),
    "coordinate names text": ("coordinate_names", {"coordinate_names": "xy"}),
    "coordinate names numbers": ("coordinate_names", {"coordinate_names": (1, 2)}),
    "coordinate names a method": ("coordinate_names", {"coordinate_names": lambda self: ("x", "y")}),
    "velocity names of three": ("velocity_names", {"velocity_names": ("x", "y", "z")}),
    "contact names of two": ("contact_names", {"contact_names": ("a", "b")}),
    "dry velocity a scalar": ("dry_velocity", {"dry_friction": lambda self: 1.0, "dry_velocity": lambda self, t, q, u: u[0]}),
    "dry friction text": ("dry_friction", {"dry_friction": lambda self: "1 N"}),
    "drift bound text": ("drift_bound", {"drift_bound": lambda self, t, q: "a", "constraint": lambda self, t, q: q[1:] - 1.0}),
    "no inertia": ("inertia", {"kinetic_energy": None}),
}


LISTED = jaxnsd.static(default_factory=list)

# Options of schemes, solvers, laws and sets, and decorators.
MADE = {
    "theta above 1": ("theta must lie in [0, 1]", lambda: MoreauJean(1.5)),
    "theta text": ("theta", lambda: MoreauJean("a")),
    "theta None": ("theta", lambda: MoreauJean(None)),
    "theta NaN": ("theta", lambda: MoreauJean(np.nan)),
    "theta an array": ("theta", lambda: MoreauJean(np.array([0.5, 0.6]))),
    "theta complex": ("theta", lambda: MoreauJean(0.5j)),
    "prediction above 1": ("prediction", lambda: MoreauJean(prediction=2.0)),
    "prediction text": ("prediction", lambda: MoreauJean(prediction="half")),
    "require_closing a number": ("require_closing", lambda: MoreauJean(require_closing=0.5)),
    "midpoint_mass text": ("midpoint_mass", lambda: MoreauJean(midpoint_mass="yes")),
    "rho_inf above 1": ("rho_inf", lambda: jaxnsd.GeneralizedAlpha(1.2)),
    "rho_inf text": ("rho_inf", lambda: jaxnsd.GeneralizedAlpha("a")),
    "rho_inf and beta": ("rho_inf", lambda: jaxnsd.GeneralizedAlpha(0.5, beta=0.3)),
    "beta NaN": ("beta", lambda: jaxnsd.Newmark(np.nan)),
    "beta text": ("beta", lambda: jaxnsd.Newmark("a")),
    "gamma zero": ("singular", lambda: jaxnsd.Newmark(0.25, 0.0)),
    "alpha 1": ("singular", lambda: jaxnsd.HHT(1.0)),
    "alpha text": ("alpha", lambda: jaxnsd.HHT("a")),
    "alpha a list": ("alpha", lambda: jaxnsd.HHT([0.1])),
    "stages 1": ("stages", lambda: Lobatto(1)),
    "stages 99": ("stages", lambda: Lobatto(99)),
    "stages a float": ("stages", lambda: Lobatto(2.5)),
    "stages text": ("stages", lambda: Lobatto("a")),
    "stages None": ("stages", lambda: Lobatto(None)),
    "stages True": ("stages", lambda: Lobatto(True)),
    "r of Lobatto negative": ("r must", lambda: Lobatto(2, r=-1.0)),
    "r of Lobatto text": ("r must", lambda: Lobatto(2, r="a")),
    "LocatedImpacts of a class": ("scheme must be a scheme", lambda: LocatedImpacts(MoreauJean)),
    "LocatedImpacts of text": ("scheme must be a scheme", lambda: LocatedImpacts("MoreauJean")),
    "LocatedImpacts of itself": ("LocatedImpacts", lambda: LocatedImpacts(LocatedImpacts(MoreauJean()))),
    "max_impacts zero": ("max_impacts", lambda: LocatedImpacts(MoreauJean(), 0)),
    "max_impacts text": ("max_impacts", lambda: LocatedImpacts(MoreauJean(), "a")),
    "max_impacts a float": ("max_impacts", lambda: LocatedImpacts(MoreauJean(), 1.5)),
    "slowest negative": ("slowest", lambda: LocatedImpacts(MoreauJean(), slowest=-1.0)),
    "slowest NaN": ("slowest", lambda: LocatedImpacts(MoreauJean(), slowest=np.nan)),
    "slowest text": ("slowest", lambda: LocatedImpacts(MoreauJean(), slowest="a")),
    "slowest None": ("slowest", lambda: LocatedImpacts(MoreauJean(), slowest=None)),
    "sliding text": ("sliding", lambda: LocatedImpacts(MoreauJean(), sliding="no")),
    "tolerance negative": ("tolerance", lambda: jaxnsd.SemismoothNewton(-1.0)),
    "tolerance text": ("tolerance", lambda: jaxnsd.SemismoothNewton("a")),
    "max_iterations zero": ("max_iterations", lambda: jaxnsd.SemismoothNewton(max_iterations=0)),
    "max_iterations a float": ("max_iterations", lambda: jaxnsd.InteriorPoint(max_iterations=2.5)),
    "max_rescues negative": ("max_rescues", lambda: jaxnsd.SemismoothNewton(max_rescues=-1)),
    "max_attempts text": ("max_attempts", lambda: jaxnsd.InteriorPoint(max_attempts="a")),
    "friction of a law a number": ("friction must be a set", lambda: jaxnsd.NewtonImpact(friction=0.3)),
    "friction of a law a class": ("friction must be a set", lambda: jaxnsd.NewtonImpact(friction=sets.Disc)),
    "friction of a law text": ("friction must be a set", lambda: jaxnsd.PoissonImpact(friction="Coulomb")),
    "system of an instance": ("@jaxnsd.system", lambda: jaxnsd.system(Puck())),
    "system of a function": ("@jaxnsd.system", lambda: jaxnsd.system(lambda t: t)),
    "system of a class of one's own": ("jaxnsd.System", lambda: jaxnsd.system(type("Ball", (), {"mass": 1.0}))),
    "a field called gap": ("rename the field", lambda: like(__annotations__={"gap": float}, gap=0.1)),
    "a field called M": ("rename the field", lambda: like(__annotations__={"M": float}, M=0.1)),
    "a static field that is a list": (
        "hashable",
        lambda: run(like(Puck, __annotations__={"x": list}, x=LISTED)),
    ),
    "a class without a decorator": ("@jaxnsd.system", lambda: run(Plain())),
    "Tridiagonal of equal lengths": ("(n - 1,)", lambda: jaxnsd.Tridiagonal(np.ones(3), np.ones(3))),
    "Tridiagonal of text": ("Tridiagonal", lambda: jaxnsd.Tridiagonal("a", "b")),
    "mass of a LinearSystem asymmetric": ("mass must be symmetric", lambda: linear(mass=np.array([[2.0, 1.0], [0.0, 1.0]]))),
    "mass of a LinearSystem indefinite": ("mass must be positive definite", lambda: linear(mass=np.diag([1.0, -1.0]))),
    "mass of a LinearSystem a number": ("mass", lambda: linear(mass=1.0)),
    "mass of a LinearSystem a list of numbers": ("mass", lambda: linear(mass=[1.0, 1.0])),
    "mass of a LinearSystem text": ("mass", lambda: linear(mass="m")),
    "mass of a LinearSystem None": ("mass", lambda: linear(mass=None)),
    "mass of a LinearSystem of whole numbers": ("mass", lambda: run(linear(mass=np.eye(2, dtype=int)))),
    "K of another size": ("K must have the shape of mass", lambda: linear(K=np.eye(3))),
    "K NaN": ("K", lambda: linear(K=np.full((2, 2), np.nan))),
    "K None": ("K", lambda: linear(K=None)),
    "C of another size": ("C must have the shape of mass", lambda: linear(C=np.eye(3))),
    "F of another size": ("F must have shape (2,)", lambda: linear(F=np.ones(3))),
    "F a function of two": ("F", lambda: run(linear(F=lambda t, q: np.ones(2)))),
    "F a function of another size": ("F", lambda: run(linear(F=lambda t: jnp.ones(3)))),
    "F text": ("F", lambda: linear(F="gravity")),
    "G of one axis": ("G must have shape (2, n_N)", lambda: linear(G=np.ones(2))),
    "w of another size": ("w must be a scalar", lambda: linear(G=np.ones((2, 1)), w=np.ones(2))),
    "G_F of two axes": ("G_F must have shape", lambda: linear(G=np.ones((2, 1)), G_F=np.ones((2, 1)))),
    "e_N of a LinearSystem": ("e_N", lambda: run(linear(G=np.eye(2), w=1.0, e_N=3.0))),
}


def linear(**change):
    return jaxnsd.LinearSystem(**{"mass": np.eye(2), "K": np.eye(2)} | change)


# jit, vmap and grad, and what is read after a run.
TRANSFORMED = {
    "dt traced": ("dt decides the number of steps", lambda: jax.jit(lambda dt: run(dt=dt).q)(0.01)),
    "t1 differentiated": ("t1 decides the number of steps", lambda: jax.grad(lambda t1: run(t1=t1).q[-1, 0])(0.05)),
    "n_steps traced": ("n_steps", lambda: jax.jit(lambda n: run(t1=None, n_steps=n).q)(5)),
    "save_every traced": ("save_every", lambda: jax.jit(lambda n: run(save_every=n).q)(5)),
    "states of a batch without vmap": ("vmap", lambda: jax.jit(lambda q: run(q0=q).q)(jnp.zeros((3, 2)))),
    "whole numbers in jit": ("floating", lambda: jax.jit(lambda q: run(q0=q).q)(jnp.zeros(2, int))),
    "vmap of unlike shapes": ("one shape", lambda: jax.vmap(lambda q: run(q0=q).q)(jnp.zeros((3, 4)))),
    "mu of a batch without vmap": ("mu", lambda: jax.jit(lambda mu: run(Puck(mu=mu)).q)(jnp.linspace(0, 1, 5))),
    "e_N known in jit": ("e_N", lambda: jax.jit(lambda x: x * run(Puck(e_N=2.0)).q)(1.0)),
    "a method that closes over what is traced": (
        "make it a field",
        lambda: jax.grad(lambda m: run(like(potential_energy=lambda self, t, q: m * q[1])).q[-1, 0])(1.0),
    ),
    "mu that closes over what is traced": ("field", lambda: jax.grad(lambda m: run(like(mu=lambda self: m)).q[-1, 0])(0.3)),
    "a system traced as a number": ("system", lambda: jax.jit(lambda s: run(s).q)(1.0)),
    "raise_if_failed in jit": ("raise_if_failed() needs values", lambda: jax.jit(lambda q: run(q0=q).raise_if_failed().q)(Q0)),
    "to_dataframe in jit": ("to_dataframe() needs values", lambda: jax.eval_shape(lambda q: run(q0=q).to_dataframe().q, Q0)),
    "save in jit": ("save() needs values", lambda: jax.eval_shape(lambda q: run(q0=q).save("a.npz"), Q0)),
    "trimmed of a batch": ("trimmed", lambda: batch().trimmed()),
    "a member of one motion": ("no members", lambda: motion()[0]),
    "a slice of one motion": ("no members", lambda: motion()[2:5]),
    "a member that there is not": ("members", lambda: batch()[7]),
    "a member by name": ("members", lambda: batch()["a"]),
    "a member by a float": ("members", lambda: batch()[1.5]),
    "too many axes of a batch": ("members", lambda: batch()[0, 0]),
    "count of a word": ("Event", lambda: motion().count("impact")),
    "count of no event": ("Event", lambda: motion().count(3.5)),
    "load a file that is none": ("Solution", lambda: jaxnsd.Solution.load(__file__)),
    "load nothing": ("does not exist", lambda: jaxnsd.Solution.load("nowhere.npz")),
    "load a folder": ("is a directory", lambda: jaxnsd.Solution.load("/tmp")),
    "load None": ("path", lambda: jaxnsd.Solution.load(None)),
    "save into nowhere": ("does not exist", lambda: motion().save("nowhere/a.npz")),
    "save into a folder": ("is a directory", lambda: motion().save("/tmp")),
    "save into None": ("path", lambda: motion().save(None)),
    "times after the end": ("times must be from 0", lambda: jaxnsd.at_times(BouncingBall(), motion(), 5.0)),
    "times before the start": ("times must be from 0", lambda: jaxnsd.at_times(BouncingBall(), motion(), [-1.0, 0.05])),
    "times of text": ("times must be numbers", lambda: jaxnsd.at_times(BouncingBall(), motion(), "0.1")),
    "times None": ("times must be numbers", lambda: jaxnsd.at_times(BouncingBall(), motion(), None)),
    "times NaN": ("nan", lambda: jaxnsd.at_times(BouncingBall(), motion(), np.nan)),
    "times a matrix": ("one axis", lambda: jaxnsd.at_times(BouncingBall(), motion(), np.zeros((2, 2)))),
    "times ragged": ("times must be numbers", lambda: jaxnsd.at_times(BouncingBall(), motion(), [[0.1], [0.1, 0.2]])),
    "times of a batch": ("batch", lambda: jaxnsd.at_times(BouncingBall(), batch(), 0.05)),
    "times of no solution": ("solution", lambda: jaxnsd.at_times(BouncingBall(), Q0, 0.05)),
    "times of no system": ("system", lambda: jaxnsd.at_times(BouncingBall, motion(), 0.05)),
    "times in the wrong order of arguments": ("system", lambda: jaxnsd.at_times(motion(), BouncingBall(), 0.05)),
    "node velocities of another scheme": ("another scheme", lambda: jaxnsd.node_velocities(BouncingBall(), Moreau(), motion())),
    "node velocities of no scheme": ("scheme", lambda: jaxnsd.node_velocities(BouncingBall(), "Moreau", motion())),
    "node velocities of no solution": ("solution", lambda: jaxnsd.node_velocities(BouncingBall(), MoreauJean(), Q0)),
    "energy of another scheme": ("another scheme", lambda: jaxnsd.energy.balance(BouncingBall(), Moreau(), motion())),
    "energy of no solution": ("solution", lambda: jaxnsd.energy.balance(BouncingBall(), MoreauJean(), 3.0)),
    "energy of a batch": ("batch", lambda: jaxnsd.energy.balance(BouncingBall(), MoreauJean(), batch())),
    "energy of no system": ("system", lambda: jaxnsd.energy.balance("ball", MoreauJean(), motion())),
    "check of no scheme": ("scheme", lambda: jaxnsd.check(Puck(), None, Q0, U0, 0.05, 0.01)),
    "check with an unknown option": ("dtt", lambda: jaxnsd.check(Puck(), Moreau(), Q0, U0, 0.05, dtt=0.01)),
    "keep of no function": ("function", lambda: jaxnsd.keep(3)),
    "keep of a method with a lock": ("keep", lambda: jaxnsd.keep(motion())),
    "project_position of one number": ("q", lambda: jaxnsd.project_position(Puck(), 1.0)),
    "project_position of text": ("q", lambda: jaxnsd.project_position(Puck(), "a")),
    "project_position of a class": ("system", lambda: jaxnsd.project_position(Puck, Q0)),
    "project_position of another length": ("q", lambda: jaxnsd.project_position(BouncingBall(), np.zeros((2, 2)))),
    "project_position of whole numbers": ("floating", lambda: jaxnsd.project_position(Puck(), [0, 1])),
    "project_velocity of another length": ("u", lambda: jaxnsd.project_velocity(Puck(), Q0, np.zeros(3))),
    "project_velocity of NaN": ("u", lambda: jaxnsd.project_velocity(Puck(), Q0, np.full(2, np.nan))),
    "G of another size": ("G must have shape", lambda: contact(G=np.eye(5))),
    "G asymmetric": ("G must be symmetric", lambda: contact(G=np.eye(6) + np.eye(6, k=1))),
    "G of text": ("G", lambda: contact(G="a")),
    "c of whole numbers": ("c must be of a floating", lambda: contact(c=np.ones(6, int))),
    "c of 5 rows": ("c must have 3 rows", lambda: contact(c=np.ones(5), G=np.eye(5))),
    "mu of a contact problem negative": ("mu must be finite", lambda: contact(mu=-0.1)),
    "mu of a contact problem text": ("mu", lambda: contact(mu="a")),
    "mu of a contact problem None": ("mu", lambda: contact(mu=None)),
    "mu of a contact problem whole numbers": ("mu", lambda: contact(mu=np.ones(2, int))),
    "d of 3": ("d must be 0", lambda: contact(d=3)),
    "d text": ("d must be 0", lambda: contact(d="2")),
    "d None": ("d must be 0", lambda: contact(d=None)),
    "active of floats": ("active must be 2 booleans", lambda: contact(active=np.ones(2))),
    "active text": ("active must be 2 booleans", lambda: contact(active="all")),
    "active ragged": ("active must be 2 booleans", lambda: contact(active=[[True], [True, False]])),
    "guess of another size": ("guess", lambda: contact(guess=np.ones(5))),
    "guess text": ("guess", lambda: contact(guess="zero")),
    "solver of a contact problem": ("solver", lambda: contact(solver=1e-8)),
}


def contact(**change):
    return jaxnsd.solve_contact_problem(**{"G": np.eye(6), "c": np.ones(6), "mu": 0.3} | change)


# ------------------------------------------------------------------------------------------------------------------ bodies
BALL = Body("ball", 1.0, (0.1, 0.1, 0.1), shapes=Sphere(0.1), position=(0, 0, 1.0))
HINGE = Revolute((0.0, 1.0, 0.0), name="knee")
BEND = Body("bend", 1.0, (1.0, 1.0, 1.0), joints=Revolute(limits=(0.0, 1.0)))
ARM = Body("arm", 1.0, (0.1, 0.1, 0.1), joints=HINGE)


def moving(*parts, **more):
    return bodies.assemble([BALL, ARM, *parts], **{"contacts": ()} | more)


def body(**change):
    return bodies.assemble([Body(**{"name": "x", "mass": 1.0, "inertia": (0.1, 0.1, 0.1)} | change)])


def joint(kind=Revolute, **change):
    return body(joints=kind(**change))


def shape(made):
    return body(shapes=made)


@functools.cache
def arm():
    return bodies.assemble([ARM], motors=[Motor("knee", name="drive")])


def going(**fields):
    """A check of the arm with other arrays, or with more of what a subclass has."""
    system = dataclasses.replace(arm(), **fields)
    jaxnsd.check(system, Moreau(), *arm().initial_state(), 0.01, 0.01)


def controlled(weights):
    def control(t, q, u):
        return weights * q[:1]

    system = bodies.assemble([ARM], motors=[Motor("knee")], control=control)
    return jaxnsd.simulate(system, Moreau(), *system.initial_state(), 0.02, 0.01).q[-1, 0]


BODIES = {
    "body a name": ("bodies must be Body", lambda: bodies.assemble(["ball"])),
    "body a class": ("Body", lambda: bodies.assemble([Body])),
    "bodies None": ("bodies must be Body", lambda: bodies.assemble(None)),
    "no bodies": ("at least one body", lambda: bodies.assemble([])),
    "bodies a dict": ("bodies must be Body", lambda: bodies.assemble({"ball": BALL})),
    "a name that is a number": ("name", lambda: body(name=3)),
    "an empty name": ("name", lambda: body(name="")),
    "one name twice": ("different", lambda: bodies.assemble([BALL, BALL])),
    "a body called world": ('"world"', lambda: body(name="world")),
    "a body of None": ("name", lambda: body(name=None)),
    "mass of a body text": ("mass", lambda: body(mass="1 kg")),
    "mass of a body None": ("mass", lambda: body(mass=None)),
    "mass of a body negative": ("mass of 'x'", lambda: body(mass=-1.0)),
    "mass of a body NaN": ("mass", lambda: body(mass=np.nan)),
    "mass of a body complex": ("mass", lambda: body(mass=1j)),
    "mass of a body several": ("mass", lambda: body(mass=np.ones(2))),
    "mass of a body zero": ("mass", lambda: body(mass=0.0)),
    "inertia text": ("inertia", lambda: body(inertia="sphere")),
    "inertia of four": ("inertia", lambda: body(inertia=np.ones(4))),
    "inertia of no body": ("inertia of 'x'", lambda: body(inertia=(0.1, 0.2, 1.0))),
    "inertia missing": ("inertia", lambda: body(inertia=None)),
    "inertia a number": ("inertia", lambda: body(inertia=0.1)),
    "inertia ragged": ("inertia", lambda: body(inertia=[[1.0], [1.0, 2.0]])),
    "center of two": ("center", lambda: body(center=(0.0, 1.0))),
    "center text": ("center", lambda: body(center="middle")),
    "position of two": ("3 numbers", lambda: body(position=(0.0, 1.0))),
    "position a number": ("3 numbers", lambda: body(position=1.0)),
    "position None": ("position", lambda: body(position=None)),
    "position text": ("position", lambda: body(position="abc")),
    "orientation of three": ("4 numbers", lambda: body(orientation=(0.0, 0.0, 0.0))),
    "orientation zero": ("orientation", lambda: body(orientation=(0.0, 0.0, 0.0, 0.0))),
    "parent unknown": ("did you mean 'arm'", lambda: moving(Body("y", 1.0, (1.0, 1, 1), joints=HINGE, parent="arn"))),
    "parent a body": ("parent", lambda: moving(Body("y", 1.0, (1.0, 1, 1), joints=Revolute(), parent=ARM))),
    "joints text": ("got 'hinge'", lambda: body(joints="hinge")),
    "joints None": ("joint", lambda: body(joints=None)),
    "joints a class": ("parentheses", lambda: body(joints=Revolute)),
    "joints a shape": ("joint", lambda: body(joints=Sphere(0.1))),
    "shapes a joint": ("shape", lambda: body(shapes=Free())),
    "shapes text": ("shape", lambda: body(shapes="sphere")),
    "shapes None": ("shape", lambda: body(shapes=None)),
    "radius negative": ("x_sphere", lambda: shape(Sphere(-0.1))),
    "radius text": ("sphere of 'x'", lambda: shape(Sphere("a"))),
    "radius None": ("sphere of 'x'", lambda: shape(Sphere(None))),
    "radius an array": ("sphere of 'x'", lambda: shape(Sphere(np.ones(2)))),
    "edges of two": ("box of 'x'", lambda: shape(Box((1.0, 2.0)))),
    "edges a number": ("box of 'x'", lambda: shape(Box(1.0))),
    "length of a capsule text": ("capsule of 'x'", lambda: shape(Capsule(0.1, "long"))),
    "points of two": ("points", lambda: body(shapes=Points([(0.0, 1.0)]))),
    "points none": ("points", lambda: body(shapes=Points(()))),
    "points a number": ("points", lambda: body(shapes=Points(3.0))),
    "half axes of two": ("ellipsoid of 'x'", lambda: shape(bodies.Ellipsoid((0.1, 0.2)))),
    "mu of a shape text": ("mu", lambda: shape_on_floor(mu="a")),
    "mu of a shape negative": ("mu", lambda: shape_on_floor(mu=-0.2)),
    "e_N of a shape above 1": ("e_N", lambda: shape_on_floor(e_N=2.0)),
    "axis zero": ("axis", lambda: joint(axis=(0.0, 0.0, 0.0))),
    "axis of two": ("3 numbers", lambda: joint(axis=(0.0, 1.0))),
    "axis text": ("axis", lambda: joint(axis="z")),
    "limits a number": ("limits", lambda: joint(limits=1.0)),
    "limits exchanged": ("limits of 'x'", lambda: joint(limits=(1.0, -1.0))),
    "limits text": ("limits", lambda: joint(limits="ab")),
    "limits of three": ("limits", lambda: joint(limits=(1.0, 2.0, 3.0))),
    "stiffness text": ("stiffness", lambda: joint(stiffness="soft")),
    "damping of two": ("damping", lambda: joint(damping=(1.0, 2.0))),
    "armature negative": ("armature", lambda: joint(armature=-1.0)),
    "dry friction of a joint negative": ("dry_friction", lambda: joint(dry_friction=-1.0)),
    "dry friction of a joint text": ("dry_friction", lambda: joint(dry_friction="a")),
    "reference None": ("reference", lambda: joint(reference=None)),
    "motion a number": ("motion", lambda: joint(motion=1.0)),
    "motion of two": ("motion", lambda: joint(motion=lambda t, q: t)),
    "motion and limits": ("limits", lambda: joint(motion=lambda t: t, limits=(0.0, 1.0))),
    "limit of a ball negative": ("limit", lambda: joint(Spherical, limit=-1.0)),
    "rest of a ball of three": ("rest", lambda: joint(Spherical, rest=(1.0, 0.0, 0.0), stiffness=1.0)),
    "planar normal tilted": ("normal", lambda: bodies.planar(normal=(1.0, 1.0, 0.0))),
    "planar normal text": ("normal", lambda: bodies.planar(normal="z")),
    "planar normal of two": ("normal", lambda: bodies.planar(normal=(0.0, 1.0))),
    "world a body": ("world must be", lambda: bodies.assemble([BALL], BALL)),
    "world text": ("world must be", lambda: bodies.assemble([BALL], "plane")),
    "world a class": ("world must be", lambda: bodies.assemble([BALL], Plane)),
    "gravity a number": ("gravity", lambda: moving(gravity=-9.81)),
    "gravity of two": ("gravity", lambda: moving(gravity=(0.0, -9.81))),
    "gravity text": ("gravity", lambda: moving(gravity="earth")),
    "gravity None": ("gravity", lambda: moving(gravity=None)),
    "contacts misspelt": ("contacts must be", lambda: moving(contacts="none")),
    "contacts of names": ("contacts must be", lambda: moving(contacts=["ball", "arm"])),
    "contacts None": ("contacts must be", lambda: moving(contacts=None)),
    "contacts of pairs of names": ("contacts must be", lambda: moving(contacts=[("ball", "world")])),
    "pair of an unknown shape": ("did you mean 'ball'", lambda: moving(contacts=[Pair("bal", "world")])),
    "pair with itself": ("move against each other", lambda: moving(contacts=[Pair("ball", "ball")])),
    "pair of a number": ("must be a name", lambda: moving(contacts=[Pair(1, 2)])),
    "mu of a pair text": ("mu", lambda: bodies.assemble([BALL], Plane(name="f"), contacts=[Pair("f", "ball", mu="a")])),
    "drilling negative": ("drilling", lambda: bodies.assemble([BALL], Plane(name="f"), contacts=[Pair("f", "ball", drilling=-1.0)])),
    "exclude of unknown names": ("did you mean", lambda: moving(contacts="all", exclude=[("bal", "arm")])),
    "exclude of one name": ("exclude", lambda: moving(contacts="all", exclude=["ball"])),
    "exclude of three": ("exclude", lambda: moving(contacts="all", exclude=[("ball", "arm", "world")])),
    "mu of all text": ("mu", lambda: bodies.assemble([BALL], Plane(), mu="rubber")),
    "mu of all negative": ("mu", lambda: bodies.assemble([BALL], Plane(), mu=-0.1)),
    "mu of all None": ("mu", lambda: bodies.assemble([BALL], Plane(), mu=None)),
    "mu of all an array": ("mu", lambda: bodies.assemble([BALL], Plane(), mu=np.ones(2))),
    "e_N of all above 1": ("e_N", lambda: bodies.assemble([BALL], Plane(), e_N=1.5)),
    "limit_restitution above 1": (
        "limit_restitution",
        lambda: bodies.assemble([BEND], limit_restitution=2.0),
    ),
    "limit_restitution text": ("limit_restitution", lambda: moving(limit_restitution="a")),
    "plane misspelt": ("plane must be", lambda: moving(plane="xw")),
    "plane a number": ("plane must be", lambda: moving(plane=7)),
    "plane True": ("plane must be", lambda: moving(plane=True)),
    "law of bodies text": ("law", lambda: moving(law="Newton")),
    "medium a number": ("medium", lambda: moving(medium=1.2)),
    "loops of a pair": ("loops must be", lambda: moving(loops=[Pair("ball", "arm")])),
    "loop of an unknown body": ("did you mean 'arm'", lambda: moving(loops=Connect("arn", "ball", (0, 0, 0)))),
    "loop at two numbers": ("position", lambda: moving(loops=Connect("arm", "ball", (0.0, 0.0)))),
    "loop of one body": ("two bodies", lambda: moving(loops=Connect("arm", "arm", (0, 0, 0)))),
    "coupling of an unknown joint": ("no joint has the name", lambda: moving(loops=Couple("knee", "hip"))),
    "coupling with six coefficients": ("polynomial", lambda: moving(loops=Couple("knee", polynomial=np.ones(6)))),
    "spring of an unknown body": ("did you mean 'arm'", lambda: moving(springs=[bodies.Spring("arn", "ball")])),
    "spring stiffness text": ("stiffness", lambda: moving(springs=[bodies.Spring("arm", "ball", stiffness="a")])),
    "springs of a number": ("springs must be", lambda: moving(springs=[3.0])),
    "motor text": ("motors must be", lambda: moving(motors=["knee"])),
    "motor of an unknown joint": ("did you mean 'knee'", lambda: moving(motors=[Motor("kne")])),
    "motor of a free body": ("revolute or prismatic", lambda: moving(motors=[Motor("ball")])),
    "motor of a joint": ("joint", lambda: moving(motors=[Motor(HINGE)])),
    "motor gain text": ("gain", lambda: moving(motors=[Motor("knee", gain="a")])),
    "motor gear of two": ("gear", lambda: moving(motors=[Motor("knee", gear=(1.0, 2.0))])),
    "motor limits exchanged": ("force_limits", lambda: moving(motors=[Motor("knee", force_limits=(1.0, -1.0))])),
    "motor limits a number": ("force_limits", lambda: moving(motors=[Motor("knee", force_limits=1.0)])),
    "control of rows": ("a row for each step is bodies.Rows", lambda: moving(motors=[Motor("knee")], control=np.zeros((50, 1)))),
    "control of two": ("control must have shape (1,)", lambda: moving(motors=[Motor("knee")], control=[1.0, 2.0])),
    "control a number": ("control", lambda: moving(motors=[Motor("knee")], control=1.0)),
    "control text": ("control", lambda: moving(motors=[Motor("knee")], control="home")),
    "control of t": ("control", lambda: moving(motors=[Motor("knee")], control=lambda t: t)),
    "control without motors": ("control", lambda: moving(control=[1.0])),
    "control returns two": ("the control must return shape (1,) (one number for each motor", lambda: checked(lambda t, q, u: jnp.ones(2))),
    "control returns a scalar": ("one number for each motor", lambda: checked(lambda t, q, u: q[0])),
    "control returns None": ("the control must return real numbers of shape (1,)", lambda: checked(lambda t, q, u: None)),
    "control returns complex numbers": ("got complex ones", lambda: checked(lambda t, q, u: 1j * q[:1])),
    "control returns NaN": ("the control must be finite at the initial state", lambda: checked(lambda t, q, u: q[:1] / 0)),
    "control returns text": ("the control must return real numbers", lambda: checked(lambda t, q, u: "a")),
    "control by an if": (
        "the control must not ask for the value",
        lambda: checked(lambda t, q, u: jnp.ones(1) if q[0] > 0 else jnp.zeros(1)),
    ),
    "control of wrong shapes": ("the control failed", lambda: checked(lambda t, q, u: jnp.ones((1, 3)) @ q[:2])),
    "control of an unknown name": ("'gains'", lambda: checked(lambda t, q, u: gains * q[:1])),  # noqa: F821
    "control outside": ("entry 9", lambda: checked(lambda t, q, u: jnp.stack([q[9]]))),
    "control that has a name": ("the control servo(t, q, u) failed", lambda: checked(jax.tree_util.Partial(servo, jnp.ones((1, 3))))),
    "control closes over what is traced, by grad": ("jax.tree_util.Partial", lambda: jax.grad(controlled)(jnp.ones(()))),
    "control closes over what is traced, by jit": ("jax.tree_util.Partial", lambda: jax.jit(controlled)(jnp.ones(()))),
    "control closes over what is traced, by vmap": ("jax.tree_util.Partial", lambda: jax.vmap(controlled)(jnp.ones(2))),
    "rows of two": ("rows of control", lambda: moving(motors=[Motor("knee")], control=Rows(np.zeros((5, 2)), 0.1))),
    "rows of one axis": ("rows of control", lambda: moving(motors=[Motor("knee")], control=Rows(np.zeros(5), 0.1))),
    "rows of text": ("rows of control", lambda: moving(motors=[Motor("knee")], control=Rows("a", 0.1))),
    "rows with dt zero": ("dt", lambda: moving(motors=[Motor("knee")], control=Rows(np.zeros((5, 1)), 0.0))),
    "rows with dt text": ("dt", lambda: moving(motors=[Motor("knee")], control=Rows(np.zeros((5, 1)), "a"))),
    "where of an unknown name": ("did you mean 'arm'", lambda: arm().where("arn")),
    "where of an unknown kind": ("kind of part", lambda: arm().where("arm", "bodies")),
    "where of a number": ("name", lambda: arm().where(3)),
    "replace an unknown number": ("'arm' has no 'mas'", lambda: arm().replace({"arm.mas": 1.0})),
    "replace of an unknown body": ("did you mean 'arm.mass'", lambda: arm().replace({"arn.mass": 1.0})),
    "replace by another shape": ("must have the shape ()", lambda: arm().replace({"arm.mass": np.ones(2)})),
    "replace by text": ("arm.mass", lambda: arm().replace({"arm.mass": "heavy"})),
    "replace by None": ("arm.mass", lambda: arm().replace({"arm.mass": None})),
    "replace by a list of pairs": ("must be a dictionary", lambda: arm().replace([("arm.mass", 1.0)])),
    "replace a number as name": ("name", lambda: arm().replace({3: 1.0})),
    "replace by a negative mass": ("mass", lambda: going(**vars(arm().replace({"arm.mass": -1.0})))),
    "keyframe that there is not": ("keyframe", lambda: arm().initial_state("home")),
    "keyframe a float": ("keyframe", lambda: arm().initial_state(0.5)),
    "control of a keyframe that there is not": ("keyframe", lambda: arm().control_of("home")),
    "from_system of a ball": ("must be a Multibody", lambda: bodies.Multibody.from_system(BouncingBall())),
    "from_system with an unknown field": ("wnd", lambda: bodies.Multibody.from_system(arm(), wnd=1.0)),
    "masses of two": ("Multibody.mass must have the shape (1,)", lambda: going(mass=jnp.ones(2))),
    "masses a number": ("Multibody.mass", lambda: going(mass=1.0)),
    "masses a list": ("Multibody.mass", lambda: going(mass=[1.0])),
    "masses text": ("Multibody.mass", lambda: going(mass="a")),
    "masses None": ("Multibody.mass", lambda: going(mass=None)),
    "inertias of one axis": ("Multibody.inertia must have the shape", lambda: going(inertia=jnp.ones(3))),
    "gravity of bodies of two": ("Multibody.gravity", lambda: going(gravity=jnp.ones(2))),
    "motors replaced by a list": ("Multibody.motors", lambda: going(motors=[1.0])),
    "gains of two": ("Multibody.motors.gain", lambda: going(motors=dataclasses.replace(arm().motors, gain=jnp.ones(2)))),
    "controls of two": ("control", lambda: going(control=jnp.ones(2))),
    "coordinates of another system": ("1 coordinates", lambda: jaxnsd.check(arm(), Moreau(), np.zeros(2), np.zeros(2), 0.01, 0.01)),
    "quaternion left out": ("q0", lambda: jaxnsd.check(moving(), Moreau(), np.zeros(7), np.zeros(7), 0.01, 0.01)),
    "quaternion zero": ("quaternion", lambda: jaxnsd.check(moving(), Moreau(), np.zeros(8), np.zeros(7), 0.01, 0.01)),
    "motion and q_dot of bodies": ("q_dot", lambda: type("Odd", (bodies.Multibody,), {"q_dot": lambda self, t, q, u: u})),
}


def shape_on_floor(**material):
    return bodies.assemble([Body("x", 1.0, (0.1, 0.1, 0.1), shapes=Sphere(0.1, **material))], Plane())


def servo(gains, t, q, u):
    return gains @ q


def checked(control):
    system = bodies.assemble([ARM], motors=[Motor("knee")], control=control)
    jaxnsd.check(system, Moreau(), *system.initial_state(), 0.01, 0.01)


LEG = """<mujoco><worldbody><body name="leg"><joint name="hip" type="hinge" axis="0 1 0" range="-60 60"/>
<geom type="capsule" size=".02" fromto="0 0 0 .3 0 0"/></body></worldbody>
<actuator><motor name="m" joint="hip"/></actuator><keyframe><key name="home" qpos="0.1"/></keyframe></mujoco>"""


def leg(**options):
    return bodies.from_mjcf(LEG, **options)


LINK = "<link name='{}'/>"
SOLID = "<link name='a'><inertial><mass value='1'/><inertia ixx='.01' iyy='.01' izz='{}' ixy='0' ixz='0' iyz='0'/></inertial></link>"
TURNS = "<joint name='{0}{1}' type='continuous'><parent link='{0}'/><child link='{1}'/><axis xyz='0 1 0'/></joint>"


def urdf(*parts):
    return bodies.from_urdf(f"<robot name='r'>{LINK.format('base')}{''.join(parts)}</robot>")


def checked_leg():
    system = bodies.from_mjcf(LEG.replace("-60 60", "20 60"))
    jaxnsd.check(system, Moreau(), *system.initial_state(), 0.01, 0.01)


FILES = {
    "URDF link without mass": ("give this link mass and inertia", lambda: urdf(LINK.format("b"), TURNS.format("base", "b"))),
    "URDF frame at the end": (
        "give this link mass and inertia",
        lambda: urdf(SOLID.format(".01"), LINK.format("tool"), TURNS.format("base", "a"), TURNS.format("a", "tool")),
    ),
    "URDF inertia of no body": ("repair=True", lambda: urdf(SOLID.format(".03"), TURNS.format("base", "a"))),
    "a start beyond a limit": ("initial_state(project=True)", checked_leg),
    "no such file": ("nowhere.xml", lambda: bodies.from_mjcf("nowhere.xml")),
    "no such file as a path": ("nowhere.xml", lambda: bodies.from_mjcf(Path("nowhere.xml"))),
    "a folder": ("/tmp", lambda: bodies.from_mjcf("/tmp")),
    "None for a file": ("model", lambda: bodies.from_mjcf(None)),
    "a number for a file": ("model", lambda: bodies.from_mjcf(3)),
    "an empty text": ("there is no file", lambda: bodies.from_mjcf("")),
    "text that is no XML": ("MuJoCo refuses the model", lambda: bodies.from_mjcf("<mujoco><worldbody>")),
    "a file of Python": ("MuJoCo", lambda: bodies.from_mjcf(__file__)),
    "nothing moves in it": ("joint that moves", lambda: bodies.from_mjcf("<mujoco><worldbody/></mujoco>")),
    "e_N of a file above 1": ("e_N", lambda: bodies.from_mjcf(models.SCENES["falling_box"], e_N=1.5)),
    "e_N of a file text": ("e_N", lambda: leg(e_N="a")),
    "condim of 2": ("condim must be", lambda: leg(condim=2)),
    "condim text": ("condim must be", lambda: leg(condim="a")),
    "contacts of a file": ("contacts", lambda: leg(contacts="some")),
    "control of a file of three": ("control", lambda: leg(control=np.ones(3))),
    "control an unknown keyframe": ("keyframe", lambda: leg(control="rest")),
    "plane of a file": ("plane", lambda: leg(plane="xw")),
    "strict text": ("strict", lambda: leg(strict="yes")),
    "keyframe of a file": ("no keyframe 'hom'", lambda: leg().initial_state("hom")),
    "keyframe number of a file": ("keyframe", lambda: leg().initial_state(3)),
    "URDF that is none": ("MuJoCo refuses the model", lambda: bodies.from_urdf("<robot>")),
    "URDF file that there is not": ("nowhere.urdf", lambda: bodies.from_urdf("nowhere.urdf")),
    "URDF None": ("model", lambda: bodies.from_urdf(None)),
    "URDF floating text": ("floating", lambda: bodies.from_urdf("<robot name='r'><link name='base'/></robot>", floating="yes")),
    "from_mujoco of text": ("MjModel", lambda: bodies.from_mujoco(LEG)),
    "from_mujoco of None": ("MjModel", lambda: bodies.from_mujoco(None)),
}

# --------------------------------------------------------------------------------------------------------------- ensembles
E_N, BETA = {"e_N": ensemble.Uniform(0.2, 0.8)}, {"e_N": ensemble.Beta(0.5, 0.1)}


def drawn(key):
    """A sample."""
    return BouncingBall(), jnp.array([1.0]), jnp.zeros(1)


def many(system=None, scheme=None, n=10, key=None, **change):
    options = {"sample": drawn, "observe": lambda system, sol: {"h": sol.q[-1, 0]}, "t1": 0.1, "dt": 1e-2} | change
    key = jax.random.key(0) if key is None else key
    system, scheme = BouncingBall() if system is None else system, Moreau() if scheme is None else scheme
    return ensemble.run(system, scheme, n, key, **options)


def slope(theta=0.5, **change):
    options = {"sample": lambda key, theta: (BouncingBall(e_N=theta), jnp.ones(1), jnp.zeros(1)), "t1": 0.1, "dt": 1e-2} | change
    options = {"observe": lambda system, sol: sol.q[-1, 0]} | options
    return ensemble.gradient(BouncingBall(), Moreau(), 10, jax.random.key(0), theta, **options)


DATA = {"a": np.arange(4.0), "hit": np.array([True, False, True, True])}


def reduced(reduction, finish=False):
    chunk = reduction.chunk(DATA, np.arange(4))
    return reduction.finish(chunk) if finish else chunk


ENSEMBLES = {
    "n zero": ("n must be a whole number", lambda: many(n=0)),
    "n a float": ("n must be a whole number", lambda: many(n=1e6)),
    "n text": ("n must be a whole number", lambda: many(n="10")),
    "n too large": ("n must be a whole number", lambda: many(n=2**33)),
    "key a seed": ("key must be a key", lambda: many(key=3)),
    "key text": ("key must be a key", lambda: many(key="a")),
    "keys": ("one key", lambda: many(key=jax.random.split(jax.random.key(0)))),
    "seed as key array of floats": ("key must be a key", lambda: many(key=np.ones(2))),
    "system of an ensemble a class": ("system must be a system", lambda: many(system=BouncingBall)),
    "scheme of an ensemble text": ("scheme", lambda: many(scheme="Moreau")),
    "scheme of an ensemble a class": ("scheme", lambda: many(scheme=Moreau)),
    "sample a number": ("sample must be a function", lambda: many(sample=3)),
    "sample None": ("sample must be a function", lambda: many(sample=None)),
    "sample of two keys": ("sample", lambda: many(sample=lambda key, other: drawn(key))),
    "sample without a state": ("sample must return", lambda: many(sample=lambda key: BouncingBall())),
    "sample with wrong states": ("q0", lambda: many(sample=lambda key: (BouncingBall(), 1.0, 0.0))),
    "sample of another system": ("system is a BouncingBall", lambda: many(sample=lambda key: (Puck(), *map(jnp.asarray, (Q0, U0))))),
    "sample that fails": ("sample", lambda: many(sample=lambda key: (BouncingBall(), jnp.ones(2) + jnp.ones(3), jnp.ones(2)))),
    "sample of unknown names": ("BouncingBall has no parameter 'en'", lambda: many(sample={"en": ensemble.Uniform(0, 1)})),
    "sample of a name that bodies do not have": (
        "'arm' has no 'mas'",
        lambda: ensemble.Independent(moving(), {"arm.mas": E_N["e_N"]}),
    ),
    "sample of a vector of bodies": ("must have the shape", lambda: ensemble.Independent(moving(), {"arm.center": E_N["e_N"]})),
    "sample of numbers": ("must be a distribution", lambda: many(sample={"e_N": 0.5})),
    "sample of classes": ("must be a distribution", lambda: many(sample={"e_N": ensemble.Uniform})),
    "sample empty": ("needs a parameter", lambda: many(sample={})),
    "sample of a number as name": ("no parameter 3", lambda: many(sample={3: ensemble.Uniform(0, 1)})),
    "sample below the floor": ("penetration", lambda: many(sample=lambda key: (BouncingBall(), -jnp.ones(1), jnp.zeros(1)))),
    "sample with too large e_N": ("e_N", lambda: many(sample={"e_N": ensemble.Uniform(2.0, 3.0)})),
    "observe None": ("observe must be a function", lambda: many(observe=None)),
    "observe text": ("observe must be a function", lambda: many(observe="q[0]")),
    "observe of one argument": ("observe", lambda: many(observe=lambda sol: sol.q[-1])),
    "observe nothing": ("observe returns no array", lambda: many(observe=lambda system, sol: ())),
    "observe returns None": ("observe returns no array", lambda: many(observe=lambda system, sol: None)),
    "observe returns text": ("observe must return", lambda: many(observe=lambda system, sol: "up")),
    "observe an unknown field": ("observe", lambda: many(observe=lambda system, sol: sol.p[-1])),
    "observe complex numbers": ("complex", lambda: many(observe=lambda system, sol: sol.q[-1] * 1j)),
    "observe by an if": ("observe", lambda: many(observe=lambda system, sol: 1.0 if sol.q[-1, 0] > 0 else 0.0)),
    "observe by NumPy": ("observe", lambda: many(observe=lambda system, sol: np.sin(sol.q[-1]))),
    "observe wrong shapes": ("observe", lambda: many(observe=lambda system, sol: sol.q[-1] @ jnp.ones(3))),
    "observe fails": ("observe", lambda: many(observe=lambda system, sol: sol.raise_if_failed().q)),
    "reduce text": ("reduce must be a reduction", lambda: many(reduce="mean")),
    "reduce a class": ("reduce must be a reduction", lambda: many(reduce=ensemble.Moments)),
    "reduce a list": ("reduce must be a reduction", lambda: many(reduce=[ensemble.Moments()])),
    "reduce of functions": ("reduce must be a reduction", lambda: many(reduce={"m": np.mean})),
    "reduce of an unknown name": ("called 'q'", lambda: many(reduce=ensemble.Moments(of="q"))),
    "points a number": ("points must be", lambda: many(points=3)),
    "keys that draw other numbers": ("kind rbg", lambda: many(key=jax.random.key(5, impl="rbg"), lockstep=True)),
    "points without quantiles": ("no quantile", lambda: ensemble.Independent(BouncingBall(), BETA)(jax.random.key(0), jnp.ones(1))),
    "level in percent": ("level", lambda: reduced(ensemble.Moments(of="a"), finish=True).interval(95)),
    "points of two for one": ("1 parameters are drawn", lambda: many(sample=E_N, points=ensemble.Sobol(2))),
    "chunk zero": ("chunk must be", lambda: many(chunk=0)),
    "chunk text": ("chunk must be", lambda: many(chunk="a")),
    "workers zero": ("workers must be", lambda: many(workers=0)),
    "workers text": ("workers must be", lambda: many(workers="all")),
    "executor a number": ("executor must be", lambda: many(executor=3)),
    "devices too many": ("devices must be", lambda: many(devices=99)),
    "devices text": ("devices must be", lambda: many(devices="gpu")),
    "lockstep text": ("lockstep must be", lambda: many(lockstep="no")),
    "progress of an ensemble text": ("progress", lambda: many(progress="no")),
    "store a number": ("store must be the path", lambda: many(store=5)),
    "resume without store": ("needs store", lambda: many(resume=True)),
    "resume text": ("resume", lambda: many(resume="yes", store="x.zarr")),
    "an unknown option": ("unknown argument 'dtt'", lambda: many(dtt=0.1)),
    "dt of an ensemble": ("dt", lambda: many(dt=0.7)),
    "no times": ("t1 is missing", lambda: many(t1=None)),
    "theta of whole numbers": ("floats", lambda: slope(1)),
    "theta None": ("theta", lambda: slope(None)),
    "theta text": ("theta must be made of floats", lambda: slope("a")),
    "theta empty": ("theta is empty", lambda: slope(())),
    "sample of a gradient a dict": ("sample must be a function", lambda: slope(sample=E_N)),
    "sample of a gradient without theta": ("sample", lambda: slope(sample=drawn)),
    "deviation negative": ("deviation must be positive", lambda: ensemble.Normal(0.0, -1.0)),
    "deviation text": ("deviation", lambda: ensemble.Normal(0.0, "a")),
    "mean NaN": ("finite", lambda: ensemble.Normal(np.nan, 1.0)),
    "mean None": ("mean", lambda: ensemble.Normal(None, 1.0)),
    "mean an array": ("mean", lambda: ensemble.Normal(np.ones(2), 1.0)),
    "mean complex": ("mean", lambda: ensemble.Normal(1j, 1.0)),
    "low above high": ("low must be smaller", lambda: ensemble.Uniform(1.0, 0.0)),
    "low text": ("low", lambda: ensemble.Uniform("a", "b")),
    "median negative": ("median must be positive", lambda: ensemble.LogNormal(-1.0, 0.1)),
    "mean of Beta above 1": ("mean", lambda: ensemble.Beta(1.5, 0.1)),
    "deviation of Beta": ("deviation in", lambda: ensemble.Beta(0.5, 0.6)),
    "dimensions zero": ("dimensions", lambda: ensemble.Sobol(0)),
    "dimensions text": ("dimensions", lambda: ensemble.Halton("a")),
    "dimensions a float": ("dimensions", lambda: ensemble.LatinHypercube(1.5)),
    "seed of points negative": ("seed", lambda: ensemble.Halton(1, seed=-1)),
    "seed of points text": ("seed", lambda: ensemble.Sobol(1, seed="a")),
    "Independent of a number": ("parameters must be a dict", lambda: ensemble.Independent(BouncingBall(), 5)),
    "Independent of a class": ("system must be a system", lambda: ensemble.Independent(BouncingBall, E_N)),
    "start of two numbers": ("start must be", lambda: ensemble.Independent(BouncingBall(), E_N, start=(1.0, 0.0))),
    "start a number": ("start must be", lambda: ensemble.Independent(BouncingBall(), E_N, start=5)),
    "start of text": ("start must be", lambda: ensemble.Independent(BouncingBall(), E_N, start=(["a"], ["b"]))),
    "start of three": ("start must be", lambda: ensemble.Independent(BouncingBall(), E_N, start=([1.0], [0.0], [0.0]))),
    "an argument of no start": ("no argument 'height'", lambda: ensemble.Independent(BouncingBall(), E_N, initial={"height": 1.0})),
    "initial a number": ("initial", lambda: ensemble.Independent(BouncingBall(), E_N, initial=3.0)),
    "a system without a start": ("start", lambda: ensemble.Independent(Puck(), E_N)),
    "probabilities above 1": ("probabilities", lambda: ensemble.Quantiles((0.5, 1.5))),
    "probabilities text": ("probabilities", lambda: ensemble.Quantiles("a")),
    "probabilities None": ("probabilities", lambda: ensemble.Quantiles(None)),
    "size of quantiles": ("size", lambda: ensemble.Quantiles(size=3)),
    "size of quantiles text": ("size", lambda: ensemble.Quantiles(size="a")),
    "edges text": ("grow", lambda: ensemble.Histogram("a")),
    "edges that fall": ("grow", lambda: ensemble.Histogram([1.0, 0.0])),
    "edges a number": ("grow", lambda: ensemble.Histogram(10)),
    "count of extremes": ("count", lambda: ensemble.Extremes(0)),
    "count of extremes text": ("count", lambda: ensemble.Extremes("two")),
    "of a number": ("of must be a name", lambda: ensemble.Moments(of=3)),
    "state no function": ("state must be a function", lambda: ensemble.Associative(1, 2)),
    "combine no function": ("combine must be a function", lambda: ensemble.Associative(np.sum, 2)),
    "moments of what there is not": ("called 'c'", lambda: reduced(ensemble.Moments(of="c"))),
    "proportion of numbers": ("takes booleans", lambda: reduced(ensemble.Proportion(of="a"))),
    "histogram of two": ("one array", lambda: reduced(ensemble.Histogram([0.0, 1.0]))),
}

# ----------------------------------------------------------------------------------------------------------- identification
TIMES = np.array([0.0, 0.05, 0.1])


def measured(**change):
    return identify.Trajectory(**{"t": TIMES, "y": np.ones(3), "q0": np.ones(1), "u0": np.zeros(1)} | change)


def problem(system=None, data=None, **change):
    options = {"fit": ["e_N"], "dt": 0.01, "measure": lambda t, q, u, m: q, "scheme": MoreauJean()} | change
    return identify.Problem(BouncingBall() if system is None else system, measured() if data is None else data, **options)


@functools.cache
def posed():
    return problem()


def fit(**options):
    return identify.fit(posed(), **options)


IDENTIFICATION = {
    "t of text": ("t must be", lambda: measured(t=["a", "b", "c"])),
    "t None": ("t must be", lambda: measured(t=None)),
    "t that falls": ("increase", lambda: measured(t=TIMES[::-1])),
    "t with NaN": ("finite", lambda: measured(t=np.full(3, np.nan))),
    "t of another length": ("t must be (N,) and y (N, m)", lambda: measured(t=TIMES[:2])),
    "t a number": ("t must be", lambda: measured(t=0.1)),
    "y of text": ("y must be an array of real numbers", lambda: measured(y=["a", "b", "c"])),
    "y complex": ("y must be an array of real numbers", lambda: measured(y=1j * TIMES)),
    "y None": ("y (N, m)", lambda: measured(y=None)),
    "y of three axes": ("t must be (N,) and y (N, m)", lambda: measured(y=np.ones((3, 1, 1)))),
    "y ragged": ("y must be", lambda: measured(y=[[1.0], [1.0, 2.0], [1.0]])),
    "q0 missing": ("q0 is missing", lambda: measured(q0=None)),
    "q0 of a trajectory NaN": ("q0 must be", lambda: measured(q0=[np.nan])),
    "q0 of a trajectory text": ("q0 must be", lambda: measured(q0="a")),
    "q0 of a trajectory a matrix": ("q0 must be", lambda: measured(q0=np.ones((1, 1)))),
    "t0 after the first frame": ("must not be after", lambda: measured(t0=0.05)),
    "t0 of a trajectory text": ("t0 must be", lambda: measured(t0="a")),
    "mask of another length": ("mask must be", lambda: measured(mask=[True, False])),
    "mask of numbers": ("mask must be booleans", lambda: measured(mask=np.arange(3))),
    "weights negative": ("not negative", lambda: measured(weights=-np.ones(3))),
    "weights text": ("weights", lambda: measured(weights="a")),
    "states of another length": ("q must be", lambda: measured(q=np.ones((2, 1)))),
    "name of a trajectory a number": ("name", lambda: measured(name=3)),
    "data a list of numbers": ("data must be", lambda: problem(data=[1.0])),
    "data an array": ("data must be", lambda: problem(data=np.ones(3))),
    "data empty": ("data must be", lambda: problem(data=[])),
    "data None": ("data must be", lambda: identify.Problem(BouncingBall(), None, fit=["e_N"], dt=0.01)),
    "system of a problem a class": ("system", lambda: problem(system=BouncingBall)),
    "system of a problem text": ("system", lambda: problem(system="ball")),
    "fit of an unknown name": ("did you mean e_N", lambda: problem(fit=["e_n"])),
    "fit of a number": ("fit", lambda: problem(fit=3)),
    "fit None": ("fit", lambda: problem(fit=None)),
    "fit of one name as text": ("did you mean e_N", lambda: problem(fit="e_n")),
    "fit with a class": ("write Positive(...)", lambda: problem(fit={"e_N": identify.Positive})),
    "fit outside of bounds": ("first guess of e_N", lambda: problem(fit={"e_N": identify.Bounded(0.8, 0.9)})),
    "fit with bounds as a pair": ("e_N", lambda: problem(fit={"e_N": (0.0, 1.0)})),
    "dt of a problem zero": ("dt must be a positive number", lambda: problem(dt=0.0)),
    "dt of a problem text": ("dt must be a positive number", lambda: problem(dt="a")),
    "dt of a problem None": ("dt must be a positive number", lambda: problem(dt=None)),
    "scheme of a problem": ("scheme must be a scheme", lambda: problem(scheme="MoreauJean")),
    "solver of a problem": ("solver", lambda: problem(solver="newton")),
    "sensitivity of a problem": ("sensitivity", lambda: problem(sensitivity="exact")),
    "noise negative": ("noise must be positive", lambda: problem(noise=-1.0)),
    "noise text": ("noise", lambda: problem(noise="small")),
    "a number of bodies by name": ("build=lambda p: system.replace({'arm.mass'", lambda: problem(moving(), fit=["arm.mass"])),
    "noise None": ("got None", lambda: problem(noise=None)),
    "start that is a FreeState": ("for Problem(..., free_state=)", lambda: measured(q0=identify.FreeState(0.1, 0.1))),
    "noise of two": ("noise", lambda: problem(noise=np.ones(2))),
    "noise asymmetric": ("noise", lambda: problem(noise=np.array([[1.0, 2.0], [0.0, 1.0]]))),
    "measure a number": ("measure", lambda: problem(measure=3)),
    "measure of one argument": ("measure", lambda: problem(measure=lambda q: q)),
    "measure of three": ("shape of y", lambda: problem(measure=lambda t, q, u, m: jnp.ones(3))),
    "measure of unknown names": ("measure", lambda: problem(measure=lambda t, q, u, m: m["scale"] * q)),
    "measure by an if": ("measure", lambda: problem(measure=lambda t, q, u, m: q if q[0] > 0 else -q)),
    "measure of wrong shapes": ("measure", lambda: problem(measure=lambda t, q, u, m: q @ jnp.ones(3))),
    "measure returns None": ("measure", lambda: problem(measure=lambda t, q, u, m: None)),
    "measurement text": ("measurement", lambda: problem(measurement={"scale": "a"}, fit=["measurement.scale"])),
    "when of two axes": ("when", lambda: problem(when=lambda t, m: t[None])),
    "when no function": ("when", lambda: problem(when=0.1)),
    "initial of two": ("initial", lambda: problem(initial=lambda q0, u0: (q0, u0))),
    "initial returns one": ("initial", lambda: problem(initial=lambda q0, u0, t, y, m: q0)),
    "residual of two axes": ("residual", lambda: problem(residual=lambda p, y: (p - y)[None])),
    "residual no function": ("residual", lambda: problem(residual="square")),
    "build no function": ("build", lambda: problem(build=3)),
    "windows a number": ("windows must be", lambda: problem(windows=3)),
    "windows without states": ("needs q and u", lambda: problem(windows=identify.OneStep())),
    "free_state a number": ("free_state must be", lambda: problem(free_state=0.1)),
    "free_state of two": ("sigma_q", lambda: problem(free_state=identify.FreeState([0.1, 0.2], 0.0))),
    "robust text": ("robust must be", lambda: problem(robust="soft_l1")),
    "horizon 1": ("horizon", lambda: problem(horizon=1)),
    "horizon text": ("horizon", lambda: problem(horizon="a")),
    "columns of two": ("columns must be 1 strings", lambda: problem(columns=("a", "b"))),
    "columns a number": ("columns must be", lambda: problem(columns=3)),
    "states of another system": ("q0", lambda: problem(data=measured(q0=np.ones(2), u0=np.ones(3)))),
    "Bounded exchanged": ("lower", lambda: identify.Bounded(1.0, 0.0)),
    "Bounded text": ("lower", lambda: identify.Bounded("a", "b")),
    "Bounded infinite": ("finite", lambda: identify.Bounded(0.0, np.inf)),
    "Free of zero": ("scale must be positive", lambda: identify.Free(0.0)),
    "Free of text": ("scale must be", lambda: identify.Free("a")),
    "Robust of unknown kind": ("kind", lambda: identify.Robust("huge")),
    "Robust of text": ("scale", lambda: identify.Robust(scale="a")),
    "Robust over what": ("over", lambda: identify.Robust(over="all")),
    "sigma negative": ("sigma_q", lambda: identify.FreeState(-1.0, 1.0)),
    "sigma text": ("sigma_q", lambda: identify.FreeState("a", 1.0)),
    "frames of windows": ("frames", lambda: identify.Windows(0)),
    "frames of windows text": ("frames", lambda: identify.Windows("a")),
    "continuity a number": ("two positive", lambda: identify.MultipleShooting(3, identify.FreeState(1.0, 1.0), 1e-3)),
    "max_iterations half": ("max_iterations", lambda: identify.LevenbergMarquardt(max_iterations=0.5)),
    "damping negative of a solver": ("damping", lambda: identify.LevenbergMarquardt(damping=-1.0)),
    "tolerance of a solver text": ("tolerance", lambda: identify.LevenbergMarquardt(tolerance="a")),
    "optimizer text": ("optimizer", lambda: identify.FirstOrder("adam")),
    "optimizer a function": ("optimizer", lambda: identify.FirstOrder(optax.adam)),
    "batch zero": ("batch", lambda: identify.FirstOrder(optax.sgd(0.1), batch=0)),
    "seed of FirstOrder": ("seed", lambda: identify.FirstOrder(optax.sgd(0.1), seed="a")),
    "fit of no problem": ("identify.Problem", lambda: identify.fit("ball")),
    "fit of a class of solvers": ("not a class", lambda: fit(solver=identify.LevenbergMarquardt)),
    "fit with text for a solver": ("solver", lambda: fit(solver="lm")),
    "starts text": ("starts must be", lambda: fit(starts="a")),
    "starts zero": ("starts must be", lambda: fit(starts=0)),
    "starts of another size": ("starts must be", lambda: fit(starts=np.ones((2, 5)))),
    "spread negative": ("spread must be", lambda: fit(starts=2, spread=-1.0)),
    "seed of a fit": ("seed must be", lambda: fit(seed="a")),
    "validation text": ("no trajectory 'b'", lambda: fit(validation="b")),
    "validation None": ("validation must be", lambda: fit(validation=None)),
    "validation above 1": ("validation must be", lambda: fit(validation=1.5)),
    "validation of one trajectory": ("held out", lambda: fit(validation=0.5)),
    "patience zero": ("patience", lambda: fit(patience=0)),
    "progress of a fit text": ("progress", lambda: fit(progress="no")),
    "checkpoint of a fit a folder": ("is a directory", lambda: fit(checkpoint="/tmp")),
    "checkpoint of a fit nowhere": ("does not exist", lambda: fit(checkpoint="nowhere/fit.npz")),
    "checkpoint of a fit a number": ("checkpoint", lambda: fit(checkpoint=3)),
    "resume of a fit a number": ("resume must be", lambda: fit(resume=3)),
    "resume of a fit nowhere": ("resume", lambda: fit(resume="nowhere.npz")),
    "resume of a fit another file": ("checkpoint", lambda: fit(resume=__file__)),
    "with_data of numbers": ("data must be", lambda: posed().with_data([1.0])),
    "with_data of two columns": ("columns", lambda: posed().with_data(measured(y=np.ones((3, 2))))),
    "profile of no result": ("Result", lambda: identify.profile(posed(), "e_N")),
    "bootstrap of no result": ("Result", lambda: identify.bootstrap(posed())),
    "posterior of no result": ("Result", lambda: identify.posterior(posed())),
    "pseudo_inertia of two": ("inertia", lambda: identify.pseudo_inertia(1.0, np.zeros(3), np.ones((2, 2)))),
    "pseudo_inertia of text": ("mass", lambda: identify.pseudo_inertia("a", np.zeros(3), np.eye(3))),
    "inertia_of three": ("(4, 4)", lambda: identify.inertia_of(np.eye(3))),
}


# ------------------------------------------------------------------------------------------------------------------- orbits
@jaxnsd.system
class Shaken(BouncingBall):
    amplitude: float = 0.01

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(30 * t)


TURN = 2 * np.pi / 30


def periodic(system=None, scheme=None, q=(0.04,), u=(-0.7,), period=TURN, n_steps=16, **more):
    scheme, system = LocatedImpacts(MoreauJean()) if scheme is None else scheme, Shaken() if system is None else system
    return orbits.periodic(system, scheme, list(q) if isinstance(q, tuple) else q, u, period, n_steps=n_steps, **more)


def swept(parameter="amplitude", values=(0.01, 0.02), **more):
    options = {"n_steps": 16, "keep": 2, "transient": 2} | more
    return orbits.diagram(Shaken(), LocatedImpacts(MoreauJean()), [0.04], [-0.7], TURN, parameter, values, **options)


ORBITS = {
    "n_steps of an orbit half": ("n_steps must be a whole number", lambda: periodic(n_steps=1.5)),
    "n_steps of an orbit zero": ("n_steps must be at least 1", lambda: periodic(n_steps=0)),
    "n_steps of an orbit text": ("n_steps", lambda: periodic(n_steps="a")),
    "period None": ("period", lambda: periodic(period=None)),
    "period negative": ("period must be a positive time", lambda: periodic(period=-1.0)),
    "period text": ("period", lambda: periodic(period="a")),
    "period of two": ("period", lambda: periodic(period=np.ones(2))),
    "period NaN": ("period", lambda: periodic(period=np.nan)),
    "settle negative": ("settle", lambda: periodic(settle=-1)),
    "section and period": ("the period is an unknown", lambda: periodic(section=lambda t, q, u: q[0], period=lambda system: 1.0)),
    "section a number": ("section must be a function", lambda: periodic(section=3)),
    "section of an array": ("section", lambda: periodic(section=lambda t, q, u: q * jnp.ones(2), period=1.0)),
    "section of q": ("section", lambda: periodic(section=lambda q: q[0], period=1.0)),
    "reset of q alone": ("reset", lambda: periodic(reset=lambda t, q, u: q)),
    "reset no function": ("reset", lambda: periodic(reset=3)),
    "reset fails": ("reset", lambda: periodic(reset=lambda t, q, u: (q + jnp.ones(3), u))),
    "arcs of an orbit none": ("arcs must be at least 1", lambda: periodic(arcs=0)),
    "arcs of an orbit that do not divide it": ("n_steps must be a multiple of arcs = 3", lambda: periodic(arcs=3)),
    "scheme of an orbit text": ("must be a scheme", lambda: periodic(scheme="Moreau")),
    "scheme at mid-interval": ("mid-interval", lambda: periodic(scheme=LocatedImpacts(jaxnsd.SymmetricMoreau()))),
    "system of an orbit a class": ("system", lambda: periodic(system=Shaken)),
    "system of an orbit text": ("system", lambda: periodic(system="ball")),
    "q of an orbit text": ("q", lambda: periodic(q="a")),
    "q of an orbit a number": ("q", lambda: periodic(q=1.0)),
    "q of an orbit NaN": ("q", lambda: periodic(q=[np.nan])),
    "u of an orbit of two": ("as many velocities", lambda: periodic(u=[1.0, 2.0])),
    "u of an orbit None": ("u", lambda: periodic(u=None)),
    "t0 of an orbit text": ("t0", lambda: periodic(t0="a")),
    "solver of an orbit": ("solver", lambda: periodic(solver="newton")),
    "follow no orbit": ("needs an Orbit", lambda: orbits.follow(Shaken(), "e_N", 0.6)),
    "the curve of no point": ("needs a Special", lambda: orbits.curve(Shaken(), "e_N", 0.6)),
    "the curve of a point that was loaded": ("was loaded", lambda: orbits.curve(orbits.Special("fold", 1.0, 0.0, 0), "e_N", 0.6)),
    "the curve of a branch point": ("does not stay one", lambda: orbits.curve(orbits.Special("branch point", 1.0, 0.0, 0), "e_N", 0.6)),
    "the other side of a fold": ("only the grazings", lambda: orbits.Special("fold", 1.0, 0.0, 0).across()),
    "refine no orbit": ("Orbit", lambda: orbits.refined(Shaken())),
    "an unknown parameter of a diagram": ("no parameter", lambda: swept("amplitud")),
    "a number as parameter of a diagram": ("parameter", lambda: swept(3)),
    "values of a diagram a matrix": ("values must be a vector", lambda: swept(values=[[0.1]])),
    "values of a diagram text": ("values must be a vector", lambda: swept(values="a")),
    "values of a diagram None": ("values must be a vector", lambda: swept(values=None)),
    "keep of a diagram zero": ("keep", lambda: swept(keep=0)),
    "transient of a diagram negative": ("transient", lambda: swept(transient=-1)),
    "n_periods zero": (
        "n_periods",
        lambda: orbits.lyapunov(Shaken(), LocatedImpacts(MoreauJean()), [0.04], [-0.7], TURN, n_steps=16, n_periods=0),
    ),
    "n_periods text": (
        "n_periods",
        lambda: orbits.poincare(Shaken(), LocatedImpacts(MoreauJean()), [0.04], [-0.7], TURN, n_steps=16, n_periods="a"),
    ),
    "load no branch": ("Branch", lambda: orbits.Branch.load("nowhere.npz")),
    "load another file as a branch": ("Branch", lambda: orbits.Branch.load(__file__)),
    "load no curve": ("Curve", lambda: orbits.Curve.load("nowhere.npz")),
    "load another file as a curve": ("Curve", lambda: orbits.Curve.load(__file__)),
}


# ----------------------------------------------------------------------------------------------------------------- pictures
def film(system=None, sol=None, path=None, **more):
    return drawing.film(BouncingBall() if system is None else system, motion() if sol is None else sol, path, **more)


def page(system=None, sol=None, path=None, **more):
    return drawing.page(BouncingBall() if system is None else system, motion() if sol is None else sol, path, **more)


@jaxnsd.system
class BallWithContact(BouncingBall):
    """Says where its contact is by what ``where`` makes of a point, a normal and a tangent, (1, 2) each."""

    where: Any = jaxnsd.static(default=None)

    def draw(self, t, q):
        place, up, along = (jnp.array([x]) for x in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)))
        return {"ball": jnp.append(q, 0.0), "contacts": self.where(place, up, along)} if self.where else {}


PICTURES = {
    "contacts without normals": ("got one array of shape (1, 2)", lambda: film(system=BallWithContact(where=lambda p, n, t: p))),
    "contacts of another number": ("of shape (1, d) each", lambda: page(system=BallWithContact(where=lambda p, n, t: (p[:0], n[:0])))),
    "contacts with short tangents": ("(1, 2), (1, 2), (2,)", lambda: film(system=BallWithContact(where=lambda p, n, t: (p, n, t[0])))),
    "nothing to draw": ("got a dict of nothing", lambda: film(system=BallWithContact())),
    "contacts of four arrays": ("(points, normals, tangents)", lambda: film(system=BallWithContact(where=lambda p, n, t: (p, n, t, t)))),
    "film of a number": ("sol must be a Solution", lambda: film(sol=3)),
    "film of an array": ("sol must be a Solution", lambda: film(sol=Q0)),
    "film of no system": ("system must be a System", lambda: film(system="ball")),
    "film of a class": ("system must be a System", lambda: film(system=BouncingBall)),
    "film without a look": ("draw(t, q)", lambda: film(system=Puck())),
    "film of a batch": ("choose by members", lambda: film(sol=batch())),
    "film of a member that there is not": ("0 to 1", lambda: film(sol=batch(), members=[5])),
    "film of a member by name": ("members", lambda: film(sol=batch(), members="a")),
    "film of no member": ("at least", lambda: film(sol=batch(), members=[])),
    "film of members of one motion": ("one motion", lambda: film(members=0)),
    "film of another system": ("coordinates", lambda: film(system=models.DoublePendulum())),
    "film with a wrong ending": ("must end in", lambda: film(path="a.avi")),
    "film into a number": ("path", lambda: film(path=3)),
    "film into a folder that there is not": ("does not exist", lambda: film(path="nowhere/a.gif")),
    "speed zero": ("speed must be a positive number", lambda: film(speed=0.0)),
    "speed text": ("speed must be a positive number", lambda: film(speed="slow")),
    "speed NaN": ("speed must be a positive number", lambda: page(speed=np.nan)),
    "fps negative": ("fps must be a positive number", lambda: film(fps=-1)),
    "fps text": ("fps must be a positive number", lambda: film(fps="a")),
    "span after the end": ("span must be two times", lambda: film(span=(0.5, 2.0))),
    "span a number": ("span must be two times", lambda: film(span=0.05)),
    "span exchanged": ("span must be two times", lambda: page(span=(0.1, 0.0))),
    "span text": ("span must be two times", lambda: page(span="ab")),
    "follow a number": ("follow", lambda: film(follow=3)),
    "follow an unknown name": ("nothing that is drawn is called", lambda: film(follow="bal")),
    "size of one number": ("size", lambda: film(size=400)),
    "size odd": ("even numbers", lambda: film(size=(33, 20))),
    "size text": ("size", lambda: film(size="large")),
    "view a number": ("view", lambda: film(view=30.0)),
    "view text": ("view", lambda: page(view="ab")),
    "title a number": ("title", lambda: film(title=3)),
    "arrows text": ("arrows", lambda: film(arrows="no")),
    "page with a wrong ending": ("must end in .html", lambda: page(path="a.pdf")),
    "page of text": ("sol must be a Solution", lambda: page(sol="a.npz")),
    "page of a member by a float": ("members", lambda: page(sol=batch(), members=0.5)),
    "overview of no solution": ("sol", lambda: plotting.overview(BouncingBall(), Q0)),
    "overview of no system": ("system", lambda: plotting.overview("ball", motion())),
    "overview of a batch": ("batch", lambda: plotting.overview(BouncingBall(), batch())),
    "trajectory of a coordinate that there is not": ("coordinate 5", lambda: plotting.trajectory(motion(), 5)),
    "trajectory of a coordinate by name": ("coordinate", lambda: plotting.trajectory(motion(), "x")),
    "trajectory with two labels": ("2 labels", lambda: plotting.trajectory(motion(), labels=["a", "b"])),
    "trajectory of no solution": ("sol", lambda: plotting.trajectory(Q0)),
    "trajectory in a figure": ("ax", lambda: plotting.trajectory(motion(), ax=3)),
    "phase portrait of a float": ("coordinate", lambda: plotting.phase_portrait(motion(), 0.5)),
    "save no figure": ("figure", lambda: plotting.save(motion(), "a.png")),
    "save a figure into a wrong ending": ("must end in", lambda: plotting.save(plotting.figure()[0], "a.docx")),
    "save a figure into nowhere": ("does not exist", lambda: plotting.save(plotting.figure()[0], "nowhere/a.png")),
    "bands of other lengths": ("values (members, N)", lambda: plotting.ensemble_bands(np.ones(3), np.ones((2, 4)))),
    "bands of text": ("ensemble_bands", lambda: plotting.ensemble_bands("a", "b")),
    "bands of an even number": ("odd number", lambda: plotting.ensemble_bands(np.ones(3), np.ones((2, 3)), (0.1, 0.9))),
    "convergence of other lengths": ("convergence", lambda: plotting.convergence(np.ones(3), np.ones((1, 2)))),
    "convergence of negative errors": ("must be positive", lambda: plotting.convergence([1.0, 0.1], [-1.0, 1.0])),
    "strobe of a ball": ("got BouncingBall", lambda: plotting.strobe(BouncingBall(), motion())),
    "angles of a ball": ("got BouncingBall", lambda: plots.angles(BouncingBall(), motion())),
    "a branch of an orbit": ("Branch", lambda: plotting.branch(motion())),
    "a curve of a motion": ("Curve", lambda: plotting.curve(motion())),
    "a diagram of a motion": ("Diagram", lambda: plotting.diagram(motion())),
    "identification of a motion": ("Result", lambda: plotting.identification(motion())),
    "compare of one scheme": ("schemes", lambda: jaxnsd.compare.compare(BouncingBall(), Moreau(), np.ones(1), np.zeros(1), 0.1, 0.01)),
    "compare of text": ("schemes", lambda: jaxnsd.compare.compare(BouncingBall(), ["Moreau"], np.ones(1), np.zeros(1), 0.1, 0.01)),
    "compare of no schemes": ("schemes", lambda: jaxnsd.compare.compare(BouncingBall(), [], np.ones(1), np.zeros(1), 0.1, 0.01)),
    "table of text": ("rows", lambda: jaxnsd.compare.table("a")),
    "a model that there is not": ("did you mean BouncingBall?", lambda: models.MODELS["BouncingBal"]),
    "a bar of one node": ("at least 2 nodes", lambda: models.elastic_bar(1)),
    "a bar of text": ("n", lambda: models.elastic_bar("a")),
    "a bar of half a node": ("n", lambda: models.elastic_bar(2.5)),
    "a column of no bead": ("n", lambda: models.BeadColumn(n=0).initial_state()),
    "a case that there is not": ("case", lambda: models.PointMassOnSlope().initial_state(case=9)),
}

# ------------------------------------------------------------------------------------------------------------- command line
SAMPLED = "ensemble BouncingBall --n 10 --t1 0.1 --dt 1e-2 --sample e_N=uniform(0.2,0.8)"
COMMANDS = {
    "an orbit of a model without one": ("a model with a limit cycle, Woodpecker, got 'BouncingBall'", "orbit BouncingBall"),
    "an orbit of an unknown model": ("did you mean Woodpecker?", "orbit Woodpeker"),
    "an orbit followed to nowhere": ("--follow NAME and --to X belong together", "orbit Woodpecker --follow mu"),
    "a curve to nowhere": ("--curve NAME and --curve-to Y belong together", "orbit Woodpecker --follow mu --to 0.31 --curve mass_sleeve"),
    "a curve without a branch": ("give --follow NAME and --to X as well", "orbit Woodpecker --curve mass_sleeve --curve-to 0.1"),
    "a curve in a colour": (
        "--curve: colour is no parameter of Woodpecker",
        "orbit Woodpecker --follow mu --to 0.31 --curve colour --curve-to 0.1",
    ),
    "an orbit followed in a colour": ("--follow: colour is no parameter of Woodpecker", "orbit Woodpecker --follow colour --to 0.31"),
    "an orbit written without a branch": ("--out writes a branch", "orbit Woodpecker --out a.npz"),
    "an orbit of no steps": ("expected a positive whole number", "orbit Woodpecker --steps 0"),
    "an orbit drawn into text": ("--plot must end in .png", "orbit Woodpecker --plot a.txt"),
    "an orbit of a scheme at mid-interval": ("at mid-interval", "orbit Woodpecker --scheme SymmetricMoreau"),
    "an orbit with a colour": ("Woodpecker has no parameter 'colour'", "orbit Woodpecker --set colour=1"),
    "no command": ("COMMAND", ""),
    "an unknown command": ("invalid choice: 'rnu'", "rnu"),
    "an unknown model": ("did you mean Woodpecker?", "run Woodpeker"),
    "no model": ("MODEL", "run"),
    "a model in lower case": ("did you mean BouncingBall?", "run bouncingball"),
    "a model that is like none": ("unknown model 'xyz'; one of BouncingBall, ", "run xyz"),
    "a scheme of a number": ("scheme must be a scheme", "run BouncingBall --scheme LocatedImpacts(3)"),
    "a scheme of what is none": ("unknown scheme 'Moreu'", "run BouncingBall --scheme LocatedImpacts(Moreu)"),
    "a flag that is a number": ("gap_is_distance is true or false, got '1'", "run SpringPendulum --set gap_is_distance=1"),
    "dt negative, with an exponent": ("dt must be positive, got -0.001", "run BouncingBall --dt -1e-3"),
    "plot that is a folder": ("the name of a file in it", "run BouncingBall --plot folder.png"),
    "an unknown scheme": ("did you mean Moreau?", "run BouncingBall --scheme Moreu"),
    "half a scheme": ("a call with numbers", "run BouncingBall --scheme HHT(alpha="),
    "a scheme with a wrong name": ("no parameter 'beta_2'", "run BouncingBall --scheme HHT(beta_2=1)"),
    "a scheme with a wrong number": ("theta must lie in [0, 1]", "run BouncingBall --scheme MoreauJean(2)"),
    "a scheme with text": ("theta", "run BouncingBall --scheme MoreauJean('a')"),
    "a scheme with too many numbers": ("MoreauJean", "run BouncingBall --scheme MoreauJean(1,2,3,4,5,6)"),
    "a scheme that is a sum": ("a call with numbers", "run BouncingBall --scheme 1+1"),
    "a scheme with stars": ("a call with numbers", "run BouncingBall --scheme HHT(**3)"),
    "dt no number": ("expected a number, got 'small'", "run BouncingBall --dt small"),
    "dt zero": ("dt must be positive", "run BouncingBall --dt 0"),
    "dt nan": ("dt must be a finite number", "run BouncingBall --dt nan"),
    "dt that does not divide": ("divide", "run BouncingBall --dt 0.3"),
    "t1 negative": ("t1 must be later", "run BouncingBall --t1 -1"),
    "t1 infinite": ("t1 must be a finite number", "run BouncingBall --t1 inf"),
    "t1 too long": ("memory", "run BouncingBall --t1 1e9 --dt 1e-3"),
    "a parameter that there is not": ("no parameter 'nu'", "run BouncingBall --set nu=1"),
    "a parameter without a value": ("NAME=VALUE", "run BouncingBall --set mass"),
    "a parameter that is empty": ("mass must be a number", "run BouncingBall --set mass="),
    "a parameter of text": ("mass must be a number", "run BouncingBall --set mass=heavy"),
    "a parameter that is nan": ("mass", "run BouncingBall --set mass=nan"),
    "a parameter of two numbers": ("potential_energy", "run BouncingBall --set mass=1,2"),
    "a restitution of 1.5": ("e_N must lie in [0, 1]", "run BouncingBall --set e_N=1.5"),
    "save-every zero": ("expected a positive whole number", "run BouncingBall --save-every 0"),
    "save-every that does not divide": ("divide the number of steps", "run BouncingBall --save-every 7"),
    "out with a wrong ending": ("--out must end in .npz", "run BouncingBall --out a.csv"),
    "out into nowhere": ("does not exist", "run BouncingBall --out nowhere/a.npz"),
    "out that is a folder": ("the name of a file in it", "run BouncingBall --out folder.npz"),
    "out that cannot be written": ("cannot be written", "run BouncingBall --out /proc/a.npz"),
    "film that cannot be written": ("cannot be written", "run BouncingBall --film /proc/a.gif"),
    "page that cannot be written": ("cannot be written", "run BouncingBall --page /proc/a.html"),
    "plot that cannot be written": ("cannot be written", "run BouncingBall --plot /proc/a.png"),
    "film into nowhere": ("does not exist", "run BouncingBall --film nowhere/a.gif"),
    "film with a wrong ending": ("must end in", "run BouncingBall --film a.avi"),
    "page with a wrong ending": ("must end in .html", "run BouncingBall --page a.txt"),
    "film with speed zero": ("speed must be a positive number", "run BouncingBall --film a.gif --speed 0"),
    "film that follows nothing": ("nothing that is drawn is called", "run BouncingBall --film a.gif --follow bal"),
    "plot with a wrong ending": ("--plot must end in", "run BouncingBall --plot a.txt"),
    "cache into a file": ("cannot make the directory", f"run BouncingBall --cache {os.devnull}"),
    "an option cut short": ("unrecognized arguments", "run BouncingBall --save 2"),
    "an unknown option": ("unrecognized arguments", "run BouncingBall --steps 3"),
    "a file that there is not": ("there is no file", "run nowhere.xml"),
    "a file that is none": ("MuJoCo", "run broken.xml"),
    "a keyframe that there is not": ("keyframe", "run leg --set key=nothing"),
    "a parameter of a file": ("no parameter 'mass'", "run leg --set mass=3"),
    "a motion by text": ("no parameter 'motion'", "run leg --set motion=3"),
    "a folder as a model": ("folder.npz", "run folder.npz"),
    "compare an unknown model": ("did you mean Woodpecker?", "compare Woodpeker"),
    "compare with dt zero": ("dt must be positive", "compare BouncingBall --dt 0"),
    "compare with an unknown scheme": ("unknown scheme", "compare BouncingBall --scheme Moreu"),
    "compare a file": ("there is no file", "compare nowhere.xml"),
    "ensemble of an unknown model": ("did you mean Woodpecker?", "ensemble Woodpeker"),
    "ensemble of a file": ("by its name", "ensemble nowhere.xml"),
    "ensemble of a scene": ("by its name", "ensemble leg"),
    "ensemble without a sample": ("--sample", "ensemble BouncingBall"),
    "a sample given twice": ("e_N is given more than once", f"{SAMPLED} --sample e_N=normal(0.5,0.1)"),
    "a sample that is set": ("random by --sample and fixed by --set", f"{SAMPLED} --set e_N=0.5"),
    "a store in no folder": ("does not exist", f"{SAMPLED} --store nowhere/a.zarr"),
    "dt of members that does not divide": ("dt", f"{SAMPLED} --dt 0.7"),
    "a distribution misspelt": ("did you mean normal?", "ensemble BouncingBall --sample mass=norm(1)"),
    "a distribution of one number": ("normal takes mean, deviation", "ensemble BouncingBall --sample mass=normal(1)"),
    "a distribution of text": ("normal", "ensemble BouncingBall --sample mass=normal(a,b)"),
    "a negative deviation": ("deviation must be positive", "ensemble BouncingBall --sample mass=normal(1,-1)"),
    "a sample without a distribution": ("NAME=DISTRIBUTION", "ensemble BouncingBall --sample mass"),
    "a sample of a number": ("mass", "ensemble BouncingBall --sample mass=3"),
    "a sample of what there is not": ("no parameter 'mux'", "ensemble BouncingBall --sample mux=normal(1,0.1)"),
    "seed text": ("expected a whole number", "ensemble BouncingBall --seed a"),
    "seed too large": ("expected a whole number", "ensemble BouncingBall --seed 99999999999999999999"),
    "observe what there is not": ("cannot observe 'z'", "ensemble BouncingBall --sample e_N=uniform(0.1,0.2) --observe z"),
    "observe too much": ("q[0] to q[0]", "ensemble BouncingBall --sample e_N=uniform(0.1,0.2) --observe q[3]"),
    "resume without a store of a command": ("--store", "ensemble BouncingBall --sample e_N=uniform(0.1,0.2) --resume"),
    "no member": ("positive whole number", "ensemble BouncingBall --n 0"),
    "members by an exponent": ("positive whole number", "ensemble BouncingBall --n 1e6"),
    "points misspelt": ("invalid choice", "ensemble BouncingBall --points sobel"),
    "workers of text": ("positive whole number", "ensemble BouncingBall --workers all"),
    "tosses of no file": ("nowhere", "evaluate-tosses nowhere.npz"),
    "tosses of an empty folder": ("folder.npz", "evaluate-tosses folder.npz"),
    "tosses of another file": ("broken.xml", "evaluate-tosses broken.xml"),
    "tosses from what": ("invalid choice", "evaluate-tosses a.npz --initial first"),
    "demo into a file": ("cannot make the directory", f"demo --out {os.devnull}"),
}

AREAS = {
    "made": MADE, "transformed": TRANSFORMED, "bodies": BODIES, "files": FILES, "ensembles": ENSEMBLES,
    "identification": IDENTIFICATION, "orbits": ORBITS, "pictures": PICTURES,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- the tests
def all_calls():
    """``{area and name: (word, call)}`` of all that is no command."""

    def simulated(options):
        # What has to be simulated before is a function here.
        return run(**{name: value() if name == "start" and callable(value) else value for name, value in options.items()})

    def written(methods):
        energy = methods.get("kinetic_energy", Plain.kinetic_energy)
        own = {"gap": Plain.gap, "tangential_velocity": Plain.tangential_velocity, **methods, "kinetic_energy": energy}
        return run(like(jaxnsd.System, **{name: method for name, method in own.items() if method is not None}))

    found = {f"run: {name}": (word, functools.partial(simulated, options)) for name, (word, options) in RUNS.items()}
    found |= {f"method: {name}": (word, functools.partial(written, methods)) for name, (word, methods) in METHODS.items()}
    return found | {f"{area}: {name}": entry for area, table in AREAS.items() for name, entry in table.items()}


CALLS = all_calls()


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory):
    """A folder with what some commands name: folders and a broken file."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "folder.npz").mkdir()
    (folder / "folder.png").mkdir()
    (folder / "broken.xml").write_text("<mujoco><worldbody>")
    with contextlib.chdir(folder):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_in_a_sentence(name):
    word, call = CALLS[name]
    if name.startswith("files"):
        pytest.importorskip("mujoco")
    looks_right(said(call), word)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_gets_one_line_and_status_2(name):
    word, arguments = COMMANDS[name]
    if "/proc" in arguments and not os.path.isdir("/proc"):
        pytest.skip("no folder into which nobody can write")
    if "--store" in arguments:
        pytest.importorskip("zarr")
    if any(file in arguments for file in (" leg", "broken.xml")):
        pytest.importorskip("mujoco")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(arguments.split())
        except SystemExit as ended:
            status = ended.code
    text = err.getvalue()
    assert (status, out.getvalue(), text.count("\n")) == (2, "", 1), text
    assert text.startswith("jaxnsd")
    assert "ensemble: ensemble:" not in text
    looks_right(text, word)


def test_there_are_many():
    assert len(CALLS) + len(COMMANDS) > 900
