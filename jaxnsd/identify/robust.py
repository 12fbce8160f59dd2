"""Robust losses: what one far-off residual, frame or trajectory may cost.

With ``s = |r|^2`` of a group of whitened residuals the group costs ``rho(s) / 2``, which is s / 2 for small s. A Gauss-Newton step on it is
one of weighted least squares with weights rho'(s).
"""

from dataclasses import dataclass

import jax.numpy as jnp

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
        if self.kind not in ("soft_l1", "cauchy") or self.over not in GROUPS or not self.scale > 0:
            raise ValueError(f'Robust: kind is "soft_l1" or "cauchy", over one of {GROUPS}, scale positive, got {self}')

    def cost_and_weights(self, r):
        """``(cost, weights)`` of residuals r (frames, m): a scalar, and (frames, m)."""
        s = r**2 if self.over == "entry" else jnp.sum(r**2, axis=1, keepdims=True)
        x = s / self.scale**2
        if self.kind == "soft_l1":
            root = jnp.sqrt(1 + x)
            rho, weights = 2 * x / (root + 1), 1 / root
        else:
            rho, weights = jnp.log1p(x), 1 / (1 + x)
        return 0.5 * self.scale**2 * jnp.sum(rho), jnp.broadcast_to(weights, r.shape)


def cost_and_weights(robust, r):
    """``(cost, weights)`` of residuals r (frames, m), robust or not."""
    return robust.cost_and_weights(r) if robust else (0.5 * jnp.sum(r**2), jnp.ones_like(r))
