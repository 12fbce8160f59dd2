"""`keep`: a program that is kept is the one that would be made now, and a function that computes something else never gets it."""

import functools
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd.models import BouncingBall
from jaxnsd.programs import fingerprint as fingerprints
from jaxnsd.programs.fingerprint import fingerprint

SCALE = 2.0


def scaled(x):
    return SCALE * x


def through_another(x):
    return scaled(x) + 1


def times(factor):
    """A function that closes over a value."""

    def product(x, power=2):
        return factor * x**power

    return product


def system_with(gravity=9.81, sign=1.0, helper=scaled):
    """A class whose method has what is given here in it."""

    class Ball:
        g = gravity

        def force(self, x):
            return -sign * self.g * helper(x)

    return Ball


def module_with(text):
    """A module of one's own, not installed."""
    module = types.ModuleType("of_one_s_own")
    exec(text, vars(module))
    return module


def of_module(module):
    def function(x):
        return module.function(x)

    return function


def compiled(text):
    """The function ``f`` of this source."""
    names = {"__name__": "__main__"}
    exec(textwrap.dedent(text), names)
    return names["f"]


#: Functions of nothing that make pairs of objects: the first two have one fingerprint, the third another.
DIFFERENT = {
    "a constant": [
        lambda: compiled("def f(x):\n  return 2 * x"),
        lambda: compiled("\n\ndef f(x):\n return 2 * x"),
        "def f(x): return 3 * x",
    ],
    "an operation": [lambda: compiled("def f(x): return x + x"), lambda: compiled("def f(x): return x + x"), "def f(x): return x * x"],
    "a default": [
        lambda: compiled("def f(x, n=2): return x**n"),
        lambda: compiled("def f(x, n=2): return x**n"),
        "def f(x, n=3): return x**n",
    ],
    "a function inside": [
        lambda: compiled("def f(x): return (lambda y: y + 1)(x)"),
        lambda: compiled("def f(x): return (lambda y: y + 1)(x)"),
        "def f(x): return (lambda y: y + 2)(x)",
    ],
    "a name of a package": [
        lambda: compiled("import jax.numpy as jnp\ndef f(x): return jnp.sin(x)"),
        lambda: compiled("import jax.numpy as jnp\ndef f(x): return jnp.sin(x)"),
        "import jax.numpy as jnp\ndef f(x): return jnp.cos(x)",
    ],
    "what is closed over": [lambda: times(2.0), lambda: times(2.0), lambda: times(2.5)],
    "an array closed over": [lambda: times(np.arange(3.0)), lambda: times(np.arange(3.0)), lambda: times(np.arange(3.0) + 1)],
    "an array of jax": [lambda: times(jnp.arange(3.0)), lambda: times(jnp.arange(3.0)), lambda: times(jnp.arange(3))],
    "a partial": [lambda: functools.partial(max, 1), lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)],
    "what is wrapped": [
        lambda: jax.jit(jax.grad(times(2.0))),
        lambda: jax.jit(jax.grad(times(2.0))),
        lambda: jax.jit(jax.grad(times(3.0))),
    ],
    "which arguments": [lambda: jax.grad(times(2.0), 0), lambda: jax.grad(times(2.0), 0), lambda: jax.grad(times(2.0), 1)],
    "an attribute of a class": [system_with, system_with, lambda: system_with(gravity=9.8)],
    "a method's closure": [system_with, system_with, lambda: system_with(sign=-1.0)],
    "a method's helper": [system_with, system_with, lambda: system_with(helper=through_another)],
    "an instance": [lambda: BouncingBall(), lambda: BouncingBall(), lambda: BouncingBall(mass=0.2)],
    "a function that a tree has": [
        lambda: jax.tree.structure(WithFunction(times(2.0))),
        lambda: jax.tree.structure(WithFunction(times(2.0))),
        lambda: jax.tree.structure(WithFunction(times(3.0))),
    ],
    "a scheme": [lambda: jaxnsd.Lobatto(2), lambda: jaxnsd.Lobatto(2), lambda: jaxnsd.Lobatto(3)],
    "a set": [lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}, lambda: {"a", "b"}],
    "a list with more": [lambda: _More([1], 2), lambda: _More([1], 2), lambda: _More([3], 2)],
    "a key": [lambda: jax.random.key(0), lambda: jax.random.key(0), lambda: jax.random.key(1)],
    "a module's value": [
        lambda: of_module(module_with("g = 1\ndef function(x): return g * x")),
        lambda: of_module(module_with("g = 1\ndef function(x): return g * x")),
        lambda: of_module(module_with("g = 2\ndef function(x): return g * x")),
    ],
}


@jaxnsd.system
class WithFunction(jaxnsd.System):
    """A system with a field that is no leaf."""

    function: Callable = jaxnsd.static(default=scaled)

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u


class _More(list):
    """A list with an attribute."""

    def __init__(self, entries, more):
        super().__init__(entries)
        self.more = more


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_fingerprint_tells_what_differs(name):
    first, again, other = (make if callable(make) else functools.partial(compiled, make) for make in DIFFERENT[name])
    assert fingerprint(first()) == fingerprint(again())
    assert fingerprint(first()) != fingerprint(other())


def test_a_fingerprint_sees_globals_far_away(monkeypatch):
    before = fingerprint(through_another)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(through_another) != before
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert fingerprint(through_another) == before
    monkeypatch.setattr(fingerprints, "own_version", lambda: "another")
    fingerprints._version.cache_clear()
    assert fingerprint(jaxnsd.Moreau()) != fingerprint(jaxnsd.Moreau(), 0)
    fingerprints._version.cache_clear()


@pytest.mark.parametrize(
    ("path", "installed"),
    [
        ("/home/ada/.local/lib/python3.12/site-packages/flax/nn.py", True),  # pip install --user
        ("/usr/lib/python3/dist-packages/scipy/linalg.py", True),
        (jax.__file__, True),
        (np.linalg.__file__, True),
        (functools.__file__, True),
        ("/home/ada/project/ball.py", False),
        ("/home/ada/my-site-packages/ball.py", False),
        (__file__, False),
    ],
)
def test_what_is_installed_is_told_from_what_a_user_writes(path, installed):
    """Of what is installed nobody looks for what it reads: JAX has a million objects."""
    module = module_with("")
    module.__file__ = path
    assert fingerprints.is_installed(module) is installed


def test_what_has_no_fingerprint():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"lock.* has no fingerprint"):
        fingerprint(lambda: lock)
    with pytest.raises(TypeError, match="make it an argument"):
        jax.jit(lambda x: fingerprint(lambda: x))(1.0)
    loop = []
    loop.append({"itself": loop})
    assert fingerprint(loop) == fingerprint(loop)


HASHED = """
import sys
sys.path.insert(0, {tests!r})
import test_keep
from jaxnsd.programs.fingerprint import fingerprint
print(fingerprint(*(make() for name, (make, *_) in test_keep.DIFFERENT.items())))
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process():
    def of_process(seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_ENABLE_X64": "1"}
        code = HASHED.format(tests=os.path.dirname(__file__))
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout

    assert of_process("1") == of_process("2") != ""


def square(x, *, by="power", scale=1.0):
    """A function that says when it is traced."""
    print("traced")
    return {"y": scale * (x**2 if by == "power" else x * x), "nothing": None}


@pytest.mark.oldest
def test_a_program_is_traced_once_for_all_processes(tmp_path, capsys):
    traced = lambda: capsys.readouterr().out.count("traced")  # noqa: E731
    x = jnp.arange(3.0)
    for expected in (1, 0):  # each `keep` knows of no other, as in a new process
        kept = jaxnsd.keep(square, tmp_path)
        for _ in range(2):
            np.testing.assert_array_equal(kept(x)["y"], x**2)
        assert traced() == expected
        # Other shapes, dtypes, constants and numbers are other programs.
        assert kept(jnp.arange(2, dtype=jnp.float32))["y"].dtype == jnp.float32
        np.testing.assert_array_equal(kept(x, by="product", scale=2)["y"], 2 * x**2)
        assert kept(x, by="product", scale=2.0)["nothing"] is None
        assert traced() == 3 * expected
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4 and all(file.name.startswith("square-") for file in files)
    # In other transformations it is the function.
    assert jax.grad(lambda x: kept(x)["y"])(3.0) == 6.0
    np.testing.assert_array_equal(jax.jit(jax.vmap(kept))(x)["y"], x**2)
    # One that was cut short is made again.
    for file in files:
        file.write_bytes(file.read_bytes()[:-10])
    traced()
    np.testing.assert_array_equal(jaxnsd.keep(square, tmp_path)(x)["y"], x**2)
    assert traced() == 1
    np.testing.assert_array_equal(jaxnsd.keep(square, tmp_path)(x)["y"], x**2)
    assert traced() == 0
    # Without a folder nothing is kept.
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        np.testing.assert_array_equal(jaxnsd.keep(square)(x)["y"], x**2)
        np.testing.assert_array_equal(jaxnsd.keep(square)(x)["y"], x**2)
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
    assert traced() == 2


def test_what_is_not_kept_runs_all_the_same(tmp_path):
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x + 1

    def called_back(x):
        return jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct((), x.dtype), x)

    class Own:
        pass

    def own(x):
        return Pair(x, x + 1)

    Pair = jax.tree_util.register_dataclass(types.new_class("Pair"), ["a", "b"], [])
    Pair.__init__ = lambda self, a, b: vars(self).update(a=a, b=b)
    for function, reason in ((locked, "no fingerprint"), (called_back, "calls back into Python"), (own, "Pair")):
        with pytest.warns(UserWarning, match=f"{function.__name__} is compiled but not kept: .*{reason}"):
            kept = jaxnsd.keep(function, tmp_path)
            out = kept(jnp.float64(1.0))
        assert jax.tree.leaves(out)[-1] == jax.tree.leaves(kept(jnp.float64(1.0)))[-1] == 2.0
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="square is compiled but not kept"):
        assert jaxnsd.keep(square, tmp_path / "file")(3.0)["y"] == 9.0
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with pytest.raises(TypeError, match="takes a function, got 3"):
        jaxnsd.keep(3)
    with pytest.raises(TypeError, match="must be hashable"):
        jaxnsd.keep(square, tmp_path)(3.0, by=Own.__dict__)


FACTORS = {"of": 2.0}


@jax.jit
def jitted_helper(x):
    """It stays what it was when it was first traced, as JAX has it."""
    return FACTORS["of"] * x


@pytest.mark.oldest
def test_what_is_kept_is_traced_afresh(tmp_path, monkeypatch):
    """What has changed unseen by JAX stays in this process, as without `keep`, but not in what all others find."""

    def loop(x):
        return jax.lax.scan(lambda x, _: (FACTORS["of"] * jitted_helper(x), None), x, length=2)[0]

    assert loop(1.0) == jaxnsd.keep(loop, tmp_path)(1.0) == 16.0
    monkeypatch.setitem(FACTORS, "of", 3.0)
    assert jitted_helper(1.0) == 2.0
    for _ in range(2):  # made, and read
        assert jaxnsd.keep(loop, tmp_path)(1.0) == 81.0
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setitem(FACTORS, "of", 2.0)
    assert jaxnsd.keep(loop, tmp_path)(1.0) == 16.0


SCRIPT = """
import jax, jax.numpy as jnp, jaxnsd
jax.config.update("jax_enable_x64", True)
G = 9.81

@jaxnsd.system
class Ball(jaxnsd.System):
    mass: float = 0.1
    e_N: float = 0.75

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t, q):
        print("traced")
        return self.mass * G * q[0]

    def gap(self, t, q):
        return q

def motion(system, q0):
    return jaxnsd.simulate(system, jaxnsd.Moreau(), q0, jnp.zeros(1), 0.6, 1e-2)

def height(system, q0):
    return motion(system, q0).q[-1, 0]

def show():
    gradient = jaxnsd.keep(jax.grad(height, (0, 1)))(Ball(), jnp.ones(1))
    sol = jaxnsd.keep(motion)(Ball(), jnp.ones(1)).raise_if_failed()
    print(float(gradient[1][0]).hex(), type(gradient[0]) is Ball, float(sol.q[-1, 0]).hex(), sol.scheme)

show()
"""


@pytest.mark.slow
@pytest.mark.oldest
def test_a_gradient_in_a_second_process(tmp_path):
    """The same bits without tracing; another gravity, a global that a method reads, is another program.

    A program that is lost is made again, though JAX's cache has its executable: written once more, that would lack its code.
    """

    def printed(text):
        (tmp_path / "script.py").write_text(text)
        cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment = {**os.environ, **cache}
        done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
        return "traced" in done.stdout, done.stdout.splitlines()[-1]

    first, second = printed(SCRIPT), printed("# nothing\n\n" + SCRIPT)
    assert first[0] and second == (False, first[1])
    for file in (tmp_path / "cache").glob("*.jaxnsd"):
        file.unlink()
    assert [printed(SCRIPT) for _ in range(2)] == [first, second]
    traced, other = printed(SCRIPT.replace("9.81", "1.62"))
    assert traced and other != first[1]
    # A process that has traced the first makes the other all the same.
    for file in (tmp_path / "cache").glob("*.jaxnsd"):
        file.unlink()
    assert printed(SCRIPT + "G = 1.62\nshow()\n") == (True, other)


ON_DEVICES = """
import sys
import jax, numpy as np
import jaxnsd
from jax.sharding import Mesh, NamedSharding, PartitionSpec

first, second, _ = jax.devices()

def plus(x):
    print("traced")
    return x + 1

def apart(x):
    return plus(jax.lax.with_sharding_constraint(x, NamedSharding(Mesh([second, first], "i"), PartitionSpec("i"))))

def places(kept, x, default=None):
    with jax.default_device(default):
        y = kept(x)
    assert (y == x + 1).all()
    return [shard.device for shard in y.addressable_shards]

x = np.ones(2)
for _ in range(2):  # each `keep` knows of no other
    kept = jaxnsd.keep(plus, sys.argv[1])
    for default, place in ((None, first), (second, second), ("cpu", first)):
        assert places(kept, 1.0, default) == places(kept, x, default) == [place]
    assert places(jaxnsd.keep(apart, sys.argv[1]), x) == [second, first]
print("kept")
assert places(kept, jax.device_put(x, second)) == [second]
"""


def test_programs_are_kept_for_the_devices_that_they_run_on(tmp_path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=3"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", ON_DEVICES, tmp_path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
    assert done.stdout.split() == ["traced"] * 7 + ["kept", "traced"]
