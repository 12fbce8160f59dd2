"""Bodies from parts: what is derived by energy, by geometry, or by hand is what the closed forms say; and every wrong part is refused.

Motions of bodies are in `test_bodies_motion`, gaps in `test_pairs`, models from files in `test_mjcf`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose
from scipy.optimize import fsolve
from scipy.spatial.transform import Rotation

import jaxnsd
from jaxnsd import System, bodies
from jaxnsd.bodies import (
    Body,
    Box,
    Capsule,
    Connect,
    Couple,
    Free,
    Motor,
    Pair,
    Plane,
    Points,
    Prismatic,
    Revolute,
    Sphere,
    Spherical,
    Spring,
)
from jaxnsd.models import Cube, DoublePendulum, SliderCrankMinimal

G = 9.81


# ------------------------------------------------------------------------------------- mass matrix and bias forces by energy
@jaxnsd.system
class ByEnergy(System):
    """The bodies of a `Multibody` with the kinetic energy of their poses, from which the equations of motion follow by autodiff."""

    of: Any

    def q_dot(self, t, q, u):
        return self.of.q_dot(t, q, u)

    def kinetic_energy(self, t, q, u):
        def centers(t, q):
            pose = self.of.pose(t, q)
            return pose.position + jnp.einsum("bij,bj->bi", pose.rotation, self.of.center), pose.rotation

        t = jnp.asarray(t, q.dtype)
        (_, R), (v, R_dot) = jax.jvp(centers, (t, q), (jnp.ones_like(t), self.q_dot(t, q, u)))
        turning = jnp.einsum("bji,bjk->bik", R, R_dot)
        omega = jnp.stack([turning[:, 2, 1], turning[:, 0, 2], turning[:, 1, 0]], axis=1)
        T = 0.5 * jnp.sum(self.of.mass * jnp.sum(v * v, axis=1)) + 0.5 * jnp.einsum("bi,bij,bj", omega, self.of.inertia, omega)
        return T + 0.5 * jnp.sum(self.of.armature * u * u)

    def potential_energy(self, t, q):
        return self.of.potential_energy(t, q)


def tree():
    """Joints of every kind, one of them prescribed, springs, armature."""
    motion = jax.tree_util.Partial(lambda a, t: a * jnp.sin(3.0 * t), jnp.asarray(0.4))
    return bodies.assemble(
        [
            Body("base", 2.0, (0.05, 0.06, 0.07), center=(0.02, -0.01, 0.03)),
            Body(
                "arm",
                0.7,
                np.array([[0.02, 0.003, 0], [0.003, 0.03, -0.002], [0, -0.002, 0.025]]),
                center=(0.1, 0.0, 0.05),
                joints=(Revolute((1.0, 2.0, 0.5), (0.0, 0.1, 0.0), stiffness=1.5, rest=0.2, armature=0.01), Prismatic((0.0, 1.0, 1.0))),
                parent="base",
                position=(0.3, 0.0, 0.1),
                orientation=tuple(Rotation.from_euler("xyz", (0.3, -0.2, 0.5)).as_quat(scalar_first=True)),
            ),
            Body(
                "driven", 0.4, (0.01, 0.01, 0.015), (0.0, 0.05, 0.0), Revolute((0, 1, 0), motion=motion), parent="arm", position=(0, 0, 0.2)
            ),
            Body(
                "tip",
                0.3,
                (0.002, 0.003, 0.004),
                center=(0.0, 0.0, -0.1),
                joints=Spherical((0.0, 0.0, 0.05), stiffness=0.8, armature=(0.002, 0.005, 0.003)),
                parent="driven",
                position=(0.1, 0.1, 0),
            ),
        ],
        springs=[Spring("base", "tip", 30.0, 0.2, position=(0.1, 0.0, 0.0), second_position=(0.0, 0.02, -0.1))],
        gravity=(1.0, -2.0, -9.0),
    )


def unit(p):
    return p / np.linalg.norm(p)


@pytest.mark.slow
def test_equations_of_motion_are_those_of_the_energy():
    """M, h, b, momentum and T against autodiff of the energy of the poses, with Boltzmann-Hamel's brackets, at random states."""
    system, rng = tree(), np.random.default_rng(0)
    n = 3
    q, u = rng.standard_normal((n, 13)), rng.standard_normal((n, 11))
    q[:, 3:7], q[:, 9:13] = [unit(p) for p in q[:, 3:7]], [unit(p) for p in q[:, 9:13]]

    @quick
    @jax.vmap
    def both(q, u):
        names = ("M", "h", "b", "momentum", "kinetic_energy")
        return [[getattr(s, name)(0.3, q, u) for name in names] for s in (system, ByEnergy(system))]

    own, by_energy = both(jnp.asarray(q), jnp.asarray(u))
    for x, y in zip(own, by_energy, strict=True):
        assert_allclose(x, y, rtol=1e-10, atol=1e-11)
    assert (np.linalg.eigvalsh(own[0])[:, 0] > 0).all()


def test_potential_energy_by_hand():
    """Weight, a torsional spring, and a spring between two points."""
    system = bodies.assemble(
        [Body("bob", 0.5, (0.0, 0.0, 0.0), (0, 0, -0.8), Revolute((0, 1, 0), stiffness=2.0, rest=0.1))],
        springs=[Spring("world", "bob", 7.0, 0.3, position=(1.0, 0.0, 0.0), second_position=(0.0, 0.0, -0.8))],
    )
    phi = 0.4
    # Positive about y swings the bob towards -x.
    bob = np.array([-0.8 * np.sin(phi), 0.0, -0.8 * np.cos(phi)])
    V = 0.5 * G * bob[2] + 0.5 * 2.0 * (phi - 0.1) ** 2 + 0.5 * 7.0 * (np.linalg.norm(bob - [1.0, 0, 0]) - 0.3) ** 2
    assert_allclose(system.potential_energy(0.0, jnp.array([phi])), V, rtol=1e-14)
    assert_allclose(system.pose(0.0, jnp.array([phi])).rotation[0] @ np.array([0, 0, -0.8]), bob, atol=1e-15)


def test_a_spring_without_length_is_linear():
    """Also where its ends meet: force and its derivative are those of the stiffness in all three directions."""
    ball = Body("ball", 1.0, (1.0, 1.0, 1.0))
    system = bodies.assemble([ball], springs=Spring("world", "ball", 7.0), gravity=(0, 0, 0))
    q0, u0 = system.initial_state()

    @quick
    def derivatives(q):
        return jax.jacfwd(lambda q: system.h(0.0, q, u0))(q), jax.hessian(lambda q: system.potential_energy(0.0, q))(q)

    of_force, of_energy = derivatives(q0)
    assert_allclose(of_force[:3, :3], -7.0 * np.eye(3), atol=1e-15)
    assert_allclose(of_energy[:3, :3], 7.0 * np.eye(3), atol=1e-15)


def test_inertia_of_solids():
    """Moments of the solids by integration over random points in them; two shapes together by Steiner's theorem."""
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (400_000, 3))
    inside = {
        "sphere": (Sphere(0.9), (points**2).sum(axis=1) < 0.81),
        "box": (Box((1.0, 1.4, 1.8)), (np.abs(points) < [0.5, 0.7, 0.9]).all(axis=1)),
        "cylinder": (bodies.Cylinder(0.6, 1.6), (np.hypot(*points.T[:2]) < 0.6) & (np.abs(points[:, 2]) < 0.8)),
        "ellipsoid": (bodies.Ellipsoid((0.5, 0.7, 0.9)), ((points / [0.5, 0.7, 0.9]) ** 2).sum(axis=1) < 1),
        "capsule": (Capsule(0.4, 1.0), np.linalg.norm(points - np.clip(points, [0, 0, -0.5], [0, 0, 0.5]), axis=1) < 0.4),
    }
    for name, (shape, mask) in inside.items():
        cloud = points[mask]
        squares = (cloud**2).mean(axis=0)
        volume, gyration = shape.solid()
        assert_allclose(volume, 8 * mask.mean(), rtol=0.01, err_msg=name)
        assert_allclose(gyration, squares.sum() - squares, rtol=0.01, err_msg=name)
    dumbbell = bodies.assemble([Body("dumbbell", 3.0, shapes=[Sphere(0.1, position=(0, 0, 0.3)), Sphere(0.1, position=(0, 0, -0.5))])])
    assert_allclose(dumbbell.center[0], [0, 0, -0.1], atol=1e-15)
    own = 0.4 * 3.0 * 0.01
    assert_allclose(dumbbell.inertia[0], np.diag([own + 3.0 * 0.16, own + 3.0 * 0.16, own]), atol=1e-14)


# ------------------------------------------------------------------------------------------ models that are written by hand
def test_double_pendulum_of_parts():
    """The model's absolute angles are sums of the joints': M, h and gap agree to round-off."""
    model = DoublePendulum()
    bob = {"inertia": (0.0, 0.0, 0.0)}
    hinge = Revolute((0.0, 0.0, 1.0))
    system = bodies.assemble(
        [
            Body("first", model.mass_1, center=(0, -model.length_1, 0), joints=hinge, **bob),
            Body(
                "second",
                model.mass_2,
                center=(0, -model.length_2, 0),
                joints=hinge,
                parent="first",
                position=(0, -model.length_1, 0),
                shapes=Points(((0.0, -model.length_2, 0.0),)),
                **bob,
            ),
        ],
        Plane(position=(model.wall, 0, 0), orientation=(np.sqrt(0.5), 0, -np.sqrt(0.5), 0)),
        gravity=(0, -model.gravity, 0),
        plane="xy",
    )
    A = np.array([[1.0, 0.0], [1.0, 1.0]])
    q, u = np.array([0.3, -0.8]), np.array([1.3, -2.1])
    evaluate = quick(lambda s, q, u: (s.M(0.0, q), s.h(0.0, q, u), s.gap(0.0, q), s.W_N(0.0, q), s.total_energy(0.0, q, u)))
    own, written = evaluate(system, q, u), evaluate(model, A @ q, A @ u)
    expected = (A.T @ written[0] @ A, A.T @ written[1], written[2], A.T @ written[3], written[4])
    for x, y in zip(own, expected, strict=True):
        assert_allclose(x, y, rtol=1e-13, atol=1e-13)


def crank_parts(closed):
    """The slider-crank of parts: minimal, or as three links whose last joint is closed by a loop."""
    m = SliderCrankMinimal()
    hinge = Revolute((0.0, 0.0, 1.0))
    # The corners of the model, in its order: each touches its own wall only.
    a, b = m.half_length, m.half_height
    corners = {"rear_top": (-a, b), "front_top": (a, b), "rear_bottom": (-a, -b), "front_bottom": (a, -b)}
    shapes = [Points(((x, y, 0.0),), name=name) for name, (x, y) in corners.items()]
    links = [
        Body("crank", m.mass_1, (0, 0, m.inertia_1), (m.length_1 / 2, 0, 0), hinge),
        Body("rod", m.mass_2, (0, 0, m.inertia_2), (m.length_2 / 2, 0, 0), hinge, "crank", (m.length_1, 0, 0)),
    ]
    # Of the moments of inertia in a plane only one matters; the others make a body of it.
    links = [dataclasses.replace(link, inertia=(link.inertia[2], link.inertia[2], link.inertia[2])) for link in links]
    inertia = (m.inertia_3,) * 3
    if closed:
        slider = Body("slider", m.mass_3, inertia, joints=bodies.planar("slider"), position=(m.length_1 + m.length_2, 0, 0), shapes=shapes)
    else:
        slider = Body("slider", m.mass_3, inertia, joints=hinge, parent="rod", position=(m.length_2, 0, 0), shapes=shapes)
    half = np.sqrt(0.5)
    walls = [
        Plane(name="top", position=(0, m.guide / 2, 0), orientation=(half, half, 0, 0)),
        Plane(name="bottom", position=(0, -m.guide / 2, 0), orientation=(half, -half, 0, 0)),
    ]
    system = bodies.assemble(
        [*links, slider],
        walls,
        gravity=(0, -m.gravity, 0),
        contacts=[Pair(name.split("_")[1], name) for name in corners],
        loops=[Connect("rod", "slider", (m.length_2, 0, 0))] if closed else [],
        mu=m.mu,
        e_N=m.e_N,
        plane="xy",
    )
    return system, m


def test_slider_crank_of_parts():
    """Minimal: M, h, gaps and force directions of the model, tangents up to their sign. Closed: the loop holds, and moves with it."""
    system, model = crank_parts(False)
    closed, _ = crank_parts(True)
    A = np.tril(np.ones((3, 3)))
    rng = np.random.default_rng(3)
    q, u = rng.standard_normal(3), 10 * rng.standard_normal(3)
    # The closed mechanism at the same place: its slider is where the minimal one has it.
    absolute, turning = jnp.asarray(A @ q), jnp.asarray(A @ u)

    @quick
    def evaluate(absolute, turning):
        both = [
            (s.M(0.0, q), s.h(0.0, q, u), s.gap(0.0, q), s.W_N(0.0, q), s.W_F(0.0, q)[:, :, 0])
            for s, q, u in ((system, jnp.asarray(q), jnp.asarray(u)), (model, absolute, turning))
        ]
        (x, y, angle), v = (part[2] for part in jax.jvp(model.bodies, (absolute,), (turning,)))
        place = jnp.stack([q[0], q[1], x - (model.length_1 + model.length_2), y, angle])
        speed = jnp.concatenate([u[:2], v])
        return both, (closed.constraint(0.0, place), closed.constraint_velocity(0.0, place, speed), closed.gap(0.0, place))

    ((M, h, gap, W_N, W_F), m), (opening, opening_velocity, gap_of_closed) = evaluate(absolute, turning)
    for x, y in ((M, A.T @ m[0] @ A), (h, A.T @ m[1]), (gap, m[2]), (W_N, A.T @ m[3])):
        assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    assert_allclose(np.abs(W_F), np.abs(A.T @ m[4]), rtol=1e-12, atol=1e-14)
    assert_allclose(opening, 0.0, atol=1e-15)
    assert_allclose(opening_velocity, 0.0, atol=1e-13)
    assert_allclose(gap_of_closed, gap, atol=1e-15)


def test_cube_of_parts():
    """The cube of parts has the inertia, weight, gaps and directions of the model; rows in the order of its corners."""
    model = Cube()
    system = bodies.assemble([Body("cube", model.mass, shapes=Box((model.side,) * 3))], Plane(), mu=model.mu, e_N=model.e_N)
    rng = np.random.default_rng(4)
    q, u = rng.standard_normal(7), rng.standard_normal(6)
    q[3:] = unit(q[3:])
    parts = ("M", "gap", "W_N", "W_F")
    evaluate = jax.jit(
        lambda s, q, u: {**{name: getattr(s, name)(0.0, q) for name in parts}, "h": s.h(0.0, q, u), "q_dot": s.q_dot(0.0, q, u)}
    )
    own, written = evaluate(system, q, u), evaluate(model, q, u)
    for name in ("M", "gap", "W_N", "h", "q_dot"):
        assert_allclose(own[name], written[name], rtol=1e-13, atol=1e-14, err_msg=name)
    # Tangents may be turned; what they span is the same.
    span = lambda W: np.einsum("inj,knj->nik", W, W)  # noqa: E731
    assert_allclose(span(own["W_F"]), span(written["W_F"]), atol=1e-14)
    assert {str(contact) for contact in system.contacts} == {"world_plane and cube_box"}


# ----------------------------------------------------------------------------------------------------------- joints in motion
def test_pendulum_with_a_moving_support():
    """A prescribed slider carries a pendulum: phi'' = -(g sin(phi) + a cos(phi)) / l, with the support's acceleration a."""
    length, amplitude, omega, t = 0.7, 0.3, 5.0, 0.37

    def position(t):
        return amplitude * jnp.sin(omega * t)

    system = bodies.assemble(
        [
            Body("cart", 1.0, (1.0, 1.0, 1.0), joints=Prismatic((1.0, 0, 0), motion=position)),
            Body("bob", 0.4, (0.0, 0, 0), (0, 0, -length), Revolute((0, -1.0, 0)), "cart"),
        ]
    )
    phi, rate = 0.8, -1.7
    q, u = jnp.array([phi]), jnp.array([rate])
    acceleration = system.h(t, q, u)[0] / system.M(t, q)[0, 0]
    a = -amplitude * omega**2 * np.sin(omega * t)
    assert_allclose(acceleration, -(G * np.sin(phi) + a * np.cos(phi)) / length, rtol=1e-13)
    assert_allclose(system.pose(t, q).position[1], [amplitude * np.sin(omega * t), 0, 0], atol=1e-15)
    v = amplitude * omega * np.cos(omega * t) + length * rate * np.cos(phi), length * rate * np.sin(phi)
    assert_allclose(
        system.kinetic_energy(t, q, u), 0.5 * 0.4 * (v[0] ** 2 + v[1] ** 2) + 0.5 * (amplitude * omega * np.cos(omega * t)) ** 2
    )


def test_four_bar_linkage():
    """Crank and follower hold Freudenstein's equation where the loop is closed; their speeds its derivative."""
    a, b, c, d = 0.2, 0.5, 0.4, 0.6  # crank, coupler, follower, ground
    hinge = Revolute((0.0, 0, 1.0))
    rod = {"mass": 1.0, "inertia": (0.01, 0.01, 0.01), "joints": hinge}
    system = bodies.assemble(
        [
            Body("crank", **rod),
            Body("coupler", **rod, parent="crank", position=(a, 0, 0)),
            Body("follower", **rod, position=(d, 0, 0)),
        ],
        loops=[Connect("coupler", "follower", (b, 0, 0), (c, 0, 0))],
        plane="xy",
    )
    closed = quick(lambda q: system.constraint(0.0, q))
    W = quick(lambda q: system.W_g(0.0, q))
    for theta in (0.3, 1.2, 2.6, 4.0):
        coupler, psi = fsolve(lambda x, theta=theta: np.asarray(closed(jnp.array([theta, *x]))), (0.5 - theta, 1.5), xtol=1e-12)
        left = d / a * np.cos(psi) - d / c * np.cos(theta) + (a**2 - b**2 + c**2 + d**2) / (2 * a * c)
        assert_allclose(left, np.cos(theta - psi), atol=1e-12)
        # Velocities without constraint violation: d(psi)/d(theta) of the equation.
        velocity = np.linalg.svd(np.asarray(W(jnp.array([theta, coupler, psi]))).T)[2][-1]
        slope = (d / c * np.sin(theta) + np.sin(theta - psi)) / (d / a * np.sin(psi) + np.sin(theta - psi))
        assert_allclose(velocity[2] / velocity[0], slope, rtol=1e-9)
    # A scheme asks a system that has its places at one configuration: of that the loop is closed as well.
    q, u = jnp.array([theta, coupler, psi]), jnp.asarray(velocity / velocity[0])
    seen = system.seen_at(0.0, q)
    assert_allclose(seen.W_g(0.0, q), W(q), rtol=0, atol=1e-15)
    assert_allclose(seen.constraint_velocity(0.0, q, 0 * u + 1), system.constraint_velocity(0.0, q, 0 * u + 1), atol=1e-15)
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), q, u, 0.1, 1e-3)
    assert sol.success and abs(sol.q[-1, 0] - theta) > 0.05
    assert np.max(np.abs(closed(sol.q[-1]))) < 1e-14
    assert np.max(np.abs(W(sol.q[-1]).T @ sol.u[-1])) < 1e-12


@pytest.mark.parametrize("plane", ["xy", None])
def test_planes_of_motion_are_found_under_jit(plane):
    """With traced mass, length and friction: a linkage has two rows, a box in a plane four corners, as with numbers."""
    rod = {"inertia": (0.01, 0.01, 0.01), "joints": Revolute((0.0, 0, 1.0))}

    def sizes(mass, length, mu):
        parts = [
            Body("crank", mass, **rod),
            Body("coupler", mass, **rod, parent="crank", position=(0.2, 0, 0), shapes=Box((0.1, 0.2, 0.3))),
            Body("follower", mass, **rod, position=(length, 0, 0)),
        ]
        wall = Plane(position=(0, -1.0, 0), orientation=(np.sqrt(0.5), -np.sqrt(0.5), 0, 0))
        loop = Connect("coupler", "follower", (0.5, 0, 0), (0.4, 0, 0))
        system = bodies.assemble(parts, wall, loops=loop, plane=plane, mu=mu, contacts="world")
        q, _ = system.initial_state()
        return system.constraint(0.0, q), system.gap(0.0, q)

    corners = 8 if plane is None else 4
    assert [x.shape for x in sizes(1.0, 0.6, 0.3)] == [(2,), (corners,)]
    assert [x.shape for x in jax.eval_shape(sizes, 1.0, 0.6, 0.3)] == [(2,), (corners,)]
    assert [x.shape for x in jax.eval_shape(jax.vmap(sizes), *(jnp.full(3, x) for x in (1.0, 0.6, 0.3)))] == [(3, 2), (3, corners)]


@pytest.mark.slow
def test_loops_in_a_plane_that_is_turned_in_space():
    """A four-bar linkage, turned anyhow and on a body that is free: two rows, which say as much as those of plane="xy"."""
    hinge, turned = Revolute((0.0, 0, 1.0)), Rotation.from_euler("xyz", (0.4, -0.7, 0.3))
    rod = {"mass": 1.0, "inertia": (0.01, 0.01, 0.01), "joints": hinge}
    crank, coupler = Body("crank", **rod), Body("coupler", **rod, parent="crank", position=(0.2, 0, 0))
    follower = Body("follower", **rod, position=(0.6, 0, 0))
    loop = Connect("coupler", "follower", (0.5, 0, 0), (0.4, 0, 0))
    flat = bodies.assemble([crank, coupler, follower], loops=loop, plane="xy")
    base = Body("base", 2.0, (1.0, 1.0, 1.0))
    p = tuple(turned.as_quat(scalar_first=True))
    on_base = {"parent": "base", "orientation": p}
    spatial = bodies.assemble(
        [
            base,
            dataclasses.replace(crank, **on_base),
            coupler,
            dataclasses.replace(follower, **on_base, position=tuple(turned.apply(follower.position))),
        ],
        loops=loop,
    )
    q = jnp.array([0.3, -0.8, 1.1])
    pose = jnp.concatenate([jnp.array([1.0, 2.0, 3.0]), jnp.asarray(unit(np.array([0.5, -0.1, 0.7, 0.2]))), q])
    look = quick(lambda s, q, u: (s.constraint(0.0, q), s.W_g(0.0, q, u)))
    (opening, W), (wanted, W_flat) = look(spatial, pose, jnp.zeros(9)), look(flat, q, jnp.zeros(3))
    assert_allclose(np.linalg.norm(opening), np.linalg.norm(wanted), rtol=1e-13)
    # The base carries the loop: it does not open it. Axes in the plane may be turned.
    assert_allclose(W[:6], 0.0, atol=1e-13)
    assert_allclose(W[6:] @ opening, W_flat @ wanted, atol=1e-13)
    assert_allclose(W[6:] @ W[6:].T, W_flat @ W_flat.T, atol=1e-13)
    with pytest.raises(ValueError, match=r"'coupler' and 'follower' must meet, got them 0\.1 m apart"):
        bodies.assemble([crank, coupler, dataclasses.replace(follower, position=(0.6, 0, 0.1))], loops=loop)


def test_loops_that_no_motion_in_their_plane_closes_are_refused():
    """Points that are apart across it, and welds that are turned out of it, in a plane that is given or found."""
    y = bodies.Revolute((0.0, 1.0, 0.0))
    pair = [Body(name, 1.0, (0.1, 0.1, 0.1), joints=[bodies.Prismatic((1.0, 0, 0)), bodies.Prismatic((0, 0, 1.0)), y]) for name in "ab"]
    tilted, turned = (1.0, 0.2, 0.0, 0.0), (1.0, 0.0, 0.2, 0.0)
    for plane in ("xz", None):
        bodies.assemble(pair, loops=bodies.Weld("a", "b", (0.0, 0.0, 0.0), turned), plane=plane)
        with pytest.raises(ValueError, match=r"'a' and 'b' must meet, got them 0\.3 m apart across the plane"):
            bodies.assemble(pair, loops=Connect("a", "b", (0.0, 0.3, 0.0), (0.0, 0.0, 0.0)), plane=plane)
        with pytest.raises(ValueError, match=r"'a' and 'b' turned against each other as its orientation says, got 0\.39.* rad left"):
            bodies.assemble(pair, loops=bodies.Weld("a", "b", (0.0, 0.0, 0.0), tilted), plane=plane)


def test_weld_is_open_by_the_angle_that_is_left():
    """2 sin(angle / 2) about the axis; after half a turn a body is not where it is welded."""
    system = bodies.assemble([Body("a", 1.0, (1.0, 1, 1))], loops=bodies.Weld("world", "a", (0, 0, 0), (1.0, 0, 0, 0)))
    axis = unit(np.array([1.0, 2.0, -2.0]))
    q = np.stack([[0, 0, 0, np.cos(angle / 2), *(np.sin(angle / 2) * axis)] for angle in (1e-3, 2.5, np.pi)])
    opening = np.abs(quick(jax.vmap(lambda q: system.constraint(0.0, q)))(jnp.asarray(q)))
    assert_allclose(opening[:, 3:], 2 * np.sin(np.array([[1e-3], [2.5], [np.pi]]) / 2) * np.abs(axis), rtol=1e-9)


def test_neighbours_in_a_chain_do_not_touch():
    """Neither does a body touch that is joined to what is fixed to its neighbour; things that stand about are touched all the same."""
    ball = Sphere(0.1)
    chain = [
        Body("arm", 1.0, joints=Revolute(), shapes=ball),
        Body("flange", 1.0, joints=(), parent="arm", shapes=ball),
        Body("hand", 1.0, joints=Revolute(), parent="flange", shapes=ball),
        Body("table", joints=(), shapes=Box((1.0, 1.0, 1.0)), position=(5.0, 0, 0)),
    ]
    found = {frozenset((contact.first, contact.second)) for contact in bodies.assemble(chain).contacts}
    assert found == {frozenset(("table_box", f"{name}_sphere")) for name in ("arm", "flange", "hand")}


def test_motors_and_controls():
    """Torque motor, position and velocity servo with a gear, limits of control and force; controls as numbers, rows and a function."""
    rod = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
    hinges = [Body(name, joints=Revolute((0, 0, 1.0), damping=damping), **rod) for name, damping in (("a", 0.3), ("b", 0.0), ("c", 0.0))]
    motors = [
        Motor("a", gear=2.0, control_limits=(-1.0, 1.0)),
        Motor("b", gain=50.0, slope=-50.0, force_limits=(-20.0, 20.0)),
        Motor("c", gear=3.0, gain=0.5, rate=-0.5, name="servo"),
    ]
    q, u = jnp.array([0.1, 0.2, 0.3]), jnp.array([1.0, 2.0, 3.0])

    def force(control):
        return bodies.assemble(hinges, gravity=(0, 0, 0), motors=motors, control=control).force(0.25, q, u)

    assert_allclose(force([0.5, 0.3, 4.0]), [2 * 0.5 - 0.3, 50 * (0.3 - 0.2), 3 * 0.5 * (4.0 - 3 * 3.0)])
    assert_allclose(force([9.0, 9.0, 0.0]), [2 * 1.0 - 0.3, 20.0, -13.5])
    rows = bodies.Rows(jnp.array([[0.0, 0.2, 9.0], [0.5, 0.3, 4.0]]), 0.25)
    assert_allclose(force(rows), force([0.5, 0.3, 4.0]))
    assert_allclose(force(lambda t, q, u: jnp.stack([2 * t, q[2], 2 * u[1]])), force([0.5, 0.3, 4.0]))


def test_limits_are_contacts():
    """Gaps and directions of limits of a hinge, a slider and a ball joint; their restitution."""
    system = bodies.assemble(
        [
            Body("a", 1.0, (1.0, 1, 1), joints=Revolute((0, 0, 1.0), limits=(-0.5, 0.8))),
            Body("b", 1.0, (1.0, 1, 1), joints=Prismatic((0, 0, 1.0), limits=(0.0, 0.3))),
            Body("c", 1.0, (1.0, 1, 1), joints=Spherical(limit=0.7)),
        ],
        limit_restitution=0.4,
    )
    axis, angle = unit(np.array([1.0, 2.0, -1.0])), 0.6
    q = jnp.asarray([0.1, 0.05, np.cos(angle / 2), *(np.sin(angle / 2) * axis)])
    assert_allclose(system.gap(0.0, q), [0.6, 0.7, 0.05, 0.25, 0.7 - angle], atol=1e-14)
    u = jnp.asarray([2.0, 3.0, *(1.5 * axis)])
    assert_allclose(system.gap_velocity(0.0, q, u), [2.0, -2.0, 3.0, -3.0, -1.5], atol=1e-14)
    assert_allclose(system.e_N(), 0.4)
    assert_allclose(system.mu(), 0.0)
    assert [str(contact) for contact in system.contacts] == [
        *("a and lower limit", "a and upper limit", "b and lower limit", "b and upper limit", "c and upper limit")
    ]


def test_assembled_while_a_number_is_traced():
    """What is known is checked there as well."""
    hinge = Revolute((0, 0, 1.0), limits=(-0.5, 0.8))

    def gap(restitution, mass=1.0):
        system = bodies.assemble([Body("a", mass, (1.0, 1, 1), joints=hinge)], limit_restitution=restitution)
        return system.gap(0.0, system.initial_state()[0])

    assert jax.eval_shape(gap, 0.5).shape == (2,)
    with pytest.raises(ValueError, match=r"mass of 'a' must not be negative, got -1 kg"):
        jax.eval_shape(lambda restitution: gap(restitution, -1.0), 0.5)


def test_what_is_refused_is_an_outcome_where_it_is_traced():
    """Limits that cross ran with SUCCESS, a joint pushed by both; so did a ball of negative radius, and a light body of negative mass."""
    ok = {"lower": -0.5, "force": 1.0, "mass": 0.2, "radius": 0.05}
    wrong = [{"lower": 0.9}, {"force": -1.0}, {"mass": -0.2}, {"radius": -0.05}]

    @quick
    @jax.vmap
    def codes(given):
        hinge = Revolute((0, 1.0, 0), limits=(given["lower"], 0.8))
        arm = Body("arm", 1.0, (0.1, 0.1, 0.1), joints=hinge, shapes=Sphere(given["radius"], position=(0.5, 0, 0)))
        tip = Body("tip", given["mass"], (0.1, 0.1, 0.1), joints=dataclasses.replace(hinge, limits=None), parent="arm")
        motor = Motor("arm", force_limits=(-given["force"], given["force"]))
        system = bodies.assemble([arm, tip], Plane(name="floor", position=(0, 0, -2.0)), motors=[motor])
        sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.02, 1e-2)
        return jnp.concatenate([sol.initial_outcome[None], sol.outcome])

    members = [ok, *(ok | one for one in wrong)]
    found = codes({name: jnp.array([member[name] for member in members]) for name in ok})
    assert_allclose(found, [[jaxnsd.Outcome.SUCCESS] * 3] + [[jaxnsd.Outcome.INVALID_PARAMETER] * 3] * len(wrong))


def test_material_of_pairs():
    """A pair decides; else the geometric mean of both shapes, or what one says; else the default."""
    ball = lambda name, **material: Body(name, 1.0, shapes=Sphere(0.1, name=f"{name}'s", **material))  # noqa: E731
    parts = [ball("a", mu=0.2), ball("b", mu=0.8, e_N=0.5), ball("c", mu=0.0)]
    system = bodies.assemble(
        parts,
        Plane(name="floor"),
        contacts=[Pair("a", "b"), Pair("floor", "b", mu=0.9), Pair("a", "c"), Pair("floor", "a")],
        mu=0.3,
        e_N=0.1,
    )
    found = {frozenset((c.first, c.second)): k for k, c in enumerate(system.contacts)}
    rows = [found[frozenset(names)] for names in (("a's", "b's"), ("floor", "b's"), ("a's", "c's"), ("floor", "a's"))]
    assert_allclose(np.asarray(system.mu())[rows], [0.4, 0.9, 0.0, 0.2], rtol=1e-15)
    assert_allclose(np.asarray(system.e_N())[rows], [0.5, 0.5, 0.1, 0.1])


def test_names_and_places():
    system = tree()
    assert system.body_names == ("base", "arm", "driven", "tip")
    assert system.where("tip", "body") == 3
    assert system.where("tip", "joint") == 4
    assert system.where("arm_2") == 2
    assert len(system.coordinate_names) == 13 and len(system.velocity_names) == 11
    with pytest.raises(KeyError, match="did you mean 'driven'"):
        system.where("drivn")
    with pytest.raises(KeyError, match="of several parts, body 3 and joint 4"):
        system.where("tip")
    q0, u0 = system.initial_state()
    assert_allclose(q0[3:7], [1, 0, 0, 0])
    assert not u0.any()


@pytest.mark.parametrize(
    "field, shape",
    [("friction", (7,)), ("friction", ()), ("mass", (5,)), ("inertia", (2, 3)), ("damping", (9,)), ("limits", (2,)), ("shape_size", (3,))],
    ids=str,
)
def test_arrays_of_the_wrong_shape_are_refused(field, shape):
    """Of the friction of one pair the first of seven numbers was taken, other arrays failed somewhere inside."""
    hinge = Revolute((0, 0, 1.0), limits=(-1.0, 1.0))
    system = bodies.assemble([Body("leg", 1.0, (0.1, 0.1, 0.1), joints=hinge, shapes=Sphere(0.1), position=(0, 0, 1.0))], Plane())
    expected = getattr(system, field).shape
    wrong = dataclasses.replace(system, **{field: jnp.ones(shape)})
    text = f"Multibody.{field} must have the shape {expected}, a row for each .*, got {shape}; system.replace"
    with pytest.raises(ValueError, match=text.replace("(", r"\(").replace(")", r"\)")):
        jaxnsd.check(wrong, jaxnsd.Moreau(), *system.initial_state(), 0.01, 0.01)
    jaxnsd.check(system, jaxnsd.Moreau(), *system.initial_state(), 0.01, 0.01)


def test_every_number_has_a_name():
    """Numbers are replaced by the names of their parts, also traced ones; wrong names and shapes are one sentence."""
    hip = Revolute((0, 0, 1.0), name="hip", limits=(-1.0, 1.0), damping=0.1)
    leg = Body("leg", 1.0, (0.1, 0.1, 0.1), joints=hip, shapes=Sphere(0.1, name="foot"))
    base = Body("base", 2.0, (0.1, 0.1, 0.1), joints=Free(), position=(0, 0, 1.0))
    parts = [base, dataclasses.replace(leg, parent="base")]
    system = bodies.assemble(parts, Plane(name="floor"), motors=Motor("hip", name="drive"))
    new = system.replace(
        {
            "leg.mass": 3.0,
            "leg.inertia": (0.2, 0.3, 0.4),
            "hip.limits": (-2.0, 2.0),
            "hip.damping": 0.5,
            "base.damping": np.ones(6),
            "drive.gain": 2.0,
            "drive.control": 0.7,
            "pair foot-floor.mu": 0.4,
            "foot.size": (0.2, 0.0, 0.0),
            "gravity": (0, 0, -1.6),
        }
    )
    assert new.mass[1] == 3 and new.mass[0] == 2 and new.inertia[1, 2, 2] == 0.4
    assert_allclose(new.limits, [[-2, 2]])
    assert_allclose(new.damping, [1, 1, 1, 1, 1, 1, 0.5])
    assert new.motors.gain[0] == 2 and new.control[0] == 0.7 and new.friction[0] == 0.4
    assert new.gravity[2] == -1.6 and new.shape_size[new.where("foot", "shape"), 0] == 0.2
    q, u = system.initial_state()
    slope = jax.grad(lambda m: system.replace({"leg.mass": m}).potential_energy(0.0, q))(1.0)
    assert_allclose(slope, G * 1.0, rtol=1e-12)
    for error, values, text in (
        (KeyError, {"leg.mas": 1.0}, "'leg' has no 'mas'; it has center, inertia, mass"),
        (KeyError, {"lag.mass": 1.0}, "no number has the name 'lag.mass'; did you mean 'leg.mass'"),
        (KeyError, {"base.position": u[:3]}, "may be one of body and joint; say the kind, too: body base.position"),
        (KeyError, {"xyz": 1.0}, "names are such as 'torso.mass'"),
        (ValueError, {"leg.mass": (1.0, 2.0)}, r"'leg.mass' must have the shape \(\), got \(2,\)"),
        (TypeError, [("leg.mass", 1.0)], "must be a dictionary"),
    ):
        with pytest.raises(error, match=text):
            system.replace(values)
    with pytest.raises(TypeError, match="control is a function"):
        dataclasses.replace(system, control=jax.tree_util.Partial(lambda t, q, u: u[6:])).replace({"drive.control": 1.0})


def test_order_of_bodies_is_free():
    """Children may be given before their parents."""
    parts = [Body("child", 1.0, (1.0, 1, 1), joints=Revolute(), parent="root"), Body("root", 1.0, (1.0, 1, 1))]
    assert bodies.assemble(parts).body_names == ("root", "child")


# --------------------------------------------------------------------------------------------------------------- what is wrong
BALL = Body("ball", 1.0, shapes=Sphere(0.1))
ROD = Body("rod", 1.0, (1.0, 1.0, 1.0), joints=Revolute())
WRONG = {
    "triangle": (ValueError, r"no body has the inertia of 'x'.*0\.1, 0\.2, 1", lambda: [Body("x", 1.0, (0.1, 0.2, 1.0))]),
    "negative moment": (ValueError, "inertia of 'x' must be positive", lambda: [Body("x", 1.0, (-0.1, 0.2, 0.2))]),
    "asymmetric": (ValueError, "must be symmetric", lambda: [Body("x", 1.0, np.eye(3) + np.eye(3, k=1))]),
    "shape of the inertia": (ValueError, r"inertia of the body 'x' must be \(3,\) moments", lambda: [Body("x", 1.0, np.ones(4))]),
    "no inertia": (ValueError, "'x' has a mass, so it must have an inertia", lambda: [Body("x", 1.0)]),
    "no mass": (ValueError, "'x' moves must have mass", lambda: [Body("x", 0.0, (1.0, 1.0, 1.0))]),
    "negative mass": (ValueError, "mass of 'x' must not be negative, got -1", lambda: [Body("x", -1.0, (1.0, 1.0, 1.0))]),
    "NaN": (ValueError, "must be numbers, got NaN", lambda: [Body("x", np.nan, (1.0, 1.0, 1.0))]),
    "cycle": (ValueError, "cycle among 'a', 'b'", lambda: [dataclasses.replace(ROD, name=a, parent=b) for a, b in ("ab", "ba")]),
    "unknown parent": (KeyError, "did you mean 'rod'", lambda: [ROD, dataclasses.replace(ROD, name="x", parent="rodd")]),
    "twice": (ValueError, "names of bodies must be different, got 'ball'", lambda: [BALL, BALL]),
    "world": (ValueError, 'must not have the name "world"', lambda: [dataclasses.replace(BALL, name="world")]),
    "free child": (ValueError, "'x' is free", lambda: [ROD, Body("x", 1.0, (1.0, 1, 1), joints=Free(), parent="rod")]),
    "no body": (TypeError, "bodies must be Body, got 3", lambda: [3]),
    "a class": (TypeError, "write its parentheses", lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Free)]),
    "radius": (ValueError, "sizes of the sphere 'x_sphere' must be positive", lambda: [Body("x", 1.0, (1.0, 1, 1), shapes=Sphere(-0.1))]),
    "no points": (ValueError, "'x_points' must have points", lambda: [Body("x", 1.0, (1.0, 1, 1), shapes=Points(()))]),
    "axis": (ValueError, "axis of the joint 'x' must not be zero", lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Revolute((0.0, 0, 0)))]),
    "limits": (ValueError, r"limits of 'x' must be \(lower", lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Revolute(limits=(1.0, -1.0)))]),
    "limits of the motors": (
        ValueError,
        r"motor_limits of 'x' must be \(lower, upper\), got \(1, -1\)",
        lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Revolute(motor_limits=(1.0, -1.0)))],
    ),
    "infinite mass": (ValueError, "mass must be finite", lambda: [Body("x", np.inf, (1.0, 1, 1))]),
    "infinite inertia": (ValueError, "inertia must be finite", lambda: [Body("x", 1.0, (np.inf, 1, 1))]),
    "several masses": (ValueError, "mass of the body 'x' must be a number", lambda: [Body("x", np.ones(2), (1.0, 1, 1))]),
    "armature": (ValueError, "armature of the joint 'x' must not", lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Revolute(armature=-1.0))]),
    "driven": (
        ValueError,
        "is prescribed must have no limits.* 'x'",
        lambda: [Body("x", 1.0, (1.0, 1, 1), joints=Revolute(motion=lambda t: t, limits=(0.0, 1.0)))],
    ),
    "nothing moves": (ValueError, "at least one body must have a joint", lambda: [dataclasses.replace(BALL, joints=())]),
    "vector": (ValueError, "position of the body 'ball' must be 3 numbers", lambda: [dataclasses.replace(BALL, position=(0.0, 1.0))]),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_bodies_are_refused(name):
    error, text, parts = WRONG[name]
    with pytest.raises(error, match=text):
        bodies.assemble(parts())


FLOOR = Plane(name="f", position=(0, 0, -5.0))
OPTIONS = {
    "contacts": (ValueError, '"all", "world" or pairs', {"contacts": "none of them"}),
    "friction": (
        ValueError,
        "mu of 'f' and 'egg_ellipsoid' must not be negative",
        {"world": FLOOR, "contacts": [Pair("f", "egg", mu=-0.1)]},
    ),
    "restitution": (ValueError, r"e_N of .* must lie in \[0, 1\], got 1.5", {"world": FLOOR, "contacts": [Pair("f", "egg")], "e_N": 1.5}),
    "with itself": (ValueError, "must move against each other", {"contacts": [Pair("ball", "ball")]}),
    "given twice": (ValueError, "must be given once", {"world": FLOOR, "contacts": [Pair("f", "ball"), Pair("ball", "f")]}),
    "out of the plane": (ValueError, "must be parallel to it, got the free joint 'ball'", {"plane": "xy"}),
    "unknown pair": (KeyError, "did you mean 'ball'", {"contacts": [Pair("bal", "world")]}),
    "control": (ValueError, r"control must have shape \(1,\), one number for each motor \(rod\)", {"control": [1.0, 2.0]}),
    "control function": (TypeError, r"control must take \(t, q, u\), got a function of \(t\)", {"control": lambda t: t}),
    "rows": (ValueError, r"rows of control must have shape \(N, 1\)", {"control": bodies.Rows(np.zeros((5, 2)), 0.1)}),
    "motor": (KeyError, "no joint has the name 'knee'", {"motors": [Motor("knee")]}),
    "motor of a free body": (ValueError, "a motor takes a revolute or prismatic joint", {"motors": [Motor("ball")]}),
    "limits of a motor": (
        ValueError,
        r"force_limits of the motor of 'rod' must be \(",
        {"motors": [Motor("rod", force_limits=(1.0, -1.0))]},
    ),
    "gears": (ValueError, "the motor 'ball' must have 6 gears, one for each velocity", {"motors": [Motor("ball", gear=(1.0, 2.0))]}),
    "servo of a free body": (ValueError, "feeds back no coordinate", {"motors": [Motor("ball", gear=(1.0,) * 6, slope=-1.0)]}),
    "friction twice": (
        ValueError,
        "a law that names a friction",
        {"contacts": [Pair("ball", "world", drilling=0.1)], "law": jaxnsd.NewtonImpact(friction=jaxnsd.sets.Disc(0.1))},
    ),
    "coupling": (KeyError, "no joint has the name", {"loops": [Couple("rod", "elbow")]}),
    "coefficients": (ValueError, "a coefficient for each joint of 'rod', 'rod'", {"loops": [Couple(("rod", "rod"))]}),
    "loop": (TypeError, "loops must be Connect or Weld or Couple", {"loops": [Pair("ball", "rod")]}),
    "plane": (ValueError, 'plane must be "xy", "xz", "yz"', {"plane": "xw"}),
    "gravity": (ValueError, "gravity must be 3 numbers", {"gravity": (0.0, -9.81)}),
}


def test_planes_do_not_touch_each_other():
    body = Body("b", 1.0, (1.0, 1.0, 1.0), shapes=Plane(name="p"))
    with pytest.raises(ValueError, match="must be of kinds between which there is a gap"):
        bodies.assemble([body], FLOOR, contacts=[Pair("f", "p")])


@pytest.mark.parametrize("name", list(OPTIONS))
def test_wrong_options_are_refused(name):
    error, text, options = OPTIONS[name]
    parts = [BALL, ROD, Body("egg", 1.0, shapes=bodies.Ellipsoid((0.1, 0.2, 0.3)), position=(1, 0, 0))]
    with pytest.raises(error, match=text):
        bodies.assemble(parts, **{"world": Plane(), "contacts": (), "motors": [Motor("rod")], **options})


def test_overlap_at_the_start_is_named():
    """The pair that overlaps is said, with its depth."""
    system = bodies.assemble([dataclasses.replace(BALL, position=(0, 0, 0.04))], Plane(name="floor"))
    with pytest.raises(ValueError, match=r"contact 0 \(floor and ball_sphere\) must be .* got the gap -0\.06"):
        jaxnsd.check(system, jaxnsd.Moreau(), *system.initial_state(), 1.0, 1e-3)


def test_a_robot_is_printed_in_one_line():
    @jaxnsd.system
    class Own(bodies.Multibody):
        wind: float = 0.0

    ball = Body("ball", 1.0, shapes=Sphere(0.1))
    made = bodies.assemble([ball, Body("other", 1.0, shapes=Sphere(0.1))], Plane(name="floor"))
    assert repr(made) == "Multibody(2 bodies, 2 joints, 3 contacts, 0 motors)"
    assert repr(Own.from_system(bodies.assemble([ball]))) == "Own(1 body, 1 joint, 0 contacts, 0 motors)"
    assert "mass=" in repr(jaxnsd.models.BouncingBall())
