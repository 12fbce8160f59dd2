"""Batches: `vmap` of `simulate` is a loop, whatever is batched and however it is nested."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scheme_table import over

import jaxnsd
from jaxnsd import Moreau, SymmetricMoreau, simulate
from jaxnsd.models import BouncingBall, RotatingBall

FIELDS = ("t", "q", "u", "P_N", "P_F", "outcome", "contact")


def run(system, q0, u0, scheme):
    return simulate(system, scheme, q0, u0, 0.8, 0.01)


def batch(count):
    """Balls with different restitution and friction, thrown differently."""
    rng = np.random.default_rng(5)
    q0, u0 = np.tile([0.0, 0.4, 0.0], (count, 1)), rng.normal(size=(count, 3)) * [1, 1, 20]
    return RotatingBall(e_N=rng.uniform(0, 0.8, count), mu=rng.uniform(0, 1, count)), q0, u0


def member(tree, k):
    return jax.tree.map(lambda x: x[k] if np.ndim(x) else x, tree)


@over([Moreau(), SymmetricMoreau()], [])
def test_vmap_is_a_loop(scheme):
    systems, q0, u0 = batch(12)
    axes = (jax.tree.map(lambda x: 0 if np.ndim(x) else None, systems), 0, 0)
    mapped = jax.vmap(lambda s, q, u: run(s, q, u, scheme), in_axes=axes)
    together = jax.jit(mapped)(systems, q0, u0)
    parts = jax.tree.map(lambda x: x.reshape(3, 4, *x.shape[1:]) if np.ndim(x) else x, (systems, q0, u0))
    nested = jax.jit(jax.vmap(mapped, in_axes=axes))(*parts)
    assert together.success.shape == (12,) and np.all(together.success)
    assert np.any(together.P_N > 0) and np.any(np.abs(together.P_F) > 0)
    for k in range(12):
        alone = run(member(systems, k), q0[k], u0[k], scheme)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(together, name)[k], getattr(alone, name), atol=1e-11)
            np.testing.assert_allclose(getattr(nested, name)[divmod(k, 4)], getattr(alone, name), atol=1e-11)


@pytest.mark.slow
def test_one_argument_batched():
    system, scheme, q0 = RotatingBall(), Moreau(), jnp.array([0.0, 0.4, 0.0])
    speeds = jnp.linspace(-3, 3, 5)
    together = jax.vmap(lambda v: run(system, q0, jnp.zeros(3).at[0].set(v), scheme).q)(speeds)
    for k in range(5):
        np.testing.assert_allclose(together[k], run(system, q0, np.array([speeds[k], 0, 0]), scheme).q, atol=1e-12)
    friction = jax.vmap(lambda mu: run(RotatingBall(mu=mu), q0, jnp.ones(3), scheme).q)(jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(friction[1], run(RotatingBall(mu=0.5), q0, jnp.ones(3), scheme).q, atol=1e-12)


@pytest.mark.slow
@pytest.mark.oldest
def test_a_batch_from_the_persistent_cache_of_jax(tmp_path):
    """By XLA, in the process that compiles it and in one that takes it from JAX's cache."""
    program = """
        import jax, jax.numpy as jnp, jaxnsd
        jax.config.update("jax_enable_x64", True)
        system = jaxnsd.models.Woodpecker()
        q0, u0 = system.initial_state()
        batch = jax.vmap(lambda u0: jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, 0.02, 1e-4))(jnp.linspace(0.9, 1.1, 4)[:, None] * u0)
        assert jnp.all(batch.success) and jnp.all(jnp.sum(batch.iterations, axis=1) > 0)
        print(batch.q[:, -1].tolist())
    """
    options = {"JAXNSD_NATIVE": "0", "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = os.environ | options | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    made, kept = (subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert any(tmp_path.iterdir()) and made == kept


def test_what_is_placed_on_the_cpu_of_a_host_with_a_gpu_runs_member_by_member(monkeypatch):
    """A pretended GPU: a batch is in lockstep there, but for kernels, and not where the default device is the CPU."""

    def lockstep():
        batch = jax.vmap(lambda h: simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), dt=1e-2, n_steps=7).q[-1, 0])
        found = []

        def look(jaxpr):
            for equation in jaxpr.eqns:
                if equation.primitive.name == "jaxnsd_run":
                    found.append(equation.params["run"].lockstep)
                for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
                    if hasattr(inner, "jaxpr"):
                        look(inner.jaxpr)

        look(jax.make_jaxpr(batch)(jnp.ones(3)).jaxpr)
        (one,) = found
        return one

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for kernels in "01":
        monkeypatch.setenv("JAXNSD_KERNELS", kernels)
        jax.clear_caches()
        assert lockstep() == (kernels == "0")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    jax.clear_caches()
    assert lockstep()
    for device in (jax.devices("cpu")[0], "cpu"):
        with jax.default_device(device):
            assert not lockstep()
    monkeypatch.undo()
    jax.clear_caches()
