"""A batch on all cores is that of `jax.vmap`, to the bit of its members: any size, arguments of any kind, gradients too."""

import dataclasses
import importlib
import os
import subprocess
import sys
import threading

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd.models import BouncingBall

module = importlib.import_module("jaxnsd.spread")


@pytest.fixture(autouse=True)
def three_cores(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 3)


def test_every_size_of_a_batch_is_complete_and_in_order():
    """Up to 12 blocks for three cores, the last one shifted: every member once, and one trace for each size of the blocks."""
    traces = []

    def member(x, more, shared):
        traces.append(x)
        return {"x": x + shared["a"], "more": (more[0] * 2, jax.random.key_data(more[1]))}

    of_all = jaxnsd.spread(member, (1, (0, -1), None))
    # Members, and sizes of blocks by then.
    for n, sizes in ((5, 1), (12, 1), (13, 2), (24, 2), (50, 3), (1, 3)):
        x = jnp.arange(2.0 * n).reshape(2, n)
        more, shared = (np.arange(n), jax.random.split(jax.random.key(0), n)), {"a": 0.5}
        found = of_all(x, more, shared)
        np.testing.assert_array_equal(found["x"], x.T + 0.5)
        np.testing.assert_array_equal(found["more"][0], 2 * np.arange(n))
        np.testing.assert_array_equal(found["more"][1], jax.random.key_data(more[1]))
        assert len(traces) == sizes if n > 1 else sizes + 1
    # By name, as of `jax.vmap`.
    found = jaxnsd.spread(lambda x, scale, *, more: scale * x + more, (0, None))(np.arange(30.0), 2.0, more=np.arange(30.0))
    np.testing.assert_array_equal(found, 3 * np.arange(30.0))


def test_simulations_and_their_gradients():
    """Bit for bit those of `jax.vmap`, and right: after one impact a ball has the energy e_N^2 m g h."""

    def energy(e_N, h):
        ball = BouncingBall(e_N=e_N)
        sol = jaxnsd.simulate(ball, jaxnsd.Moreau(), h[None], jnp.zeros(1), 0.6, 1e-4)
        return ball.total_energy(sol.t[-1], sol.q[-1], sol.u[-1])

    e_N, h = jnp.linspace(0.3, 0.9, 29), jnp.linspace(0.8, 1.1, 29)
    axes = dataclasses.replace(jax.tree.map(lambda _: None, BouncingBall()), e_N=0)
    rebound = jaxnsd.spread(lambda ball: ball.e_N * ball.gravity, (axes,))(BouncingBall(e_N=e_N))
    np.testing.assert_array_equal(rebound, e_N * BouncingBall().gravity)
    both = jax.value_and_grad(energy)
    found, wanted = jaxnsd.spread(both)(e_N, h), jax.jit(jax.vmap(both))(e_N, h)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    at_top = BouncingBall().total_energy(0.0, h[None], jnp.zeros(1))
    np.testing.assert_allclose(found[0], e_N**2 * at_top, rtol=5e-3)
    np.testing.assert_allclose(found[1], 2 * e_N * at_top, rtol=5e-3)


def test_within_transformations_it_is_vmap():
    square = jaxnsd.spread(lambda x: x * x)
    x = jnp.arange(30.0)
    np.testing.assert_array_equal(jax.jit(square)(x), x * x)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(square(x)))(x), 2 * x)
    np.testing.assert_array_equal(jax.vmap(square)(x.reshape(3, 10)), (x * x).reshape(3, 10))
    with jax.disable_jit():
        np.testing.assert_array_equal(square(x), x * x)


def test_precision_of_the_calling_thread():
    """Its threads have the default one."""
    half = jaxnsd.spread(lambda x: x / 2)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        with (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(True):
            x = np.linspace(0, 1, 30)
            found = half(x)
            assert found.dtype == np.float64
            np.testing.assert_array_equal(found, x / 2)
        assert half(x).dtype == np.float32
    finally:
        jax.config.update("jax_enable_x64", before)


DEVICES = """
import jax, jaxnsd, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
half, x, devices = jaxnsd.spread(lambda x: x / 2), np.arange(60.0, dtype=np.float32), jax.devices()
for device in (devices[0], devices[1], devices[0]):
    found = half(jax.device_put(x, device))
    assert found.devices() == {device}, found.devices()
    np.testing.assert_array_equal(found, x / 2)
with jax.default_device(devices[1]):
    assert half(x).devices() == {devices[1]}
mesh = Mesh(np.array(devices), ("members",))
for split in (PartitionSpec(), PartitionSpec("members")):
    np.testing.assert_array_equal(half(jax.device_put(x, NamedSharding(mesh, split))), x / 2)
"""


def test_arguments_on_other_devices_and_on_several():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", DEVICES], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_numbers_that_are_none_are_found_as_under_jit():
    root = jaxnsd.spread(jnp.sqrt)
    x = jnp.arange(30.0) - 1
    assert np.isnan(root(x)[0])
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        root(x)


def test_what_makes_no_batch_is_refused():
    add = jaxnsd.spread(lambda x, y: x + y)
    for args in ((jnp.zeros(3), jnp.zeros(4)), (jnp.zeros(3), 1.0)):
        with pytest.raises(ValueError, match="spread: the arguments that are mapped need an axis"):
            add(*args)
    with pytest.raises(ValueError, match="have the shapes none"):
        jaxnsd.spread(lambda x: x, None)(1.0)


def test_members_run_side_by_side():
    """Three blocks meet at a barrier: none goes on before all are there. What one of them raises is raised."""
    barrier = threading.Barrier(3)
    assert module._in_threads(lambda x: (barrier.wait(60), x)[1], range(3)) == [0, 1, 2]

    def fails(x):
        raise ValueError(f"of block {x}")

    with pytest.raises(ValueError, match="of block 0"):
        module._in_threads(fails, range(9))
