"""What a solver of contact problems is: the interface that time steps and `jaxnsd.solve_contact_problem` call."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from . import problem as law


class Result(NamedTuple):
    """Solution of a contact problem."""

    z: object  # percussions in internal order
    iterations: object  # Newton iterations, those after a rescue included; a closed form counts as one
    error: object  # largest entry of the natural map over its bound: converged where <= 1
    residual: object  # largest entry of the natural map, in units of percussion
    contact: object  # contact with the largest entry where the problem was not solved, else -1


def settings(solver, at_least):
    """Check the tolerance of a solver, and that its bounds are whole numbers, ``at_least`` so large."""
    name, tolerance = type(solver).__name__, solver.tolerance
    number = isinstance(tolerance, (int, float, np.number)) and not isinstance(tolerance, bool)
    if tolerance is not None and not (number and 0 < tolerance < 1):
        raise ValueError(f"{name}: tolerance must be a number between 0 and 1, got {tolerance!r}")
    for field, least in at_least.items():
        value = getattr(solver, field)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(f"{name}: {field} must be a whole number, got {value!r}")
        if value < least:
            must = f"be at least {least}" if least else "not be negative"
            raise ValueError(f"{name}: {field} must {must}, got {value!r}")


class AbstractContactSolver:
    """A solver of contact problems, given to ``simulate(..., solver=)`` and ``solve_contact_problem(..., solver=)``.

    A solver of one's own derives from it and writes `solve`. It is hashable, with equality by value: a frozen dataclass, as its settings
    are constants of a compilation.

    tolerance:  bound of every row of the natural map, relative to the terms that this row is made of; None: 1e-12 in float64, 2e-6 in
                float32. Schemes that iterate use it for their own equations too
    max_outer:  bound of the iterations on the smooth equations, for schemes that are implicit in the velocity
    general:    whether `solve` takes what other laws than `NewtonImpact` with one disc ask for: several discs on one normal percussion,
                and a least normal percussion (see `Problem`); else such laws are refused
    unpacked:   whether `solve` takes small problems as object arrays of scalars as well (see `numerics.linalg`); else it gets JAX arrays
    """

    tolerance: float | None = None
    max_outer: int = 20
    general: bool = False
    unpacked: bool = False

    def tolerance_for(self, dtype: DTypeLike) -> float:
        """The tolerance in force for a dtype."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-12 if jnp.finfo(dtype).bits == 64 else 2e-6

    def solve(self, problem: law.Problem, guess: law.Rows, *, refine: bool = False) -> Result:
        """`Result` of a `Problem` from the percussions ``guess``, in the problem's order of rows. Pure JAX, never differentiated.

        With ``refine`` a guess that solves the problem to the tolerance is to be improved all the same, as far as round-off allows.
        ``problem.rounding``, where it is given, is what a row may be off by beside the tolerance.
        """
        raise NotImplementedError(f"{type(self).__name__} must write solve(problem, guess, *, refine=False)")

    def response(
        self, problem: law.Problem, z: law.Rows, xi: law.Rows, dxi: law.Rows, dmu: law.Rows, dleast: law.Rows | None = None
    ) -> law.Rows:
        """Derivative dz of the solution, linear in ``dxi`` (at fixed z) and ``dmu``: see `jaxnsd.contact.problem.response`.

        ``dleast`` is given where the problem has a least normal percussion.
        """
        return law.response(problem, z, xi, dxi, dmu, dleast)

    def yielding(self, problem: law.Problem, z: law.Rows) -> tuple[law.Rows, law.Rows | None]:
        """``(z, compliance)``: percussions of contacts that yield a little, ``xi + compliance z`` in place of xi, in a row of each.

        What `solve` finds is their limit; the derivative of a time step is theirs. ``(z, None)``: contacts are rigid.
        """
        return z, None

    def nearby(self) -> "AbstractContactSolver":
        """The solver for problems next to one that was solved: it may be less robust, and compile faster."""
        return self
