"""Native code against XLA: single operations drawn at random, control flow, whole runs and their derivatives."""

import ctypes
import functools
import gc
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
import jaxnsd.bodies
from jaxnsd import models
from jaxnsd.bodies import solids

pytest.importorskip("llvmlite")

from jaxnsd import native
from jaxnsd.native.marks import in_memory, shared, when_needed


@pytest.fixture(autouse=True)
def _native(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXNSD_NATIVE", "1")
    monkeypatch.setenv("JAXNSD_CACHE_DIR", str(tmp_path))


#: What compiled code calls, for as long as the process is there.
KEPT = []


def compare(function, *args, rtol=1e-12):
    """A function by native code and by XLA, NaN, infinities and signs of zeros included."""
    closed = jax.make_jaxpr(function)(*args)
    made = native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals)
    assert made is not None
    found, expected = jax.jit(made)(*args), jax.tree.leaves(jax.jit(function)(*args))
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        eps = rtol if x.dtype != jnp.float32 else 1e-5
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=eps, atol=eps)


EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e300, -1e-300, np.inf, -np.inf, np.nan, 3.7]
ONE = [jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.sqrt, jnp.abs, jnp.sign, jnp.floor, jnp.ceil, jnp.round]
ONE += [jnp.isfinite, jnp.isnan, jnp.square, jnp.arctan, jax.lax.rsqrt, jnp.negative, lambda x: x**3, lambda x: x**-2, jax.nn.sigmoid]
TWO = [jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.less, jnp.less_equal, jnp.equal, jnp.not_equal]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_edge_values(dtype):
    """Every operation of one or two numbers at zeros of both signs, infinities and NaN."""
    with np.errstate(over="ignore"):
        x = jnp.asarray(np.asarray(EDGES).astype(dtype))
    a, b = (jnp.ravel(m) for m in jnp.meshgrid(x, x))
    compare(lambda x, a, b: [f(x) for f in ONE] + [f(a, b) for f in [*TWO, jnp.arctan2]], x, a, b)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.int32])
def test_total_order(dtype):
    """The order of tables: zeros of both signs, infinities, NaN of both signs; `jnp.searchsorted` and `jnp.interp`, at known places too."""
    x = jnp.asarray([*EDGES, -np.nan] if dtype != jnp.int32 else [0, 3, -3, 2**31 - 1, -(2**31)]).astype(dtype)
    a, b = (jnp.ravel(m) for m in jnp.meshgrid(x, x))
    orders = [getattr(jax.lax, name) for name in ("lt_to_p", "le_to_p") if hasattr(jax.lax, name)]
    compare(lambda a, b: [order.bind(a, other) for order in orders for other in (b, jnp.zeros_like(a))] + [a + b], a, b)
    table = jnp.arange(8.0).astype(dtype)
    compare(lambda x: [jnp.searchsorted(table, x, side=side) for side in ("left", "right")], x)
    compare(lambda x: jnp.interp(x, jnp.arange(8.0), jnp.arange(8.0) ** 2), x)


def test_whole_numbers():
    """Division and remainder by zero and at the ends of the range, shifts beyond the width, conversions."""
    a, b = (jnp.ravel(m) for m in jnp.meshgrid(*[jnp.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31)], jnp.int32)] * 2))
    lax = jax.lax
    binary = [
        lax.add,
        lax.mul,
        lax.div,
        lax.rem,
        lax.max,
        lax.shift_left,
        lax.shift_right_logical,
        lax.shift_right_arithmetic,
        lax.bitwise_xor,
    ]
    compare(
        lambda a, b: [f(a, b) for f in binary] + [jnp.sign(a), jnp.abs(a), ~a, a.astype(float), a.astype(jnp.int64), a.astype(bool)], a, b
    )
    compare(
        lambda x: [x.astype(jnp.int32), x.astype(jnp.uint8), x.astype(jnp.int64)], jnp.array([0.9, -0.9, 3e9, -3e9, np.nan, np.inf, 254.7])
    )


@pytest.mark.parametrize("size", [2, 24])
def test_products_over_no_axis(size):
    """Outer products, alone and entry by entry of an axis that both have, sums over no axis: short, and so long that they are loops."""
    a, b = (jnp.asarray(np.random.default_rng(k).normal(size=(size, size, 3))) for k in (0, 1))
    each = ((), ()), ((0,), (0,))
    compare(lambda a, b: [jnp.tensordot(a, b[0, 0], axes=0), jax.lax.dot_general(a, b, each), jnp.sum(a, axis=())], a, b)


def drawn(rng):
    """A function of a matrix and a vector made of random operations, and its arguments; sizes on both sides of what is written out."""
    n, m = (int(k) for k in rng.choice([1, 2, 3, 5, 8, 30], 2))
    steps = rng.integers(0, 14, 6)

    def function(A, x):
        for k, step in enumerate(steps):
            if step == 0:
                A = jnp.sin(A) + x[:, None]
            elif step == 1:
                x = x + jnp.sum(A, axis=1)
            elif step == 2:
                A = (A @ A.T @ A) / (1 + jnp.sum(A * A))
            elif step == 3:
                x = jnp.where(x > jnp.mean(x), x, -x)
            elif step == 4:
                A = jnp.concatenate([A[:, m // 2 :], A[:, : m // 2]], axis=1)
            elif step == 5:
                A = A[::-1].at[0].set(1.0)
            elif step == 6:
                x = jax.lax.fori_loop(0, 3 + 7 * k, lambda i, y: jnp.cos(y) + 0.1 * i, x)
            elif step == 7:
                x = jax.lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: 0.5 * y, x)
            elif step == 8:
                x = jax.lax.cond(x[0] > 0, lambda x: x * 2, lambda x: jnp.roll(x, 1), x)
            elif step == 9:
                i = jnp.argmax(jnp.abs(x))
                x = x * jax.lax.dynamic_index_in_dim(A, i, 0, False)[0]
            elif step == 10:
                x, rows = jax.lax.scan(lambda c, row: (0.9 * c + jnp.sum(row), jnp.max(c)), x, A.T)
                x = x + jnp.sum(rows)
            elif step == 11:
                A = jnp.cumsum(A, axis=0) / n
            elif step == 12:
                A = jax.vmap(lambda row: row / (1 + jnp.max(jnp.abs(row))))(A)
            else:
                A = A - A.mean(axis=0, keepdims=True)
        return A, x

    return function, jnp.asarray(rng.normal(size=(n, m))), jnp.asarray(rng.normal(size=n))


def campaign(seeds):
    """Values and gradients of drawn functions; those that native code leaves to XLA are few."""
    left = 0
    for seed in seeds:
        function, A, x = drawn(np.random.default_rng(seed))
        gradient = jax.grad(lambda A, x: sum(jnp.sum(jnp.sin(y)) for y in function(A, x)), argnums=(0, 1))  # noqa: B023
        for f in (function,) if any("while" in str(e) for e in jax.make_jaxpr(function)(A, x).eqns) else (function, gradient):
            closed = jax.make_jaxpr(f)(A, x)
            if native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals) is None:
                left += 1
            else:
                compare(f, A, x, rtol=1e-9)
    assert left <= len(seeds) // 10


def test_drawn_functions():
    campaign(range(8))


@pytest.mark.slow
def test_many_drawn_functions():
    campaign(range(8, 108))


def run(name, scheme, dt, n=60):
    system = getattr(models, name)()
    q0, u0 = (jnp.asarray(x, float) for x in system.initial_state())

    def end(system, q0, u0):
        solution = jaxnsd.simulate(system, scheme, q0, u0, n_steps=n, dt=dt)
        return jnp.sum(solution.q[-1] ** 2) + jnp.sum(solution.P_N**2), solution

    return end, (system, q0, u0)


CASES = [("BouncingBall", jaxnsd.SymmetricMoreau(), 1e-2)]
SLOW = [
    ("RotatingBall", jaxnsd.Lobatto(2), 1e-2),
    ("BeadColumn", jaxnsd.Moreau(), 1e-3),
    ("SliderCrank", jaxnsd.MoreauJean(), 1e-4),
    ("Woodpecker", jaxnsd.Moreau(), 1e-3),
]


@pytest.mark.parametrize(("name", "scheme", "dt"), CASES + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW])
def test_a_run_and_its_gradient(name, scheme, dt, monkeypatch):
    """All that is stored, the gradient by all parameters and the start, and a batch, equal those by XLA; alone and in a batch, too."""
    end, args = run(name, scheme, dt)
    batch = args[2][None] + 1e-3 * jnp.arange(3.0)[:, None]

    def numbers():
        jax.clear_caches()
        (_, solution), gradient = jax.jit(jax.value_and_grad(end, argnums=(0, 1, 2), has_aux=True))(*args)
        many = jax.jit(jax.vmap(lambda u0: end(*args[:2], u0)[1]))(batch)
        return solution, gradient, many

    ours = numbers()
    assert len(native.build.native_functions) > 0
    monkeypatch.setenv("JAXNSD_NATIVE", "0")
    by_xla = numbers()
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(by_xla), strict=True):
        scale = 1e-7 * (1 + np.max(np.abs(np.asarray(y, float)), initial=0, where=np.isfinite(np.asarray(y, float))))
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-7, atol=scale)
    np.testing.assert_allclose(ours[2].q[0], ours[0].q, rtol=1e-12, atol=1e-12)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    end, args = run("RotatingBall", jaxnsd.Moreau(), 1e-3, n=500)
    many = jax.jit(jax.vmap(lambda u0: end(*args[:2], u0)[1].q))
    batch = args[2][None] + 1e-3 * jnp.arange(64.0)[:, None]
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(native.build._threads, "value", threads)
        results.append(np.asarray(many(batch)))
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_what_is_not_a_number_is_seen():
    """Zero times a number that is none, written by hand, is none."""
    compare(lambda x: 0 * jnp.sqrt(x) + 1, jnp.array([4.0, -1.0]))


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("JAXNSD_CACHE_DIR", str(blocked / "below"))
    compare(lambda x: jnp.sin(x) + 17.25, jnp.ones(3))


NO_MEMORY = """
import resource, jax, jax.numpy as jnp, jax.extend
from jaxnsd import native

def rows(length):
    return lambda x: jnp.sum(jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=length)[1])

def native_one(function, x):
    closed = jax.make_jaxpr(function)(x)
    return jax.jit(native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals))

x = jnp.float32(1.0)
run, few = native_one(rows(200_000_000), x), native_one(rows(2_000), x)
first = float(few(x)[0])
lowered = run.lower(x).compile()
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 300_000_000, -1))
try:
    lowered(x)
except Exception as error:
    print(type(error).__name__, error)
print(float(few(x)[0]) == first)
"""


def test_a_run_that_finds_no_memory_says_so():
    """It had ended the process; what runs afterwards is as it was."""
    said = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    error, well = said.stdout.splitlines()
    assert "RESOURCE_EXHAUSTED" in error and "jaxnsd: a run found no memory" in error
    assert well == "True"


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_what_is_sorted(n):
    """By one key or two, whole numbers and booleans too; equal ones keep their order, zeros of both signs are equal, NaN comes last."""
    rng = np.random.default_rng(n)
    x = rng.integers(0, max(2, n // 3), (3, n)).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = -0.0
    second = rng.integers(0, 3, x.shape)

    def every(x, second):
        number = jnp.arange(x.size).reshape(x.shape)
        return (
            *jax.lax.sort((x, number, -x), num_keys=1),
            *jax.lax.sort((x, second, number), num_keys=2),
            jnp.argsort(x.T.astype(jnp.float32), axis=0, descending=True),
            jnp.sort(second, axis=0),
            jnp.sort(x > 0),
            jnp.nanmedian(x, axis=1),
        )

    compare(every, jnp.asarray(x), jnp.asarray(second))


@pytest.mark.parametrize("n", [3, 700])
def test_members_of_a_batch_leave_a_loop_one_by_one(n):
    """Numbers of steps of a while loop, of members and of a batch of batches of them; what is done stays as it is."""

    def steps(x, size):
        go_on = lambda carry: carry[0] > size  # noqa: E731
        return jax.lax.while_loop(go_on, lambda carry: (0.5 * carry[0], carry[1] + 1, carry[2] + jnp.arange(3.0)), (x, 0, jnp.zeros(3)))

    x = jnp.asarray(np.random.default_rng(0).uniform(0, 100, (2, n)))
    compare(jax.vmap(jax.vmap(steps, (0, None)), (0, None)), x, jnp.asarray(1.0))
    compare(jax.vmap(steps, (0, 0)), x[0], x[1] / 50)


def test_an_operation_that_is_not_known_is_left_to_xla():
    closed = jax.make_jaxpr(jnp.fft.fft)(jnp.ones(3))
    assert native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals) is None


@pytest.mark.parametrize("n", [1, 5, 40])
def test_factors_of_matrices(n):
    """LU factors with row exchanges and all triangular systems, of one matrix and of a batch, are those of LAPACK."""
    rng = np.random.default_rng(n)
    A, B = jnp.asarray(rng.normal(size=(3, n, n))), jnp.asarray(rng.normal(size=(3, n, 2)))
    compare(lambda A: (jax.lax.linalg.lu(A), jax.lax.linalg.lu(A[0].at[:, 0].set(0))), A, rtol=1e-10)

    def solutions(triangular, B):
        found = []
        for left, lower, turned, unit in itertools.product((False, True), repeat=4):
            options = {"left_side": left, "lower": lower, "transpose_a": turned, "unit_diagonal": unit}
            solve = functools.partial(jax.lax.linalg.triangular_solve, **options)
            b = B if left else B.swapaxes(1, 2)
            found += solve(triangular, b), solve(triangular[0], b[0])
        return found

    compare(solutions, np.eye(n)[None] + 0.1 * A, B, rtol=1e-9)
    compare(lambda x: jnp.tile(x, (2, 1, 3)), A)


PRODUCTS = ("ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ij,j->i", "j,jk->k", "aij,ajk->aik", "abij,abj->abi", "abi,ij->abj", "j,j->")


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_products_of_large_matrices(dtype):
    """In blocks of vectors and numbers, with what is left over at the ends of rows and columns, they are those of NumPy."""
    rng = np.random.default_rng(0)
    for i, j, k, a, b in ((25, 48, 3, 4, 2), (50, 1, 45, 2, 2), (1, 600, 13, 2, 1)):
        sizes = {"i": i, "j": j, "k": k, "a": a, "b": b}
        for subscripts in PRODUCTS:
            first, second = subscripts.split("->")[0].split(",")
            x, y = (rng.normal(size=[sizes[axis] for axis in axes]).astype(dtype) for axes in (first, second))
            product = native.compiled(functools.partial(jnp.einsum, subscripts), [jax.ShapeDtypeStruct(z.shape, dtype) for z in (x, y)])
            expected = np.einsum(subscripts, x.astype(float), y.astype(float))
            tolerance = 1e-12 if dtype == jnp.float64 else 1e-3
            np.testing.assert_allclose(jax.jit(product)(x, y)[0], expected, rtol=0, atol=tolerance, err_msg=f"{subscripts} {sizes}")


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_the_farthest_of_many_points(dtype):
    """Along one direction and several, of as many points as vectors hold, fewer, and more; the first one of those that are as far."""
    rng = np.random.default_rng(0)
    for many in (1, 2, 31, 32, 33, 100):
        for directions in (1, 2, 6):
            hulls = [rng.normal(size=(many, 3)), np.round(rng.normal(size=(many, 3))), rng.normal(size=(200, 3))]
            table = solids.table([jnp.asarray(x, dtype) for x in hulls])
            for number, hull in enumerate(hulls):
                n = np.round(2 * rng.normal(size=(directions, 3)))
                corners = solids.Corners(table, jnp.int32(number), jnp.int32(len(hull)))
                compare(lambda n, table, *which: solids.Corners(table, *which).farthest(n), jnp.asarray(n, dtype), *corners)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_sums_and_extremes_of_large_arrays(dtype):
    """In parts that grow side by side, with what is left over: along each axis and of all, with zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(0)

    def extremes(x):
        ends = [f(x, axis=k) for f in (jnp.argmax, jnp.argmin) for k in range(x.ndim)]
        return ends + [f(x, axis=k) for f in (jnp.max, jnp.min) for k in (None, *range(x.ndim))]

    def reduced(x):
        return extremes(x) + [f(x, axis=k) for f in (jnp.sum, jnp.prod) for k in (None, *range(x.ndim))] + [jnp.max(3 * x + 1)]

    for shape in ((513,), (1029,), (3, 350), (350, 3), (6, 97), (2, 17, 31)):
        x = rng.normal(size=shape).astype(dtype)
        compare(reduced, jnp.asarray(np.sign(x) * (1 + 1e-3 * x)))
        some = np.floor(2 * x).ravel()
        for value in (-0.0, np.inf, np.nan):
            some[rng.integers(some.size, size=3)] = value
            compare(extremes, jnp.asarray(some.reshape(shape)))


def test_what_is_too_large_to_be_written_out_has_the_same_values(monkeypatch):
    """All sizes of what is written out lead to one motion: three bodies that fall onto each other."""
    ball = functools.partial(jaxnsd.bodies.Body, mass=1.0, inertia=(4e-3,) * 3, shapes=jaxnsd.bodies.Sphere(0.1))
    parts = [ball(f"ball {k}", position=(0.05 * k, 0, 0.11 + 0.21 * k)) for k in range(3)]
    system = jaxnsd.bodies.assemble(parts, jaxnsd.bodies.Plane(), mu=0.5, e_N=0.3)
    q, u = system.initial_state()
    found = []
    for sizes in (native.code.SIZES, native.code.SIZES[1:]):
        jax.clear_caches()
        monkeypatch.setattr(native.control.Program.__init__, "__defaults__", (sizes,))
        found.append(jaxnsd.simulate(system, jaxnsd.Moreau(), q, u, t1=0.1, dt=1e-3).q)
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lines", [30, 300])
def test_pieces_that_are_functions_of_their_own(lines, monkeypatch):
    """What is long and made of loops is cut wherever it may be; what was computed in a piece is there in those after it."""
    monkeypatch.setattr(native.control, "PIECE", lines)
    monkeypatch.setattr(native.code, "PART", lines)
    made, text_of = [], native.build.text_of
    monkeypatch.setattr(native.build, "text_of", lambda *args: made.append(text_of(*args)) or made[-1])
    with native.in_loops():
        campaign(range(4))

        @jax.jit
        def called(x):
            return jnp.cumsum(x) * jnp.max(x), jnp.sort(x)

        def again(x):
            y = jnp.tanh(x)
            first = called(y)
            for _ in range(6):
                x = jnp.roll(x, 1) * y + first[0]
            return x, called(y), called(x)

        compare(again, jnp.linspace(0, 1, 40))
    assert len(made[-1][0].parts) > 1


def test_what_is_broadcast_is_computed_once():
    """A humanoid's step took 1530 cosines of 15 angles: an operation that broadcasts an axis computed them at each place anew."""
    binding, seen = native.build.binding, []
    libm = ctypes.CDLL("libm.so.6")
    native.build._ready_for_code()
    cos = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: seen.append(x) or math.cos(x))
    KEPT.append(cos)  # what has been compiled may be called again
    try:
        binding.add_symbol("cos", ctypes.cast(cos, ctypes.c_void_p).value)
        with native.in_loops():
            compare(lambda x, A: jnp.cos(x)[:, None, None] * A + 0.123, jnp.linspace(0, 1, 43), jnp.ones((43, 5, 7)))
    finally:
        binding.add_symbol("cos", ctypes.cast(libm.cos, ctypes.c_void_p).value)
    assert len(seen) == 43


def test_arrays_that_a_function_keeps_in_memory():
    """As loops, with the values of XLA, among arrays that are written out."""

    def search(x):
        def step(state):
            k, seen = state
            return k + 1, seen.at[7 * k % 100].add(x[k] * jnp.max(seen[:, None] * seen[None, :3]))

        return jax.lax.while_loop(lambda state: state[0] < 30, step, (jnp.int32(0), 0.1 * x))[1]

    compare(lambda x: 2 * in_memory(search)(x + 1) - x, jnp.linspace(0, 1, 100), rtol=1e-12)


def cut(q, deep):
    """A loop of small branches, and one of many operations that may never be needed."""

    def long(q):
        for _ in range(20):
            q = 0.9 * q + 0.01 * q**2
        return q

    def step(q, _):
        return jax.lax.cond(q[0] > deep, when_needed(long), lambda q: q + 0.1, q), q

    return jax.lax.scan(step, q, None, length=20)


def test_what_runs_once_is_not_made_fast(monkeypatch):
    """The look at the initial state of a run, of a robot as long a program as half of a step, was a third of the compilation."""
    levels = []
    function_of = native.build.function_of
    monkeypatch.setattr(native.build, "function_of", lambda *args: levels.append(native.build._level()) or function_of(*args))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    system = models.BouncingBall()
    jaxnsd.simulate(system, jaxnsd.Moreau(), jnp.ones(1), jnp.zeros(1), n_steps=13, dt=1e-3)
    assert levels == [0, 2]


def test_what_is_not_needed_is_not_compiled(monkeypatch):
    """A long branch is compiled when it is first taken, once, with the values of XLA, in a batch on threads, too."""
    q, modules, module = jnp.linspace(0, 1, 16), [], native.build._module
    monkeypatch.setattr(native.build, "_module", lambda text, made=None: modules.append(text) or module(text, made))
    compare(lambda q: cut(q, 1e3), q)
    of_run = len(modules)
    compare(lambda q: cut(q, 0.5), q)
    assert len(modules) == 2 * of_run + 1
    compare(lambda q: jax.lax.map(lambda q: cut(q, 0.5), q), q[None] + 0.01 * jnp.arange(600.0)[:, None])
    compare(jax.jacfwd(lambda q: cut(q, 0.5)[0]), q)
    compare(jax.grad(lambda q: jnp.sum(cut(q, 0.5)[0])), q)


def test_what_llvm_found_on_its_way_is_freed(monkeypatch):
    """Of every text it kept ten times its length."""
    monkeypatch.setenv("JAXNSD_CACHE_DIR", "0")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not say what a process takes")

    def after(times):
        for _ in range(times):
            native.build.machine_code(text.main)
        gc.collect()
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    text, _ = native.build.text_of(jax.make_jaxpr(lambda q: cut(q, 0.5))(jnp.linspace(0, 1, 16)))
    before = after(5)
    assert after(40) - before < 40 * 2 * len(text.main)


def test_programs_that_do_the_same_are_written_once(monkeypatch):
    """A step asks for its contacts in many places, each traced for itself; where a number in it is another one, so is the program."""
    monkeypatch.setattr(native.build, "_texts", {})
    written, text_of = [], native.build._text_of
    monkeypatch.setattr(native.build, "_text_of", lambda *args, **options: written.append(options) or text_of(*args, **options))

    def needed(q, factor):
        def long(q):
            for _ in range(20):
                q = factor * q + 0.01 * q**2
            return q

        return jax.lax.cond(q[0] > -1, when_needed(long), lambda q: q, q)

    compare(lambda q: (needed(q, 0.9), needed(2 * q, 0.9), needed(q, 0.8)), jnp.linspace(0, 1, 16))
    assert written.count({"direct": True}) == 2


def test_what_is_shared_is_written_once():
    """Called with other numbers, in a loop, in a branch, in a program that is compiled later; it hands something through, too."""

    def long(x, scale, plane):
        for _ in range(12):
            x = scale * jnp.sin(x) + plane @ x
        return x, scale, jnp.outer(x, x)

    def step(x, scale, plane):
        y, back, square = shared(long)(x, scale, plane)
        z, _, other = shared(long)(y + back, 0.5 * back, plane)
        z = jax.lax.fori_loop(0, 3, lambda _, z: shared(long)(z, scale, plane)[0], z)

        def later(z):
            return sum(shared(long)(z + k, back, plane)[0] for k in range(3)) + square @ z

        return jax.lax.cond(z[0] > -1e9, when_needed(later), lambda z: z, z), other

    def of(x, scale):
        # Entries that are known are to be so in all places.
        plane = jnp.zeros((12, 12)).at[:6, :6].set(0.1 * jnp.outer(x[:6], x[6:]))
        return step(x, scale, plane)

    x = jnp.linspace(0.1, 1.2, 12)
    compare(of, x, jnp.asarray(0.4))
    compare(jax.vmap(of, (0, None)), jnp.stack([x, 2 * x, -x]), jnp.asarray(0.4))
    compare(lambda x: jax.jvp(lambda x: of(x, 0.4)[0], (x,), (x,)), x)
    compare(jax.grad(lambda x: jnp.sum(shared(long)(shared(long)(x, 0.4, 0.05 * jnp.outer(x, x))[0], 0.4, 0.05 * jnp.outer(x, x))[2])), x)
    text, later = native.build.text_of(jax.make_jaxpr(of)(x, jnp.asarray(0.4)))
    parts = [name for name, lines in text.parts.items() if lines.count("fmul") > 60]
    assert len(parts) == 1
    (program,) = later
    assert parts[0] in native.build._text_of(program, direct=True)[0].parts


def test_what_is_shared_and_calls_what_is_compiled_later():
    """The table of what is compiled later is that of one program: another one does not take the function over."""

    def long(x):
        for _ in range(100):
            x = jnp.sin(x) + 0.1
        return jax.lax.cond(x[0] > 0, when_needed(lambda x: functools.reduce(lambda x, _: jnp.cos(x), range(80), x)), lambda x: x, x)

    def of(x):
        later = when_needed(lambda x: shared(long)(x) + shared(long)(2 * x) + functools.reduce(lambda x, _: jnp.tanh(x), range(80), x))
        return jax.lax.cond(x[1] > 0, later, lambda x: x, shared(long)(x) + shared(long)(0.5 * x))

    compare(of, jnp.linspace(0.1, 1.2, 12))


def test_what_will_be_too_large_is_not_begun(monkeypatch):
    """A humanoid's step had been written out up to 116,000 operations, for nothing. Operations in a row do not call each other too deep."""
    begun, of_size = [], native.build._of_size
    monkeypatch.setattr(native.build, "_of_size", lambda program, sizes, *args: begun.append(sizes[0]) or of_size(program, sizes, *args))
    x = np.linspace(0, 1, 400)

    def long(n, x):
        for k in range(n):
            x = 0.999 * x + 1e-3 * k
        return x

    # XLA takes memory without end for the longer one.
    for n, sizes in ((2500, native.code.SIZES[-1]), (20, native.code.SIZES[0])):
        made = native.compiled(functools.partial(long, n), [jax.ShapeDtypeStruct(x.shape, x.dtype)])
        np.testing.assert_allclose(jax.jit(made)(x)[0], long(n, x), rtol=1e-12)
        assert begun.pop() == sizes and not begun


def test_what_fails_when_it_is_needed_is_no_number(monkeypatch, capfd):
    """There is nobody to raise an exception to: results are NaN, and the traceback is printed."""
    function = jax.make_jaxpr(lambda q: cut(q, 0.5))(q := jnp.linspace(0, 1, 16))
    made = native.compiled(jax.extend.core.jaxpr_as_fun(function), function.in_avals)
    monkeypatch.setattr(native.build, "_texts", {})
    monkeypatch.setattr(native.build, "_text_of", lambda *_, **__: 1 / 0)
    assert np.all(np.isnan(jax.jit(made)(q)[0]))
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_rows_that_an_inner_loop_goes_through_are_not_written_out(monkeypatch):
    """The steps of a run whose one interval is stored, and the way back through them: as much text for 400 steps as for 100."""

    def loss(steps, x):
        def interval(x, rows):
            x, y = jax.lax.scan(lambda x, a: (jnp.sin(x * a[0]) + a[1], x), x, rows)
            return x, jnp.sum(y)

        end, sums = jax.lax.scan(interval, x, jnp.stack([x * jnp.ones((2, steps)), jnp.ones((2, steps))], axis=2))
        return end + jnp.sum(sums)

    lines = []
    engine = native.build.Engine
    monkeypatch.setattr(native.build, "Engine", lambda text, later: lines.append(text.lines()) or engine(text, later))
    for steps in (100, 400):
        compare(jax.value_and_grad(functools.partial(loss, steps)), jnp.asarray(0.7))
    assert len(lines) == 2 and lines[1] < 1.1 * lines[0], lines


def nothing_compiled():
    """Forget what tests before have compiled: parts of it would serve at first, and may be given back meanwhile."""
    jax.clear_caches()
    gc.collect()
    native.give_back()


def test_a_run_of_another_length_has_the_same_step(monkeypatch):
    """What is long, a step and what is done at the first node, is compiled once: the second run adds what goes around it."""
    nothing_compiled()
    leg = jaxnsd.bodies.from_mjcf(models.SCENES["leg"])
    q0, u0 = leg.initial_state()
    modules = []
    code_of = native.build.machine_code
    monkeypatch.setattr(native.build, "machine_code", lambda text, made=None: modules.append(text) or code_of(text, made))
    first = jaxnsd.simulate(leg, jaxnsd.Moreau(), q0, u0, n_steps=20, dt=1e-3)
    before = sum(map(len, modules))
    del modules[:]
    second = jaxnsd.simulate(leg, jaxnsd.Moreau(), q0, u0, n_steps=30, dt=1e-3)
    assert 0 < sum(map(len, modules)) < 0.2 * before
    np.testing.assert_array_equal(first.q, second.q[:21])


@pytest.mark.slow
def test_a_line_search_compiles_no_gradient_of_its_own(monkeypatch):
    """The gradient stands twice in a step of L-BFGS, which is as much to compile as one gradient."""
    import optax

    def misfit(e_N):
        return jaxnsd.simulate(models.BouncingBall(e_N=e_N), jaxnsd.Moreau(), jnp.ones(1), jnp.zeros(1), 0.8, 1e-2).q[-1, 0] ** 2

    modules, code_of, method = [], native.build.machine_code, optax.lbfgs()
    nothing_compiled()
    monkeypatch.setattr(native.build, "machine_code", lambda text, made=None: modules.append(text) or code_of(text, made))
    e_N = jnp.array(0.6)
    memory = method.init(e_N)
    first = jax.jit(jax.value_and_grad(misfit))(e_N)
    before = sum(map(len, modules))
    del modules[:]

    @jax.jit
    def step(e_N, memory):
        value, slope = optax.value_and_grad_from_state(misfit)(e_N, state=memory)
        change, _ = method.update(slope, memory, e_N, value=value, grad=slope, value_fn=misfit)
        return value, slope, optax.apply_updates(e_N, change)

    value, slope, after = step(e_N, memory)
    added = sum(map(len, modules))
    np.testing.assert_allclose((value, slope), first, rtol=1e-12)
    assert misfit(after) < value and before > 0
    assert added < 1.2 * before, (added, before)


@pytest.mark.slow
def test_zeros_of_a_systems_arrays_are_counted_on(monkeypatch):
    """A robot with other masses compiles nothing anew; with other zeros, and with derivatives by them, its numbers are right."""
    leg = jaxnsd.bodies.from_mjcf(models.SCENES["leg"])
    q0, u0 = leg.initial_state()
    leaves, tree = jax.tree.flatten(leg)
    arrays = [k for k, x in enumerate(leaves) if np.ndim(x) >= 2 and np.any(np.asarray(x) == 0) and jnp.issubdtype(x.dtype, jnp.floating)]

    def end(leaves):
        return jaxnsd.simulate(tree.unflatten(leaves), jaxnsd.Moreau(), q0, u0, n_steps=20, dt=1e-3).q[-1]

    first = end(leaves)
    made, function_of = [], native.build._made
    monkeypatch.setattr(native.build, "_made", lambda *args, **options: made.append(args) or function_of(*args, **options))
    heavier = [1.001 * x if k in arrays and not np.any(np.asarray(x) == 1) else x for k, x in enumerate(leaves)]
    end(heavier)
    assert not made
    # What is traced is no constant: the same system, of which nothing is known.
    np.testing.assert_allclose(jax.jit(end)(leaves), first, rtol=1e-9, atol=1e-12)
    k = arrays[0]
    direction = [jnp.ones_like(x) if i == k else jnp.zeros_like(x) for i, x in enumerate(leaves)]
    along = lambda s: end([x + s * d for x, d in zip(leaves, direction, strict=True)])  # noqa: E731
    _, tangent = jax.jvp(along, (0.0,), (1.0,))
    np.testing.assert_allclose(tangent, (along(1e-6) - along(-1e-6)) / 2e-6, rtol=1e-3, atol=1e-5 * (1 + np.max(np.abs(tangent))))


@pytest.mark.parametrize("shape", [(700,), (3, 130), (130, 3)])
def test_extremes_of_large_arrays(shape):
    """The first number that is none, the first of equal ones, zeros of both signs, infinities; and of booleans."""
    x = np.round(np.random.default_rng(0).normal(size=shape))
    none = x.copy()
    none.flat[[300, 310]] = np.nan
    infinite = x.copy()
    infinite.flat[[200, 201, 210, 211]] = np.inf, np.inf, -np.inf, -np.inf
    for axis in range(len(shape)):
        for values in (x, none, infinite, 0.0 * x, np.full(shape, np.nan)):
            compare(lambda x, axis=axis: (jnp.argmax(x, axis), jnp.argmin(x, axis)), jnp.asarray(values))
        compare(lambda x, axis=axis: (jnp.max(x, axis), jnp.min(x, axis)), jnp.asarray(x > 0))
