"""What a system does at an event of a contact: its impact map, and its accelerations before and after.

They come from the system, not from the scheme that steps it; a scheme lends its factors of the mass matrix where it has some.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import contact
from ..mechanics import laws
from ..mechanics.local import Contacts, kinematics
from ..numerics import linalg, thresholds
from . import dry_friction, velocity
from .velocity import Law, Step, pytree, static

#: A contact that closes faster than this multiple of the speed that the forces make in a step has an impact; a slower one persists.
THRESHOLD = 1.5


def gained(system, inertia, kin, h, t, dt, q, u):
    """Bound, `THRESHOLD` included, of what the forces h make of every contact velocity in a step; ``inertia`` is of the mass matrix."""
    forces = dt * h
    if (dry := dry_friction.of(system, t, q, u, dt)) is not None:
        forces = jnp.abs(forces) + linalg.matmul(jnp.abs(dry.W), dry.bound)
    change, _ = inertia.free(jnp.zeros_like(u), -forces, jnp.zeros_like(kin.chi_b))
    # Nothing moves slower than the round-off of the coordinates.
    round_off = thresholds.round_off(u.dtype) * velocity.resolution(q, dt, u.shape[0])
    return THRESHOLD * jnp.sum(jnp.abs(kin.W * (jnp.abs(linalg.pack(change)) + round_off)[:, None]), axis=0)


def turned(system, u, start, end):
    """Bounds as in `Flow.gained` of what kinematics make of contact velocities at constant u from one (t, q) to another, in a step.

    Curvature, or a table that accelerates: a contact that never opens closes that fast where the step would take it freely.
    """
    contacts = Contacts(system)
    before, after = ((contacts.gap_velocity(t, q, u), contacts.tangential_velocity(t, q, u)) for t, q in (start, end))
    return jax.tree.map(lambda a, b: lax.stop_gradient(THRESHOLD * jnp.abs(b - a)), before, after)


class Flow:
    """Impact map and one-sided accelerations of a system, for steps of a given length.

    P: percussions to start the solution from. What is differentiated are the arguments ``prepared, t, dt, q, u`` of the methods.
    """

    def __init__(self, scheme, settings, P):
        self.scheme, self.settings = scheme, settings
        self.P = jax.tree.map(lax.stop_gradient, P)
        self.n, self.d = P.P_F.shape

    def at(self, prepared, t, q, u):
        """`Local` at (t, q)."""
        return self.scheme.local(prepared, t, q, u)

    def gained(self, prepared, t, dt, q, u, here):
        """Bounds of what the forces make of the contact velocities in a step: (n,) normal, (n, d) tangential; constants.

        here: `Local` at (t, q)
        """
        inertia = self.scheme.inertia(prepared, here.M, here.kin)
        system = self.scheme.system(prepared)
        bounds = gained(system, inertia, here.kin, system.h(t, q, u), t, dt, q, u)
        return contact.split(lax.stop_gradient(bounds), self.n, self.d)

    def impact(self, prepared, t, q, u, mask, here=None):
        """The impact map: velocity after the impact of the contacts in ``mask``, its percussions, and how it was solved.

        here: `Local` at (t, q), where it is known
        """
        here = self.at(prepared, t, q, u) if here is None else here
        return self.solve(FlowStep(prepared, t, None, q, u, here.M, None, here.kin, None, mask.astype(u.dtype), scheme=self.scheme))

    def captured(self, prepared, t, dt, q, u, mask, solution=None):
        """Velocity after a step of the forces at (t, q) and the impact law there; ``solution``: it, and the percussions, where known."""
        system, here = self.scheme.system(prepared), self.at(prepared, t, q, u)
        h, dry = system.h(t, q, u), dry_friction.of(system, t, q, u, dt)
        step = FlowStep(prepared, t, dt, q, u, here.M, h, here.kin, dry, mask.astype(u.dtype), scheme=self.scheme)
        return self.solve(step) if solution is None else velocity.solve_phase(step, *solution, self.settings, solved=True)

    def acceleration(self, prepared, t, dt, q, u, mask, slow, here, on=0, kept_D=0):
        """du/dt (n_u,) of the motion in which the contacts of ``mask`` are closed, and the forces (N) of contacts and constraints in it.

        Contact velocities below ``slow`` count as zero. here: `Local` at (t, q). ``on``: as in `kept`. ``kept_D``: what is added to the
        velocities of dry friction, (n_D,).
        """
        system = self.scheme.system(prepared)
        ahead = t + dt, q + dt * system.q_dot(t, q, u)
        kept, kept_b = self.kept(system, here.kin, u, slow, on)
        kin, dry = kinematics(system, *ahead, u), dry_friction.of(system, *ahead, u, dt)
        kin = kin._replace(chi_b=kin.chi_b - kept_b)
        dry = None if dry is None else dry._replace(chi=dry.chi + kept_D)
        mask, h = mask.astype(u.dtype), system.h(t, q, u)
        after, P, _ = self.solve(FlowStep(prepared, t, dt, q, u, here.M, h, kin, dry, mask, kept, impact=False, scheme=self.scheme))
        return (after - u) / dt, jax.tree.map(lambda x: x / dt, P)

    def kept(self, system, kin, u, slow, on=0):
        """What of the velocities, of these `Kinematics`, is no acceleration: its negative for contacts, (n (d + 1),), itself for bilateral
        rows.

        ``on``: slip (n, d) that is added to what friction opposes.
        """
        rate_N, rate_F = contact.split(kin.at_contacts(u), self.n, self.d)
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
        return kept, kin.at_constraints(u)

    def either(self, ahead, forced, prepared, at, t, dt, q, u, along, mask, slow, on):
        """``((x, P), tangent)``: those of `acceleration` where ``ahead``, else of `impact`, with its tangent along the motion.

        Where ``forced``, and not ahead, it is `captured`. One contact problem for all, which is compiled once. at: `Local` at (t, q), and
        its tangent; along: those of q and u
        """
        here, d_here = at
        system = self.scheme.system(prepared)
        kept, kept_b = jax.tree.map(lambda x: jnp.where(ahead, x, 0), self.kept(system, here.kin, u, slow, on))
        later = self.at(prepared, t + dt, q + dt * system.q_dot(t, q, u), u).kin
        later, still = later._replace(chi_b=later.chi_b - kept_b), jax.tree.map(jnp.zeros_like, here)
        place, d_place = jax.tree.map(lambda a, b: jnp.where(ahead, a, b), (here._replace(kin=later), still), (here, d_here))
        h = jnp.where(ahead | forced, system.h(t, q, u), 0)
        bounces, acts = (jnp.where(x, jnp.ones_like(t), 0) for x in (~ahead, ahead | forced))

        def solved(place, t, q, u):
            dry = dry_friction.of(system, t, q, u, dt)
            dry = None if dry is None else dry._replace(bound=acts * dry.bound)
            step = FlowStep(prepared, t, dt, q, u, place.M, h, place.kin, dry, mask.astype(u.dtype), kept, bounces, scheme=self.scheme)
            return self.solve(step)[:2]

        (after, P), tangent = jax.jvp(solved, (place, t, q, u), (d_place, jnp.ones_like(t), *along))
        change = (after - u) / dt, jax.tree.map(lambda x: x / dt, P)
        return jax.tree.map(lambda a, b: jnp.where(ahead, a, b), change, (after, P)), tangent

    def solve(self, step):
        """``(u, P, info)`` of a `FlowStep`."""
        return velocity.solve(step, step.u_minus, self.P, self.settings)


def acceleration_of_persistent(scheme, prepared, settings, t, dt, state):
    """du/dt (n_u,) of the motion at a state of a scheme, whose closed contacts stay closed."""
    # Near problems that were solved: without the globalization they compile in a third of the time.
    flow = Flow(scheme, settings.nearby(), state.P)
    system = scheme.system(prepared)
    ahead, here = (t + dt, state.q + dt * system.q_dot(t, state.q, state.u)), flow.at(prepared, t, state.q, state.u)
    slow = flow.gained(prepared, t, dt, state.q, state.u, here)
    slow = jax.tree.map(jnp.add, slow, turned(system, state.u, (t, state.q), ahead))
    closed = (here.gap <= 0) & (jnp.abs(here.gap_velocity(state.u)) <= slow[0])
    return flow.acceleration(prepared, t, dt, state.q, state.u, closed, slow, here)[0]


@pytree
class FlowStep(Step):
    """A step ``M (u - u_minus) = dt h + W P`` of known forces, with the contacts in a mask: by the impact law, or without restitution.

    What it depends on is data: M, h, and the `Kinematics`, at (t, q) by the impact law, else at the configuration dt ahead.
    """

    prepared: Any
    t: Any
    dt: Any  # None: an impact, without forces
    q: Any
    u_minus: Any
    M: Any  # (n_u, n_u); None where the scheme has its factors
    h: Any  # (n_u,), or None
    kin: Any  # `Kinematics` of contacts and constraints
    friction: Any  # `dry_friction.Dry`, or None: in an instant it does nothing
    mask: Any  # (n,) contacts that are closed: positive
    kept: Any = None  # (n (d + 1),) added to xi, or None
    bounces: Any = None  # factor of the impact law's restitution, or None
    impact: Any = static(default=True)  # whether it is the impact law
    scheme: Any = static(default=None)

    linear: ClassVar[bool] = True

    @property
    def system(self):
        """The system."""
        return self.scheme.system(self.prepared)

    def balance(self, u, p=None):
        """``M (u - u_minus) - dt h``."""
        del p
        change = self.scheme.mass_times(self.prepared, self.M, u - self.u_minus)
        return change if self.h is None else change - self.dt * self.h

    def place(self):
        """(t, q), where restitution and friction are asked for."""
        return self.t, self.q

    def kinematics(self):
        """Those given."""
        return self.kin

    def dry(self):
        """That given."""
        return self.friction

    def expands(self):
        """Contacts that stay closed have no impact."""
        return self.impact and super().expands()

    def law(self, kin):
        """The impact law, or that of contacts which stay closed."""
        if not self.impact:
            return Law(self.kept, self.contacts.data(self.t, self.q).mu)
        law = super().law(kin)
        if self.bounces is not None:
            law = law._replace(rebound=self.bounces * law.rebound)
        return law if self.kept is None else law._replace(rebound=law.rebound + self.kept)

    def active(self):
        """Those of the mask."""
        return self.mask > 0

    def condensed(self, u, kin):
        """With the scheme's factors of the mass matrix."""
        return self.balance(u), self.scheme.inertia(self.prepared, self.M, kin)
