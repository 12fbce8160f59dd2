"""Slider-crank mechanism with clearance (Flores et al. 2010; Capobianco et al. 2024, Section 6.2), in two sets of coordinates."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class _SliderCrank(System):
    """Crank, rod and slider in the plane; the slider's four corners touch the walls of a guide that is a little too wide.

    A subclass gives `bodies`, from which all the rest follows.
    """

    mass_1: Parameter = 0.038  # kg, crank
    mass_2: Parameter = 0.038  # kg, rod
    mass_3: Parameter = 0.076  # kg, slider
    inertia_1: Parameter = 7.4e-5  # kg m^2, of each body about its centre
    inertia_2: Parameter = 5.9e-4
    inertia_3: Parameter = 2.7e-6
    length_1: Parameter = 0.153  # m
    length_2: Parameter = 0.306  # m
    half_length: Parameter = 0.05  # m, of the slider
    half_height: Parameter = 0.025  # m, of the slider
    guide: Parameter = 0.052  # m, distance of the walls
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 0.4
    e_F: Parameter = 0.0
    mu: Parameter = 0.01
    draw = pictures.slider_crank

    def bodies(self, q: jax.Array) -> jax.Array:
        """Centres and angles of crank, rod and slider: rows (x, y, phi) of shape (3, 3)."""
        raise NotImplementedError

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = sum of m/2 (x'^2 + y'^2) + J/2 phi'^2."""
        v = jax.jvp(self.bodies, (q,), (u,))[1]
        translation = self.mass_1 * v[0, :2] @ v[0, :2] + self.mass_2 * v[1, :2] @ v[1, :2] + self.mass_3 * v[2, :2] @ v[2, :2]
        return 0.5 * (translation + self.inertia_1 * v[0, 2] ** 2 + self.inertia_2 * v[1, 2] ** 2 + self.inertia_3 * v[2, 2] ** 2)

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = sum of m g y."""
        y = self.bodies(q)[:, 1]
        return self.gravity * (self.mass_1 * y[0] + self.mass_2 * y[1] + self.mass_3 * y[2])

    def corners(self, q: jax.Array) -> jax.Array:
        """The slider's corners, rows (x, y) of shape (4, 2): rear and front at the upper wall, rear and front at the lower one."""
        x, y, phi = self.bodies(q)[2]
        a, b, cos, sin = self.half_length, self.half_height, jnp.cos(phi), jnp.sin(phi)
        signs = ((-1, 1), (1, 1), (-1, -1), (1, -1))
        return jnp.stack([jnp.stack([x + i * a * cos - j * b * sin, y + i * a * sin + j * b * cos]) for i, j in signs])

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Distances of the corners from their wall."""
        y = self.corners(q)[:, 1]
        return 0.5 * self.guide + jnp.concatenate([-y[:2], y[2:]])

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Velocities of the corners along the guide."""
        return jax.jvp(self.corners, (q,), (u,))[1][:, :1]


@system
class SliderCrank(_SliderCrank):
    """Slider-crank in redundant coordinates: q = (x1, y1, phi1, x2, y2, phi2, x3, y3, phi3), centres and angles of crank, rod, slider.

    Three revolute joints, six constraints: crank and frame at the origin, crank and rod, rod and the slider's centre. S1 and S2 are at
    mid-length. C24 takes ``Lobatto(stages=3)`` and dt = 1e-4.
    """

    coordinate_names = tuple(name for i in (1, 2, 3) for name in (f"$x_{i}$ in m", f"$y_{i}$ in m", rf"$\varphi_{i}$ in rad"))
    velocity_names = tuple(
        name for i in (1, 2, 3) for name in (rf"$\dot x_{i}$ in m/s", rf"$\dot y_{i}$ in m/s", rf"$\dot\varphi_{i}$ in rad/s")
    )

    def bodies(self, q: jax.Array) -> jax.Array:
        """The coordinates, a row for each body."""
        return q.reshape(3, 3)

    def constraint(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Opening of the joints: x and y of crank and frame, rod and crank, slider and rod."""
        x, y, phi = self.bodies(q).T
        r, arm = jnp.stack([x, y], axis=1), jnp.stack([jnp.cos(phi), jnp.sin(phi)], axis=1)
        crank, rod = 0.5 * self.length_1 * arm[0], 0.5 * self.length_2 * arm[1]
        return jnp.concatenate([r[0] - crank, r[1] - rod - (r[0] + crank), r[2] - (r[1] + rod)])

    def initial_state(self, speed: Parameter = 150.0, tilt: Parameter = 0.017) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: stretched along the guide, slider at rest and tilted; ``speed`` of the crank in rad/s."""
        l1, l2 = self.length_1, self.length_2
        q0 = [0.5 * l1, 0.0, 0.0, l1 + 0.5 * l2, 0.0, 0.0, l1 + l2, 0.0, tilt]
        u0 = [0.0, 0.5 * l1 * speed, speed, 0.0, 0.5 * l1 * speed, -speed * l1 / l2, 0.0, 0.0, 0.0]
        return tuple(jnp.stack([jnp.asarray(x, float) for x in rows]) for rows in (q0, u0))


@system
class SliderCrankMinimal(_SliderCrank):
    """Slider-crank in minimal coordinates: q = (theta1, theta2, theta3), angles of crank, rod and slider. The motion is `SliderCrank`'s."""

    coordinate_names = tuple(rf"$\theta_{i}$ in rad" for i in (1, 2, 3))
    velocity_names = tuple(rf"$\dot\theta_{i}$ in rad/s" for i in (1, 2, 3))

    def bodies(self, q: jax.Array) -> jax.Array:
        """The joints hold by construction."""
        crank, rod = (0.5 * length * jnp.stack([jnp.cos(a), jnp.sin(a)]) for length, a in ((self.length_1, q[0]), (self.length_2, q[1])))
        return jnp.concatenate([jnp.stack([crank, 2 * crank + rod, 2 * (crank + rod)]), q[:, None]], axis=1)

    def initial_state(self, speed: Parameter = 150.0, tilt: Parameter = 0.017) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: stretched along the guide, slider at rest and tilted; ``speed`` of the crank in rad/s."""
        values = [0.0, 0.0, tilt], [speed, -speed * self.length_1 / self.length_2, 0.0]
        return tuple(jnp.stack([jnp.asarray(x, float) for x in rows]) for rows in values)
