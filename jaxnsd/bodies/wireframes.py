"""Shapes as lines, for pictures."""

import numpy as np

from .rotations import of_numbers

#: Points of a circle.
ROUND = np.linspace(0, 2 * np.pi, 49)
#: Edges of a box, as pairs of signs.
EDGES = [(np.insert([a, b], axis, -1.0), np.insert([a, b], axis, 1.0)) for axis in range(3) for a in (-1.0, 1.0) for b in (-1.0, 1.0)]


def circle(axis, radius=1.0, at=0.0, part=ROUND):
    """Points (k, 3) of a circle, or of a part of it, about one of the axes."""
    points = np.zeros((len(part), 3))
    points[:, (axis + 1) % 3], points[:, (axis + 2) % 3], points[:, axis] = radius * np.cos(part), radius * np.sin(part), at
    return points


def rods(radius, half):
    """Four lines along z."""
    ends = np.array([[0, 0, -half], [0, 0, half]])
    return [ends + radius * np.array([np.cos(a), np.sin(a), 0.0]) for a in np.arange(4) * np.pi / 2]


def lines(kind, size, points=None):
    """Polylines (k, 3) of a shape in its own frame; of a plane none.

    kind: "sphere", "box", "capsule", "cylinder", "ellipsoid", "points" or "plane"; size: (3,), see `Shape.size`
    """
    size = np.asarray(size, float)
    if kind in ("sphere", "ellipsoid"):
        axes = size if kind == "ellipsoid" else np.full(3, size[0])
        return [circle(axis) * axes for axis in range(3)]
    if kind == "box":
        return [np.stack(edge) * size for edge in EDGES]
    if kind == "cylinder":
        return [circle(2, size[0], side * size[1]) for side in (-1, 1)] + rods(size[0], size[1])
    if kind == "capsule":
        ends = [circle(2, size[0], side * size[1]) for side in (-1, 1)]
        for side, start in ((1, 0.0), (-1, np.pi)):
            half = np.linspace(start, start + np.pi, 25)
            for first in (0, 1):
                arc = np.zeros((25, 3))
                arc[:, first], arc[:, 2] = size[0] * np.cos(half), size[0] * np.sin(half) + side * size[1]
                ends.append(arc)
        return ends + rods(size[0], size[1])
    if kind == "points" and len(points) < 9:
        return [np.stack([a, b]) for k, a in enumerate(points) for b in points[k + 1 :]]
    if kind == "points":
        # A body of many corners by its extent along its axes.
        points = np.asarray(points)
        middle = 0.5 * (points.max(axis=0) + points.min(axis=0))
        return [middle + line for line in lines("box", 0.5 * (points.max(axis=0) - points.min(axis=0)))]
    return []


def of_bodies(system):
    """``{number of the body, 0 the world: polylines in its frame}``: of its shapes, and lines from its origin to its centre of mass, to its
    shapes and to where its children are connected. Of a file only shapes that can touch are taken.
    """
    structure, found = system.structure, {}
    points = iter(np.asarray(part) for part in system.points)
    for k, shape in enumerate(structure.shapes):
        own = next(points) if shape.kind == "points" else None
        R, x = of_numbers(np.asarray(system.shape_orientation[k])), np.asarray(system.shape_position[k])
        found.setdefault(shape.body, [])
        found[shape.body] += [line @ R.T + x for line in lines(shape.kind, system.shape_size[k], own)]
    for b in range(1, len(structure.bodies) + 1):
        ends = [np.asarray(system.center[b - 1])]
        ends += [np.asarray(system.position[c]) for c, parent in enumerate(structure.parents) if parent == b]
        ends += [np.asarray(system.shape_position[k]) for k, shape in enumerate(structure.shapes) if shape.body == b]
        found[b] = found.get(b, []) + [np.stack([np.zeros(3), end]) for end in ends if np.any(end)]
    return found


def planes(system):
    """``[(point (3,), normal (3,))]`` of the planes of the world."""
    where = [k for k, shape in enumerate(system.structure.shapes) if shape.kind == "plane" and not shape.body]
    return [(np.asarray(system.shape_position[k]), of_numbers(np.asarray(system.shape_orientation[k]))[:, 2]) for k in where]
