"""Systems drawn at random, each step recomputed in NumPy from what a Solution stores, with mechanics written out a second time there.

Nothing is taken from the library but the motion: mass matrix, forces, gap velocities and force directions of the checks are closed forms
in NumPy. So what autodiff derives, and what a step makes of it, are checked together: rheonomic gaps and slip, a mass matrix that varies,
quasi-velocities, bilateral constraints of both kinds, one restitution, friction coefficient and tangential restitution for each contact.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scheme_table import MOREAU_TYPE

import jaxnsd
from jaxnsd import GeneralizedAlpha, Lobatto, Moreau, MoreauJean, System
from jaxnsd.numerics import butcher

STEPS, DT, MEMBERS = 100, 5e-3, 12


@jaxnsd.system
class Drawn(System):
    """A system of the drawn parameters ``p``, a dict of arrays."""

    p: Any = None
    e_N: Any = 0.0
    e_F: Any = 0.0
    mu: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ (self.p["M"] @ u) + 0.5 * jnp.sum(self.p["m"] * jnp.sin(jnp.roll(q, -1)) * u**2)

    def potential_energy(self, t, q):
        return 4 * q @ q + self.p["w"] @ q

    def force(self, t, q, u):
        return -self.p["C"] * u + self.p["f"] * jnp.sin(3 * t)

    def gap(self, t, q):
        return self.p["A"] @ q + self.p["k"] * (q @ q) + self.p["g"] + 0.02 * jnp.sin(5 * t)

    def tangential_velocity(self, t, q, u):
        return jnp.einsum("ndi,i->nd", self.p["B"] * (1 + 0.2 * q[0]), u) + self.p["b"] * jnp.cos(4 * t)

    def constraint(self, t, q):
        return self.p["D"] @ q + 0.2 * (q @ q) - 0.05 * (1 - jnp.cos(3 * t))


@jaxnsd.system
class Nonholonomic(Drawn):
    """With a rheonomic constraint on velocity level."""

    def velocity_constraint(self, t, q, u):
        return self.p["E"] @ u - 0.3 * jnp.sin(2 * t)


@jaxnsd.system
class Quasi(Drawn):
    """With quasi-velocities ``q_dot = H u + c``; their mass matrix is constant."""

    def q_dot(self, t, q, u):
        return self.p["H"] @ u + self.p["c"]


KINDS = {"nonholonomic": (Nonholonomic, 5, 3, 2), "quasi": (Quasi, 4, 3, 1)}


def draw(kind, rng):
    """``(p, (e_N, e_F, mu), q0, u0)`` of `MEMBERS` systems, with consistent starts."""
    _, n_u, n, d = KINDS[kind]
    quasi, N = kind == "quasi", MEMBERS
    L, A = rng.normal(size=(N, n_u, n_u)), rng.normal(size=(N, n, n_u))
    p = {
        "M": 0.5 * L @ L.transpose(0, 2, 1) + 1.5 * np.eye(n_u),
        "m": np.zeros((N, n_u)) if quasi else rng.uniform(0, 0.3, (N, n_u)),
        "A": A / np.linalg.norm(A, axis=2, keepdims=True),
        "C": rng.uniform(0, 0.3, (N, n_u)),
        "f": rng.normal(size=(N, n_u)),
        "k": 0.2 * rng.normal(size=(N, n)),
        "g": rng.uniform(0.01, 0.1, (N, n)),
        "B": rng.normal(size=(N, n, d, n_u)),
        "b": 0.3 * rng.normal(size=(N, n, d)),
        "D": rng.normal(size=(N, 1, n_u)),
        "E": rng.normal(size=(N, 0 if quasi else 1, n_u)),
        "H": np.eye(n_u) + (0.4 * rng.normal(size=(N, n_u, n_u)) if quasi else np.zeros((N, n_u, n_u))),
        "c": 0.1 * rng.normal(size=(N, n_u)) * quasi,
    }
    p["w"] = 10 * p["A"].sum(axis=1)  # towards the contacts
    law = [rng.uniform(0, top, (N, n)) for top in (0.9, 0.5, 0.8)]
    q0, u0 = np.zeros((N, n_u)), rng.normal(size=(N, n_u))
    for i in range(N):
        mechanics = Mechanics({name: x[i] for name, x in p.items()})
        W, velocity = mechanics.W_b(q0[i]), mechanics.bilateral(0.0, q0[i], u0[i])
        u0[i] -= W @ np.linalg.solve(W.T @ W, velocity)
    return p, law, q0, u0


@dataclass
class Mechanics:
    """The mechanics of one member, by hand."""

    p: dict

    def M(self, q):
        return self.p["M"] + np.diag(self.p["m"] * np.sin(np.roll(q, -1)))

    def q_dot(self, u):
        return self.p["H"] @ u + self.p["c"]

    def b(self, t, q, u):
        by_inertia = np.roll(0.5 * self.p["m"] * np.cos(np.roll(q, -1)) * u**2, 1)
        return -self.p["H"].T @ (8 * q + self.p["w"]) + by_inertia - self.p["C"] * u + self.p["f"] * np.sin(3 * t)

    def h(self, t, q, u):
        return self.b(t, q, u) - self.p["m"] * np.cos(np.roll(q, -1)) * np.roll(self.q_dot(u), -1) * u

    def gap(self, t, q):
        return self.p["A"] @ q + self.p["k"] * (q @ q) + self.p["g"] + 0.02 * np.sin(5 * t)

    def W_N(self, q):
        return ((self.p["A"] + 2 * np.outer(self.p["k"], q)) @ self.p["H"]).T

    def rates(self, t, q, u):
        """Gap velocities (n,) and slip (n, d)."""
        rate = (self.p["A"] + 2 * np.outer(self.p["k"], q)) @ self.q_dot(u) + 0.1 * np.cos(5 * t)
        return rate, np.einsum("ndi,i->nd", self.W_F(q), u) + self.p["b"] * np.cos(4 * t)

    def W_F(self, q):
        """As (n, d, n_u)."""
        return self.p["B"] * (1 + 0.2 * q[0])

    def W_b(self, q):
        return np.c_[((self.p["D"] + 0.4 * q) @ self.p["H"]).T, self.p["E"].T]

    def bilateral(self, t, q, u):
        """Velocities of the bilateral rows."""
        return np.r_[(self.p["D"] + 0.4 * q) @ self.q_dot(u) - 0.15 * np.sin(3 * t), self.p["E"] @ u - 0.3 * np.sin(2 * t)]

    def impulse(self, q, P):
        P_N, P_F, P_g, P_gamma = P
        return self.W_N(q) @ P_N + np.einsum("ndi,nd->i", self.W_F(q), P_F) + self.W_b(q) @ np.r_[P_g, P_gamma]

    def scales(self, q):
        """Diagonal of the Delassus operator: of the normal rows, and the mean of the tangential ones."""
        inverse, W_F = np.linalg.inv(self.M(q)), self.W_F(q)
        return np.einsum("in,ij,jn->n", self.W_N(q), inverse, self.W_N(q)), np.einsum("ndi,ij,ndj->n", W_F, inverse, W_F)


def projected(x, radius):
    """Rows of x (n, d) projected on discs."""
    size = np.linalg.norm(x, axis=1)
    return x * np.minimum(1, radius / np.maximum(size, 1e-300))[:, None]


def of_law(scales, active, P_N, P_F, xi_N, xi_F, mu):
    """By how much percussions and velocities miss the laws of Signorini and Coulomb, as velocities; with inactive contacts at zero."""
    G_N, G_F = scales
    normal = np.where(active, np.minimum(G_N * P_N, xi_N), P_N)
    trial, radius = G_F[:, None] * P_F - xi_F, G_F * mu * np.maximum(P_N, 0)
    friction = np.where(active[:, None], G_F[:, None] * P_F - projected(trial, radius), P_F)
    return np.r_[normal, np.ravel(friction)]


def of_node(m, scheme, t, q, u, P, law):
    """Schemes of Moreau's type: position, balance, and where and when contacts act."""
    (q, q_new), (u, u_new), t_new = q, u, t + DT
    yield "positions", q_new - q - DT * m.q_dot(u)
    if scheme == Moreau():
        yield "balance", m.M(q_new) @ (u_new - u) - DT * m.h(t_new, q_new, u) - m.impulse(q_new, P)
    elif scheme == jaxnsd.SymmetricMoreau():
        forces = 0.5 * (m.h(t_new, q_new, u) + m.h(t_new, q_new, u_new))
        yield "balance", m.M(q_new) @ (u_new - u) - DT * forces - m.impulse(q_new, P)
    else:
        momenta = m.M(q_new) @ (u_new - u) + m.M(q_new + DT * u_new) @ u_new - m.M(q) @ u
        forces = m.b(t_new, q_new, u) + m.b(t_new, q_new, u_new)
        yield "balance", 0.5 * momenta - 0.5 * DT * forces - m.impulse(q_new, P)
    yield "law", at(m, t_new, q_new, m.gap(t_new, q_new) <= 0, m.rates(t_new, q_new, u), u_new, P, law)
    yield "bilateral", m.bilateral(t_new, q_new, u_new)


def at(m, t, q, active, before, u, P, law):
    """`of_law` with xi of the velocities ``before`` and of u at (t, q)."""
    (e_N, e_F, mu), after = law, m.rates(t, q, u)
    return of_law(m.scales(q), active, P[0], P[1], after[0] + e_N * before[0], after[1] + e_F[:, None] * before[1], mu)


def given_back(closed, start, there):
    """The contact velocities that restitution gives back, of those at the start of a step and of the same u where the contact acts.

    A closed contact that has no more of it than kinematics make in between, a table that shakes say, stays closed: of its velocity it gives
    back what is left of that at the start, in normal direction as far as both have it.
    """
    (rate, slip), (normal, tangential) = start, there
    both = np.where(rate * normal > 0, np.sign(rate) * np.minimum(np.abs(rate), np.abs(normal)), 0)
    stays = closed & (np.abs(rate) <= np.abs(normal - rate))
    sticks = closed & (np.linalg.norm(slip, axis=1) <= np.linalg.norm(tangential - slip, axis=1))
    return np.where(stays, both, normal), np.where(sticks[:, None], slip, tangential)


def of_implicit(m, scheme, t, q, u, P, law, a=None):
    """MoreauJean(1/2), or an alpha-scheme with its accelerations ``a``: algorithmic ones at both nodes, and that of motion at the first."""
    (q, q_new), (u, u_new), t_new = q, u, t + DT
    ahead = q + DT * m.q_dot(u)
    if a is None:
        yield "positions", q_new - q - DT * m.q_dot(0.5 * (u + u_new))
        yield "balance", m.M(q) @ (u_new - u) - 0.5 * DT * (m.h(t, q, u) + m.h(t_new, q_new, u_new)) - m.impulse(ahead, P)
    else:
        alpha_m, alpha_f, beta, gamma = scheme.coefficients
        old, new, of_motion = a
        jump = np.linalg.solve(m.M(q_new), m.impulse(ahead, P))
        yield "velocities", u_new - u - DT * ((1 - gamma) * old + gamma * new) - jump
        yield "positions", q_new - q - DT * (u + 0.5 * jump) - DT**2 * ((0.5 - beta) * old + beta * new)
        motion = np.linalg.solve(m.M(q_new), m.h(t_new, q_new, u_new))
        yield "balance", DT * ((1 - alpha_m) * new + alpha_m * old - (1 - alpha_f) * motion - alpha_f * of_motion)
    start, before = m.rates(t, q, u), m.rates(t_new, ahead, u)
    rate, before = start[0], given_back(m.gap(t, q) <= 1e-11, start, before)
    # The default rule: half a step ahead, and what opens has restitution 1.
    active = m.gap(t, q) + 0.5 * DT * rate <= 1e-11
    law = (np.where(before[0] > 0, 1.0, law[0]), *law[1:])
    yield "law", at(m, t_new, ahead, active, before, u_new, P, law)
    yield "bilateral", m.bilateral(t_new, ahead, u_new)


def of_stages(m, scheme, t, q, u, P, law, V, R):
    """Lobatto, C24 (47), (50)-(59)."""
    c, b, a, a_hat = butcher.lobatto(scheme.stages)
    times, Q = t + c * DT, q[0] + DT * a @ np.stack([m.q_dot(v) for v in V])
    yield "positions", Q[-1] - q[1]
    F = np.stack([DT * m.b(times[i], Q[i], V[i]) + m.impulse(Q[i], [r[i] for r in R]) for i in range(scheme.stages)])
    start = m.M(q[0]) @ u[0]
    yield "balance", np.stack([m.M(Q[i]) @ V[i] for i in range(scheme.stages)]) - start - a_hat @ F
    yield "end", m.M(q[1]) @ u[1] - start - b @ F
    yield "sums", np.concatenate([np.ravel(np.tensordot(b, r, 1) - total) for r, total in zip(R, P, strict=True)])
    met = np.zeros(len(law[0]), bool)
    for i in range(1, scheme.stages):
        gap, slip = m.gap(times[i], Q[i]), m.rates(times[i], Q[i], V[i])[1]
        yield "stages", of_law(m.scales(Q[i]), np.ones_like(met), R[0][i - 1], R[1][i - 1], gap / DT, slip, law[2])
        # A percussion of 1e-33 N s is none: next to it the gap decides.
        met |= (gap <= 1e-13) | (m.scales(Q[i])[0] * R[0][i - 1] > gap / DT)
    yield "law", at(m, t + DT, q[1], met, m.rates(t, q[0], u[0]), u[1], P, law)
    yield "bilateral", m.bilateral(t + DT, q[1], u[1])


#: Quasi-velocities are refused by the others.
PAIRS = [("nonholonomic", scheme) for scheme in (*MOREAU_TYPE, MoreauJean(), GeneralizedAlpha(), Lobatto(2), Lobatto(3))]
PAIRS += [("quasi", scheme) for scheme in (Moreau(), jaxnsd.SymmetricMoreau(), MoreauJean(), Lobatto(2))]
FAST = [("nonholonomic", Moreau())]


@pytest.mark.parametrize(
    "kind, scheme", [pytest.param(*pair, id=f"{pair[0]}-{pair[1]!r}", marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]
)
def test_every_step_that_says_so_obeys_the_equations_of_its_scheme(kind, scheme):
    """With directions of slip that are drawn, contacts may jam: a percussion that lies in all cones and moves nothing, and no solution.
    `Lobatto` called such steps a success, with percussions of 1e14 N s that excused gaps and slip.
    """
    system = KINDS[kind][0]
    p, law, q0, u0 = draw(kind, np.random.default_rng(5))

    def run(p, law, q, u):
        return jaxnsd.simulate(system(p, *law), scheme, q, u, n_steps=STEPS, dt=DT, sensitivity="discrete")

    sols = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(p, law, q0, u0))
    solved = np.minimum.accumulate(sols.outcome == 0, axis=1)
    assert np.mean(solved) > 0.9
    pushes, slips = 0, 0
    for i in range(MEMBERS):
        m, of = Mechanics({name: x[i] for name, x in p.items()}), [x[i] for x in law]
        sol = jax.tree.map(lambda x: x[i], sols)  # noqa: B023
        motion = np.linalg.solve(m.M(q0[i]), m.h(0.0, q0[i], u0[i]))
        for k in range(np.sum(solved[i])):
            P = [x[k] for x in (sol.P_N, sol.P_F, sol.P_g, sol.P_gamma)]
            step = m, scheme, sol.t[k], sol.q[k : k + 2], sol.u[k : k + 2], P, of
            if scheme in MOREAU_TYPE:
                residuals = of_node(*step)
            elif isinstance(scheme, Lobatto):
                stored = [sol.auxiliary[name][k + 1] for name in ("V", "R_N", "R_F", "R_g", "R_gamma")]
                residuals = of_stages(*step, stored[0], stored[1:])
            elif isinstance(scheme, MoreauJean):
                residuals = of_implicit(*step)
            else:
                residuals = of_implicit(*step, (*sol.auxiliary["a"][k : k + 2], motion))
            # Next to a jam percussions are large, and what is left of their sums in proportion.
            size = 1 + max(np.max(np.abs(x), initial=0) for x in P)
            for name, residual in residuals:
                assert np.max(np.abs(residual), initial=0) < 1e-9 * size, (name, i, k)
            motion = np.linalg.solve(m.M(sol.q[k + 1]), m.h(sol.t[k + 1], sol.q[k + 1], sol.u[k + 1]))
        pushes += np.count_nonzero(sol.P_N[solved[i]])
        slips += np.count_nonzero((sol.P_N > 0) & (np.linalg.norm(sol.P_F, axis=2) > (1 - 1e-9) * of[2] * sol.P_N))
    assert pushes > 200 and slips > 50
