"""What every scheme shares: the state it carries, what it reports, and the velocity-level problem it solves.

One step of a scheme that treats contact on velocity level finds ``u`` and the percussions with

    R(u) = W_b P_b + W_N P_N + W_F P_F,      0 = W_b^T u + chi_b,      (P_N, P_F) and xi(u) obey the contact law,

where R is the scheme's momentum balance without percussions. Each iteration linearizes R at the last ``u``, condenses ``u`` and the
bilateral percussions ``P_b`` away and solves the contact problem that is left with the Delassus operator.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import contact, linalg
from ..newton import implicit, iterate
from . import parameters


class Percussions(NamedTuple):
    """Percussions (impulses, N s) of a step: ``P_N`` (n_N,), ``P_F`` (n_N, d), ``P_g`` (n_g,), ``P_gamma`` (n_gamma,)."""

    P_N: jax.Array
    P_F: jax.Array
    P_g: jax.Array
    P_gamma: jax.Array


class State(NamedTuple):
    """What a scheme carries from node to node: coordinates, velocity leaving the node, percussions at the node."""

    q: jax.Array
    u: jax.Array
    P: Percussions


class Info(NamedTuple):
    """How the equations of a step were solved."""

    iterations: jax.Array  # Newton iterations on the contact problem
    residual: jax.Array  # largest entry of the natural map, in units of percussion
    converged: jax.Array
    contact: jax.Array  # contact with the largest entry where the step did not converge, else -1


def nothing_to_solve(dtype):
    """`Info` of a node without a contact problem."""
    zero = jnp.zeros((), jnp.int32)
    return Info(zero, jnp.zeros((), dtype), jnp.ones((), bool), zero - 1)


def total(info, more):
    """`Info` of a step that was solved in two parts."""
    return Info(
        info.iterations + more.iterations,
        jnp.maximum(info.residual, more.residual),
        info.converged & more.converged,
        jnp.maximum(info.contact, more.contact),
    )


@dataclass(frozen=True)
class Scheme:
    """A time-stepping scheme: a frozen value with `init` and `step`; `step` is the body of `jax.lax.scan`.

    ``order`` is the order of convergence on smooth motion. What `prepare` makes of the system, once for all steps, takes its place in
    `init` and `step`. A state has the fields of `State`; those of its further fields that are listed in ``auxiliary`` are stored in
    `Solution.auxiliary`.
    """

    order: ClassVar[int]
    auxiliary: ClassVar[tuple[str, ...]] = ()
    #: Whether gaps are closed on position level: then the step's own derivative forgets the state before an impact.
    position_level: ClassVar[bool] = False
    #: By what part of a step the velocity of a state is ahead of its coordinates in time.
    lead: ClassVar[float] = 0.0

    def __post_init__(self):
        parameters.check(self)

    @property
    def name(self):
        """The scheme's name, as it is written in Python."""
        return type(self).__name__

    def refuse(self, system, t, q, u):
        """Sentence that says why this scheme cannot take the system, and what to use instead; None if it can."""
        del system, t, q, u

    def advise(self, system, t, q):
        """Sentence that warns where system and scheme are outside of a theorem together; None if they are not. Values are known."""
        del system, t, q

    def check(self, system, dt):
        """Raise ValueError where the scheme cannot step this system with this dt. Values are known."""
        del system, dt

    def prepare(self, system, dt):
        """What `init` and `step` get as the system: the system itself, or with it what does not change from step to step."""
        del dt
        return system

    def system(self, prepared):
        """The system, or its tangent, in what `prepare` made of it."""
        return prepared

    def inertia(self, prepared, t, q, u, kin):
        """`Condensed` form of the mass matrix."""
        return Condensed(self.system(prepared).M(t, q, u), kin)

    def shifted(self, prepared, t, state, tangent, dq, du):
        """Tangent of a state at t whose coordinates and velocity are moved by dq and du."""
        del prepared, t, state
        return tangent._replace(q=tangent.q + dq, u=tangent.u + du)

    def init(self, system, t, dt, q, u, settings):
        """``(state, info)`` at the first node, from the initial coordinates and velocity."""
        raise NotImplementedError

    def step(self, system, t, dt, state, settings):
        """``(state, info)`` at time ``t + dt`` from the state at ``t``."""
        raise NotImplementedError


class Kinematics(NamedTuple):
    """Force directions and velocities at u = 0, at one configuration: contact velocities are ``W^T u + chi``."""

    W: jax.Array  # (n_u, n (d + 1)) contacts, in the contact solver's order
    chi: jax.Array
    W_b: jax.Array  # (n_u, n_g + n_gamma) bilateral constraints
    chi_b: jax.Array


def kinematics(system, t, q, u):
    """Force directions of all contacts and constraints; only the shape of ``u`` is used."""
    u = jnp.zeros_like(u)
    W_N, W_F = system.W_N(t, q, u), system.W_F(t, q, u)
    return Kinematics(
        jnp.concatenate([W_F.reshape(u.shape[0], -1), W_N], axis=1),
        contact.join(system.gap_velocity(t, q, u), system.tangential_velocity(t, q, u)),
        jnp.concatenate([system.W_g(t, q, u), system.W_gamma(t, q, u)], axis=1),
        jnp.concatenate([system.constraint_velocity(t, q, u), system.velocity_constraint(t, q, u)]),
    )


def restitution(system, t, q, d):
    """Restitution coefficients in the contact solver's order."""
    e_N, e_F, _ = system.contact_data(t, q)
    return contact.join(e_N, jnp.broadcast_to(e_F[:, None], (e_F.shape[0], d)))


def impact_law(system, t, q, u_minus, d):
    """`Kinematics` at (t, q), and the part of ``xi = xi_plus + e xi_minus`` that the arriving velocity determines, C18 (56)."""
    kin = kinematics(system, t, q, u_minus)
    if not kin.chi.shape[0]:
        return kin, kin.chi
    return kin, restitution(system, t, q, d) * (linalg.matmul(kin.W.T, u_minus) + kin.chi)


def no_percussions(system, t, q, u):
    """Zero percussions in the shapes of a system."""
    shapes = jax.eval_shape(
        lambda: (system.gap(t, q), system.tangential_velocity(t, q, u), system.constraint(t, q), system.velocity_constraint(t, q, u))
    )
    return Percussions(*(jnp.zeros(s.shape, q.dtype) for s in shapes))


class Condensed:
    """The linearized momentum balance, with the velocity and the bilateral percussions eliminated.

    Holds the map from an impulse to a velocity, ``A^-1``, and its restriction to the motions that the bilateral constraints allow.
    ``effect`` maps force directions to what their percussions do to the balance (default: themselves), ``invert`` is ``A^-1``, where it
    is known.
    """

    def __init__(self, A, kin, effect=None, invert=None):
        n_u, m = kin.W.shape
        self.kin = kin
        self.unpacked = max(n_u, m, kin.W_b.shape[1]) <= linalg.UNROLL and min(n_u, m) > 0 and invert is None
        self.W = self.convert(kin.W)
        self.invert = invert or linalg.lu(self.convert(A))
        self.bilateral = kin.W_b.shape[1] > 0
        self.Y = self.invert(self.convert(effect(kin.W)) if effect else self.W) if m else self.W
        if self.bilateral:
            self.W_b = self.convert(kin.W_b)
            self.Y_b = self.invert(self.convert(effect(kin.W_b)) if effect else self.W_b)
            self.condense_bilateral()
        if m:
            self.G = linalg.matmul(self.W.T, self.Y)

    def condense_bilateral(self):
        """Restrict the effect of the contacts to what the bilateral constraints allow."""
        G_bb = linalg.matmul(self.W_b.T, self.Y_b)
        diagonal = contact.diagonal(G_bb)
        scale = linalg.where(linalg.greater(diagonal, 0), linalg.divide(1.0, diagonal), 1.0)
        solve = linalg.lu(scale[:, None] * G_bb, guard=True)
        self.solve_b = lambda x: solve(scale.reshape((-1,) + (1,) * (x.ndim - 1)) * x)
        if self.kin.W.shape[1]:
            self.B = self.solve_b(linalg.matmul(self.W_b.T, self.Y))  # bilateral percussion per contact percussion
            self.Y = self.Y - linalg.matmul(self.Y_b, self.B)

    def convert(self, x):
        """A JAX array in the kind the contact problem is written in."""
        return linalg.unpack(x) if self.unpacked else x

    def free(self, u, residual, chi_b):
        """``(u, P_b)`` without contact percussions: one step against the residual of the balance, with ``W_b^T u + chi_b = 0``."""
        u = self.convert(u) - self.invert(self.convert(residual))
        if not self.bilateral:
            return u, None
        P_b = -self.solve_b(linalg.matmul(self.W_b.T, u) + self.convert(chi_b))
        return u + linalg.matmul(self.Y_b, P_b), P_b

    def at_contacts(self, u):
        """``W^T u``."""
        return linalg.matmul(self.W.T, u)

    def add(self, u, P_b, z):
        """``(u, P_b)`` with contact percussions ``z``."""
        if z.shape[0] == 0:
            return u, P_b
        if self.bilateral:
            P_b = P_b - linalg.matmul(self.B, z)
        return u + linalg.matmul(self.Y, z), P_b


class Factored(Condensed):
    """The same for a balance whose matrix is constant: ``solve`` is ``A^-1``, ``Y`` and ``G`` are there already, from `prepare`."""

    def __init__(self, solve, Y, G, kin):
        self.kin, self.W, self.Y = kin, kin.W, Y
        self.unpacked = 0 < kin.W.shape[1] <= linalg.UNROLL
        self.invert, self.bilateral = solve, False
        self.G = self.convert(G)

    def free(self, u, residual, chi_b):
        """Without bilateral constraints."""
        del chi_b
        return u - self.invert(residual), None

    def at_contacts(self, u):
        """``W^T u``, in the kind of the contact problem."""
        return self.convert(jnp.sum(self.W * u[:, None], axis=0))

    def add(self, u, P_b, z):
        """With contact percussions ``z``."""
        if z.shape[0] == 0:
            return u, P_b
        return u + jnp.sum(self.Y * linalg.pack(z)[None, :], axis=1), P_b


#: Round-off of a momentum balance, in units of the machine precision times its terms.
ROUND_OFF = 16


def resolution(q, dt, n_u):
    """Velocities ``|q| / dt``, (n_u,); the largest for all where coordinates and velocities do not correspond."""
    speed = jnp.abs(q) / dt
    return speed if q.shape[0] == n_u else jnp.broadcast_to(jnp.max(speed), (n_u,))


class VelocityProblem(NamedTuple):
    """The velocity-level problem of one step, as functions of ``args``; what varies in them is differentiated.

    balance(args, u):         R(u), momentum balance without percussions, (n_u,): ``R(u) = p`` with the impulse ``p = W z + W_b P_b``
    jacobian(args, u):        dR/du, (n_u, n_u)
    contacts(args):           `Kinematics`, and the part of xi that does not depend on u: ``e (W^T u_minus + chi)``
    friction(args):           friction coefficients (n,)
    active(args):             which contacts are active (n,)
    linear:                   whether R is linear, so that one iteration is enough
    effect(args, u):          where the impulse enters R as well, ``balance(args, u, p)`` with p = None for none: function that applies
                              ``1 - dR/dp`` to a vector or to columns
    condense(args, u, kin):   `Condensed`, R linearized, where something better is known than the Jacobian
    resolution(args):         (n_u,) velocities ``|q| / dt``: their round-off is all that positions, and forces that balance, resolve
    """

    balance: object
    jacobian: object
    contacts: object
    friction: object
    active: object
    linear: bool
    effect: object = None
    condense: object = None
    resolution: object = None

    def residual(self, args, u, p=None):
        """``R - p``; None: no impulse."""
        R = self.balance(args, u, p) if self.effect else self.balance(args, u)
        return R if p is None else R - p

    def condensed(self, args, u, kin):
        """R linearized at ``u``."""
        if self.condense:
            return self.condense(args, u, kin)
        return Condensed(self.jacobian(args, u), kin, self.effect and self.effect(args, u))


def impulse(kin, z, P_b):
    """``W z + W_b P_b``, (n_u,)."""
    p = linalg.matmul(kin.W, z) if z.shape[0] else jnp.zeros(kin.W.shape[:1], kin.W.dtype)
    return p + linalg.matmul(kin.W_b, P_b) if P_b.shape[0] else p


def _contact_problem(problem, args, condensed, c, d):
    convert = condensed.convert
    return contact.Problem(condensed.G, c, convert(problem.friction(args)), convert(problem.active(args)), d)


def solve_velocity(problem, args, u, P, settings):
    """Solve a `VelocityProblem` from the guess ``u`` and the percussions ``P``: ``(u, P, info)``, differentiable in ``args``."""
    n, d = P.P_F.shape
    guess = contact.join(P.P_N, P.P_F)
    n_g = P.P_g.shape[0]
    frozen, u, guess = jax.tree.map(lax.stop_gradient, (args, u, guess))
    dtype = u.dtype
    tolerance = settings.tolerance_for(dtype)
    no_bilateral = jnp.zeros((n_g + P.P_gamma.shape[0],), dtype)

    def linearized(u, z, P_b):
        """Solution of the problem linearized at ``u`` and at the impulse of ``z`` and ``P_b``."""
        kin, rebound = problem.contacts(frozen)
        condensed = problem.condensed(frozen, u, kin)
        convert = condensed.convert
        if problem.effect and not problem.linear:
            # What the residual would be without percussions, to first order.
            p = impulse(kin, z, P_b)
            residual = problem.residual(frozen, u, p) + problem.effect(frozen, u)(p)
        else:
            residual = problem.residual(frozen, u)
        free, P_b = condensed.free(u, residual, kin.chi_b)
        if n:
            c = condensed.at_contacts(free) + convert(kin.chi + rebound)
            active = problem.active(frozen)
            z = jnp.where(contact.join(active, jnp.broadcast_to(active[:, None], (n, d))), z, 0)
            result = contact.solve(_contact_problem(problem, frozen, condensed, c, d), convert(z), settings, dtype)
            z = linalg.pack(result.z)
            free, P_b = condensed.add(free, P_b, result.z)
            info = Info(result.iterations, result.residual, result.error <= 1, result.contact)
        else:
            info = nothing_to_solve(dtype)
        P_b = linalg.pack(P_b) if condensed.bilateral else jnp.zeros((0,), dtype)
        return (linalg.pack(free), z, P_b), info, kin

    if problem.linear:
        x, info, _ = linearized(u, guess, no_bilateral)
    else:
        start_u = u

        def iteration(carry):
            x, previous = carry
            x, info, kin = linearized(*x)
            u, z, P_b = x
            p = impulse(kin, z, P_b)
            largest = jnp.max(jnp.abs(problem.residual(frozen, u, p)))
            momentum = jnp.abs(problem.jacobian(frozen, u))
            size = jnp.max(momentum @ (jnp.abs(u) + jnp.abs(start_u))) + jnp.max(jnp.abs(p))
            floor = ROUND_OFF * float(jnp.finfo(dtype).eps) * jnp.max(momentum @ problem.resolution(frozen))
            error = largest / (tolerance * size + floor + float(jnp.finfo(dtype).tiny))
            return (x, info._replace(iterations=info.iterations + previous.iterations)), error

        start = ((u, guess, no_bilateral), nothing_to_solve(dtype))
        (x, info), error, _ = iterate(iteration, start, jnp.full((), jnp.inf, dtype), settings.max_outer)
        info = info._replace(converged=info.converged & (error <= 1))

    u, z, P_b = implicit(Response(problem, d), jax.tree.map(lax.stop_gradient, x), args)
    P_N, P_F = contact.split(z, n, d)
    return u, Percussions(P_N, P_F, P_b[:n_g], P_b[n_g:]), info


@dataclass(frozen=True)
class Response:
    """Derivative of the solution of a `VelocityProblem` by the implicit function theorem: one linear solve, no iteration."""

    problem: VelocityProblem
    d: int

    def __call__(self, x, args, dargs):
        """``(du, dz, dP_b)`` for a tangent of the arguments."""
        problem, d = self.problem, self.d
        u, z, P_b = x
        n = z.shape[0] // (d + 1)

        def laws(args):
            """Residual of the balance, bilateral rows and xi, at fixed unknowns."""
            kin, rebound = problem.contacts(args)
            balance = problem.residual(args, u, impulse(kin, z, P_b))
            xi = linalg.matmul(kin.W.T, u) + kin.chi + rebound if n else kin.chi
            rows = linalg.matmul(kin.W_b.T, u) + kin.chi_b if P_b.shape[0] else kin.chi_b
            return balance, rows, xi, problem.friction(args)

        (_, _, xi, _), (d_balance, d_rows, d_xi, d_mu) = jax.jvp(laws, (args,), (dargs,))
        kin, _ = problem.contacts(args)
        condensed = problem.condensed(args, u, kin)
        convert = condensed.convert
        free, dP_b = condensed.free(jnp.zeros_like(u), d_balance, d_rows)
        dz = z
        if n:
            d_xi = convert(d_xi) + condensed.at_contacts(free)
            contacts = _contact_problem(problem, args, condensed, None, d)
            dz = contact.response(contacts, convert(z), convert(xi), d_xi, convert(d_mu))
            free, dP_b = condensed.add(free, dP_b, dz)
            dz = linalg.pack(dz)
        return linalg.pack(free), dz, linalg.pack(dP_b) if condensed.bilateral else P_b
