"""Loops of runs as kernels of a GPU: in Pallas' interpreter against native code and XLA, and lowered for CUDA without a device."""

import contextlib
import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_native import EDGES, ONE, TWO

import jaxnsd
from jaxnsd import models
from jaxnsd.native import blocks
from jaxnsd.programs import kernels, runs

pytest.importorskip("jax.experimental.pallas")

#: Of operations one after the other on short arrays XLA makes loops that do them again and again; to compile them takes minutes.
PLAIN = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion,cpu-fusion,cpu-instruction-fusion"}
if "xla_cpu_use_fusion_emitters" in os.environ.get("XLA_FLAGS", ""):
    # Of what is not fused XLA's older emitters, as in `make test`, make wrong loops.
    PLAIN["xla_cpu_use_fusion_emitters"] = True


@pytest.fixture
def made(monkeypatch):
    """Numbers of steps of the loops that became kernels."""
    kernel, lengths = kernels._kernel, []

    def noted(*args, loop):
        out = kernel(*args, loop=loop)
        lengths.append(loop.length)
        return out

    monkeypatch.setattr(kernels, "_kernel", noted)
    return lengths


def interpreted(monkeypatch, function, *args):
    """``function(*args)`` by kernels in the interpreter."""
    with monkeypatch.context() as context:
        context.setenv("JAXNSD_KERNELS", "interpret")
        return jax.jit(lambda *args: function(*args)).lower(*args).compile(PLAIN)(*args)


def for_cuda(function, *args, asked="1"):
    """The text of a function for a GPU, with kernels unless ``asked`` is "0"."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("JAXNSD_KERNELS", asked)
        if jax.version.__version_info__ >= (0, 12):  # which asks of what kind it is
            device = jax.sharding.AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
            stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)))
        return jax.jit(lambda *args: function(*args)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def compare(one, other, tolerance):
    """Arrays that are the same to round-off."""
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        x, y = (np.asarray(z, float) for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.max(np.abs(y[np.isfinite(y)]), initial=0.0)))


def looped(step, x, steps=3):
    """A run of members that begin at ``x``, whose step is ``step(k, x) -> (x, row)``: the last ``x`` and all rows."""

    def loop(x):
        return lax.scan(lambda x, k: step(k, x), x, jnp.arange(steps))

    return jax.vmap(lambda x: runs.run(loop, x))(x)


def operations(k, x):
    """Every operation of one or two numbers; what a kernel for a GPU has, too."""
    a, b = x
    whole = [jnp.nan_to_num(y, posinf=0.0, neginf=0.0).astype(jnp.int32) for y in x]
    of_whole = [lax.div(*whole), lax.rem(*whole), jnp.maximum(*whole), whole[0] << whole[1], whole[0] >> whole[1], jnp.sign(whole[0])]
    rounded = [lax.round(a, lax.RoundingMethod.AWAY_FROM_ZERO), a.astype(jnp.int32), jnp.clip(a, b, 2.0), jnp.minimum(a, b)]
    return x, [*(f(a) for f in ONE), *(f(a, b) for f in [*TWO, jnp.arctan2, jnp.power]), *of_whole, *rounded]


@pytest.mark.parametrize("dtype", [jnp.float64, pytest.param(jnp.float32, marks=pytest.mark.slow)])
def test_operations(monkeypatch, made, dtype):
    """At zeros of both signs, infinities and NaN, as by XLA; all of them can be lowered for a GPU."""
    with np.errstate(over="ignore"):
        edges = np.asarray(EDGES).astype(dtype)
    x = tuple(jnp.ravel(m) for m in jnp.meshgrid(*[jnp.asarray(edges)] * 2))
    function = lambda *x: looped(operations, x)  # noqa: E731
    found, expected = interpreted(monkeypatch, function, *x), jax.jit(jax.vmap(lambda *x: operations(0, x)[1]))(*x)
    assert made == [3]
    compare([y[:, 2] for y in found[1]], expected, 1e-14 if dtype == jnp.float64 else 1e-6)
    assert for_cuda(function, *x).count("xla.gpu.triton") == 1


def flow(k, x):
    """Branches, loops and places that are known only when the kernel runs."""
    y = lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: 0.5 * y, x)
    at = jnp.argmax(jnp.abs(y))
    y = y.at[at].add(1.0)
    y = lax.cond(y[0] > 0.2, lambda y: lax.fori_loop(0, 20, lambda i, y: jnp.cos(y) + 0.1 * i, y), lambda y: jnp.roll(y, 1), y)
    many = [lambda y, n=n: lax.while_loop(lambda y: jnp.sum(y * y) > n + 1, lambda y: y / (n + 2.0), y) for n in range(3)]
    y = lax.switch(at - 1, many, 3 * y)
    A = jnp.outer(y, y) + jnp.diag(jnp.arange(1.0, 5.0))
    part = lax.dynamic_slice(A, (at, 1), (2, 2))
    _, rows = lax.scan(lambda c, row: (0.9 * c + jnp.sum(row), jnp.max(row) + c), k * 1.0, A)
    return y + 0.1 * jnp.tile(jnp.sum(part, 0), 2), (rows, at, lax.dynamic_index_in_dim(y, at, keepdims=False) > 0)


def test_control_flow(monkeypatch, made):
    """Members of a block take branches and leave loops each for itself."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 4)))
    monkeypatch.setattr(blocks, "PIECE", 20)
    found = interpreted(monkeypatch, lambda x: looped(flow, x, 5), x)
    assert made == [5]
    compare(found, jax.vmap(lambda x: lax.scan(lambda x, k: flow(k, x), x, jnp.arange(5)))(x), 1e-12)


def test_inverse(monkeypatch, made):
    """The inverse by pivots that are sought among the entries of each member, as by XLA."""
    from jaxnsd.numerics import linalg

    a = np.random.default_rng(0).normal(size=(6, 4, 4))
    a = jnp.asarray(a @ np.swapaxes(a, 1, 2) + np.diag([0.1, 1, 10, 1]))
    step = lambda k, a: (a, linalg._inverse(a, True, sought=True))  # noqa: E731
    found = interpreted(monkeypatch, lambda a: looped(step, a)[1], a)
    assert made == [3]
    compare(found[:, 1], np.linalg.inv(a), 1e-11)


def motions(name, scheme, steps, dt):
    """A batch of motions of a model and their derivatives in one direction, as functions of starts, and the starts."""
    system = getattr(models, name)()
    q, u = (np.asarray(x) for x in system.initial_state())
    rng = np.random.default_rng(1)
    starts = [jnp.asarray(x + size * rng.normal(size=(3, x.size))) for x, size in ((q, 0.0), (u, 0.1))]

    def run(q, u):
        sol = jaxnsd.simulate(system, scheme, q, u, n_steps=steps, dt=dt, save_every=2)
        return sol.q, sol.u, sol.P_N, sol.outcome, sol.events

    def derivative(q, u):
        return jax.jvp(lambda *start: run(*start)[:2], (q, u), (jnp.ones_like(q), jnp.ones_like(u)))[1]

    return jax.vmap(run), jax.vmap(derivative), starts


def check(monkeypatch, made, name, scheme, *, steps=6, dt=2e-2, of=(0, 1)):
    """Kernels of a model against native code."""
    *functions, starts = motions(name, scheme, steps, dt)
    for k in of:
        expected = jax.jit(lambda *args, k=k: functions[k](*args))(*starts)
        assert not made
        compare(interpreted(monkeypatch, functions[k], *starts), expected, 1e-9)
        assert made and set(made) == {steps // 2}
        made.clear()


def test_bouncing_ball(monkeypatch, made):
    check(monkeypatch, made, "BouncingBall", jaxnsd.Moreau(), steps=40, of=(0,))


SMALL = ("BouncingBall", "RotatingBall", "DoublePendulum", "PointMassOnSlope", "SpringPendulum", "TwoDiscs")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.Moreau(), jaxnsd.MoreauJean()], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", SMALL)
def test_small_models(monkeypatch, made, name, scheme):
    check(monkeypatch, made, name, scheme, steps=40 if name == "BouncingBall" else 6)


@pytest.mark.long
@pytest.mark.parametrize("scheme", [jaxnsd.Moreau(), jaxnsd.MoreauJean()], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", ["Woodpecker", "CornerBlock", "BeadColumn", "Sphere", "SliderCrankMinimal", "SliderCrank"])
def test_models(monkeypatch, made, name, scheme):
    """With Lemke's method for steps on which Newton's cycles; most of their derivatives are too large for a kernel."""
    monkeypatch.setattr(blocks, "PIECE", 1 << 30)
    check(monkeypatch, made, name, scheme, of=(0, 1) if name == "CornerBlock" else (0,), dt=2e-3)


SCHEMES = [jaxnsd.SymmetricMoreau(), jaxnsd.GeneralizedAlpha(), jaxnsd.Lobatto(2), jaxnsd.LocatedImpacts(jaxnsd.Moreau())]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_schemes(monkeypatch, made, scheme):
    check(monkeypatch, made, "RotatingBall", scheme, of=(0,))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"until": lambda t, q, u: q[1] < 0.97}, {"progress": True}], ids=["until", "progress"])
def test_ends_and_bars(monkeypatch, made, options):
    """Members end at nodes of their own, and bars are told between kernels."""
    heights = jnp.linspace(0.98, 1.2, 5)

    def run(height):
        q, u = jnp.zeros(3).at[1].set(height), jnp.zeros(3)
        sol = jaxnsd.simulate(models.RotatingBall(), jaxnsd.Moreau(), q, u, n_steps=200, dt=1e-3, **options)
        return sol.q, sol.steps, sol.events

    expected = jax.jit(jax.vmap(lambda x: run(x)))(heights)
    compare(interpreted(monkeypatch, jax.vmap(run), heights), expected, 1e-12)
    assert made and ("progress" in options or len(set(np.asarray(expected[1]).tolist())) > 1)


@pytest.mark.slow
def test_reverse_mode(monkeypatch, made):
    """On the way forward a kernel stores what the one on the way back reads."""
    run, _, starts = motions("RotatingBall", jaxnsd.Moreau(), 6, 2e-2)
    gradient = jax.grad(lambda q, u: sum(jnp.sum(jnp.sin(x)) for x in run(q, u)[:2]), argnums=(0, 1))
    expected = jax.jit(lambda *args: gradient(*args))(*starts)
    compare(interpreted(monkeypatch, gradient, *starts), expected, 1e-9)
    assert len(made) >= 3


def test_one_kernel_for_cuda():
    """Asked for, a run of a rotating ball, of a batch in two axes too, is one kernel and no loop of XLA's; else it is none."""
    run, _, starts = motions("RotatingBall", jaxnsd.Moreau(), 6, 2e-2)
    for function, args in ((run, starts), (jax.vmap(run), [jnp.stack([x] * 2) for x in starts])):
        text = for_cuda(function, *args)
        assert text.count("xla.gpu.triton") == 1 and "stablehlo.while" not in text
    text = for_cuda(run, *starts, asked="0")
    assert "triton" not in text and "stablehlo.while" in text


@pytest.mark.slow
def test_one_kernel_in_single_precision():
    run, _, starts = motions("RotatingBall", jaxnsd.Moreau(), 6, 2e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what single precision can tell apart
        text = for_cuda(run, *(x.astype(jnp.float32) for x in starts))
    assert text.count("xla.gpu.triton") == 1 and "stablehlo.while" not in text


def test_left_to_xla(monkeypatch, made):
    """What is too large for a kernel, of which a loop inside may be one, and everything without Pallas."""
    run, _, starts = motions("BouncingBall", jaxnsd.Moreau(), 6, 2e-2)
    expected = jax.jit(lambda *args: run(*args))(*starts)
    x = jnp.ones((3, 2))
    outer = lambda k, x: lax.scan(lambda x, j: (0.5 * x, x), x, jnp.arange(50))  # noqa: E731
    compare(
        interpreted(monkeypatch, lambda x: looped(outer, x), x),
        jax.vmap(lambda x: lax.scan(lambda x, k: outer(k, x), x, jnp.arange(3)))(x),
        0,
    )
    assert made == [50]
    monkeypatch.setattr(kernels, "pallas", lambda: None)
    made.clear()
    compare(interpreted(monkeypatch, run, *starts), expected, 1e-12)
    assert not made


def test_pallas_is_imported_by_kernels_alone():
    code = "import sys, jaxnsd; assert 'jax.experimental.pallas' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
