"""The theta-schemes of Moreau and Jean, Acary (2014), Section 4.1 and (31), with contact and friction on velocity level."""

import dataclasses
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics.linear_system import LinearSystem, combine
from ..mechanics.local import Contacts
from ..mechanics.system import System
from ..numerics.tridiagonal import Tridiagonal
from . import base, velocity
from .base import Info, State
from .closure import closed
from .implicit import ImplicitScheme, ImplicitStep, Prepared
from .positions import moved
from .velocity import pytree


@pytree
class ThetaStep(ImplicitStep):
    """A14 (23) or (31) for systems ``M(t, q) dv/dt = h(t, q, v)``, with h = F - K q - C v."""

    given: Any = field(default=None, kw_only=True)  # (n_u,) what of the balance is of the start of the step; None: it is computed

    def begun(self):
        """With forces, or momenta, of the start of the step."""
        return dataclasses.replace(super().begun(), given=self.of_start())

    def of_start(self):
        """``h_k``, or `lacking` at the start of the step."""
        if self.given is not None:
            return self.given
        if self.system.defines("about_center"):
            return self.lacking(self.t, self.q, self.u_minus, self.dt * (self.scheme.theta - 1))
        return self.system.h(self.t, self.q, self.u_minus)

    def balance(self, u, p=None):
        """A14 (23a): M (v_{k+1} - v_k) - dt [(1 - theta) h_k + theta h_{k+1}] = G P_{k+1}."""
        del p
        if self.system.defines("about_center"):
            return self.balance_about_center(u)
        theta = self.scheme.theta
        forces = (1 - theta) * self.of_start() + theta * self.system.h(self.t + self.dt, self.position(u), u)
        return self.prepared.mass_times(*self.inertia(), self.u_minus, u - self.u_minus) - self.dt * forces

    def balance_about_center(self, u):
        """(23a) for bodies that float, in momenta about the centre of mass of each tree, see `System.about_center`:

            T^T p at k + 1 less that at k  -  dt [(1 - theta) F_k + theta F_{k+1}] = T^T G P_{k+1},     F = T^T b + (dT/dt)^T p

        times ``T^-T`` at the contacts. Of a single body ``T^T p`` is a constant matrix times velocities, that of its centre one of them,
        where M turns with the body if its frame is away from the centre.
        """
        at_end = self.lacking(self.t + self.dt, self.position(u), u, self.dt * self.scheme.theta)
        gained = at_end - self.of_start()
        return 2 * gained - self.system.about_center(*self.place(), gained)

    def lacking(self, t, q, u, dt):
        """The momentum about the centre, less what the forces add in a time dt."""
        seen = self.system.seen_at(t, q)
        p = seen.momentum(t, q, u)
        return seen.about_center(t, q, p - dt * seen.b(t, q, u)) - dt * seen.about_center_rate(t, q, u, p)

    def inertia(self):
        """``(t, q)`` of the mass matrix: the start of the step, or the predicted middle."""
        if not self.scheme.midpoint_mass:
            return self.t, self.q
        half = 0.5 * self.dt
        return self.t + half, self.q + half * self.system.q_dot(self.t, self.q, self.u_minus)

    def position(self, u):
        """q_{k+1}, A14 (23b) or (31b); with a q_dot of the system's own by the midpoint rule."""
        weight = self.scheme.weight
        return moved(self.system, self.t, self.dt, self.q, (1 - weight) * self.u_minus + weight * u)

    def worked_on(self, u):
        """v_{k+theta}, A14 (35); of the variant the mean, A14 (92)."""
        weight = self.scheme.weight
        return (1 - weight) * self.u_minus + weight * u


@dataclass(frozen=True)
class ThetaScheme(ImplicitScheme):
    """What `MoreauJean` and its variant share; they differ in the weight of the new velocity in the update of q."""

    theta: float = 0.5
    midpoint_mass: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.theta <= 1:
            raise ValueError(f"{self.name}: theta must lie in [0, 1], got {self.theta!r}")
        if self.theta < 0.5:
            warnings.warn(
                f"{self.name}(theta={self.theta}) creates energy: its dissipation needs theta >= 1/2 (Acary 2014, {self._theorem})",
                stacklevel=3,
            )

    _theorem: ClassVar[str]

    @property
    def order(self) -> int:
        """Order on smooth motion: 2 for theta = 1/2, else 1; see `order_note`."""
        return 2 if self.theta == 0.5 else 1

    @property
    def order_note(self) -> str:
        """M of the start of a step is a first-order approximation where it depends on q."""
        if self.order == 1:
            return ""
        return "1 with bilateral constraints" if self.midpoint_mass else "1 where M depends on q, and with bilateral constraints"

    @property
    def weight(self) -> float:
        """Weight of the new velocity in the update of q."""
        raise NotImplementedError

    def iteration_matrix(self, system: LinearSystem, dt: ArrayLike) -> jax.Array | Tridiagonal:
        """M + dt theta C + dt^2 theta weight K."""
        return combine((1.0, system.mass), (dt * self.theta, system.C), (dt * dt * self.theta * self.weight, system.K))

    def init(
        self, prepared: Prepared, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[State, Info]:
        """The initial state, as it is."""
        del dt, settings
        return State(q, u, base.no_percussions(prepared.system, t, q, u)), base.nothing_to_solve(q.dtype)

    def between(self, system: System, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, q_plus: jax.Array) -> ThetaStep:
        """The step from the node."""
        del q_plus
        return ThetaStep(Prepared(system), t, dt, q, u, self)

    def step(self, prepared: Prepared, t: ArrayLike, dt: ArrayLike, state: State, settings: AbstractContactSolver) -> tuple[State, Info]:
        """From node k to node k + 1; the percussions act in between."""
        prepared = self.keeping_rows(prepared, t, dt, state.q)
        step = ThetaStep(prepared, t, dt, state.q, state.u, self).begun()
        u, P, info = velocity.solve(step, state.u, state.P, settings)
        return State(closed(prepared.system, t + dt, step.position(u), u, P), u, P), info


@dataclass(frozen=True)
class MoreauJean(ThetaScheme):
    """Moreau-Jean scheme (Jean's modified theta-method), A14 (23), for 0 <= theta <= 1.

        M (v_{k+1} - v_k) + dt K q_{k+theta} + dt C v_{k+theta} - dt F_{k+theta} = G P_{k+1},     q_{k+1} = q_k + dt v_{k+theta}

    For nonlinear systems ``h(t, q, u)`` stands for ``F - K q - C v``, and M is taken at the start of the step, as Capobianco &
    Eugster (2018) do for the spring pendulum; with ``midpoint_mass`` in its middle, at ``q_k + dt/2 v_k``. ``P[k]`` of the solution acts
    between ``t[k]`` and ``t[k + 1]``, and ``u[k]`` is the velocity at ``t[k]``.

    Where bodies float, on a free joint or on `bodies.planar`, the balance is written in momenta about the centre of mass of each tree, see
    `System.about_center`, and ``midpoint_mass`` says nothing: it is of second order, keeps the momentum of a throw, and does not depend on
    where the frames are. With M of the start a box that turns at 9 rad/s with its frame 0.02 m beside the centre was off by 0.45 rad/s
    after a second with dt = 5e-3, now by 3.5e-4, as with its frame there.

    Dissipates energy for 1/2 <= theta <= 1/(1 + e), A14 Proposition 1; theta = 1/2 keeps it where nothing hits and nothing is damped, and
    is of second order: where M depends on q, and no body floats, only with ``midpoint_mass``, with bilateral constraints never. Values
    outside are accepted with a warning. `energy.balance` checks A14 (35) on a solution.

    Raises ValueError for theta outside [0, 1]. The activity rule is that of `ImplicitScheme`.
    """

    _theorem: ClassVar[str] = "Proposition 1"

    @property
    def weight(self) -> float:
        """theta."""
        return self.theta

    def advise(self, system: System, t: ArrayLike, q: jax.Array) -> str | None:
        """Warning where theta and the restitution are outside of Proposition 1."""
        e = jnp.max(Contacts(system).data(t, q).e_N, initial=0.0)
        bound = 1 / (1 + float(e))
        if self.theta > max(bound, 0.5) * (1 + 1e-12):
            return (
                f"MoreauJean(theta={self.theta}) may create energy at impacts: with e_N = {float(e):.4g} its dissipation needs "
                f"1/2 <= theta <= 1/(1 + e) = {bound:.4g} (Acary 2014, Proposition 1); MoreauJeanVariant has no such bound"
            )
        return None


@dataclass(frozen=True)
class MoreauJeanVariant(ThetaScheme):
    """The variant of the Moreau-Jean scheme, A14 (31): the Newmark scheme with 2 beta = gamma = theta.

        M (v_{k+1} - v_k) + dt K q_{k+theta} + dt C v_{k+theta} - dt F_{k+theta} = G P_{k+1},     q_{k+1} = q_k + dt v_{k+1/2}

    Dissipates energy for every theta >= 1/2, whatever the restitution, A14 (92): the scheme to take where numerical damping is wanted.
    The rest is as in `MoreauJean`. Raises ValueError for theta outside [0, 1].
    """

    _theorem: ClassVar[str] = "Corollary 1"

    @property
    def weight(self) -> float:
        """One half."""
        return 0.5
