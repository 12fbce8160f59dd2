"""Native code of several members of a batch at once, each in a lane of vector registers: against XLA, and against one at a time."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from test_native import EDGES, ONE, TWO, drawn

import jaxnsd
from jaxnsd import models, native

pytest.importorskip("llvmlite")

from jaxnsd.native import control, lanes, members
from jaxnsd.native.marks import in_memory, when_needed


@pytest.fixture(autouse=True)
def _native(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXNSD_NATIVE", "1")
    monkeypatch.setenv("JAXNSD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(control, "SHARED", 0)
    # Without optimization LLVM rounds products before they are added, but for vectors.
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def mapped(function, *args):
    """The results for members one after the other, by native code, and how many of its loops over members have lanes."""
    together, made = [], members._together

    def counted(*args):
        inner = made(*args)
        together.append(inner is not None)
        return inner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "_together", counted)
        closed = jax.make_jaxpr(lambda *args: jax.lax.map(lambda x: jax.tree.leaves(function(*x)), args))(*args)
        call = native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals)
    assert call is not None
    return jax.jit(call)(*args), sum(together)


def compare(function, *args, rtol=1e-12, alike=True):
    """Members in lanes, by XLA, and one at a time: with the same bits where they are ``alike``."""
    ours, used = mapped(function, *args)
    assert used
    expected = jax.tree.leaves(jax.jit(lambda *args: jax.lax.map(lambda x: function(*x), args))(*args))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "LARGEST", 0)
        alone, used = mapped(function, *args)
    assert not used
    for x, y, z in zip(ours, expected, alone, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        eps = rtol if x.dtype != jnp.float32 else 1e-5
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=eps, atol=eps)
        if alike:
            np.testing.assert_array_equal(x, z)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_edge_values(dtype):
    """Every operation of one or two numbers at zeros of both signs, infinities and NaN; the order of tables as well."""
    with np.errstate(over="ignore"):
        x = jnp.asarray(np.asarray([*EDGES, -np.nan]).astype(dtype))
    a, b = (jnp.ravel(m) for m in jnp.meshgrid(x, x))
    orders = [getattr(jax.lax, name).bind for name in ("lt_to_p", "le_to_p") if hasattr(jax.lax, name)]
    compare(lambda a, b: [f(a) for f in ONE] + [f(a, b) for f in [*TWO, jnp.arctan2, *orders]], a, b)
    compare(lambda a, b: [jnp.where(a > b, a, 0.0), jnp.maximum(a, 1.0), (a > b) & (b > 0), ~(a < b), (a > 0) * 2], a, b)
    compare(lambda x: [x.astype(t) for t in (jnp.int32, jnp.uint8, jnp.int64, bool, jnp.float32, jnp.float64)], x)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int64, jnp.uint32])
def test_whole_numbers(dtype):
    """Division and remainder by zero and at the ends of the range, shifts beyond the width, conversions."""
    limits = np.iinfo(dtype)
    values = [0, 1, 7, limits.max, limits.min, *([-1, -7] if limits.min else [])]
    a, b = (jnp.ravel(m) for m in jnp.meshgrid(*[jnp.array(values, dtype)] * 2))
    names = "add sub mul div rem max min bitwise_xor bitwise_and lt ge shift_left shift_right_logical shift_right_arithmetic"
    binary = [getattr(jax.lax, name) for name in names.split(" ")]
    compare(lambda a, b: [f(a, b) for f in binary] + [jnp.sign(a), jnp.abs(a), ~a, -a, a * 3, a.astype(float), a.astype(bool)], a, b)


BATCH = jnp.outer(jnp.linspace(-1, 2, 19), jnp.linspace(0.5, 1.5, 12))


def test_members_go_their_own_ways():
    """Branches and loops that members take for themselves, within each other, and what is written to memory in them."""

    def function(x):
        def deep(x):
            inner = jax.lax.cond(x[1] > 0.4, lambda x: x.at[2].set(5.0), lambda x: jnp.flip(x), x)
            return jax.lax.while_loop(lambda y: jnp.sum(y) > 3, lambda y: 0.7 * y - 0.01 * y[0], inner)

        y = jax.lax.cond(x[0] > 0, deep, lambda x: -x, x)
        z = jax.lax.switch(jnp.int32(x[0] * 3), [lambda x: x, lambda x: jnp.cumsum(x), lambda x: x * x, lambda x: jnp.roll(x, 1)], x)
        n = jnp.int32(jnp.abs(x[0]) * 5)
        sums = jax.lax.fori_loop(0, n, lambda i, s: s.at[i].add(x[i % 12] * s[0] + 1), jnp.ones(30))
        return y, z, sums, n, x[0] > 0.5

    compare(function, BATCH)
    # Large arrays in memory: those that a branch, or a pass, does not change stay.
    large = jnp.outer(jnp.linspace(-1, 2, 19), jnp.linspace(0.5, 1.5, 700))

    def of_large(x):
        y = jax.lax.cond(x[0] > 0, lambda x: x.at[:3].set(7.0) * x[1], lambda x: x[::-1] + x, x)
        return jax.lax.while_loop(lambda y: y[0] * y[5] < 0.3, lambda y: (y + 0.1).at[jnp.int32(y[0] * 3)].set(0.5), y), jnp.sum(y)

    compare(of_large, large, alike=False)  # a long sum has another order


def test_places_of_their_own():
    """Slices, gathers, scatters, sorting, tables and pivots at places that depend on the member."""

    def function(x):
        i = jnp.int32(x[0] * 4)
        part = jax.lax.dynamic_slice(x, (i,), (4,))
        new = jax.lax.dynamic_update_slice(x, part * 2, (2 * i,))
        many = jnp.zeros(12).at[jnp.array([1, 2, 3]) * i].add(x[:3])
        known = jnp.arange(40.0)[jnp.clip(3 * i, 0, 39)]
        order = jnp.argsort(x * jnp.cos(7 * x))
        A = jnp.outer(x[:6], x[6:]) + jnp.diag(x[:6] + 3)
        return part, new, many, known, x[order], jnp.argmax(jnp.cos(9 * x)), jnp.linalg.solve(A, x[:6]), jnp.interp(x[0], x, x * x)

    compare(function, BATCH, alike=False, rtol=1e-9)
    inverse = functools.partial(jaxnsd.numerics.linalg._inverse, guard=True, sought=True)
    rng = np.random.default_rng(0)
    matrices = jnp.asarray(rng.normal(size=(19, 5, 14)))
    compare(lambda A: inverse(A.T @ A + 0.1 * jnp.eye(14)), matrices, rtol=1e-9, alike=False)
    compare(lambda A: inverse(A.T @ A)[:0], matrices)
    compare(lambda x: in_memory(lambda x: jnp.outer(jnp.sort(x), jnp.cos(x)))(x), BATCH)


def test_what_a_branch_has_written_is_of_its_members_alone():
    """An array that a small branch has put into memory, for those that take it, is put there again for what comes after."""

    def function(x):
        i = jnp.int32(x[0] * 4) % 12
        table = jnp.cos(x)
        first = jax.lax.cond(x[0] > 0.3, lambda: table[i], lambda: 0.0)
        return first, table[(i + 3) % 12], jax.lax.cond(x[0] > 0.3, lambda: 0.0, lambda: table[i])

    compare(function, BATCH)


def test_what_is_needed_by_some_members():
    """What is compiled when it is needed is called for the members that need it; what tells Python does so once for each member."""

    def long(x):
        for _ in range(60):
            x = 0.9 * x + 0.01 * x**2
        return x, jnp.sum(x) > 1

    def function(x):
        y, large = jax.lax.cond(x[0] > 0.3, when_needed(long), lambda x: (x, x[0] > 5), x)
        return y, large

    compare(function, BATCH)
    told = []

    def tells(x):
        jax.lax.cond(x[0] > 0, lambda: jax.debug.callback(lambda x: told.append(float(x)), x[0]), lambda: None)
        return x + 1

    mapped(tells, BATCH)
    jax.effects_barrier()
    assert sorted(told) == sorted(float(x) for x in BATCH[:, 0] if x > 0)


def branching(rng, depth=3):
    """A function of a vector made of random branches, loops and places, within each other."""
    size, kinds = int(rng.choice([6, 30, 600])), rng.integers(0, 9, 5)
    parts = [branching(rng, depth - 1)[0] if depth and kind in (0, 1, 2, 3) else None for kind in (*kinds, 0)]
    numbers = rng.uniform(-1, 1, (5, 3))

    def function(x):
        for kind, part, (a, b, c) in zip(kinds, parts, numbers, strict=False):
            i = jnp.int32(jnp.abs(x[0]) * 9 + 5 * b) % len(x)
            part = part or (lambda x, c=c: 0.7 * jnp.roll(x, 1) + c)
            if kind == 0:
                x = jax.lax.cond(x[1] > a, part, lambda x: x.at[2].add(0.1), x)
            elif kind == 1:
                table, y = jnp.cos(x), x
                x = x.at[0].set(jax.lax.cond(y[0] > b, lambda: table[i], lambda: 0.5 * c)) + table[(i + 2) % len(y)]  # noqa: B023
            elif kind == 2:
                x = jax.lax.switch(i % 3, [part, lambda x: x[::-1], lambda x, a=a: x * a], x)
            elif kind == 3:
                x = jax.lax.fori_loop(0, i % 4, lambda _, x: 0.5 * part(x) + 0.1, x)  # noqa: B023
            elif kind == 4:
                x = jax.lax.while_loop(lambda x: jnp.sum(x * x) > 2, lambda x: (0.6 * x).at[1].add(0.01 * x[3]), x)
            elif kind == 5:
                x = jax.lax.dynamic_update_slice(x, x[:3] * b, (i,))
            elif kind == 6:
                x = x.at[i].set(a).at[(i + 1) % len(x)].multiply(c)
            elif kind == 7:
                x = x + jnp.sort(x)[i] * c
            else:
                x = jnp.tanh(x) + jnp.argmax(x) * 0.01
        return x

    return function, jnp.outer(jnp.linspace(-1, 1.5, 13), jnp.linspace(0.5, 1.5, size))


def branches(seeds):
    """As one at a time, by native code, and by XLA, but for members whose last bits decide on which way they go."""
    for seed in seeds:
        function, x = branching(np.random.default_rng(seed))
        x = jnp.sin(5 * x) + x
        (ours,), used = mapped(function, x)
        assert used
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(members, "LARGEST", 0)
            (alone,), _ = mapped(function, x)
        np.testing.assert_allclose(ours, alone, rtol=1e-9, atol=1e-9)
        by_xla = np.asarray(jax.jit(lambda x: jax.lax.map(function, x))(x))  # noqa: B023
        assert np.sum(np.any(np.abs(ours - by_xla) > 1e-9, axis=1)) <= 2


def test_drawn_branches():
    branches(range(4))


@pytest.mark.slow
def test_many_drawn_branches():
    branches(range(4, 12))


@pytest.mark.long
def test_hundreds_of_drawn_branches():
    branches(range(12, 300))


def campaign(seeds):
    for seed in seeds:
        function, A, x = drawn(np.random.default_rng(seed))
        scale = jnp.linspace(0.4, 1.3, 11)
        compare(lambda s: function(s * A, x / s), scale, rtol=1e-8, alike=False)  # noqa: B023


def test_drawn_functions():
    campaign(range(6))


@pytest.mark.slow
def test_many_drawn_functions():
    campaign(range(6, 26))


def test_members_do_not_depend_on_each_other():
    """A member has the same bits whoever goes on beside it, one without a solution included, and few or many, on one thread or several."""
    system = models.RotatingBall()
    q0, u0 = (jnp.asarray(x, float) for x in system.initial_state())

    def run(u0):
        sol = jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, n_steps=400, dt=1e-3)
        return sol.q, sol.u, sol.P_N, sol.outcome

    starts = u0[None] + 0.3 * jnp.asarray(np.random.default_rng(0).normal(size=(27, len(u0))))
    many = jax.jit(jax.vmap(run))
    whole = many(starts)
    for order in (np.arange(27)[::-1], np.random.default_rng(1).permutation(27)):
        for x, y in zip(whole, many(starts[order]), strict=True):
            np.testing.assert_array_equal(np.asarray(x)[order], y)
    for x, y in zip(whole, many(starts.at[4].set(jnp.nan)), strict=True):
        np.testing.assert_array_equal(np.delete(x, 4, 0), np.delete(y, 4, 0))
    for x, y in zip(whole, jax.jit(run)(starts[3]), strict=True):
        np.testing.assert_array_equal(x[3], y)


def test_what_has_no_lanes_is_computed_one_by_one():
    """Fewer members than lanes, and what is too large, are compiled as before."""
    assert not mapped(lambda x: jnp.sin(x), BATCH[: lanes.LANES - 1])[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "ROOM", 1000)
        assert not mapped(lambda x: jnp.cumsum(jnp.outer(x, x).ravel()), BATCH[:, :30])[1]
