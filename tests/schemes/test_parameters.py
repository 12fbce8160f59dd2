"""Parameters of schemes: NumPy's numbers are numbers, all else gets a sentence that says what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import HHT, GeneralizedAlpha, Lobatto, LocatedImpacts, MoreauJean, Newmark
from jaxnsd.numerics import butcher


def test_numbers_of_numpy_are_numbers():
    assert Lobatto(np.int64(3)) == Lobatto(3) and hash(Lobatto(np.int64(3))) == hash(Lobatto(3))
    assert LocatedImpacts(Lobatto(3), np.int32(2)).max_impacts == 2
    assert MoreauJean(theta=np.float32(0.5)) == MoreauJean(theta=0.5) and type(MoreauJean(theta=np.float64(0.6)).theta) is float
    assert MoreauJean(theta=1) == MoreauJean(theta=1.0)
    assert GeneralizedAlpha(rho_inf=np.float64(0.8)) == GeneralizedAlpha(0.8)


def test_a_scheme_is_shown_as_it_is_written():
    for scheme in [Lobatto(3), Lobatto(2, r=0.1), MoreauJean(), MoreauJean(2 / 3, require_closing=True), LocatedImpacts(HHT(0.1), 3)]:
        assert eval(repr(scheme), vars(jaxnsd)) == scheme
    assert repr(MoreauJean(midpoint_mass=True)) == "MoreauJean(midpoint_mass=True)"


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: Lobatto(3.0), "stages must be a whole number, got 3.0; write 3"),
        (lambda: Lobatto(2.5), "stages must be a whole number, got 2.5$"),
        (lambda: Lobatto(True), "stages must be a whole number, got True"),
        (lambda: Lobatto("3"), "stages must be a whole number, got '3'"),
        (lambda: Lobatto(None), "stages must be a whole number, got None"),
        (lambda: Lobatto(3, r="0.5"), "r must be a number, got '0.5'"),
        (lambda: LocatedImpacts(Lobatto(), 2.0), "max_impacts must be a whole number, got 2.0; write 2"),
        (lambda: MoreauJean(theta="a"), "theta must be a number, got 'a'"),
        (lambda: MoreauJean(theta=jnp.array(0.5)), r"theta must be a number, got a JAX array.*write float\(\.\.\.\)"),
        (lambda: jax.jit(lambda theta: MoreauJean(theta=theta).theta)(0.5), "theta must be a number, got a traced value.*compiled in"),
        (lambda: MoreauJean(require_closing=1), "require_closing must be True or False, got 1"),
        (lambda: Newmark("x"), "beta must be a number, got 'x'"),
        (lambda: HHT(jnp.array(0.1)), "alpha must be a number, got a JAX array"),
        (lambda: GeneralizedAlpha(rho_inf=[0.8]), r"rho_inf must be a number, got \[0.8\]"),
    ],
)
def test_what_is_no_number(make, sentence):
    with pytest.raises(TypeError, match=sentence):
        make()


@pytest.mark.parametrize("stages", [1, 6])
def test_stages_out_of_range(stages):
    with pytest.raises(ValueError, match=r"stages must be one of \(2, 3, 4, 5\), got"):
        Lobatto(stages)


@pytest.mark.parametrize("r", [0, -1.0, float("nan"), float("inf")])
def test_r_out_of_range(r):
    with pytest.raises(ValueError, match="r must be a positive number, or None"):
        Lobatto(3, r=r)


def test_order_and_equality_of_lobatto():
    assert [Lobatto(s).order for s in butcher.STAGES] == [2, 4, 6, 8]
    assert Lobatto(3) == Lobatto(stages=3) and Lobatto(3) != Lobatto(4)
