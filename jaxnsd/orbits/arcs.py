"""Several arcs of one period, for orbits to which no motion comes back that starts beside them.

Invariant: with the starts z_0 ... z_(k-1) of k arcs of length T / k the orbit makes

    [ phi(z_0) - z_1 ;  ... ;  phi(z_(k-2)) - z_(k-1) ;  R(phi(z_(k-1))) - z_0 ;  phase ]  = 0

vanish (multiple shooting; Stoer & Bulirsch, Introduction to Numerical Analysis, 2002, sec. 7.3.5). An error of the start grows by the
multiplier of an arc, no more by that of the period. What is found is that of one arc (`jaxnsd.orbits.shooting`): the steps of the starts of
later arcs follow from that of the first, so that derivatives are products of those of the arcs.
"""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..simulation.simulate import simulate
from .shooting import Shooting, shifted


@dataclass(frozen=True)
class Arcs(Shooting):
    """The equations of several arcs: v = (z_0, ..., z_(k-1), T, lam)."""

    def states(self, v):
        """The starts (k, n)."""
        return jnp.reshape(v[:-2], (self.arcs, -1))

    def times(self, v, t0):
        """Their times (k,)."""
        return t0 + v[-2] / self.arcs * jnp.arange(self.arcs)

    def arc(self, system, direction, w, number, t0):
        """``(end, solution)`` of one arc from w = (z, T, lam), where nothing is reset yet."""
        system = shifted(system, direction, w[-1])
        length = w[-2] / self.arcs
        start, n_steps = t0 + number * length, self.n_steps // self.arcs
        q, u = w[: self.n_q], w[self.n_q : -2]
        sol = simulate(system, self.scheme, q, u, t1=start + length, t0=start, n_steps=n_steps, solver=self.solver)
        return jnp.concatenate([sol.q[-1], sol.u[-1]]), sol

    def closed(self, system, direction, v, ends, t0, T):
        """F (k n + 1,) with the ends (k, n) of the arcs."""
        system = shifted(system, direction, v[-1])
        last = self.after_reset(system, t0 + v[-2], ends[-1, : self.n_q], ends[-1, self.n_q :])
        z = self.states(v)
        return jnp.concatenate([jnp.ravel(ends[:-1] - z[1:]), last - z[0], self.phase(system, z[0], v[-2], t0, T)[None]])

    def equations(self, system, direction, v, t0, T):
        """``(F (k n + 1,), solution)``."""
        w = jnp.concatenate([self.states(v), jnp.broadcast_to(v[-2:], (self.arcs, 2))], axis=1)
        ends, sols = jax.vmap(lambda w, number: self.arc(system, direction, w, number, t0))(w, jnp.arange(self.arcs))
        return self.closed(system, direction, v, ends, t0, T), joined(sols)

    def linearized(self, system, direction, v, t0, T):
        """``(F (k n + 1,), its Jacobian by v (k n + 1, k n + 2), solution)``: of every arc by its own start alone."""

        def one(w, number):
            def of(w):
                end, sol = self.arc(system, direction, w, number, t0)
                return end, (end, sol)

            return jax.jacfwd(of, has_aux=True)(w)

        k, n = self.arcs, (v.shape[0] - 2) // self.arcs
        w = jnp.concatenate([self.states(v), jnp.broadcast_to(v[-2:], (k, 2))], axis=1)
        by_own, (ends, sols) = jax.vmap(one)(w, jnp.arange(k))
        blocks = jax.scipy.linalg.block_diag(*by_own[:, :, :n])
        by_v = jnp.concatenate([blocks, jnp.reshape(by_own[:, :, n:], (k * n, 2))], axis=1)

        def of(v, ends):
            return self.closed(system, direction, v, ends, t0, T)

        own, by_ends = jax.jacfwd(of, (0, 1))(v, ends)
        return of(v, ends), own + jnp.reshape(by_ends, (own.shape[0], k * n)) @ by_v, joined(sols)

    def still(self, system, t0, v):
        """Steps that make no difference, of all arcs."""
        rows = jax.vmap(lambda z, t: Shooting.still(self, system, t, jnp.concatenate([z, v[-2:]])))(self.states(v), self.times(v, t0))
        return jnp.pad(jax.scipy.linalg.block_diag(*rows[:, :, :-2]), ((0, 0), (0, 2)))

    def normalized(self, system, v):
        """v with coordinates that mean the same in all arcs."""
        z = jax.vmap(lambda z: Shooting.normalized(self, system, jnp.concatenate([z, v[-2:]]))[:-2])(self.states(v))
        return jnp.concatenate([jnp.ravel(z), v[-2:]])

    # ---------------------------------------------------------------------------------------------- to several arcs, and back
    def begun(self, given, start):
        """The `Start` of several arcs from that of one; the starts of later ones, where they are not given, are passed by its motion."""
        nodes = self.passed(given, start) if start.nodes is None else start.nodes
        spread = lambda x, others: jnp.concatenate([x[:-2], jnp.ravel(others), x[-2:]])  # noqa: E731
        n = start.v.shape[0] - 2
        return start._replace(
            v=spread(start.v, nodes),
            row=spread(start.row, jnp.zeros_like(nodes)),
            scale=spread(start.scale, jnp.broadcast_to(start.scale[:n], nodes.shape)),
            nodes=None,
        )

    def passed(self, given, start):
        """States (k - 1, n) in which later arcs start, of the motion from the first start."""

        def one(z, number):
            end, _ = self.arc(given.system, start.direction, jnp.concatenate([z, start.v[-2:]]), number, given.t0)
            return end, end

        return jax.lax.scan(one, start.v[:-2], jnp.arange(self.arcs - 1))[1]

    def ended(self, found):
        """What was found as that of one arc: the steps of later starts follow from those of the first one, of T and of lam."""
        k, n = self.arcs, (found.v.shape[0] - 2) // self.arcs
        rest = jnp.eye(2, n + 2, k=n, dtype=found.v.dtype)
        steps = [jnp.eye(n, n + 2, dtype=found.v.dtype)]
        J = found.J
        for i in range(k - 1):
            rows = J[i * n : (i + 1) * n]
            steps.append(rows[:, i * n : (i + 1) * n] @ steps[-1] + rows[:, -2:] @ rest)
        # The last arc's rows hold the first start and the last.
        J = J[-(n + 1) :] @ jnp.concatenate([*steps, rest])
        return found._replace(v=jnp.concatenate([found.v[:n], found.v[-2:]]), F=found.F[-(n + 1) :], J=J)


def whole(shooting):
    """The equations that Newton's method solves: of one arc, or of several."""
    if shooting.arcs == 1:
        return shooting
    return Arcs(**{field.name: getattr(shooting, field.name) for field in dataclasses.fields(shooting)})


def joined(sols):
    """The `Solution` of the whole period from those of its arcs, a batch: an arc's first node is the last one of that before."""

    def nodes(x):
        return jnp.concatenate([x[0], intervals(x[1:, 1:])])

    def intervals(x):
        return jax.lax.collapse(x, 0, 2)

    at_nodes = {name: jax.tree.map(nodes, getattr(sols, name)) for name in ("t", "q", "u", "auxiliary")}
    names = ("P_N", "P_F", "P_g", "P_gamma", "P_D", "iterations", "residual", "outcome", "contact", "events")
    between = {name: jax.tree.map(intervals, getattr(sols, name)) for name in names}
    first, last = jax.tree.map(lambda x: x[0], sols.initial), jax.tree.map(lambda x: x[-1], sols.final)
    outcome = jnp.max(sols.initial_outcome)
    return dataclasses.replace(sols, **at_nodes, **between, initial=first, final=last, initial_outcome=outcome)


def nodes_of(orbit):
    """The states (k - 1, n) in which the later arcs of an orbit start; None of one arc."""
    shooting = orbit.shooting
    if shooting.arcs == 1:
        return None
    sol, every = orbit.solution, shooting.n_steps // shooting.arcs
    return jnp.concatenate([sol.q, sol.u], axis=1)[every:-1:every]
