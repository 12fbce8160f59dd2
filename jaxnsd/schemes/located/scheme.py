"""Impacts at their time: a scheme that locates impacts, and what sliding does, inside of its fixed step.

Invariant: a step of length dt is made of segments. In each of them the contacts that are open do not act; a segment ends at the first
time at which one of them closes,

    g_N^i(t_k + s, q(s)) = 0,        u_plus = R(t_k + s, q(s), u(s)),

with q(s), u(s) the wrapped scheme's own step of length s and R the impact map of the system; the last segment ends at t_{k+1}. The time s
is found from the cubic through gaps and gap velocities at both ends of the segment, and then by Newton's method on the scheme's step.
Likewise friction keeps its mode in a segment (see `friction`), which ends where a sliding velocity comes to zero, or where all that
friction can do is needed to hold a contact that sticks; and so where the normal force of a closed contact comes to zero, which opens from
there on. u does not jump there.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ...contact import AbstractContactSolver
from ...mechanics.system import System
from ...programs.derivatives import ZERO, is_float, pushed, with_rule
from ...programs.given import shown
from .. import base
from ..alpha import KrenkHogsberg
from ..base import Info, Scheme
from ..flow import THRESHOLD, Flow
from ..reversals import with_one_derivative
from ..theta import MoreauJean
from . import replay
from .friction import Rows, Veil, Veiled
from .search import search
from .segments import Segments, contacts_at


class LocatedState(NamedTuple):
    """State of the wrapped scheme, and the impacts that were located in the step that ended there."""

    inner: Any
    impact_times: jax.Array  # (max_impacts,), NaN where there is none
    impact_contacts: jax.Array  # (max_impacts,), -1 where there is none

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass(frozen=True)
class LocatedImpacts(Scheme):
    """A scheme whose impacts are located inside of its step, up to ``max_impacts`` of them in each (see `jaxnsd.schemes.located`).

    The order of the scheme on smooth motion is kept across isolated impacts, where a scheme that captures events is of first order. The
    motion is then a smooth function of its parameters, and its derivatives, first and second, are those of the motion as computed, with
    the shift of every impact in time.

    So it is, with ``sliding``, where a velocity of sliding comes to zero, and the contact sticks or slides back, and where one that sticks
    starts to slide. Located is the friction of contacts with one direction, as in plane motion, and dry friction; that of contacts in space
    is captured.

    So it is, with ``openings``, where the normal force of a closed contact comes to zero, and the contact opens. Contacts whose normal
    forces are not determined, as those of a box on four corners, open where their gaps begin to. A contact that opens in the first step of
    a run, before it has pushed, is captured, and so is one that the wrapped scheme lets drift from gap zero while it is closed, as the
    alpha-schemes do.

    Where sliding starts, or a contact opens, the first derivative is that of the motion up to the order of the scheme, and the second is
    not known (NaN). Of several events in one step the first is guessed by straight lines; where another one is found in the segment to it,
    that takes its place.

    Events beyond ``max_impacts`` in a step are captured as the wrapped scheme does it, as are contacts that close slower than ``slowest``
    times the speed gained in the step: so accumulation points are passed, and what lands softly or rests is the wrapped scheme's. In coarse
    steps more impacts are that slow: a motion shows the order where none of its impacts is. A step without an event needs one look at the
    gaps more, and one that sticks a short step beside; a step with an event is repeated about four times.

    Contacts that close at the same time and feel each other have their impact together, as one. Those that do not, of bodies dropped side
    by side, have impacts of their own, each with its shift in time; the last of ``max_impacts`` takes all that are left, for the motion,
    which has no derivative (NaN) then: take a larger number.

    scheme:       any but `KrenkHogsberg`. `Lobatto` keeps its order of 2 to 8; `MoreauJean` with theta = 1/2 and the alpha-schemes are
                  of second order where the mass matrix is constant, `SymmetricMoreau` and `VariationalMoreau` in their coordinates;
                  `Moreau` of first. Linear systems are stepped as nonlinear ones, without the factors of their matrices.
    max_impacts:  impacts, events of sliding, and openings, to locate in one step
    slowest:      closing speed, in units of the speed that forces make in a step, below which an impact is captured. A smaller one follows
                  an orbit nearer to its grazing. A dip of less than a sixteenth of a step is not seen, so 0.05 is the least that is of use;
                  accumulation points then take many impacts a step, which need ``max_impacts``
    sliding:      whether the end, the reversal and the start of sliding are located
    openings:     whether the opening of closed contacts is located

    Percussions of a step are the sums over its segments; `Solution.auxiliary` holds what the last segment has, and of the step that ends at
    a node the times at which impacts were located, ``impact_times`` (N + 1, max_impacts) in s, NaN where there is none, and the contacts
    that closed then, ``impact_contacts``, -1 where there is none. Times have derivatives. A step in which nothing was located is the
    wrapped scheme's own.
    """

    scheme: Any = dataclasses.field(default_factory=MoreauJean)
    max_impacts: int = 2
    slowest: float = THRESHOLD
    sliding: bool = True
    openings: bool = True

    def __post_init__(self):
        if not isinstance(self.scheme, Scheme) or isinstance(self.scheme, LocatedImpacts):
            raise TypeError(f"LocatedImpacts: scheme must be a scheme such as jaxnsd.Lobatto(3), got {shown(self.scheme)}")
        super().__post_init__()
        if self.max_impacts < 1:
            raise ValueError(f"LocatedImpacts: max_impacts must be a positive whole number, got {self.max_impacts!r}")
        if not 0 <= self.slowest < float("inf"):
            raise ValueError(f"LocatedImpacts: slowest must be a number that is not negative, got {self.slowest!r}")

    @property
    def order(self) -> int:
        """Order of the wrapped scheme."""
        return self.scheme.order

    @property
    def lead(self) -> float:
        """That of the wrapped scheme."""
        return self.scheme.lead

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """State fields stored in the Solution: those of the wrapped scheme, and the impacts that were located."""
        return (*self.scheme.auxiliary, "impact_times", "impact_contacts")

    @property
    def unbalanced(self) -> str | None:
        """Percussions of located impacts act between the nodes."""
        return (
            "LocatedImpacts turns velocities at impacts between the nodes, so the works of percussions cannot be told from a Solution; use "
            f"{self.scheme.name}() alone, or jax.vmap(system.total_energy)(sol.t, sol.q, sol.u) for the energies at the nodes"
        )

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """What the wrapped scheme refuses; Krenk-Hogsberg knows no step of another length."""
        if isinstance(self.scheme, KrenkHogsberg):
            return "KrenkHogsberg() cannot be restarted inside of a step; use LocatedImpacts(GeneralizedAlpha())"
        return self.scheme.refuse(system, t, q, u)

    def advise(self, system: System, t: ArrayLike, q: jax.Array) -> str | None:
        """What the wrapped scheme advises."""
        return self.scheme.advise(system, t, q)

    def check(self, system: System, dt: ArrayLike) -> None:
        """What the wrapped scheme checks."""
        self.scheme.check(system, dt)

    def after_the_end(self, auxiliary: dict[str, Any]) -> dict[str, Any]:
        """That of the wrapped scheme, and no impacts."""
        inner = self.scheme.after_the_end({name: auxiliary[name] for name in self.scheme.auxiliary})
        times, contacts = auxiliary["impact_times"], auxiliary["impact_contacts"]
        return inner | {"impact_times": jnp.full_like(times, jnp.nan), "impact_contacts": jnp.full_like(contacts, -1)}

    def init(
        self, system: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[LocatedState, Info]:
        """The wrapped scheme's first node. What hits there has its impact located in the first step."""
        if self.scheme.lead:
            # Such a scheme would take what half a step of force adds to the velocity through the impact.
            flow = Flow(self.scheme, settings, base.no_percussions(system, t, q, u))
            prepared = self.scheme.prepare(system, dt)
            slow, _ = flow.gained(prepared, t, dt, q, u, flow.at(prepared, t, q, u))
            start = contacts_at(system, Rows(0, 0), t, dt, q, u, slow)
            hits = (jnp.abs(start.gap) <= start.floor) & (start.rate < -slow)
            system = Veiled(system, Veil.of_gaps(jnp.where(hits, 10 * start.floor, 0)))
        state, info = self.scheme.init(self.scheme.prepare(system, dt), t, dt, q, u, settings)
        return self.without_impact(state), info

    def without_impact(self, state: Any) -> LocatedState:
        """`LocatedState` of a step in which no impact was located."""
        return LocatedState(state, jnp.full((self.max_impacts,), jnp.nan, state.q.dtype), jnp.full((self.max_impacts,), -1, jnp.int32))

    def step(
        self,
        system: Any,
        t: ArrayLike,
        dt: ArrayLike,
        state: Any,
        settings: AbstractContactSolver,
        advance: Callable[..., Any] | None = None,
    ) -> tuple[LocatedState, Info]:
        """From node k to node k + 1; ``advance(prepared, t, dt, state)`` is the wrapped scheme's step, with its derivative."""
        advance = advance or (lambda *args: self.scheme.step(*args, settings))
        system = self.keeping_rows(system, t, dt, state.q)
        rows = Rows.of(system, state.P, self.sliding)
        if not state.P.P_N.shape[0] + rows.m:
            state, info = advance(self.scheme.prepare(system, dt), t, dt, state.inner)
            return self.without_impact(state), info
        segments = Segments(self.scheme, self.max_impacts, settings, advance, rows, self.openings, self.slowest)

        def find(system, t, dt, state):
            state, info, records = search(segments, system, t, dt, state)
            return (state, replay.times(t + records.s + records.length, records)), info, records

        def rule(primals, tangents):
            # The step found is called again, so that second derivatives know what it depends on.
            found, info, records = located(*primals)
            d_found = pushed(lambda *args: replay.replay(segments, *args, records), primals, tangents)[1]
            if rows.m or segments.openings:
                once = with_one_derivative(lambda _, records: jnp.any(records.continuous), primals, records)
                d_found = jax.tree.map(lambda x: x * once if is_float(x) else x, d_found)
            return (found, info, records), (d_found, *jax.tree.map(lambda _: ZERO, (info, records)))

        located = with_rule(find, rule)
        (after, times), info, records = located(system, t, dt, state.inner)
        return LocatedState(after, times, replay.contacts(records)), info
