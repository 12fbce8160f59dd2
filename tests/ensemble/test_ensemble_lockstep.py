"""What a step costs where members advance together, as on a GPU: kernels and bytes, counted in the compiled program.

The count is that of XLA's CPU backend, whose fusion is like that of a GPU, not the same. It is a bound that a change must not exceed.
"""

import math
import re

import jax
import pytest

import jaxnsd
from jaxnsd import ensemble
from jaxnsd.ensemble.engine import _job
from jaxnsd.models import RotatingBall, Woodpecker

pytestmark = pytest.mark.slow

#: Instructions that start nothing.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all", "partition-id"}
BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1}
LINE = re.compile(r"^\s+(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")


class Program:
    """The computations of a compiled program: ``{name: [(instruction, shape, operation, rest of the line)]}``."""

    def __init__(self, text):
        self.computations, current = {}, None
        for line in text.splitlines():
            if line and not line[0].isspace() and line.rstrip().endswith("{"):
                current = self.computations.setdefault(line.removeprefix("ENTRY ").split()[0].lstrip("%"), [])
            elif (match := LINE.match(re.sub(r"/\*.*?\*/", "", line))) and current is not None:
                current.append(match.groups())

    def called(self, rest, *kinds):
        """Computations that an instruction calls."""
        return [name for kind in kinds for name in re.findall(rf"{kind}=%?([\w.\-]+)", rest)]

    def kernels(self, name):
        """Kernels of a computation, with one iteration of every loop in it and the longest branch."""
        count = 0
        for _, _, operation, rest in self.computations[name]:
            count += operation not in FREE
            if operation == "while":
                count += sum(self.kernels(x) for x in self.called(rest, "body", "condition"))
            elif operation == "call":
                count += sum(self.kernels(x) for x in self.called(rest, "to_apply"))
            elif operation == "conditional":
                branches = re.findall(r"%([\w.\-]+)", rest.split("branch_computations={")[-1].split("}")[0])
                branches = branches or self.called(rest, "true_computation", "false_computation")
                count += max(map(self.kernels, branches))
        return count

    def step(self):
        """The loop over the steps: the loop with most kernels of its own."""
        bodies = {
            x
            for lines in self.computations.values()
            for *_, operation, rest in lines
            if operation == "while"
            for x in self.called(rest, "body")
        }
        return max(bodies, key=lambda name: sum(operation not in FREE for _, _, operation, _ in self.computations[name]))

    def bytes(self, name, members):
        """Bytes that the kernels of a computation read and write for a member, without those of its loops and of the stored history."""
        shapes = {instruction: shape for instruction, shape, *_ in self.computations[name]}
        total = 0
        for instruction, _, operation, rest in self.computations[name]:
            if operation not in FREE:
                operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
                total += sum(_size(shapes.get(x, ""), members) for x in (instruction, *operands))
        return total / members


def _size(shape, members):
    """Bytes of the arrays of a shape that are not much larger than a state of all members."""
    arrays = [
        (BYTES.get(kind, 0), math.prod(map(int, filter(None, dims.split(","))))) for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape)
    ]
    return sum(size * n for size, n in arrays if n <= 64 * members)


def final(system, sol):
    """Where a member ends."""
    return sol.q[-1]


def counted(monkeypatch, system, name, members, steps):
    """``(kernels, bytes for a member)`` of a step in lockstep."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    sample = ensemble.Independent(system, {name: ensemble.Uniform(0.1, 0.3)})
    times = {"t1": steps * 1e-3, "dt": 1e-3}
    job = _job(jaxnsd.Moreau(), members, jax.random.key(0), sample, final, None, None, 1, None, times)
    assert job.block is None
    program = Program(job.lowered(members).compile().as_text())
    monkeypatch.undo()
    jax.clear_caches()
    step = program.step()
    return program.kernels(step), program.bytes(step, members)


def test_kernels_and_bytes_of_a_step(monkeypatch):
    """Of a ball, whatever the number of members and of steps: 165 to 173 kernels and 2.5 kB were counted."""
    kernels, size = few = counted(monkeypatch, RotatingBall(), "mu", 1024, 320)
    assert 50 < kernels <= 180
    assert 500 < size < 2700
    # What is different is how the history is written.
    assert counted(monkeypatch, RotatingBall(), "mu", 8192, 640) == pytest.approx(few, rel=0.06)


def test_kernels_and_bytes_of_a_step_with_three_contacts(monkeypatch):
    """Of a woodpecker: 364 kernels and 5.5 kB were counted; 45 of them search all modes, where a problem is left unsolved."""
    kernels, size = counted(monkeypatch, Woodpecker(), "mu", 1024, 320)
    assert 100 < kernels <= 385, kernels
    assert 1000 < size < 5800, size
