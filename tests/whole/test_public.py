"""What `import jaxnsd` gives: the public names, types, nothing of matplotlib, and an environment that is left alone."""

import inspect
import os
import subprocess
import sys
from importlib.resources import files

import pytest

import jaxnsd

IMPORT = """
import sys, jaxnsd
assert not {"matplotlib", "jaxnsd.plotting", "jaxnsd.models"} & set(sys.modules), sorted(sys.modules)
assert {"plotting", "models"} <= set(dir(jaxnsd))
jaxnsd.models.BouncingBall(), jaxnsd.energy.balance
assert "matplotlib" not in sys.modules
jaxnsd.plotting, jaxnsd.compare.compare
assert "matplotlib" in sys.modules
import jax.numpy as jnp
import os
assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
assert jnp.ones(3).sum() == 3
"""


def test_import_takes_little_and_sets_nothing():
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_public_names():
    assert all(hasattr(jaxnsd, name) for name in jaxnsd.__all__)
    assert {"Scheme", "models", "plotting", "energy", "compare", "check", "project_position", "Parameter"} <= set(jaxnsd.__all__)
    assert files("jaxnsd").joinpath("py.typed").is_file()
    with pytest.raises(AttributeError, match="module 'jaxnsd' has no attribute 'simulations'"):
        jaxnsd.simulations  # noqa: B018


def functions(part):
    """Functions that a public module, class or function of jaxnsd consists of, methods and properties that it inherits too."""
    if inspect.ismodule(part):
        own = [name for name, value in vars(part).items() if name[0] != "_" and getattr(value, "__module__", None) == part.__name__]
        for name in getattr(part, "__all__", own):
            yield from functions(getattr(part, name))
    elif inspect.isclass(part):
        for base in (base for base in part.__mro__ if base.__module__.startswith("jaxnsd")):
            for name, value in vars(base).items():
                if name[0] != "_" or name in ("__call__", "__init__"):
                    yield from functions(value)
    else:
        for wrapper in ("fget", "__func__", "func"):  # of a property, a class method, a cached property
            part = getattr(part, wrapper, part)
        function = inspect.unwrap(part) if callable(part) else None
        if inspect.isfunction(function) and function.__module__.startswith("jaxnsd") and function.__name__ != "<lambda>":
            yield function


def test_what_is_public_is_annotated():
    found = set(functions(jaxnsd))
    assert len(found) > 300
    for function in found:
        signature = inspect.signature(function)
        bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")]
        bare += ["return"] * (signature.return_annotation is signature.empty)
        assert not bare, (function.__module__, function.__qualname__, bare)
