"""A signal interrupts work that does not look at signals, and is told by the exit status."""

import os
import signal
import threading
import time

import pytest

from jaxnsd import interrupts


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
