"""Lobatto IIIA-IIIB schemes with bilateral constraints, contact and friction (Capobianco et al. 2024, abbreviated C24).

Invariant: the stage velocities V^i, the stage percussions R^i (i = 1..s) and the velocity at the end of a step obey

    Q^i = q_n + dt sum_j a_ij q_dot(t^j, Q^j, V^j),   q_{n+1} = Q^s,   F^j = dt b(t^j, Q^j, V^j) + W(t^j, Q^j) R^j
    p(t^i, Q^i, V^i) = p(t_n, q_n, u_n) + sum_j a_hat_ij F^j                                                          (47)
    p(t_{n+1}, q_{n+1}, u_{n+1}) = p(t_n, q_n, u_n) + sum_j b_j F^j                                                   (47)
    g(t^i, Q^i) = 0,   gamma(t^i, Q^i, V^i) = 0,   i = 2..s                                                           (50), (51)
    0 <= R_N^{i-1}  _|_  g_N(t^i, Q^i) >= 0,   -gamma_F(t^i, Q^i, V^i) normal to the disc mu R_N^{i-1} at R_F^{i-1}      (52), (57)
    dg/dt = 0,   gamma = 0,   and the impact law with Delta P = sum_j b_j R^j, all at (t_{n+1}, q_{n+1}, u_{n+1})     (50)-(59)

For bodies that float p stands for ``T^T p`` of `System.about_center`, F and W for ``T^T F + dt (dT/dt)^T p`` and ``T^T W``: the equations
in velocities of which some are of centres of mass. The unknowns are the system's own.

Because of ``a_hat_is = 0`` the last percussion R^s does not enter the stages. So a step is solved in two parts, one after the other:
the *stages* with R^1..R^{s-1}, by Newton's method; then the *end*, a linear problem on velocity level for u_{n+1} and Delta P.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ...contact import AbstractContactSolver
from ...mechanics import laws
from ...mechanics.system import System
from ...numerics import butcher
from ...numerics.newton import storing_solutions
from .. import base
from ..base import Info, Percussions, Scheme
from .end import finish
from .equations import Arguments, Stages
from .solution import guess, solve


class LobattoState(NamedTuple):
    """State at a node, with what was found in the step that ended there: stage velocities and stage percussions."""

    q: jax.Array
    u: jax.Array
    P: Percussions  # Delta P = sum_j b_j R^j
    V: jax.Array  # (s, n_u)
    R_N: jax.Array  # (s, n_N)
    R_F: jax.Array  # (s, n_N, d)
    R_g: jax.Array  # (s, n_g)
    R_gamma: jax.Array  # (s, n_gamma)


@dataclass(frozen=True)
class Lobatto(Scheme):
    """Lobatto IIIA-IIIB scheme with s = 2 to 5 stages (C24): order ``2 s - 2`` on smooth motion, persistent contact included.

    Gaps and constraints hold on position level at all stages but the first, constraints and the impact law on velocity level at the
    nodes: no penetration, no drift. Symplectic between impacts, the energy stays bounded. Two stages are the RATTLE scheme. Stable for
    steps that resolve the fastest oscillation, frequency times dt below 2 with two stages: stiff systems want an implicit scheme.

    The order is less than ``2 s - 2`` in three cases: one across impacts and stick-slip transitions, as of all schemes that capture
    events; s - 1 with nonholonomic constraints, because (51) asks R^{i-1} for gamma^i; and one with spatial friction while the direction
    of slip turns, because (58) gives the friction of a whole step the direction that slip has at its end. Friction along a line keeps the
    order.

    The order holds with a ``q_dot`` of the system's own. Quaternions are not normalized and need not be: over 1e5 steps of 0.02 s of a body
    that turns at 3.7 rad/s, |p| - 1 stays below 5e-11 with two stages and 4e-10 with three.

    Where bodies float, on a free joint or on `bodies.planar`, the balance (47) is written in momenta about the centre of mass of each tree,
    see `System.about_center`: a thrown tree moves as one at rest, wherever its frame is. About the frame's origin the momentum of the
    throw turns with the body: with a frame 0.3 m beside the centre a box that turns at 9 rad/s was off by 1.5e-2 rad/s after a second with
    three stages and dt = 0.01, now by 1.4e-7.

    A contact that any stage has met takes part in the impact law. C24 (67) asks the last stage only: with four or five stages a contact
    that closes between the nodes can then be missed, and the body hovers before the wall at its full speed. With so
    many stages one that rests at the start of the step takes part, too: the impact of another contact can lift it off at all the
    others, and its percussion be missed.

    Where bodies jam the equations of the stages have solutions as well that throw the bodies out, by large percussions whose directions
    turn within the step. A step whose stages have a hundred times the kinetic energy that there is is NOT_CONVERGED.

    r:  parameter of the proximal point equations (66), (67), (69) of the stages; None (recommended): for each contact the inverse diagonal
        of the Delassus operator. C24 take constants near one, which suit masses near one. The motion does not depend on it.

    ``Solution.auxiliary`` holds, of the step that ends at a node, the stage velocities ``V`` (N + 1, s, n_u) and the stage percussions
    ``R_N, R_F, R_g, R_gamma`` (N + 1, s, ...), in N s; the percussions of the Solution are ``sum_j b_j R^j``.
    """

    stages: int = 3
    r: float | None = None
    auxiliary: ClassVar[tuple[str, ...]] = ("V", "R_N", "R_F", "R_g", "R_gamma")
    position_level: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.stages not in butcher.STAGES:
            raise ValueError(f"Lobatto: stages must be one of {butcher.STAGES}, got {self.stages!r}; the order is 2 stages - 2")
        if self.r is not None and not 0 < self.r < float("inf"):
            raise ValueError(f"Lobatto: r must be a positive number, or None for one from the problem, got {self.r!r}")

    @property
    def order(self) -> int:
        """Order of convergence on smooth motion."""
        return 2 * self.stages - 2

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """Stages have no law of dry friction yet."""
        del t, q, u
        if laws.has_dry_friction(system):
            return "it has no law of dry friction at its stages, and this system says dry_friction; use MoreauJean() or Moreau()"
        return None

    def growth(self, M: np.ndarray, D: np.ndarray, h_q: np.ndarray, h_u: np.ndarray, W: np.ndarray, dt: float) -> np.ndarray:
        """Matrix (2 n_u, 2 n_u) by which a step (47) multiplies small changes of place and velocity, without contacts, at constant M.

        D is a part of -h_u; W (n_u, n_b) are the directions of bilateral constraints.
        """
        del D
        tableau, n = butcher.lobatto(self.stages), len(M)
        of_all, unit, allowed = np.ones((self.stages, 1)), np.eye(n), base.allowed(M, W)
        by_x, by_u = (allowed @ np.linalg.solve(M, x) for x in (h_q, h_u))
        a, a_hat, b = tableau.a, tableau.a_hat, tableau.b[None]
        matrix = np.eye(self.stages * n) - dt * np.kron(a_hat, by_u) - dt**2 * np.kron(a_hat @ a, by_x)
        V = np.linalg.solve(matrix, np.hstack([dt * np.kron(a_hat @ of_all, by_x), np.kron(of_all, unit)]))
        Q = np.hstack([np.kron(of_all, unit), np.zeros_like(V[:, n:])]) + dt * np.kron(a, unit) @ V
        return np.eye(2 * n) + dt * np.vstack([np.kron(b, unit) @ V, np.kron(b, by_x) @ Q + np.kron(b, by_u) @ V])

    def after_the_end(self, auxiliary: dict[str, Any]) -> dict[str, Any]:
        """Stages without percussions."""
        return {name: x if name == "V" else jnp.zeros_like(x) for name, x in auxiliary.items()}

    def init(
        self, system: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[LobattoState, Info]:
        """State at the first node: as given."""
        del dt, settings
        P = base.no_percussions(system, t, q, u)
        R = [jnp.zeros((self.stages, *part.shape), q.dtype) for part in jax.tree.leaves(P)]
        return LobattoState(q, u, P, jnp.tile(u[None, :], (self.stages, 1)), *R), base.nothing_to_solve(q.dtype)

    def step(
        self, system: Any, t: ArrayLike, dt: ArrayLike, state: LobattoState, settings: AbstractContactSolver
    ) -> tuple[LobattoState, Info]:
        """From node n to node n + 1: the stages, then the end."""
        return storing_solutions(lambda *args: self.advance(*args, settings))(system, t, dt, state)

    def advance(
        self, system: Any, t: ArrayLike, dt: ArrayLike, state: LobattoState, settings: AbstractContactSolver
    ) -> tuple[LobattoState, Info]:
        """`step`, of which reverse mode would store everything."""
        system = self.keeping_rows(system, t, dt, state.q)
        args = Arguments(system, t, dt, state.q, state.u)
        n_g, n_gamma = state.P.P_g.shape[0], state.P.P_gamma.shape[0]
        kinds = system.defines("q_dot"), laws.discs(system), system.defines("about_center")
        stages = Stages(self.stages, self.r, state.P.P_F.shape, n_g, n_gamma, *kinds)
        x, F, slack, info = solve(stages, args, guess(stages, args, state), settings)
        q, u, P, R, end = finish(stages, args, x, F, slack, state.P.P_N > 0, settings)
        # The stages keep the length of a quaternion to their order; the motion does not depend on it.
        return LobattoState(system.normalized(q), u, P, x.V, *R), base.total(info, end)
