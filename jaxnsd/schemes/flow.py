"""What a system does at an event of a contact: its impact map, and its accelerations before and after.

They come from the system, not from the scheme that steps it; a scheme lends its factors of the mass matrix where it has some.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import contact
from ..mechanics import laws
from ..numerics import linalg, thresholds
from . import velocity
from .condensed import kinematics
from .gathered import Place
from .velocity import Law, Step, pytree, static

#: A contact that closes faster than this multiple of the speed that the forces make in a step has an impact; a slower one persists.
THRESHOLD = 1.5


def gained(system, inertia, kin, t, dt, q, u):
    """Bound, `THRESHOLD` included, of what the forces make of every contact velocity in a step; ``inertia`` is of the mass matrix."""
    change, _ = inertia.free(jnp.zeros_like(u), -dt * system.h(t, q, u), jnp.zeros_like(kin.chi_b))
    # Nothing moves slower than the round-off of the coordinates.
    round_off = thresholds.round_off(u.dtype) * velocity.resolution(q, dt, u.shape[0])
    return THRESHOLD * jnp.sum(jnp.abs(kin.W * (jnp.abs(linalg.pack(change)) + round_off)[:, None]), axis=0)


def turned(system, u, start, end):
    """Bounds as in `Flow.gained` of what kinematics make of contact velocities at constant u from one (t, q) to another, in a step.

    Curvature, or a table that accelerates: a contact that never opens closes that fast where the step would take it freely.
    """
    before, after = ((system.gap_velocity(t, q, u), system.tangential_velocity(t, q, u)) for t, q in (start, end))
    return jax.tree.map(lambda a, b: lax.stop_gradient(THRESHOLD * jnp.abs(b - a)), before, after)


class Flow:
    """Impact map and one-sided accelerations of a system, for steps of a given length.

    P: percussions to start the solution from. What is differentiated are the arguments ``prepared, t, dt, q, u`` of the methods.
    """

    def __init__(self, scheme, settings, P):
        self.scheme, self.settings = scheme, settings
        self.P = jax.tree.map(lax.stop_gradient, P)
        self.n, self.d = P.P_F.shape

    def gained(self, prepared, t, dt, q, u):
        """Bounds of what the forces make of the contact velocities in a step: (n,) normal, (n, d) tangential; constants."""
        system = self.scheme.system(prepared)
        kin = kinematics(system, t, q, u)
        inertia = self.scheme.inertia(prepared, t, q, u, kin)
        return contact.split(lax.stop_gradient(gained(system, inertia, kin, t, dt, q, u)), self.n, self.d)

    def impact(self, prepared, t, q, u, mask):
        """The impact map: velocity after the impact of the contacts in ``mask``, its percussions, and how it was solved."""
        return self.captured(prepared, t, None, q, u, mask)

    def captured(self, prepared, t, dt, q, u, mask, solution=None):
        """Velocity after a step of the forces at (t, q) and the impact law there; ``solution``: it, and the percussions, where known."""
        return self.solve(prepared, t, dt, q, u, None, mask, solution=solution)

    def acceleration(self, prepared, t, dt, q, u, mask, slow, placed=None, on=0):
        """du/dt (n_u,) of the motion in which the contacts of ``mask`` are closed, and the forces (N) of contacts and constraints in it.

        Contact velocities below ``slow`` count as zero. ``placed`` is ``prepared`` at (t, q), where it is known. ``on``: as in `kept`.
        """
        placed = prepared if placed is None else placed
        kept, kept_b = self.kept(placed, t, q, u, slow, on)
        after, P, _ = self.solve(prepared, t, dt, q, u, kept, mask, placed, kept_b)
        return (after - u) / dt, jax.tree.map(lambda x: x / dt, P)

    def kept(self, placed, t, q, u, slow, on=0):
        """What of the velocities at (t, q) is no acceleration: its negative for contacts, (n (d + 1),), itself for bilateral rows, or None.

        ``placed``: `prepared` at (t, q); ``on``: slip (n, d) that is added to what friction opposes.
        """
        system = self.scheme.system(placed)
        kin = kinematics(system, t, q, u)
        rate_N, rate_F = contact.split(linalg.matmul(kin.W.T, u) + kin.chi, self.n, self.d)
        slow_N, slow_F = slow
        # What is left of the normal velocity of a closed contact, or of the tangential one of a contact that sticks, is no acceleration.
        closed = jnp.abs(rate_N) <= slow_N
        kept_F = []
        for size in laws.discs(system) or (self.d,):
            first = sum(part.shape[1] for part in kept_F)
            rate, slow = rate_F[:, first : first + size], slow_F[:, first : first + size]
            sticks = jnp.sum(rate * rate, axis=1) <= jnp.sum(slow * slow, axis=1)
            kept_F.append(jnp.where((closed & sticks)[:, None], -rate, 0))
        kept = contact.join(jnp.where(closed, -rate_N, 0), jnp.concatenate(kept_F, axis=1) + on)
        # Likewise for bilateral rows: u may be of the node before, and what it violates them by here is no acceleration either.
        return kept, linalg.matmul(kin.W_b.T, u) + kin.chi_b if kin.chi_b.shape[0] else None

    def either(self, ahead, forced, prepared, at, t, dt, q, u, along, mask, slow, on):
        """``((x, P), tangent)``: those of `acceleration` where ``ahead``, else of `impact`, with its tangent along the motion.

        Where ``forced``, and not ahead, it is `captured`. One contact problem for all, which is compiled once. at: `Place` at (t, q), and
        its tangent; along: those of q and u
        """
        here, d_here = at
        system = self.scheme.system(prepared)
        later = Place.of(system, t + dt, q + dt * system.q_dot(t, q, u), u)._replace(M=here.M)
        place, d_place = jax.tree.map(lambda a, b: jnp.where(ahead, a, b), (later, jax.tree.map(jnp.zeros_like, here)), (here, d_here))
        kept, kept_b = jax.tree.map(lambda x: jnp.where(ahead, x, 0), self.kept(self.scheme.placed(prepared, here), t, q, u, slow, on))
        h = jnp.where(ahead | forced, system.h(t, q, u), 0)

        def solved(place, t, q, u):
            placed = self.scheme.placed(prepared, place, h)
            return self.solve(placed, t, dt, q, u, kept, mask, kept_b=kept_b, bounces=jnp.where(ahead, 0, jnp.ones_like(t)))[:2]

        (after, P), tangent = jax.jvp(solved, (place, t, q, u), (d_place, jnp.ones_like(t), *along))
        change = (after - u) / dt, jax.tree.map(lambda x: x / dt, P)
        return jax.tree.map(lambda a, b: jnp.where(ahead, a, b), change, (after, P)), tangent

    def solve(self, prepared, t, dt, q, u, kept, mask, placed=None, kept_b=None, bounces=None, solution=None):
        """``(u, P, info)`` of ``M (u - u_minus) = dt h + W P`` from (t, q), with the contact law on those contacts that ``mask`` names.

        It is the impact law at (t, q), or, with ``prepared`` at (t, q) as ``placed``, the law without restitution at the configuration dt
        ahead. ``bounces``: what the restitution of the impact law is multiplied by, or None; ``solution``: (u, P) where known, or None.
        """
        step = FlowStep(prepared, t, dt, q, u, kept, mask.astype(u.dtype), placed, kept_b, bounces, self.scheme)
        if solution:
            return velocity.solve_phase(step, *solution, self.settings, solved=True)
        return velocity.solve(step, u, self.P, self.settings)


def acceleration_of_persistent(scheme, prepared, settings, t, dt, state):
    """du/dt (n_u,) of the motion at a state of a scheme, whose closed contacts stay closed."""
    # Near problems that were solved: without the globalization they compile in a third of the time.
    flow = Flow(scheme, settings.nearby(), state.P)
    system = scheme.system(prepared)
    ahead = t + dt, state.q + dt * system.q_dot(t, state.q, state.u)
    slow = jax.tree.map(jnp.add, flow.gained(prepared, t, dt, state.q, state.u), turned(system, state.u, (t, state.q), ahead))
    closed = (system.gap(t, state.q) <= 0) & (jnp.abs(system.gap_velocity(t, state.q, state.u)) <= slow[0])
    return flow.acceleration(prepared, t, dt, state.q, state.u, closed, slow)[0]


@pytree
class FlowStep(Step):
    """A step of the forces at (t, q) alone, of the contacts in a mask: by the impact law at (t, q), or without restitution dt ahead."""

    prepared: Any
    t: Any
    dt: Any  # None: an impact, without forces
    q: Any
    u_minus: Any
    kept: Any  # (n (d + 1),) added to xi, or None
    mask: Any  # (n,) contacts that are closed: positive
    placed: Any  # None: the impact law at (t, q); else ``prepared`` at (t, q), and the law is that dt ahead
    kept_b: Any  # velocities of the bilateral rows that stay, or None
    bounces: Any  # factor of the impact law's restitution, or None
    scheme: Any = static()

    linear: ClassVar[bool] = True

    @property
    def impact(self):
        """Whether it is the impact law."""
        return self.placed is None

    @property
    def system(self):
        """The system."""
        return self.scheme.system(self.prepared)

    @property
    def here(self):
        """``prepared`` at (t, q)."""
        return self.prepared if self.impact else self.placed

    def balance(self, u, p=None):
        """``M (u - u_minus) - dt h``."""
        del p
        t, q, u_minus = self.t, self.q, self.u_minus
        change = self.scheme.mass_times(self.here, t, q, u_minus, u - u_minus)
        return change if self.dt is None else change - self.dt * self.system.h(t, q, u_minus)

    def place(self):
        """(t, q), or the configuration dt ahead."""
        if self.impact:
            return self.t, self.q
        return self.t + self.dt, self.q + self.dt * self.system.q_dot(self.t, self.q, self.u_minus)

    def kinematics(self):
        """With what is kept of the bilateral rows."""
        kin = super().kinematics()
        return kin if self.kept_b is None else kin._replace(chi_b=kin.chi_b - self.kept_b)

    def expands(self):
        """Contacts that stay closed have no impact."""
        return self.impact and super().expands()

    def law(self, kin):
        """The impact law, or that of contacts which stay closed."""
        if not self.impact:
            return Law(self.kept, self.system.contact_data(self.t, self.q)[2])
        law = super().law(kin)
        if self.bounces is not None:
            law = law._replace(rebound=self.bounces * law.rebound)
        return law if self.kept is None else law._replace(rebound=law.rebound + self.kept)

    def active(self):
        """Those of the mask."""
        return self.mask > 0

    def condensed(self, u, kin):
        """With the scheme's factors of the mass matrix."""
        return self.balance(u), self.scheme.inertia(self.here, self.t, self.q, u, kin)
