"""The nonsmooth alpha-schemes, Acary (2014), Section 4.2 and 4.3: generalized-alpha, Newmark, HHT and Krenk-Hogsberg."""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics.linear_system import LinearSystem, combine, product
from ..mechanics.system import System
from ..numerics.tridiagonal import Tridiagonal
from . import base, velocity
from .base import Info
from .closure import closed
from .implicit import ImplicitScheme, ImplicitStep, Prepared, is_linear
from .velocity import pytree

#: Rounds in which the mass matrix at the new node follows the velocity jump. Each gains the relative change of M over a small part of what
#: the jump moves in a step: 1e-4 to 1e-6 with the parameters that a spectral radius gives, 1e-2 with the most remote ones.
ROUNDS = 4


class Coefficients(NamedTuple):
    """The four parameters of an alpha-scheme."""

    alpha_m: float
    alpha_f: float
    beta: float
    gamma: float

    @property
    def nu(self):
        """nu = 1/2 - alpha_m, A14 (57): time constant of the filter, in steps."""
        return 0.5 - self.alpha_m

    @property
    def eta(self):
        """eta = alpha_f - alpha_m, A14 (57): strength of the filter."""
        return self.alpha_f - self.alpha_m


class AlphaState(NamedTuple):
    """State of an alpha-scheme: beside q, u and P the algorithmic acceleration a, and the one of the equations of motion."""

    q: jax.Array
    u: jax.Array
    P: base.Percussions
    a: jax.Array
    a_tilde: jax.Array


class KrenkState(NamedTuple):
    """State of the Krenk-Hogsberg scheme."""

    q: jax.Array
    u: jax.Array
    P: base.Percussions
    a: jax.Array


@pytree
class UpdateStep(ImplicitStep):
    """The updates of A14 (27), written for the velocity at the end of the step as the unknown."""

    a: Any  # algorithmic acceleration a_k

    def smooth_jump(self, u):
        """``v_{k+1} - v_k - dt (1 - gamma) a_k = dt gamma a_{k+1} + w``, A14 (27i), (27j)."""
        return u - self.u_minus - self.dt * (1 - self.scheme.coefficients.gamma) * self.a

    def position(self, u, w=None):
        """q_{k+1}, A14 (27h), (27k), with a_{k+1} expressed by the velocity; w None: no velocity jump, or one that does not enter."""
        _, _, beta, gamma = self.scheme.coefficients
        dt = self.dt
        q = self.q + dt * self.u_minus + dt * dt * (0.5 - beta) * self.a + dt * beta / gamma * self.smooth_jump(u)
        return q if w is None else q + dt * self.scheme.position_jump * w

    def displaced(self, u, p):
        """q_{k+1} with the velocity jump of the impulse p: ``M(t_{k+1}, q_{k+1}) w = p``."""
        if p is None or not self.scheme.position_jump:
            return self.position(u)
        solve = functools.partial(self.prepared.mass_solve, self.t + self.dt)
        if self.linear:
            return self.position(u, solve(self.q, self.u_minus, p))
        # A contraction: w moves q_{k+1} by a part of dt w, and only so far as M depends on q does that change w.
        return lax.fori_loop(0, ROUNDS, lambda _, q: self.position(u, solve(q, self.u_minus, p)), self.position(u))

    def effect(self, u):
        """The velocity jump w moves q_{k+1} beyond what the velocity tells, and with it the forces; see `AlphaScheme.position_jump`."""
        if not self.scheme.position_jump:
            return None
        if self.linear:
            return self.scheme.effect(self.prepared, self.dt)

        def apply(x):
            def change(column):
                return jax.jvp(lambda p: self.balance(u, p), (jnp.zeros_like(u),), (column,))[1]

            return x - (change(x) if x.ndim == 1 else jax.vmap(change, in_axes=1, out_axes=1)(x))

        return apply


@pytree
class AlphaStep(UpdateStep):
    """A14 (27)."""

    a_tilde: Any  # acceleration of the equations of motion

    def balance(self, u, p=None):
        """A14 (27a), (27g) times s = dt gamma / (1 - alpha_m).

        (1 - alpha_m) a_{k+1} + alpha_m a_k = (1 - alpha_f) M^-1 h_{k+1} + alpha_f a_tilde_k
        """
        alpha_m, alpha_f, _, gamma = self.scheme.coefficients
        t, q = self.t + self.dt, self.displaced(u, p)
        s = self.dt * gamma / (1 - alpha_m)
        gained = self.smooth_jump(u) + s * (alpha_m * self.a - alpha_f * self.a_tilde)
        return self.prepared.mass_times(t, q, self.u_minus, gained) - s * (1 - alpha_f) * self.system.h(t, q, u)


@pytree
class KrenkStep(UpdateStep):
    """A14 (32) with the updates of (27)."""

    def balance(self, u, p=None):
        """A14 (32) times s = dt gamma / (1 - alpha_m), with M a_{k+1} from the update of the velocity."""
        alpha_m, alpha_f, _, gamma = self.scheme.coefficients
        system, t, dt = self.system, self.t, self.dt
        q = self.displaced(u, p)
        s = dt * gamma / (1 - alpha_m)
        weighted = (1 - alpha_m) * system.force(t + dt, q, u) + alpha_m * system.force(t, self.q, self.u_minus)
        elastic = product(system.K, (1 - alpha_f) * q + alpha_f * self.q)
        return self.prepared.mass_times(t, q, u, self.smooth_jump(u) + s * alpha_m * self.a) - s * (weighted - elastic)


@dataclass(frozen=True)
class AlphaScheme(ImplicitScheme):
    """What the alpha-schemes share: A14 (27), written for the velocity at the end of the step as the unknown."""

    auxiliary: ClassVar[tuple[str, ...]] = ("a",)
    _step: ClassVar[Any] = AlphaStep

    def __post_init__(self):
        super().__post_init__()
        alpha_m, alpha_f, beta, gamma = c = self.coefficients
        for name, value in c._asdict().items():
            if not math.isfinite(value):
                raise ValueError(f"{self.name}: {name} must be finite, got {value!r}")
        if alpha_m >= 1 or alpha_f >= 1 or gamma <= 0 or beta < 0:
            raise ValueError(
                f"{self.name}: alpha_m < 1, alpha_f < 1, gamma > 0 and beta >= 0 are needed, or the iteration matrix is singular; got "
                f"alpha_m = {alpha_m:.6g}, alpha_f = {alpha_f:.6g}, gamma = {gamma:.6g}, beta = {beta:.6g}"
            )
        for sentence in self._outside(c):
            warnings.warn(f"{self!r}: {sentence}", stacklevel=3)

    @property
    def coefficients(self) -> Coefficients:
        """The four parameters, as `Coefficients`."""
        raise NotImplementedError

    def _outside(self, c):
        """Sentences on the theorems that do not hold with these parameters."""
        if not _second_order(c):
            yield f"first order only: the second needs gamma = 1/2 + alpha_f - alpha_m = {0.5 + c.eta:.6g} (Acary 2014, (28))"

    @property
    def order_note(self) -> str:
        """Constraints hold at the end of a step."""
        return "1 with bilateral constraints" if self.order == 2 else ""

    @property
    def order(self) -> int:
        """Order on smooth motion: 2 where gamma = 1/2 + alpha_f - alpha_m, A14 (28), else 1."""
        return 2 if _second_order(self.coefficients) else 1

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """Accelerations add up to coordinates only where q_dot = u."""
        del t, q, u
        if system.defines("q_dot"):
            return "it is derived for q_dot = u, and this system defines its own q_dot; use SymmetricMoreau(), MoreauJean() or Lobatto()"
        return None

    # ----------------------------------------------------------------------------------------------- the momentum balance
    def iteration_matrix(self, system: LinearSystem, dt: ArrayLike) -> jax.Array | Tridiagonal:
        """M + s (1 - alpha_f) (C + dt beta / gamma K) with s = dt gamma / (1 - alpha_m)."""
        alpha_m, alpha_f, beta, gamma = self.coefficients
        s = dt * gamma * (1 - alpha_f) / (1 - alpha_m)
        return combine((1.0, system.mass), (s, system.C), (s * dt * beta / gamma, system.K))

    @property
    def position_jump(self) -> float:
        """dq_{k+1} / (dt dw) at a given velocity: zero for 2 beta = gamma."""
        _, _, beta, gamma = self.coefficients
        return 0.5 - beta / gamma

    def effect(self, prepared: Prepared, dt: ArrayLike) -> Callable[[jax.Array], jax.Array] | None:
        """The velocity jump w moves q_{k+1} beyond what the velocity tells, and with it the elastic force."""
        alpha_m, alpha_f, _, gamma = self.coefficients
        factor = dt * gamma * (1 - alpha_f) / (1 - alpha_m) * dt * self.position_jump
        if self.position_jump == 0:
            return None
        return lambda W: W - factor * product(prepared.system.K, prepared.mass.solve(W))

    # ------------------------------------------------------------------------------------------------------- init, step
    def init(
        self, prepared: Prepared, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[Any, Info]:
        """Both accelerations start as those of the equations of motion without contact."""
        del dt, settings
        a = prepared.mass_solve(t, q, u, prepared.system.h(t, q, u))
        return AlphaState(q, u, base.no_percussions(prepared.system, t, q, u), a, a), base.nothing_to_solve(q.dtype)

    def between(self, system: System, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, q_plus: jax.Array) -> UpdateStep:
        """The step from the node."""
        del q_plus
        return UpdateStep(Prepared(system), t, dt, q, u, self, None)

    def step(self, prepared: Prepared, t: ArrayLike, dt: ArrayLike, state: Any, settings: AbstractContactSolver) -> tuple[Any, Info]:
        """From node k to node k + 1; the percussions act in between."""
        prepared = self.keeping_rows(prepared, t, dt, state.q)
        step = self._step(prepared, t, dt, state.q, state.u, self, *state[3:]).begun()
        u, P, info = velocity.solve(step, state.u, state.P, settings)
        kin = step.kinematics()
        if prepared.linear:
            q = step.position(u, prepared.velocity_jump(t, step, state.q, u, kin, P))
        else:
            q = step.displaced(u, step.impulse(kin, P))
        q = closed(prepared.system, t + dt, q, u, P)
        a = (step.smooth_jump(u) - prepared.velocity_jump(t + dt, step, q, u, kin, P)) / (dt * self.coefficients.gamma)
        return self._next(state, q, u, P, a), info

    def shifted(self, prepared: Prepared, t: ArrayLike, state: Any, tangent: Any, dq: jax.Array, du: jax.Array) -> Any:
        """The accelerations move with the state they belong to."""

        def acceleration(q, u):
            return prepared.mass_solve(t, q, u, prepared.system.h(t, q, u))

        change = jax.jvp(acceleration, (state.q, state.u), (dq, du))[1]
        accelerations = {name: getattr(tangent, name) + change for name in state._fields[3:]}
        return super().shifted(prepared, t, state, tangent, dq, du)._replace(**accelerations)

    def _next(self, state, q, u, P, a):
        alpha_m, alpha_f, _, _ = self.coefficients
        a_tilde = ((1 - alpha_m) * a + alpha_m * state.a - alpha_f * state.a_tilde) / (1 - alpha_f)
        return AlphaState(q, u, P, a, a_tilde)


#: Spectral radius at infinity where none is given: light damping of the highest frequencies only.
DEFAULT_RADIUS = 0.8


def _second_order(c):
    return abs(c.gamma - 0.5 - c.eta) < 1e-12


def _from_radius(rho):
    """Optimal parameters of a spectral radius at infinity, A14 (29) (Chung & Hulbert 1993)."""
    alpha_m, alpha_f = (2 * rho - 1) / (rho + 1), rho / (rho + 1)
    gamma = 0.5 + alpha_f - alpha_m
    return Coefficients(alpha_m, alpha_f, 0.25 * (gamma + 0.5) ** 2, gamma)


@dataclass(frozen=True)
class _Optimal(AlphaScheme):
    """Schemes that are given their spectral radius at infinity, or all four parameters, or nothing."""

    rho_inf: float | None = None
    alpha_m: float | None = None
    alpha_f: float | None = None
    beta: float | None = None
    gamma: float | None = None

    @property
    def coefficients(self) -> Coefficients:
        """Those given, or those of rho_inf."""
        given = (self.alpha_m, self.alpha_f, self.beta, self.gamma)
        if self.rho_inf is None and None not in given:
            return Coefficients(*given)
        if given != (None,) * 4:
            raise ValueError(
                f"{self.name}: give either rho_inf, or all of alpha_m, alpha_f, beta and gamma; got rho_inf = {self.rho_inf!r} "
                f"and {given!r}"
            )
        rho_inf = DEFAULT_RADIUS if self.rho_inf is None else self.rho_inf
        if not 0 <= rho_inf <= 1:
            raise ValueError(f"{self.name}: rho_inf must lie in [0, 1], got {rho_inf!r}; it is the spectral radius at infinity")
        return _from_radius(rho_inf)


@dataclass(frozen=True)
class Newmark(AlphaScheme):
    """Nonsmooth Newmark scheme, A14 (27) with alpha_m = alpha_f = 0 (Chen, Acary, Virlez & Bruls 2013).

    Dissipates the algorithmic energy for 2 beta >= gamma >= 1/2, whatever the restitution, A14 Proposition 4; second order for gamma = 1/2.
    Parameters outside are accepted with a warning. Stores ``auxiliary["a"]`` (N + 1, n_u), the algorithmic acceleration, without impacts.

    Raises ValueError for gamma <= 0 or beta < 0.
    """

    beta: float = 0.25
    gamma: float = 0.5

    @property
    def coefficients(self) -> Coefficients:
        """alpha_m = alpha_f = 0."""
        return Coefficients(0.0, 0.0, self.beta, self.gamma)

    def _outside(self, c):
        yield from super()._outside(c)
        if not 2 * c.beta >= c.gamma - 1e-12 >= 0.5 - 2e-12:
            yield "may create energy: its dissipation needs 2 beta >= gamma >= 1/2 (Acary 2014, Proposition 4)"


@dataclass(frozen=True)
class HHT(AlphaScheme):
    """Nonsmooth HHT scheme (Hilber, Hughes & Taylor), A14 (77): alpha_m = 0, alpha_f = alpha.

    By default gamma = 1/2 + alpha and beta = (1 + alpha)^2 / 4. Dissipates the algorithmic energy for 2 beta >= gamma >= 1/2 and
    0 <= alpha <= gamma - 1/2 <= 1/2, A14 Proposition 3; high frequencies are damped most near alpha = 1/3. Parameters outside are
    accepted with a warning. Stores ``auxiliary["a"]``. Raises ValueError for parameters that make the iteration matrix singular.
    """

    alpha: float = 0.05
    beta: float | None = None
    gamma: float | None = None

    @property
    def coefficients(self) -> Coefficients:
        """alpha_m = 0, alpha_f = alpha."""
        gamma = 0.5 + self.alpha if self.gamma is None else self.gamma
        return Coefficients(0.0, self.alpha, 0.25 * (gamma + 0.5) ** 2 if self.beta is None else self.beta, gamma)

    def _outside(self, c):
        yield from super()._outside(c)
        slack = 1e-12
        if not (2 * c.beta >= c.gamma - slack and -slack <= c.alpha_f <= c.gamma - 0.5 + slack <= 0.5 + 2 * slack):
            yield (
                "may create energy: its dissipation needs 2 beta >= gamma >= 1/2 and 0 <= alpha <= gamma - 1/2 <= 1/2 "
                "(Acary 2014, Proposition 3)"
            )


@dataclass(frozen=True)
class GeneralizedAlpha(_Optimal):
    """Nonsmooth generalized-alpha scheme, A14 (27) (Chung & Hulbert 1993; Bruls, Acary & Cardona 2014).

        M a~_{k+1} + K q_{k+1} + C v_{k+1} = F_{k+1},     M w = G P
        (1 - alpha_m) a_{k+1} + alpha_m a_k = (1 - alpha_f) a~_{k+1} + alpha_f a~_k
        v_{k+1} = v_k + dt (1 - gamma) a_k + dt gamma a_{k+1} + w
        q_{k+1} = q_k + dt v_k + dt^2 (1/2 - beta) a_k + dt^2 beta a_{k+1} + dt w / 2

    Give ``rho_inf`` in [0, 1], the spectral radius at infinity (1: no numerical damping, 0: the highest frequencies are gone in a
    step; default 0.8), or all four parameters. For nonlinear systems ``M(t, q)`` and ``h(t, q, u)`` at the new node take the place of M and
    F - K q - C v. There is no theorem on its energy with external forces and damping (A14, Section 6.1); `energy.balance` checks A14 (69).

    Parameters without second order (28), or without unconditional stability (alpha_m <= alpha_f <= 1/2,
    beta >= 1/4 + (alpha_f - alpha_m) / 2, Chung & Hulbert 1993), are accepted with a warning. Stores ``auxiliary["a"]``. Raises
    ValueError for parameters that contradict each other or make the iteration matrix singular.
    """

    def _outside(self, c):
        yield from super()._outside(c)
        slack = 1e-12
        if not (c.alpha_m <= c.alpha_f + slack <= 0.5 + 2 * slack and c.beta >= 0.25 + 0.5 * c.eta - slack):
            yield (
                "not unconditionally stable: that needs alpha_m <= alpha_f <= 1/2 and beta >= 1/4 + (alpha_f - alpha_m) / 2 "
                "(Chung & Hulbert 1993)"
            )


@dataclass(frozen=True)
class KrenkHogsberg(_Optimal):
    """Nonsmooth Krenk-Hogsberg scheme, A14 (32) with the sign of F_k put right: the weights of the inertia hold for C v - F as well.

        (1 - alpha_m) [M a_{k+1} + C v_{k+1} - F_{k+1}] + alpha_m [M a_k + C v_k - F_k] = -(1 - alpha_f) K q_{k+1} - alpha_f K q_k

    Updates as in `GeneralizedAlpha`. Dissipates the algorithmic energy, with damping and external forces, for 2 beta >= gamma >= 1/2
    and 0 <= alpha_f - alpha_m <= gamma - 1/2 <= 1/2 - alpha_m, A14 Proposition 2, which the parameters of every ``rho_inf`` obey.
    Second order where nothing is damped and F is constant, else first, unless alpha_f = alpha_m.

    It needs the split into K q and the rest: linear systems only. Raises ValueError as `GeneralizedAlpha` does.
    """

    _step: ClassVar[Any] = KrenkStep

    @property
    def order(self) -> int:
        """2 if alpha_f = alpha_m and gamma = 1/2, else 1 (2 where nothing is damped and F is constant)."""
        c = self.coefficients
        return 2 if _second_order(c) and abs(c.eta) < 1e-12 else 1

    def _outside(self, c):
        yield from super()._outside(c)
        slack = 1e-12
        inside = 2 * c.beta >= c.gamma - slack and c.gamma >= 0.5 - slack
        if not (inside and -slack <= c.eta <= c.gamma - 0.5 + slack <= c.nu + 2 * slack):
            yield (
                "may create energy: its dissipation needs 2 beta >= gamma >= 1/2 and "
                "0 <= alpha_f - alpha_m <= gamma - 1/2 <= 1/2 - alpha_m (Acary 2014, Proposition 2)"
            )

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """Only a linear system says which force is K q."""
        if not is_linear(system):
            return "it weighs K q and the other forces differently and takes a LinearSystem only; use GeneralizedAlpha(...) instead"
        return super().refuse(system, t, q, u)

    def iteration_matrix(self, system: LinearSystem, dt: ArrayLike) -> jax.Array | Tridiagonal:
        """M + dt gamma C + dt^2 beta (1 - alpha_f) / (1 - alpha_m) K."""
        alpha_m, alpha_f, beta, gamma = self.coefficients
        return combine((1.0, system.mass), (dt * gamma, system.C), (dt * dt * beta * (1 - alpha_f) / (1 - alpha_m), system.K))

    def init(
        self, prepared: Prepared, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[Any, Info]:
        """The acceleration starts as that of the equations of motion without contact."""
        state, info = super().init(prepared, t, dt, q, u, settings)
        return KrenkState(*state[:4]), info

    def _next(self, state, q, u, P, a):
        return KrenkState(q, u, P, a)
