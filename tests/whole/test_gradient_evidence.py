"""The evidence that derivatives through impacts converge to those of the exact motion, at a small size; the cases are those of the example.

References: closed forms of the motion from event to event, differentiated by JAX; for the double pendulum and the woodpecker integrations
by SciPy with event location, differentiated by central differences. See `examples/gradient_evidence.py`.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from repository import load

from jaxnsd import Event

pytest.importorskip("scipy")
example = load("gradient_evidence")

LENGTH, PHASES = 3_000, 3
PENDULUM, WOODPECKER = "double pendulum, 2 impacts", "woodpecker, period by friction"
ROLLING = "plastic landing, sliding, rolling"

#: Motions with impacts whose contacts then open again, and whose flight is a parabola or a straight line.
EXACT = [
    "bouncing ball, 1 impact",
    "bouncing ball, 2 impacts",
    "bouncing ball, 3 impacts",
    "bouncing ball, 4 impacts",
    "oblique impacts with friction: slip, slip, stick",
    "oblique impacts with friction, x(T) only",
    "moving table, 3 impacts with friction",
    "two balls, impacts in one step",
    "two discs, oblique",
]
#: Motions in which contacts stay closed, slide and stick.
REST, ACCUMULATION, REVERSAL = (
    "plastic landing, sliding to rest",
    "accumulation point, sliding to rest",
    "sliding that reverses without rest",
)
CLOSED = [REST, ACCUMULATION, REVERSAL]

long = functools.partial(pytest.param, marks=pytest.mark.long)


@functools.cache
def case(name):
    return next(case for case in example.cases() if case.name == name)


@functools.cache
def errors(name, kind):
    """Errors with the two larger of the case's step sizes."""
    return example.errors(case(name), kind, case(name).steps[:2], PHASES, LENGTH)


def order(values):
    """Observed order, from steps a factor of ten apart."""
    return np.log10(values[0] / values[1])


#: One case for the fast tests: the others are steps of the same code on other motions.
QUICK = ["oblique impacts with friction: slip, slip, stick"]


def over(names, quick=QUICK):
    """Decorator: the test runs once for each of these cases, with the long tests for those that are not quick."""
    return pytest.mark.parametrize("name", [name if name in quick else long(name) for name in names])


@over([*EXACT, *CLOSED, "rolling onset", ROLLING, PENDULUM])
def test_saltation_is_of_first_order(name):
    """One bound for all cases, in proportion to the step."""
    values = errors(name, "saltation")
    assert all(value < 10 * dt for value, dt in zip(values, case(name).steps, strict=False))
    assert order(values) > 0.7


@over([*EXACT, *CLOSED, ROLLING, PENDULUM])
def test_discrete_does_not_converge(name):
    """The derivative of the steps as computed keeps its error, which is larger than that of the saltation-consistent one."""
    values = errors(name, "discrete")
    assert values[1] > 0.4 * values[0]
    assert values[1] > 5 * errors(name, "saltation")[1]


@pytest.mark.long
def test_rolling_onset_needs_no_saltation():
    """Where sliding ends in rolling the velocity is continuous and the slip ends at zero: the derivative of the steps converges."""
    np.testing.assert_allclose(errors("rolling onset", "discrete"), errors("rolling onset", "saltation"), rtol=1e-6)


@pytest.mark.slow
@over([*EXACT, REST, ROLLING, "rolling onset"], [*QUICK, REST])
def test_located_impacts_are_exact(name):
    """The Jacobian to round-off, whatever the step, through the end of sliding as well."""
    assert max(errors(name, "located")) < 1e-11


@over([ACCUMULATION], [])
def test_located_impacts_before_an_accumulation_point(name):
    """Infinitely many impacts are captured from some on, and the sliding with them."""
    values = errors(name, "located")
    assert values[0] < 0.05 and values[1] < 0.005
    assert order(values) > 0.7


@over([REVERSAL, PENDULUM], [])
def test_located_impacts_keep_the_order_of_the_scheme(name):
    """The schemes are of second order, through impacts and where sliding turns as well."""
    values = errors(name, "located")
    assert values[0] < 2e-2 and order(values) > 1.8


@pytest.mark.long
def test_woodpecker():
    """The period of a limit cycle with twelve events, by the derivative of its return map: discrete, O(1) wrong; saltation converges."""
    values = errors(WOODPECKER, "saltation")
    assert values[1] < 0.4 and order(values) > 0.7
    assert errors(WOODPECKER, "discrete")[1] > 1


@pytest.mark.long
def test_woodpecker_with_located_impacts():
    """Openings, stops and starts of sliding are located as well: of the order of the scheme."""
    values = errors(WOODPECKER, "located")
    assert values[1] < 5e-3 and order(values) > 1.6


@pytest.mark.long
def test_the_reference_of_the_woodpecker():
    """The woodpecker: the return map closes, and the period changes as it does from one limit cycle to another, by brute force."""
    z = example.limit_cycle()
    assert np.abs(example.section(z)[1]).max() < 1e-9
    periods = []
    for mu in (example.MU - 1e-3, example.MU + 1e-3):
        shifted = z
        for _ in range(3):
            J = example.differences(lambda z, mu=mu: example.section(z, mu)[1], shifted, (1e-4, 1e-3, 1e-2, 1e-2, 1e-4))
            shifted = shifted - np.linalg.solve(J, example.section(shifted, mu)[1])
        periods.append(shifted[4])
    assert (periods[1] - periods[0]) / 2e-3 == pytest.approx(case(WOODPECKER).jacobian()[0], rel=2e-3)


# ------------------------------------------------------------------------------------------------------- where it fails
@pytest.mark.parametrize(
    ("name", "event"),
    [
        long("two discs, grazing by 1e-06 of the diameter", None),
        long("corner, both walls at once (wall 1 first)", Event.SIMULTANEOUS),
        long("corner, both walls at once (wall 2 first)", Event.SIMULTANEOUS),
        long("bouncing ball, 8 impacts, 5 ms before the accumulation", Event.ACCUMULATION),
    ],
)
def test_where_no_derivative_is_to_be_had(name, event):
    """Finite, wrong by O(1) at these steps, and flagged."""
    values = errors(name, "saltation")
    assert np.all(np.isfinite(values)) and min(values) > 0.1
    if event:
        n = round(case(name).t1 / 1e-2)
        sol = example.simulated(case(name), "saltation", jnp.asarray(case(name).p), n, LENGTH)
        assert np.any(np.asarray(sol.events)[:n] & int(event))


# ------------------------------------------------------------------------------------------------------------- the script
@pytest.mark.slow
def test_script(capsys):
    assert example.main(["--quick", "--cases", "moving table"]) == 0
    head, rule, row = capsys.readouterr().out.strip().splitlines()
    assert head.count("|") == rule.count("|") == row.count("|") == 6
    assert row.startswith("| moving table, 3 impacts with friction |") and "exact" in row


def test_script_refuses(capsys):
    for arguments, words in ((["--cases", "pogo"], "no case has these words"), (["--fast"], "--fast")):
        with pytest.raises(SystemExit) as stop:
            example.main(arguments)
        out, err = capsys.readouterr()
        assert (stop.value.code, out) == (2, "") and words in err and len(err.splitlines()) == 1
