"""Ctrl-C and SIGTERM on the command line.

XLA compiles and computes without looking at signals, and a process whose interpreter ends while XLA's threads still compute crashes
where these are taken apart. So long work runs in a thread, the main one waits for it and for signals, and an interrupted process ends
without taking anything apart.
"""

import contextlib
import os
import signal
import sys
import threading


class Interrupted(BaseException):
    """A signal came; ``status`` is the exit status that says so, 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.status = 128 + number

    def but(self, text: str) -> "Interrupted":
        """Itself, saying more."""
        self.args = (f"{self.args[0]} {text}",)
        return self


@contextlib.contextmanager
def raised():
    """Within, the first SIGINT or SIGTERM raises `Interrupted` in the main thread; a second one ends the process at once."""

    def handle(number):
        raise Interrupted(number)

    with _handled(handle):
        yield


class Noted:
    """Whether a signal came: ``status`` is None, or 128 + its number."""

    status = None

    def handle(self, number):
        """A signal came."""
        self.status = 128 + number


@contextlib.contextmanager
def noted():
    """Within, the first SIGINT or SIGTERM is written into the `Noted` that this gives; a second one ends the process at once."""
    signals = Noted()
    with _handled(signals.handle):
        yield signals


@contextlib.contextmanager
def _handled(handle):
    """Within, ``handle(number)`` is called at the first signal, and the second one does what it does by default."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def first(number, _):
        for n in numbers:
            signal.signal(n, signal.SIG_DFL)
        handle(number)

    before = [signal.signal(number, first) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def wait_for(function):
    """``function()``, computed in a thread of its own, so that a signal interrupts the wait; the thread is then left to itself."""
    results, errors = [], []

    def work():
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # a wait without an end cannot be interrupted on every system
    if errors:
        raise errors[0]
    return results[0]


def leave(status):
    """End the process with this exit status, and leave XLA's threads alone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
