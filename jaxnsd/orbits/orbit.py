"""A periodic orbit, what became of the search for it, and the sentences that say so."""

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..simulation import checks


class OrbitOutcome(enum.IntEnum):
    """What became of the search for a periodic orbit."""

    CONVERGED = 0
    NO_RETURN = 1
    EVENT_ORDER_CHANGED = 2
    GRAZING = 3
    NOT_LOCATED = 4
    LOCKED = 5
    SIMULATION_FAILED = 6


#: code -> (what happened, what to try)
SENTENCES = {
    OrbitOutcome.CONVERGED: ("the motion returns to its start, to round-off", "nothing to do"),
    OrbitOutcome.NO_RETURN: (
        "Newton's method found no start to which the motion returns",
        "a guess nearer to the orbit, settle= if it attracts, or another period",
    ),
    OrbitOutcome.EVENT_ORDER_CHANGED: (
        "Newton's method did not converge, and the sequence of impacts changed on the way",
        "a guess with the impacts of the orbit, or settle= if it attracts",
    ),
    OrbitOutcome.GRAZING: (
        "an impact is slower than what LocatedImpacts locates, so the map is not that of the motion: the orbit is near a grazing",
        "more steps a period, or a smaller LocatedImpacts(..., slowest=)",
    ),
    OrbitOutcome.NOT_LOCATED: (
        "contacts close on the steps of the scheme, which does not locate impacts: its period map is discontinuous",
        "LocatedImpacts(scheme)",
    ),
    OrbitOutcome.LOCKED: (
        "a contact with restitution stays closed: impacts have accumulated, and the motion has forgotten how it came there",
        "a start with faster impacts, or stronger forcing",
    ),
    OrbitOutcome.SIMULATION_FAILED: (
        "a step of the simulation failed",
        "orbit.solution.raise_if_failed() says which one, and why",
    ),
}


class OrbitError(RuntimeError):
    """A periodic orbit was not found; the message says why, and what to try."""


class Impact(NamedTuple):
    """An impact of an orbit."""

    time: float  # s
    contact: int
    percussion: float  # N s, of this contact in the step in which the impact is


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Orbit:
    """A periodic orbit, or what the search for one has ended with; a pytree, with leading axes in a batch.

    ==============  ============  =================================================================================
    ``q, u, t0``    (n_q,), (n_u,), ()  the start: coordinates, velocities, time in s
    ``period``      ()            T in s
    ``solution``    `jaxnsd.Solution` of one period
    ``monodromy``   (n, n)        derivative of the state after a period by that at its start, n = n_q + n_u; of autonomous motion with the
                                  shift in time of the return to the section, where the reset is no symmetry (a saltation matrix)
    ``jacobian``    (n + 1, n + 2)  derivative of the equations of the orbit by state, period and the parameter that is followed
    ``residual``    ()            what the state misses its start by, largest entry, in units of the state
    ``outcome``     ()            `OrbitOutcome` code; ``sentence`` says what it means
    ``iterations``  ()            motions that were simulated
    ``system``      the system whose orbit it is
    ==============  ============  =================================================================================
    """

    system: Any
    q: Any
    u: Any
    t0: Any
    period: Any
    solution: Any
    monodromy: Any
    jacobian: Any
    residual: Any
    outcome: Any
    iterations: Any
    shooting: Any = field(default=None, metadata={"static": True})

    def __repr__(self) -> str:
        """One line: outcome, period, multipliers."""
        if not checks.known(*jax.tree.leaves((self.period, self.outcome))):
            return "Orbit(traced)"
        if np.ndim(self.outcome):
            return f"Orbit(batch of {np.shape(self.outcome)}, {int(np.sum(np.asarray(self.outcome) == 0))} CONVERGED)"
        name = OrbitOutcome(int(self.outcome)).name
        with np.printoptions(precision=6):
            return f"Orbit({name}, period = {float(self.period):.8g} s, multipliers = {np.asarray(self.multipliers)})"

    @property
    def success(self) -> jax.Array:
        """Whether the orbit was found: a boolean, with the batch's shape."""
        return self.outcome == OrbitOutcome.CONVERGED

    @property
    def autonomous(self) -> bool:
        """Whether the period is an unknown, and one multiplier the trivial one."""
        return self.shooting.section is not None

    @property
    def multipliers(self) -> jax.Array:
        """Eigenvalues of the monodromy matrix (n,), complex, the largest first. They have derivatives where they are distinct."""
        values = jnp.linalg.eigvals(self.monodromy)
        return jnp.take_along_axis(values, jnp.argsort(-jnp.abs(values), axis=-1, stable=True), axis=-1)

    @property
    def trivial(self) -> jax.Array:
        """Which of the multipliers is the trivial one, that of a shift in time, which is 1: boolean (n,); none in forced motion."""
        values = self.multipliers
        nearest = jnp.argmin(jnp.abs(values - 1), axis=-1)
        return (jnp.arange(values.shape[-1]) == nearest[..., None]) & self.autonomous

    @property
    def stable(self) -> jax.Array:
        """Whether all multipliers but the trivial one are inside of the unit circle: a boolean, with the batch's shape."""
        return jnp.all((jnp.abs(self.multipliers) < 1) | self.trivial, axis=-1)

    @property
    def error(self) -> jax.Array:
        """Distance of the trivial multiplier from 1, an estimate of the relative error of the monodromy matrix; NaN in forced motion.

        There the distance to `refined` is one.
        """
        distance = jnp.min(jnp.abs(self.multipliers - 1), axis=-1)
        return distance if self.autonomous else jnp.full_like(distance, jnp.nan)

    @property
    def impacts(self) -> list[Impact]:
        """The impacts of the orbit in their order, those that were located; on the host, of one orbit."""
        sol = self.solution
        if "impact_times" not in sol.auxiliary:
            return []
        times, contacts = (np.asarray(jax.lax.stop_gradient(sol.auxiliary[name])) for name in ("impact_times", "impact_contacts"))
        P = np.asarray(jax.lax.stop_gradient(sol.P_N))
        found = [
            Impact(float(times[k, j]), int(contacts[k, j]), float(P[k - 1, contacts[k, j]]))
            for k, j in zip(*np.nonzero(contacts >= 0), strict=True)
        ]
        return sorted(found)

    @property
    def events(self) -> tuple[int, ...]:
        """Sequence of events: the contacts that close, in their order."""
        return tuple(impact.contact for impact in self.impacts)

    @property
    def repeats(self) -> int:
        """How many times the motion returned to its start in one period: 1, unless the period is a multiple of the true one.

        Looked for at the nodes, so among the divisors of the number of steps up to 16; on the host, of one orbit without a reset.
        """
        n_steps = self.shooting.n_steps
        if self.shooting.reset is not None:
            return 1
        states = np.concatenate([np.asarray(self.solution.q), np.asarray(self.solution.u)], axis=1)
        size = np.abs(states).max(axis=0)
        back = [m for m in range(2, 17) if n_steps % m == 0 and np.all(np.abs(states[n_steps // m] - states[0]) <= 1e-6 * size)]
        return max(back, default=1)

    @property
    def sentence(self) -> str:
        """The outcome in words, with what to try; on the host, of one orbit."""
        code = OrbitOutcome(int(self.outcome))
        what, advice = SENTENCES[code]
        if code == OrbitOutcome.CONVERGED:
            return f"CONVERGED: {what}.{self._remarks()}"
        if code == OrbitOutcome.NO_RETURN and self.autonomous:
            what += self._on_the_way()
        return f"{code.name}: {what} (residual {float(self.residual):.3g} after {int(self.iterations)} motions). What to try: {advice}."

    def _remarks(self):
        """What a user may not have meant of an orbit that was found."""
        times, contacts = self.repeats, self.solution.P_N.shape[1]
        text = f" It does so {times} times in this period, which is {times} times the true one." if times > 1 else ""
        return text + (
            " No contact closes in it." if contacts and not np.any(np.asarray(self.solution.P_N) > 0) and not self.events else ""
        )

    def _on_the_way(self):
        """Why autonomous motion may not return."""
        sol, shooting = self.solution, self.shooting
        after = jax.vmap(lambda t, q, u: shooting.after_reset(self.system, t, q, u))(sol.t, sol.q, sol.u)
        values = jax.vmap(lambda t, z: shooting.on_section(self.system, t, z[: shooting.n_q], z[shooting.n_q :]))(sol.t, after)
        values = np.asarray(values)[1:-1]
        crossed = np.any(values > 0) and np.any(values < 0)
        return ", or none but an equilibrium" + ("" if crossed else "; the motion that it ended with does not cross the section")

    def raise_if_failed(self) -> "Orbit":
        """Raise `OrbitError` with the `sentence` if the orbit was not found; otherwise return it. On the host, of one orbit or a batch."""
        codes = np.asarray(jax.lax.stop_gradient(self.outcome))
        if not codes.any():
            return self
        if codes.ndim == 0:
            raise OrbitError(self.sentence)
        failed = np.argwhere(codes != 0)
        member = tuple(int(i) for i in failed[0])
        one = dataclasses.replace(jax.tree.map(lambda x: x[member], dataclasses.replace(self, system=None)), system=self.system)
        raise OrbitError(f"{len(failed)} of {codes.size} orbits were not found; the first is {member}: {one.sentence}")
