"""Mass matrix, momentum, energy and bias forces of a tree of bodies, in closed form.

Twists and wrenches are about one point of each tree (`kinematics.Places.about`), which at this instant is a point at rest in the world.
The mass matrix is that of composite bodies, the bias forces are those of the recursive Newton-Euler algorithm (Featherstone, Rigid Body
Dynamics Algorithms, 2008, chapters 5 and 6), both summed over all bodies by masks instead of recursively.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .kinematics import carriers, twists, with_world
from .lists import pick, sums
from .rotations import compose, cross, dot, turn


class Inertias(NamedTuple):
    """Mass (n,), first moment m c (n, 3) and tensor of inertia (n, 3, 3) about the points of `Places.about`; the world has none."""

    mass: object
    moment: object
    tensor: object


def centers(system, places):
    """Centres of mass (n_b, 3)."""
    return places.x[1:] + turn(places.R[1:], system.center)


def inertias(system, places):
    """`Inertias` of the bodies."""
    R, m = places.R[1:], system.mass
    c = centers(system, places) - places.about[1:]
    own = compose(compose(R, system.inertia), jnp.swapaxes(R, 1, 2))
    steiner = dot(c, c)[:, None, None] * jnp.eye(3, dtype=c.dtype)[None] - c[:, :, None] * c[:, None, :]
    return Inertias(*map(with_world, (m, m[:, None] * c, own + m[:, None, None] * steiner), (0.0, jnp.zeros(3), jnp.zeros((3, 3)))))


def momenta(of, w, v):
    """Linear momentum and angular momentum about the points of reference, from the twist (w, v)."""
    return of.mass[:, None] * v + cross(w, of.moment), turn(of.tensor, w) + cross(of.moment, v)


def composite(layout, of, *more):
    """``(Inertias, *more)`` of all that each velocity moves, sums of those of the bodies.

    All in one product: native code writes it out, where it has loops over memory for sums of each by itself.
    """
    parts = *of, *more
    numbers = [part.reshape(len(part), -1) for part in parts]
    total = jnp.split(sums(layout.moves.T, jnp.concatenate(numbers, axis=1)), np.cumsum([x.shape[1] for x in numbers])[:-1], axis=1)
    total = [x.reshape(-1, *part.shape[1:]) for x, part in zip(total, parts, strict=True)]
    return Inertias(*total[:3]), *total[3:]


def crossed(a, b):
    """The cross product a x b of twists (w, v): how b changes that is carried along by a."""
    return cross(a[0], b[0]), cross(a[0], b[1]) + cross(a[1], b[0])


def mass_matrix(system, layout, places):
    """The mass matrix of all velocities, (n_s, n_s), without armature: column j is what the bodies beyond joint j take."""
    (total,) = composite(layout, inertias(system, places))
    p, L = momenta(total, places.w, places.v)
    M = jnp.sum(places.w[:, None] * L[None] + places.v[:, None] * p[None], axis=-1)
    # Of two velocities of one body the first, so that the matrix is symmetric to the last bit.
    first = np.arange(len(layout.path))[:, None] <= np.arange(len(layout.path))[None]
    path = layout.path & (first | ~layout.path.T)
    return jnp.where(path, M, jnp.where(path.T, M.T, jnp.zeros((), M.dtype)))


def generalized(layout, places, force, moment):
    """Generalized forces (n_s,) of forces and moments (n_b + 1, 3) about the points of reference."""
    return dot(places.v, sums(layout.moves.T, force)) + dot(places.w, sums(layout.moves.T, moment))


def momentum(system, layout, places, u):
    """Generalized momentum of all velocities (n_s,), without armature."""
    return generalized(layout, places, *momenta(inertias(system, places), *twists(layout, places, u)))


def kinetic_energy(system, layout, places, u):
    """Of the bodies, without armature: 1/2 sum of (p . v + L . w)."""
    w, v = twists(layout, places, u)
    p, L = momenta(inertias(system, places), w, v)
    return 0.5 * jnp.sum(p * v + L * w)


def bias(system, layout, places, u, acceleration):
    """What M du/dt lacks: generalized forces (n_s,) of gyroscopic and centrifugal forces and of the weights, to be subtracted.

    acceleration: of the prescribed velocities, (n_s,) with zeros for the others; None: there are none
    """
    of = inertias(system, places)
    w, v = twists(layout, places, u)
    # Axes are carried along by what comes before them: d/dt of a column is the cross product of twists.
    dw, dv = crossed(carriers(layout, places, u), (places.w * u[:, None], places.v * u[:, None]))
    if acceleration is not None:
        dw, dv = dw + places.w * acceleration[:, None], dv + places.v * acceleration[:, None]
    a_w, a_v = sums(layout.moves, dw), sums(layout.moves, dv) - system.gravity[None]
    p, L = momenta(of, w, v)
    dp, dL = momenta(of, a_w, a_v)
    if "carried" in system.structure.has:
        part = with_world(system.carried, 0.0)[:, None]
        dp = dp + part * of.mass[:, None] * system.gravity[None]
        dL = dL + part * cross(of.moment, jnp.broadcast_to(system.gravity[None], of.moment.shape))
    return generalized(layout, places, dp + cross(w, p), dL + cross(w, L) + cross(v, p))


def gyroscopic(system, layout, places, u):
    """Derivative of `bias` by the velocities that turn freely, one of each tree at a time: (m, n_u) for the m of `turned_together`.

    A velocity k whose column is the twist S adds S to the twist t of the bodies beyond it, and ``S x t + s`` to what their columns change
    by, with ``s = c x S - S x r`` of the twist c of what carries the column, and r of what it does not carry. To their forces it adds

        I s + S x* h + (t x* I - I t x) S,      h = I t,

    where the last bracket is the rate of the inertia I. All three are those of the composite body beyond both velocities.
    """
    of, (w, v) = inertias(system, places), twists(layout, places, u)
    p, L = momenta(of, w, v)
    spun = cross(w[:, None], jnp.swapaxes(of.tensor, 1, 2))  # columns of the tensor, each turned along
    outer = v[:, :, None] * of.moment[:, None]
    diagonal = (2 * dot(v, of.moment))[:, None, None] * jnp.eye(3, dtype=u.dtype)[None]
    rate = spun + jnp.swapaxes(spun, 1, 2) - outer - jnp.swapaxes(outer, 1, 2) + diagonal
    inertia, *others = composite(layout, of, p, L, rate)
    columns = places.w, places.v
    not_carried = [sums(layout.not_carried, x * u[:, None]) for x in columns]
    s_w, s_v = map(jnp.subtract, crossed(carriers(layout, places, u), columns), crossed(columns, not_carried))
    out = []
    for k, beyond, there in zip(*layout.pairs_of_turning, strict=True):
        p, L, rate = (pick(x, beyond) for x in others)
        S, (force, torque) = pick(places.w, k), momenta(Inertias(*(pick(x, beyond) for x in inertia)), pick(s_w, k), pick(s_v, k))
        # What the velocity of the column adds to the moment cancels between the last two terms of the equation.
        force, torque = force + 2 * cross(S, p), torque + turn(rate, S) + cross(S, L)
        row = dot(places.v[: layout.n_u], force) + dot(places.w[: layout.n_u], torque)
        out.append(jnp.where(there, row, jnp.zeros((), row.dtype)))
    return jnp.stack(out)


def momentum_rate(system, layout, places, u):
    """What changes generalized momenta (n_s,) beside forces and contacts: ``p_j = S_j . H_j`` of a column and the momentum beyond it.

    Columns are carried along by what comes before them, momenta change by the weights: ``dS_j/dt . H_j + S_j . dH_j/dt``.
    """
    of = inertias(system, places)
    total = [sums(layout.moves.T, part) for part in momenta(of, *twists(layout, places, u))]
    dw, dv = crossed(carriers(layout, places, u), (places.w, places.v))
    own = 1.0 - with_world(system.carried, 0.0)[:, None] if "carried" in system.structure.has else 1.0
    force, moment = own * of.mass[:, None] * system.gravity[None], own * cross(of.moment, system.gravity[None])
    return dot(dv, total[0]) + dot(dw, total[1]) + generalized(layout, places, force, moment)


def center_columns(system, layout, places, u=None):
    """Velocities (n_u, 3) of the centre of mass of a tree that floats, along its translations, per unit of each other velocity.

    u: all velocities (n_s,), for what these columns change by, along the motion; None: the columns
    """
    mass = with_world(system.mass, 0.0)
    total = sums(layout.together, mass[:, None])[:, 0]
    share = (mass / jnp.where(total > 0, total, 1))[:, None]
    c = with_world(centers(system, places), jnp.zeros(3)) - places.about
    part, arm = (sums(layout.moves.T, x)[: layout.n_u] for x in (share, share * c))
    w, v = places.w[: layout.n_u], places.v[: layout.n_u]
    if u is None:
        columns = part * v + cross(w, arm)
    else:
        (w_b, v_b), carried = twists(layout, places, u), [x[: layout.n_u] for x in carriers(layout, places, u)]
        drift = sums(layout.moves.T, share * (v_b + cross(w_b, c)))[: layout.n_u]
        dw, dv = crossed(carried, (w, v))
        columns = part * dv + cross(dw, arm) + cross(w, drift)
    if not layout.all_free:
        axes = pick(places.v, layout.translations.reshape(-1)).reshape(-1, 3, 3)
        columns = jnp.sum(columns[:, None] * axes, axis=-1)
    return jnp.where(layout.behind[:, None] & layout.there, columns, jnp.zeros((), columns.dtype))


def along_centers(layout, columns, p):
    """``J^T p`` of `center_columns` J and momenta p (n_u,), or columns (n_u, m)."""
    terms = [columns[:, k].reshape(-1, *(1,) * (p.ndim - 1)) * pick(p, layout.translations[:, k]) for k in range(3)]
    return sum(terms[1:], terms[0])


def of_armatures(system, layout, u):
    """Gyroscopic moments -omega x A omega of armatures A that turn with a body, as generalized forces (n_u,): zero where A is a number."""
    omega, A = (jnp.stack([x[a : a + 3] for a in layout.spins]) for x in (u, system.armature))
    moments = -cross(omega, A * omega).reshape(-1)
    places = np.full(layout.n_u, len(moments))
    places[np.add.outer(layout.spins, np.arange(3)).reshape(-1)] = np.arange(len(moments))
    return pick(jnp.concatenate([moments, jnp.zeros_like(moments[:1])]), places)


def weight_energy(system, places):
    """Potential energy of the weights: -sum of m g . c."""
    mass = system.mass * (1 - system.carried) if "carried" in system.structure.has else system.mass
    return -jnp.sum(mass * jnp.sum(centers(system, places) * system.gravity[None], axis=-1))


def columns_at(layout, places, bodies, points, directions):
    """Rows (n, k, n_s): how the velocities of points (n, 3) of bodies (n numbers) in directions (n, k, 3) depend on the velocities."""
    arm = points - pick(places.about, bodies)
    turning = cross(arm[:, None], directions)
    rows = jnp.sum(directions[:, :, None] * places.v[None, None], axis=-1)
    rows = rows + jnp.sum(turning[:, :, None] * places.w[None, None], axis=-1)
    return jnp.where(layout.moves[bodies][:, None], rows, jnp.zeros((), rows.dtype))
