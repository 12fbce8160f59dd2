"""Friction in a located step: which rows slide, to which side, and which stick.

A row is the friction of a contact that has one direction, or a row of dry friction; sliding in a plane turns, and stays the wrapped
scheme's. Invariant: in a segment a row that slides keeps its side, and one that sticks is held, whatever that takes,

    P_F = -mu P_N side   or   gamma_F = 0,

so that the motion is smooth in it. It ends where a velocity comes to zero, or where more is needed to hold a row than friction can. To the
wrapped scheme it is friction as any other, of a velocity far to that side, or of a large coefficient.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...mechanics import laws
from ...mechanics.local import Contacts

#: By how much more than friction can a row is held.
HOLD = 1e3


class Mode(NamedTuple):
    """What the rows do in a segment, each (m,); those of neither kind are left to the wrapped scheme."""

    side: jax.Array  # -1 or 1 where a row slides, the sign of its velocity; else 0
    sticks: jax.Array  # booleans

    def without(self, rows):
        """With these rows (m,) left to the wrapped scheme."""
        return Mode(jnp.where(rows, 0, self.side), self.sticks & ~rows)


class Veil(NamedTuple):
    """What a segment sees of contacts and friction; without rows of friction of a kind their arrays are empty."""

    gap: jax.Array  # (n_N,) added to the gaps
    slip: jax.Array  # (n_N,) added to the tangential velocities
    hold: jax.Array  # (n_N,) factors of their coefficients
    dry_slip: jax.Array  # (n_D,) likewise for dry friction
    dry_hold: jax.Array

    @classmethod
    def of_gaps(cls, shift):
        """With friction as it is."""
        return cls(shift, *(shift[:0] for _ in range(4)))


class Veiled:
    """A system behind a `Veil`: some of its contacts stay open, some rows of friction slide to their side or stick, whatever happens."""

    def __init__(self, system, veil):
        self.system, self.veil = system, veil

    def __getattr__(self, name):
        if name.startswith("__") or name in ("system", "veil"):
            raise AttributeError(name)
        return getattr(self.system, name)

    @property
    def scleronomic(self):
        """What is added to a velocity is there at u = 0, too."""
        return self.system.scleronomic and not self.veil.slip.shape[0] + self.veil.dry_slip.shape[0]

    def gap(self, t, q):
        """Gaps (n_N,), moved."""
        return self.system.gap(t, q) + self.veil.gap

    def tangential_velocity(self, t, q, u, *choice):
        """Tangential velocities (n_N, d), of all contacts or of those in ``choice``, where the system gathers them."""
        slip, shift = self.system.tangential_velocity(t, q, u, *choice), self.veil.slip
        if not shift.shape[0]:
            return slip
        return slip + (choice[0].take(shift) if choice else shift)[:, None]

    def contact_data(self, t, q, rate=None):
        """Contact data ``(e_N, e_F, mu)``."""
        e_N, e_F, mu = self.system.contact_data(t, q, rate)
        return e_N, e_F, mu * self.veil.hold if self.veil.hold.shape[0] else mu

    def dry_velocity(self, t, q, u):
        """Velocities of dry friction (n_D,)."""
        slip = self.system.dry_velocity(t, q, u)
        return slip + self.veil.dry_slip if self.veil.dry_slip.shape[0] else slip

    @property
    def dry_friction(self):
        """Bounds of dry friction, None of a system without."""
        bound = self.system.dry_friction
        bound = bound() if callable(bound) else bound
        return bound if bound is None or not self.veil.dry_hold.shape[0] else jnp.asarray(bound) * self.veil.dry_hold

    def seen_at(self, t, q):
        """That of the system, veiled."""
        return Veiled(self.system.seen_at(t, q), self.veil)

    def keeping_rows(self, t, q, u=None, dt=None, found=None):
        """That of the system, veiled."""
        kept = self.system.keeping_rows(t, q, u, dt, found)
        return self if kept is self.system else Veiled(kept, self.veil)

    def seen_where_kept(self, t, q, which):
        """That of the system, veiled."""
        return Veiled(self.system.seen_where_kept(t, q, which), self.veil)


jax.tree_util.register_pytree_node(Veiled, lambda veiled: ((veiled.system, veiled.veil), None), lambda _, leaves: Veiled(*leaves))


@dataclass(frozen=True)
class Rows:
    """The m rows of friction of a system: those of its n contacts, or none of them, and behind them those of dry friction."""

    n: int
    n_D: int

    @classmethod
    def of(cls, system, P, sliding):
        """Those of a system with percussions like ``P``; none unless ``sliding``."""
        n, d = P.P_F.shape
        # A matrix of a set along a line is a unit of its own, see `anisotropy`: such a row is left to the wrapped scheme.
        one = sliding and d == 1 and laws.discs(system) is None and laws.axes(system, n, P.P_F.dtype) is None
        return cls(n if one else 0, P.P_D.shape[0] if sliding and P.P_D is not None else 0)

    @property
    def m(self):
        """Their number."""
        return self.n + self.n_D

    def velocities(self, system, t, q, u):
        """(m,)."""
        parts = [system.tangential_velocity(t, q, u)[:, 0]] if self.n else []
        parts += [system.dry_velocity(t, q, u)] if self.n_D else []
        return jnp.concatenate(parts) if parts else jnp.zeros((0,), q.dtype)

    def directions(self, system, t, q, u):
        """(n_u, m)."""
        parts = [system.W_F(t, q, u)[:, :, 0]] if self.n else []
        parts += [system.W_D(t, q, u)] if self.n_D else []
        return jnp.concatenate(parts, axis=1) if parts else jnp.zeros((u.shape[0], 0), u.dtype)

    def bounds(self, system, t, dt, state):
        """Largest percussions (m,) that friction can take after a step."""
        parts = [Contacts(system).data(t, state.q).mu * state.P.P_N] if self.n else []
        parts += [dt * laws.dry_friction(system, t, state.q, state.u)] if self.n_D else []
        return jnp.concatenate(parts) if parts else jnp.zeros((0,), state.q.dtype)

    def loads(self, system, t, dt, state):
        """Percussions (m,) after a step, in units of their bounds; zero where nothing pushes."""
        parts = [state.P.P_F[:, 0]] if self.n else []
        parts += [state.P.P_D] if self.n_D else []
        bound = self.bounds(system, t, dt, state)
        return jnp.where(bound > 0, jnp.concatenate(parts) / jnp.where(bound > 0, bound, 1), 0) if parts else bound

    def of_contacts(self, x, of_dry):
        """Of something of the contacts (n_N,), that of the rows (m,), ``of_dry`` for those of dry friction."""
        return jnp.concatenate([x[: self.n], jnp.full((self.n_D,), of_dry, x.dtype)])

    def veil(self, gap, mode, far):
        """`Veil` with these shifts of the gaps; ``far``: more than the velocities (m,) change in a segment."""
        slip, hold = mode.side * far, jnp.where(mode.sticks, HOLD, 1).astype(far.dtype)
        return Veil(gap, slip[: self.n], hold[: self.n], slip[self.n :], hold[self.n :])

    def none(self, dtype):
        """`Mode` of rows that are all left to the wrapped scheme."""
        return Mode(jnp.zeros((self.m,), dtype), jnp.zeros((self.m,), bool))
