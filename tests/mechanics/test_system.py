"""Derived quantities against closed forms, and the system as a pytree."""

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import Moreau, System, simulate
from jaxnsd.models import Cube, SpringPendulum

T, Q, U = jnp.asarray(0.4), jnp.array([0.7, -0.3]), jnp.array([1.2, 0.5])


def close(a, b, atol=1e-13):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@jaxnsd.system
class Shaken(System):
    """Everything that may depend on time does: T = 1/2 u^T M(t, q) u + a(t, q)^T u + q1^2, a moving floor, a driven tangent."""

    m: float = 2.0

    def kinetic_energy(self, t, q, u):
        M = jnp.array([[self.m + q[0] ** 2, jnp.sin(t)], [jnp.sin(t), 3.0]])
        a = jnp.array([t * q[1], jnp.cos(q[0])])
        return 0.5 * u @ M @ u + a @ u + q[0] ** 2

    def potential_energy(self, t, q):
        return t * q[0] * q[1]

    def force(self, t, q, u):
        return -0.1 * u

    def gap(self, t, q):
        return jnp.stack([q[0] - 0.2 * jnp.sin(5 * t), q[1] * q[0]])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[1:] - t, q[:1] * u[1:]])

    def velocity_constraint(self, t, q, u):
        return jnp.stack([q[1] * u[0] - t])

    def constraint(self, t, q):
        return jnp.stack([q[0] ** 2 + q[1] ** 2 - t])


@pytest.mark.slow
def test_derived_quantities_of_a_time_dependent_system():
    system, (t, (x, y), (v, w)) = Shaken(), (T, Q, U)
    M = np.array([[2 + x**2, np.sin(t)], [np.sin(t), 3]])
    close(system.M(T, Q), M)
    close(system.mass_matrix(T, Q), M)
    close(system.momentum(T, Q, U), M @ U + np.array([t * y, np.cos(x)]))
    # dL/dq + f, by hand
    b = np.array([x * v**2 - np.sin(x) * w + 2 * x - t * y - 0.1 * v, t * v - t * x - 0.1 * w])
    close(system.b(T, Q, U), b)
    M_dot = np.array([[2 * x * v, np.cos(t)], [np.cos(t), 0]])
    a_dot = np.array([y + t * w, -np.sin(x) * v])
    close(system.h(T, Q, U), b - M_dot @ U - a_dot)
    close(system.gap_velocity(T, Q, U), [v - np.cos(5 * t), w * x + y * v])
    close(system.W_N(T, Q), [[1, y], [0, x]])
    close(system.W_F(T, Q), np.array([[0, 0], [1, x]])[:, :, None])
    close(system.constraint_velocity(T, Q, U), [2 * x * v + 2 * y * w - 1])
    close(system.W_g(T, Q), [[2 * x], [2 * y]])
    close(system.W_gamma(T, Q), [[y], [0]])
    close(system.total_energy(T, Q, U), 0.5 * U @ M @ U + t * y * v + np.cos(x) * w + x**2 + t * x * y)


def test_spring_pendulum():
    system = SpringPendulum()
    (length, angle), (v, w) = Q, U
    m, k, g, l0 = 1.0, 100.0, 9.81, 1.0
    close(system.M(0.0, Q), np.diag([m, m * length**2]))
    h = [m * length * w**2 - k * (length - l0) + m * g * np.cos(angle), -2 * m * length * v * w - m * g * length * np.sin(angle)]
    close(system.h(0.0, Q, U), h, 1e-12)


@jaxnsd.system
class Pendula(System):
    """Two point masses on massless rods, angles from the vertical."""

    m: tuple = (1.0, 0.7)
    length: tuple = (1.0, 0.8)

    def positions(self, q):
        (a, b), (l1, l2) = q, self.length
        first = l1 * jnp.stack([jnp.sin(a), -jnp.cos(a)])
        return jnp.stack([first, first + l2 * jnp.stack([jnp.sin(b), -jnp.cos(b)])])

    def kinetic_energy(self, t, q, u):
        velocity = jax.jvp(self.positions, (q,), (u,))[1]
        return 0.5 * sum(m * v @ v for m, v in zip(self.m, velocity, strict=True))

    def potential_energy(self, t, q):
        return 9.81 * sum(m * x[1] for m, x in zip(self.m, self.positions(q), strict=True))


def test_double_pendulum():
    system, ((a, b), (v, w)) = Pendula(), (Q, U)
    m1, m2, l1, l2, g = 1.0, 0.7, 1.0, 0.8, 9.81
    coupling = m2 * l1 * l2
    close(system.M(0.0, Q), [[(m1 + m2) * l1**2, coupling * np.cos(a - b)], [coupling * np.cos(a - b), m2 * l2**2]])
    h = [-coupling * np.sin(a - b) * w**2 - (m1 + m2) * g * l1 * np.sin(a), coupling * np.sin(a - b) * v**2 - m2 * g * l2 * np.sin(b)]
    close(system.h(0.0, Q, U), h, 1e-12)


# ------------------------------------------------------------------------------------------------------ quasi-velocities
def quaternion_rate(q, omega):
    """dq/dt of a unit quaternion (scalar first) for the body-fixed angular velocity."""
    p, v = q[0], q[1:]
    return 0.5 * jnp.concatenate([jnp.stack([-v @ omega]), p * omega + jnp.cross(v, omega)])


def rotation(q):
    p, (x, y, z) = q[0], q[1:]
    skew = jnp.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return jnp.eye(3) + 2 * p * skew + 2 * skew @ skew


@jaxnsd.system
class HeavyTop(System):
    """A rigid body that turns about a fixed point: q a quaternion, u the body-fixed angular velocity."""

    gravity: float = 0.0
    inertia: tuple = (1.0, 2.0, 3.5)
    centre: tuple = (0.1, -0.2, 0.4)

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ (jnp.array(self.inertia) * u)

    def q_dot(self, t, q, u):
        return quaternion_rate(q, u)

    def potential_energy(self, t, q):
        return self.gravity * (rotation(q) @ jnp.array(self.centre))[2]


QUATERNION, OMEGA = jnp.array([0.5, -0.1, 0.7, 0.5]), jnp.array([0.3, -1.1, 0.8])
QUATERNION = QUATERNION / jnp.linalg.norm(QUATERNION)


def test_boltzmann_hamel_gives_the_gyroscopic_moment():
    J = np.diag(HeavyTop().inertia)
    close(HeavyTop().h(0.0, QUATERNION, OMEGA), -np.cross(OMEGA, J @ OMEGA))


def test_potential_energy_is_mapped_to_the_moment_of_the_weight():
    # The moment about the fixed point in the body's frame: c x (R^T f), f = (0, 0, -gravity).
    top = HeavyTop(gravity=5.0)
    moment = np.cross(top.centre, rotation(QUATERNION).T @ np.array([0, 0, -5.0]))
    close(top.h(0.0, QUATERNION, OMEGA) - HeavyTop().h(0.0, QUATERNION, OMEGA), moment)


def test_velocities_must_be_given_where_they_cannot_be_seen():
    with pytest.raises(TypeError, match=r"defines q_dot.*pass u"):
        HeavyTop().M(0.0, QUATERNION)
    assert HeavyTop().M(0.0, QUATERNION, OMEGA).shape == (3, 3)


# ------------------------------------------------------------------------------------------------------------ overriding
OVERRIDES = {
    "M": lambda self, t, q, u=None: 7 * jnp.eye(2),
    "momentum": lambda self, t, q, u: 7 * u,
    "b": lambda self, t, q, u: 0 * u + 7,
    "gap_velocity": lambda self, t, q, u: 7 * u,
    "W_N": lambda self, t, q, u=None: 7 * jnp.ones((2, 2)),
    "W_F": lambda self, t, q, u=None: 7 * jnp.ones((2, 2, 1)),
    "W_g": lambda self, t, q, u=None: 7 * jnp.ones((2, 1)),
    "W_gamma": lambda self, t, q, u=None: 7 * jnp.ones((2, 1)),
    "h": lambda self, t, q, u: 0 * u + 7,
    "constraint_velocity": lambda self, t, q, u: 7 * jnp.ones(1),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_every_derived_quantity_may_be_overridden(name):
    special = jaxnsd.system(type("Special", (Shaken,), {name: OVERRIDES[name], "__annotations__": {}}))()
    assert special.defines(name) and not Shaken().defines(name)
    close(getattr(special, name)(T, Q, U), OVERRIDES[name](special, T, Q, U))
    if name == "M":
        close(special.mass_matrix(T, Q), 7 * np.eye(2))
    if name == "momentum":
        M_dot_etc = special.b(T, Q, U) - special.h(T, Q, U)
        close(M_dot_etc, np.zeros(2))  # h comes from the given momentum
    if name == "gap_velocity":
        close(special.W_N(T, Q), 7 * np.eye(2))  # W_N comes from the given velocity
    if name == "constraint_velocity":
        close(special.W_g(T, Q), np.zeros((2, 1)))


def test_mass_matrix_in_place_of_kinetic_energy():
    @jaxnsd.system
    class ByMatrix(System):
        def mass_matrix(self, t, q):
            return jnp.array([[2 + q[0] ** 2, jnp.sin(t)], [jnp.sin(t), 3.0]])

    @jaxnsd.system
    class ByEnergy(System):
        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ jnp.array([[2 + q[0] ** 2, jnp.sin(t)], [jnp.sin(t), 3.0]]) @ u

    for name in ("M", "momentum", "b", "h", "kinetic_energy", "total_energy"):
        close(getattr(ByMatrix(), name)(T, Q, U), getattr(ByEnergy(), name)(T, Q, U))


def test_missing_inertia_says_what_to_write():
    @jaxnsd.system
    class Massless(System):
        k: float = 1.0

    for call in (lambda: Massless().M(T, Q), lambda: Massless().kinetic_energy(T, Q, U), lambda: Massless().h(T, Q, U)):
        with pytest.raises(TypeError, match="Massless has no inertia: write kinetic_energy"):
            call()


# ------------------------------------------------------------------------------------------------------------ what is hidden
def made(base=System, fields=(), **attributes):
    return jaxnsd.system(type("Toss", (base,), {"__annotations__": dict.fromkeys(fields, float), **attributes}))


@pytest.mark.parametrize("name", ["b", "h", "M", "W_N", "momentum", "gap", "total_energy", "defines"])
def test_a_field_that_hides_a_method_is_refused(name):
    with pytest.raises(TypeError, match=rf"Toss: the field {name} would hide the method {name} of System.*; rename the field"):
        made(fields=[name])  # without a default
    with pytest.raises(TypeError, match=rf"the field {name} would hide"):
        made(**{name: 0.05})  # without an annotation: an attribute of the class
    with pytest.raises(TypeError, match=r"the field directions would hide the method directions of LinearSystem \(G, "):
        made(jaxnsd.LinearSystem, fields=["directions"], directions=1.0)


@pytest.mark.parametrize("name", ["moved", "gathers", "scleronomic"])
def test_a_field_that_hides_what_the_schemes_read_is_refused(name):
    with pytest.raises(TypeError, match=rf"Toss: the field {name} would hide the attribute {name} of System.*; rename the field"):
        made(fields=[name])
    assert getattr(made(**{name: True}), name)  # an attribute of the class


def test_a_method_that_a_field_hides_is_refused():
    with pytest.raises(TypeError, match="the field mu of a base class hides the method mu, which would never be called"):
        made(jaxnsd.LinearSystem, mu=lambda self: 0.3)
    made(fields=["mu"], mu=0.3)
    made(mu=lambda self: 0.3)


@pytest.mark.parametrize(
    "name, right",
    {
        "gaps": "gap",
        "tangential_velocities": "tangential_velocity",
        "kinetic": "kinetic_energy",
        "potential": "potential_energy",
        "mass_matrices": "mass_matrix",
        "forces": "force",
        "constraints": "constraint",
        "velocity_constraints": "velocity_constraint",
        "qdot": "q_dot",
        "w_n": "W_N",
        "friction_coefficient": "mu",
    }.items(),
)
def test_a_misspelt_method_is_warned_of(name, right):
    def method(self, *args):
        return 0.0

    with pytest.warns(UserWarning, match=rf"Toss.{name} is not called by jaxnsd, .* has no {right}: did you mean {right}\?") as record:
        made(**{name: method})
    assert record[0].filename == __file__
    # No warning, which would be an error here, where the right one is written too, or of a name of one's own.
    made(**{name: method, right: method, f"_{name}": method})
    # Nor where a base class has the right one and the name is that of a helper that is called; else the right one stays, unnoticed.
    base = made(**{right: method})
    made(base, **{name: method, "force" if right != "force" else "gap": eval(f"lambda self, *args: self.{name}()")})
    with pytest.warns(UserWarning, match=rf"Toss.{name} is not called by jaxnsd, and the {right} of Toss stays .* did you mean {right}\?"):
        made(base, **{name: method})


def test_helpers_and_fields_are_not_warned_of():
    names = ("bodies", "corners", "positions", "feet", "velocity", "spring_force", "energy", "hinge", "rotation", "initial_state", "norm")
    made(**{name: lambda self, *args: 0.0 for name in names})
    made(fields=["mass", "length", "force_0", "gaps", "forces", "stiffness", "k", "c", "radius"])
    with pytest.warns(UserWarning, match="did you mean e_N"):
        made(fields=["e_n"])


def test_closed_forms_of_a_base_class_that_miss_what_is_new_are_warned_of():
    """A closed form is what it says: of a new gap, say, it knows nothing. One that asks for it, by a helper too, or is derived, does."""

    def none(self, *args):
        return 0.0

    for name, missed in (("gap", "gap_velocity"), ("gap", "W_N"), ("potential_energy", "h"), ("tangential_velocity", "W_F")):
        with pytest.warns(UserWarning, match=rf"Toss writes {name} anew, but inherits \w+ from Cube.*\w+ = jaxnsd.System.\w+") as record:
            made(Cube, **{name: none})
        assert any(f"inherits {missed} from Cube" in str(warning.message) for warning in record)
        assert record[0].filename == __file__
    made(Cube, force=none)  # h asks for it, and b for h
    made(Cube, gap=none, gap_velocity=System.gap_velocity, W_N=System.W_N)
    made(jaxnsd.LinearSystem, gap=none, force=none, kinetic_energy=none)
    helped = made(_forces=lambda self, t, q, u: [self.force(t, q, u)], h=lambda self, t, q, u: self._forces(t, q, u)[0])
    made(helped, force=none)
    with pytest.warns(UserWarning, match="writes q_dot anew, but inherits h from Toss"):
        still = made(helped, q_dot=none)
    made(still)  # said once
    made(made(Cube, gap_velocity=lambda self, *args: super(Cube, self).gap, W_N=lambda self, *args: self.gap), gap=none)
    # An effective method counts, wherever it is written, and only that.
    behind = type("Behind", (), {"gap": none})
    jaxnsd.system(type("Toss", (Cube, behind), {}))
    with pytest.warns(UserWarning, match=r"writes gap anew, but inherits (gap_velocity|W_N) from Cube"):
        jaxnsd.system(type("Toss", (behind, Cube), {}))


@pytest.mark.slow
def test_names_of_coordinates():
    @jaxnsd.system
    class Named(Shaken):
        coordinate_names = ("x [m]", "phi [rad]")

    assert Shaken().coordinate_names is None and Named().velocity_names is None
    start = np.array([1.0, 0.0]), np.array([0.0, 0.0])
    simulate(made(Named, velocity_constraint=System.velocity_constraint, constraint=System.constraint)(), Moreau(), *start, 0.01, 0.01)
    for wrong in (("x",), "xy", ("x", 1)):
        with pytest.raises(ValueError, match=r"Toss.velocity_names must be a tuple of 2 strings, one for each entry of u, got"):
            simulate(made(Named, velocity_names=wrong)(), Moreau(), *start, 0.01, 0.01)


# ------------------------------------------------------------------------------------------------------------ contact data
@pytest.mark.parametrize("value", [0.3, (0.3, 0.6), np.array([0.3, 0.6])])
@pytest.mark.parametrize("as_method", [False, True])
def test_contact_data_are_fields_or_methods_scalar_or_per_contact(value, as_method):
    if as_method:
        system = jaxnsd.system(type("Data", (Shaken,), {"mu": lambda self: jnp.asarray(value), "__annotations__": {}}))()
    else:
        system = jaxnsd.system(type("Data", (Shaken,), {"mu": 0.0, "__annotations__": {"mu": object}}))(mu=value)
    e_N, e_F, mu = system.contact_data(T, Q)
    close(mu, np.broadcast_to(value, 2))
    close(e_N, np.zeros(2))
    assert e_N.shape == e_F.shape == mu.shape == (2,)


# ------------------------------------------------------------------------------------------------------------------ pytree
@jaxnsd.system
class Ball(System):
    mass: float = 1.0
    e_N: float = 0.5
    balls: int = jaxnsd.static(default=1)

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t, q):
        return self.mass * 9.81 * jnp.sum(q)

    def gap(self, t, q):
        return q


def test_fields_are_leaves_and_static_fields_are_not():
    assert jax.tree.leaves(Ball()) == [1.0, 0.5]
    assert jax.tree.structure(Ball(balls=2)) != jax.tree.structure(Ball())
    assert jax.tree.map(lambda x: 2 * x, Ball()) == Ball(2.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ball().mass = 2.0


@pytest.mark.slow
def test_classes_with_the_same_fields_are_told_apart():
    # Two classes with equal fields must not share a compiled function: JAX compares the structures of their pytrees.
    first, second = (
        jaxnsd.system(type("Same", (Ball,), {"__annotations__": {}, "gap": gap})) for gap in (Ball.gap, lambda self, t, q: 2 * q)
    )
    assert jax.tree.structure(first()) != jax.tree.structure(second())
    assert jax.tree.structure(first()) == jax.tree.structure(first(mass=3.0))
    gap = jax.jit(lambda ball: ball.gap(T, Q))
    for k in range(200):
        scaled = jaxnsd.system(type("Same", (Ball,), {"__annotations__": {}, "gap": lambda self, t, q, k=k: k * q}))
        np.testing.assert_array_equal(gap(scaled()), k * Q)


def test_grad_and_vmap_over_systems():
    gradient = jax.grad(lambda ball: ball.total_energy(T, Q, U))(Ball(mass=2.0))
    assert isinstance(gradient, Ball)
    close(gradient.mass, 0.5 * U @ U + 9.81 * Q.sum())
    assert gradient.e_N == 0
    balls = Ball(mass=jnp.array([1.0, 2.0, 3.0]), e_N=jnp.array([0.0, 0.5, 1.0]))
    run = lambda ball: simulate(ball, Moreau(), jnp.array([0.1]), jnp.zeros(1), 0.2, 0.01)  # noqa: E731
    batch = jax.vmap(run)(balls)
    for k in range(3):
        one = run(Ball(float(balls.mass[k]), float(balls.e_N[k])))
        np.testing.assert_allclose(batch.q[k], one.q, atol=1e-14)


#: What a system of a notebook reads: in a cell of its own, run again with another value.
GRAVITY = 9.81


def weight(mass):
    return mass * GRAVITY


def test_what_methods_read_is_read_again_once_it_is_another(monkeypatch):
    """Free fall by h: -g h^2 / 2, whatever JAX has traced before, with a global, a function, an attribute and a closure that change."""
    stiffness, traces = 0.0, 0

    @jaxnsd.system
    class Falling(Ball):
        lift = 0.0

        def potential_energy(self, t, q):
            nonlocal traces
            traces += 1
            return (weight(self.mass) - self.lift) * q[0] + stiffness * q[0]

    def acceleration():
        ball, q, u = Falling(), jnp.full(1, 10.0), jnp.zeros(1)
        sol = simulate(ball, Moreau(), q, u, n_steps=1, dt=0.5)
        assert jax.jit(lambda: ball.h(0.0, q, u))() == ball.h(0.0, q, u) == sol.u[-1] / 0.5
        return float(sol.u[-1, 0] / 0.5)

    def traced():
        before = traces
        return acceleration(), traces > before

    assert traced() == (-9.81, True)
    assert traced() == (-9.81, False)
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "GRAVITY", 1.62)
    assert traced() == (-1.62, True)
    # The same number again is no change.
    monkeypatch.setattr(module, "GRAVITY", float("1.62"))
    assert traced() == (-1.62, False)
    Falling.lift = 1.0
    assert traced() == (pytest.approx(-0.62), True)
    stiffness = 2.0
    assert traced() == (pytest.approx(-2.62), True)
    monkeypatch.setattr(module, "weight", lambda mass: 0.0)
    assert traced() == (-1.0, True)


class Weigh:
    def __call__(self, q):
        return GRAVITY * q


class Moon:
    gravity = 9.81


class Rule:
    """An object with what is assigned to it."""

    def __init__(self):
        self.gravity = 9.81


def by_default(q, weigh=lambda q: GRAVITY * q):
    return weigh(q)


@jax.custom_jvp
def with_a_rule(q):
    return 9.81 * q


@with_a_rule.defjvp
def _(primals, tangents):
    return with_a_rule(*primals), GRAVITY * tangents[0]


def by_an_import(q):
    import of_one_s_own

    return of_one_s_own.gravity * q


MODULE, RULE, NAMES, TABLE = types.ModuleType("of_one_s_own"), Rule(), types.SimpleNamespace(), {"of": {}}
OWN, VIEW, CHAIN = collections.UserDict(), types.MappingProxyType(TABLE["of"]), collections.ChainMap({}, TABLE["of"])

#: Functions of ``q``, of what is 9.81 here; and how that becomes something else.
HELPERS = {
    "object": (Weigh(), None),
    "method": (Weigh().__call__, None),
    "partial": (functools.partial(Weigh.__call__, None), None),
    "argument of a partial": (functools.partial(lambda weigh, q: weigh(q), lambda q: GRAVITY * q), None),
    "wrapped": (functools.wraps(len)(lambda q: GRAVITY * q), None),
    "vmap": (jax.vmap(lambda q: GRAVITY * q), None),
    "default": (by_default, None),
    "in a list": ([lambda q: GRAVITY * q].__getitem__(0), None),
    "class": (lambda q: Moon.gravity * q, Moon),
    "object's attribute": (lambda q: RULE.gravity * q, RULE),
    "names": (lambda q: NAMES.gravity * q, NAMES),
    "module": (lambda q: MODULE.gravity * q, MODULE),
    "import": (by_an_import, MODULE),
    "entry": (lambda q: TABLE["of"]["gravity"] * q, TABLE["of"]),
    "entry of a UserDict": (lambda q: OWN["gravity"] * q, OWN.data),
    "entry of a view": (lambda q: VIEW["gravity"] * q, TABLE["of"]),
    "entry of a chain": (lambda q: CHAIN["gravity"] * q, TABLE["of"]),
}


def set_gravity(monkeypatch, of, gravity):
    if isinstance(of, dict):
        monkeypatch.setitem(of, "gravity", gravity)
    elif of is None:
        monkeypatch.setattr(sys.modules[__name__], "GRAVITY", gravity)
    else:
        monkeypatch.setattr(of, "gravity", gravity, raising=False)


@pytest.mark.parametrize("name", HELPERS)
def test_what_helpers_of_any_kind_read(monkeypatch, name):
    """By a global, by a list of functions, by a field that is no leaf."""
    helper, of = HELPERS[name]
    helpers = [helper]
    monkeypatch.setitem(sys.modules, "of_one_s_own", MODULE)

    @jaxnsd.system
    class Falling(Ball):
        beside: Callable = jaxnsd.static(default=lambda q: 0 * q)

        def force(self, t, q, u):
            return helper(q)

    @jaxnsd.system
    class Listed(Falling):
        def force(self, t, q, u):
            return helpers[0](q)

    @jaxnsd.system
    class Given(Falling):
        def force(self, t, q, u):
            return self.beside(q)

    for gravity in (9.81, 1.62):
        set_gravity(monkeypatch, of, gravity)
        for ball in (Falling(), Listed(), Given(beside=helper)):
            close(ball.b(0.0, Q, U), gravity * Q - 9.81)


def test_what_is_counted_and_what_is_a_rule(monkeypatch):
    """What methods write themselves is no reason to trace again; a rule for derivatives is."""
    counts, count = {"calls": 0}, Rule()

    @jaxnsd.system
    class Falling(Ball):
        calls = 0

        def force(self, t, q, u):
            counts["calls"] += 1
            count.calls = getattr(count, "calls", 0) + 1
            type(self).calls += 1
            return with_a_rule(q)

    before = jax.tree.structure(Falling())
    assert Falling().b(0.0, Q, U)[0] and counts["calls"] == count.calls > 0
    assert jax.tree.structure(Falling()) == before
    set_gravity(monkeypatch, None, 1.62)
    assert jax.tree.structure(Falling()) != before


def test_names_that_are_not_there_yet():
    """An attribute that comes before that of the class, an entry with a default; beside what the function writes."""

    class Moons:
        gravity = 9.81

        def move(self, gravity):
            self.gravity = gravity

    moons, entries = Moons(), {}

    @jaxnsd.system
    class Falling(Ball):
        def force(self, t, q, u):
            parts = {}
            parts["gravity"] = moons.gravity + entries.get("gravity", 0.0)
            return parts["gravity"] * q

    close(Falling().b(0.0, Q, U), 9.81 * Q - 9.81)
    moons.move(1.62)
    close(Falling().b(0.0, Q, U), 1.62 * Q - 9.81)
    entries["gravity"] = 1.0
    close(Falling().b(0.0, Q, U), 2.62 * Q - 9.81)


def test_what_is_traced_is_a_field():
    """A class that closes over a traced value: its own functions are right, and of a run the derivative is not lost, but refused."""

    def weights(g):
        gravity = g

        @jaxnsd.system
        class Falling(Ball):
            def potential_energy(self, t, q):
                return self.mass * gravity * q[0]

        ball = Falling(2.0)
        first = ball.h(0.0, Q[:1], U[:1])[0]
        gravity = 3 * g
        return jnp.stack([first, ball.h(0.0, Q[:1], U[:1])[0]]), ball

    for transformed in (jax.jit, jax.jacfwd, jax.jacrev, jax.vmap):
        got = transformed(lambda g: weights(g)[0])(jnp.ones(2) if transformed is jax.vmap else 1.0)
        np.testing.assert_array_equal(got, [[-2.0, -6.0]] * 2 if transformed is jax.vmap else [-2.0, -6.0])
        with pytest.raises(TypeError, match=r"potential_energy must be a function of its arguments .* of Falling, .*make it a field"):
            transformed(lambda g: simulate(weights(g)[1], Moreau(), Q[:1], U[:1], 0.1, 0.1).q[-1])(
                jnp.ones(2) if transformed is jax.vmap else 1.0
            )


def test_a_second_run_compiles_nothing():
    traces = []

    @jaxnsd.system
    class Counting(Ball):
        def gap(self, t, q):
            traces.append(1)
            return q

    for mass in (1.0, 2.0, 3.0):
        count = len(traces)
        simulate(Counting(mass=mass), Moreau(), jnp.array([0.1 * mass]), jnp.zeros(1), 0.2, 0.01)
        assert (len(traces) > count) == (mass == 1.0)


@jax.tree_util.register_pytree_node_class
class Network:
    """As libraries of networks have them: arrays, functions and nothing at all are leaves, or stand where leaves may be."""

    def __init__(self, *leaves):
        self.weight, self.bias, self.activation = leaves

    def tree_flatten(self):
        return (self.weight, self.bias, self.activation), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)

    def __call__(self, x):
        return self.activation(self.weight @ x) + (0.0 if self.bias is None else self.bias)


@jaxnsd.system
class Driven(System):
    """A mass on a rail with a stop, pushed by a network."""

    network: Any
    strength: float = 5.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return self.strength * self.network(jnp.concatenate([q, u]))

    def gap(self, t, q):
        return q + 0.5


def driven_to(system):
    return simulate(system, Moreau(), jnp.array([1.0]), jnp.zeros(1), 0.1, 0.01).q[-1, 0]


def test_functions_among_the_leaves_of_a_field_belong_to_the_structure():
    weight = jnp.array([[-0.5, -0.2]])
    system, other = Driven(Network(weight, None, jnp.tanh)), Driven(Network(weight, None, jnp.sin))
    assert len(jax.tree.leaves(system)) == 2 and jax.tree.structure(system) != jax.tree.structure(other)
    assert jax.tree.structure(system) == jax.tree.structure(Driven(Network(2 * weight, None, jnp.tanh)))
    again = jax.tree.map(lambda x: x, system)
    assert type(again.network) is Network and again.network.activation is jnp.tanh and again.network.bias is None
    # The step of Moreau's scheme by hand.
    for of, activation in ((system, np.tanh), (other, np.sin)):
        q, u = 1.0, 0.0
        for _ in range(10):
            q += 0.01 * u
            u += 0.01 * 5.0 * activation(-0.5 * q - 0.2 * u)
        np.testing.assert_allclose(driven_to(of), q, rtol=1e-12)
    slope = jax.grad(driven_to)(system)
    assert slope.network.activation is jnp.tanh and slope.network.weight.shape == (1, 2)
    h = 1e-4
    near = [driven_to(Driven(Network(weight.at[0, 1].add(x), None, jnp.tanh))) for x in (h, -h)]
    np.testing.assert_allclose(slope.network.weight[0, 1], (near[0] - near[1]) / (2 * h), rtol=1e-7)
    batch = jax.vmap(driven_to)(jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), system))
    np.testing.assert_allclose(batch, driven_to(system), rtol=1e-12)
    with pytest.raises(TypeError, match=r"Driven.network must be a number or an array, got .*declare what is no parameter"):
        driven_to(Driven(jnp.tanh))


@pytest.mark.slow
def test_a_module_of_equinox_is_a_field():
    eqx = pytest.importorskip("equinox")
    system = Driven(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)))
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(system)[0][0]) == ".network.layers[0].weight"
    value, slope = eqx.filter_value_and_grad(driven_to)(system)
    whole = jax.grad(driven_to)(system)
    for a, b in zip(jax.tree.leaves(slope.network), jax.tree.leaves(whole.network), strict=True):
        np.testing.assert_array_equal(a, b)
    assert value == driven_to(system)
    moved = eqx.tree_at(lambda system: system.network.layers[1].bias, system, jnp.array([0.3]))
    assert driven_to(moved) != value
