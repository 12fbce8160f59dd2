"""The equations of a periodic orbit: one arc of the motion that returns to its start.

Invariant: with the state z = (q, u) at t0, the period T and a parameter lam, the orbit makes

    F(z, T, lam) = [ R(t0 + T, phi(t0 + T; t0, z, lam)) - z ;  phase ]  = 0

vanish, phi being the simulated motion, R what the motion is periodic up to (by default nothing), and the phase ``T - T(lam)`` of forced
motion, or ``s(t0, q, u)`` of the section on which an autonomous motion starts (Seydel, Practical Bifurcation and Stability Analysis,
2010, ch. 7). Derivatives are those of the motion as simulated, in forward mode, through the times of its impacts.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..programs.derivatives import is_float
from ..simulation.simulate import simulate


def shifted(system, direction, amount):
    """The system whose parameters are moved by ``amount`` times ``direction``, a system of the same structure."""
    return jax.tree.map(lambda x, d: x + amount * d if is_float(x) else x, system, direction)


def kinematics(system, t, q, u):
    """B of ``q_dot = B u + beta`` (n_q, n_u)."""
    return jax.jacfwd(lambda u: system.q_dot(t, q, u))(u)


def of_system(function, n):
    """``function(system, *args)`` of a function of n arguments, or of one more, the system, before them."""
    parameters = inspect.signature(function).parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return function if len(places) > n else lambda system, *args: function(*args)


def takes_system(function, arguments):
    """Whether a function takes these arguments, or the system before them."""
    try:
        inspect.signature(function).bind("system", *arguments.split(", "))
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Shooting:
    """What a period map is made of, beside numbers: constants of a compiled program.

    ``period``, ``section`` and ``reset`` are functions or None, as in `periodic`.
    """

    scheme: Any
    n_steps: int
    n_q: int
    period: Callable[..., Any] | None
    section: Callable[..., Any] | None
    reset: Callable[..., Any] | None
    solver: Any
    arcs: int = 1  # of more than one, see `jaxnsd.orbits.arcs`, what is here is the motion of one

    def move(self, system, v, t0):
        """``(z_end, solution)`` of the arc that starts with v = (z, T, lam), after the reset; the parameters are those of ``system``."""
        q, u, T = v[: self.n_q], v[self.n_q : -2], v[-2]
        sol = simulate(system, self.scheme, q, u, t1=t0 + T, t0=t0, n_steps=self.n_steps, solver=self.solver)
        return self.after_reset(system, t0 + T, sol.q[-1], sol.u[-1]), sol

    def after_reset(self, system, t, q, u):
        """State (n_q + n_u,) after the reset."""
        if self.reset is not None:
            q, u = of_system(self.reset, 3)(system, t, q, u)
        return jnp.concatenate([q, u])

    def on_section(self, system, t, q, u):
        """Value of the section, a scalar."""
        return jnp.reshape(of_system(self.section, 3)(system, t, q, u), ())

    def frames(self, system, t0, v):
        """``(L (m + 1, n + 1), R (n + 2, m + 2))``, m = 2 n_u, which make ``L J R`` of a Jacobian J (n + 1, n + 2) of the equations.

        That is J in steps y of velocities, by which coordinates move by ``B y``, B being that of ``q_dot = B u + beta``. What coordinates
        do at right angles to these, as the length of a quaternion, is no motion. Both are 1 where n_q = n_u.
        """
        n_u = len(v) - 2 - self.n_q
        B = kinematics(system, t0, v[: self.n_q], v[self.n_q : -2]) if n_u != self.n_q else jnp.eye(n_u, dtype=v.dtype)
        others = jnp.eye(n_u + 2, dtype=v.dtype)
        block = jax.scipy.linalg.block_diag
        return block(jnp.linalg.pinv(B) if n_u != self.n_q else B, others[1:, 1:]), block(B, others)

    def still(self, system, t0, v):
        """Steps of v at right angles to those that velocities make, (n_q - n_u, n + 2): that of the length of a quaternion."""
        n_u = len(v) - 2 - self.n_q
        if n_u == self.n_q:
            return jnp.zeros((0, len(v)), v.dtype)
        B = kinematics(system, t0, v[: self.n_q], v[self.n_q : -2])
        return jnp.pad(jnp.linalg.svd(B)[0][:, n_u:].T, ((0, 0), (0, len(v) - self.n_q)))

    def normalized(self, system, v):
        """v with coordinates that mean the same, quaternions of length one."""
        return jnp.concatenate([system.normalized(v[: self.n_q]), v[self.n_q :]])

    def equations(self, system, direction, v, t0, T):
        """``(F, solution)``; ``T`` is the period of forced motion where that is a number."""
        system = shifted(system, direction, v[-1])
        end, sol = self.move(system, v, t0)
        return jnp.concatenate([end - v[:-2], self.phase(system, v[:-2], v[-2], t0, T)[None]]), sol

    def phase(self, system, z, period, t0, T):
        """What fixes the period of an orbit that starts in z, or its start: a scalar that vanishes."""
        if self.section is not None:
            return self.on_section(system, t0, z[: self.n_q], z[self.n_q :])
        return period - (T if self.period is None else jnp.reshape(self.period(system), ()))

    def linearized(self, system, direction, v, t0, T):
        """``(F (n + 1,), its Jacobian by v (n + 1, n + 2), solution)``."""

        def of(v):
            F, sol = self.equations(system, direction, v, t0, T)
            return F, (F, sol)

        J, (F, sol) = jax.jacfwd(of, has_aux=True)(v)
        return F, J, sol
