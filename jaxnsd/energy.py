"""Energies, works and the discrete energy balances of Acary (2014), from a `Solution`.

`balance` answers, step by step: what is the energy, who did work on the system, what did the scheme itself add or take away, and is
that what the theorem of the scheme says?
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .mechanics.linear_system import LinearSystem, product
from .mechanics.system import System
from .numerics import butcher, thresholds
from .programs import runs
from .programs.jitted import jit
from .schemes.alpha import AlphaScheme, KrenkHogsberg
from .schemes.base import Scheme
from .schemes.lobatto import Lobatto
from .schemes.moreau import Moreau
from .schemes.theta import ThetaScheme
from .simulation import checks
from .simulation.nodes import cubic, node_velocities
from .simulation.solution import Solution


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class EnergyBalance:
    """Energies at the N + 1 nodes of a motion and works in its N steps, all in J. On every step

        algorithmic[k + 1] - algorithmic[k] = external + damping + contact + friction + constraint + dry friction + numerical + residual

    ================  ==============  =====================================================================================
    ``t``             (N + 1,)        times, s
    ``kinetic``       (N + 1,)        T
    ``potential``     (N + 1,)        V; 1/2 q^T K q of a linear system
    ``algorithmic``   (N + 1,)        the energy H that the scheme's balance is about: E = T + V, and more for the alpha-schemes
    ``external``      (N,)            work of the external forces; unless the system is linear, of all forces without potential, and of what
                                      moves parts of the system or changes its potential with time
    ``damping``       (N,)            work of -C v of a linear system; with `Moreau` of the dampers in `System.damping_matrix`
    ``contact``       (N, n_N)        work of the normal percussions
    ``friction``      (N, n_N)        work of the tangential percussions
    ``constraint``    (N,)            work of the percussions of bilateral constraints
    ``dry_friction``  (N, n_D)        work of the percussions of dry friction; None without
    ``numerical``     (N,)            what the scheme adds by itself (numerical damping where negative). Where no balance is known
                                      this is the rest of the balance, as measured
    ``residual``      (N,)            what is left: round-off, if the scheme did what its balance says
    ``theorem``       str or None     the equation of the balance; None: none is known, residual is zero by definition
    ================  ==============  =====================================================================================

    After the end of a motion that its ``until`` has stopped energies stay what they are, and no work is done.
    """

    t: Any
    kinetic: Any
    potential: Any
    algorithmic: Any
    external: Any
    damping: Any
    contact: Any
    friction: Any
    constraint: Any
    numerical: Any
    residual: Any
    theorem: Any = field(default=None, metadata={"static": True})
    dry_friction: Any = None

    def __repr__(self) -> str:
        """One line: energies at the ends, and the verdict."""
        if not checks.known(*jax.tree.leaves(self)) or np.ndim(self.t) != 1:
            return f"EnergyBalance(nodes {np.shape(self.t)})"
        return f"EnergyBalance({float(self.total[0]):.6g} J to {float(self.total[-1]):.6g} J; {self.verdict()})"

    @property
    def total(self) -> jax.Array:
        """E = T + V at the nodes, (N + 1,)."""
        return self.kinetic + self.potential

    @property
    def created(self) -> jax.Array:
        """Algorithmic energy that came from neither external forces nor damping, (N,): positive where contact or scheme create energy."""
        return jnp.diff(self.algorithmic) - self.external - self.damping

    @property
    def scale(self) -> jax.Array:
        """Largest energy of the motion, to which round-off is compared."""
        return jnp.maximum(jnp.max(jnp.abs(self.algorithmic)), jnp.max(self.kinetic) + jnp.max(jnp.abs(self.potential)))

    @property
    def dissipative(self) -> jax.Array:
        """Verdict of every step, (N,) booleans: no energy was created, beyond round-off (`thresholds.energy` times the largest energy)."""
        return self.created <= thresholds.energy(self.kinetic.dtype) * self.scale

    def cumulated(self, name: str) -> jax.Array:
        """Running sum of one of the works at the nodes, (N + 1, ...), zero at the first."""
        work = getattr(self, name)
        return jnp.concatenate([jnp.zeros_like(work[:1]), jnp.cumsum(work, axis=0)])

    def verdict(self) -> str:
        """One sentence for a reader: whether energy was created, at how many steps, how much at most, and what stands behind it."""
        created, ok = np.asarray(self.created), np.asarray(self.dissipative)
        worst = int(np.argmax(created))
        if ok.all():
            text = f"dissipative in all {ok.size} steps"
        else:
            at = f"{created[worst]:.3g} J in step {worst + 1}, at t = {float(self.t[worst + 1]):.6g} s"
            text = f"energy created in {np.count_nonzero(~ok)} of {ok.size} steps: {created[~ok].sum():.3g} J, at most {at}"
        if self.theorem is None:
            return f"{text}; measured, there is no theorem for this scheme and system"
        relative = float(np.abs(self.residual).max() / self.scale)
        text += f"; balance {self.theorem} holds to {relative:.1e} of the largest energy"
        if self.dry_friction is not None or np.any(np.asarray(self.friction) != 0):
            text += "; with friction there is no theorem on its sign"
        return text


def balance(system: System, scheme: Scheme, solution: Solution) -> EnergyBalance:
    """Energy balance of a motion: an `EnergyBalance`.

    system, scheme:  those that the solution was made with
    solution:        a `Solution` of one motion, every node stored (``save_every=1``)

    For a `LinearSystem` and the theta- and alpha-schemes the balance is an identity (A14 (35), (69), (72), (80), (88) with h^2/2 for
    h/2, (92)), friction included: the residual is round-off. For other systems and schemes ``external`` is the work of `System.force`,
    and of energies that depend on time by themselves, by the trapezoidal rule, percussions work where and on what the scheme's step says
    (the mean of the velocities before and after, Thomson and Tait's formula, A14 (21), or v_{k+theta}), and ``numerical`` is what is left.
    Where velocities are at mid-interval, energies are those of `node_velocities`. Works under `jit` and `vmap`.

    Raises ValueError for a solution that lacks nodes, for a batch, and for a scheme whose percussions act between the nodes
    (`LocatedImpacts`): their works cannot be told from what is stored. Likewise for a linear system with an alpha-scheme whose balance
    filters the motion (`HHT`, `GeneralizedAlpha`, `KrenkHogsberg`) and a solution that goes on from another; under `jit` it is NaN.
    """
    checks.motion("energy.balance", solution, system)
    checks.every_node("energy.balance", solution)
    if solution.grid is not None:
        raise ValueError("energy.balance: every step must be whole, got a run that ends inside of one: let until return a boolean")
    if solution.save_every != 1:
        raise ValueError(f"energy.balance: every node is needed, got a solution with save_every = {solution.save_every}")
    if jnp.ndim(solution.t) != 1:
        raise ValueError(f"energy.balance: takes one motion, got a batch of shape {jnp.shape(solution.t)[:-1]}; use jax.vmap")
    if scheme.unbalanced:
        raise ValueError(f"energy.balance: {scheme.unbalanced}")
    checks.made_by("energy.balance", scheme, solution)
    if solution.stop is not None:
        # Steps of no length have no balance: it is that of equal ones, and what comes after the end is left out of it.
        t = solution.t[0] + solution.dt * jnp.arange(len(solution.t))
        return _up_to(solution.steps, balance(system, scheme, replace(solution, t=t, stop=None)))
    linear = isinstance(system, LinearSystem) and system.is_linear()
    # What is an identity holds to the last digits where no products are fused into sums.
    return _balance(system, scheme, solution, linear=True) if linear else runs.at_once(_of_nonlinear, system, scheme, solution)


def _balance(system, scheme, solution, linear=False):
    """`balance`, of a motion to its end."""
    # Percussions turn velocities into each other where the scheme has them, energies are those of the nodes.
    contacts, friction, constraint, dry = _percussion_work(system, scheme, solution)
    solution = replace(solution, u=node_velocities(system, scheme, solution))
    t, q, u = solution.t, solution.q, solution.u
    kinetic, potential = jax.vmap(system.kinetic_energy)(t, q, u), jax.vmap(system.potential_energy)(t, q)
    if linear and isinstance(scheme, ThetaScheme):
        extra, external, damping, numerical, theorem = _theta(system, scheme, solution)
    elif linear and isinstance(scheme, AlphaScheme):
        extra, external, damping, numerical, theorem = _alpha(system, scheme, solution)
    else:
        extra, numerical, theorem = jnp.zeros_like(kinetic), None, None
        external, damping = _trapezoidal(system, solution), jnp.zeros_like(t[1:])
        if linear:
            damping = _trapezoidal(system, solution, lambda t, q, u: -product(system.C, u))
            external = external - damping
        else:
            external = external + _work_of_time(system, solution)
            if isinstance(scheme, Moreau) and system.damping_matrix(t[0], q[0], u[0]) is not None:
                damping = _work_of_dampers(system, solution)
                external = external + _trapezoidal(system, solution, lambda t, q, u: system.damping_matrix(t, q, u) @ u)
    algorithmic = kinetic + potential + extra
    rest = jnp.diff(algorithmic) - external - damping - jnp.sum(contacts + friction, axis=1) - constraint
    rest = rest if dry is None else rest - jnp.sum(dry, axis=1)
    if numerical is None:
        numerical = rest
    return EnergyBalance(
        t, kinetic, potential, algorithmic, external, damping, contacts, friction, constraint, numerical, rest - numerical, theorem, dry
    )


_of_nonlinear = jit(_balance, static_argnums=1)


@jit
def of_states(system: System, t: jax.Array, q: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Kinetic and potential energy (F,) of states (F, ...)."""
    return jax.vmap(system.kinetic_energy)(t, q, u), jax.vmap(system.potential_energy)(t, q)


def _up_to(steps, of):
    """The balance of a motion that ends after so many steps."""
    nodes = ("t", "kinetic", "potential", "algorithmic")
    works = [f.name for f in fields(of) if f.name not in (*nodes, "theorem") and getattr(of, f.name) is not None]
    number = jnp.arange(len(of.t))

    def done(work):
        return jnp.where(jnp.expand_dims(number[:-1] < steps, tuple(range(1, work.ndim))), work, 0)

    held = {name: getattr(of, name)[jnp.minimum(number, steps)] for name in nodes}
    return replace(of, **held, **{name: done(getattr(of, name)) for name in works})


def _trapezoidal(system, solution, force=None):
    """Work of a force in each step by the trapezoidal rule."""
    force = force or system.force
    t, q, u = solution.t, solution.q, solution.u
    dt = t[1:] - t[:-1]
    # Powers with generalized forces, which act on u.
    start = jnp.sum(jax.vmap(force)(t[:-1], q[:-1], u[:-1]) * u[:-1], axis=1)
    end = jnp.sum(jax.vmap(force)(t[1:], q[1:], u[1:]) * u[1:], axis=1)
    return 0.5 * dt * (start + end)


def _work_of_dampers(system, solution):
    """Work (N,) of the dampers as `Moreau` takes them: with the new velocity, on the mean of both, as percussions at the end of a step."""
    t, q, before, after = solution.t, solution.q, solution.u[:-1], solution.u[1:]
    D = jax.vmap(system.damping_matrix)(t[1:], q[1:], before)
    return -0.5 * jnp.diff(t) * jnp.einsum("ki,kij,kj->k", before + after, D, after)


def _work_of_time(system, solution):
    """Work (N,) of what changes T and V with time by itself, prescribed motions say.

    With the Jacobi energy h = p . u - T + V, whose rate is ``dV/dt - dT/dt`` at constant q and u, it is that of h and the change of
    E - h = 2 T - p . u, which is zero where T is quadratic in u.
    """
    t, q, u = solution.t, solution.q, solution.u

    def of_node(t, q, u):
        rate_V, rate_T = jax.grad(system.potential_energy)(t, q), jax.grad(system.kinetic_energy)(t, q, u)
        return rate_V - rate_T, 2 * system.kinetic_energy(t, q, u) - system.momentum(t, q, u) @ u

    power, carried = jax.vmap(of_node)(t, q, u)
    return 0.5 * jnp.diff(t) * (power[:-1] + power[1:]) + jnp.diff(carried)


def _works(system, t, q, v, P_N, P_F, P_b):
    """Works on the velocity v of normal and tangential percussions, (n_N,) each, and of those of the bilateral constraints, ().

    Percussions are as they are stored, along the directions that the system says.
    """
    W_N, W_F, *W_b = (of(t, q, jnp.zeros_like(v)) for of in (system.W_N, system.W_F, system.W_g, system.W_gamma))
    rate_F = jnp.sum(W_F * v[:, None, None], axis=0)
    return P_N * (W_N.T @ v), jnp.sum(P_F * rate_F, axis=1), jnp.sum(P_b * (jnp.concatenate(W_b, axis=1).T @ v))


def _stage_work(system, scheme, solution):
    """`_percussion_work` of `Lobatto`: ``b_j W(t^j, Q^j) R^j`` of every stage on the mean of the velocities before and after, C24 (47)."""
    tableau = butcher.lobatto(scheme.stages)
    b, c = (jnp.asarray(x, solution.q.dtype) for x in (tableau.b, tableau.c))

    def work(t, q, u, t_plus, q_plus, u_plus, aux):
        dt, v = t_plus - t, 0.5 * (u + u_plus)
        begin, end = system.q_dot(t, q, u), system.q_dot(t_plus, q_plus, aux["V"][-1])

        def of_stage(b, c, R_N, R_F, R_b):
            return _works(system, t + c * dt, cubic(c, dt, q, q_plus, begin, end), v, b * R_N, b * R_F, b * R_b)

        R_b = jnp.concatenate([aux["R_g"], aux["R_gamma"]], axis=1)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(of_stage)(b, c, aux["R_N"], aux["R_F"], R_b))

    t, q, u = solution.t, solution.q, solution.u
    aux = {name: x[1:] for name, x in solution.auxiliary.items()}
    return jax.vmap(work)(t[:-1], q[:-1], u[:-1], t[1:], q[1:], u[1:], aux)


def _percussion_work(system, scheme, solution):
    """Works of the normal and tangential percussions (N, n_N), of the bilateral constraints (N,), and of dry friction (N, n_D) or None."""
    if isinstance(scheme, Lobatto):
        return *_stage_work(system, scheme, solution), None

    def work(t, q, u, t_plus, q_plus, u_plus, P_D, *P):
        step = scheme.between(system, t, t_plus - t, q, u, q_plus)
        v, dry = step.worked_on(u_plus), step.dry()
        return *_works(step.system, *step.place(), v, *P), None if dry is None else P_D * (dry.W.T @ v)

    t, q, u = solution.t, solution.q, solution.u
    P_b = jnp.concatenate([solution.P_g, solution.P_gamma], axis=1)
    nodes = t[:-1], q[:-1], u[:-1], t[1:], q[1:], u[1:]
    return jax.vmap(work)(*nodes, solution.P_D, solution.P_N, solution.P_F, P_b)


def _form(A, x, y=None):
    """``x^T A y`` of every row."""
    return jnp.sum(x * jax.vmap(lambda row: product(A, row))(x if y is None else y), axis=1)


def _theta(system, scheme, solution):
    """A14 (35), (92)."""
    t, q, v = solution.t, solution.q, solution.u
    dt, theta = solution.dt, scheme.theta
    F = jax.vmap(system.external_force)(t)
    dq, dv = jnp.diff(q, axis=0), jnp.diff(v, axis=0)
    v_theta, F_theta = (theta * x[1:] + (1 - theta) * x[:-1] for x in (v, F))
    moved = dt * v_theta if scheme.weight == theta else dq
    numerical = (0.5 - theta) * _form(system.K, dq)
    if scheme.weight == theta:
        numerical = numerical + (0.5 - theta) * _form(system.mass, dv)
    theorem = "Acary (2014), (35)" if scheme.weight == theta else "Acary (2014), (92)"
    return jnp.zeros_like(t), jnp.sum(moved * F_theta, axis=1), -_form(system.C, moved, v_theta), numerical, theorem


def _filtered(x, nu):
    """The filter A14 (55) over its time constant: ``(1/2 + nu) y_{k+1} + (1/2 - nu) y_k = x_{k+1} - x_k``, y_0 = 0; z = nu y.

    Divided by nu it has a limit where nu = 0 (spectral radius 1).
    """

    def step(y, dx):
        y = (dx - (0.5 - nu) * y) / (0.5 + nu)
        return y, y

    y0 = jnp.zeros_like(x[0])
    return jnp.concatenate([y0[None], lax.scan(step, y0, jnp.diff(x, axis=0))[1]])


def _alpha(system, scheme, solution):
    """A14 (69), with its cases (72), (80), (88): the filters x, y, z of Lemma 2 are known once q, v and F are."""
    t, q, v, a = solution.t, solution.q, solution.u, solution.auxiliary["a"]
    dt = solution.dt
    c = scheme.coefficients
    krenk = isinstance(scheme, KrenkHogsberg)
    F = jax.vmap(system.external_force)(t)
    first = _at_the_start(system, scheme, solution) if c.eta else 1.0
    z = _filtered(q, c.nu)
    if c.eta and not krenk:
        F, v = F - c.eta * _filtered(F, c.nu), v - c.eta * _filtered(v, c.nu)
    dq, da, dz = (jnp.diff(x, axis=0) for x in (q, a, z))
    v_gamma, F_gamma = (c.gamma * x[1:] + (1 - c.gamma) * x[:-1] for x in (v, F))
    slack = c.nu - c.gamma + 0.5
    # A14 (66), (88): the factor of the accelerations is h^2 / 2.
    extra = 0.25 * dt**2 * (2 * c.beta - c.gamma) * _form(system.mass, a) + 0.5 * c.eta * slack * _form(system.K, z)
    numerical = (
        -0.5 * dt**2 * (c.gamma - 0.5) * (2 * c.beta - c.gamma) * _form(system.mass, da)
        - (c.gamma - 0.5 - c.eta) * _form(system.K, dq)
        - c.eta * c.nu * slack * _form(system.K, dz)
    )
    equation = "(72)" if krenk else {(True, True): "(88)", (True, False): "(80)"}.get((c.alpha_m == 0, c.alpha_f == 0), "(69)")
    return first * extra, jnp.sum(dq * F_gamma, axis=1), -_form(system.C, dq, v_gamma), first * numerical, f"Acary (2014), {equation}"


def _largest(A):
    """Largest entry of an array or a `Tridiagonal`; zero for None."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in jax.tree.leaves(A)])) if A is not None else 0.0


def _at_the_start(system, scheme, solution):
    """One; NaN, or ValueError where values are known, for a solution that goes on from another: its filters do not start from zero.

    The acceleration that a run starts with is that of the equations of motion, the one that is handed on is the scheme's own.
    """
    t, q, v, a = (x[0] for x in (solution.t, solution.q, solution.u, solution.auxiliary["a"]))
    F, pairs = system.external_force(t), ((system.mass, a), (system.C, v), (system.K, q))
    left = jnp.max(jnp.abs(F - sum(product(A, x) for A, x in pairs)))
    # What cancels in a product, of a rigid motion say, leaves its round-off.
    size = jnp.max(jnp.abs(F)) + sum(_largest(A) * _largest(x) for A, x in pairs)
    fresh = left <= thresholds.round_off(q.dtype) * size
    if checks.known(fresh) and not fresh:
        raise ValueError(
            f"energy.balance: the balance of {scheme.name} filters the motion from its first step on, and this solution goes on from "
            "another; simulate it in one run, or use jax.vmap(system.total_energy)(sol.t, sol.q, sol.u) for the energies at the nodes"
        )
    return jnp.where(fresh, 1.0, jnp.nan).astype(q.dtype)
