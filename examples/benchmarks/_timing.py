"""Seconds of a call, by the clock of the wall or of the process, for the benchmarks beside it."""

import os
import time

import jax

#: Seconds of calls in a row that are measured together. The system may book the CPU time of a thread milliseconds late, so that of one
#: short call the clock of the process tells nothing: a gradient of 18 ms then cost 8, 22 or 90 runs of 2 ms.
TOGETHER = 0.1


def cpu_seconds():
    """Seconds that the cores have worked for this process and those that it has started, as the ones that compile much text are."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def best(function, clock, repeat):
    """``(seconds of the first call, least seconds of a later one)``."""

    def seconds(calls, clock):
        begin = clock()
        for _ in range(calls):
            jax.block_until_ready(function())
        return (clock() - begin) / calls

    first = seconds(1, clock)
    calls = 1 + int(TOGETHER / seconds(1, time.perf_counter))
    return first, min(seconds(calls, clock) for _ in range(repeat))
