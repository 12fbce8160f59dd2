"""A native function is there for as long as somebody can call it, and not longer; programs do not fill the memory."""

import gc
import os
import subprocess
import sys
import threading

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import native
from jaxnsd.native import build, calls
from jaxnsd.programs import jitted

pytestmark = pytest.mark.skipif(not native.available(), reason="needs llvmlite")


def native_one(function, *args):
    """A function as a call of native code."""
    closed = jax.make_jaxpr(function)(*args)
    return native.compiled(jax.extend.core.jaxpr_as_fun(closed), closed.in_avals)


def alive():
    """Numbers of the native functions that are there, after those that nobody can call have been given back."""
    gc.collect()
    native.give_back()
    return set(build.native_functions._there)


@pytest.fixture
def new():
    """The numbers of native functions that are there now and were not before."""
    jax.clear_caches()
    before = alive()
    return lambda: alive() - before


def program(c):
    """A program that calls a native function of its own."""
    return jax.jit(native_one(lambda x: jnp.sin(c * x) + jnp.cumsum(x), jnp.ones(3)))


def test_a_function_stays_for_as_long_as_a_program_that_calls_it(new):
    x = jnp.arange(3.0)
    run = program(1.5)
    expected = np.asarray(run(x))
    compiled = run.lower(x).compile()
    assert len(new()) == 1
    del run
    jax.clear_caches()
    assert len(new()) == 1  # the second program of XLA's calls it
    np.testing.assert_array_equal(compiled(x), expected)
    del compiled
    assert not new()


def test_a_program_that_is_made_anew_calls_what_is_there(new, monkeypatch):
    """A function of a user's that jits in each call: the next call compiles nothing."""
    modules, module = [], build._module
    monkeypatch.setattr(build, "_module", lambda text, made=None: modules.append(text) or module(text, made))
    for _ in range(3):
        run = program(3.5)
        run(jnp.ones(3))
        del run
        jax.clear_caches()
        gc.collect()
        program(4.5)(jnp.ones(3))  # what nobody can call any more is given back before a function is put
    assert len(modules) == 2


def test_what_is_lowered_can_be_compiled_whenever(new):
    """A run whose program is lowered has its native function with it."""
    ball = jaxnsd.models.BouncingBall()

    def end(q0):
        return jaxnsd.simulate(ball, jaxnsd.Moreau(), q0, jnp.zeros(1), n_steps=70, dt=1e-2).q[-1]

    lowered = jax.jit(end).lower(jnp.ones(1))
    jax.clear_caches()
    assert len(new()) == 1
    compiled = lowered.compile()
    del lowered
    height = compiled(jnp.ones(1))
    np.testing.assert_array_equal(height, end(jnp.ones(1)))
    del compiled
    jax.clear_caches()
    assert not new()


def test_what_has_been_given_back_is_an_error(new):
    """Not a call of memory that is somebody else's: the text of a call outlives the function here."""
    run = program(2.5)
    lowered = run.lower(jnp.ones(3))
    del run
    jax.clear_caches()
    assert not new()
    with pytest.raises(Exception, match="given back"):
        lowered.compile()
    # The same function is made anew, under the same number.
    again = program(2.5)
    np.testing.assert_allclose(again(jnp.ones(3))[0], np.sin(2.5) + np.arange(1, 4), rtol=1e-15)
    np.testing.assert_array_equal(lowered.compile()(jnp.ones(3))[0], again(jnp.ones(3))[0])


def test_numbers_that_have_the_same_place(new):
    """Functions whose numbers are equal but for multiples of the number of places are told apart, one in the middle gone, too."""
    first = int(np.random.default_rng(0).integers(2**40))

    def put(k):
        text, later = build.text_of(jax.make_jaxpr(lambda x: k * x)(1.0))
        engine = build.Engine(text, later)
        return build.native_functions.put(first + k * calls.PLACES, engine, engine.address("run"))

    def value(function):
        number = np.int64(function.number)
        return float(jax.jit(lambda x: jax.ffi.ffi_call(calls.TARGET, jax.ShapeDtypeStruct((), x.dtype))(x, number=number))(jnp.ones(())))

    functions = {k: put(k) for k in range(5)}
    assert {k: value(function) for k, function in functions.items()} == {k: k for k in range(5)}
    del functions[2]
    jax.clear_caches()
    assert len(new()) == 4
    functions[7] = put(7)  # in the place that has become free
    assert {k: value(function) for k, function in functions.items()} == {k: k for k in functions}


def test_a_program_that_cannot_be_counted_is_left_alone(monkeypatch):
    """An interface whose states are others than those known: functions are called all the same, and stay."""
    header = calls._header()
    monkeypatch.setattr(calls, "_header", lambda: header.replace("deleter", "destroyer"))
    _, stages = calls.text()
    assert stages == {"execute": "execute"}
    monkeypatch.setattr(calls, "_header", lambda: header.replace("XLA_FFI_ExecutionStage stage;\n", ""))
    with pytest.raises(build.UnknownError):
        calls.text()


UNKNOWN = """
import gc
from jaxnsd.native import calls
header = calls._header()
calls._header = lambda: header.replace("deleter", "destroyer")
import jax
import jax.numpy as jnp
from jaxnsd import native
run = jax.jit(native.compiled(lambda x: [jnp.sin(2 * x)], [jax.ShapeDtypeStruct((3,), jnp.float32)])).lower(jnp.ones(3)).compile()
first = run(jnp.ones(3))[0]
jax.clear_caches()
gc.collect()
native.give_back()
assert (run(jnp.ones(3))[0] == first).all()
"""


def test_functions_that_are_not_counted_stay():
    """With an interface of XLA's that nobody knows yet."""
    done = subprocess.run([sys.executable, "-c", UNKNOWN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("step", ["_there", "_places", "_open"])
def test_whoever_is_interrupted_leaves_no_place_that_points_nowhere(monkeypatch, step):
    """While a function is put there; it is made anew, and so is another one in its place."""
    functions = build.native_functions

    class Interrupted:
        """What raises once when it is called, or written to, in place of ``inner``."""

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __getitem__(self, key):
            return self.inner[key]

        def __setitem__(self, key, value):
            monkeypatch.undo()
            self.inner[key] = value
            raise KeyboardInterrupt

        def __delitem__(self, key):
            del self.inner[key]

        def __call__(self, *args):
            monkeypatch.undo()
            raise KeyboardInterrupt

    c = {"_there": 31.5, "_places": 32.5, "_open": 33.5}[step]
    x, expected = jnp.ones(3), np.sin(c) + np.arange(1, 4)
    program(1.25)  # LLVM and XLA know what they have to
    monkeypatch.setattr(functions, step, Interrupted(getattr(functions, step)))
    with pytest.raises(KeyboardInterrupt):
        program(c)
    gc.collect()
    other = program(c + 10)
    np.testing.assert_allclose(program(c)(x)[0], expected, rtol=1e-6)
    gc.collect()
    native.give_back()
    np.testing.assert_allclose(other(x)[0], np.sin(c + 10) + np.arange(1, 4), rtol=1e-6)


def test_what_comes_out_of_a_file_stays_until_a_program_has_it(new):
    """The first of two functions is there still, but nobody's, when the second one is put there."""
    with native.listed() as made:
        functions = [program(71.5), program(72.5)]
    numbers, data = {number for number, *_ in made}, native.packed(made)
    del functions[1]
    assert len(new()) == 1
    del functions[0]
    there = native.unpacked(data)
    assert new() == numbers
    del there
    assert not new()


def test_a_place_is_shut_or_has_programs():
    """What gives functions back and what makes programs of them, at the same time: a program is made of one that stays, or is refused."""
    x, stop, refused = jnp.ones(3), threading.Event(), []

    def give_back():
        while not stop.is_set():
            native.give_back()

    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        for k in range(40):
            run = program(50.0 + k)
            lowered = run.lower(x)
            del run  # nobody has the function: its text alone is left
            try:
                compiled = lowered.compile()
            except Exception as error:
                refused.append(error)
                continue
            np.testing.assert_allclose(compiled(x)[0], np.sin(50.0 + k) + np.arange(1, 4), rtol=1e-5)
    finally:
        stop.set()
        thread.join()
    assert all("given back" in str(error) for error in refused)


def system(c):
    """A class of its own, as made in a search."""

    @jaxnsd.system
    class Fall(jaxnsd.System):
        mass: float

        def mass_matrix(self, t, q):
            return self.mass * jnp.eye(1)

        def force(self, t, q, u):
            return -c * self.mass * jnp.ones(1)

        def gap(self, t, q):
            return q

    return Fall(1.0)


def fall(c):
    """Height after 0.1 s of one that falls with the acceleration c."""
    return float(jaxnsd.simulate(system(c), jaxnsd.MoreauJean(), np.ones(1), np.zeros(1), n_steps=10, dt=1e-2).q[-1, 0])


def test_programs_of_new_systems_are_forgotten(new, monkeypatch):
    """Those of a process that takes more than its share; the motions stay right, those of systems of before, too."""
    monkeypatch.setattr(jitted, "PROGRAMS", 6)
    monkeypatch.setattr(jitted, "SHARE", 0.0)
    for k in range(12):
        # The midpoint rule is exact here.
        np.testing.assert_allclose(fall(1.0 + k), 1 - (1.0 + k) * 0.1**2 / 2, rtol=1e-12)
        assert len(new()) <= 9
    one = system(3.0)
    motions = [jaxnsd.simulate(one, jaxnsd.Moreau(), np.ones(1), np.zeros(1), n_steps=10, dt=1e-2) for _ in range(2)]
    jitted._programs = 6
    motions.append(jaxnsd.simulate(one, jaxnsd.Moreau(), np.ones(1), np.zeros(1), n_steps=10, dt=1e-2))
    for motion in motions[1:]:
        np.testing.assert_array_equal(motion.q, motions[0].q)


def test_a_small_process_forgets_nothing(new, monkeypatch):
    monkeypatch.setattr(jitted, "PROGRAMS", 1)
    monkeypatch.setattr(jitted, "SHARE", 1.0)
    for k in range(3):
        fall(21.0 + k)
    assert len(new()) >= 3


def test_programs_are_forgotten_while_functions_are_made(monkeypatch):
    """By another thread, that imports a module say."""
    monkeypatch.setattr(jitted, "PROGRAMS", 0)
    monkeypatch.setattr(jitted, "_taken", lambda: 1)
    monkeypatch.setattr(jitted, "SHARE", 0.0)
    monkeypatch.setattr(jitted.gc, "collect", lambda: None)
    stop, interval = threading.Event(), sys.getswitchinterval()

    def make():
        functions = []
        while not stop.is_set():
            functions = [*functions[-100:], jitted.jit(lambda x: x)]

    thread = threading.Thread(target=make)
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            jitted.make_room()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_system_that_does_not_say_what_a_process_takes(monkeypatch):
    """Nor how much memory there is: nothing is forgotten."""

    def unreadable(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(jitted, "PROGRAMS", 0)
    monkeypatch.setattr(jitted.Path, "read_text", unreadable)
    monkeypatch.delattr(jitted.os, "sysconf")
    jitted._memory.cache_clear()
    jitted.make_room()


LEVEL = """
import gc, os, sys
sys.path.insert(0, os.environ["TESTS"])
import jax
jax.config.update("jax_enable_x64", True)
from jaxnsd.programs import jitted
from test_native_calls import fall
jitted.SHARE, jitted.PROGRAMS = 0.0, 16

def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), sum(1 for _ in open("/proc/self/maps"))

for k in range(240):
    fall(1 + k / 8)
    if k in (119, 239):
        print(*memory())
"""


@pytest.mark.slow
def test_memory_is_level():
    """New systems for as long as one likes: 120 of them had taken 600 MB and 600 pieces of memory, JAX's own caches are full by then."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("the system does not say what a process takes")
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", LEVEL], capture_output=True, text=True, env={**os.environ, "TESTS": here})
    assert done.returncode == 0, done.stderr
    (first, pieces), (last, after) = ([int(x) for x in line.split()] for line in done.stdout.splitlines())
    assert last - first < 60e6, (first, last)
    assert after - pieces < 60, (pieces, after)
