"""Every senseless input is refused before tracing, with a sentence that names it; sensible input raises no false alarm."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import Moreau, Outcome, SymmetricMoreau, System, VariationalMoreau, simulate
from jaxnsd.native.jax_internals import enable_x64
from jaxnsd.programs import indices
from jaxnsd.schemes import sensitivity
from jaxnsd.simulation import checks


@jaxnsd.system
class Particle(System):
    """A particle over a floor, q = (x, y)."""

    mass: float = 1.0
    e_N: object = 0.5
    e_F: object = 0.0
    mu: object = 0.3
    name: object = jaxnsd.static(default="particle")

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[:1, None]


Q0, U0 = np.array([0.0, 1.0]), np.array([1.0, 0.0])


def run(system=None, scheme=None, q0=Q0, u0=U0, t1=0.05, dt=0.01, **kwargs):
    return simulate(Particle() if system is None else system, Moreau() if scheme is None else scheme, q0, u0, t1, dt, **kwargs)


def passes(system=None, scheme=None, q0=Q0, u0=U0, t1=0.05, dt=0.01):
    """The checks of a run without the run."""
    jaxnsd.check(Particle() if system is None else system, Moreau() if scheme is None else scheme, q0, u0, t1, dt)


def variant(base=Particle, /, **methods):
    """An instance of a new class with other methods."""
    return jaxnsd.system(type("Variant", (base,), {"__annotations__": {}, **methods}))()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        # options
        ({"scheme": Moreau}, TypeError, "scheme must be a scheme.*write its parentheses"),
        ({"scheme": "Moreau"}, TypeError, "scheme must be a scheme such as jaxnsd.Moreau"),
        ({"solver": {"tolerance": 1e-8}}, TypeError, "solver must be a jaxnsd.SemismoothNewton"),
        ({"sensitivity": "exact"}, ValueError, "sensitivity must be.*got 'exact'"),
        ({"save_every": 0}, ValueError, "save_every must be a positive whole number of steps, got 0"),
        ({"save_every": 2.0}, ValueError, "save_every must be a positive whole number"),
        ({"save_every": 2}, ValueError, "save_every must divide the number of steps, 5, got 2"),
        ({"checkpoint": -1}, ValueError, "checkpoint must be a positive whole number of steps, got -1"),
        ({"checkpoint": True}, ValueError, "checkpoint"),
        # times
        ({"dt": 0.0}, ValueError, "dt must be positive, got 0.0"),
        ({"dt": -0.01}, ValueError, "dt must be positive, got -0.01"),
        ({"dt": 0.03}, ValueError, "dt = 0.03 must divide t1 - t0 = 0.05.*take dt = 0.025 or t1 = 0.06"),
        ({"dt": np.nan}, ValueError, "dt must be a finite number"),
        ({"dt": "0.01"}, ValueError, "dt must be a finite number in seconds, got '0.01'"),
        ({"t1": np.inf}, ValueError, "t1 must be a finite number"),
        ({"t1": 0.0}, ValueError, "t1 must be later than t0"),
        ({"t1": np.array([0.05])}, ValueError, "t1 must be a finite number"),
        ({"t1": None}, TypeError, "t1 is missing; give t1 and dt, or n_steps with either of them"),
        ({"dt": None}, TypeError, "dt is missing"),
        ({"n_steps": 5}, TypeError, "n_steps takes either t1 or dt, the other follows from it, got both"),
        ({"n_steps": 5, "t1": None, "dt": None}, TypeError, "n_steps takes either t1 or dt.*got neither"),
        ({"n_steps": jnp.asarray(5.0), "t1": None}, ValueError, "n_steps must be a positive whole number of steps, got Array"),
        ({"n_steps": np.array([5]), "t1": None}, ValueError, "n_steps must be a positive whole number of steps, got array"),
        ({"n_steps": 5.0, "t1": None}, ValueError, "n_steps must be a positive whole number of steps, got 5.0"),
        ({"n_steps": 5, "t1": None, "dt": -0.01}, ValueError, "dt must be positive"),
        ({"n_steps": 5, "t1": 0.05, "dt": None, "t0": 0.1}, ValueError, "t1 must be later than t0, got t0 = 0.1 and t1 = 0.05"),
        ({"n_steps": 5, "t1": None, "save_every": 2}, ValueError, "save_every must divide the number of steps, 5, got 2"),
        ({"n_steps": 10**12, "t1": None, "save_every": 10}, ValueError, r"trajectory of 10+ steps must fit into memory.*save_every=\d+"),
        # state
        ({"q0": np.array([0, 1])}, TypeError, "q0 must be of a floating dtype, got int64; write 1.0"),
        ({"u0": [0, 1]}, TypeError, "u0 must be of a floating dtype"),
        ({"q0": Q0.astype(np.float32)}, TypeError, "q0 and u0 must have one dtype, got float32 and float64"),
        ({"q0": 1.0}, ValueError, r"q0 must have 1 axis, got shape \(\)"),
        ({"q0": np.zeros((3, 2))}, ValueError, r"q0 must have 1 axis, got shape \(3, 2\); make batches with jax.vmap"),
        ({"q0": [[0.0], [1.0, 2.0]]}, TypeError, "q0 must be an array of numbers"),
        ({"q0": ["a", "b"]}, TypeError, "q0 must be an array of numbers, got one of <U1"),
        ({"q0": {"x": 1.0}}, TypeError, "q0 must be an array of numbers, got one of object"),
        ({"progress": "yes"}, TypeError, "progress must be True or False, got 'yes'"),
        ({"q0": np.array([0.0, np.nan])}, ValueError, "q0 must be finite"),
        ({"u0": np.array([0.0, np.inf])}, ValueError, "u0 must be finite"),
        ({"u0": np.zeros(3)}, ValueError, r"q0 and u0 must have one shape, got \(2,\) and \(3,\)"),
        ({"q0": np.zeros(0), "u0": np.zeros(0)}, ValueError, "at least one coordinate"),
        ({"q0": None}, TypeError, r"q0 must be an array of numbers, got None; models have initial_state\(\)"),
        ({"q0": Q0.astype(np.float16)}, TypeError, "q0 must be float32 or float64, got float16.*convert it"),
        ({"u0": jnp.zeros(2, jnp.bfloat16)}, TypeError, "u0 must be float32 or float64, got bfloat16"),
        ({"q0": np.array([0.0, -0.5])}, ValueError, "contact 0 must be open or closed.*gap -0.5.*correct q0"),
        # parameters
        ({"system": Particle}, TypeError, r"got the class Particle; write Particle\(...\)"),
        ({"system": "ball"}, TypeError, "system must be an instance of a subclass of jaxnsd.System"),
        ({"system": Particle(mass=1)}, TypeError, r"Particle.mass must be of a floating dtype, got 1; write 1.0"),
        ({"system": Particle(mass="heavy")}, TypeError, "Particle.mass must be a number or an array.*jaxnsd.static"),
        ({"system": Particle(mass=True)}, TypeError, "Particle.mass must be a number"),
        ({"system": Particle(mass=np.float32(1))}, TypeError, "Particle.mass must have the dtype of the state, float64, got float32"),
        ({"system": Particle(mass=np.nan)}, ValueError, "Particle.mass must be a number, got nan"),
        ({"system": Particle(mu=np.array([np.nan]))}, ValueError, "Particle.mu"),
        ({"system": Particle(e_N=1.1)}, ValueError, r"Particle.e_N must lie in \[0, 1\], got \[1.1\]"),
        ({"system": Particle(e_N=None)}, TypeError, "Particle.e_N must be a number or an array, got None; leave it out for 0"),
        ({"system": Particle(e_N=-0.1)}, ValueError, r"Particle.e_N must lie in \[0, 1\]"),
        ({"system": Particle(e_F=2.0)}, ValueError, r"Particle.e_F must lie in \[0, 1\]"),
        ({"system": Particle(mu=-0.1)}, ValueError, "Particle.mu must be finite and not negative"),
        ({"system": Particle(mu=np.inf)}, ValueError, "Particle.mu must be finite"),
        (
            {"system": Particle(mu=np.ones(2))},
            ValueError,
            r"Particle.mu must be a scalar or of shape \(1,\), one entry per contact, got shape \(2,\)",
        ),
        ({"system": Particle(mass=0.0)}, ValueError, "mass matrix must be positive definite.*singular"),
        ({"system": Particle(mass=-1.0)}, ValueError, "mass matrix must be positive definite"),
        (
            {"system": Particle(name=["floor"])},
            TypeError,
            r"Particle.name, declared with jaxnsd.static\(\), must be hashable, got \[.floor.\]",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        run(**arguments)


@pytest.mark.parametrize(
    "methods, error, message",
    [
        ({"gap": lambda self, t, q: q[1]}, ValueError, r"Variant.gap must return shape \(n_N,\).*got \(\)"),
        ({"gap": lambda self, t, q: [q[1]]}, TypeError, "Variant.gap must return an array.*jnp.stack"),
        ({"gap": lambda self, t, q: q[2:]}, ValueError, r"Variant.tangential_velocity must return shape \(0, d\)"),
        ({"gap": lambda self, t, q: q @ jnp.ones(3)}, TypeError, r"Variant.gap failed for q of shape \(2,\)"),
        (
            {"gap": lambda self, t, q: q[1:].astype(jnp.float32)},
            TypeError,
            "Variant.gap must return the dtype of the state, float64, got float32",
        ),
        ({"gap": lambda self, t, q: jnp.ones(1, int)}, TypeError, "Variant.gap must return the dtype of the state"),
        ({"gap": lambda self, t, q: q[1:] / (q[0] * 0)}, ValueError, "Variant.gap must be finite at the initial state"),
        ({"gap": lambda self, t, q: jnp.sqrt(q[1:] - 1)}, ValueError, "Variant.gap_velocity must be finite at the initial state"),
        (
            {"tangential_velocity": lambda self, t, q, u: u[:1]},
            ValueError,
            r"tangential_velocity must return shape \(1, d\).*got \(1,\); of \(n,\) write \[:, None\] for one direction",
        ),
        ({"tangential_velocity": lambda self, t, q, u: jnp.ones((1, 3))}, ValueError, r"d = 1 \(planar\) or 2 \(spatial\), got \(1, 3\)"),
        ({"tangential_velocity": lambda self, t, q, u: u[:, None]}, ValueError, r"tangential_velocity must return shape \(1, d\)"),
        (
            {"kinetic_energy": lambda self, t, q, u: 0.5 * u**2},
            ValueError,
            r"Variant.kinetic_energy must return shape \(\) \(a scalar\), got \(2,\)",
        ),
        ({"potential_energy": lambda self, t, q: q}, ValueError, r"Variant.potential_energy must return shape \(\)"),
        ({"potential_energy": lambda self, t, q: None}, TypeError, "Variant.potential_energy must return an array, got None"),
        ({"force": lambda self, t, q, u: u[:1]}, ValueError, r"Variant.force must return shape \(2,\).*got \(1,\)"),
        ({"force": lambda self, t, q, u: u * jnp.nan}, ValueError, "Variant.h must be finite at the initial state"),
        ({"q_dot": lambda self, t, q, u: u[:1]}, ValueError, r"Variant.q_dot must return shape \(2,\)"),
        ({"constraint": lambda self, t, q: q[0]}, ValueError, r"Variant.constraint must return shape \(n,\).*got \(\)"),
        (
            {"constraint": lambda self, t, q: q[:1] - 1.0},
            ValueError,
            r"Variant.constraint must vanish \(g = 0\).*got -1 in row 0.*correct q0; jaxnsd.project_position",
        ),
        ({"constraint": lambda self, t, q: q[:1]}, ValueError, r"Variant.constraint_velocity must vanish \(dg/dt = 0\).*got 1 in row 0"),
        ({"velocity_constraint": lambda self, t, q, u: u[:1]}, ValueError, r"Variant.velocity_constraint must vanish \(gamma = 0\)"),
        ({"velocity_constraint": lambda self, t, q, u: u[0]}, ValueError, r"Variant.velocity_constraint must return shape \(n,\)"),
        ({"W_N": lambda self, t, q, u=None: jnp.ones((2, 2))}, ValueError, r"Variant.W_N must return shape \(2, 1\), got \(2, 2\)"),
        ({"mu": lambda self: jnp.ones(3)}, ValueError, r"Variant.mu must be a scalar or of shape \(1,\)"),
        ({"e_N": lambda self: 1.5}, ValueError, r"Variant.e_N must lie in \[0, 1\]"),
        # indices, which JAX clamps
        (
            {"gap": lambda self, t, q: q[2][None]},
            ValueError,
            r"Variant.gap must stay inside of its arrays, got entry 2 of an axis of 2 entries \(array of shape \(2,\)\)",
        ),
        (
            {"gap": lambda self, t, q: jnp.stack([q[-3]])},
            ValueError,
            "Variant.gap must stay inside of its arrays, got entry -3",
        ),
        ({"force": lambda self, t, q, u: u.at[2].set(0.0)}, ValueError, "Variant.force must stay inside of its arrays, got entry 2"),
        (
            {"potential_energy": lambda self, t, q: jnp.outer(q, q)[1, 3]},
            ValueError,
            r"Variant.potential_energy must stay inside.*entry 3 of an axis of 2 entries \(array of shape \(2, 2\)\)",
        ),
        (
            {"tangential_velocity": lambda self, t, q, u: jax.jvp(lambda q: q[jnp.array([4])], (q,), (u,))[1][:, None]},
            ValueError,
            "Variant.tangential_velocity must stay inside of its arrays, got entry 4 of an axis of 2",
        ),
        # values that a traced array has not
        (
            {"gap": lambda self, t, q: q[1:] if q[0] > 0 else -q[1:]},
            TypeError,
            r"Variant.gap must not ask for the value of an array.*\(test_checks.py, line \d+: .*q\[0\] > 0.*jnp.where",
        ),
        (
            {"force": lambda self, t, q, u: jnp.full(2, float(q[0]))},
            TypeError,
            r"Variant.force must not ask.*leave float\(\) out",
        ),
        ({"force": lambda self, t, q, u: np.sin(q)}, TypeError, "Variant.force must not ask for the value of an array.*jnp.sin for np.sin"),
        (
            {"potential_energy": lambda self, t, q: np.sin(q[0])},
            TypeError,
            r"Variant.potential_energy must not ask.*\(test_checks.py, line \d+: .*use jax.numpy",
        ),
        ({"gap": lambda self, t, q: q[1:] * np.ones(2)[jnp.argmax(q)]}, TypeError, "Variant.gap must not ask"),
        # functions of u
        ({"tangential_velocity": lambda self, t, q, u: u[:1, None] ** 2}, ValueError, "Variant.tangential_velocity must be affine in u"),
        # affine on either side of a kink, which was not seen where all velocities looked at lay on one
        ({"tangential_velocity": lambda self, t, q, u: jnp.abs(u[:1, None])}, ValueError, "tangential_velocity must be affine in u"),
        ({"q_dot": lambda self, t, q, u: jnp.maximum(u, 0.5 * u)}, ValueError, "Variant.q_dot must be affine in u"),
        ({"q_dot": lambda self, t, q, u: jnp.sin(u)}, ValueError, "Variant.q_dot must be affine in u.*is a force"),
        ({"velocity_constraint": lambda self, t, q, u: u[1:] * u[:1]}, ValueError, "Variant.velocity_constraint must be affine in u"),
        (
            {"kinetic_energy": lambda self, t, q, u: 0.5 * u @ u + 0.1 * u[0] ** 4},
            ValueError,
            "kinetic_energy must be quadratic in u",
        ),
    ],
)
def test_bad_methods_are_refused(methods, error, message):
    base = System if {"mu", "e_N"} & set(methods) else Bare
    methods = methods if base is Bare else {"kinetic_energy": Bare.kinetic_energy, "gap": Bare.gap, **methods}
    with pytest.raises(error, match=f"(?s){message}"):
        run(variant(base, **methods))


class Bare(System):
    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[:1, None]


def test_contact_data_that_asks_for_the_value_of_a_field_is_refused():
    for name, method in (("mu", lambda self: np.sin(self.mass)), ("law", lambda self: jaxnsd.NewtonImpact(0.5 if self.mass > 0 else 0.0))):
        system = jaxnsd.system(type("Asking", (Bare,), {"__annotations__": {"mass": float}, "mass": 1.0, name: method}))()
        with pytest.raises(TypeError, match=r"Asking: a method without arguments, as mu or law, must not ask.*use jax.numpy"):
            run(system)


@pytest.mark.parametrize(
    "matrix, message",
    [
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "mass matrix must be symmetric"),
        (np.array([[1.0, 1.0], [1.0, 1.0]]), "mass matrix must be positive definite.*singular"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "mass matrix must be positive definite"),
        (np.eye(3), r"Matrix.mass_matrix must return shape \(2, 2\)"),
        (np.diag([1.0, np.nan]), "Matrix.M must be finite"),
    ],
)
def test_bad_mass_matrices_are_refused(matrix, message):
    @jaxnsd.system
    class Matrix(System):
        def mass_matrix(self, t, q):
            return jnp.asarray(matrix)

    with pytest.raises(ValueError, match=f"(?s){message}"):
        run(Matrix())


def test_a_start_that_penetrates_is_said_with_names():
    """With those of the contacts where there are some, else with numbers."""

    @jaxnsd.system
    class Feet(Particle):
        """Two feet, one lower than the other."""

        def gap(self, t, q):
            return q[1] - jnp.array([0.0, 0.1])

        def tangential_velocity(self, t, q, u):
            return jnp.stack([u[:1], u[:1]])

    @jaxnsd.system
    class Named(Feet):
        contact_names = ("heel", "toe")

    for system, words in (
        (Feet(), "contact 1 must be .*; likewise contact 0;"),
        (Named(), r"contact 1 \(toe\) must be .*; likewise heel;"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate(system, Moreau(), np.array([0.0, -0.5]), np.zeros(2), 0.1, 1e-2)


def test_different_units_are_not_a_singular_mass_matrix():
    @jaxnsd.system
    class Grams(System):
        def mass_matrix(self, t, q):
            return jnp.diag(jnp.array([1e8, 1e-9]))

    passes(Grams())


def test_mass_matrix_and_kinetic_energy_must_agree():
    with pytest.raises(ValueError, match=r"(?s)mass_matrix and the Hessian of kinetic_energy must agree.*write one"):
        run(variant(Bare, mass_matrix=lambda self, t, q: 2 * jnp.eye(2)))
    passes(variant(Bare, mass_matrix=lambda self, t, q: jnp.eye(2)))


def test_missing_inertia_and_missing_decorator():
    with pytest.raises(TypeError, match=r"Variant must have an inertia.*write kinetic_energy"):
        run(variant(System))
    with pytest.raises(TypeError, match=r"class Bare is not registered as a pytree; decorate it with @jaxnsd.system"):
        run(Bare())

    class Forgotten(Particle):
        """A subclass of a decorated class needs the decorator as well."""

    with pytest.raises(TypeError, match="class Forgotten is not registered as a pytree"):
        run(Forgotten())
    passes(variant(Bare))  # a system without parameters is fine


def test_scheme_that_does_not_take_the_system():
    moving = variant(Bare, q_dot=lambda self, t, q, u: 2 * u)
    with pytest.raises(ValueError, match=r"VariationalMoreau\(\) does not take Variant: .*q_dot.*use SymmetricMoreau"):
        run(moving, VariationalMoreau())
    passes(moving, SymmetricMoreau())


def test_shapes_and_dtypes_are_checked_under_transformations():
    with pytest.raises(ValueError, match="q0 must have 1 axis"):
        jax.jit(lambda q0: run(q0=q0).q)(jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"q0 and u0 must have one shape"):
        jax.vmap(lambda q0: run(q0=q0).q)(jnp.zeros((3, 4)))
    with pytest.raises(TypeError, match="floating dtype"):
        jax.jit(lambda q0: run(q0=q0).q)(jnp.zeros(2, int))
    with pytest.raises(TypeError, match="dt decides the number of steps, got a traced value"):
        jax.jit(lambda dt: run(dt=dt).q)(0.01)
    with pytest.raises(TypeError, match="t1 decides"):
        jax.grad(lambda t1: run(t1=t1).q[-1, 0])(0.05)


def test_traced_times_need_the_number_of_steps():
    """With it all checks that need no time are still made, and those that need it come as an outcome."""
    ends = jax.jit(jax.vmap(lambda dt: run(t1=None, dt=dt, n_steps=5)))(jnp.array([0.01, -0.01, jnp.nan]))
    np.testing.assert_array_equal(ends.outcome[:, 0], [Outcome.SUCCESS, Outcome.INVALID_PARAMETER, Outcome.NON_FINITE])
    np.testing.assert_allclose(ends.t[0], 0.01 * np.arange(6), atol=1e-16)
    with pytest.raises(TypeError, match=r"t1 decides the number of steps, got a traced value.*or say n_steps"):
        jax.jit(lambda t1: run(t1=t1).q)(0.05)
    with pytest.raises(ValueError, match=r"Particle.mu must be finite and not negative"):
        jax.grad(lambda dt: run(Particle(mu=-1.0), t1=None, dt=dt, n_steps=5).q[-1, 0])(0.01)
    with pytest.raises(ValueError, match="mass matrix must be positive definite"):
        jax.grad(lambda t1: run(Particle(mass=0.0), t1=t1, dt=None, n_steps=5).q[-1, 0])(0.01)
    with pytest.raises(ValueError, match="t0 must be a finite number in seconds"):
        jax.jit(lambda t0: run(t1=None, n_steps=5, t0=t0).q)(jnp.zeros(2))


@pytest.mark.parametrize(
    "values, code",
    [
        ({"e_N": 1.2}, Outcome.INVALID_PARAMETER),
        ({"mu": -0.2}, Outcome.INVALID_PARAMETER),
        ({"mass": -1.0}, Outcome.INVALID_PARAMETER),
        ({"e_N": jnp.nan}, Outcome.NON_FINITE),
        ({"mu": -0.2, "mass": jnp.nan}, Outcome.INVALID_PARAMETER),  # the worst
        ({}, Outcome.SUCCESS),
    ],
)
def test_traced_parameters_outside_of_their_range_are_an_outcome(values, code):
    """An optimizer, or a member of a batch, sees them: they run without an error, and without a motion that means anything."""
    given = {"e_N": 0.5, "mu": 0.3, "mass": 1.0, **values}
    solution = _jitted(given)
    assert solution.initial_outcome == code and np.all(solution.outcome == code) and bool(solution.success) == (code == 0)
    if code == Outcome.INVALID_PARAMETER:
        with pytest.raises(jaxnsd.SimulationError, match=r"INVALID_PARAMETER at the first node.*e_N and e_F must lie in \[0, 1\].*sigmoid"):
            solution.raise_if_failed()
        with pytest.raises(ValueError, match="Particle"):
            jaxnsd.check(Particle(**given), Moreau(), Q0, U0, 0.05, 0.01)


_jitted = jax.jit(lambda given: run(Particle(**given)))


def test_a_traced_parameter_that_is_no_number_is_an_outcome_of_large_systems_too():
    """A gap that it makes no number counts as open: what fell went through the floor, and the state told nothing."""

    @jaxnsd.system
    class Rain(System):
        floor: float = 0.0

        def mass_matrix(self, t, q):
            return jnp.eye(len(q))

        def potential_energy(self, t, q):
            return 9.81 * jnp.sum(q)

        def gap(self, t, q):
            return q[:1] - self.floor

    q0 = jnp.zeros(sensitivity.SMALL + 1)
    code = jax.jit(lambda floor: jaxnsd.simulate(Rain(floor), Moreau(), q0, jnp.zeros_like(q0), 0.02, 0.01).outcome)
    np.testing.assert_array_equal(code(0.0), Outcome.SUCCESS)
    np.testing.assert_array_equal(code(jnp.nan), Outcome.NON_FINITE)


def test_a_contact_problem_with_negative_friction_is_an_outcome():
    solve = jax.vmap(lambda mu: jaxnsd.solve_contact_problem(jnp.eye(2), -jnp.ones(2), mu, d=1).outcome)
    np.testing.assert_array_equal(solve(jnp.array([0.3, -0.3, jnp.nan])), [Outcome.SUCCESS, Outcome.INVALID_PARAMETER, Outcome.NON_FINITE])


def test_a_field_mu_of_a_system_without_contacts_is_no_friction():
    """Of a star, say. Warnings are errors here."""
    Planet = jaxnsd.system(type("Planet", (System,), {"__annotations__": {"mu": float}, "mu": 0.3, "kinetic_energy": Bare.kinetic_energy}))
    run(Planet())
    jax.eval_shape(lambda mu: run(Planet(mu)), 0.3)


def test_friction_without_a_tangential_velocity_is_warned_of():
    without = {"kinetic_energy": Bare.kinetic_energy, "gap": Bare.gap}
    frictionless = variant(System, **without, mu=lambda self: 0.3)
    with pytest.warns(UserWarning, match=r"Variant.mu is positive, but without tangential_velocity\(t, q, u\) no friction acts") as record:
        jaxnsd.check(frictionless, Moreau(), Q0, U0, 0.05, 0.01)
    assert record[0].filename == __file__
    with pytest.warns(UserWarning, match="LinearSystem.mu is positive, but without G_F no friction acts"):
        run(jaxnsd.LinearSystem(np.eye(2), np.eye(2), G=np.array([[0.0], [1.0]]), mu=0.3))
    # A traced coefficient, and a known one beside what is traced.
    Slider = jaxnsd.system(type("Slider", (System,), {"__annotations__": {"mu": float, "e_N": float}, "mu": 0.0, "e_N": 0.0, **without}))
    for given, message in (({"mu": 0.3}, "Slider.mu may be positive, but without tangential"), ({"e_N": 0.3}, "Slider.mu is positive")):
        system = Slider(mu=0.3)
        with pytest.warns(UserWarning, match=message) as record:
            jax.eval_shape(lambda given, system=system: run(dataclasses.replace(system, **given)), given)
        assert record[0].filename == __file__
        # Once: what is traced may be something else, and is traced again for every derivative.
        jax.eval_shape(lambda given, system=system: run(dataclasses.replace(system, **given)), given)
    jax.eval_shape(lambda e_N: run(Slider(e_N=e_N)), 0.3)
    jax.eval_shape(run, jaxnsd.LinearSystem(np.eye(2), np.eye(2), G=np.array([[0.0], [1.0]])))


def test_known_values_are_checked_under_transformations():
    with pytest.raises(ValueError, match=r"Particle.e_N must lie in"):  # whatever the state
        jax.vmap(lambda q0: run(Particle(e_N=2.0), q0=q0).q)(Q0[None])
    with pytest.raises(ValueError, match=r"Particle.mu must be finite and not negative"):
        jax.jit(lambda x: x * run(Particle(mu=-1.0)).q)(1.0)


@pytest.mark.slow
def test_no_false_alarm_under_transformations():
    good = run().q
    np.testing.assert_allclose(jax.jit(lambda q0: run(q0=q0).q)(Q0), good, atol=1e-15)
    # Checks are made while a program is traced, so that it need not be compiled.
    jax.eval_shape(jax.vmap(lambda q0: run(q0=q0).q), Q0[None])
    jax.eval_shape(lambda x: x * run().q, 1.0)  # all known inside a transformation
    jax.eval_shape(jax.grad(lambda system: run(system).q[-1, 0]), Particle())
    jax.eval_shape(jax.vmap(lambda mu: run(Particle(mu=mu)).q), jnp.array([0.0, 0.5]))
    # What cannot be known is not checked: the run reports it by its outcome.
    jax.eval_shape(lambda mu: run(Particle(mu=mu)).q, -1.0)


def test_what_is_sensible_passes():
    passes(q0=list(Q0), u0=tuple(U0))
    passes(q0=jnp.asarray(Q0), t1=1, dt=np.float64(0.25))
    passes(t1=0.7, dt=0.1)  # 0.7 / 0.1 is not 7 in binary
    passes(Particle(mass=np.float64(1.0), mu=jnp.asarray(0.2), e_N=[0.5], e_F=np.array([0.1])))
    passes(q0=np.array([0.0, -1e-3]))  # as deep as one step of an event-capturing scheme goes
    passes(variant(Bare, constraint=lambda self, t, q: q[:1]), q0=np.array([1e-9, 1.0]), u0=np.zeros(2))


def test_whole_numbers_of_any_kind():
    for steps, every, group in (map(jnp.asarray, (6, 2, 3)), (np.int32(6), np.asarray(2), np.uint8(3))):
        given = {"n_steps": steps, "save_every": every, "checkpoint": group}
        ran = jax.eval_shape(lambda given=given: run(t1=None, **given))
        assert ran.q.shape == (4, 2) and type(ran.save_every) is int
    for name in ("n_steps", "save_every", "checkpoint"):
        with pytest.raises(TypeError, match=f"{name} must be known when the run is traced, got a traced value.*a Python integer"):
            jax.jit(lambda n, name=name: run(t1=None, **{"n_steps": 6, name: n}))(2)


def test_a_batch_that_does_not_fit_into_memory_is_refused_before_it_is_compiled(monkeypatch):
    """Of 20 steps a row holds 9 numbers: 1.5 kB a run, which fits twice into 4 kB."""
    monkeypatch.setattr(checks, "available_memory", lambda: 4000)
    batch = jax.jit(jax.vmap(lambda mu: run(Particle(mu=mu), t1=0.2).q[-1]))
    batch.lower(jnp.zeros(2))
    for derivative in (batch, jax.jit(jax.vmap(jax.grad(lambda mu: run(Particle(mu=mu), t1=0.2).q[-1, 0] ** 2)))):
        with pytest.raises(ValueError, match=r"the trajectories of a batch must fit into memory, got .* GiB available.*save_every"):
            derivative.lower(jnp.zeros(50))


def test_float32_warns_once(monkeypatch):
    monkeypatch.setattr(checks, "_warned_float32", False)
    state = {"q0": Q0.astype(np.float32), "u0": U0.astype(np.float32)}
    with pytest.warns(UserWarning, match="float32.*jax_enable_x64") as record:
        solution = run(**state)
    record = [warning for warning in record if "float32" in str(warning.message)]  # JAX may warn of its cache
    assert len(record) == 1 and record[0].filename == __file__ and solution.q.dtype == jnp.float32
    run(**state)  # a second warning would be an error here


def test_steps_that_cannot_be_counted_are_refused(monkeypatch):
    """Without double precision JAX counts up to 2^31; times of later steps were negative, with success."""
    monkeypatch.setattr(checks, "_warned_float32", True)
    state = {"q0": Q0.astype(np.float32), "u0": U0.astype(np.float32)}
    with enable_x64(False), pytest.raises(ValueError, match=r"up to 2147483647 steps, got 3000000000; .*x64"):
        simulate(Particle(), Moreau(), *state.values(), n_steps=3 * 10**9, dt=1e-3, save_every=10**9)
    with pytest.raises(ValueError, match=r"up to 9223372036854775807 steps, got 9223372036854775808$"):
        simulate(Particle(), Moreau(), Q0, U0, n_steps=2**63, dt=1e-3, save_every=2**60)


def test_repeated_calls_do_not_trace_again():
    calls = []

    @jaxnsd.system
    class Counting(Bare):
        mass: float = 1.0

        def force(self, t, q, u):
            calls.append(1)
            return -self.mass * u

    run(Counting())
    before = len(calls)
    for mass in (1.0, 2.0):
        run(Counting(mass), q0=mass * Q0)
    assert len(calls) == before


#: Three entries, and the one that is read in any case.
Q3, SURE = jnp.arange(3.0), "3"


@pytest.mark.parametrize(
    "function, entry",
    [
        (lambda q: jax.lax.fori_loop(0, 4, lambda i, s: s + q[i], 0.0), 3),
        (lambda q: jax.lax.fori_loop(0, 3, lambda i, s: s + q[i], 0.0), None),
        (lambda q: jax.lax.fori_loop(0, 3, lambda i, s: s + q[i + 1] - q[i], 0.0), 3),
        (lambda q: jax.lax.fori_loop(0, 2, lambda i, s: s + q[i + 1] - q[i], 0.0), None),
        (lambda q: jax.lax.fori_loop(0, jnp.asarray(q[0], int), lambda i, s: s + q[i], 0.0), None),
        (lambda q: jax.lax.fori_loop(0, jnp.asarray(q[0], int), lambda i, s: s + q[5], 0.0), 5),
        (lambda q: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 2, c[1] + q[c[0]]), (0, 0.0)), 4),
        (lambda q: jax.lax.while_loop(lambda c: c[1] < 9, lambda c: (c[0], c[1] + q[c[0]]), (3, 0.0)), 3),
        (lambda q: jax.lax.scan(lambda s, i: (s + q[i], q[2 - i]), 0.0, jnp.arange(3)), None),
        (lambda q: jax.lax.scan(lambda s, i: (s + q[i], q[3 - i]), 0.0, jnp.arange(3), reverse=True), 3),
        (lambda q: jax.vmap(lambda i: q[i])(jnp.arange(4)), 3),
        (lambda q: jax.vmap(lambda i: q[i] - q[(i + 1) % 3])(jnp.arange(3)), None),
        (lambda q: jax.vmap(lambda i: q[jnp.minimum(i, 2)])(jnp.arange(4)), None),
        (lambda q: jax.lax.cond(q[0] > 0, lambda: q[3], lambda: q[0]), 3),
        (lambda q: jax.lax.cond(q.shape[0] > 3, lambda: q[3], lambda: q[0]), None),
        (lambda q: jax.lax.switch(jnp.asarray(q[0], int), [lambda: q[0], lambda: q[1], lambda: q[-4]]), -4),
        (lambda q: jax.jit(lambda q, i: q[i])(q, jax.jit(lambda i: i + 1)(2)), SURE),
        (lambda q: jax.lax.map(lambda k: jax.checkpoint(lambda q: q[k])(q), jnp.array([0, 7])), 7),
        (lambda q: q[jnp.argmax(q) + 1], None),
        # What the line says itself; of the same equations those that say nothing.
        (lambda q: q.at[3].set(0.0, mode="drop"), None),
        (lambda q: q.at[3].set(0.0), SURE),
        (lambda q: q.at[jnp.array([0, 3])].add(1.0, mode="clip"), None),
        (lambda q: q.at[jnp.array([0, 3])].add(1.0), SURE),
        (lambda q: jnp.take(q, jnp.array([0, 3]), mode="clip"), None),
        (lambda q: q.at[jnp.array([3])].get(mode="fill", fill_value=0.0), None),
        (lambda q: jax.vmap(lambda i: q[i])(jnp.array([0, 3])), SURE),
        (lambda q: jax.ops.segment_sum(q, jnp.array([0, 1, 3]), num_segments=3), None),
        (lambda q: jnp.bincount(jnp.array([0, 1, 3]), weights=q, length=3), None),
    ],
)
def test_indices_that_loops_and_branches_count(function, entry):
    surely = entry == SURE
    entry = 3 if surely else entry
    """JAX clamps them; what an index may be where it depends on values is not known. What is read there may be left out: no refusal."""
    found = indices.out_of_bounds(jax.make_jaxpr(function)(Q3))
    if entry is None:
        assert found is None
    else:
        text, in_any_case = found
        assert text.startswith(f"entry {entry} of an axis of 3 entries") and in_any_case == surely


def test_what_a_loop_leaves_out_is_warned_of():
    """A key, too, is no index."""
    key = jax.random.key(0)

    def potential(self, t, q):
        pairs = jax.lax.fori_loop(0, 2, lambda i, s: s + jnp.where(i < 1, q[i + 1] - q[i], 0.0), 0.0)
        return pairs**2 + 0 * jax.random.uniform(key)

    variant = jaxnsd.system(type("Variant", (Particle,), {"potential_energy": potential}))
    with pytest.warns(
        UserWarning, match="Variant.potential_energy may leave its arrays in a loop or a branch: got entry 2 of an axis of 2"
    ):
        simulate(variant(), Moreau(), jnp.array([0.0, 1.0]), jnp.zeros(2), 0.01, 0.01)


FORK = """
import os, sys, jax, jax.numpy as jnp, jaxnsd
from jaxnsd.models import BouncingBall

def check():
    jaxnsd.check(BouncingBall(), jaxnsd.Moreau(), jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32), 0.1, 0.01)

check()
if os.fork() == 0:
    try:
        check()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
check()
print("the parent goes on")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_after_a_run_is_refused():
    """It would wait for ever. The process that it came from goes on."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    child, parent = done.stdout.splitlines()
    assert child.startswith("simulate: this process was forked after a run") and 'get_context("spawn")' in child
    assert parent == "the parent goes on"
