"""When a gap closes: the cubic through gaps and gap velocities at both ends of a segment, and a Newton iteration that stays in bounds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

#: Points of a segment at which the cubics of the gaps are looked at.
POINTS = 16

#: Newton steps on the root of a cubic.
STEPS = 4


class Crossings(NamedTuple):
    """Of every contact, (n_N,): whether its gap closes in a segment, when after its start, how fast, and bounds of that time."""

    closes: jax.Array
    time: jax.Array
    rate: jax.Array
    low: jax.Array
    high: jax.Array


def crossings(length, start, end, floor, margin):
    """`Crossings` of a segment of this length, from the cubics through ``start`` and ``end``, each ``(gaps, gap velocities)``.

    A gap at the start that is not above ``floor`` closes at once if the cubic falls from there. What closes at the end up to ``margin``
    (a time) closes in this segment; the upper bounds of the times lie as much behind.
    """
    (gap, rate), (gap_end, rate_end) = start, end
    slope, slope_end = length * rate, length * rate_end
    a = 3 * (gap_end - gap) - 2 * slope - slope_end
    b = 2 * (gap - gap_end) + slope + slope_end
    cubic = lambda x: gap + x * (slope + x * (a + x * b))  # noqa: E731
    derivative = lambda x: slope + x * (2 * a + 3 * b * x)  # noqa: E731
    x = jnp.arange(1, POINTS, dtype=gap.dtype) / POINTS
    at_end = gap_end < margin * jnp.maximum(-rate_end, 0)
    below = jnp.concatenate([jax.vmap(cubic)(x) < 0, at_end[None]])
    index = jnp.argmax(below, axis=0)
    low, high = index.astype(gap.dtype) / POINTS, (index + 1).astype(gap.dtype) / POINTS
    root = high
    for _ in range(STEPS):
        falls = derivative(root)
        root = jnp.clip(root - cubic(root) / jnp.where(falls < 0, falls, -jnp.inf), low, high)
    at_once = (index == 0) & (gap <= floor)
    root = jnp.where(at_once, 0, root)
    closing = jnp.where(at_once, rate, derivative(root) / length)
    # The gap itself may close in the part beside that in which its cubic does.
    low, high = jnp.maximum(low - 1 / POINTS, 0), jnp.minimum(high + 1 / POINTS, 1)
    return Crossings(jnp.any(below, axis=0), root * length, closing, low * length, high * length + margin)


def refine(time, gap, rate, low, high):
    """A better time at which the gap closes, and its bounds, from gap and gap velocity at ``time``: Newton's step, or bisection."""
    low, high = jnp.where(gap > 0, time, low), jnp.where(gap > 0, high, time)
    new = time + correction(gap, rate)
    inside = (new > low) & (new < high) & (rate < 0)
    return jnp.where(inside, new, 0.5 * (low + high)), low, high


def secant(before, here, low, high):
    """A better time at which a value that falls becomes zero, and its bounds, from two pairs (time, value): secant, or bisection."""
    (t_before, v_before), (t, v) = before, here
    low, high = jnp.where(v > 0, t, low), jnp.where(v > 0, high, t)
    new = t - v * (t - t_before) / jnp.where(v == v_before, jnp.inf, v - v_before)
    inside = (new >= low) & (new <= high) & ((v != v_before) | (v == 0))
    return jnp.where(inside, new, 0.5 * (low + high)), low, high


def correction(gap, rate):
    """Newton's step ``-g / g_dot`` of a gap that closes."""
    return -gap / jnp.where(rate < 0, rate, -1.0)
