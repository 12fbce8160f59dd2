"""Reductions of an ensemble: the numbers of NumPy on all members at once, however they are cut and merged; intervals that cover."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxnsd import ensemble
from jaxnsd.ensemble import sketch

RNG = np.random.default_rng(0)
DATA = {"a": RNG.normal(3.0, 2.0, 1000), "b": RNG.gamma(2.0, size=(1000, 2, 3)), "hit": RNG.random(1000) < 0.03}


def reduced(reduction, data=DATA, cuts=(0, 1, 300, 301, 700, 1000)):
    """Result of chunks with these bounds."""
    pieces = [(jax.tree.map(lambda x, i=i, j=j: x[i:j], data), np.arange(i, j)) for i, j in itertools.pairwise(cuts)]
    return reduction.finish(functools.reduce(reduction.merge, [reduction.chunk(*piece) for piece in pieces]))


def test_moments_and_covariance_are_those_of_all_members():
    moments = reduced(ensemble.Moments())
    for name, x in DATA.items():
        assert_allclose(moments.mean[name], x.mean(axis=0), rtol=1e-13)
        assert_allclose(moments.variance[name], x.var(axis=0, ddof=1), rtol=1e-12)
        assert_allclose(moments.standard_error[name], x.std(axis=0, ddof=1) / np.sqrt(1000), rtol=1e-12)
    # A large mean does not eat the variance.
    assert_allclose(reduced(ensemble.Moments(), DATA["a"] + 1e8).variance, DATA["a"].var(ddof=1), rtol=1e-7)
    covariance = reduced(ensemble.Covariance())
    rows = np.concatenate([DATA[name].reshape(1000, -1) for name in ("a", "b", "hit")], axis=1)
    assert covariance.names == ("a", *(f"b[{i}][{j}]" for i in range(2) for j in range(3)), "hit")
    assert_allclose(covariance.covariance, np.cov(rows.T), rtol=1e-10, atol=1e-14)
    assert_allclose(covariance.correlation, np.corrcoef(rows.T), rtol=1e-10, atol=1e-12)
    alone = reduced(ensemble.Moments(of="a"), cuts=(0, 1))
    assert alone.mean == DATA["a"][0] and np.isnan(alone.variance)


def test_moments_and_quantiles_are_printed_as_tables():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    text = repr(reduced(ensemble.Moments(), {"x": x, "q": np.stack([x, 10 * x], axis=1)}, (0, 1, 4)))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["4", "members", "mean", "standard", "error", "deviation"]
    assert lines[1:] == [["q[0]", "2.5", "0.645497", "1.29099"], ["q[1]", "25", "6.45497", "12.9099"], ["x", "2.5", "0.645497", "1.29099"]]
    text = repr(reduced(ensemble.Quantiles([0.25, 0.5, 1]), {"x": x}, (0, 1, 4)))
    assert [line.split() for line in text.splitlines()] == [["4", "members", "25", "%", "50", "%", "100", "%"], ["x", "1", "2", "4"]]
    assert "and 970 more numbers" in repr(reduced(ensemble.Moments(), np.ones((4, 1000)), (0, 4)))
    assert "observed" in repr(reduced(ensemble.Moments(), x, (0, 4))) and len({*map(len, text.splitlines())}) == 1


def test_histogram_and_extremes():
    edges = np.linspace(0, 5, 11)
    histogram = reduced(ensemble.Histogram(edges, of="b"))
    for i, j in np.ndindex(2, 3):
        assert_array_equal(histogram.counts[i, j], np.histogram(DATA["b"][:, i, j], edges)[0])
    assert_array_equal(histogram.counts.sum(-1) + histogram.below + histogram.above, 1000)
    assert_allclose((histogram.density * 0.5).sum(-1), 1 - histogram.above / 1000)
    odd = reduced(ensemble.Histogram([0.0, 1.0, 2.0]), np.array([np.nan, -1.0, 0.0, 1.0, 2.0, np.inf]), (0, 3, 6))
    assert (odd.counts.tolist(), odd.below, odd.above, odd.undefined) == ([1, 2], 1, 1, 1)
    ends = reduced(ensemble.Extremes(3, of="a"))
    order = np.argsort(DATA["a"])
    assert_array_equal(ends.smallest_index, order[:3])
    assert_array_equal(ends.largest_index, order[::-1][:3])
    assert_array_equal(ends.largest, DATA["a"][order[::-1][:3]])
    ends = reduced(ensemble.Extremes(2), np.array([np.nan, 1.0, 3.0, 3.0]), (0, 2, 4))
    assert_array_equal((ends.largest_index, ends.smallest_index), ([2, 3], [1, 2]))
    # Infinite values are values, NaN is none.
    ends = reduced(ensemble.Extremes(2), np.array([np.nan, np.inf, np.nan, -np.inf, np.inf]), (0, 2, 5))
    assert_array_equal((ends.smallest_index, ends.largest_index), ([3, 1], [1, 4]))
    ends = reduced(ensemble.Extremes(2), np.array([np.nan, np.inf, np.nan]), (0, 2, 3))
    assert_array_equal((ends.smallest_index, ends.largest_index), ([1, 0], [1, 0]))


def test_arrays_without_a_number():
    """An observation may be empty."""
    data = {"a": DATA["a"], "none": np.zeros((1000, 0))}
    for reduction in (ensemble.Moments(), ensemble.Covariance(), ensemble.Quantiles((0.5,)), ensemble.Extremes(2)):
        reduced(reduction, data)
    quantiles = reduced(ensemble.Quantiles((0.5,)), data)
    assert quantiles.values["none"].shape == quantiles.interval()[0]["none"].shape == (1, 0)
    assert reduced(ensemble.Histogram([0.0, 1.0], of="none"), data).counts.shape == (0, 1)


def test_own_reductions_are_checked():
    largest = ensemble.Associative(lambda x: np.max(x["a"]), np.maximum, lambda x: float(x))
    largest.check(DATA, 1000)
    assert reduced(largest) == DATA["a"].max()
    norm = ensemble.Associative(lambda x: np.sum(x**2), np.add, np.sqrt, of="a")
    norm.check(DATA, 1000)
    assert_allclose(reduced(norm), np.linalg.norm(DATA["a"]))
    with pytest.raises(ValueError, match="combine is not associative"):
        ensemble.Associative(np.sum, np.subtract, of="a").check(DATA, 1000)
    with pytest.raises(ValueError, match="do not combine to the state of the whole"):
        ensemble.Associative(np.mean, np.maximum, of="a").check(DATA, 1000)

    class Halves(ensemble.Reduction):
        def chunk(self, values, index):
            return values["a"].mean()

        def merge(self, a, b):
            return (a + b) / 2

    class Same(ensemble.Moments):
        """The variance of a constant is round-off; merged in place."""

        def merge(self, a, b):
            n, mean, square = super().merge(a, b)
            a[1]["a"] += 1
            return n, mean, square

    with pytest.raises(ValueError, match="Halves: merge is not associative"):
        Halves().check(DATA, 1000)
    Same().check({"a": np.full(1000, 0.1)}, 1000)
    Same().check(DATA, 1000)


@pytest.mark.parametrize("order", ["random", "grows", "falls", "ties"])
def test_quantiles_stay_within_the_error_that_they_state(order):
    n = 50_000
    x = np.random.default_rng(1).normal(size=n)
    x = {"random": x, "grows": np.sort(x), "falls": np.sort(x)[::-1], "ties": np.round(x, 1)}[order]
    p = np.linspace(0, 1, 41)
    got = reduced(ensemble.Quantiles(p, size=256), np.stack([x, x**3], axis=1), range(0, n + 1, 1000))
    assert 0 < got.rank_error < 0.02
    assert len(jax.tree.leaves(got.sketches)[0].sketch.levels) < 20
    for column, of in enumerate((x, x**3)):
        ordered, values = np.sort(of), got.values[:, column]
        # The ranks that a value has, with ties, reach to within the error of the rank asked for.
        low, high = np.searchsorted(ordered, values, side="left"), np.searchsorted(ordered, values, side="right")
        wanted = np.maximum(n // 40 * np.arange(41), 1) - 1
        assert np.all(low - wanted <= got.rank_error * n) and np.all(wanted - (high - 1) <= got.rank_error * n)
    few = reduced(ensemble.Quantiles(p, of="a"))
    assert few.rank_error == 0
    # Of 1000 members number 25 k, from 1 on: in floats k / 40 times 1000 is more than that in 15 cases, which mislead `numpy.quantile`.
    assert_array_equal(few.values, np.sort(DATA["a"])[np.maximum(25 * np.arange(41), 1) - 1])


def test_ranks_of_quantiles_are_those_of_decimal_probabilities():
    """Of n sorted numbers number ceil(p n), counted from 1 on, p n in whole numbers: in floats 0.07 times 100 is more than 7."""
    for n in (10, 100, 1000, 5000):
        percent = range(0, 101) if n >= 100 else range(0, 101, 10)
        got = reduced(ensemble.Quantiles(tuple(k / 100 for k in percent), size=8192), np.arange(float(n)), (0, n))
        assert_array_equal(got.values, [max(-(-k * n // 100), 1) - 1 for k in percent])
    assert_array_equal(reduced(ensemble.Quantiles((0.0701, 0.0699)), np.arange(100.0), (0, 100)).values, [7, 6])


def test_the_bounds_of_a_sketch_hold_for_every_rank():
    x = np.random.default_rng(2).permutation(20_000).astype(float)
    s = functools.reduce(lambda a, b: sketch.merged(a, b, 64), [sketch.of(part[:, None], 64) for part in np.split(x, 40)])
    values = np.concatenate(s.levels)[:, 0]
    weights = np.concatenate([np.full(len(level), 2**h) for h, level in enumerate(s.levels)])
    order = np.argsort(values)
    assert weights.sum() == s.n == len(x)
    error = values[order] + 1 - np.cumsum(weights[order])  # the true rank of a value v is v + 1
    assert -s.above <= error.min() and error.max() <= s.below
    assert len(values) <= 64 * len(s.levels)


def test_intervals_cover_what_they_should():
    """Of 2000 ensembles of 200 members 95 % hold the truth, to three standard errors of such a share and what asymptotics leave."""
    rng = np.random.default_rng(3)
    p = rng.random(2000)  # Wilson's interval holds its level on the average over probabilities, not for each
    x, hits = rng.normal(1.0, 2.0, (200, 2000)), rng.random((200, 2000)) < p
    intervals = {
        "mean": (reduced(ensemble.Moments(), x, (0, 200)), 1.0),
        "median": (reduced(ensemble.Quantiles((0.5,)), x, (0, 200)), 1.0),
        "share": (reduced(ensemble.Proportion(), hits, (0, 90, 200)), p),
    }
    for name, (result, truth) in intervals.items():
        low, high = (np.ravel(x) for x in result.interval(0.95))
        covered = np.mean((low <= truth) & (truth <= high))
        assert 0.93 < covered < 0.97, (name, covered)
    none = reduced(ensemble.Proportion(), np.zeros(100, bool), (0, 100))
    low, high = none.interval()
    assert low == 0 and 0.02 < high < 0.05


@pytest.mark.parametrize("n", [1, 5, 20, 1000])
def test_intervals_of_quantiles_hold_their_level_for_any_number_of_members(n):
    """By the binomial distribution, exactly: the ranks of the bounds are those of members that are their own numbers."""
    p = np.array([0.0, 0.01, 0.05, 0.25, 0.5, 0.9, 0.999, 1.0])
    for level in (0.5, 0.95, 0.9999):
        low, high = reduced(ensemble.Quantiles(p), np.arange(n), (0, n)).interval(level)
        for each, a, b in zip(p.tolist(), low, high, strict=True):
            below = np.array([math.comb(n, k) * each**k * (1 - each) ** (n - k) for k in range(n + 1)])  # so many lie below the quantile
            assert np.sum(below[: max(int(max(a, -1)) + 1, 0)]) <= (1 - level) / 2 + 1e-9
            assert np.sum(below[int(min(b, n)) + 1 :]) <= (1 - level) / 2 + 1e-9
            # The next members would not do.
            assert a == n - 1 or np.sum(below[: int(max(a, -1)) + 2]) > (1 - level) / 2 - 1e-9
            assert b == 0 or np.sum(below[int(min(b, n)) :]) > (1 - level) / 2 - 1e-9
    low, high = reduced(ensemble.Quantiles((0.05,)), np.arange(20), (0, 20)).interval()
    assert low == -np.inf and high == 3
