"""What the theta- and alpha-schemes share: which contacts are active and where they are evaluated, the factors of a linear system."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from .. import contact
from ..mechanics import laws
from ..mechanics.linear_system import LinearSystem, product, smallest_pivot
from ..mechanics.local import Contacts, Kinematics, Local, kinematics, local
from ..mechanics.system import System
from ..numerics import linalg, tridiagonal
from ..numerics.tridiagonal import Tridiagonal
from .base import Scheme
from .condensed import Condensed, Factored
from .velocity import Step, pytree, static


class Factor(NamedTuple):
    """A constant matrix with what is needed to solve with it: its inverse, or its cyclic reduction."""

    matrix: object
    inverse: object

    def solve(self, b):
        """Solution x of ``matrix x = b``, b of shape (n,) or (n, k), differentiable in the matrix as well."""

        def apply(b):
            if isinstance(self.inverse, tridiagonal.Reduction):
                return tridiagonal.solve(self.inverse, b)
            return product(self.inverse, b)

        def refined(times, apply, b):
            # One step of iterative refinement brings the residual of an ill-conditioned matrix down to round-off.
            x = apply(b)
            return x + apply(b - times(x))

        def transposed(times, b):
            return refined(times, lambda x: jax.linear_transpose(apply, b)(x)[0], b)

        # The inverse is a constant of differentiation.
        times = lambda x: product(self.matrix, x)  # noqa: E731
        return lax.custom_linear_solve(times, b, lambda times, b: refined(times, apply, b), transposed)


def factor(matrix):
    """`Factor` of a matrix."""
    frozen = lax.stop_gradient(matrix)
    if isinstance(matrix, Tridiagonal):
        return Factor(matrix, tridiagonal.reduce(frozen))
    return Factor(matrix, linalg.lu(frozen)(jnp.eye(frozen.shape[0], dtype=frozen.dtype)))


class Start(NamedTuple):
    """Contacts at the start of a step, n of them."""

    gap: jax.Array  # (n,)
    rate: jax.Array  # (n,) gap velocities
    slip: jax.Array  # (n, d) tangential velocities
    zero: jax.Array  # (n,) gap velocities up to which a contact counts as one at rest

    @classmethod
    def of(cls, prepared, t, dt, q, u):
        """That of all contacts of a `Prepared`."""
        system, contacts = prepared.system, Contacts(prepared.system)
        W = jnp.abs(contacts.W_N(t, q, u))
        speed = jnp.abs(u) + dt * jnp.abs(system.h(t, q, u)) / prepared.mass_diagonal(t, q, u)
        zero = float(jnp.finfo(q.dtype).eps) ** ROUND_OFF * jnp.sum(W * speed[:, None], axis=0)
        return cls(contacts.gap(t, q), contacts.gap_velocity(t, q, u), contacts.tangential_velocity(t, q, u), zero)


class Prepared(NamedTuple):
    """A system and, if it is linear, what does not change from step to step; None otherwise."""

    system: object
    mass: object = None  # `Factor` of the mass matrix
    iteration: object = None  # `Factor` of the iteration matrix A
    Y: object = None  # A^-1 times the effect of the contacts, (n_u, m), where their directions are constant
    G: object = None  # Delassus operator (m, m)
    V: object = None  # M^-1 W, (n_u, m)

    @property
    def linear(self):
        """Whether the system is linear."""
        return self.iteration is not None

    def mass_times(self, t, q, u, x):
        """``M(t, q) x``; of ``u`` only the shape matters."""
        return product(self.system.mass, x) if self.mass else self.system.M(t, q, u) @ x

    def mass_solve(self, t, q, u, x):
        """``M(t, q)^-1 x`` for a vector x, or for columns; of ``u`` only the shape matters."""
        return self.mass.solve(x) if self.mass else linalg.lu(self.system.M(t, q, u))(x)

    def velocity_jump(self, t, step, q, u, kin, P):
        """``w = M(t, q)^-1 (W P)`` of all percussions of a step, whose `Kinematics` are ``kin``."""
        if self.V is not None:
            return jnp.sum(self.V * contact.join(P.P_N, P.P_F)[None, :], axis=1)
        return self.mass_solve(t, q, u, step.impulse(kin, P))

    def mass_diagonal(self, t, q, u):
        """Diagonal of M(t, q)."""
        if not self.mass:
            return jnp.diagonal(self.system.M(t, q, u))
        return self.system.mass.diagonal if isinstance(self.system.mass, Tridiagonal) else jnp.diagonal(self.system.mass)


def is_linear(system):
    """Whether a system is a `LinearSystem` to whose equations of motion no subclass has added."""
    return isinstance(system, LinearSystem) and system.is_linear()


#: A gap or a velocity counts as zero in the activity rule up to this power of the machine precision times the velocity of the step.
ROUND_OFF = 0.6


@dataclass(frozen=True)
class ImplicitScheme(Scheme):
    """A theta- or alpha-scheme: contacts are chosen at the start of a step and obey the impact law at its end.

    A contact is active where ``g_N(q_k) + prediction dt g_N_dot(q_k, u_k) <= 0`` and, with ``require_closing=True``,
    ``g_N_dot(q_k, u_k) <= 0``. Both tests are made up to round-off, so that a contact that rests at gap zero does not open and close in
    turn. There are three rules:

    default:               ``prediction = 1/2``, no test of the velocity. Contacts that open, ``g_N_dot > 0``, have restitution 1 in the
                           step, all others e_N
    require_closing=True:  ``prediction = 1``: A14 (26), the rule of the theorems
    require_closing=False: ``prediction = 1/2``, e_N for all contacts: a common rule of other codes

    They differ where bodies come to rest with 0 < e_N < 1. Under A14 (26) a contact never gets over its last bounces: it pushes in
    every other step, and the body sinks with the speed ``(1 - e) / (1 + e) a dt / 2`` for an acceleration a towards the contact. Under the
    third rule it rests, but a contact that opens with v is pushed open with -e v: ``(v_minus + v_plus) P_N > 0`` creates energy, of order
    dt^2, until it does. Under the default ``xi_N = v_plus + v_minus`` lets such a contact alone, or sends it back as fast as it came.
    So ``(theta v_plus + (1 - theta) v_minus) P_N`` is (1 - 2 theta) v_minus P_N for contacts that open, and
    (1 - theta (1 + e)) v_minus P_N for those that close: neither is positive for 1/2 <= theta <= 1/(1 + e), which is what the proof of
    A14, Proposition 1, asks of the contacts. What is left of the bounces halts within a depth of a dt^2 / 4: each pair of steps brings
    the contact back to where it was but for (1 - e) v dt / 2, and leaves e v.

    Force directions and xi are evaluated at the predicted configuration ``(t_{k+1}, q_k + dt q_dot(t_k, q_k, u_k))``, for both
    velocities; where gaps are linear in q they do not depend on it. Of a contact that is closed, restitution gives back its velocity at the
    start of the step where that is less than what kinematics change of it in the step, as of a table that shakes: it stays closed, with the
    velocity of the table, and the depth to which it has come, of order dt^2, does not grow.
    """

    prediction: float | None = field(default=None, kw_only=True)
    require_closing: bool | None = field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.prediction is None:
            object.__setattr__(self, "prediction", 1.0 if self.require_closing else 0.5)
        if not 0 <= self.prediction <= 1:
            raise ValueError(f"{self.name}: prediction must lie in [0, 1], got {self.prediction!r}; it is a fraction of the step")

    def iteration_matrix(self, system: LinearSystem, dt: ArrayLike) -> jax.Array | Tridiagonal:
        """Derivative of the balance of a linear system with respect to the new velocity."""
        raise NotImplementedError

    def check(self, system: System, dt: ArrayLike) -> None:
        """The iteration matrix of a linear system must be positive definite: an indefinite K bounds dt."""
        if not is_linear(system):
            return
        matrix = self.iteration_matrix(system, dt)
        symmetric = matrix if isinstance(matrix, Tridiagonal) else 0.5 * (matrix + matrix.T)
        pivot = smallest_pivot(symmetric)
        if pivot is not None and not pivot > 10 * float(jnp.finfo(matrix.dtype).eps):
            raise ValueError(
                f"simulate: the iteration matrix of {self.name} must be positive definite, got a singular or indefinite one for dt = {dt} "
                f"(smallest pivot, scaled to a unit diagonal: {pivot:.3g}); K or C is indefinite: take a smaller dt, or correct their signs"
            )

    def effect(self, prepared: Prepared, dt: ArrayLike) -> Callable[[jax.Array], jax.Array] | None:
        """Function that applies ``1 - dR/dp`` to columns, for a linear system; None: the identity."""
        del prepared, dt

    def prepare(self, system: System, dt: ArrayLike) -> Prepared:
        """The factors of a linear system; of any other, nothing is constant."""
        if not is_linear(system):
            return Prepared(system)
        prepared = Prepared(system, factor(system.mass), factor(self.iteration_matrix(system, dt)))
        if not system.has_constant_directions() or laws.has_dry_friction(system):
            return prepared
        zero = jnp.zeros(system.mass.shape[:1], system.mass.dtype)
        W = kinematics(system, jnp.zeros((), zero.dtype), zero, zero).W
        effect = self.effect(prepared, dt)
        Y = prepared.iteration.solve(effect(W) if effect else W)
        return prepared._replace(Y=Y, G=W.T @ Y, V=prepared.mass.solve(W))

    def system(self, prepared: Prepared) -> System:
        """The system of a `Prepared`."""
        return prepared.system

    def local(self, prepared: Prepared, t: ArrayLike, q: jax.Array, u: jax.Array) -> Local:
        """`Local` of the system at (t, q); without the mass matrix of a linear system."""
        return local(prepared.system, t, q, u, inert=prepared.mass is None)

    def mass_times(self, prepared: Prepared, M: jax.Array | None, x: jax.Array) -> jax.Array:
        """``M x``."""
        return super().mass_times(prepared, M, x) if prepared.mass is None else product(prepared.system.mass, x)

    def inertia(self, prepared: Prepared, M: jax.Array | None, kin: Kinematics) -> Condensed:
        """`Condensed` form of the mass matrix, by its factor where it is constant."""
        if prepared.V is not None:
            return Factored(prepared.mass.solve, prepared.V, kin.W.T @ prepared.V, kin)
        if prepared.mass is not None:
            return Condensed(None, kin, invert=prepared.mass.solve)
        return super().inertia(prepared, M, kin)

    def active(self, dt: ArrayLike, start: Start) -> jax.Array:
        """Which contacts are active, (n,) booleans, of those of a `Start`."""
        near = start.gap + self.prediction * dt * start.rate <= dt * start.zero
        return near & (start.rate <= start.zero) if self.require_closing else near


@pytree
class ImplicitStep(Step):
    """A step of a theta- or alpha-scheme: u is the velocity at t + dt, percussions act at the predicted configuration."""

    prepared: Any  # `Prepared`
    t: Any
    dt: Any
    q: Any
    u_minus: Any
    scheme: Any = static()
    choice: Any = field(default=None, kw_only=True)
    start: Any = field(default=None, kw_only=True)  # `Start` of all contacts, or None: it is computed where it is asked for

    @property
    def system(self):
        """The system."""
        return self.prepared.system

    @property
    def linear(self):
        """One iteration is enough for a linear system."""
        return self.prepared.linear

    @property
    def gathers(self):
        """The contacts of a linear system have a Delassus operator once and for all."""
        return not self.linear

    def place(self):
        """``(t_{k+1}, q_k + dt q_dot(t_k, q_k, u_k))``."""
        return self.t + self.dt, self.q + self.dt * self.system.q_dot(self.t, self.q, self.u_minus)

    def active(self):
        """The scheme's activity rule, at the start of the step."""
        return self.scheme.active(self.dt, self.at_start())

    def begun(self):
        """The step with what depends on its start alone, which is computed once."""
        return dataclasses.replace(self, start=self.at_start())

    def at_start(self):
        """`Start` of the contacts of the step."""
        start = Start.of(self.prepared, self.t, self.dt, self.q, self.u_minus) if self.start is None else self.start
        return Start(*map(self.contacts.take, start))

    def given_back(self, kin):
        """Contact velocities that restitution gives back: not what kinematics make of those of a contact that stays closed.

        The velocity of a contact at the start of the step is another one at `place`, of a table that shakes, a surface that curves, a body
        that turns. Where a closed contact has no more velocity than that, it stays closed: it gives back what is left of its velocity at
        the start, in normal direction as far as there is any at `place`, so that no energy is made.
        """
        before = self.before(kin)
        if not before.shape[0] or self.prepared.Y is not None:
            return before
        gap, rate, slip, zero = self.at_start()
        n = gap.shape[0]
        d = before.shape[0] // n - 1
        normal, tangential = contact.split(before, n, d)
        closed = gap <= self.dt * zero
        least = jnp.where(rate * normal > 0, jnp.where(jnp.abs(rate) < jnp.abs(normal), rate, normal), 0)
        # Of round-off at rest the sign says nothing, but would choose a derivative for each contact.
        moves = jnp.abs(normal) > zero
        normal = jnp.where(closed & moves & (jnp.abs(rate) <= jnp.abs(normal - rate)), least, normal)
        if d:
            parts = []
            for size in laws.discs(self.system) or (d,):
                first = sum(part.shape[1] for part in parts)
                of_start, there = slip[:, first : first + size], tangential[:, first : first + size]
                turned = jnp.sum((there - of_start) ** 2, axis=1)
                sticks = closed & (jnp.sum(of_start**2, axis=1) <= turned)
                parts.append(jnp.where(sticks[:, None], of_start, there))
            tangential = jnp.concatenate(parts, axis=1)
        return contact.join(normal, tangential)

    def law(self, kin):
        """The impact law; without a rule on the closing velocity, contacts that open have restitution 1 (see `ImplicitScheme`)."""
        law = super().law(kin)
        if self.scheme.require_closing is not None or not law.mu.shape[0]:
            return law
        n = law.mu.shape[0]
        given_back = self.given_back(kin)
        zero = self.at_start().zero
        opening = jnp.concatenate([jnp.zeros(given_back.shape[0] - n, bool), given_back[-n:] > zero])
        return law._replace(rebound=jnp.where(opening, given_back, law.rebound))

    def condensed(self, u, kin):
        """With the factors of a linear system."""
        prepared = self.prepared
        if not prepared.linear:
            return super().condensed(u, kin)
        if prepared.Y is not None:
            return self.balance(u), Factored(prepared.iteration.solve, prepared.Y, prepared.G, kin)
        return self.balance(u), Condensed(None, kin, self.effect(u), prepared.iteration.solve)
