"""Shapes as triangles, for pictures in space."""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..bodies.rotations import of_numbers


class Mesh(NamedTuple):
    """Triangles that each know their corners and normals, in one frame.

    corners: (n, 3, 3) three points, counter-clockwise from outside, in m; normals: (n, 3, 3) of length one
    light:   (n,) whether a triangle is drawn lighter, so that round bodies are seen to turn
    """

    corners: np.ndarray
    normals: np.ndarray
    light: np.ndarray

    def moved(self, R, x):
        """The mesh turned by R (3, 3), then moved by x (3,)."""
        return Mesh(self.corners @ R.T + x, self.normals @ R.T, self.light)


#: Nothing.
NONE = Mesh(np.zeros((0, 3, 3)), np.zeros((0, 3, 3)), np.zeros(0, bool))


def joined(meshes):
    """Several meshes as one."""
    return Mesh(*(np.concatenate(parts) for parts in zip(*meshes, strict=True))) if meshes else NONE


def flat(corners):
    """Mesh of triangles (n, 3, 3) with flat sides; those without an area are left out."""
    corners = np.asarray(corners, float).reshape(-1, 3, 3)
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1)
    there = length > 0
    normal = normal[there] / length[there, None]
    return Mesh(corners[there], np.repeat(normal[:, None], 3, axis=1), np.zeros(there.sum(), bool))


def fan(points):
    """Triangles (k - 2, 3, d) of a polygon (k, d)."""
    points = np.asarray(points)
    return np.stack([np.repeat(points[:1], len(points) - 2, axis=0), points[1:-1], points[2:]], axis=1)


def box(half):
    """A box with these half edges (3,)."""
    sides = []
    for axis in range(3):
        for sign in (-1.0, 1.0):
            square = np.zeros((4, 3))
            square[:, axis] = sign
            square[:, (axis + 1) % 3], square[:, (axis + 2) % 3] = np.array([[-1, 1, 1, -1], [-1, -1, 1, 1]]) * np.array([[1], [sign]])
            sides.append(fan(square * half))
    return flat(np.concatenate(sides))


def turned(radius, height, normals, around=32):
    """Mesh of a profile that is turned about z: radii, heights (k,) from below, and normals (k - 1, 2, 2) at both ends of each part."""
    angle = 2 * np.pi * np.arange(around + 1) / around
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def at(r, z):
        return np.concatenate([r * circle, np.full((around + 1, 1), z)], axis=1)

    parts = []
    for k in range(len(radius) - 1):
        low, high = at(radius[k], height[k]), at(radius[k + 1], height[k + 1])
        n_low, n_high = (at(*normals[k][end]) for end in (0, 1))
        for points, directions in (
            ((low[:-1], low[1:], high[1:]), (n_low[:-1], n_low[1:], n_high[1:])),
            ((low[:-1], high[1:], high[:-1]), (n_low[:-1], n_high[1:], n_high[:-1])),
        ):
            corners, normal = np.stack(points, axis=1), np.stack(directions, axis=1)
            there = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) > 1e-14
            light = (np.arange(around) * 4 // around) % 2 == 0
            parts.append(Mesh(corners[there], normal[there], light[there]))
    return joined(parts)


def sphere(radius=1.0, rings=16):
    """A ball; its lighter quarters change places at the equator."""
    return capsule(radius, 0.0, rings)


def capsule(radius, half, rings=16):
    """A cylinder along z with half balls at its ends, whose centres are ``half`` above and below the middle."""
    polar = np.linspace(-np.pi / 2, np.pi / 2, rings + 1)
    polar = np.concatenate([polar[: rings // 2 + 1], polar[rings // 2 :]]) if half else polar
    side = np.where(np.arange(len(polar)) < len(polar) / 2, -half, half)
    r, z = np.cos(polar), np.sin(polar)
    mesh = turned(radius * r, radius * z + side, [((r[k], z[k]), (r[k + 1], z[k + 1])) for k in range(len(polar) - 1)])
    return mesh if half else mesh._replace(light=mesh.light ^ (mesh.corners[:, :, 2].mean(axis=1) > 0))


def cylinder(radius, half):
    """A cylinder along z."""
    normals = [((0, -1), (0, -1)), ((1, 0), (1, 0)), ((0, 1), (0, 1))]
    return turned(radius * np.array([0.0, 1, 1, 0]), half * np.array([-1.0, -1, 1, 1]), normals)


def ellipsoid(half_axes):
    """An ellipsoid."""
    ball, half_axes = sphere(), np.asarray(half_axes, float)
    normals = ball.normals / half_axes
    return Mesh(ball.corners * half_axes, normals / np.linalg.norm(normals, axis=2, keepdims=True), ball.light)


def hull(points):
    """The convex hull of points (k, 3): built up point by point, faces that a new point sees are replaced by those with its horizon.

    Points that span no volume give a mesh of both sides of what they span, or nothing.
    """
    points = np.unique(np.asarray(points, float), axis=0)
    if len(points) < 3:
        return NONE
    size = np.ptp(points, axis=0).max()
    # Four points that span a volume, each the farthest from what the ones before span.
    first = int(np.argmin(points @ [1.0, 0.7, 0.3]))
    second = int(np.argmax(np.linalg.norm(points - points[first], axis=1)))
    axis = (points[second] - points[first]) / np.linalg.norm(points[second] - points[first])
    away = points - points[first]
    third = int(np.argmax(np.linalg.norm(away - np.outer(away @ axis, axis), axis=1)))
    normal = np.cross(points[second] - points[first], points[third] - points[first])
    if np.linalg.norm(normal) < 1e-9 * size**2:
        return NONE
    normal = normal / np.linalg.norm(normal)
    fourth = int(np.argmax(np.abs(away @ normal)))
    if abs(away[fourth] @ normal) < 1e-9 * size:
        across = np.cross(normal, axis)
        middle = points.mean(axis=0)
        order = np.argsort(np.arctan2((points - middle) @ across, (points - middle) @ axis))
        front = fan(points[order])
        return flat(np.concatenate([front, front[:, ::-1]]))
    inside = points[[first, second, third, fourth]].mean(axis=0)

    def outward(faces):
        a, b, c = points[faces[:, 0]], points[faces[:, 1]], points[faces[:, 2]]
        normal = np.cross(b - a, c - a)
        swap = np.sum(normal * (a - inside), axis=1) < 0
        faces[swap] = faces[swap][:, [0, 2, 1]]
        normal[swap] *= -1
        length = np.linalg.norm(normal, axis=1, keepdims=True)
        return faces, normal / np.where(length > 0, length, 1.0)

    start = (first, second, third), (first, second, fourth), (first, third, fourth), (second, third, fourth)
    faces, normals = outward(np.array(start))
    for k in range(len(points)):
        seen = np.sum(normals * (points[k] - points[faces[:, 0]]), axis=1) > 1e-9 * size
        if not seen.any():
            continue
        edges = np.concatenate([faces[seen][:, pair] for pair in ([0, 1], [1, 2], [2, 0])])
        _, place, count = np.unique(np.sort(edges, axis=1), axis=0, return_index=True, return_counts=True)
        horizon = edges[place[count == 1]]
        more, their = outward(np.column_stack([horizon, np.full(len(horizon), k)]))
        faces, normals = np.concatenate([faces[~seen], more]), np.concatenate([normals[~seen], their])
    return flat(points[faces])


def of_shape(kind, size, points=None):
    """Mesh of a shape in its own frame; of a plane nothing.

    kind: "sphere", "box", "capsule", "cylinder", "ellipsoid", "points" or "plane"; size: (3,), see `bodies.parts.Shape.size`
    """
    size = np.asarray(size, float)
    if kind == "points":
        return hull(points)
    if kind == "sphere":
        return sphere(size[0])
    return {"box": box, "ellipsoid": ellipsoid, "capsule": lambda s: capsule(s[0], s[1]), "cylinder": lambda s: cylinder(s[0], s[1])}.get(
        kind, lambda s: NONE
    )(size)


def rod(start, end, radius):
    """A cylinder from a point to another one."""
    length = np.linalg.norm(np.subtract(end, start))
    if not length:
        return NONE
    return cylinder(radius, 0.5 * length).moved(along((np.subtract(end, start)) / length), 0.5 * np.add(start, end))


def along(direction):
    """A rotation (3, 3) that turns z to a direction (3,) of length one."""
    first = np.cross(direction, np.eye(3)[np.argmin(np.abs(direction))])
    first = first / np.linalg.norm(first)
    return np.stack([first, np.cross(direction, first), direction], axis=1)


def arrow(vector, radius):
    """An arrow from the origin along a vector (3,), with a shaft of this radius."""
    length = np.linalg.norm(vector)
    if not length:
        return NONE
    head = min(5 * radius, 0.6 * length)
    tip = head / 5
    normals = [((0, -1), (0, -1)), ((1, 0), (1, 0)), ((0, -1), (0, -1)), ((0.9, 0.44), (0.9, 0.44))]
    profile = turned(np.array([0, tip, tip, 2.4 * tip, 0]), np.array([0, 0, length - head, length - head, length]), normals, 16)
    return profile._replace(light=np.zeros(len(profile.light), bool)).moved(along(np.asarray(vector) / length), 0.0)


def of_file(path, names):
    """``{name of a body or "world": [(name, Mesh in its frame, colour or None)]}`` of all that a model file shows.

    path:  MJCF or URDF, a path or a string of XML; names: those of the system's bodies; what is on another body is on its parent

    Taken are all geoms of groups 0 to 2, those for pictures alone too, but no planes; of a link of URDF its visual geometry, where it has
    such. Raises ImportError without ``mujoco``, ValueError for a file, or a mesh, that it refuses.
    """
    from ..bodies import compiled, repair

    mujoco = compiled.mujoco_for("drawing")
    spec, urdf = _spec(mujoco, path)
    with compiled.refusals("drawing"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MuJoCo, said when the model was read
        model = repair.compiled(spec)[0] if urdf else spec.compile()  # shapes need no masses
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    found = {}
    for g in range(model.ngeom):
        kind, b = compiled.GEOMS[model.geom_type[g]], model.geom_bodyid[g]
        if kind in ("plane", "hfield", "sdf") or model.geom_group[g] > 2:
            continue
        # What MuJoCo reads of URDF is in group 1 where it is for pictures, else in group 0.
        if urdf and model.geom_group[g] == 0 and np.any((model.geom_bodyid == b) & (model.geom_group == 1)):
            continue
        if kind == "mesh":
            k = model.geom_dataid[g]
            vertices = model.mesh_vert[model.mesh_vertadr[k] : model.mesh_vertadr[k] + model.mesh_vertnum[k]]
            mesh = flat(vertices[model.mesh_face[model.mesh_faceadr[k] : model.mesh_faceadr[k] + model.mesh_facenum[k]]])
        else:
            mesh = of_shape(kind, model.geom_size[g])
        own = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_GEOM, g)
        while b and mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, b) not in names:
            b = model.body_parentid[b]
        name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, b) if b else "world"
        R_b, R_g = data.xmat[b].reshape(3, 3), data.geom_xmat[g].reshape(3, 3)
        x = R_b.T @ (data.geom_xpos[g] - data.xpos[b])
        rgba = model.geom_rgba[g]
        colour = None if np.allclose(rgba[:3], 0.5) else tuple(rgba[:3].tolist())
        found.setdefault(name, []).append((own or f"{name}_{kind}", mesh.moved(R_b.T @ R_g, x), colour))
    return found


def _spec(mujoco, path):
    """``(specification, whether it is one of URDF)`` of a path or a string of XML, visual geometry and all."""
    from ..bodies import compiled

    text = str(path)
    file = None if text.lstrip().startswith("<") else Path(path)
    if file is not None and not file.is_file():
        raise ValueError(f"drawing: there is no file {text!r}; give a path, or a string of XML that starts with <")
    text = text if file is None else file.read_text(encoding="utf-8")
    urdf = re.search(r"<robot\b[^>]*>", text)
    with compiled.refusals("drawing"):
        if urdf is None:
            return compiled.read("drawing", path, mujoco.MjSpec.from_string, mujoco.MjSpec.from_file), False
        if "<mujoco" not in text:
            # MuJoCo leaves out what is for pictures where nothing says that it shall not.
            compiler = '<mujoco><compiler discardvisual="false" strippath="false"/></mujoco>'
            text = text[: urdf.end()] + compiler + text[urdf.end() :]
        spec = mujoco.MjSpec.from_string(text)
    folder = Path() if file is None else file.parent.resolve()
    for mesh in spec.meshes:
        mesh.file = str(folder / compiled.in_package(mesh.file, str(folder)))
    return spec, True


def of_bodies(system):
    """As `of_file`, of the shapes that a `bodies.Multibody` has; of a body without, rods to its centre of mass and its children."""
    structure, found = system.structure, {}
    points = iter(np.asarray(part) for part in system.points)
    names = ("world", *structure.bodies)
    for k, shape in enumerate(structure.shapes):
        own = next(points) if shape.kind == "points" else None
        if shape.kind == "plane":
            continue
        mesh = of_shape(shape.kind, system.shape_size[k], own)
        mesh = mesh.moved(of_numbers(np.asarray(system.shape_orientation[k])), np.asarray(system.shape_position[k]))
        found.setdefault(names[shape.body], []).append((shape.name, mesh, None))
    for b, name in enumerate(structure.bodies, 1):
        ends = [np.asarray(system.position[c]) for c, parent in enumerate(structure.parents) if parent == b]
        if name not in found:
            ends.append(np.asarray(system.center[b - 1]))
        thickness = 0.04 * max((np.linalg.norm(end) for end in ends), default=0.0)
        if name not in found:
            rods = [rod(np.zeros(3), end, thickness) for end in ends]
            # A ball at the centre of mass; where nothing says how large the body is, one with its inertia.
            mass, inertia = float(system.mass[b - 1]), np.trace(np.asarray(system.inertia[b - 1])) / 3
            radius = 2 * thickness or np.sqrt(2.5 * inertia / mass if mass > 0 else 0.0)
            rods += [sphere(radius).moved(np.eye(3), ends[-1])] if radius else []
            found[name] = [(name, joined(rods), None)]
    return found
