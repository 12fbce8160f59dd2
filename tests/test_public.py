"""What `import jaxnsd` gives: the public names, nothing of matplotlib, types; and the flags that it sets."""

import inspect
import os
import subprocess
import sys
from importlib.resources import files

import pytest

import jaxnsd
from jaxnsd.xla_flags import set_flags

IMPORT = """
import sys, jaxnsd
assert not {"matplotlib", "jaxnsd.plotting", "jaxnsd.models"} & set(sys.modules), sorted(sys.modules)
assert {"plotting", "models"} <= set(dir(jaxnsd))
jaxnsd.models.BouncingBall(), jaxnsd.energy.balance
assert "matplotlib" not in sys.modules
jaxnsd.plotting, jaxnsd.compare.compare
assert "matplotlib" in sys.modules
import jax.numpy as jnp
assert jnp.ones(3).sum() == 3  # XLA has taken its flags
"""


def test_import_takes_little_and_flags_may_be_in_a_file(tmp_path):
    (tmp_path / "flags").write_text("--xla_cpu_enable_fast_math=false\n")
    environment = {**os.environ, "XLA_FLAGS": str(tmp_path / "flags"), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_public_names():
    assert all(hasattr(jaxnsd, name) for name in jaxnsd.__all__)
    assert {"Scheme", "models", "plotting", "energy", "compare", "check", "project_position", "Parameter"} <= set(jaxnsd.__all__)
    assert files("jaxnsd").joinpath("py.typed").is_file()
    with pytest.raises(AttributeError, match="module 'jaxnsd' has no attribute 'simulation'"):
        jaxnsd.simulation  # noqa: B018


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


NATIVE = "xla_cpu_small_while_loop_byte_threshold=4194304,xla_cpu_disable_new_fusion_emitters=true"
UNROLL = "-unroll-threshold=60"
SETTING = f"{NATIVE},{UNROLL}"


@pytest.mark.parametrize(
    "before, after",
    [
        (None, f"--xla_backend_extra_options={SETTING}"),
        ("--a=1  --b", f"--a=1  --b --xla_backend_extra_options={SETTING}"),
        ("--xla_backend_extra_options=c=1 --b", f"--xla_backend_extra_options=c=1,{SETTING} --b"),
        ("--xla_backend_extra_options=" + NATIVE.replace("4194304", "7") + ",-unroll-threshold=9", None),  # None: left as it is
        ("--xla_backend_extra_options=-unroll-threshold=9", f"--xla_backend_extra_options=-unroll-threshold=9,{NATIVE}"),
        ("FILE", f"--d=1\n--e --xla_backend_extra_options={SETTING}"),
        ("missing_file", None),
    ],
)
def test_flags_beside_those_that_are_there(tmp_path, before, after):
    (tmp_path / "flags").write_text("--d=1\n--e\n")
    before = str(tmp_path / "flags") if before == "FILE" else before
    environment = {"JAX_PLATFORMS": "cpu"} | ({} if before is None else {"XLA_FLAGS": before})
    set_flags(environment)
    assert environment["XLA_FLAGS"] == (before if after is None else after)
    switched_off = {"XLA_FLAGS": "--a", "JAXNSD_XLA_FLAGS": "0"}
    set_flags(switched_off)
    assert switched_off["XLA_FLAGS"] == "--a"


def test_options_of_all_back_ends_of_llvm_are_left_alone_beside_a_cpu(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "jax_plugins" or None)
    for told, setting in (("", NATIVE), ("cuda,cpu", NATIVE), ("cpu", SETTING)):
        environment = {"JAX_PLATFORMS": told}
        set_flags(environment)
        assert environment["XLA_FLAGS"] == f"--xla_backend_extra_options={setting}"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    set_flags(environment := {})
    assert environment["XLA_FLAGS"] == f"--xla_backend_extra_options={SETTING}"
