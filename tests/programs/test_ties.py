"""Derivatives of maxima: which of several numbers is the largest does not hang on how often one of them was computed, and rounded."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import CartesianPendulum
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import Lobatto, simulate
from jaxnsd.programs import runs

#: The length of a vector of the plane, in ways that take maxima: `jax.grad` of each compares.
LENGTHS = {
    "hypot": lambda q: jnp.hypot(q[0], q[1]),
    "of an array": lambda q: jnp.max(jnp.abs(q)) * jnp.sqrt(1 + (jnp.min(jnp.abs(q)) / jnp.max(jnp.abs(q))) ** 2),
    "clipped": lambda q: jnp.sqrt(jnp.sum(jnp.clip(q, -9.0, 9.0) ** 2)),
}


def smooth(q):
    """The same, without any."""
    return jnp.sqrt(q[0] ** 2 + q[1] ** 2)


def lowered(function, *args):
    """``function`` as a program of `runs`, and its text."""
    program = jax.jit(lambda *args: runs.run(lambda args: function(*args), args, lockstep=True))
    return program, program.lower(*args).as_text()


def of_extremes(text):
    """Comparisons for equality, in a program, with a maximum or minimum of what is compared; the operands of each."""
    made = {}
    for line in text.splitlines():
        if "func.func" in line:
            made = {}
        if found := re.match(r"\s*(%\w+)(?::\d+)? = (?:stablehlo\.)?(\w+)(.*)", line):
            name, kind, rest = found.groups()
            made[name] = kind, re.findall(r"%\w+", rest), line
            if kind == "compare" and " EQ, " in line and "FLOAT" in line:
                operands = made[name][1]
                for x, y in (operands, operands[::-1]):
                    while made.get(y, ("",))[0] in ("broadcast_in_dim", "reshape"):
                        y = made[y][1][0]
                    kind_y, given, line_y = made.get(y, ("", [], ""))
                    extreme = kind_y in ("maximum", "minimum") or "maximum" in line_y or "minimum" in line_y
                    if extreme and x in given:
                        yield line


@pytest.mark.slow
@pytest.mark.oldest
def test_no_program_asks_whether_a_number_equals_the_largest():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(50, 2)))
    compared = []
    for name, length in LENGTHS.items():
        one = lambda q, length=length: (jax.jacfwd(length)(q), jax.grad(length)(q), jax.hessian(length)(q))  # noqa: E731
        text = jax.jit(jax.vmap(one)).lower(q).as_text()
        compared += [name] if list(of_extremes(text)) else []
        program, text = lowered(jax.vmap(one), q)
        assert not list(of_extremes(text)), name
        for found, exact in zip(program(q), jax.vmap(lambda q: (*(jax.grad(smooth)(q),) * 2, jax.hessian(smooth)(q)))(q), strict=True):
            assert_allclose(found, exact, rtol=1e-12, atol=1e-14, err_msg=name)
    # JAX 0.12 asks of two numbers which is the larger by itself; of the largest of many it asks for equality still.
    assert "of an array" in compared, "nothing is compared, so nothing is tested"


def test_where_several_are_the_largest_they_share_the_derivative():
    def largest(x):
        return jnp.maximum(x[0], x[1]) + jnp.min(x) + jnp.max(jnp.stack([x, x]), axis=(0, 1))

    def both(x):
        return jax.grad(largest)(x), jax.jacfwd(largest)(x)

    for x in (jnp.array([1.0, 1.0, 1.0]), jnp.array([1.0, 1.0, 0.5]), jnp.array([0.2, 1.0, 0.5])):
        program, _ = lowered(both, x)
        for found in program(x):
            assert_array_equal(found, jax.grad(largest)(x))


@jaxnsd.system
class Rod(CartesianPendulum):
    """The pendulum on a wall, with the length of its rod by one of the formulas."""

    formula: str = jaxnsd.static(default="hypot")

    def constraint(self, t, q):
        return jnp.stack([(LENGTHS | {"smooth": smooth})[self.formula](q) - self.length])


@pytest.mark.slow
def test_a_constraint_with_maxima_is_solved_in_as_many_steps_as_a_smooth_one():
    # The wall is hit in step 104, x passes zero there; starts that differ by round-off make other bits of everything.
    def run(formula, k):
        system = Rod(formula=formula)
        q0, u0 = system.initial_state()
        sol = simulate(system, Lobatto(stages=3), q0 * (1 + 1e-13 * k), u0, 0.55, 5e-3)
        return sol.outcome, sol.iterations, sol.q[-1]

    k = jnp.arange(-20.0, 20.0)
    outcome, expected, end = jax.jit(jax.vmap(lambda k: run("smooth", k)))(k)
    assert not np.any(outcome)
    for formula in LENGTHS:
        outcome, iterations, found = jax.jit(jax.vmap(lambda k, formula=formula: run(formula, k)))(k)
        assert not np.any(outcome), formula
        assert np.max(np.abs(iterations - expected)) <= 1, formula
        assert_allclose(found, end, rtol=0, atol=1e-9, err_msg=formula)


def test_constants_of_what_is_changed_inside_of_a_checkpoint_are_handed_to_it():
    """A maximum of many is settled by an array that is counted through: it comes from outside."""

    @jax.checkpoint
    def loss(x):
        return jnp.sum(jnp.max(jnp.sin(x) * jnp.arange(3.0)) ** 2)

    x = jnp.array([0.3, 0.2, 0.7])
    program, text = lowered(jax.grad(loss), x)
    assert not list(of_extremes(text))
    assert_allclose(program(x), jax.grad(loss)(x), rtol=1e-14)
