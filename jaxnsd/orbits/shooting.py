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

    def equations(self, system, direction, v, t0, T):
        """``(F, solution)``; ``T`` is the period of forced motion where that is a number."""
        system = shifted(system, direction, v[-1])
        end, sol = self.move(system, v, t0)
        if self.section is not None:
            phase = self.on_section(system, t0, v[: self.n_q], v[self.n_q : -2])
        else:
            phase = v[-2] - (T if self.period is None else jnp.reshape(self.period(system), ()))
        return jnp.concatenate([end - v[:-2], phase[None]]), sol

    def linearized(self, system, direction, v, t0, T):
        """``(F (n + 1,), its Jacobian by v (n + 1, n + 2), solution)``."""

        def of(v):
            F, sol = self.equations(system, direction, v, t0, T)
            return F, (F, sol)

        J, (F, sol) = jax.jacfwd(of, has_aux=True)(v)
        return F, J, sol

    def curvature(self, system, direction, v, t0, T, along):
        """``(J, D J[along])``, both (n + 1, n + 2): the Jacobian by v, and its derivative along a direction of v."""

        def of(v):
            F, push = jax.jvp(lambda v: self.equations(system, direction, v, t0, T)[0], (v,), (along,))
            return F, push

        return jax.jacfwd(of)(v)
