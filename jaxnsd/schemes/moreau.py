"""The three Moreau-type schemes of Capobianco & Eugster (2018), Section 4.

All step ``q_{k+1} = q_k + dt u_k``, where ``u_k`` is the velocity on (t_k, t_{k+1}) (a system with a ``q_dot`` of its own moves by the
midpoint rule, see `positions.moved`), and treat contact at the nodes: contacts with ``g_N(t_k, q_k) <= 0`` are active, and ``xi`` is formed
with both velocities at (t_k, q_k), (56). The percussion P_k acts at t_k. The schemes differ in their momentum balance; they coincide where
M is constant and no force depends on the velocity (from the same u_1: Moreau's first step sets it to the initial velocity, the others' to
what half a step of force makes of it).

A contact is active by the exact test of the paper: one that rests at gap zero to round-off may open and close in turn, with percussions
that are right in the sum only. A start that touches is better a round-off inside the contact than on it.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics.local import local
from ..mechanics.system import System
from ..numerics import linalg
from . import base, velocity
from .base import Evaluated, Info, Scheme, State
from .closure import closed
from .positions import moved
from .velocity import Step, pytree


@pytree
class NodeStep(Step):
    """What happens at a node (t, q), where the velocity ``u_minus`` arrives and u leaves. Made by `at`."""

    at_one_place: ClassVar[bool] = True

    system: Any  # seen at the node
    t: Any
    dt: Any
    q: Any
    u_minus: Any
    M: Any  # (n_u, n_u) mass matrix at the node
    choice: Any = field(default=None, kw_only=True)
    here: Any = field(default=None, kw_only=True)  # `Local` at the node, where it is known

    def place(self):
        """The node."""
        return self.t, self.q

    @classmethod
    def at(cls, system, t, dt, q, u_minus, *more):
        """The step at a node, with what its contacts share evaluated, once for all choices of them; ``more``: its further fields."""
        seen = system.seen_at(t, q)
        return cls(seen, t, dt, q, u_minus, seen.M(t, q, u_minus), *cls.known(seen, t, q, u_minus), *more)

    @classmethod
    def known(cls, system, t, q, u):
        """Fields beside M that are known with the arriving velocity u: h, and what it depends on; none where h is asked for at others."""
        del system, t, q, u
        return ()

    def placed(self):
        """With all contacts and constraints evaluated at the node."""
        return dataclasses.replace(self, here=local(self.system, self.t, self.q, self.u_minus, inert=False))

    def restricted(self, choice):
        """The step of the chosen contacts alone."""
        return dataclasses.replace(super().restricted(choice), here=None if self.here is None else self.here.take(choice))

    def kinematics(self):
        """At the node."""
        return super().kinematics() if self.here is None else self.here.kin

    def active(self):
        """Contacts that are closed at the node."""
        return (self.contacts.gap(self.t, self.q) if self.here is None else self.here.gap) <= 0

    def momentum_gained(self, u):
        """``M_k (u_k - u_{k-1})``."""
        return self.M @ (u - self.u_minus)


@dataclass(frozen=True)
class _MoreauType(Scheme):
    _start: ClassVar[Any]  # `Step` at the first node
    _step: ClassVar[Any]  # `Step` at the others

    def between(self, system: System, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, q_plus: jax.Array) -> Step:
        """The step at the new node."""
        del q
        return self._step.at(system, t + dt, dt, q_plus, u)

    def evaluated(self, prepared: Any, t: ArrayLike, q: jax.Array, u: jax.Array) -> Evaluated:
        """What the step to (t, q), where u arrives, has evaluated."""
        seen = prepared.seen_at(t, q)
        return Evaluated(seen, seen.M(t, q, u), *self._step.known(seen, t, q, u)[:1])

    def init(
        self, system: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[State, Info]:
        """First node: the initial velocity enters through its momentum, (60), (62); the percussion found here acts at ``t0``."""
        guess = base.no_percussions(system, t, q, u)
        u, P, info = velocity.solve(self._start.at(system, t, dt, q, u), u, guess, settings)
        return State(q, u, P), info

    def step(self, system: Any, t: ArrayLike, dt: ArrayLike, state: State, settings: AbstractContactSolver) -> tuple[State, Info]:
        """From node k to node k + 1: move with ``u_k``, then find ``u_{k+1}`` at the new node."""
        q = closed(system, t + dt, moved(system, t, dt, state.q, state.u), state.u, state.P)
        u, P, info = velocity.solve(self._step.at(system, t + dt, dt, q, state.u), state.u, state.P, settings)
        return State(q, u, P), info

    @staticmethod
    def implicit(D: np.ndarray, h_u: np.ndarray) -> np.ndarray:
        """Of the derivative h_u (n_u, n_u) of the forces the part in which the new velocity counts; D: the damping matrix of the system."""
        del D
        return 0.5 * h_u

    def growth(self, M: np.ndarray, D: np.ndarray, h_q: np.ndarray, h_u: np.ndarray, W: np.ndarray, dt: float) -> np.ndarray:
        """Matrix (2 n_u, 2 n_u) by which a step multiplies small changes of place and velocity, without contacts, at constant M.

            x_k = x_{k-1} + dt u_{k-1},     [M - dt J] (u_k - u_{k-1}) = dt (h_q x_k + h_u u_{k-1}) + W P,     W^T u_k = 0

        with J what `implicit` says, and W (n_u, n_b) the directions of bilateral constraints.
        """
        unit, A = np.eye(len(M)), M - dt * self.implicit(D, h_u)
        allowed = base.allowed(A, W)
        by_x, by_u = allowed @ np.linalg.solve(A, dt * h_q), allowed @ (unit + np.linalg.solve(A, dt * h_u))
        return np.block([[unit, dt * unit], [by_x, by_u + dt * by_x]])


@pytree
class MoreauStep(NodeStep):
    """C18 (59)."""

    h: Any  # (n_u,) forces with the arriving velocity
    gyroscopic: Any  # (n_u, n_u) derivative of what inertia makes of them, or None
    damping: Any  # (n_u, n_u) matrix of what dampers make of them, or None

    linear: ClassVar[bool] = True
    gathers = True

    @classmethod
    def known(cls, system, t, q, u):
        """``h, gyroscopic, damping``."""
        return system.h(t, q, u), system.gyroscopic(t, q, u), system.damping_matrix(t, q, u)

    def balance(self, u, p=None):
        """C18 (59): M_k (u_k - u_{k-1}) - h(t_k, q_k, u_{k-1}) dt = W_k P_k; for bodies with `matrix` for M_k."""
        del p
        return linalg.matmul(self.matrix(), u - self.u_minus) - self.dt * self.h

    def linearized(self, u):
        """The matrix is a constant."""
        return self.balance(u), self.matrix()

    def matrix(self):
        """M_k; of bodies ``M_k - dt / 2 dh/du + dt D``: half the derivative of what is quadratic in velocities, all of what is linear."""
        M = self.M if self.gyroscopic is None else self.M - 0.5 * self.dt * self.gyroscopic
        return M if self.damping is None else M + self.dt * self.damping


@dataclass(frozen=True)
class Moreau(_MoreauType):
    """Moreau's time-stepping scheme, C18 (58), (59): explicit in h, first order, one linear solve a step.

        M_k (u_k - u_{k-1}) - h(t_k, q_k, u_{k-1}) dt = W_k P_k

    The first velocity is the initial one. The cheapest scheme; it loses energy where M depends on q.

    Explicit gyroscopic moments raise the energy of whatever spins: inertia (0.3, 0.2, 0.1) at 10 rad/s had 3 to 30 times of it after 10 s
    with dt = 1/64. For bodies, and other systems that say their `System.gyroscopic`, they are the bilinear form of both velocities,

        [M_k - dt / 2 dh/du(t_k, q_k, u_{k-1})] (u_k - u_{k-1}) - h(t_k, q_k, u_{k-1}) dt = W_k P_k,

    the derivative by angular velocities, of inertial forces: still one linear solve, and the energy stays within 0.2 %. It is bounded with
    the frame in the centre of mass; away from it, by 0.11 m for radii of gyration of 0.3 m, it grows by 0.2 % in 640 steps of 0.16 rad, and
    doubles in 640 of 0.47 rad: `MoreauJean` and `Lobatto` do not feel where the frame is.

    Explicit dampers need ``dt < 2 m / d``, which a robot's fingers do not leave. Those that a system says by its `System.damping_matrix` D,
    as bodies do, act with the new velocity: ``+ dt D`` in the bracket, by which a step is dissipative whatever dt.
    """

    order: ClassVar[int] = 1
    _step: ClassVar[Any] = MoreauStep

    @staticmethod
    def implicit(D: np.ndarray, h_u: np.ndarray) -> np.ndarray:
        """Only what the system says of its dampers."""
        del h_u
        return -D

    def init(
        self, system: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[State, Info]:
        """First node, (58): ``u_1 = u_s``, no percussion."""
        del dt, settings
        return State(q, u, base.no_percussions(system, t, q, u)), base.nothing_to_solve(q.dtype)


@pytree
class SymmetricStart(NodeStep):
    """C18 (60), at the first node."""

    def balance(self, u, p=None):
        """C18 (60), twice: p(q_1, u_1) - p(q_1, u_s) - 1/2 h(q_1, u_1) dt = 1/2 W_1 P_1."""
        del p
        return 2 * self.momentum_gained(u) - self.dt * self.system.h(self.t, self.q, u)


@pytree
class SymmetricStep(NodeStep):
    """C18 (61)."""

    h: Any  # (n_u,) forces with the arriving velocity

    gathers = True

    @classmethod
    def known(cls, system, t, q, u):
        """``h``."""
        return (system.h(t, q, u),)

    def balance(self, u, p=None):
        """C18 (61): M_k (u_k - u_{k-1}) - 1/2 [h(t_k, q_k, u_{k-1}) + h(t_k, q_k, u_k)] dt = W_k P_k."""
        del p
        return self.momentum_gained(u) - 0.5 * self.dt * (self.h + self.system.h(self.t, self.q, u))


@dataclass(frozen=True)
class SymmetricMoreau(_MoreauType):
    """Symmetric Moreau-type scheme, C18 (60), (61): trapezoidal rule in the strong form of the virtual action.

        M_k (u_k - u_{k-1}) - 1/2 [h(t_k, q_k, u_{k-1}) + h(t_k, q_k, u_k)] dt = W_k P_k

    Time-reversible: no drift of the energy between impacts. Implicit in velocity-dependent forces only. Second order on smooth
    motion in q at the nodes and in u at mid-interval, first order with bilateral constraints.
    """

    order: ClassVar[int] = 2
    order_note: ClassVar[str] = "1 with bilateral constraints"
    lead: ClassVar[float] = 0.5
    _start: ClassVar[Any] = SymmetricStart
    _step: ClassVar[Any] = SymmetricStep


@pytree
class VariationalStart(NodeStep):
    """C18 (62), at the first node."""

    def balance(self, u, p=None):
        """C18 (62), twice: 1/2 [p(q_1, u_1) + p(q_2, u_1)] - p(q_1, u_s) - 1/2 b(q_1, u_1) dt = 1/2 W_1 P_1."""
        del p
        t, dt, q, momentum = self.t, self.dt, self.q, self.system.momentum
        after = momentum(t, q, u) + momentum(t + dt, q + dt * u, u)
        return after - 2 * momentum(t, q, self.u_minus) - dt * self.system.b(t, q, u)


@pytree
class VariationalStep(NodeStep):
    """C18 (63)."""

    gathers = True

    def balance(self, u, p=None):
        """C18 (63), see `VariationalMoreau`."""
        del p
        t, dt, q, u_minus, momentum, b = self.t, self.dt, self.q, self.u_minus, self.system.momentum, self.system.b
        after = momentum(t, q, u) + momentum(t + dt, q + dt * u, u)
        before = momentum(t - dt, q - dt * u_minus, u_minus) + momentum(t, q, u_minus)
        return 0.5 * (after - before) - 0.5 * dt * (b(t, q, u_minus) + b(t, q, u))


@dataclass(frozen=True)
class VariationalMoreau(_MoreauType):
    """Variational Moreau-type scheme, C18 (62), (63): trapezoidal rule in the weak form of the virtual action.

        1/2 [p(t_k, q_k, u_k) + p(t_{k+1}, q_{k+1}, u_k) - p(t_{k-1}, q_{k-1}, u_{k-1}) - p(t_k, q_k, u_{k-1})]
        - 1/2 [b(t_k, q_k, u_{k-1}) + b(t_k, q_k, u_k)] dt = W_k P_k

    A variational integrator in the sense of discrete mechanics: symplectic between impacts, the energy stays bounded. Second order on
    smooth motion in q at the nodes and in u at mid-interval, first order with bilateral constraints. Takes systems with ``q_dot = u`` only.
    """

    order: ClassVar[int] = 2
    order_note: ClassVar[str] = "1 with bilateral constraints"
    lead: ClassVar[float] = 0.5
    _start: ClassVar[Any] = VariationalStart
    _step: ClassVar[Any] = VariationalStep

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """Quasi-velocities have no place in the weak form."""
        del t, q, u
        if system.defines("q_dot"):
            return "it is derived for q_dot = u, and this system defines its own q_dot; use SymmetricMoreau() or Moreau()"
        return None
