"""Linear systems ``M dv/dt + C v + K q = F(t) + G lambda`` with linear gaps ``G^T q + w``: the setting of Acary (2014)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..native.jax_internals import is_traced, jaxpr_as_fun
from ..numerics.linalg import matmul
from ..numerics.tridiagonal import Tridiagonal
from ..programs.given import as_array, numbers, shown, takes
from .system import INERTIA, System, system


@system
class LinearSystem(System):
    """Linear dynamics with unilateral contact and friction, Acary (2014): ``M dv/dt + C v + K q = F(t) + G lambda``, gaps ``G^T q + w``.

    Arguments, in this order (n coordinates, n_N contacts, d tangential directions):

    =================  ==================================================================================================
    ``mass``           (n, n) M, symmetric positive definite (``M`` itself is the method ``M(t, q)`` of every system)
    ``K``              (n, n) stiffness, symmetric
    ``C``              (n, n) damping; default none
    ``F``              external force: an array (n,), or a function of t that returns one; default none
    ``G``              (n, n_N) normal force directions; default no contact
    ``w``              gaps at q = 0, scalar or (n_N,)
    ``G_F``            (n, n_N, d) tangential force directions: tangential velocities are ``G_F^T v``; default frictionless
    ``e_N, e_F, mu``   contact data, scalar or (n_N,)
    ``dry_friction``   bounds of dry friction on the velocities, scalar or (n,); default none
    =================  ==================================================================================================

    ``mass``, ``K`` and ``C`` may be `Tridiagonal`. The theta- and alpha-schemes factor their iteration matrix once per run. All arrays
    are leaves of the pytree: differentiate and batch over what you like. A function ``F`` is a constant of compilation, one per function
    object: define it once, not as a lambda at every call, and hand over what it depends on with `jax.tree_util.Partial(f, parameters)`.
    One that closes over values traced by `grad` or `vmap` works too, and is compiled at every call.
    Subclass it for what a field cannot say, such as a moving wall: override ``gap``. What is derived follows from what is overridden.

    Raises ValueError, if made of known values, for an asymmetric or indefinite mass, an asymmetric K, and sizes that do not fit.
    """

    mass: Any
    K: Any
    C: Any = None
    F: Any = None
    G: Any = None
    w: Any = 0.0
    G_F: Any = None
    e_N: Any = 0.0
    e_F: Any = 0.0
    mu: Any = 0.0
    dry_friction: Any = None

    def __post_init__(self):
        name = type(self).__name__
        for field in ("mass", "K", "C", "G", "G_F", "F"):
            value = getattr(self, field)
            if isinstance(value, Tridiagonal) or (value is None and field not in ("mass", "K")) or (field == "F" and callable(value)):
                continue
            array = numbers(value)
            if array is None:
                raise TypeError(f"{name}: {field} must be an array of numbers, got {shown(value)}")
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise TypeError(f"{name}: {field} must be of a floating dtype, got {array.dtype}; write 1.0 for 1")
            object.__setattr__(self, field, as_array(value))
        if callable(self.F):
            takes(f"{name}: F", self.F, "t")
            if not isinstance(self.F, jax.tree_util.Partial):
                object.__setattr__(self, "F", _with_its_constants(self.F, self.mass.dtype))
        _check(self, name)

    # ------------------------------------------------------------------------------------------------------- what it is
    def external_force(self, t: ArrayLike) -> jax.Array:
        """F(t), (n,)."""
        if self.F is None:
            return jnp.zeros(self.mass.shape[:1], self.mass.dtype)
        return self.F(t) if callable(self.F) else self.F

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = 1/2 v^T M v."""
        if self._overridden("mass_matrix", "M"):
            return 0.5 * u @ (self.M(t, q, u) @ u)
        return 0.5 * jnp.sum(u * product(self.mass, u))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = 1/2 q^T K q, without the potential of F."""
        del t
        return 0.5 * jnp.sum(q * product(self.K, q))

    def force(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """F(t) - C v."""
        del q
        return self.external_force(t) - product(self.C, u)

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """G^T q + w."""
        del t
        return jnp.sum(self.directions() * q[:, None], axis=0) + self.w

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """G_F^T v."""
        if self.G_F is None:
            return super().tangential_velocity(t, q, u)
        return jnp.sum(self.G_F * u[:, None, None], axis=0)

    def directions(self) -> jax.Array:
        """G, (n, n_N)."""
        return jnp.zeros((self.mass.shape[0], 0), self.mass.dtype) if self.G is None else self.G

    # --------------------------------------------------------------------------------- closed forms of what is derived
    def M(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Mass matrix as an array (n, n)."""
        return super().M(t, q, u) if self._overridden(*INERTIA) else dense(self.mass)

    def _inertias(self, t, q, u):
        """Diagonal of M, without the array of it."""
        return super()._inertias(t, q, u) if self._overridden(*INERTIA) else diagonal(self.mass)

    def momentum(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """p = M v."""
        return super().momentum(t, q, u) if self._overridden(*INERTIA) else product(self.mass, u)

    def b(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """b = F(t) - K q - C v."""
        if self._overridden("potential_energy", "q_dot", *INERTIA):
            return super().b(t, q, u)
        return self.force(t, q, u) - product(self.K, q)

    def h(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """h = b: M is constant."""
        return super().h(t, q, u) if self._overridden(*INERTIA) else self.b(t, q, u)

    def gap_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """G^T v."""
        if self._overridden("gap", "q_dot"):
            return super().gap_velocity(t, q, u)
        return jnp.sum(self.directions() * u[:, None], axis=0)

    def W_N(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """W_N = G."""
        return super().W_N(t, q, u) if self._overridden("gap", "gap_velocity", "q_dot") else self.directions()

    def W_F(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """W_F = G_F, (n, n_N, d)."""
        if self.G_F is None or self._overridden("tangential_velocity"):
            return super().W_F(t, q, u)
        return self.G_F

    # ------------------------------------------------------------------------------------------------ what is constant
    def is_linear(self) -> bool:
        """Whether the equations of motion are still those of this class: a subclass may have added forces."""
        return not self._overridden("kinetic_energy", "potential_energy", "force", "q_dot", "mass_matrix", "M", "momentum", "b", "h")

    def changes_inertia(self) -> bool:
        """Whether a subclass has an inertia of its own."""
        return self._overridden(*INERTIA)

    def has_constant_directions(self) -> bool:
        """Whether the force directions of the contacts are still G and G_F, and there are no bilateral constraints."""
        changed = self._overridden("gap", "gap_velocity", "q_dot", "tangential_velocity", "W_N", "W_F")
        return not (changed or self.defines("constraint") or self.defines("velocity_constraint"))

    def _overridden(self, *names):
        return self._differs_from(LinearSystem, *names)


def _with_its_constants(function, dtype):
    """A function of t as a `Partial` of the traced values that it closes over, if there are any."""
    try:
        traced = jax.make_jaxpr(function)(jnp.zeros((), dtype))
        constants = traced.consts
    except Exception:
        constants = ()  # what is wrong with it is said where it is called
    if not any(is_traced(x) for x in constants):
        return jax.tree_util.Partial(function)

    def of(constants, t):
        return jaxpr_as_fun(traced.replace(consts=constants))(jnp.asarray(t, dtype))[0]

    return jax.tree_util.Partial(of, list(constants))


def _shape_of(function, dtype):
    """Shape of what a function of t returns; None if it fails, which is said where it is called."""
    try:
        return jax.eval_shape(function, jnp.zeros((), dtype)).shape
    except Exception:
        return None


def product(A, x):
    """``A x`` for an array, a `Tridiagonal` matrix or None (zero), and ``x`` of shape (n,) or (n, k)."""
    if A is None:
        return jnp.zeros_like(x)
    return A @ x if isinstance(A, Tridiagonal) else matmul(A, x)


def dense(A):
    """A matrix as an array."""
    return A.dense() if isinstance(A, Tridiagonal) else A


def diagonal(A):
    """Diagonal (n,) of a matrix."""
    return A.diagonal if isinstance(A, Tridiagonal) else jnp.diagonal(A)


def combine(*terms):
    """Sum of ``factor * matrix``, tridiagonal if all matrices are; matrices that are None are left out."""
    terms = [(factor, A) for factor, A in terms if A is not None]
    if not all(isinstance(A, Tridiagonal) for _, A in terms):
        terms = [(factor, dense(A)) for factor, A in terms]
    total = terms[0][0] * terms[0][1]
    for factor, A in terms[1:]:
        total = total + factor * A
    return total


def _check(system, name):
    """Sizes and symmetries, as far as they are known."""
    shape = np.shape(system.mass) if not isinstance(system.mass, Tridiagonal) else system.mass.shape
    if len(shape) == 3 or any(np.ndim(A.diagonal) > 1 for A in (system.mass, system.K) if isinstance(A, Tridiagonal)):
        return  # a batch, made by vmap
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"{name}: mass must have shape (n, n), got {shape}")
    n = shape[0]
    for field in ("K", "C"):
        A = getattr(system, field)
        if A is not None and A.shape != (n, n):
            raise ValueError(f"{name}: {field} must have the shape of mass, {(n, n)}, got {A.shape}")
    if system.F is not None:
        shape = _shape_of(system.F, system.mass.dtype) if callable(system.F) else system.F.shape
        if shape not in (None, (n,)):
            raise ValueError(f"{name}: F must have shape {(n,)}, got {shape}; a force that varies is a function of t")
    n_N = 0
    if system.G is not None:
        if system.G.ndim != 2 or system.G.shape[0] != n:
            raise ValueError(f"{name}: G must have shape ({n}, n_N), one column per contact, got {system.G.shape}")
        n_N = system.G.shape[1]
    if system.G_F is not None and (system.G_F.ndim != 3 or system.G_F.shape[:2] != (n, n_N) or system.G_F.shape[2] > 2):
        raise ValueError(f"{name}: G_F must have shape ({n}, {n_N}, d) with d = 1 or 2, one direction per contact, got {system.G_F.shape}")
    if np.shape(system.w) not in ((), (n_N,)):
        raise ValueError(f"{name}: w must be a scalar or of shape ({n_N},), one entry per contact, got {np.shape(system.w)}")
    for field in ("mass", "K"):
        A = getattr(system, field)
        if isinstance(A, Tridiagonal) or is_traced(A):
            continue
        A = np.asarray(A)
        worst = np.unravel_index(np.argmax(np.abs(A - A.T)), A.shape)
        if not np.abs(A - A.T)[worst] <= 100 * float(np.finfo(A.dtype).eps) * np.abs(A).max():
            i, j = (int(k) for k in worst)
            raise ValueError(f"{name}: {field} must be symmetric, got {A[i, j]:.6g} in entry [{i}, {j}] and {A[j, i]:.6g} in [{j}, {i}]")
    smallest = smallest_pivot(system.mass)
    if smallest is not None and not smallest > 10 * n * float(np.finfo(np.dtype(system.mass.dtype)).eps):
        raise ValueError(
            f"{name}: mass must be positive definite, got a singular or indefinite matrix (smallest pivot, scaled to a unit diagonal: "
            f"{smallest:.3g}); every velocity needs inertia"
        )


def smallest_pivot(A):
    """Smallest pivot of the LDL^T factorization of a symmetric matrix scaled to a unit diagonal; None if its values are not known."""
    if any(is_traced(x) for x in jax.tree.leaves(A)):
        return None
    diagonal = np.asarray(A.diagonal if isinstance(A, Tridiagonal) else np.diag(A), float)
    if not np.all(diagonal > 0):
        return float(diagonal.min())
    if isinstance(A, Tridiagonal):
        pivot = smallest = 1.0
        for off in np.asarray(A.off, float) / np.sqrt(diagonal[1:] * diagonal[:-1]):
            pivot = 1 - off**2 / pivot
            smallest = min(smallest, pivot)
            if pivot <= 0:
                break
        return float(smallest)
    try:
        factor = np.linalg.cholesky(np.asarray(A, float) / np.sqrt(np.outer(diagonal, diagonal)))
    except np.linalg.LinAlgError:
        return 0.0
    return float(np.min(np.diag(factor)) ** 2)
