"""A mass on a spring with dry friction, and what is known of Den Hartog's motion of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from little_systems import GRAVITY

import jaxnsd
from jaxnsd import System


@jaxnsd.system
class Slider(System):
    """A mass on a table, on a spring, a damper, and under a force ``ramp t + cos(rate t)``; the table moves."""

    mu: Any = 0.3
    spring: Any = 0.0
    damping: Any = 0.0
    ramp: Any = 0.0
    swing: Any = 0.0
    rate: Any = 1.0
    belt: Any = 0.0
    gravity: Any = GRAVITY
    e_N: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 0.5 * self.spring * q[0] ** 2 + self.gravity * q[1]

    def force(self, t, q, u):
        return jnp.array([1.0, 0.0], q.dtype) * (self.ramp * t + self.swing * jnp.cos(self.rate * t) - self.damping * u[0])

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[:1, None] - self.belt


#: Den Hartog's symmetric orbit with w = 1.3 and f = 0.3, in sixteen digits: where it stops, at which phase, and a multiplier of a period.
W, F, STOP, PHASE, MULTIPLIER = 1.3, 0.3, 1.3153481967149025, 2.7083048635935169, 0.107714547764435 + 0.754532361266061j
START = PHASE / W + 0.7


def between_stops():
    """``(x, u)`` of this orbit at `START`, after the stop: x'' + x = cos(w t) + f, by its general solution."""
    amplitude = 1 / (1 - W**2)
    particular = lambda t: np.array([amplitude * np.cos(W * t) + F, -amplitude * W * np.sin(W * t)])  # noqa: E731
    a, b = np.array([STOP, 0.0]) - particular(PHASE / W)
    c, s = np.cos(0.7), np.sin(0.7)
    return np.array([[c, s], [-s, c]]) @ [a, b] + particular(START)
