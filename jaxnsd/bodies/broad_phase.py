"""Pairs of shapes of which there are many: one after the other in a loop, and those alone that may meet in a step.

A program does not grow with the number of pairs that way, and a pair that is far costs the distance of two balls.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import when_needed
from ..numerics import linalg
from . import kinematics, solids
from .boxes import FAR
from .frames import Frames, Touch
from .lists import pick
from .rotations import dot

#: A step moves shapes by no more than so many times what the fastest of them would move as it begins, and with what forces add in the step:
#: impacts change velocities.
FASTER = 8
#: And by this part of the size of a pair: forces change in a step.
NEAR = 0.01


def radii(structure, frames, of_points):
    """Radii (n,) of balls about the frames of shapes that contain them, zero for planes; not differentiated.

    of_points: those of the shapes that are given by points, by their numbers
    """
    numbers = [s for s, shape in enumerate(structure.shapes) if shape.kind != "plane"]
    of_numbers = solids.solids(frames.of(numbers), [structure.shapes[s].kind for s in numbers], None)
    out = jnp.zeros((len(structure.shapes),), frames.size.dtype)
    out = out.at[np.array(numbers, int)].set(jax.vmap(lambda solid: solids.reach(solid, None))(of_numbers))
    for shape, radius in of_points.items():
        out = out.at[shape].add(radius)
    return lax.stop_gradient(out)


def reach(system, t, dt, places, frames, q, u, numbers, of_points):
    """How far, at most, a point of the shapes with these numbers may move in a step, in m; not differentiated. of_points: see `radii`."""
    layout = system.structure.layout
    bodies = [system.structure.shapes[s].body for s in numbers]
    x, radius = pick(frames.x, numbers), pick(radii(system.structure, frames, of_points), numbers)

    def speed(u):
        # Not by `length`, to which what is no number has none.
        w, v = kinematics.velocities_at(layout, places, u, bodies, x)
        return jnp.max(jnp.sqrt(dot(v, v)) + jnp.sqrt(dot(w, w)) * radius)

    all_u, prescribed = kinematics.velocities(system, t, u)
    more = linalg.lu(system.M(t, q, u))(system.h(t, q, u))
    if prescribed is not None:
        more = jnp.concatenate([more, prescribed[u.shape[0] :]])
    return lax.stop_gradient(FASTER * dt * (speed(all_u) + dt * speed(more)))


def not_there(function, size, *args):
    """`Touch` of rows that are none, as many as a function returns: their normals are zero, their gaps long beside the size of the pair."""
    shapes = jax.eval_shape(function, *args)
    return Touch(*(jnp.full(x.shape, value, x.dtype) for x, value in zip(shapes, (FAR * size, 0, 0, 0), strict=True)))


def touches(kernel, frames, radius, first, second, reach=None):
    """`Touch` of the rows of all pairs, as ``kernel(Frames of the first shapes, of the second)`` has them.

    radius: see `radii`, of all shapes
    first:  numbers of the shapes of each pair, and ``second``
    reach:  how far anything moves in the step that asks, in m, of all or of each pair, or None. Rows of pairs that are farther apart, and
            by `NEAR`, are none
    """
    reach = jnp.broadcast_to(jnp.asarray(jnp.inf if reach is None else reach, radius.dtype), (len(first),))

    def looked_at(frames, a, b):
        return kernel(*(Frames(*(lax.dynamic_slice_in_dim(part, shape, 1) for part in frames)) for shape in (a, b)))

    def one(frames, radius, pair):
        a, b, reach = pair
        away = lax.stop_gradient(frames.x[b] - frames.x[a])
        radii = radius[a] + radius[b]

        def left_out(*pair):
            return not_there(looked_at, radii, *pair)

        # What is no number is near.
        return lax.cond(jnp.sqrt(dot(away, away)) > (1 + NEAR) * radii + reach, left_out, looked_at, frames, a, b)

    def one_by_one(frames, radius, pairs):
        found = lax.map(functools.partial(one, frames, radius), pairs)
        return Touch(*(x.reshape(-1, *x.shape[2:]) for x in found))

    def all_at_once(frames, radius, pairs):
        return kernel(frames.of(first), frames.of(second))

    def of_platform(*args):
        # Where an operation is done for all pairs at once, those that are far cost nothing more.
        return lax.platform_dependent(*args, cpu=one_by_one, default=all_at_once)

    pairs = (*(jnp.asarray(np.array(shapes, np.uint32)) for shapes in (first, second)), reach)
    # A program of its own: what several parts of a step ask for is compiled once.
    return when_needed(of_platform)(frames, radius, pairs)
