"""The three Moreau-type schemes of Capobianco & Eugster (2018), Section 4.

All step ``q_{k+1} = q_k + dt q_dot(t_k, q_k, u_k)``, where ``u_k`` is the velocity on (t_k, t_{k+1}), and treat contact at the nodes:
contacts with ``g_N(t_k, q_k) <= 0`` are active, and ``xi`` is formed with both velocities at (t_k, q_k), (56). The percussion P_k acts
at t_k. The schemes differ in their momentum balance; they coincide where M is constant and no force depends on the velocity (from
the same u_1: Moreau's first step sets it to the initial velocity, the others' to what half a step of force makes of it).

A contact is active by the exact test of the paper: one that rests at gap zero to round-off may open and close in turn, with percussions
that are right in the sum only. A start that touches is better a round-off inside the contact than on it.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax

from . import base
from .base import Scheme, State


@dataclass(frozen=True)
class _MoreauType(Scheme):
    def _velocity(self, first, system, t, dt, q, u_minus, guess, settings):
        """Velocity leaving the node (t, q) and the percussions there, from the velocity that arrives."""
        d = guess.P_F.shape[1]

        def contacts(args):
            system, t, _, q, u_minus = args
            return base.impact_law(system, t, q, u_minus, d)

        def friction(args):
            system, t, _, q, _ = args
            return system.contact_data(t, q)[2]

        def active(args):
            system, t, _, q, _ = args
            return system.gap(t, q) <= 0

        balance, jacobian = (self._first_balance, None) if first else (self._balance, self._jacobian)
        problem = base.VelocityProblem(
            balance,
            jacobian or jax.jacfwd(balance, argnums=1),
            contacts,
            friction,
            active,
            self._linear,
            resolution=lambda args: base.resolution(args[3], args[2], args[4].shape[0]),
        )
        return base.solve_velocity(problem, (system, t, dt, q, u_minus), u_minus, guess, settings)

    _linear: ClassVar[bool] = False
    _jacobian: ClassVar = None

    def init(self, system, t, dt, q, u, settings):
        """First node: the initial velocity enters through its momentum, (60), (62); the percussion found here acts at ``t0``."""
        guess = base.no_percussions(system, t, q, u)
        u, P, info = self._velocity(True, system, t, dt, q, u, guess, settings)
        return State(q, u, P), info

    def step(self, system, t, dt, state, settings):
        """From node k to node k + 1: move with ``u_k``, then find ``u_{k+1}`` at the new node."""
        q = state.q + dt * system.q_dot(t, state.q, state.u)
        u, P, info = self._velocity(False, system, t + dt, dt, q, state.u, state.P, settings)
        return State(q, u, P), info


@dataclass(frozen=True)
class Moreau(_MoreauType):
    """Moreau's time-stepping scheme, C18 (58), (59): explicit in h, first order, one linear solve a step.

        M_k (u_k - u_{k-1}) - h(t_k, q_k, u_{k-1}) dt = W_k P_k

    The first velocity is the initial one. The cheapest scheme; it loses energy where M depends on q.
    """

    order: ClassVar[int] = 1
    _linear: ClassVar[bool] = True

    def init(self, system, t, dt, q, u, settings):
        """First node, (58): ``u_1 = u_s``, no percussion."""
        del dt, settings
        return State(q, u, base.no_percussions(system, t, q, u)), base.nothing_to_solve(q.dtype)

    @staticmethod
    def _balance(args, u):
        system, t, dt, q, u_minus = args
        return system.M(t, q, u) @ (u - u_minus) - dt * system.h(t, q, u_minus)  # C18 (59)

    @staticmethod
    def _jacobian(args, u):
        system, t, _, q, _ = args
        return system.M(t, q, u)


@dataclass(frozen=True)
class SymmetricMoreau(_MoreauType):
    """Symmetric Moreau-type scheme, C18 (60), (61): trapezoidal rule in the strong form of the virtual action.

        M_k (u_k - u_{k-1}) - 1/2 [h(t_k, q_k, u_{k-1}) + h(t_k, q_k, u_k)] dt = W_k P_k

    Time-reversible: no drift of the energy between impacts. Implicit in velocity-dependent forces only. Second order on smooth
    motion in q at the nodes and in u at mid-interval; first order where a system defines its own q_dot, whose update is an Euler step.
    """

    order: ClassVar[int] = 2
    lead: ClassVar[float] = 0.5

    @staticmethod
    def _first_balance(args, u):
        system, t, dt, q, u_start = args
        # C18 (60), twice: p(q_1, u_1) - p(q_1, u_s) - 1/2 h(q_1, u_1) dt = 1/2 W_1 P_1
        return 2 * (system.M(t, q, u) @ (u - u_start)) - dt * system.h(t, q, u)

    @staticmethod
    def _balance(args, u):
        system, t, dt, q, u_minus = args
        return system.M(t, q, u) @ (u - u_minus) - 0.5 * dt * (system.h(t, q, u_minus) + system.h(t, q, u))  # C18 (61)


@dataclass(frozen=True)
class VariationalMoreau(_MoreauType):
    """Variational Moreau-type scheme, C18 (62), (63): trapezoidal rule in the weak form of the virtual action.

        1/2 [p(t_k, q_k, u_k) + p(t_{k+1}, q_{k+1}, u_k) - p(t_{k-1}, q_{k-1}, u_{k-1}) - p(t_k, q_k, u_{k-1})]
        - 1/2 [b(t_k, q_k, u_{k-1}) + b(t_k, q_k, u_k)] dt = W_k P_k

    A variational integrator in the sense of discrete mechanics: symplectic between impacts, the energy stays bounded. Second order on
    smooth motion in q at the nodes and in u at mid-interval. Takes systems with ``q_dot = u`` only.
    """

    order: ClassVar[int] = 2
    lead: ClassVar[float] = 0.5

    def refuse(self, system, t, q, u):
        """Quasi-velocities have no place in the weak form."""
        del t, q, u
        if system.defines("q_dot"):
            return "it is derived for q_dot = u, and this system defines its own q_dot; use SymmetricMoreau() or Moreau()"
        return None

    @staticmethod
    def _first_balance(args, u):
        system, t, dt, q, u_start = args
        # C18 (62), twice
        left = system.momentum(t, q, u) + system.momentum(t + dt, q + dt * u, u)
        return left - 2 * system.momentum(t, q, u_start) - dt * system.b(t, q, u)

    @staticmethod
    def _balance(args, u):
        system, t, dt, q, u_minus = args
        after = system.momentum(t, q, u) + system.momentum(t + dt, q + dt * u, u)
        before = system.momentum(t - dt, q - dt * u_minus, u_minus) + system.momentum(t, q, u_minus)
        return 0.5 * (after - before) - 0.5 * dt * (system.b(t, q, u_minus) + system.b(t, q, u))  # C18 (63)
