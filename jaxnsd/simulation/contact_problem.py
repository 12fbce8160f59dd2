"""One contact problem on its own: the Newton-type impact law with Coulomb friction for a given Delassus operator."""

import functools
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from .. import contact
from ..contact import AbstractContactSolver, InteriorPoint, SemismoothNewton
from ..mechanics.results import Outcome
from ..native.jax_internals import is_traced, known_array
from ..numerics import linalg
from ..numerics.newton import implicit
from ..programs import runs
from ..programs.derivatives import instantiated
from ..programs.given import array, numbers, shown
from ..programs.jitted import jit
from . import checks

#: Contacts from which on the structure of a Delassus operator whose values are known is looked for.
CHAIN = 50


class ContactSolution(NamedTuple):
    """Solution of a contact problem; a batch (`vmap`) adds leading axes to all of it."""

    P: jax.Array  # (n (d + 1),) percussions, N s; rows per contact N, T1, T2
    xi: jax.Array  # (n (d + 1),) kinematic quantities G P + c, m/s; rows as in P
    iterations: jax.Array  # Newton iterations
    residual: jax.Array  # largest entry of the natural map, N s
    outcome: jax.Array  # `jaxnsd.Outcome`: SUCCESS, NOT_CONVERGED, NON_FINITE or INVALID_PARAMETER
    contact: jax.Array  # contact with the largest entry of the natural map where the problem was not solved, else -1


def solve_contact_problem(
    G: ArrayLike,
    c: ArrayLike,
    mu: ArrayLike,
    *,
    d: int = 2,
    active: ArrayLike | None = None,
    solver: AbstractContactSolver | None = None,
    guess: ArrayLike | None = None,
) -> ContactSolution:
    """Find percussions ``P`` such that ``xi = G P + c`` and ``P`` obey the law of impact and friction.

    For every contact, with its rows in the order N, T1, T2 (Capobianco & Eugster 2018, (30), (56), (57))

        0 <= P_N  _|_  xi_N >= 0,        -xi_F in the normal cone of the disc of radius mu P_N at P_F

    or, for any r > 0, ``P_N = max(0, P_N - r xi_N)`` and ``P_F = prox_B(mu P_N)(P_F - r xi_F)``. In a time step G = W^T M^-1 W and c is
    what xi would be without percussions: the free velocity and the restitution.

    Parameters
    ----------
    G:       (m, m) Delassus operator, m = n (d + 1) for n contacts, 1/kg; symmetric positive semidefinite (redundant contacts: singular)
    c:       (m,) xi at P = 0, m/s
    mu:      scalar or (n,) friction coefficients, not negative
    d:       number of tangential directions: 2 spatial, 1 planar, 0 frictionless
    active:  (n,) booleans: a contact that is not active carries no percussion and its xi obeys nothing; default all
    solver:  `SemismoothNewton` with its settings, or an `AbstractContactSolver` of one's own
    guess:   (m,) percussions to start from; default zero

    Returns a `ContactSolution`. Works under `jit`, `vmap` and `grad`, in forward and reverse mode and to second order, by the implicit
    function theorem: derivatives with respect to ``G`` (entries independent of each other), ``c`` and ``mu``. Where contacts are
    redundant (G singular) one of many P is returned; xi is the same for all, except that of bodies which slide and turn at once: there
    the law leaves open how the contacts share the load, and so the moment of friction; time steps have a rule for that. At a kink of
    the law the derivative is one-sided; that of an unsolved problem means nothing: read ``outcome``.

    Raises ValueError or TypeError, before tracing, for wrong shapes and dtypes, and, where the values are known, for a G that is not
    symmetric positive semidefinite, a negative mu, and values that are not finite. Under a transformation values are not known: one
    that is not finite comes back as the outcome NON_FINITE, a negative mu as INVALID_PARAMETER.
    """
    solver = SemismoothNewton() if solver is None else solver
    args = _checked(G, c, mu, d, active, solver, guess)
    d = int(d)
    groups = None
    if args[2].shape[0] >= CHAIN and isinstance(solver, (InteriorPoint, SemismoothNewton)):
        values = lax.stop_gradient(args[0])
        groups = contact.groups_of(np.asarray(values), args[2].shape[0]) if checks.known(values) else None
    if groups is not None:
        return _solve_chain(*args, groups, d, solver.interior())
    return _solve(*args, d, solver)


@jit(static_argnames=("d", "solver"))
def _solve_chain(G, c, mu, active, guess, groups, d, solver):
    args = G, c, mu, active, groups
    frozen, guess = lax.stop_gradient((args, guess))

    def solve(args):
        (G, c, mu, active, groups), guess = args
        chain = Chain(groups, d)
        law, active = chain.law(G, c, mu, active)
        result = solver.find(law, chain.take(guess.reshape(-1, d + 1)), active)
        worst = jnp.where(result.contact < 0, -1, groups.reshape(-1)[result.contact])
        return result._replace(z=chain.give(result.z)[: len(mu)].reshape(-1), contact=worst)

    result = runs.run(solve, (frozen, guess), lockstep=not runs.on_cpu())
    z = implicit(ChainResponse(d), lax.stop_gradient(result.z), args)
    return _solution(z, jnp.matmul(G, z, precision="highest") + c, mu, result)


@dataclass(frozen=True)
class Chain:
    """Contacts in groups, see `contact.operators.Chain`; arrays have one row per contact."""

    groups: jax.Array
    d: int

    def take(self, x):
        """Rows in the order of the groups; what fills them up is zero."""
        return jnp.concatenate([x, jnp.zeros_like(x[:1])])[self.groups.reshape(-1)]

    def give(self, x):
        """Inverse of `take`, of which the last rows may only fill up."""
        order = self.groups.reshape(-1)
        return x[jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype), mode="drop")]

    def law(self, G, c, mu, active):
        """``(law, active)`` in the order of the groups."""
        whole = jnp.concatenate([active, jnp.zeros((1,), bool)])
        operator = contact.Chain.of(G, self.groups, whole, self.d + 1)
        active = self.take(active)
        return contact.Law(operator, self.take(c.reshape(-1, self.d + 1)), self.take(mu), active), active


@dataclass(frozen=True)
class ChainResponse:
    """The `Response` of a problem whose contacts come in groups."""

    d: int

    def __call__(self, z, args, dargs):
        """Tangent of the percussions for a tangent of ``(G, c, mu, active, groups)``, rows contact by contact."""
        G, c, mu, active, groups = args
        dG, dc, dmu, _, _ = instantiated(args, dargs)
        product = functools.partial(jnp.matmul, precision="highest")
        chain = Chain(groups, self.d)
        law, active = chain.law(G, c, mu, active)
        rows = (chain.take(x.reshape(-1, self.d + 1)) for x in (z, product(G, z) + c, product(dG, z) + dc))
        return chain.give(contact.respond(law, active, *rows, chain.take(dmu)))[: len(mu)].reshape(-1)


def _solution(z, xi, mu, result):
    """`ContactSolution` with rows contact by contact."""
    finite = jnp.all(jnp.isfinite(jnp.concatenate([z, xi, mu])))
    outcome = jnp.where(result.error <= 1, Outcome.SUCCESS, Outcome.NOT_CONVERGED)
    outcome = jnp.where(finite, outcome, Outcome.NON_FINITE)
    outcome = jnp.where(jnp.any(mu < 0), Outcome.INVALID_PARAMETER, outcome).astype(jnp.int32)
    return ContactSolution(z, xi, result.iterations, result.residual, outcome, result.contact)


@jit(static_argnames=("d", "solver"))
def _solve(G, c, mu, active, guess, d, solver):
    n, dtype = mu.shape[0], c.dtype
    zero = jnp.zeros((), jnp.int32)
    if n == 0:
        return ContactSolution(c, c, zero, jnp.zeros((), dtype), zero + Outcome.SUCCESS, zero - 1)
    args = (_internal(_internal(G, n, d).T, n, d).T, _internal(c, n, d), mu, active)
    frozen, guess = lax.stop_gradient((args, _internal(guess, n, d)))
    allowed = contact.join(active, jnp.broadcast_to(active[:, None], (n, d)))
    guess = jnp.where(allowed, guess, jnp.zeros_like(guess))

    def solve(args):
        args, guess = args
        result = contact.solve(_problem(args, d), _kind(c)(guess), solver)
        return result._replace(z=linalg.pack(result.z))

    result = runs.run(solve, (frozen, guess), lockstep=not runs.on_cpu())
    z = implicit(Response(d, solver), lax.stop_gradient(result.z), args)
    xi = linalg.matmul(args[0], z) + args[1]
    return _solution(_per_contact(z, n, d), _per_contact(xi, n, d), mu, result)


@dataclass(frozen=True)
class Response:
    """Derivative of the percussions by the implicit function theorem: one linear solve, no iteration."""

    d: int
    solver: AbstractContactSolver

    def __call__(self, z, args, dargs):
        """Tangent of the percussions for a tangent of ``(G, c, mu, active)``, all in the contact solver's order."""
        G, c, _, _ = args
        dG, dc, dmu, _ = instantiated(args, dargs)
        xi = linalg.matmul(G, z) + c
        dxi = linalg.matmul(dG, z) + dc  # at fixed percussions
        kind = _kind(c)
        return linalg.pack(contact.response(_problem(args, self.d), kind(z), kind(xi), kind(dxi), kind(dmu), self.solver))


def _kind(c):
    """What brings an array of a problem to the kind that the contact solver takes."""
    return linalg.unpack if c.shape[0] <= linalg.UNROLL else lambda x: x


def _problem(args, d):
    return contact.Problem(*map(_kind(args[1]), args), d)


def _internal(x, n, d):
    """Rows per contact (N, T1, T2), ... to the contact solver's order, which is that of `contact.join`."""
    x = x.reshape(n, d + 1, *x.shape[1:])
    return jnp.concatenate([x[:, 1:].reshape(n * d, *x.shape[2:]), x[:, 0]])


def _per_contact(x, n, d):
    """Inverse of `_internal`."""
    x_N, x_F = contact.split(x, n, d)
    return jnp.concatenate([x_N[:, None], x_F], axis=1).reshape(-1)


# ------------------------------------------------------------------------------------------------------------------- checks
def _checked(G, c, mu, d, active, solver, guess):
    """Arrays ``(G, c, mu, active, guess)`` of a contact problem, checked and complete."""
    caller = "solve_contact_problem"
    checks.is_solver(caller, solver)
    if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d not in (0, 1, 2):
        raise ValueError(f"{caller}: d must be 0 (frictionless), 1 (planar) or 2 (spatial), got {shown(d)}")
    G, c = array(caller, "G", G, 2), array(caller, "c", c, 1)
    n, rest = divmod(c.shape[0], d + 1)
    if rest:
        raise ValueError(f"{caller}: c must have {d + 1} rows per contact for d = {d}, got shape {c.shape}; pass the right d, or all rows")
    if G.shape != 2 * c.shape:
        raise ValueError(f"{caller}: G must have shape {2 * c.shape}, one row and column per entry of c, got {G.shape}")
    mu = known_array(mu, c.dtype) if isinstance(mu, (int, float)) else array(caller, "mu", mu, np.ndim(mu))
    if mu.shape not in ((), (n,)):
        raise ValueError(f"{caller}: mu must be a scalar or of shape ({n},), one entry per contact, got shape {mu.shape}")
    guess = known_array(np.zeros(c.shape), c.dtype) if guess is None else array(caller, "guess", guess, 1)
    if guess.shape != c.shape:
        raise ValueError(f"{caller}: guess must have the shape of c, {c.shape}, got {guess.shape}")
    for name, value in (("G", G), ("mu", mu), ("guess", guess)):
        if value.dtype != c.dtype:
            raise TypeError(f"{caller}: {name} must have the dtype of c, {c.dtype}, got {value.dtype}; convert one of them")
    flags = np.ones(n, bool) if active is None else numbers(active)
    if flags is None or flags.dtype != bool or flags.shape != (n,):
        raise ValueError(f"{caller}: active must be {n} booleans, one per contact, got {shown(active)}")
    active = flags if is_traced(flags) else known_array(flags)
    if checks.known(mu) and not np.all((np.asarray(mu) >= 0) & np.isfinite(mu)):
        raise ValueError(f"{caller}: mu must be finite and not negative, got {np.asarray(mu)}; it is Coulomb's friction coefficient")
    if checks.known(G) and n:
        _delassus(caller, np.asarray(G))
    mu = known_array(np.broadcast_to(mu, (n,))) if checks.known(mu) else jnp.broadcast_to(mu, (n,))
    return G, c, mu, active, guess


#: Entries of a Delassus operator, relative to the largest, that may be missing in its symmetry, and by which it may be indefinite: those of
#: other codes are printed with few digits, or come from implicit terms. Beyond round-off they are taken with a warning.
ASYMMETRY, INDEFINITE = 1e-2, 1e-4

#: Rows up to which the definiteness of a Delassus operator is decided, by a Cholesky factorization, which takes far less time than
#: eigenvalues; of larger ones all pairs of rows are looked at.
DECIDED = 2000


@functools.cache
def _cholesky(n, dtype):
    """The factorization as one program, inside of a trace, too, where known values are computed operation by operation else."""
    return jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((n, n), dtype)).compile()


def _smallest(G, largest, round_off):
    """Smallest eigenvalue of a symmetric matrix over the ``largest`` entry; zero where it is not below round-off."""
    # By JAX: the idle threads of NumPy's own LAPACK spin for a while and slow down the solver that comes next, by a half on two cores.
    factored = _cholesky(len(G), G.dtype)
    with jax.ensure_compile_time_eval():
        factor = np.asarray(factored(G + round_off * largest * np.eye(len(G), dtype=G.dtype)))
    return 0.0 if np.all(np.isfinite(factor)) else np.linalg.eigvalsh(G)[0] / largest


def _delassus(caller, G):
    largest = np.abs(G).max()
    round_off = 100 * len(G) * float(np.finfo(G.dtype).eps)
    asymmetry = np.abs(G - G.T).max() / (largest or 1)
    if asymmetry > ASYMMETRY:
        raise ValueError(f"{caller}: G must be symmetric, got an asymmetry of {asymmetry * largest:.3g}; it is W^T M^-1 W")
    if len(G) <= DECIDED:
        smallest = _smallest(0.5 * (G + G.T), largest or 1, round_off)
    else:
        # Smallest eigenvalue of the worst pair of rows.
        diagonal = np.diag(G)
        half = 0.5 * (diagonal[:, None] - diagonal[None, :])
        off = np.where(np.eye(len(G), dtype=bool), 0, G)
        smallest = np.min(0.5 * (diagonal[:, None] + diagonal[None, :]) - np.sqrt(half * half + off * off)) / largest
    if smallest < -INDEFINITE - np.sqrt(len(G)) * asymmetry:
        raise ValueError(f"{caller}: G must be positive semidefinite, got the eigenvalue {smallest * largest:.3g}; it is W^T M^-1 W")
    asymmetric = [f"is not symmetric (entries differ by {asymmetry:.1e} of the largest)"] * bool(asymmetry > round_off)
    indefinite = [f"is not positive semidefinite (an eigenvalue of {smallest:.1e} of the largest entry)"] * bool(smallest < -round_off)
    if asymmetric or indefinite:
        what = " and ".join(asymmetric + indefinite)
        message = f"{caller}: G {what}, more than round-off; it is taken as given. Was it printed with few digits? It should be W^T M^-1 W"
        warnings.warn(message, UserWarning, stacklevel=4)
