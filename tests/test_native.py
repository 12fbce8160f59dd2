"""Matrix products in a run, lowered to what stays out of a library, and kernels: the same values and derivatives, native loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxnsd
from jaxnsd import SemismoothNewton, derivatives, kernels, lanes, later, plain, simulate
from jaxnsd.bodies import lists
from jaxnsd.jax_internals import jaxpr_as_fun
from jaxnsd.models import BouncingBall, CornerBlock, RotatingBall
from jaxnsd.schemes import Moreau


@pytest.fixture(autouse=True)
def _left_to_xla(monkeypatch):
    monkeypatch.setenv("JAXNSD_NATIVE", "0")


#: Shapes and dimension numbers as of `lax.dot_general`: vectors, matrices, batches, several contracted axes, of sizes on either side of
#: every limit.
PRODUCTS = [
    ((3,), (3,), (((0,), (0,)), ((), ()))),
    ((8, 3), (3,), (((1,), (0,)), ((), ()))),
    ((3, 4), (5, 3), (((0,), (1,)), ((), ()))),
    ((80, 60), (60,), (((1,), (0,)), ((), ()))),
    ((30, 20), (20, 10), (((1,), (0,)), ((), ()))),
    ((6, 4, 5, 7), (7, 6, 3, 5), (((2, 3), (3, 0)), ((0,), (1,)))),
    ((9, 14, 5, 7), (7, 9, 13, 5), (((2, 3), (3, 0)), ((0,), (1,)))),
    ((3, 4), (5,), (((), ()), ((), ()))),
    ((90, 80), (80, 90), (((1,), (0,)), ((), ()))),
]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.int32])
def test_products_have_the_values_of_the_library(dtype):
    rng = np.random.default_rng(0)
    pairs = [tuple(jnp.asarray(10 * rng.normal(size=shape), dtype) for shape in shapes) for *shapes, _ in PRODUCTS]

    def products(pairs):
        return [lax.dot_general(*pair, numbers, precision="highest") for pair, (*_, numbers) in zip(pairs, PRODUCTS, strict=True)]

    wanted = jax.jit(products)(pairs)
    inside = jax.jit(lambda pairs: lanes.run(products, pairs))(pairs)
    for got, value in zip(inside, wanted, strict=True):
        assert got.dtype == value.dtype and got.shape == value.shape
        np.testing.assert_allclose(got, value, rtol=0, atol=40 * float(jnp.finfo(jnp.promote_types(dtype, jnp.float32)).eps) * 1e4)


def test_lists_of_many_places_call_no_library():
    """They are products with zeros and ones, both ways; read and written right."""
    places = np.random.default_rng(0).integers(0, 60, 90)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(60, 3)))

    def total(x):
        return lanes.run(lambda args: jnp.sum(jnp.sin(lists.pick(args[0], places))), (x,))

    for function, exact in ((total, jnp.sum(jnp.sin(x[places]))), (jax.grad(total), jax.grad(lambda x: jnp.sum(jnp.sin(x[places])))(x))):
        lowered = jax.jit(function).lower(x)
        assert "dot_general" not in lowered.as_text()
        np.testing.assert_allclose(lowered.compile()(x), exact, rtol=1e-12)


@jaxnsd.system
class Plank(jaxnsd.System):
    """A quaternion and four corners above a floor, written with products of matrices."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ (jnp.diag(jnp.array([1.0, 1.0, 1.0, 0.1, 0.2, 0.3])) @ u)

    def q_dot(self, t, q, u):
        w, v = q[3], q[4:]
        return jnp.concatenate([u[:3], -0.5 * (v @ u[3:])[None], 0.5 * (w * u[3:] + jnp.cross(v, u[3:]))])

    def gap(self, t, q):
        w, v = q[3], q[4:]
        rotation = (w * w - v @ v) * jnp.eye(3) + 2 * (jnp.outer(v, v) + w * jnp.cross(jnp.eye(3), v).T)
        corners = jnp.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, -1.0, 0.1]])
        return q[2] + (corners @ rotation.T)[:, 2]


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is about XLA's CPU backend")
def test_a_run_calls_no_library(monkeypatch):
    """A system written with products, with a quaternion and without a closed form of anything, values and derivatives."""
    q0, u0 = jnp.array([0.0, 0, 0.3, 1, 0, 0, 0]), jnp.array([0.1, 0, 0, 0.2, 0.1, 0.3])

    def final(q, u):
        return jnp.sum(jaxnsd.simulate(Plank(), jaxnsd.Moreau(), q, u, 0.4, 1e-2).q[-1] ** 2)

    # Without the rewriting there are products of the library in it.
    # A loop over kernels is handed to the runtime by a sort that is never done: the gradient has one, unless it is native.
    for function, reversed_, words in (
        (final, kernels.REVERSED, ("custom-call(", "ynn", " scatter(", " sort(")),
        (jax.grad(final), kernels.REVERSED, ("custom-call(", "ynn", " scatter(")),
        (jax.grad(final), 1 << 30, ("custom-call(", "ynn", " scatter(", " sort(")),
    ):
        monkeypatch.setattr(kernels, "REVERSED", reversed_)
        text = jax.jit(lambda *args, of=function: of(*args)).lower(q0, u0).compile().as_text()
        for word in words:
            assert word not in text, word


def everything(x, k, n, empty):
    """What XLA has libraries for, small and large, branches, loops, whole numbers, an array that is empty and one that is not used."""
    del n
    matrix = 3 * jnp.eye(x.size)[::-1] + jnp.sin(jnp.outer(jnp.arange(x.size), x) + 1) / x.size + jnp.eye(x.size)
    matrix = matrix.astype(x.dtype)
    solved = jnp.linalg.solve(matrix, x)
    lower = jax.scipy.linalg.solve_triangular(matrix, x, lower=True)
    right = jax.lax.linalg.triangular_solve(matrix, x[None], left_side=False, lower=False, transpose_a=True)[0]
    product = matrix @ jnp.cos(matrix) @ x
    folded = jnp.sum(matrix * matrix), jnp.max(matrix, axis=0), jnp.min(matrix, axis=(0, 1))
    branch = lax.cond(k > 2, lambda: jnp.sum(jnp.sin(solved)), lambda: jnp.cumsum(x)[-1])
    y = lax.stop_gradient(x)
    loop = lax.while_loop(lambda c: c[0] < k, lambda c: (c[0] + 1, jnp.sin(c[1]) + jnp.cos(c[1] * y[c[0]])), (jnp.zeros_like(k), y))[1]
    weights = jnp.array([0.2, 0.5, 0.9], x.dtype)
    last, rows = lax.scan(lambda s, w: (jnp.sin(s) + w * jnp.cos(s * y) * k, w * jnp.sum(s) + y[1]), x, weights, reverse=True)
    parts = solved, lower, right, product / 1e2, folded[0] / 1e3 + folded[1], jnp.broadcast_to(folded[2] + branch, x.shape), loop
    parts = *parts, last * rows[0] / 10 + rows[2]
    return jnp.tanh(sum(parts) / 10) + jnp.sum(empty), jnp.argmax(matrix[0]), x > 2


@pytest.mark.oldest
@pytest.mark.parametrize("dtype, piece", [(jnp.float64, 1 << 30), (jnp.float32, 1), pytest.param(jnp.float64, 1, marks=pytest.mark.slow)])
def test_kernels_are_native_calls_with_the_same_values_and_derivatives(monkeypatch, dtype, piece):
    """A kernel as one call; and cut where it can be, its branch and its loop as well, with what one part hands to the next."""
    monkeypatch.setattr(kernels, "PIECE", piece)
    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "DIFFERENTIATED", 0)
    start, scale, empty = jnp.linspace(-1, 1, 70, dtype=dtype), jnp.asarray(0.9, dtype), jnp.zeros((0, 3), dtype)

    def run(made):
        def of(x, scale, empty):
            step = made(lambda x, k: everything(scale * x, k, k, empty))
            return lax.scan(lambda x, k: ((out := step(x, k))[0], out), x, jnp.arange(5))

        return of

    def as_kernel(step):
        kernel = kernels.kernel(step, start, jnp.zeros((), int))
        assert kernel is not None
        return kernel

    args = start, scale, empty
    lowered = jax.jit(run(as_kernel)).lower(*args)
    compiled = lowered.compile()
    text = compiled.as_text()
    assert "call(" in text and 'xla_cpu_small_call="true"' in text
    calls = lowered.as_text().count('xla_cpu_small_call = "true"')
    assert calls == 1 if piece > 1 else calls > 20, calls
    wanted, tolerance = jax.jit(run(lambda step: step))(*args), 1e4 * float(jnp.finfo(dtype).eps)
    for got, value in zip(jax.tree.leaves(compiled(*args)), jax.tree.leaves(wanted), strict=True):
        assert got.dtype == value.dtype
        np.testing.assert_allclose(got, value, rtol=0, atol=tolerance)
    if dtype == jnp.float64:
        both = [run(made) for made in (as_kernel, lambda step: step)]
        gradients = [jax.jit(jax.grad(lambda scale, of=of: jnp.sum(of(start, scale, empty)[0])))(scale) for of in both]
        np.testing.assert_allclose(*gradients, rtol=1e-9)
        batches = [jax.jit(jax.vmap(lambda scale, of=of: of(start, scale, empty)[0]))(jnp.array([0.8, 0.9])) for of in both]
        np.testing.assert_allclose(*batches, rtol=1e-9)
        # Forward mode, by kernels of value and derivative; twice; and many directions.
        ahead = kernels.at_once(jax.make_jaxpr(lambda scale: jnp.sum(both[0](start, scale, empty)[0]))(scale))
        pair = [
            lambda scale: jax.core.eval_jaxpr(ahead.jaxpr, ahead.consts, scale)[0],
            lambda scale: jnp.sum(both[1](start, scale, empty)[0]),
        ]
        once = [jax.jit(lambda scale, along=1.0, of=of: jax.jvp(of, (scale,), (along * jnp.ones_like(scale),))[1]) for of in pair]
        assert 'xla_cpu_small_call="true"' in once[0].lower(scale).compile().as_text()
        np.testing.assert_allclose(*[of(scale) for of in once], rtol=1e-9)
        np.testing.assert_allclose(*[jax.jit(jax.jacfwd(of))(scale) for of in once], rtol=1e-9)
        # Members one by one: without optimization XLA makes NaN of a member of a batch of the plain function, on some processors.
        alone = [float(once[1](scale)) for scale in jnp.array([0.8, 0.9])]
        np.testing.assert_allclose(jax.jit(jax.vmap(once[0]))(jnp.array([0.8, 0.9])), alone, rtol=1e-9)
        np.testing.assert_allclose(*[jax.jit(jax.vmap(of, (None, 0)))(scale, jnp.array([1.0, -2.0])) for of in once], rtol=1e-9)


def test_what_cannot_be_native_is_no_kernel(monkeypatch):
    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "DIFFERENTIATED", 0)
    x = jnp.ones(3)
    assert kernels.kernel(lambda x: x + 1, x) is not None
    assert kernels.kernel(lambda x: jnp.sort(x), x) is None
    assert kernels.kernel(lambda x: lax.cond(x[0] > 0, jnp.sort, jnp.cos, x), x) is None
    assert kernels.kernel(lambda x: jnp.linalg.eigh(jnp.outer(x, x))[0], x) is None
    assert kernels.kernel(lambda x: jnp.linalg.solve(jnp.eye(2 * kernels.ROWS) + x[0], jnp.ones(2 * kernels.ROWS)), x) is None
    # A batch of what is native need not be.
    solve = derivatives.with_rule(lambda a: jnp.linalg.solve(a + 2 * jnp.eye(3), a[0]), None)
    matrices = jnp.ones((2, 3, 3))
    assert kernels.kernel(solve, matrices[0]) is not None and kernels.kernel(jax.vmap(solve), matrices) is None
    large = jnp.ones(2 * kernels.GIVEN)
    assert jax.jit(lambda large: kernels.kernel(lambda x: x + large[0], x) is None and large)(large) is not None
    monkeypatch.undo()
    assert kernels.kernel(lambda x: x + 1, x) is None  # a small one


@pytest.mark.oldest
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_around_what_is_no_kernel_the_rest_of_a_step_is(monkeypatch, dtype):
    """Functions that hold what no kernel takes are opened, what is needed on both sides of it is computed once, and effects stay."""
    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "PART", 0)
    table, seen = np.arange(6.0).reshape(2, 3).astype(dtype), []
    on_both_sides = jax.jit(lambda x: jnp.cumsum(jnp.sin(x) @ (table.T @ table)))

    @jax.checkpoint
    def by_the_library(x, y):
        size, axes = jnp.linalg.eigh(jnp.outer(x, x) + jnp.diag(y))
        return jnp.abs(axes) @ size

    def plain(x, k):
        jax.debug.callback(lambda k: seen.append(int(k)), k)
        before = on_both_sides(x)
        y = jax.nn.relu(by_the_library(jnp.tanh(before), jnp.arange(3.0, dtype=dtype)) - k)
        return jnp.tanh(y + before - on_both_sides(lax.stop_gradient(x))) + table[0] / 10, (y > 1, k + 1, on_both_sides(y))

    step = derivatives.with_rule(plain, None)

    def run(x, n=4):
        return jax.tree.leaves(lax.scan(step, x, jnp.arange(n)))

    x = jnp.array([0.1, -0.4, 0.7], dtype)
    assert kernels.kernel(step, x, jnp.zeros((), int)) is None
    wanted = jax.jit(run)(x)
    jax.effects_barrier()
    assert sorted(seen) == [0, 1, 2, 3]
    compiled = jax.jit(jaxpr_as_fun(kernels.stepwise(jax.make_jaxpr(run)(x), least=0))).lower(x).compile()
    seen.clear()
    got = compiled(x)
    jax.effects_barrier()
    assert sorted(seen) == [0, 1, 2, 3]
    text = compiled.as_text()
    assert text.count('xla_cpu_small_call="true"') >= 2 and "syevd" in text
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=1e3 * float(jnp.finfo(dtype).eps) * np.abs(b).max())
    body = later.once(jax.make_jaxpr(step)(x, jnp.zeros((), int)))
    # Written three times, but of two values.
    assert sum(equation.primitive.name == "cumsum" for equation in body.eqns) == 2


@pytest.mark.parametrize(
    "system, start, save_every",
    [
        pytest.param(
            RotatingBall(e_N=0.4), ([0.0, 0.3, 0.0], [0.0, 0.0, 100.0]), 5, marks=[pytest.mark.slow, pytest.mark.oldest], id="ball"
        ),
        pytest.param(CornerBlock(e_N=0.4), CornerBlock().initial_state(), 1, marks=pytest.mark.long, id="block"),
    ],
)
def test_a_run_in_kernels_is_the_run_without(monkeypatch, system, start, save_every):
    q0, u0 = (jnp.asarray(x) for x in start)
    # So many steps that the last group of them is not full.
    args = system, Moreau(), q0, u0, 0.295, 1e-3

    def run(system, **options):
        return simulate(system, *args[1:], save_every=save_every, **options)

    def slope(system, derivative=jax.grad, **options):
        return derivative(lambda mu: jnp.sum(run(dataclasses.replace(system, mu=mu), **options).q[-1]))(jnp.asarray(0.3))

    wanted, wanted_slope = run(system), slope(system)
    assert abs(wanted_slope) > 1e-4
    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "DIFFERENTIATED", 0)
    other = {"solver": SemismoothNewton(max_outer=21)}  # of no consequence here; a program that is not known yet
    solution = run(system, **other)
    for name in ("q", "u", "P_N", "P_F", "outcome", "events", "iterations"):
        np.testing.assert_allclose(getattr(solution, name), getattr(wanted, name), rtol=0, atol=1e-10, err_msg=name)
    assert solution.success and solution.count(jaxnsd.Event.IMPACT) > 0
    further = simulate(system, Moreau(), None, None, 0.4, 1e-3, start=solution, save_every=save_every, **other)
    assert further.success
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(slope(system, derivative, **other), wanted_slope, rtol=1e-8)
    if save_every > 1:
        return
    stored = jax.grad(lambda mu: jnp.sum(run(dataclasses.replace(system, mu=mu), checkpoint=50, **other).q[-1]))(jnp.asarray(0.3))
    np.testing.assert_allclose(stored, wanted_slope, rtol=1e-8)


@pytest.mark.oldest
@pytest.mark.skipif(plain.wanted(), reason="programs are left as they are")
def test_steps_of_reverse_mode_are_kernels(monkeypatch):
    """What takes a gradient's loops over the steps apart changes nothing: of one run, stored in intervals and recomputed, of a batch.

    Steps are kernels, or cut into many, or small.
    """
    q0, u0 = BouncingBall().initial_state()

    def gradient(options):
        def height(e_N, q0):
            return simulate(BouncingBall(e_N=e_N), Moreau(), q0, u0, 0.6, 2e-3, **options).q[-1, 0]

        of = jax.grad(height, (0, 1))
        return of if options else lambda e_N, q0: jax.vmap(of, (0, None))(e_N * jnp.array([1.0, 0.9, 0.8]), q0)

    for options in ({}, {"save_every": 5, "checkpoint": 100}, {"sensitivity": "discrete"}):
        found = []
        for least, piece in ((0, 1 << 30), (0, 100), (1 << 30, 100)):
            monkeypatch.setattr(kernels, "REVERSED", least)
            monkeypatch.setattr(kernels, "LARGE", least)
            monkeypatch.setattr(kernels, "PIECE", piece)
            lowered = jax.jit(gradient(options)).lower(0.5, q0)
            for mark in ("xla_cpu_small_call", "stablehlo.sort"):  # of a kernel, and of a loop that is left to the runtime
                assert (mark in lowered.as_text()) == (least == 0), mark
            found.append(lowered.compile()(0.5, q0))
        assert np.all(np.asarray(found[0][0]) != 0)
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
