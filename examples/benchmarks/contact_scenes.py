"""Scenes of many contacts as contact problems: stacks, walls and towers of boxes, spheres and rocks in a box, discs in a chute.

A step of dt = 1/100 s of bodies at rest under gravity and random pushes, without restitution. Boxes that lie on each other touch in four
points: the problems are hyperstatic, with ranks of a fifth to a half of the rows.
"""

from typing import NamedTuple

import numpy as np

#: Velocity that gravity gives in a step, m/s.
FALL = 9.81 * 0.01


class Scene(NamedTuple):
    """Bodies with free velocities, and contacts between them; rows of a contact N, T1, ..., Td."""

    W: np.ndarray  # (n, 2, k, d + 1) force directions on the first and on the second body of a contact
    bodies: np.ndarray  # (n, 2) numbers of its bodies; -1 is at rest
    M_inv: np.ndarray  # (b, k, k) inverse mass matrices
    u: np.ndarray  # (b, k) free velocities
    mu: np.ndarray  # (n,)

    def problem(self):
        """``(G, c, mu)`` with a dense Delassus operator, and d."""
        n, _, k, m = self.W.shape
        b = len(self.M_inv)
        W = np.zeros((b + 1, k, n, m))
        for side in range(2):
            W[self.bodies[:, side], :, np.arange(n)] += self.W[:, side]
        W = W[:b].reshape(b, k, n * m)
        flat = W.reshape(b * k, -1)
        G = flat.T @ np.einsum("bij,bjm->bim", self.M_inv, W).reshape(b * k, -1)
        return 0.5 * (G + G.T), flat.T @ self.u.ravel(), self.mu, m - 1


def frame(N):
    """Columns N, T1, T2."""
    N = N / np.linalg.norm(N)
    T = np.cross(N, np.eye(3)[np.argmin(np.abs(N))])
    T /= np.linalg.norm(T)
    return np.stack([N, T, np.cross(N, T)], axis=1)


def spatial(x, mass, inertia, contacts, rng, push, mu):
    """Scene of bodies at ``x`` (b, 3); contacts are ``(first, second, point, normal)``, the normal towards the second body."""
    b = len(x)
    M_inv = np.zeros((b, 6, 6))
    M_inv[:, :3, :3], M_inv[:, 3:, 3:] = np.eye(3) / mass[:, None, None], np.linalg.inv(inertia)
    W, bodies = np.zeros((len(contacts), 2, 6, 3)), np.array([contact[:2] for contact in contacts])
    for i, (*pair, point, normal) in enumerate(contacts):
        F = frame(np.asarray(normal, float))
        for side, body in enumerate(pair):
            if body >= 0:
                W[i, side] = (2 * side - 1) * np.concatenate([F, np.cross(point - x[body], F.T).T])
    u = push * FALL * rng.normal(size=(b, 6))
    u[:, 2] -= FALL
    return Scene(W, bodies, M_inv, u, np.full(len(contacts), mu))


def box_inertia(mass, size):
    """(b, 3, 3) for boxes with edges of the given lengths."""
    square = np.square(np.asarray(size, float))
    return mass[:, None, None] * np.diag((square.sum() - square) / 12)


def face(first, second, low, high, z):
    """Contacts in the corners of a rectangle in the plane of height z, empty where it is."""
    if np.any(high - low <= 1e-9):
        return []
    return [(first, second, np.array([x, y, z]), (0, 0, 1)) for x in (low[0], high[0]) for y in (low[1], high[1])]


def stack(n, rng, push=0.3, mu=0.5):
    """Boxes on top of each other."""
    b, half = max(n // 4, 1), 0.5
    x = np.c_[0.05 * rng.normal(size=(b, 2)), 0.25 + 0.5 * np.arange(b)]
    contacts = face(-1, 0, x[0, :2] - half, x[0, :2] + half, 0.0)
    for i in range(1, b):
        below, above = x[i - 1, :2], x[i, :2]
        contacts += face(i - 1, i, np.maximum(below, above) - half, np.minimum(below, above) + half, 0.5 * i)
    mass = rng.uniform(0.5, 2, b)
    return spatial(x, mass, box_inertia(mass, (1, 1, 0.5)), contacts, rng, push, mu)


def wall(n, rng, push=0.3, mu=0.5):
    """Bricks in rows, each row shifted by half a brick; neighbours in a row touch."""
    width = max(round(np.sqrt(n / 12)), 1)
    height = max(round(n / (12 * width)), 1)
    half, contacts = np.array([1.0, 0.5]), []
    x = np.array([[2.0 * c + r % 2, 0.0, 0.5 + r] for r in range(height) for c in range(width)])
    for i, centre in enumerate(x):
        row, column = divmod(i, width)
        if not row:
            contacts += face(-1, i, centre[:2] - half, centre[:2] + half, 0.0)
        for k in range(max(row - 1, 0) * width, row * width):
            contacts += face(k, i, np.maximum(x[k], centre)[:2] - half, np.minimum(x[k], centre)[:2] + half, float(row))
        if column:
            contacts += [(i - 1, i, np.array([centre[0] - 1, y, row + z]), (1, 0, 0)) for y in (-0.5, 0.5) for z in (0.0, 1.0)]
    mass = rng.uniform(0.9, 1.1, len(x))
    return spatial(x, mass, box_inertia(mass, (2, 1, 1)), contacts, rng, push, mu)


def tower(n, rng, push=0.3, mu=0.5):
    """Rings of bricks, each ring turned by half a brick."""
    count = 12 if n >= 96 else 6
    height, radius = max(n // (8 * count), 1), count / np.pi
    angle = np.array([2 * np.pi * (c + 0.5 * (r % 2)) / count for r in range(height) for c in range(count)])
    level = np.repeat(np.arange(height), count)
    x = np.c_[radius * np.cos(angle), radius * np.sin(angle), 0.5 + level]
    contacts, half = [], np.pi / count
    for i, a in enumerate(angle):
        parts = [(-1, a - half, a + half)]
        if level[i]:
            # The two bricks below: half an angle to either side.
            before = (level[i] - 1) * count + (i % count - (level[i] + 1) % 2) % count
            after = (level[i] - 1) * count + (before + 1) % count
            parts = [(before, a - half, a), (after, a, a + half)]
        for k, low, high in parts:
            for b in (0.95 * low + 0.05 * high, 0.05 * low + 0.95 * high):
                for r in (radius - 0.5, radius + 0.5):
                    contacts.append((k, i, np.array([r * np.cos(b), r * np.sin(b), float(level[i])]), (0, 0, 1)))
    mass = rng.uniform(0.9, 1.1, len(x))
    turn = np.array([[[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]] for a in angle])
    inertia = turn @ box_inertia(mass, (1, 2, 1)) @ turn.transpose(0, 2, 1)
    return spatial(x, mass, inertia, contacts, rng, push, mu)


def pile(n, rng, push, mu, patch, keep=0.6):
    """Bodies on a face-centred lattice in a box; a part of the pairs touches, in a point or in a ``patch`` of several points."""
    b = max(int(n / patch / (5.2 * keep)), 1)
    cells = int(np.ceil((b / 4) ** (1 / 3))) + 1
    cell = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    x = np.array([c + 2 * np.array([i, j, k]) for k in range(cells) for j in range(cells) for i in range(cells) for c in cell])
    x = 0.5 + np.sqrt(0.5) * x[np.lexsort((x[:, 0], x[:, 1], x[:, 2]))][:b]
    top, pairs = x.max(axis=0) + 0.5, []
    for i in range(b):
        near = np.flatnonzero(np.abs(np.linalg.norm(x[i + 1 :] - x[i], axis=1) - 1) < 1e-6) + i + 1
        pairs += [(i, j, 0.5 * (x[i] + x[j]), x[j] - x[i]) for j in near if rng.uniform() < keep]
        for axis, e in enumerate(np.eye(3)):
            if x[i, axis] < 0.5 + 1e-6:
                pairs.append((-1, i, x[i] - 0.5 * e, e))
            if axis < 2 and x[i, axis] > top[axis] - 0.5 - 1e-6:
                pairs.append((-1, i, x[i] + 0.5 * e, -e))
    mass = rng.uniform(0.5, 1.5, b)
    inertia = 0.1 * mass[:, None, None] * np.eye(3)
    if patch == 1:
        return spatial(x, mass, inertia, pairs, rng, push, mu)
    contacts = []
    for i, j, point, normal in pairs:
        F = frame(normal / np.linalg.norm(normal) + 0.2 * rng.normal(size=3))
        corners = rng.integers(1, 2 * patch)
        for a in 2 * np.pi * (rng.uniform() + np.arange(corners) / corners):
            contacts.append((i, j, point + 0.15 * (np.cos(a) * F[:, 1] + np.sin(a) * F[:, 2]), F[:, 0]))
    L = 0.3 * rng.normal(size=(b, 3, 3))
    inertia = 0.1 * mass[:, None, None] * (np.eye(3) + L @ L.transpose(0, 2, 1))
    return spatial(x, mass, inertia, contacts, rng, push, mu)


def spheres(n, rng, push=0.3, mu=0.3):
    """Spheres in a box."""
    return pile(n, rng, push, mu, 1)


def rocks(n, rng, push=0.3, mu=0.7):
    """Bodies of any inertia that touch in patches of one to five points."""
    return pile(n, rng, push, mu, 3)


def chute(n, rng, push=0.3, mu=0.4, keep=0.85, slope=0.35):
    """Discs in a plane, on a slope against a wall: d = 1."""
    b = max(int(n / (2.7 * keep)), 1)
    width = max(int(np.sqrt(2 * b)), 1)
    x = np.array([[i % width + 0.5 * (i // width % 2), 0.5 + i // width * np.sqrt(0.75)] for i in range(b)])
    contacts = []
    for i in range(b):
        if i < width:
            contacts.append((-1, i, np.array([0.0, 1.0])))
        if x[i, 0] == 0:
            contacts.append((-1, i, np.array([1.0, 0.0])))
        near = np.flatnonzero(np.abs(np.linalg.norm(x[i + 1 :] - x[i], axis=1) - 1) < 1e-9) + i + 1
        contacts += [(i, j, x[j] - x[i]) for j in near if rng.uniform() < keep]
    mass, W = rng.uniform(0.5, 1.5, b), np.zeros((len(contacts), 2, 3, 2))
    for i, (*pair, N) in enumerate(contacts):
        F = np.array([[N[0], -N[1]], [N[1], N[0]]])
        for side, body in enumerate(pair):
            if body >= 0:
                # The arm is half a diameter along the normal, so that only the tangential percussion turns the disc.
                W[i, side] = (2 * side - 1) * np.concatenate([F, [[0, -(2 * side - 1) * 0.5]]])
    u = push * FALL * rng.normal(size=(b, 3))
    u[:, :2] += FALL * np.array([np.sin(slope), -np.cos(slope)])
    M_inv = np.eye(3) * np.stack([1 / mass, 1 / mass, 8 / mass], axis=1)[:, None, :]
    return Scene(W, np.array([contact[:2] for contact in contacts]), M_inv, u, np.full(len(contacts), mu))


FAMILIES = {family.__name__: family for family in (stack, wall, tower, spheres, rocks, chute)}
