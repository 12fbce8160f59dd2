"""A signal interrupts work that does not look at signals, and is told by the exit status."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from repository import ROOT

from jaxnsd.programs import interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_wait_and_handlers_are_put_back(number):
    before, done = signal.getsignal(number), threading.Event()
    threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
    start = time.monotonic()
    with pytest.raises(interrupts.Interrupted, match=number.name) as caught, interrupts.raised():
        interrupts.wait_for(lambda: done.wait(60))
    assert time.monotonic() - start < 30
    assert caught.value.status == 128 + number
    assert signal.getsignal(number) is before
    done.set()


def test_results_and_errors_come_out_of_the_thread():
    assert interrupts.wait_for(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        interrupts.wait_for(lambda: 1 / 0)


def interrupted(when, number, *arguments):
    """``(exit status, stdout, last line of stderr)`` of a command line that gets a signal once its stderr matches ``when``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_LOG_COMPILES": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", "jaxnsd", "run", "BouncingBall", "--dt", "1e-8", "--t1", "10", "--save-every", "1000", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        seen = ""
        while not re.search(when, seen):
            character = process.stderr.read(1)
            assert character, seen
            seen += character
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err.splitlines()[-1]


def test_a_run_that_is_interrupted_while_it_compiles():
    status, out, err = interrupted(r"MLIR module conversion jit\(part", signal.SIGINT)
    assert (status, out) == (130, "")
    assert err == "jaxnsd run: interrupted by SIGINT before anything was computed"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_writes_what_is_computed(tmp_path, number, status):
    file = tmp_path / "a.npz"
    # A bar that does not go to a terminal is a line every tenth.
    done = interrupted(r"[1-9]\d*% \(", number, "--progress", "--out", file)
    assert done[0] == status
    steps = int(re.search(r"^steps +(\d+)", done[1], re.MULTILINE)[1])
    assert done[2].startswith(f"jaxnsd run: interrupted by {number.name} after {steps} of 1000000000 steps")
    with np.load(file) as arrays:
        assert 0 < arrays["outcome"].size == steps // 1000 == arrays["t"].size - 1
        np.testing.assert_allclose(arrays["t"][-1], steps * 1e-8, rtol=1e-12)
        falling = arrays["t"] < 0.45
        np.testing.assert_allclose(arrays["q"][falling, 0], 1 - 0.5 * 9.81 * arrays["t"][falling] ** 2, atol=1e-6)
