"""A run in parts: what is done can be read at any time, also when the rest is never computed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..programs import runs
from ..programs.keep import keep
from .loop import History, scan
from .simulate import checked, solution_of

#: A run has at most so many parts, and a part at least so many steps: enough to stop soon, few enough to cost nothing.
PARTS, STEPS = 200, 1000


class PartedRun:
    """The run that `simulate` would make with the same arguments, as an iterator over its parts.

    ``next`` computes a part, all with one compiled program that goes on from the state where the last part ended, and returns the number of
    steps that are done. `solution` gives what is done; its numbers are those of `simulate`, to round-off.
    """

    def __init__(self, system, scheme, q0, u0, t1, dt, t0=0.0, *, save_every=1, solver=None):
        run = checked(system, scheme, q0, u0, t1, dt, t0, save_every=save_every, solver=solver)
        system, q0, u0, t0, dt, t1 = run.args
        self.history = History(**{field.name: run.keywords[field.name] for field in dataclasses.fields(History)})
        self.system, self.args = system, (system, tuple(jnp.asarray(x, q0.dtype) for x in (t0, dt, t1)), q0, u0)
        self.stored = self.history.n_steps // save_every
        count = -(-self.stored // max(-(-self.stored // PARTS), -(-STEPS // save_every)))
        self.length = -(-self.stored // count)
        self._carry, self._first, self._rows = None, None, []

    def __iter__(self):
        return self

    def __next__(self):
        done = len(self._rows) * self.length
        if done >= self.stored:
            raise StopIteration
        start, part = _compiled(self.history, self.length)
        if not self._rows:
            self._carry, self._first = start(self.args)
        # The last part may go on for some nodes after the end, so that it is the same program.
        self._carry, rows, last = jax.block_until_ready(part(self.args, self._carry, jnp.asarray(done)))
        self._rows = [*self._rows, jax.tree.map(np.asarray, (rows, last))]
        return self.steps

    @property
    def steps(self):
        """Number of steps that are done."""
        return min(len(self._rows) * self.length, self.stored) * self.history.save_every

    @property
    def part(self):
        """Number of steps of a part."""
        return self.length * self.history.save_every

    def solution(self):
        """The `Solution` up to the end of the last part that is done; None before the first."""
        parts = self._rows  # another thread may append
        if not parts:
            return None
        rows = jax.tree.map(lambda *x: np.concatenate(x)[: self.stored], *(rows for rows, _ in parts))
        nodes = [np.concatenate([*(rows.nodes[k] for rows, _ in parts), end[None]]) for k, end in enumerate(parts[-1][1])]
        rows = rows._replace(nodes=[x[: self.stored + 1] for x in nodes])
        return solution_of(self.history, self.history.shapes(self.args), self.system, self.args, rows, self._first)


@functools.lru_cache(maxsize=4)
def _compiled(history, length):
    """Functions that start a run and that compute a part of it; with a compilation cache, programs that are kept for the next process."""

    def start(args):
        def at_first_node(args):
            loop = history.start(args)
            return loop.carry, loop.first

        return runs.run(at_first_node, args)

    def part(*given):
        """``(carry, rows, what is stored of the node at the end)`` of the intervals from number ``first`` on."""

        def of_a_part(given):
            args, carry, first = given
            loop = history.start(args)
            carry, rows = scan(loop.body, carry, length, first=first)
            return carry, rows, loop.end(carry)

        return runs.run(of_a_part, given)

    return keep(start), keep(part)
