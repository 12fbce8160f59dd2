"""A run as one operation: what is made of a run, by batching and differentiation in any order, has the values of the plain function."""

import dataclasses
import gc
import os
import subprocess
import sys
import textwrap
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxnsd
from jaxnsd import native
from jaxnsd.models import BouncingBall, CornerBlock
from jaxnsd.native.jax_internals import without_dead_code
from jaxnsd.programs import runs, ties


def motion(args):
    """A loop with a branch; its arguments are a number, a vector, and an integer vector that is not differentiated."""
    a, x, count = args

    def body(c, _):
        c = lax.cond(c[0] > 0.05, lambda c: jnp.sin(c * a) + x.sum() * c**2, lambda c: c + a, c)
        return c, c

    c, path = lax.scan(body, x, None, length=count.shape[0])
    return path, c.sum()


def total(run):
    return lambda a, x: sum(jnp.sum(y**3) for y in run((a, x, jnp.arange(3))))


PLAIN = total(motion)
a, x = 0.7, jnp.array([0.1, 0.2])
A, X = jnp.linspace(0.1, 0.9, 9), jnp.outer(jnp.linspace(1, 2, 9), x)

TRANSFORMED = {
    "value": lambda f: f(a, x),
    "gradient": lambda f: jax.grad(f, (0, 1))(a, x),
    "batch": lambda f: jax.vmap(f, (None, 0))(a, X),
    "batch of gradients": lambda f: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(a, X),
    "gradient of a batch that shares an argument": lambda f: jax.grad(lambda a, X: jax.vmap(f, (None, 0))(a, X).sum(), (0, 1))(a, X),
    "gradient of nested batches": lambda f: jax.grad(lambda A, X: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(A, X).sum(), (0, 1))(A, X),
    "many directions": lambda f: jax.jacfwd(lambda X: jax.vmap(f, (None, 0))(a, X))(X),
    "many cotangents": lambda f: jax.jacrev(lambda a: jax.vmap(f, (None, 0))(a, X))(a),
    "hessian in a batch": lambda f: jax.vmap(jax.hessian(f, (0, 1)), (None, 0))(a, X),
    "hessian in a loop": lambda f: jax.hessian(lambda a: lax.scan(lambda c, x: (c, f(c, x)), a, X)[1].sum())(a),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1))(a, x),
    "checkpoint": lambda f: jax.grad(lambda A: jax.checkpoint(lambda A: jax.vmap(f)(A, X).sum())(A))(A),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["native", "by XLA", "lockstep"])
def test_every_transformation(way, monkeypatch):
    if way == "by XLA":
        monkeypatch.setenv("JAXNSD_NATIVE", "0")

    def run(args):
        return runs.run(motion, args, lockstep=way == "lockstep")

    all_of = lambda f: [transformed(f) for transformed in TRANSFORMED.values()]  # noqa: E731
    got, wanted = jax.jit(lambda: all_of(total(run)))(), jax.jit(lambda: all_of(PLAIN))()
    for name, of_run, of_plain in zip(TRANSFORMED, got, wanted, strict=True):
        for value, reference in zip(jax.tree.leaves(of_run), jax.tree.leaves(of_plain), strict=True):
            assert value.shape == reference.shape, name
            np.testing.assert_allclose(value, reference, rtol=1e-11, atol=1e-14, err_msg=name)


def test_directions_one_by_one(monkeypatch):
    """Where native code of many directions at one point would be too large, one is taken after the other, with the same derivatives."""
    first, *others = native.code.SIZES
    monkeypatch.setattr(native.build, "SIZES", (dataclasses.replace(first, largest=0), *others))
    made, compiled = [], native.compiled
    monkeypatch.setattr(native, "compiled", lambda *args, **settings: made.append(compiled(*args, **settings)) or made[-1])
    run = lambda args: runs.run(motion, args)  # noqa: E731
    cases = {
        "many": lambda f: jax.jacfwd(f, (0, 1))(a, x),
        "of a batch": lambda f: jax.vmap(jax.jacfwd(f, (0, 1)), (None, 0))(a, X),
        "directions of directions": lambda f: jax.vmap(jax.jacfwd(lambda x, y: jax.jvp(lambda x: f(a, x), (x,), (y,))[1], 1), (None, 0))(
            x, X
        ),
    }
    for name, case in cases.items():
        got, wanted = jax.jit(lambda case=case: case(total(run)))(), jax.jit(lambda case=case: case(PLAIN))()
        for value, reference in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(value, reference, rtol=1e-11, atol=1e-14, err_msg=name)
        assert None in made and made[-1] is not None, name
        made.clear()


def test_what_nobody_reads_is_left_out():
    """Forward mode in the body of a loop stores nothing for a way back where it is told that there is none; reverse mode does."""

    def stored(function):
        jaxpr = without_dead_code(jax.make_jaxpr(function)(a))
        return sum(run.stores + run.stored for run in runs_in(jaxpr))

    def runs_in(jaxpr):
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            if "run" in equation.params:
                yield equation.params["run"]
            for inner in equation.params.values():
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from runs_in(inner)

    of = jax.jit(lambda a: total(lambda args: runs.run(motion, args))(a, x))
    forward = lambda a: jax.jvp(of, (a,), (1.0,))[1]  # noqa: E731
    loop = lambda f: lambda a: lax.while_loop(lambda a: a < 0.5, f, a)  # noqa: E731
    assert stored(loop(runs.lean(forward))) == 0 < stored(loop(forward))
    derivative = jax.grad(lambda a: PLAIN(a, x))(a)
    np.testing.assert_allclose(jax.jit(runs.lean(forward))(a), derivative, rtol=1e-11)
    assert stored(jax.grad(of)) > 0
    np.testing.assert_allclose(jax.grad(of)(a), derivative, rtol=1e-11)


@pytest.mark.slow
def test_on_two_devices():
    """`shard_map` takes batches and gradients, and each device does its part; as it does of a batch along an explicit axis of a mesh."""
    program = """
        import contextlib, sys
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        import jaxnsd
        from jaxnsd.models import BouncingBall, Woodpecker
        jax.config.update("jax_enable_x64", True)
        def final(h):
            return jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), 0.5, 1e-2, sensitivity="discrete").q[-1, 0]
        batch, heights = jax.vmap(jax.value_and_grad(final)), jnp.linspace(0.5, 1.5, 6)
        parted = jax.jit(jax.shard_map(batch, mesh=Mesh(jax.devices(), ("x",)), in_specs=P("x"), out_specs=P("x")))(heights)
        for got, wanted in zip(parted, jax.jit(batch)(heights)):
            assert len(got.sharding.device_set) == 2 and not got.sharding.is_fully_replicated
            np.testing.assert_allclose(got, wanted, rtol=1e-12)

        pecker = Woodpecker()
        q0, u0 = pecker.initial_state()
        def thrown(share):  # velocities alone vary over the devices
            return jaxnsd.simulate(pecker, jaxnsd.Moreau(), q0, share * u0, 0.02, 1e-3, sensitivity="discrete").q[-1, 0]
        batch = jax.vmap(jax.value_and_grad(thrown))
        parted = jax.jit(jax.shard_map(batch, mesh=Mesh(jax.devices(), ("x",)), in_specs=P("x"), out_specs=P("x")))(heights)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), parted, jax.jit(batch)(heights))

        def late(h):  # stopped at a time of its own, and seen at others
            fall = dict(until=lambda t, q, u: q[0] - 0.3, save_at=np.array([0.1, 0.15, 0.5]))
            return jaxnsd.simulate(BouncingBall(), jaxnsd.MoreauJean(), h[None], jnp.zeros(1), 0.5, 1e-2, **fall).t[-1]
        batch = jax.vmap(jax.value_and_grad(late))
        parted = jax.jit(jax.shard_map(batch, mesh=Mesh(jax.devices(), ("x",)), in_specs=P("x"), out_specs=P("x")))(heights)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), parted, jax.jit(batch)(heights))
        np.testing.assert_allclose(parted[0], np.sqrt(2 * (heights - 0.3) / 9.81), rtol=1e-12)

        def loss(e, heights):
            motion = lambda h: jaxnsd.simulate(BouncingBall(e_N=e), jaxnsd.Moreau(), h[None], jnp.zeros(1), 0.6, 1e-2)
            return jnp.sum(jax.vmap(motion)(heights).q[:, -1, 0] ** 2)

        both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        wanted = both(0.7, heights)
        # The axes of a mesh are explicit by default.
        mesh = jax.make_mesh((2,), ("x",))
        heights = jax.device_put(heights, NamedSharding(mesh, P("x")))
        for lanes, context in ((4096, contextlib.nullcontext()), (0, jax.set_mesh(mesh))):  # one by one, in lockstep
            sys.modules["jaxnsd.simulation.simulate"].LANES = lanes
            jax.clear_caches()
            with context:
                got = both(0.7, heights)
                assert got[1][1].sharding.spec == P("x")
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, wanted)
    """
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=dict(os.environ, XLA_FLAGS=flags), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_a_batch_of_any_size_is_exported():
    """Its size is a symbol."""

    def final(h):
        return jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), 0.6, 5e-2).q[-1, 0]

    (b,) = jax.export.symbolic_shape("b")
    for function in (jax.vmap(final), jax.vmap(jax.grad(final))):
        exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((b,), jnp.float64))
        for heights in (jnp.linspace(0.5, 1.5, 3), jnp.linspace(0.5, 1.5, 5)):
            np.testing.assert_allclose(exported.call(heights), function(heights), rtol=1e-12)
    # Several contacts with friction have a solver that gathers the members for which Newton's method does not do.
    block = CornerBlock()
    q0, u0 = block.initial_state()
    fall = jax.vmap(lambda u: jaxnsd.simulate(block, jaxnsd.Moreau(), q0, u, 0.3, 1e-2).q[-1])
    exported = jax.export.export(jax.jit(fall))(jax.ShapeDtypeStruct((b, 3), jnp.float64))
    for n in (3, 50):
        starts = u0[None] * jnp.linspace(0.5, 1.5, n)[:, None]
        np.testing.assert_allclose(exported.call(starts), fall(starts), rtol=1e-9, atol=1e-12)


def test_the_garbage_collector_waits_while_tracing_and_not_after_whatever_happens():
    seen = []

    def looking(x):
        seen.append(gc.isenabled())
        if len(x) > 2:
            raise RuntimeError("while tracing")
        return jnp.sin(x)

    jax.jit(jax.grad(lambda x: runs.run(looking, x).sum())).lower(x)
    assert seen and not any(seen) and gc.isenabled()
    with pytest.raises(RuntimeError, match="while tracing"):
        runs.run(looking, jnp.ones(3))
    assert gc.isenabled()
    gc.disable()
    try:
        runs.run(looking, x)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_without_jit_and_with_plain_numbers():
    """Leaves that are Python numbers, mapped and differentiated without jit, also through an impact."""

    def final(h, t1=0.5):
        return jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), t1, 5e-2).q[-1, 0]

    expected = jax.jit(jax.grad(final))(1.0)
    with jax.disable_jit():
        np.testing.assert_allclose(jax.vmap(jax.grad(final))(jnp.array([2.0, 3.0])), 1.0)
        for derivative in (jax.grad(final), jax.jacfwd(final), jax.grad(jax.checkpoint(final))):
            np.testing.assert_allclose(derivative(jnp.asarray(1.0)), expected, rtol=1e-12)
        assert jax.hessian(lambda h: final(h, 0.1) ** 2)(jnp.asarray(1.0)) == 2.0


@pytest.mark.parametrize("native, steps", [("1", 500), ("0", 100)])
def test_a_bar_counts_the_steps_of_all_members(monkeypatch, native, steps):
    """Member by member the bar is fed by every member, and knows of how many; in lockstep all are one."""
    monkeypatch.setenv("JAXNSD_NATIVE", native)
    shown = []

    class Bar:
        def __init__(self, total, **_):
            self.total, self.n = total, 0

        def update(self, n):
            self.n += n

        def close(self):
            shown.append((self.n, self.total))

    monkeypatch.setattr(jaxnsd.programs.progress, "bar", Bar)
    final = lambda h: jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), 1.0, 1e-2, progress=True).q[-1, 0]  # noqa: E731
    plain = lambda h: jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), 1.0, 1e-2).q[-1, 0]  # noqa: E731
    heights = jnp.linspace(0.5, 1.0, 5)
    np.testing.assert_allclose(jax.vmap(final)(heights), jax.vmap(plain)(heights), rtol=1e-12)
    jax.effects_barrier()
    assert shown == [(steps, steps)]


@pytest.mark.slow
@pytest.mark.oldest
def test_a_failure_leaves_the_numbers_and_says_so_once(monkeypatch):
    """With a version of JAX that nobody has tried, and without."""
    ball, start = BouncingBall(), (jnp.array([0.5]), jnp.zeros(1))

    def value_and_gradient():
        jax.clear_caches()
        return jax.jit(jax.value_and_grad(lambda u: jaxnsd.simulate(ball, jaxnsd.Moreau(), start[0], u, 1.0, 1e-2).q[-1, 0]))(start[1])

    def fails(*args, **options):
        raise RecursionError("a version of JAX that nobody has tried")

    expected = value_and_gradient()
    native._once.cache_clear()
    monkeypatch.setattr(native.build, "function_of", fails)
    monkeypatch.setattr(ties, "settled", fails)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            np.testing.assert_allclose(jnp.hstack(value_and_gradient()), jnp.hstack(expected), rtol=1e-12)
    said = [str(warning.message) for warning in said if "nobody has tried" in str(warning.message)]
    assert len(said) == 1 and "JAXNSD_NATIVE=0" in said[0]
    native._once.cache_clear()
