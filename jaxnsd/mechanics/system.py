"""Mechanical systems with contact: the user writes energies, forces and gaps, autodiff derives everything else.

Notation as in Capobianco & Eugster (2018): generalized coordinates ``q`` (n_q,), generalized velocities ``u`` (n_u,), kinetic energy
``T = 1/2 u^T M u + a^T u + c`` (19), momentum ``p = M u + a`` (20), ``b = dL/dq + f`` (23), ``h = b - Mdot u - adot`` (22), so that the
equations of motion and of impact are

    M du = h dt + W dP,          q_dot = u   (or B(t, q) u + beta(t, q), see `System.q_dot`).
"""

import dataclasses
import difflib
import functools
import inspect
import typing
import warnings
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..numerics import linalg
from ..programs import pytrees, runs
from ..programs.given import shown
from ..programs.jitted import jit
from . import laws

#: A physical parameter of a system, as its fields are annotated: a number, or an array of them.
Parameter = jax.Array | float


def static(**kwargs: Any) -> Any:
    """Field of a system that is not a parameter (a number of elements, a flag): hashable, not differentiated, not batched."""
    return pytrees.static(**kwargs)


S = typing.TypeVar("S", bound=type)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def system(cls: S) -> S:
    """Class decorator that makes a subclass of `System` a frozen dataclass and a JAX pytree whose leaves are its parameters.

    Raises TypeError for a field that hides a method of a base class, or an attribute that the schemes read (``moved``), and for a method
    that a field of a base class hides. Warns of a method whose name looks like a misspelt one of `System`; a helper may start its name
    with an underscore to be left alone. Warns of a closed form of a base class that knows nothing of what the class writes anew.
    """
    if not (isinstance(cls, type) and issubclass(cls, System)):
        raise TypeError(f"@jaxnsd.system stands above a class that derives from jaxnsd.System, got {shown(cls)}")
    new = [part for part in cls.__mro__ if "__dataclass_fields__" not in vars(part) and part not in (System, object)]
    inherited_fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    # A base class that says in short what it is, as bodies do, has written so itself; what dataclasses write wraps another function.
    shown_in_full = cls.__repr__ is object.__repr__ or hasattr(cls.__repr__, "__wrapped__")
    cls = dataclasses.dataclass(frozen=True, repr=shown_in_full)(cls)
    _refuse_hidden(cls, new, inherited_fields)
    _warn_of_typos(cls, new)
    _warn_of_closed_forms(cls, new)
    return pytrees.register(cls)


#: Names of contact data, which a user writes as a field or as a method.
CONTACT_DATA = laws.CONTACT_DATA

#: Attributes that tell the schemes what they may ask of a class: set in the class, or methods of it, but no parameters.
SETTINGS = ("moved", "gathers", "scleronomic", "coordinate_projection")

#: What others call it, and what it is called here.
SYNONYMS = {
    "kinetic": "kinetic_energy",
    "E_kin": "kinetic_energy",
    "potential": "potential_energy",
    "E_pot": "potential_energy",
    "g_N": "gap",
    "gap_function": "gap",
    "gamma_F": "tangential_velocity",
    "friction_coefficient": "mu",
    "restitution": "e_N",
    "frictionloss": "dry_friction",
    "friction_loss": "dry_friction",
    "restitution_coefficient": "e_N",
}

#: Likeness (`difflib`) from which a name counts as a misspelt one.
LIKE = 0.83


def _refuse_hidden(cls, new, inherited_fields):
    """Raise TypeError where a field hides a method, or a method is hidden by a field."""
    fields = {field.name for field in dataclasses.fields(cls)}
    # `__init__` makes an attribute of a field, and that comes before a method of the class.
    for base in (base for base in cls.__mro__ if base not in new):
        for name in (name for name, value in vars(base).items() if callable(value) and not name.startswith("__")):
            if name in getattr(base, "__dataclass_fields__", ()) or (name not in fields and callable(inspect.getattr_static(cls, name))):
                continue
            if name in (*CONTACT_DATA, "law") or isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod)):
                continue
            what = (inspect.getdoc(vars(base)[name]) or "").split("\n")[0]
            raise TypeError(
                f"{cls.__name__}: the field {name} would hide the method {name} of {base.__name__}{what and f' ({what})'}; "
                f"rename the field, for example {name}_0"
            )
    for name in SETTINGS:
        if name in fields:
            raise TypeError(
                f"{cls.__name__}: the field {name} would hide the attribute {name} of System, which the schemes read; rename the field, "
                f"for example {name}_0"
            )
    for name in inherited_fields:
        if any(inspect.isfunction(vars(part).get(name)) for part in new):
            raise TypeError(
                f"{cls.__name__}: the field {name} of a base class hides the method {name}, which would never be called; rename the "
                "method, or derive from a class without that field"
            )


def _warn_of_typos(cls, new):
    """Warn of names that look like misspelt ones of `System`, where the class does not write the right one.

    Where a base class writes it, a name that one of the class's own methods asks for is that of a helper.
    """
    hooks = [name for name in vars(System) if not name.startswith("_") and name not in ("defines", "contact_data")]
    by_case = {hook.casefold(): hook for hook in hooks if len(hook) > 1}
    fields = {field.name for field in dataclasses.fields(cls)}
    methods = {name for part in new for name, value in vars(part).items() if inspect.isfunction(value)}
    for name in sorted((fields | methods) - set(hooks)):
        if name.startswith("_"):
            continue
        close = difflib.get_close_matches(name, [hook for hook in hooks if len(hook) > 2], n=1, cutoff=LIKE)
        hook = SYNONYMS.get(name) or by_case.get(name.casefold()) or (close[0] if close else None)
        if hook is None or (name in fields and hook not in (*CONTACT_DATA, "dry_friction")):
            continue
        if inspect.getattr_static(cls, hook) is inspect.getattr_static(System, hook) and hook not in fields:
            lacking = f"{cls.__name__} has no {hook}"
        elif name in methods and not any(hook in vars(part) for part in new) and name not in _asked_for_by(cls, new):
            owner = next(base for base in cls.__mro__ if hook in vars(base) or hook in vars(base).get("__annotations__", ()))
            lacking = f"the {hook} of {owner.__name__} stays as it is"
        else:
            continue
        warnings.warn(
            f"{cls.__name__}.{name} is not called by jaxnsd, and {lacking}: did you mean {hook}? "
            f"A helper of your own may be called _{name}",
            stacklevel=3,
        )


def _asked_for_by(cls, new):
    """Names that the methods ask for which a class writes anew."""
    found = set()
    for name in {name for part in new for name, value in vars(part).items() if callable(value)}:
        _asked_for(cls, name, found)
    return found


#: What tells the inertia of a system.
INERTIA = ("kinetic_energy", "mass_matrix", "M", "momentum")

#: What a class may write as a closed form, and what it is derived of where it does not.
DERIVED_OF = {
    "M": ("kinetic_energy", "mass_matrix"),
    "momentum": ("kinetic_energy", "mass_matrix", "M"),
    "b": ("kinetic_energy", "mass_matrix", "momentum", "potential_energy", "force", "q_dot"),
    "h": ("kinetic_energy", "mass_matrix", "momentum", "potential_energy", "force", "q_dot", "b"),
    "gap_velocity": ("gap", "q_dot"),
    "constraint_velocity": ("constraint", "q_dot"),
    "W_N": ("gap", "gap_velocity", "q_dot"),
    "W_F": ("tangential_velocity",),
    "W_D": ("dry_velocity",),
    "W_g": ("constraint", "constraint_velocity", "q_dot"),
    "W_gamma": ("velocity_constraint",),
    "about_center_rate": ("about_center", "q_dot"),
}

#: All of them, and what they are derived of.
MECHANICS = tuple(dict.fromkeys((*DERIVED_OF, *(name for sources in DERIVED_OF.values() for name in sources))))


def _warn_of_closed_forms(cls, new):
    """Warn where a class writes anew what a closed form of a base class is derived of, which that does not ask for."""
    known = {pair for base in cls.__mro__[1:] if base not in new for pair in _missed(base)}
    for name, source in _missed(cls):
        if (name, source) not in known:
            owner = next(base for base in cls.__mro__ if name in vars(base))
            warnings.warn(
                f"{cls.__name__} writes {source} anew, but inherits {name} from {owner.__name__}, a closed form that does not ask for "
                f"it: the schemes would not see all of the new {source}. Write {name}, too, or let it be derived: "
                f"{name} = jaxnsd.System.{name}",
                stacklevel=3,
            )


def _missed(cls):
    """Pairs (closed form, what it is derived of) where the latter was written later, and the former does not ask for it."""

    def level(name):
        return next((k for k, base in enumerate(cls.__mro__) if name in vars(base) and base is not System), len(cls.__mro__))

    pairs = [(name, source) for name, sources in DERIVED_OF.items() for source in sources if level(source) < level(name) < len(cls.__mro__)]
    asked_for = {name: _asked_for(cls, name, set()) for name in {name for name, _ in pairs}}
    return [(name, source) for name, source in pairs if not asked_for[name] & {source, "_overridden"}]


def _asked_for(cls, name, found):
    """Names that a method of a class asks for, and the methods that it calls, also by ``super()``; added to ``found``."""
    for base in cls.__mro__:
        method = vars(base).get(name) if base is not System else None
        codes = [getattr(inspect.unwrap(getattr(method, "fget", None) or method), "__code__", None)] if method is not None else []
        for code in codes:  # grows by the functions inside
            if code is None:
                continue
            codes += [inner for inner in code.co_consts if inspect.iscode(inner)]
            for other in set(code.co_names) - found:
                found.add(other)
                _asked_for(cls, other, found)
    return found


#: Decorator of what is derived by autodiff. Traced once for arguments of one kind, it costs its operations afterwards, not the
#: differentiation that led to them: a step asks for it at many places, and so does every derivative of one.
derived = functools.partial(runs.natively, traced=jit(inline=True))


class System:
    """A mechanical system. Subclass it, decorate the subclass with `jaxnsd.system`, write its mechanics as methods.

    Fields are physical parameters and leaves of a pytree: `jax.grad(loss)(system)` and `jax.vmap(run)(systems)` need no wrapper.
    A field that is no parameter is declared with `static()`.

    To write (arguments t scalar, q (n_q,), u (n_u,); everything may depend on t):

    ===============================  ==========================================================================================
    ``kinetic_energy(t, q, u)``      scalar, quadratic in u; or
    ``mass_matrix(t, q)``            (n_u, n_u), symmetric positive definite
    ``potential_energy(t, q)``       scalar; default 0
    ``force(t, q, u)``               (n_u,) generalized forces without potential; default 0. What inertia makes is derived, gyroscopic
                                     moments too: they are no part of it
    ``q_dot(t, q, u)``               (n_q,) kinematic equation, affine in u; default u
    ``gap(t, q)``                    (n_N,) gaps, positive open; default none
    ``tangential_velocity(t, q, u)`` (n_N, d), d = 1 planar, d = 2 spatial, affine in u; default d = 0, frictionless. Further columns are
                                     the relative angular velocities of rolling and drilling friction, in rad/s, see ``law``
    ``constraint(t, q)``             (n_g,) bilateral constraints on position level, g = 0; default none
    ``velocity_constraint(t, q, u)`` (n_gamma,) bilateral constraints on velocity level, affine in u; default none
    ``e_N, e_F, mu``                 restitution in normal and tangential direction, friction coefficient: fields or methods without
                                     arguments, scalar or (n_N,); default 0. ``e_N`` may be a method of one argument, the speeds of
                                     approach (n_N,) in m/s, not negative
    ``dry_friction``                 bounds of the generalized forces of dry friction, N or N m: field or method without arguments, scalar
                                     or (n_D,); default none. -P_D lies in tau dt Sign(gamma_D), sticking is exact
    ``dry_velocity(t, q, u)``        (n_D,) velocities gamma_D on which it acts, affine in u; default u
    ``law``                          law of impact and friction (see `laws`): class attribute, field, or method without arguments;
                                     default `NewtonImpact()`, which takes the three above
    ``coordinate_names``             tuple of n_q strings for pictures, with units: ``("$x$ in m", "angle in rad")``; default None
    ``velocity_names``               tuple of n_u strings: ``("$v$ in m/s", ...)``; default None
    ``contact_names``                tuple of n_N strings, for tables: ``("beak and pole", ...)``; default None
    ``draw(t, q)``                   dict of points and lines by name, for films and pages, see `jaxnsd.drawing`; default none
    ===============================  ==========================================================================================

    Methods are traced, and run again only where something else is given: arguments, fields, or what they read beside these under a name
    that is written in them: a global, an attribute of a module or of a class or an object of one's own, an entry of a dictionary. An
    entry of a list or of an array that is changed in place is not seen, nor is what was read by a function with a `jax.jit`, or a
    `jax.checkpoint`, of its own.

    Derived by autodiff, each may be overridden by a closed form: `M`, `momentum`, `b`, `h`, `gap_velocity`, `W_N`, `W_F`, `W_D`,
    `constraint_velocity`, `W_g`, `W_gamma`, `total_energy`.
    """

    e_N: Any = 0.0
    e_F: Any = 0.0
    mu: Any = 0.0
    law: Any = laws.NewtonImpact()
    dry_friction: Any = None
    coordinate_names: ClassVar[tuple[str, ...] | None] = None
    velocity_names: ClassVar[tuple[str, ...] | None] = None
    contact_names: ClassVar[tuple[str, ...] | None] = None

    #: ``moved(t, dt, q, u)``: closed form of a step of the midpoint rule of `q_dot`, where there is one, see `schemes.positions`.
    moved: ClassVar[Any] = None
    #: Whether `gap_velocity`, `tangential_velocity`, `W_N` and `W_F` take the contacts that are asked for as a last argument ``choice``.
    gathers: ClassVar[bool] = False
    #: Whether the schemes that hold constraints on velocity level close those on position level after every step, in the metric of the mass
    #: matrix, see `schemes.closure`. As they were published they do not: what is left open drifts with their order.
    coordinate_projection: ClassVar[bool] = False
    #: Whether all velocities of contacts and constraints are known to vanish where u does: nothing is driven.
    scleronomic: ClassVar[bool] = False

    # What is to become of a traced value that a method reads and that is no argument.
    _closes_over: ClassVar[str] = "a field"

    # ------------------------------------------------------------------------------------------- what the user writes
    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T(t, q, u), scalar in J."""
        return 0.5 * u @ (self.M(t, q, u) @ u)

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """M(t, q) of shape (n_u, n_u): the Hessian of the kinetic energy in u, C18 (19)."""
        return self.M(t, q)

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V(t, q), scalar in J."""
        del t
        return jnp.zeros((), q.dtype)

    def force(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces without potential, (n_u,)."""
        del t, q
        return jnp.zeros_like(u)

    def q_dot(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Kinematic equation: (n_q,) time derivative of q, affine in u."""
        del t, q
        return u

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Gap functions g_N(t, q) of shape (n_N,) in m: positive open, negative penetrating."""
        del t
        return jnp.zeros((0,), q.dtype)

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Tangential contact velocities gamma_F(t, q, u) of shape (n_N, d) in m/s."""
        del u
        return jnp.zeros((*jax.eval_shape(self.gap, t, q).shape, 0), q.dtype)

    def constraint(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Bilateral constraints on position level, g(t, q) = 0 of shape (n_g,)."""
        del t
        return jnp.zeros((0,), q.dtype)

    def velocity_constraint(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Bilateral (nonholonomic) constraints on velocity level, gamma(t, q, u) = 0 of shape (n_gamma,)."""
        del t, q
        return jnp.zeros((0,), u.dtype)

    def dry_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Velocities (n_D,) on which `dry_friction` acts, affine in u."""
        del t, q
        return u

    def draw(self, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
        """What the system looks like at (t, q): points and lines by name, see `jaxnsd.drawing`."""
        raise TypeError(f"{type(self).__name__} has no method draw(t, q)")

    # ------------------------------------------------------------------------------------------------ what is derived
    def defines(self, name: str) -> bool:
        """Whether this system overrides the method ``name`` of `System`."""
        return self._differs_from(System, name)

    def _differs_from(self, base, *names):
        """Whether the class of this system writes any of these methods of ``base`` anew."""
        return any(getattr(type(self), name) is not getattr(base, name) for name in names)

    def normalized(self, q: jax.Array) -> jax.Array:
        """Coordinates (n_q,) that mean what q means, with that made exact which a scheme keeps to its order: quaternions; default q."""
        return q

    def about_center(self, t: ArrayLike, q: jax.Array, p: jax.Array) -> jax.Array:
        """Momenta or impulses p (n_u,), or columns (n_u, m), of the velocities w of ``u = T(t, q) w``: T^T p; default p, with T = 1.

        `Lobatto` and `MoreauJean` hold their balance in them: where bodies float w is to have the velocities of centres of mass, whose
        momenta do not turn with the bodies. ``(T - 1)^2 = 0``, so that ``T^-T p = 2 p - T^T p``.
        """
        del t, q
        return p

    def seen_at(self, t: ArrayLike, q: jax.Array) -> "System":
        """This system, for functions that are asked for at (t, q) alone: one that keeps what they share, if it has such; default itself."""
        del t, q
        return self

    def for_run(self) -> "System":
        """This system with what does not change in a run computed, if it has such; default itself."""
        return self

    def found(self, t: ArrayLike, q: jax.Array) -> Any:
        """What a search of its contacts has found at (t, q), arrays from which one nearby may begin: a pytree, which changes no result but
        by round-off, only how long the next search takes; default None.
        """
        del t, q

    def keeping_rows(
        self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None, dt: ArrayLike | None = None, found: Any = None
    ) -> "System":
        """This system for a step from (t, q), each of whose rows is everywhere the contact that it is there; default itself.

        Told the velocity u and the length of the step, it may leave out contacts that are too far away to close in it. What was ``found``
        at the end of the step before spares it a search.
        """
        del t, q, u, dt, found
        return self

    def seen_where_kept(self, t: ArrayLike, q: jax.Array, which: jax.Array) -> "System":
        """The system of `keeping_rows` at (t, q), for functions of the contacts ``which`` (n_N,) asked for there alone: it may have
        kept what it found of them; default itself.
        """
        del t, q, which
        return self

    def _velocity(self, q, u):
        """A velocity to evaluate affine functions at, where the caller gave none."""
        if u is not None:
            return u
        if self.defines("q_dot"):
            raise TypeError(f"{type(self).__name__} defines q_dot, so the number of velocities cannot be seen from q: pass u as well")
        return jnp.zeros_like(q)

    @derived
    def M(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Mass matrix (n_u, n_u), whichever of `mass_matrix` and `kinetic_energy` is written; C18 (19)."""
        if self.defines("mass_matrix"):
            return jnp.asarray(self.mass_matrix(t, q))
        if not self.defines("kinetic_energy"):
            raise TypeError(f"{type(self).__name__} has no inertia: write kinetic_energy(t, q, u) or mass_matrix(t, q)")
        return jax.hessian(self.kinetic_energy, argnums=2)(t, q, self._velocity(q, u))

    def _inertias(self, t, q, u):
        """Diagonal of the mass matrix, (n_u,)."""
        return jnp.diagonal(self.M(t, q, u))

    def _refuses(self, q, u):
        """What is wrong with a state, in words behind the system's name, or None; without velocities, u is None."""
        return None

    def _is_assembled(self):
        """Whether no equation of this system was written by its user: there is nothing in them to be checked."""
        return False

    def _functions(self):
        """What was given as a function of (t, q, u) beside methods, and returns n numbers: ``[(name, f(system, t, q, u), n, of what)]``."""
        return []

    def _misshapen(self):
        """A sentence on a field of the wrong shape, or None: it is asked for before a run."""
        return None

    def _outside(self, t, q, u):
        """Whether a parameter of the system, beside those of its contacts, is outside of its range: it is looked at where it is traced."""
        return jnp.any(self._inertias(t, q, u) < 0)

    @derived
    def momentum(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized momentum p = dT/du = M u + a of shape (n_u,), C18 (20)."""
        if self.defines("kinetic_energy"):
            return jax.grad(self.kinetic_energy, argnums=2)(t, q, u)
        return self.M(t, q, u) @ u

    @derived
    def b(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces b = dL/dq + f of shape (n_u,), C18 (23); with quasi-velocities B^T dL/dq + f + (Hamel's terms).

        For ``q_dot = B(t, q) u + beta(t, q)`` Lagrange's equations in quasi-velocities (Boltzmann-Hamel) hold a further term, linear in
        the momentum, which comes from the Lie brackets of the columns of B: for a rigid body with body-fixed angular velocity it is the
        gyroscopic moment -omega x J omega. The brackets must lie in the span of B, as they do for a quaternion.
        """
        grad_q = jax.grad(lambda q: self.kinetic_energy(t, q, u) - self.potential_energy(t, q))(q)
        force = self.force(t, q, u)
        if not self.defines("q_dot"):
            return grad_q + force
        # Column k of the brackets is the derivative of column k of B along the motion, minus that of q_dot along it. They enter through
        # their product with the momentum alone, so that none has to be formed: their sum weighted with ``B (B^T B)^-1 p`` is enough.
        t = jnp.asarray(t, q.dtype)
        B = jax.jacfwd(self.q_dot, argnums=2)(t, q, u)
        weights = linalg.matmul(B, linalg.lu(linalg.matmul(B.T, B))(self.momentum(t, q, u)))

        def of_columns(t, q):
            return jax.vjp(lambda u: self.q_dot(t, q, u), u)[1](weights)[0]

        _, along_motion = jax.jvp(of_columns, (t, q), (jnp.ones_like(t), self.q_dot(t, q, u)))
        along_columns = jax.vjp(lambda q: self.q_dot(t, q, u), q)[1](weights)[0]
        return linalg.matmul(B.T, grad_q - along_columns) + force + along_motion

    @derived
    def h(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """h = b - Mdot u - adot of shape (n_u,), C18 (22): the right-hand side of M du/dt = h + W lambda."""
        t = jnp.asarray(t, q.dtype)
        # p(t, q, u) along the motion at frozen u is exactly Mdot u + adot.
        _, rate = jax.jvp(lambda t, q: self.momentum(t, q, u), (t, q), (jnp.ones_like(t), self.q_dot(t, q, u)))
        return self.b(t, q, u) - rate

    def _rate(self, function, t, q, u):
        """Time derivative of ``function(t, q)`` along the motion."""
        t = jnp.asarray(t, q.dtype)
        return jax.jvp(function, (t, q), (jnp.ones_like(t), self.q_dot(t, q, u)))[1]

    @derived
    def gap_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Normal contact velocities dg_N/dt of shape (n_N,), including the partial derivative in t."""
        return self._rate(self.gap, t, q, u)

    @derived
    def constraint_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Time derivative of the position-level constraints, (n_g,)."""
        return self._rate(self.constraint, t, q, u)

    def gyroscopic(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array | None:
        """Derivative (n_u, n_u) of `h` by those velocities in which `Moreau` is to be implicit; default None: it is explicit.

        Bodies say there what inertia makes of their angular velocities. Explicit, gyroscopic moments raise the energy of whatever spins.
        """
        del t, q, u

    def damping_matrix(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array | None:
        """Matrix D (n_u, n_u) of the forces ``-D u`` in `h` that `Moreau` is to take of the new velocity; default None: it is explicit.

        Bodies say there what their dampers make. Explicit, a damper d on an inertia m needs ``dt < 2 m / d``: of the fingers of a robot
        microseconds.
        """
        del t, q, u

    def applied_force(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces (n_u,) in which springs and dampers are looked for that a step is too long for; default `h`."""
        return self.h(t, q, u)

    def may_be_stiff(self) -> bool:
        """Whether there is anything in `applied_force` that a step could be too long for."""
        return True

    def drift_bound(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Violations (n_g,) of the constraints, each in its own unit, from which on a run counts as `Outcome.DRIFTED`; default infinity.

        Of a system in general neither units nor size are known; bodies know theirs. Schemes on position level have no drift.
        """
        return jnp.full(jax.eval_shape(self.constraint, t, q).shape, jnp.inf, q.dtype)

    def gap_size(self) -> ArrayLike:
        """Largest length, in m, that gaps are differences of beside the coordinates: its round-off is theirs; default 0, for unknown."""
        return 0.0

    @derived
    def about_center_rate(self, t: ArrayLike, q: jax.Array, u: jax.Array, p: jax.Array) -> jax.Array:
        """What `about_center` makes of constant p, by time, along the motion: (dT/dt)^T p, (n_u,)."""
        return self._rate(lambda t, q: self.about_center(t, q, p), t, q, u)

    @derived
    def W_N(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Normal force directions (d gap_velocity / du)^T of shape (n_u, n_N), C18 (7)."""
        return jax.jacfwd(self.gap_velocity, argnums=2)(t, q, self._velocity(q, u)).T

    @derived
    def W_F(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Tangential force directions (d gamma_F / du)^T of shape (n_u, n_N, d), C18 (7)."""
        return jnp.moveaxis(jax.jacfwd(self.tangential_velocity, argnums=2)(t, q, self._velocity(q, u)), -1, 0)

    @derived
    def W_D(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Directions of dry friction (d gamma_D / du)^T, (n_u, n_D)."""
        return jax.jacfwd(self.dry_velocity, argnums=2)(t, q, self._velocity(q, u)).T

    @derived
    def W_g(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Force directions of the position-level constraints, (n_u, n_g), C24 (13)."""
        return jax.jacfwd(self.constraint_velocity, argnums=2)(t, q, self._velocity(q, u)).T

    @derived
    def W_gamma(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Force directions of the velocity-level constraints, (n_u, n_gamma), C24 (13)."""
        return jax.jacfwd(self.velocity_constraint, argnums=2)(t, q, self._velocity(q, u)).T

    def total_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T + V, scalar in J."""
        return self.kinetic_energy(t, q, u) + self.potential_energy(t, q)

    def friction_sets(self) -> tuple | None:
        """All sets of friction, of a system that says those of drilling and rolling beside ``mu``; None: they are the law's."""
        return None

    def contact_data(self, t: ArrayLike, q: jax.Array, rate: jax.Array | None = None) -> laws.ContactData:
        """``(e_N, e_F, mu)``, each broadcast to (n_N,), by the system's `law`.

        rate: gap velocities (n_N,) before the impact, on which a restitution may depend; None: at rest
        """
        return laws.data(self, jax.eval_shape(self.gap, t, q).shape, q.dtype, rate)
