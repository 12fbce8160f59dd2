"""Costs and derivatives of all items at several points at once: in chunks of bounded memory, spread over the cores."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native import cores
from ..native.marks import in_memory
from ..programs import runs
from .normal import nothing

#: A chunk has about so many steps, so that it takes long against a call, and holds little in memory.
STEPS = 4000

#: Quantile of the items' derivatives beside which those of an item at rest are nothing.
LARGE = 0.9

#: On an accelerator a chunk is a batch in lockstep of so many items.
WIDTH = 256


@dataclass
class Point:
    """Where to evaluate: unknowns z (p,) and the local parts (items, n) of initial states that are free."""

    z: np.ndarray
    local: np.ndarray


class Evaluator:
    """Evaluates a `Problem`; every method takes a list of points and returns a list of dicts of arrays with an axis for items.

    What is not ``ok`` has failed: its cost and its derivatives are zero.
    """

    def __init__(self, problem):
        self.problem = problem
        self.items = {name: x for name, x in problem.items.items() if name != "owner"}
        self.n = len(self.items["t"])
        self.lockstep = not runs.on_cpu()
        self.chunk = min(self.n, WIDTH if self.lockstep else max(1, STEPS // problem.n_steps))
        self.limit = None
        joined = problem.items.get("joined")
        self.next = np.arange(self.n) if joined is None else np.arange(self.n) + (joined > 0)

    def costs(self, points, items=None):
        """Cost and ok of items (all, or those with these numbers)."""
        return self._all("cost", points, items)

    def linearized(self, points, items=None):
        """What `Problem.linearized` gives, ``H`` with joints, which alone are ``H_joined``, in double precision.

        What is typical is looked for once, so that costs and steps of all iterations are about the same frames; it may only grow. It does
        where an unknown leaves its bound: derivatives by its logit are next to zero there, and those of all frames a thousand times larger
        elsewhere.
        """
        if self.limit is None:
            nothing = np.full((2, self.problem.size + 2 * self.problem.n_local), np.inf)
            limit = self._limit(points[0], self._all("linearized", points[:1], items, nothing)[0])
            self.limit = np.where(np.isfinite(limit), limit, np.inf)
        out = self._all("linearized", points, items, self.limit)
        for k, of in enumerate(out):
            limit = np.fmax(self.limit, self._limit(points[k], of))
            if of["lost"].any() and np.any(limit > self.limit):
                out[k] = self._all("linearized", points[k : k + 1], items, limit)[0]
        return [self._whole(of) for of in out]

    def _whole(self, of):
        """In double precision, with the joints in H: tight ones are so large that in single precision nothing else would be left of it."""
        of = {name: x.astype(float) if x.dtype.kind == "f" else x for name, x in of.items()}
        if not self.problem.joined:
            return of
        H_joined = np.einsum("iej,iek->ijk", of["J_joined"], of["J_joined"])
        return of | {"H": of["H"] + H_joined, "H_joined": H_joined}

    def _limit(self, point, of):
        """Beyond which a derivative is not typical, (2, columns) as in `Problem.linearized`; NaN for a column without an effect."""
        sizes = np.where(of["ok"][:, None, None] & (of["typical"] > 0), of["typical"], np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column without an effect has no typical size
            # Items at rest have derivatives of round-off; a few in which they grow without bound are no measure either.
            large = np.nanquantile(sizes, LARGE, axis=0, method="higher")
            sizes = np.where(sizes > nothing() * large, sizes, np.nan)
            # Nor are items in which an unknown does next to nothing, beside others: friction tells by the few tosses that slide.
            effects = sizes[..., : self.problem.size] * np.nan_to_num(self.problem.unknowns.spans(point.z), nan=1.0)
            idle = effects * self.problem.horizon < np.nanmax(effects, axis=2, keepdims=True, initial=0.0)
            # Of one that is weak wherever it acts all are left.
            idle &= np.any(~idle & np.isfinite(effects), axis=0)
            sizes[..., : self.problem.size][idle] = np.nan
            return self.problem.horizon * np.nanmedian(sizes, axis=0)

    def descended(self, points, items=None):
        """What `Problem.descended` gives."""
        return self._all("descended", points, items)

    def shown(self, point, items):
        """Predictions and residuals of items: ``predicted``, ``residual``, ``q``, ``u``, ``outcome``, ``ok``."""
        return self._all("shown", [point], items)[0]

    def _all(self, kind, points, items, *limit):
        items = np.arange(self.n) if items is None else np.asarray(items, int)
        pieces = [items[i : i + self.chunk] for i in range(0, len(items), self.chunk)]
        tasks = [(point, piece) for point in points for piece in pieces]
        workers = 1 if self.lockstep else cores()
        out = [self._chunk(kind, *tasks[0], *limit)]  # compiles
        # Threads: XLA leaves the interpreter free while it computes.
        with ThreadPoolExecutor(workers) as pool:
            out += pool.map(lambda task: self._chunk(kind, *task, *limit), tasks[1:])
        n = len(pieces)
        return [{name: np.concatenate([part[name] for part in out[i * n : (i + 1) * n]]) for name in out[0]} for i in range(len(points))]

    def filled(self, numbers):
        """Numbers and items of a chunk, of which the last is filled up, so that it is the same program: with its first item, unseen."""
        filled = np.concatenate([numbers, np.repeat(numbers[:1], self.chunk - len(numbers))])
        items = {name: x[filled] for name, x in self.items.items()}
        mine = (np.arange(self.chunk) < len(numbers))[:, None, None]
        items["mask"], items["root"] = items["mask"] & mine, np.where(mine, items["root"], 0)
        if len(numbers) < self.chunk:
            items["length"] = np.where(np.arange(self.chunk) < len(numbers), items["length"], 0)
        return filled, items

    def _chunk(self, kind, point, numbers, *limit):
        filled, items = self.filled(numbers)
        out = self.program(kind)(point.z, point.local[filled], point.local[self.next[filled]], items, *limit)
        out = jax.device_get(out)
        return {name: x[: len(numbers)] for name, x in out.items()}

    def program(self, kind):
        """The compiled function ``(z, local, local of what follows, items, limit of "linearized")`` of a chunk.

        All evaluators of a problem share it.
        """
        key = kind, self.lockstep
        if key not in self.problem.programs:
            function, lockstep = getattr(self, f"_{kind}"), self.lockstep

            def program(z, local, following, items, *limit):
                each = lambda args: function(z, *args, *limit)  # noqa: E731
                args = (local, following, items)
                return jax.vmap(each)(args) if lockstep else lax.map(each, args)

            # Not its runs alone: what lies around them takes XLA longer to compile than LLVM all of it.
            self.problem.programs[key] = jax.jit(lambda *args: runs.run(lambda args: in_memory(program)(*args), args, lockstep=lockstep))
        return self.problem.programs[key]

    def _cost(self, z, local, following, item):
        cost, ok = self.problem.cost(z, local, following, item)
        return {"cost": jnp.where(ok, cost, 0), "ok": ok}

    def _linearized(self, *args):
        return _if_ok(self.problem.linearized(*args))

    def _descended(self, *args):
        return _if_ok(self.problem.descended(*args))

    def _shown(self, z, local, following, item):
        r, _, ok, shown = self.problem.residuals(z, local, following, item)
        q0, u0 = self.problem.state(z, local, item)
        return shown | {"residual": r, "q_start": q0, "u_start": u0, "ok": ok}


def _if_ok(out):
    return {name: x if name == "ok" else jnp.where(out["ok"], x, jnp.zeros_like(x)) for name, x in out.items()}
