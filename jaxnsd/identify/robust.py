"""Robust losses: what one far-off residual, frame or trajectory may cost.

With ``s = |r|^2`` of a group of whitened residuals the group costs ``rho(s) / 2``, which is s / 2 for small s. A Gauss-Newton step on it is
one of weighted least squares with weights rho'(s).
"""

import numbers
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

GROUPS = ("entry", "frame")


@dataclass(frozen=True)
class Robust:
    """A robust loss.

    kind:   "soft_l1": ``2 (sqrt(1 + s) - 1)``, a smooth absolute value; "cauchy": ``log(1 + s)``, for gross outliers; with s over scale^2
    scale:  from how many standard deviations on a group counts as far off
    over:   "entry": every number by itself; "frame": the vector of all that is measured at one time
    """

    kind: str = "soft_l1"
    scale: float = 1.0
    over: str = "entry"

    def __post_init__(self):
        good = isinstance(self.scale, numbers.Real) and 0 < self.scale < np.inf
        if self.kind not in ("soft_l1", "cauchy") or self.over not in GROUPS or not good:
            raise ValueError(f'Robust: kind is "soft_l1" or "cauchy", over one of {GROUPS}, scale positive, got {self}')

    def cost_and_weights(self, r: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``(cost, weights)`` of residuals r (frames, m): a scalar, and (frames, m)."""
        x = self._squared(r)
        if self.kind == "soft_l1":
            root = jnp.sqrt(1 + x)
            rho, weights = 2 * x / (root + 1), 1 / root
        else:
            rho, weights = jnp.log1p(x), 1 / (1 + x)
        return 0.5 * self.scale**2 * jnp.sum(rho), jnp.broadcast_to(weights, r.shape)

    def _squared(self, r):
        s = r**2 if self.over == "entry" else jnp.sum(r**2, axis=1, keepdims=True)
        return s / self.scale**2

    def scatter(self, r: jax.Array, shown: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``(squares, factor)`` of residuals r (frames, m), those that are ``shown``: the covariance of the estimate is
        ``factor squares / freedom (J^T W J)^-1``, with squares the sum of psi^2 and factor ``mean(w) / mean(psi')^2``.

        psi = w r is the derivative of the loss (Huber, Robust Statistics (1981) sec. 7.6). The cost itself would count an outlier
        by its distance.
        """
        # Of a frame its entries that were measured count.
        x, m = self._squared(r), 1 if self.over == "entry" else jnp.maximum(jnp.sum(shown, axis=1, keepdims=True), 1)
        weights = self.cost_and_weights(r)[1]
        change = -0.5 * x * (1 + x) ** -1.5 if self.kind == "soft_l1" else -x / (1 + x) ** 2  # x dw/dx
        slopes = weights + 2 / m * change
        mean = lambda y: jnp.sum(jnp.where(shown, y, 0)) / jnp.sum(shown)  # noqa: E731
        return jnp.sum(jnp.where(shown, weights * r, 0) ** 2), mean(weights) / mean(slopes) ** 2


def cost_and_weights(robust, r):
    """``(cost, weights)`` of residuals r (frames, m), robust or not."""
    return robust.cost_and_weights(r) if robust else (0.5 * jnp.sum(r**2), jnp.ones_like(r))
