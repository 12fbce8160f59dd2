"""Sets of admissible percussions: what a contact can transmit per unit of its normal percussion.

Friction is a pair of a velocity gamma (d,) and a convex set C (Capobianco & Eugster 2018, (30)): with the normal percussion P_N

    -xi in the normal cone of P_N C at P,       or, for any r > 0 (57),       P = prox_{P_N C}(P - r xi)

so that P_N, xi and the set tell P where there is slip: of all percussions in the set it dissipates most. Sliding, rolling and drilling
friction are such pairs on one P_N: of rolling and drilling gamma is a relative angular velocity (rad/s), P a moment (N m s), and the
coefficient of the set a length (m), the arm of the normal force.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .numerics import linalg
from .numerics.linalg import absolute, divide, greater, less, logical_and, where
from .programs.pytrees import pytree


def broadcast(value: ArrayLike, n: int, dtype: DTypeLike) -> jax.Array:
    """A parameter, scalar or (n,), as an array (n,)."""
    return jnp.broadcast_to(jnp.asarray(value, dtype), (n,))


class FrictionSet:
    """A set of admissible percussions: the image of a disc of radius `size` under the matrix `axes`.

    Its parameters are scalars, or arrays (n_N,) with an entry for each contact, and leaves of a pytree. A set of one's own derives from
    this class, decorated with `jaxnsd.sets.pytree`, says ``d`` (1 or 2) and its ``coefficients``, and writes `size` and `axes`. Sets that
    are no such image, with corners say, are not known to the contact solver.
    """

    #: Dimension: the number of columns of `tangential_velocity` that the set is about.
    d: ClassVar[int]
    #: Names of those parameters that must not be negative.
    coefficients: ClassVar[tuple[str, ...]] = ("mu",)

    def size(self, n: int, dtype: DTypeLike) -> jax.Array:
        """Radius of the disc, (n,)."""
        return broadcast(self.mu, n, dtype)

    def axes(self, n: int, dtype: DTypeLike) -> jax.Array | None:
        """Matrices S (n, d, d) that make the set of the disc; None: they are the identity."""
        del n, dtype


@pytree
class Segment(FrictionSet):
    """``|P| <= mu P_N``: friction along a line, rolling friction of a wheel in the plane, drilling friction about the normal."""

    mu: Any
    d: ClassVar[int] = 1


@pytree
class Disc(FrictionSet):
    """``|P| <= mu P_N`` in the plane: Coulomb's isotropic friction, rolling friction of a ball."""

    mu: Any
    d: ClassVar[int] = 2


@pytree
class Ellipse(FrictionSet):
    """``(P_1 / mu_1)^2 + (P_2 / mu_2)^2 <= P_N^2``: anisotropic friction, with P_1, P_2 along principal axes.

    The principal axes are those of `tangential_velocity`, turned by ``angle`` (rad, from the first to the second). Slip and friction are
    not parallel: -xi is normal to the ellipse at P. One of the coefficients may be zero.

    With ``P = S P'``, S of the half axes over their mean m, and ``xi' = S^T xi`` the ellipse is the disc ``|P'| <= m P_N``: so it is
    solved.
    """

    mu_1: Any
    mu_2: Any
    angle: Any = 0.0
    d: ClassVar[int] = 2
    coefficients: ClassVar[tuple[str, ...]] = ("mu_1", "mu_2")

    def size(self, n: int, dtype: DTypeLike) -> jax.Array:
        """Mean of the half axes, (n,)."""
        return 0.5 * (broadcast(self.mu_1, n, dtype) + broadcast(self.mu_2, n, dtype))

    def axes(self, n: int, dtype: DTypeLike) -> jax.Array | None:
        """``R diag(mu_1, mu_2) R^T / m``, (n, 2, 2); the identity where both coefficients are zero."""
        m = self.size(n, dtype)
        ratio = jnp.where(m > 0, broadcast(self.mu_1, n, dtype) / jnp.where(m > 0, m, 1), 1)
        c, s = (f(broadcast(self.angle, n, dtype)) for f in (jnp.cos, jnp.sin))
        # The half axes over their mean are 1 + x and 1 - x.
        x = ratio - 1
        off = 2 * x * c * s
        return jnp.stack([1 + x * (c * c - s * s), off, off, 1 - x * (c * c - s * s)], axis=-1).reshape(n, 2, 2)


class Slip(NamedTuple):
    """What the natural map sees of one disc: its mode, and what the derivative of its prox is made of, C18 (57)."""

    stick: object  # (n,) the friction law holds as xi_F = 0
    direction: object  # (n, size) unit vector of P_F where the contact slips
    radius: object  # (n,) radius of the disc
    curvature: object  # (n,) radius / |x_F|


def slip_at(x: Any, radius: Any, loaded: Any) -> Slip:
    """`Slip` of the disc of this ``radius`` (n,) at ``x`` (n, size): its prox is x where it sticks, else ``radius direction``."""
    zero = linalg.zeros_like(radius)
    if x.shape[1] == 1:
        norm = absolute(x[:, 0])
        direction = where(less(x[:, 0], 0), -1.0, 1.0)[:, None]
        curvature = zero  # a disc in one dimension has no curvature
    else:
        square = sum(x[:, j] * x[:, j] for j in range(x.shape[1]))
        norm = linalg.sqrt(where(greater(square, 0), square, 1.0))
        direction = x / norm[:, None]
        curvature = divide(radius, norm)
        norm = where(greater(square, 0), norm, zero)
    # |x| >= radius slips: at radius 0 and x = 0 the zero-force branch must be taken, or Newton's matrix is singular.
    return Slip(logical_and(loaded, less(norm, radius)), direction, radius, curvature)
