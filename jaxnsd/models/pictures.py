"""What the systems here look like: their methods ``draw(t, q)``, see `jaxnsd.drawing`, all in one place."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

UP, DOWN, LEFT, RIGHT = (np.array(v) for v in ((0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), (1.0, 0.0)))
ORIGIN = np.zeros(2)


def at(*coordinates: ArrayLike) -> jax.Array:
    """A point of numbers, some of which may be traced."""
    return jnp.stack([jnp.asarray(x, float) for x in coordinates])


def line(*points: ArrayLike) -> jax.Array:
    """A line through points."""
    return jnp.stack([jnp.asarray(point, float) for point in points])


def turned(points: ArrayLike, angle: ArrayLike, where: ArrayLike) -> jax.Array:
    """Points (k, 2) of a body that is turned and moved."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = jnp.asarray(points, float).T
    return jnp.stack([cos * x - sin * y, sin * x + cos * y], axis=1) + jnp.asarray(where)[None]


def spring(start: ArrayLike, end: ArrayLike, width: float, coils: int = 8) -> jax.Array:
    """A zigzag from a point to another one."""
    start, end = jnp.asarray(start, float), jnp.asarray(end, float)
    along = end - start
    across = jnp.stack([-along[1], along[0]]) / jnp.sqrt(along @ along)
    place = np.concatenate([[0.0, 0.15], 0.15 + 0.7 * (np.arange(2 * coils) + 0.5) / (2 * coils), [0.85, 1.0]])
    side = np.concatenate([[0, 0], np.resize([1, -1], 2 * coils), [0, 0]]) * width
    return start[None] + place[:, None] * along[None] + side[:, None] * across[None]


def rectangle(half_width: ArrayLike, half_height: ArrayLike) -> jax.Array:
    """Its corners (5, 2), closed."""
    return jnp.asarray([[-1.0, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]) * at(half_width, half_height)[None]


def touching(points: ArrayLike, normals: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Contacts whose tangents are the normals turned clockwise: (1, 0) on a floor."""
    points, normals = jnp.asarray(points), jnp.broadcast_to(jnp.asarray(normals, float), jnp.shape(points))
    return points, normals, jnp.stack([normals[:, 1], -normals[:, 0]], axis=1)


def bouncing_ball(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """A ball of a radius of 0.05 m."""
    return {"ball": (at(0.0, q[0] + 0.05), 0.05), "floor": (ORIGIN, UP), "contacts": (at(0.0, q[0])[None], UP[None])}


def rotating_ball(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """The ball with a spoke, the floor."""
    contact = touching(at(q[0], q[1] - self.radius)[None], UP)
    return {"ball": (q[:2], self.radius, q[2]), "floor": (ORIGIN, UP), "contacts": contact}


def bead_column(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Every bead, the floor."""
    radius = jnp.broadcast_to(jnp.asarray(self.radius, q.dtype), q.shape)
    low = jnp.stack([jnp.zeros_like(q), q - radius], axis=1)
    beads = {f"bead {i}": (at(0.0, q[i]), radius[i]) for i in range(self.n)}
    return beads | {"floor": (ORIGIN, UP), "contacts": (low, jnp.broadcast_to(jnp.asarray(UP, q.dtype), low.shape))}


def corner_block(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """The block, the floor."""
    corners = turned(rectangle(self.half_width, self.half_height), q[2], q[:2])
    return {"block": corners, "floor": (ORIGIN, UP), "contacts": touching(corners[:2], UP)}


def point_mass_on_slope(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """The point, and the slope y = exp(-x) for x from -1 to 8."""
    x = np.linspace(-1.0, 8.0, 181)
    slope = np.stack([x, np.exp(-x)], axis=1)
    along = self.tangent(q[0])
    return {"point": q, "slope": slope, "contacts": (q[None], at(-along[1], along[0])[None], along[None])}


def two_discs(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Both discs; the percussion acts on the second one."""
    apart = q[2:] - q[:2]
    normal = apart / jnp.sqrt(apart @ apart)
    return {
        "disc 1": (q[:2], self.radius),
        "disc 2": (q[2:], self.radius),
        "contacts": ((q[2:] - self.radius * normal)[None], normal[None]),
    }


def double_pendulum(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Rods, masses and the wall."""
    middle = self.length_1 * at(jnp.sin(q[0]), -jnp.cos(q[0]))
    tip = middle + self.length_2 * at(jnp.sin(q[1]), -jnp.cos(q[1]))
    return {
        "rods": line(ORIGIN, middle, tip),
        "mass 1": middle,
        "mass 2": tip,
        "hinge": ORIGIN,
        "wall": (at(self.wall, 0.0), LEFT),
        "contacts": (tip[None], LEFT[None]),
    }


def spring_pendulum(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """The spring, the mass, and the wall below the hinge."""
    mass = q[0] * at(jnp.sin(q[1]), -jnp.cos(q[1]))
    across = RIGHT if self.gap_is_distance else at(jnp.cos(q[1]), jnp.sin(q[1]))
    return {
        "spring": spring(ORIGIN, mass, 0.04),
        "mass": mass,
        "hinge": ORIGIN,
        "wall": (ORIGIN, RIGHT),
        "contacts": (mass[None], across[None]),
    }


def slider_crank(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Crank, rod, slider, and the walls of its guide."""
    (_, _, crank), (_, _, rod), (x, y, phi) = self.bodies(q)
    pin = self.length_1 * at(jnp.cos(crank), jnp.sin(crank))
    end = pin + self.length_2 * at(jnp.cos(rod), jnp.sin(rod))
    half, reach = 0.5 * self.guide, self.length_1 + self.length_2 + 1.4 * self.half_length
    start = self.length_2 - self.length_1 - 1.4 * self.half_length
    walls = [line(at(start, side * half), at(reach, side * half)) for side in (-1.0, 1.0)]
    corners, tangents = self.corners(q), np.tile(RIGHT, (4, 1))
    return {
        "slider": turned(rectangle(self.half_length, self.half_height), phi, at(x, y)),
        "crank": line(ORIGIN, pin),
        "rod": line(pin, end),
        "pin": pin,
        "hinge": ORIGIN,
        "guide": jnp.stack(walls),
        "contacts": (corners, np.stack([DOWN, DOWN, UP, UP]), tangents),
    }


#: Outline of a woodpecker, the beak at (-1, 0), the foot at the right of the pole below it, in lengths of its beak's arm.
BIRD = np.array([
    (-1.0, 1.0), (-0.72, 1.06), (-0.66, 1.22), (-0.45, 1.34), (-0.2, 1.28), (-0.08, 1.1), (0.05, 0.8), (0.2, 0.4), (0.22, 0.05),
    (0.1, -0.3), (0.02, -0.9), (-0.1, -0.95), (-0.16, -0.4), (-0.35, -0.05), (-0.45, 0.35), (-0.5, 0.75), (-0.7, 0.92), (-1.0, 1.0),
])  # fmt: skip


def woodpecker(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Pole, sleeve, spring and bird; the model's angles are small, so that places are linear in them, as its gaps are."""
    y, sleeve, bird = q
    pole, inner, tall = self.radius_pole, self.radius_sleeve, self.height_sleeve
    block = at(inner + 0.5 * pole, 0.0)[None] + rectangle(0.5 * pole, tall)
    start = at(self.length_sleeve, y + self.length_sleeve * sleeve)

    def moved(points, angle):
        return points + angle * jnp.stack([-points[:, 1], points[:, 0]], axis=1)

    def of_bird(points):
        """Points from the spring on."""
        return start[None] + moved(points, bird)

    def of_sleeve(points):
        return at(0.0, y)[None] + moved(points, sleeve)

    outline = jnp.asarray(BIRD) * at(self.length_beak, self.height_beak)[None] + at(self.length_woodpecker, 0.0)[None]
    edges = of_sleeve(line(at(inner, -tall), at(inner, tall)))
    return {
        "pole": jnp.stack([line(at(x, 1.0), at(x, -3.0)) for x in (-pole, pole)]),
        "sleeve": jnp.stack([of_sleeve(block), of_sleeve(block * at(-1.0, 1.0)[None])]),
        "spring": line(of_sleeve(at(inner + pole, 0.0)[None])[0], start, of_bird(at(0.6 * self.length_woodpecker, 0.0)[None])[0]),
        "woodpecker": of_bird(outline),
        "contacts": (jnp.concatenate([of_bird(outline[:1]), edges]), np.tile(RIGHT, (3, 1)), np.tile(UP, (3, 1))),
    }


#: Corners of a cube of side 2, as `jaxnsd.models.cube.CORNERS`, and its faces as closed lines through them.
CORNERS = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(8, 3)
FACES = np.array([[0, 1, 3, 2, 0], [4, 6, 7, 5, 4], [0, 4, 5, 1, 0], [2, 3, 7, 6, 2], [0, 2, 6, 4, 0], [1, 5, 7, 3, 1]])


def cube(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """Its faces, the floor."""
    w, v = q[3], q[4:]
    body = 0.5 * self.side * jnp.asarray(CORNERS)
    across = jnp.cross(v[None], body)
    corners = q[None, :3] + body + 2 * (w * across + jnp.cross(v[None], across))
    tangents = np.tile(np.eye(3)[:2], (8, 1, 1))
    floor = at(0.0, 0.0, getattr(self, "board", 0.0)), np.eye(3)[2]
    return {"cube": corners[FACES], "floor": floor, "contacts": (corners, np.tile(np.eye(3)[2], (8, 1)), tangents)}


def sphere(self: Any, t: ArrayLike, q: jax.Array) -> dict[str, Any]:
    """The ball, without its orientation, which the model does not know; floor and wall."""
    x, y, z = np.eye(3)
    contacts = jnp.stack([q[:3] - self.radius * z, q[:3] + self.radius * x])
    return {
        "ball": (q[:3], self.radius),
        "floor": (np.zeros(3), z),
        "wall": (self.wall * x, -x),
        "contacts": (contacts, np.stack([z, -x]), np.stack([[x, y], [y, z]])),
    }
