"""What a located step is made of: segments of the wrapped scheme, and impacts between them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...numerics import linalg
from ...programs.derivatives import is_float
from .. import velocity
from ..flow import Flow, acceleration_of_persistent
from ..projection import on_constraints
from .friction import Rows, Veil, Veiled

#: Segments shorter than this part of a step are not stepped but extrapolated from one of the second length.
SHORT, REGULAR = 1e-10, 1e-8


class Place(NamedTuple):
    """Where a segment starts or ends.

    Schemes whose velocity is ahead of its coordinates have two of them; a step without an impact goes from own to own, as it is.
    """

    state: Any  # with the velocity of the time of the coordinates
    own: Any  # (n_u,) the scheme's own velocity there, where the segment is a whole step


class Record(NamedTuple):
    """A segment, as its derivative needs it; stacked over the segments of a step."""

    place: Place  # its start
    s: Any  # time from the start of the step
    length: Any
    extra: Any  # what is added to the length where it is too short to be stepped
    veil: Any  # `Veil` of contacts and friction
    valid: Any  # whether there is such a segment
    last: Any  # whether it ends with the step; otherwise with an event
    whole: Any  # whether it is the whole step
    hit: Any  # (n_N,) the contact that closes at its end
    mask: Any  # (n_N,) the contacts of the impact law there
    tangled: Any  # whether some of these hit that the impact is not felt at: they would close at another time, were anything else
    stops: Any  # (m,) the row of friction whose velocity comes to zero at its end: the side to which it slides, else 0
    continuous: Any  # whether forces do not jump at its end: a row of friction starts to slide, or a contact opens


class Contacts(NamedTuple):
    """The contacts at one state."""

    gap: Any  # (n_N,)
    rate: Any  # (n_N,) gap velocities
    directions: Any  # (n_u, n_N) absolute values of W_N
    floor: Any  # (n_N,) gaps that count as zero: round-off, and what is passed in the shortest segment
    slip: Any  # (m,) velocities of the rows of friction
    along: Any  # (n_u, m) absolute values of their directions


@dataclass(frozen=True)
class Segments:
    """Segments and impacts of a scheme's steps."""

    scheme: Any
    max_impacts: int
    settings: Any
    advance: Any  # (prepared, t, dt, state) -> (state, info), the wrapped scheme's step, with its derivative
    rows: Rows  # rows of friction whose events are located
    openings: bool  # whether openings are located
    slowest: float  # closing speed, in units of that gained in a step, below which an impact is the wrapped scheme's

    def start(self, system, t, dt, state):
        """`Place` of a state of the scheme."""
        return Place(self.ahead(self.scheme.prepare(system, dt), t, dt, state, -self.scheme.lead), state.u)

    def end(self, system, t, dt, place, whole):
        """The scheme's state at the end of a step, from the place where its last segment ended, t."""
        state = self.ahead(self.scheme.prepare(system, dt), t, dt, place.state, self.scheme.lead)
        return state._replace(u=jnp.where(whole, place.own, state.u)) if self.scheme.lead else state

    def stepped(self, system, t, length, place, veil, whole):
        """The wrapped scheme's step of this length: ``(place, info)``."""
        scheme = self.scheme
        prepared = scheme.prepare(Veiled(system, veil), length)
        state = self.ahead(prepared, t, length, place.state, scheme.lead)
        if scheme.lead:
            state = state._replace(u=jnp.where(whole, place.own, state.u))
        state, info = self.advance(prepared, t, length, state)
        return Place(self.ahead(prepared, t + length, length, state, -scheme.lead), state.u), info

    def of_length(self, record, length, system, t, place):
        """The place after a segment of this length, and how it was solved; a short one is part of a longer."""
        after, info = self.stepped(system, t, length + record.extra, place, record.veil, record.whole)
        return cut(record, length, place, after), info

    def linearized(self, record, length, system, t, place):
        """The place after a segment of this length, and its tangent, a function of those of (length, system, t, place).

        A short one moves with its start, and with its length at the rate of the motion: its extrapolation is a difference of what is
        nearly equal.
        """
        short = record.extra > 0

        def stepped(length, system, t, place):
            return self.stepped(system, t, length + record.extra, place, record.veil, record.whole)[0]

        after, push = jax.linearize(stepped, length, system, t, place)

        def tangent(d_length, *d_args):
            # Of whole numbers there are no tangents to choose from.
            d_after = push(d_length, *jax.tree.map(lambda d: jnp.where(short, 0, d) if is_float(d) else d, d_args))
            return jax.tree.map(lambda d, d_start: jnp.where(short, d + d_start, d), d_after, d_args[-1])

        return cut(record, length, place, after), tangent

    def ahead(self, prepared, t, length, state, part):
        """The state with the velocity of a time ``part length`` later, of motion whose contacts stay as they are."""
        if not part:
            return state
        rate = acceleration_of_persistent(self.scheme, prepared, self.settings, t, length, state)
        state = state._replace(u=state.u + part * length * rate)
        if part > 0:
            return state
        # At its node it obeys the bilateral rows: an impact would make percussions of what it violates them by.
        return state._replace(u=on_constraints(self.scheme.system(prepared), t, state.q, state.u))

    def restarted(self, system, t, length, state, mask):
        """``(place, P, info)`` after an impact of the contacts in ``mask``."""
        scheme = self.scheme
        prepared = scheme.prepare(Veiled(system, Veil.of_gaps(jnp.zeros_like(state.P.P_N))), length)
        u, P, info = Flow(scheme, self.settings, state.P).impact(prepared, t, state.q, state.u, mask)
        state = state._replace(u=u) if scheme.lead else scheme.init(prepared, t, length, state.q, u, self.settings)[0]
        return Place(state, state.u), P, info


def cut(record, length, place, after):
    """The place after this length of a segment that leads from ``place`` to ``after`` with what is added to its length."""
    ratio = length / (length + record.extra)
    return jax.tree.map(lambda a, b: jnp.where(record.extra > 0, b + (a - b) * ratio, a), after, place)


def contacts_at(system, rows, t, dt, q, u, moved):
    """`Contacts` at a state; ``moved``: what forces make of gap velocities (n_N,) in a step."""
    gap, rate, directions = system.gap(t, q), system.gap_velocity(t, q, u), jnp.abs(system.W_N(t, q, u))
    # A step's coordinates are rounded in the sum of what they were and what they are moved by, velocities in that of what moves them.
    eps, size = 16 * float(jnp.finfo(gap.dtype).eps), dt * (velocity.resolution(q, dt, u.shape[0]) + jnp.abs(u))
    floor = eps * (linalg.matmul(directions.T, size) + dt * moved) + SHORT * dt * jnp.abs(rate)
    return Contacts(gap, rate, directions, floor, rows.velocities(system, t, q, u), jnp.abs(rows.directions(system, t, q, u)))


def added(P, more):
    """Sum of `Percussions`."""
    return jax.tree.map(jnp.add, P, more)
