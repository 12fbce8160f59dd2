"""The plain way: whatever fails in what makes programs faster, results are the same, and it is said once."""

import os
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import kernels, plain, products, ties
from jaxnsd.models import Woodpecker


def _value_and_gradient():
    system = Woodpecker()
    q0, u0 = (jnp.asarray(x, float) for x in system.initial_state())

    def end(u0):
        return jnp.sum(jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, n_steps=40, dt=1e-3).q[-1])

    jax.clear_caches()
    value, gradient = jax.jit(jax.value_and_grad(end))(u0)
    return np.array([value, *gradient])


@pytest.mark.oldest
def test_a_failure_leaves_the_numbers_and_says_so_once(monkeypatch):
    """Value and gradient by a run that could not be made faster equal those of one that could."""
    expected = _value_and_gradient()

    def fails(*args, **options):
        raise RecursionError("a version of JAX that nobody has tried")

    plain._once.cache_clear()
    broken = (kernels, "kernel"), (kernels, "stepwise"), (kernels, "at_once"), (ties, "settled"), (products, "written_out")
    for module, name in broken:
        monkeypatch.setattr(module, name, fails)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        np.testing.assert_allclose(_value_and_gradient(), expected, rtol=1e-9)
        _value_and_gradient()
    said = [str(warning.message) for warning in said if warning.category is RuntimeWarning]
    assert len(said) == 1 and "nobody has tried" in said[0] and "JAXNSD_PLAIN=1" in said[0]
    plain._once.cache_clear()


@pytest.mark.oldest
def test_the_plain_way_from_the_start(monkeypatch):
    """``JAXNSD_PLAIN=1`` touches nothing of what makes programs faster, and leads to the same numbers."""
    expected = _value_and_gradient()
    monkeypatch.setenv("JAXNSD_PLAIN", "1")
    for module, name in ((kernels, "kernel"), (kernels, "stepwise"), (kernels, "at_once"), (products, "written_out")):
        monkeypatch.setattr(module, name, None)
    np.testing.assert_allclose(_value_and_gradient(), expected, rtol=1e-9)


def test_an_import_that_comes_too_late_says_so():
    """XLA has read its settings at the first computation: of that a run would be several times slower, in silence."""

    def said(program, **environment):
        environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | environment
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        return "imported after JAX's first computation" in done.stderr

    late = "import jax.numpy as jnp; jnp.ones(2).sum(); import jaxnsd"
    assert said(late)
    assert not said(late, JAXNSD_XLA_FLAGS="0")
    assert not said("import jaxnsd, jax.numpy as jnp; jnp.ones(2).sum()")
