"""Transforms between a parameter and the unbounded coordinates z that a solver moves in: bounds and definiteness hold by construction.

A transform has ``inverse(value) -> z``, an array of one axis, and ``__call__(z) -> value`` in the shape of the value. One of your own
derives from `Transform`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..programs.given import number, numbers, shown


class Transform:
    """From unbounded coordinates z (k,) to a parameter of any shape, and back."""

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """The parameter, in this shape."""
        raise NotImplementedError

    def inverse(self, value: np.ndarray) -> np.ndarray:
        """z (k,) of a parameter; ValueError for one that no z gives."""
        raise NotImplementedError

    def labels(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Names of the entries of the parameter."""
        if not shape:
            return [name]
        return [f"{name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


@dataclass(frozen=True)
class Free(Transform):
    """No bounds: ``value = scale z``; the scale is a typical size, which first-order optimizers profit from."""

    scale: float = 1.0

    def __post_init__(self):
        number("Free: scale", self.scale)
        if not 0 < self.scale < np.inf:
            raise ValueError(f"Free: scale must be positive, got {self.scale!r}")

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return self.scale * z.reshape(shape)

    def inverse(self, value: np.ndarray) -> np.ndarray:
        return np.ravel(value) / self.scale


@dataclass(frozen=True)
class Positive(Transform):
    """Above zero: ``value = exp(z)``."""

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.exp(z).reshape(shape)

    def inverse(self, value: np.ndarray) -> np.ndarray:
        if not np.all(np.asarray(value) > 0):
            raise ValueError(f"Positive() takes values above zero, got {value}; start from a small one instead of zero")
        return np.log(np.ravel(value))


@dataclass(frozen=True)
class Bounded(Transform):
    """Between two bounds: ``value = lower + (upper - lower) / (1 + exp(-z))``."""

    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self):
        for name in ("lower", "upper"):
            number(f"Bounded: {name}", getattr(self, name))
        if not -np.inf < self.lower < self.upper < np.inf:
            raise ValueError(f"Bounded: lower must be less than upper, both finite, got {self.lower} and {self.upper}; Positive() has one")

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return (self.lower + (self.upper - self.lower) * jax.nn.sigmoid(z)).reshape(shape)

    def inverse(self, value: np.ndarray) -> np.ndarray:
        x = (np.ravel(value) - self.lower) / (self.upper - self.lower)
        if not np.all((x > 0) & (x < 1)):
            raise ValueError(f"{self} takes values between its bounds, got {value}; start from the inside")
        return np.log(x / (1 - x))


@dataclass(frozen=True)
class Inertia(Transform):
    """Moments of inertia of a body that has some density: (3,) principal moments, or a symmetric matrix (3, 3), about any one point.

    Not only positive: ``J_1 < J_2 + J_3`` and so on, which holds if and only if ``S = tr(J) / 2 - J`` is positive definite. ``S = L L^T``
    with the logarithms of L's diagonal among the z; for principal moments the logarithms of S.
    """

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        if shape == (3,):
            S = jnp.exp(z)
            return jnp.sum(S) - S
        S = _cholesky_product(z, 3)
        return jnp.trace(S) * jnp.eye(3, dtype=S.dtype) - S

    def inverse(self, value: np.ndarray) -> np.ndarray:
        value = np.asarray(value, float)
        if value.shape == (3,):
            S = 0.5 * np.sum(value) - value
            if not np.all(S > 0):
                raise ValueError(f"Inertia() takes principal moments of which each is less than the sum of the others, got {value}")
            return np.log(S)
        if value.shape != (3, 3):
            raise ValueError(f"Inertia() takes three principal moments or a matrix (3, 3), got shape {value.shape}")
        return _log_cholesky(0.5 * np.trace(value) * np.eye(3) - value, "Inertia() takes a matrix of inertia that some density has")


@dataclass(frozen=True)
class PseudoInertia(Transform):
    """Mass, centre and inertia of a body that has some density, as its pseudo-inertia (4, 4): ``[[S, m c], [m c^T, m]]``.

    ``S = tr(J) / 2 - J`` with J (3, 3) about the frame's origin, m the mass, c the centre. It is positive definite if and only if a density
    has it (Wensing, Kim, Slotine, RA-L 3 (2018) 60); here it is ``L L^T`` with the logarithms of L's diagonal among the ten z (Rucker,
    Wensing, RA-L 7 (2022) 2694). `pseudo_inertia` and `inertia_of` convert.
    """

    def __call__(self, z: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return _cholesky_product(z, 4).reshape(shape)

    def inverse(self, value: np.ndarray) -> np.ndarray:
        value = np.asarray(value, float)
        if value.shape != (4, 4):
            raise ValueError(f"PseudoInertia() takes a matrix (4, 4), got shape {value.shape}; make it with identify.pseudo_inertia")
        return _log_cholesky(value, "PseudoInertia() takes a pseudo-inertia that some density has")


def pseudo_inertia(mass: ArrayLike, centre: ArrayLike, inertia: ArrayLike) -> jax.Array:
    """Pseudo-inertia (4, 4) of a mass, its centre (3,), and the inertia (3, 3) about the origin of the frame."""
    for name, value, shape in (("mass", mass, ()), ("centre", centre, (3,)), ("inertia", inertia, (3, 3))):
        if np.shape(array := numbers(value)) != shape or array is None:
            raise ValueError(f"pseudo_inertia: {name} must be numbers of shape {shape}, got {shown(value)}")
    mass, centre, inertia = map(jnp.asarray, (mass, centre, inertia))
    S = 0.5 * jnp.trace(inertia) * jnp.eye(3) - inertia
    h = mass * jnp.asarray(centre)
    return jnp.concatenate([jnp.concatenate([S, h[:, None]], 1), jnp.concatenate([h, jnp.asarray(mass)[None]])[None]])


def inertia_of(pseudo: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(mass, centre (3,), inertia (3, 3) about the origin of the frame)`` of a pseudo-inertia (4, 4)."""
    if np.shape(pseudo) != (4, 4):
        raise ValueError(f"inertia_of: the pseudo-inertia must have shape (4, 4), got {shown(pseudo)}")
    S, mass = pseudo[:3, :3], pseudo[3, 3]
    return mass, pseudo[:3, 3] / mass, jnp.trace(S) * jnp.eye(3, dtype=S.dtype) - S


def _cholesky_product(z, n):
    rows, columns = np.tril_indices(n, -1)
    L = jnp.diag(jnp.exp(z[:n])).at[rows, columns].set(z[n:])
    return L @ L.T


def _log_cholesky(matrix, what):
    try:
        L = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(f"{what}, got {matrix.tolist()}") from None
    size = np.sqrt(np.diag(matrix))  # units may make all entries small
    if not np.allclose(matrix / np.outer(size, size), matrix.T / np.outer(size, size)):
        raise ValueError(f"{what}: a symmetric one, got {matrix.tolist()}")
    return np.concatenate([np.log(np.diag(L)), L[np.tril_indices(len(matrix), -1)]])
