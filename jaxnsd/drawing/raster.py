"""Triangles as pixels: a depth buffer, light, shadows on the ground and outlines, in NumPy. It needs no display and no graphics card."""

from typing import NamedTuple

import numpy as np

from . import meshes

#: Pixels of the picture are means of so many by so many.
FINER = 2
#: Light from everywhere, from the eye, from the lamp, and what shines. Of the ground two tones, and how dark it is in the shadow.
TONES, SHADOW = (0.865, 0.925), 0.72
AMBIENT, FILL, DIFFUSE, SHINE = 0.46, 0.26, 0.46, 0.16
GHOST = 0.33
#: Vertical angle of view in rad.
ANGLE = 0.55


class Camera(NamedTuple):
    """Where it is, its axes as rows (right, up, forward), and how large one metre at one metre is on the picture, in pixels."""

    eye: np.ndarray
    axes: np.ndarray
    focal: float
    width: int
    height: int

    def seen(self, points):
        """``(x, y, depth)`` of points (..., 3): pixels from the left and from above, m."""
        x, y, depth = np.moveaxis((points - self.eye) @ self.axes.T, -1, 0)
        safe = np.where(np.abs(depth) > 1e-12, depth, 1e-12)
        return 0.5 * self.width + self.focal * x / safe, 0.5 * self.height - self.focal * y / safe, depth


def axes_of(azimuth, elevation, up):
    """Axes (3, 3) of a camera that is in a direction: rows right, up, forward. Angles in rad, about the axis ``up`` of the world."""
    e = np.eye(3)
    first, second, vertical = e[(up + 1) % 3], e[(up + 2) % 3], e[up]
    away = np.cos(elevation) * (np.cos(azimuth) * first + np.sin(azimuth) * second) + np.sin(elevation) * vertical
    right = np.cross(vertical, away)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(away, right), -away])


def aimed(points, axes, width, height, margin=1.12):
    """The `Camera` with these axes that has all points (n, 3) in its picture, in the middle."""
    focal = 0.5 * height / np.tan(0.5 * ANGLE)
    middle = 0.5 * (points.min(axis=0) + points.max(axis=0))
    distance = 0.0
    for _ in range(3):
        x, y, depth = ((points - middle) @ axes.T).T
        slopes = np.array([[0.5 * width / focal], [0.5 * height / focal]]) / margin
        distance = max(1e-6, float(np.max(np.abs(np.stack([x, y])) / slopes - depth)))
        # What is seen is moved to the middle of the picture.
        seen = np.stack([x, y]) / (distance + depth)
        middle = middle + distance * (0.5 * (seen.min(axis=1) + seen.max(axis=1))) @ axes[:2]
    return Camera(middle - distance * axes[2], axes, focal, width, height)


def spans(x, y, width, height):
    """``(triangle, row, column)`` of all pixels that triangles with corners (n, 3) in pixels cover, each (k,)."""
    # Edge i is where a_i column + b_i row + c_i = 0; inside all three are positive.
    turn = np.sign((x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0]))
    a = -(np.roll(y, -1, axis=1) - y) * turn[:, None]
    b = (np.roll(x, -1, axis=1) - x) * turn[:, None]
    c = -(a * x + b * y)
    top = np.clip(np.ceil(y.min(axis=1)), 0, height).astype(np.int64)
    rows = np.where(turn == 0, 0, np.clip(np.floor(y.max(axis=1)), -1, height - 1).astype(np.int64) + 1 - top)
    triangle, row = _counted(top, np.maximum(rows, 0))
    a, rest = a[triangle], b[triangle] * row[:, None] + c[triangle]
    with np.errstate(divide="ignore", invalid="ignore"):
        border = -rest / a
    low = np.where(a > 0, border, np.where((a == 0) & (rest < 0), np.inf, -np.inf)).max(axis=1)
    high = np.where(a < 0, border, np.inf).min(axis=1)
    left = np.ceil(np.clip(low, 0, width)).astype(np.int64)
    count = np.floor(np.clip(high, -1, width - 1)).astype(np.int64) + 1 - left
    line, column = _counted(left, np.maximum(count, 0))
    return triangle[line], row[line], column


def _counted(start, count):
    """``(i, start[i] + 0 .. count[i] - 1)`` for all i, one after the other."""
    which = np.repeat(np.arange(len(start)), count)
    return which, start[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)


class Layer:
    """What is nearest to the camera of a mesh: ``near`` (height, width) 1 / depth, zero where nothing is, ``which`` triangle is there."""

    def __init__(self, camera, corners, both_sides=None):
        """corners (n, 3, 3); both_sides (n,): triangles that are seen from behind, too."""
        height, width = camera.height, camera.width
        x, y, depth = camera.seen(corners)
        area = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])
        facing = area < 0 if both_sides is None else (area < 0) | both_sides
        self.there = np.flatnonzero(facing & (depth.min(axis=1) > 1e-6))
        x, y, inverse = x[self.there], y[self.there], 1 / depth[self.there]
        self.x, self.y, self.camera = x, y, camera
        triangle, row, column = spans(x, y, width, height)
        near = np.sum(_weights(x, y, triangle, row, column) * inverse[triangle], axis=1).astype(np.float32)
        pixel = row * width + column
        self.near = np.zeros(height * width, np.float32)
        np.maximum.at(self.near, pixel, near)
        self.which = np.full(height * width, -1, np.int64)
        first = near == self.near[pixel]
        self.which[pixel[first]] = triangle[first]

    def pixels(self):
        """``(pixels (k,), triangles (k,) of the mesh, weights (k, 3) of their corners)`` that are covered."""
        pixel = np.flatnonzero(self.which >= 0)
        triangle = self.which[pixel]
        row, column = np.divmod(pixel, self.camera.width)
        return pixel, self.there[triangle], _weights(self.x, self.y, triangle, row, column)


def _weights(x, y, triangle, row, column):
    """Barycentric coordinates (k, 3) of pixels."""
    (x0, x1, x2), (y0, y1, y2) = x.T, y.T
    area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    area = np.where(area == 0, 1.0, area)
    a1, b1 = (y2 - y0) / area, (x0 - x2) / area
    a2, b2 = (y0 - y1) / area, (x1 - x0) / area
    dx, dy = column - x0[triangle], row - y0[triangle]
    first, second = a1[triangle] * dx + b1[triangle] * dy, a2[triangle] * dx + b2[triangle] * dy
    return np.stack([1 - first - second, first, second], axis=1)


class Painted(NamedTuple):
    """A mesh with a colour and the number of the part for every triangle."""

    mesh: meshes.Mesh
    colour: np.ndarray
    part: np.ndarray


def painted(parts):
    """`Painted` of ``[(Mesh, colour (3,))]``."""
    colours = [np.where(m.light[:, None], 1 - 0.62 * (1 - np.asarray(c)), np.asarray(c)[None]) for m, c in parts]
    numbers = [np.full(len(m.light), k) for k, (m, _) in enumerate(parts)]
    if not parts:
        return Painted(meshes.NONE, np.zeros((0, 3)), np.zeros(0, int))
    return Painted(meshes.joined([m for m, _ in parts]), np.concatenate(colours), np.concatenate(numbers))


def _shaded(camera, layer, shapes, light):
    """``(pixels, colours (k, 3), parts (k,), normals (k, 3))`` of a layer."""
    pixel, triangle, weights = layer.pixels()
    normal = np.einsum("kc,kcd->kd", weights, shapes.mesh.normals[triangle])
    normal = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    middle = shapes.mesh.corners[triangle].mean(axis=1)
    view = camera.eye - middle
    view = view / np.linalg.norm(view, axis=1, keepdims=True)
    # Sides that are seen from behind are lit as if they were in front.
    normal = np.where(np.sum(normal * view, axis=1, keepdims=True) < -0.3, -normal, normal)
    half = view + light
    half = half / np.linalg.norm(half, axis=1, keepdims=True)
    lit = np.clip(normal @ light, 0, 1)
    shine = SHINE * np.clip(np.sum(normal * half, axis=1), 0, 1) ** 30
    front = np.clip(np.sum(normal * view, axis=1), 0, 1)
    colour = shapes.colour[triangle] * (AMBIENT + FILL * front + DIFFUSE * lit)[:, None] + shine[:, None]
    return pixel, np.clip(colour, 0, 1).astype(np.float32), shapes.part[triangle], normal


class Ground:
    """A plane with squares, which fades away from the middle; what of it a camera sees is kept while the camera stays."""

    def __init__(self, point, normal, square, radius):
        self.point, self.normal, self.square, self.radius = point, normal, square, radius
        axes = [np.eye(3)[k] for k in range(3) if abs(normal[k]) < 1e-3]
        self.axes = axes if len(axes) == 2 else meshes.along(normal)[:, :2].T
        self.kept = None

    def seen(self, camera, middle):
        """``(near (height, width), tone, fade)``; None where the camera is behind it."""
        key = camera.eye.tobytes(), middle.tobytes(), camera.width
        if self.kept is None or self.kept[0] != key:
            self.kept = key, self._seen(camera, middle)
        return self.kept[1]

    def _seen(self, camera, middle):
        point, normal, (right, up, forward) = self.point, self.normal, camera.axes
        behind = normal @ (camera.eye - point)
        if behind <= 0:
            return None
        column = ((np.arange(camera.width) - 0.5 * camera.width) / camera.focal).astype(np.float32)[None]
        row = ((0.5 * camera.height - np.arange(camera.height)) / camera.focal).astype(np.float32)[:, None]
        # 1 / depth is linear in the picture.
        near = -(np.float32(normal @ forward) + column * np.float32(normal @ right) + row * np.float32(normal @ up)) / np.float32(behind)
        visible = near > 1e-6
        depth = np.where(visible, 1 / np.where(visible, near, 1), 0)
        foot = middle - ((middle - point) @ normal) * normal
        u, v = (
            np.float32((camera.eye - foot) @ axis)
            + depth * (np.float32(forward @ axis) + column * np.float32(right @ axis) + row * np.float32(up @ axis))
            for axis in self.axes
        )
        fade = np.clip(1.5 - np.sqrt(u * u + v * v) / np.float32(self.radius), 0, 1) * visible
        u, v = (x + np.float32(foot @ axis % (2 * self.square)) for x, axis in zip((u, v), self.axes, strict=True))
        light = (np.floor(u / self.square) + np.floor(v / self.square)) % 2 == 0
        return np.where(fade > 0, near, 0), np.where(light, np.float32(TONES[1]), np.float32(TONES[0])), fade * fade * (3 - 2 * fade)

    def painted(self, camera, light, corners, middle):
        """``(near, tone)``, (height * width,) each, with the shadows of triangles; None where the camera is behind it."""
        found, slope = self.seen(camera, middle), self.normal @ light
        if found is None:
            return None
        near, tone, fade = found
        height = (corners - self.point) @ self.normal
        above = height.min(axis=1) > -1e-3 * self.radius if len(corners) else np.zeros(0, bool)
        if above.any() and slope > 0.1:
            flat = corners[above] - (height[above] / slope)[..., None] * light
            dark = Layer(camera, flat, np.ones(len(flat), bool)).near.reshape(near.shape) > 0
            tone = np.where(dark, np.float32(SHADOW) * tone, tone)
        return near.ravel(), (1 - fade * (1 - tone)).ravel()


def render(camera, bodies, grounds=(), ghosts=(), arrows=None, middle=None, up=2):
    """A picture (height, width, 3) of bytes.

    bodies: `Painted`; ghosts: several of them, each seen through; arrows: one whose hidden parts shine through
    grounds: `Ground`; middle: where they are seen, (3,); up: axis of the world from which the light comes
    """
    camera = camera._replace(focal=camera.focal * FINER, width=camera.width * FINER, height=camera.height * FINER)
    height, width = camera.height, camera.width
    light = 0.85 * np.eye(3)[up] - 0.45 * camera.axes[0] - 0.35 * camera.axes[2]
    light = light / np.linalg.norm(light)
    picture = np.ones((height * width, 3), np.float32)
    nearest = np.zeros(height * width, np.float32)
    lit = (bodies.mesh.normals.mean(axis=1) @ light) > 0
    for ground in grounds:
        drawn = ground.painted(camera, light, bodies.mesh.corners[lit], middle)
        if drawn is not None:
            near, tone = drawn
            over = near > nearest
            np.copyto(picture, tone[:, None], where=over[:, None])
            np.copyto(nearest, near, where=over)
    layer = Layer(camera, bodies.mesh.corners)
    pixel, colour, part, normal = _shaded(camera, layer, bodies, light)
    # What lies on the ground is not hidden by it.
    front = layer.near[pixel] * (1 + 1e-4) > nearest[pixel]
    pixel, colour, part, normal = pixel[front], colour[front], part[front], normal[front]
    picture[pixel], nearest[pixel] = colour, layer.near[pixel]
    _outline(picture, height, width, pixel, part, normal)
    for ghost in ghosts:
        layer = Layer(camera, ghost.mesh.corners)
        pixel, colour, _, _ = _shaded(camera, layer, ghost, light)
        front = layer.near[pixel] > nearest[pixel]
        picture[pixel[front]] += GHOST * (colour[front] - picture[pixel[front]])
    if arrows is not None and len(arrows.mesh.light):
        layer = Layer(camera, arrows.mesh.corners)
        pixel, colour, _, _ = _shaded(camera, layer, arrows, light)
        clear = np.where(layer.near[pixel] > nearest[pixel], 1.0, 0.5)[:, None].astype(np.float32)
        picture[pixel] += clear * (colour - picture[pixel])
    picture = picture.reshape(height, width, 3)
    rows = sum(picture[k::FINER] for k in range(FINER))
    picture = sum(rows[:, k::FINER] for k in range(FINER)) / FINER**2
    return (255 * np.clip(picture, 0, 1) + 0.5).astype(np.uint8)


def _outline(picture, height, width, pixel, part, normal):
    """Darken pixels beside which another part, nothing, or another side of the same part is."""
    if not len(pixel):
        return
    row, column = np.divmod(pixel, width)
    top, left = row.min(), column.min()
    shape = row.max() - top + 3, column.max() - left + 3
    row, column = row - top + 1, column - left + 1
    parts, normals = np.full(shape, -1), np.zeros((*shape, 3), np.float32)
    parts[row, column], normals[row, column] = part, normal
    edge = np.zeros(shape, bool)
    for a, b in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        differs = (parts[a] != parts[b]) | (np.einsum("ijk,ijk->ij", normals[a], normals[b]) < 0.75)
        edge[a] |= differs
        edge[b] |= differs
    picture[pixel[edge[row, column]]] *= 0.55
