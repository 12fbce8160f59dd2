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
    """What is nearest to the camera of a mesh: of all pixels (k,) that are covered, 1 / depth (k,), the triangle (k,) that is there, and
    the weights (k, 3) of its corners.
    """

    def __init__(self, camera, corners, both_sides=None):
        """corners (n, 3, 3); both_sides (n,): triangles that are seen from behind, too."""
        x, y, depth = camera.seen(corners)
        area = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])
        facing = area < 0 if both_sides is None else (area < 0) | both_sides
        there = np.flatnonzero(facing & (depth.min(axis=1) > 1e-6))
        x, y, inverse = x[there], y[there], 1 / depth[there]
        triangle, row, column = spans(x, y, camera.width, camera.height)
        weights = _weights(x, y, triangle, row, column)
        near = np.sum(weights * inverse[triangle], axis=1).astype(np.float32)
        # A buffer as large as what is covered.
        top, left = row.min(initial=camera.height), column.min(initial=camera.width)
        width = max(column.max(initial=0) - left + 1, 1)
        place = (row - top) * width + column - left
        buffer = np.zeros(place.max(initial=0) + 1, np.float32)
        np.maximum.at(buffer, place, near)
        first = np.flatnonzero(near == buffer[place])
        which = np.full(len(buffer), -1)
        which[place[first]] = first
        chosen = which[which >= 0]
        self.pixel, self.near = row[chosen] * camera.width + column[chosen], near[chosen]
        self.triangle, self.weights = there[triangle[chosen]], weights[chosen]


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
    """``(colours (k, 3), parts (k,), normals (k, 3))`` of the pixels of a layer."""
    triangle, weights = layer.triangle, layer.weights
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
    return np.clip(colour, 0, 1).astype(np.float32), shapes.part[triangle], normal


class Backdrop:
    """White, and planes with squares that fade away from the middle; what a camera sees of it is kept while the camera stays.

    grounds: pairs (point (3,), normal (3,)); square: edge of the squares, radius: how far they are seen, in m
    """

    def __init__(self, grounds=(), square=0.1, radius=1.0):
        self.grounds, self.square, self.radius = list(grounds), square, radius
        self.kept = None

    def seen(self, camera, middle):
        """``(picture (k, 3), near (k,), tone (k,), fade (k,), which ground (k,))`` of all pixels, -1 where there is none."""
        key = camera.eye.tobytes(), np.asarray(middle).tobytes(), camera.width
        if self.kept is None or self.kept[0] != key:
            self.kept = key, self._seen(camera, middle)
        return self.kept[1]

    def _seen(self, camera, middle):
        count = camera.width * camera.height
        near, tone, fade = (np.zeros(count, np.float32) for _ in range(3))
        which = np.full(count, -1, np.int8)
        for number, (point, normal) in enumerate(self.grounds):
            found = self._plane(camera, middle, point, normal)
            if found is not None:
                over = found[0] > near
                for whole, part in zip((near, tone, fade), found, strict=True):
                    np.copyto(whole, part, where=over)
                which[over] = number
        return np.repeat((1 - fade * (1 - tone))[:, None], 3, axis=1), near, tone, fade, which

    def _plane(self, camera, middle, point, normal):
        """``(near, tone, fade)`` of one plane; None where the camera is behind it."""
        right, up, forward = camera.axes
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
        axes = [np.eye(3)[k] for k in range(3) if abs(normal[k]) < 1e-3]
        axes = axes if len(axes) == 2 else meshes.along(normal)[:, :2].T
        u, v = (
            np.float32((camera.eye - foot) @ axis)
            + depth * (np.float32(forward @ axis) + column * np.float32(right @ axis) + row * np.float32(up @ axis))
            for axis in axes
        )
        fade = np.clip(1.5 - np.sqrt(u * u + v * v) / np.float32(self.radius), 0, 1) * visible
        u, v = (x + np.float32(foot @ axis % (2 * self.square)) for x, axis in zip((u, v), axes, strict=True))
        light = (np.floor(u / self.square) + np.floor(v / self.square)) % 2 == 0
        tone = np.where(light, np.float32(TONES[1]), np.float32(TONES[0]))
        return np.where(fade > 0, near, 0).ravel(), tone.ravel(), (fade * fade * (3 - 2 * fade)).ravel()

    def painted(self, camera, light, corners, middle):
        """``(picture, near)`` to be drawn on, with the shadows of triangles (n, 3, 3)."""
        picture, near, tone, fade, which = self.seen(camera, middle)
        picture = picture.copy()
        for number, (point, normal) in enumerate(self.grounds):
            slope, height = normal @ light, (corners - point) @ normal
            above = height.min(axis=1, initial=np.inf) > -1e-3 * self.radius
            if above.any() and slope > 0.1:
                flat = corners[above] - (height[above] / slope)[..., None] * light
                pixel = Layer(camera, flat, np.ones(len(flat), bool)).pixel
                pixel = pixel[which[pixel] == number]
                picture[pixel] = (1 - fade[pixel] * (1 - SHADOW * tone[pixel]))[:, None]
        return picture, near.copy()


def render(camera, bodies, backdrop=None, ghosts=(), arrows=None, middle=(0.0, 0.0, 0.0), up=2):
    """A picture (height, width, 3) of bytes.

    bodies: `Painted`; ghosts: several of them, each seen through; arrows: one whose hidden parts shine through
    middle: where the `Backdrop` is seen, (3,); up: axis of the world from which the light comes
    """
    camera = camera._replace(focal=camera.focal * FINER, width=camera.width * FINER, height=camera.height * FINER)
    height, width = camera.height, camera.width
    light = 0.85 * np.eye(3)[up] - 0.45 * camera.axes[0] - 0.35 * camera.axes[2]
    light = light / np.linalg.norm(light)
    lit = (bodies.mesh.normals.mean(axis=1) @ light) > 0
    picture, nearest = (backdrop or Backdrop()).painted(camera, light, bodies.mesh.corners[lit], np.asarray(middle, float))
    layer = Layer(camera, bodies.mesh.corners)
    colour, part, normal = _shaded(camera, layer, bodies, light)
    # What lies on the ground is not hidden by it.
    front = layer.near * (1 + 1e-4) > nearest[layer.pixel]
    pixel = layer.pixel[front]
    picture[pixel], nearest[pixel] = colour[front], layer.near[front]
    _outline(picture, width, pixel, part[front], normal[front])
    for ghost in ghosts:
        layer = Layer(camera, ghost.mesh.corners)
        colour, *_ = _shaded(camera, layer, ghost, light)
        front = layer.near > nearest[layer.pixel]
        pixel = layer.pixel[front]
        picture[pixel] += GHOST * (colour[front] - picture[pixel])
    if arrows is not None and len(arrows.mesh.light):
        layer = Layer(camera, arrows.mesh.corners)
        colour, *_ = _shaded(camera, layer, arrows, light)
        clear = np.where(layer.near > nearest[layer.pixel], 1.0, 0.5)[:, None].astype(np.float32)
        picture[layer.pixel] += clear * (colour - picture[layer.pixel])
    picture = picture.reshape(height, width, 3)
    rows = sum(picture[k::FINER] for k in range(FINER))
    picture = sum(rows[:, k::FINER] for k in range(FINER)) / FINER**2
    return (255 * np.clip(picture, 0, 1) + 0.5).astype(np.uint8)


def _outline(picture, width, pixel, part, normal):
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
