"""The velocity-level problem of one step: what it consists of, its solution, and the derivative of the solution.

One step of a scheme that treats contact on velocity level finds ``u`` and the percussions with

    R(u) = W_b P_b + W_N P_N + W_F P_F + W_D P_D,      0 = W_b^T u + chi_b,      (P_N, P_F) and xi(u) obey the contact law,

and P_D and the velocities of dry friction theirs (see `dry_friction`); R is the scheme's momentum balance without percussions. Each
iteration linearizes R at the last ``u``, condenses ``u`` and the bilateral percussions ``P_b`` away and solves the contact problem that is
left with the Delassus operator.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import contact
from ..mechanics import laws
from ..mechanics.local import Contacts, kinematics
from ..native.marks import shared, when_needed
from ..numerics import linalg, thresholds
from ..numerics.newton import implicit, iterate, storing_solutions
from ..programs.derivatives import pushed
from ..programs.pytrees import pytree, static
from . import dry_friction, gathered
from .base import Info, Percussions, nothing_to_solve, total
from .condensed import Condensed, impulse

__all__ = ["Law", "Response", "Step", "pytree", "resolution", "restitution", "solve", "static"]


class Law(NamedTuple):
    """The contact law of a step: ``xi = W^T u + chi + rebound``."""

    rebound: jax.Array  # (n (d + 1),) e (W^T u_minus + chi), in the contact solver's order
    mu: jax.Array  # (n,) friction coefficients, or (n, number of discs)
    least: jax.Array | None = None  # (n,) least normal percussion; None: zero


class Step:
    """The velocity-level problem of one step, as a value: equations are methods, fields are what they depend on.

    A subclass is decorated with `pytree` and has the fields (or properties) ``system, dt, q, u_minus``: the velocity ``u_minus`` (n_u,)
    arrives, ``q`` (n_q,) is of a node. It writes `balance`, `place` and `active`; the rest has defaults.
    """

    #: Whether the balance is linear in u, so that one iteration is enough.
    linear: ClassVar[bool] = False
    #: Whether the step is solved with its active contacts alone, see `gathered`: then ``choice`` is a field. It pays where steps are many,
    #: not for events.
    gathers = False
    #: `contact.Choice` of the contacts that the step has; None: all.
    choice = None
    #: Whether contacts are asked for at `place` alone; then there is a method `placed`, with all of that evaluated.
    at_one_place: ClassVar[bool] = False

    @property
    def contacts(self):
        """`Contacts` of the step."""
        return Contacts(self.system, self.choice)

    def restricted(self, choice):
        """The step of the chosen contacts alone."""
        return dataclasses.replace(self, choice=choice)

    def balance(self, u, p=None):
        """R(u) (n_u,), the momentum balance without percussions: ``R(u) = p`` with the impulse ``p = W z + W_b P_b``.

        Where the impulse enters R as well (see `effect`) it is given; None: there is none.
        """
        raise NotImplementedError

    def place(self):
        """``(t, q)`` at which contacts and constraints are evaluated, and where percussions act."""
        raise NotImplementedError

    def active(self):
        """Which contacts are active, (n,) booleans."""
        raise NotImplementedError

    def kinematics(self):
        """`Kinematics` of contacts and constraints, at `place`."""
        return kinematics(self.system, *self.place(), self.u_minus, self.choice)

    def expands(self):
        """Whether there are two phases, compression and expansion: by the law of the system."""
        return laws.of(self.system).expands

    def dry(self):
        """`dry_friction.Dry` of the step, or None: at `place`, with the bounds of the whole step."""
        return dry_friction.of(self.system, *self.place(), self.u_minus, self.dt)

    def before(self, kin):
        """Contact velocities before the impact, (n (d + 1),) in the contact solver's order."""
        return kin.at_contacts(self.u_minus)

    def given_back(self, kin):
        """Contact velocities that restitution gives back, (n (d + 1),): those before the impact."""
        return self.before(kin)

    def law(self, kin):
        """`Law` of the contacts, C18 (56): ``xi = xi_plus + e xi_minus``, both velocities at `place`."""
        rate = None
        if laws.depends_on_speed(self.system):
            active = self.active()
            rate = jnp.where(active, self.given_back(kin)[-active.shape[0] :], 0)
        e_N, e_F, mu = self.contacts.data(*self.place(), rate)
        if not mu.shape[0] or self.expands():
            return Law(jnp.zeros_like(kin.chi), mu)
        return Law(restitution(e_N, e_F, kin) * self.given_back(kin), mu)

    def linearized(self, u):
        """``(R(u), dR/du)``."""

        def twice(u):
            R = self.balance(u)
            return R, R

        A, R = shared(jax.jacfwd(twice, has_aux=True))(u)
        return R, A

    def effect(self, u):
        """Where the impulse enters R as well: function that applies ``1 - dR/dp`` to a vector or to columns. None: it does not."""
        del u

    def condensed(self, u, kin):
        """``(R(u), Condensed)``: the balance and what it is, linearized at ``u``."""
        R, A = self.linearized(u)
        return R, Condensed(A, kin, self.effect(u))

    def resolution(self):
        """Velocities (n_u,) whose round-off is all that positions, and forces that balance, resolve."""
        return resolution(self.q, self.dt, self.u_minus.shape[0])

    def impulse(self, kin, P):
        """``W P`` of all percussions of the step, (n_u,)."""
        p = impulse(kin, contact.join(P.P_N, P.P_F), jnp.concatenate([P.P_g, P.P_gamma]))
        dry = self.dry()
        return p if dry is None else p + linalg.matmul(dry.W, P.P_D)

    def worked_on(self, u):
        """Velocity on which the percussions work: the mean of those before and after (Thomson and Tait's formula, A14 (21))."""
        return 0.5 * self.u_minus + 0.5 * u

    def residual(self, u, p):
        """``R(u) - p``."""
        return shared(self.balance)(u, None if self.effect(u) is None else p) - p


class Phase(Step):
    """A phase of the impact of another `Step`, ``step``."""

    @property
    def system(self):
        """The system."""
        return self.step.system

    @property
    def dt(self):
        """Length of the step."""
        return self.step.dt

    @property
    def q(self):
        """Coordinates, to which round-off is compared."""
        return self.step.q

    @property
    def u_minus(self):
        """Velocity before the impact."""
        return self.step.u_minus

    def place(self):
        """That of the step."""
        return self.step.place()

    def active(self):
        """Those of the step."""
        return self.step.active()


@pytree
class Compression(Phase):
    """From the velocity before the impact to the end of compression: the balance of the step, linearized there, without its forces."""

    step: Any

    linear: ClassVar[bool] = True

    def balance(self, u, p=None):
        """``A (u - u_minus)`` with ``A = dR/du`` at u_minus."""
        del p
        return jax.jvp(self.step.balance, (self.u_minus,), (u - self.u_minus,))[1]

    def condensed(self, u, kin):
        """That of the step at u_minus."""
        return self.balance(u), self.step.condensed(self.u_minus, kin)[1]

    def effect(self, u):
        """That of the step at u_minus."""
        del u
        return self.step.effect(self.u_minus)

    def residual(self, u, p):
        """What the impulse does to the balance is linear in it."""
        effect = self.effect(u)
        return self.balance(u) - (effect(p) if effect else p)

    def dry(self):
        """None: a bound on forces does nothing in an instant."""

    def law(self, kin):
        """Without restitution."""
        return Law(self.step.before(kin) - self.before(kin), self.step.law(kin).mu)


@pytree
class Expansion(Phase):
    """From the end of compression on, with percussions beside those of compression."""

    step: Any
    compression: Any  # `Percussions`

    @property
    def linear(self):
        """As the step."""
        return self.step.linear

    def balance(self, u, p=None):
        """That of the step, with the impulse of the compression taken out."""
        P = self.compression
        given = impulse(self.step.kinematics(), contact.join(P.P_N, P.P_F), jnp.concatenate([P.P_g, P.P_gamma]))
        if self.step.effect(u) is None:
            return self.step.balance(u) - given
        return self.step.balance(u, given if p is None else p + given) - given

    def condensed(self, u, kin):
        """That of the step."""
        return self.balance(u), self.step.condensed(u, kin)[1]

    def effect(self, u):
        """That of the step."""
        return self.step.effect(u)

    def dry(self):
        """That of the step."""
        return self.step.dry()

    def law(self, kin):
        """``P_N >= e_N P_N^C``."""
        rate = None
        if laws.depends_on_speed(self.system):
            rate = self.step.before(kin)[-self.compression.P_N.shape[0] :]
        e_N = self.contacts.data(*self.place(), rate).e_N
        least = jnp.where(self.compression.P_N > 0, e_N * self.compression.P_N, 0)
        return self.step.law(kin)._replace(least=least)


#: Views of a system, the smallest ones, in which a step is solved by Newton's method alone before it is solved with its globalization.
SMALLER = 3


def restitution(e_N, e_F, kin):
    """Restitution coefficients in the contact solver's order."""
    n = e_N.shape[0]
    return contact.join(e_N, jnp.broadcast_to(e_F[:, None], (n, kin.chi.shape[0] // n - 1)))


def resolution(q, dt, n_u):
    """Velocities ``|q| / dt``, (n_u,); the largest for all where coordinates and velocities do not correspond."""
    speed = jnp.abs(q) / dt
    return speed if q.shape[0] == n_u else jnp.broadcast_to(jnp.max(speed), (n_u,))


def solve(step, u, P, settings):
    """Solve a `Step` from the guess ``u`` and the percussions ``P``: ``(u, P, info)``, differentiable in the step.

    ``info`` tells of all equations: the contact law, the balance row by row, and the bilateral rows.
    """
    if not step.expands():
        return solve_phase(step, u, P, settings)
    nothing = jax.tree.map(jnp.zeros_like, P)
    _, P_C, compression = solve_phase(Compression(step), step.u_minus, nothing, settings)
    u, P_E, expansion = solve_phase(Expansion(step, P_C), u, jax.tree.map(jnp.subtract, P, P_C), settings)
    return u, jax.tree.map(jnp.add, P_C, P_E), total(compression, expansion)


def solve_phase(step, u, P, settings, *, solved=False):
    """`solve` for a step of one phase; ``solved``: whether ``u`` and ``P`` are the solution, of which only the derivative is wanted."""
    n, d = P.P_F.shape
    n_g = P.P_g.shape[0]
    # Without dry friction, and in an instant, there are no percussions of it.
    given = jnp.zeros_like(dry.bound) if (dry := step.dry()) is not None and P.P_D is None else P.P_D
    guess = contact.join(P.P_N, P.P_F), None if dry is None else given
    frozen, u, guess = jax.tree.map(lax.stop_gradient, (step, u, guess))
    if solved:
        x, info = (u, guess[0], jnp.concatenate([P.P_g, P.P_gamma]), guess[1]), None
    else:
        x, info = _gathered(frozen, u, guess, d, n_g + P.P_gamma.shape[0], settings)
    u, z, P_b, P_D = implicit(Response(d, settings), jax.tree.map(lax.stop_gradient, x), step)
    P_N, P_F = contact.split(z, n, d)
    P_D = jax.tree.map(jnp.zeros_like, P.P_D) if P_D is None else P_D
    return u, Percussions(P_N, P_F, P_b[:n_g], P_b[n_g:], P_D), info


def _gathered(step, start, guess, d, n_b, settings):
    """``((u, z, P_b, P_D), info)``: the solution, at the cost of the active contacts; ``guess``: of (z, P_D).

    The globalization is compiled for all contacts, and for the larger views of many, the last of the smaller ones included: a step that
    needs it, or has more active contacts than the smaller views, is solved there.
    """
    n = guess[0].shape[0] // (d + 1)
    sizes = gathered.sizes(n, d) if step.gathers else ()
    if not sizes:
        return _found(step, start, guess, d, n_b, settings)
    active, plain = step.active(), settings.nearby()

    def solved(choice, settings):
        if choice is None:
            return lambda guess: _found(step, start, guess, d, n_b, settings)

        def view(guess):
            z, P_D = guess
            (u, z, P_b, P_D), info = _found(step.restricted(choice), start, (choice.rows(z, d), P_D), d, n_b, settings)
            return (u, choice.put_rows(z, d), P_b, P_D), info._replace(contact=choice.number(info.contact))

        return view

    if sizes == (0,):
        return gathered.switch(active, (0, n), lambda choice: solved(choice, settings), guess)
    few, larger = (sizes, ()) if plain == settings else (sizes[:SMALLER], sizes[SMALLER - 1 :])

    def first(choice):
        """What a view leads to, and whether it was tried: where more contacts are active, in lockstep with others too, it is not."""
        if choice is None:
            nothing = (start, guess[0], jnp.zeros((n_b,), start.dtype), guess[1]), nothing_to_solve(start.dtype)
            return lambda _: (*nothing, jnp.asarray(False))
        return lambda guess: (*solved(choice, plain)(guess), jnp.asarray(True))

    x, info, tried = gathered.switch(active, (*few, n), first, guess)
    open_still = ~tried if plain == settings else ~(tried & info.converged)

    def again(x, info):
        found = gathered.switch(active, (*larger, n), lambda choice: solved(choice, settings), guess)
        return jax.tree.map(lambda a, b: jnp.where(open_still, a, b), found, (x, info))

    return lax.cond(gathered.largest(open_still), when_needed(again), lambda *found: found, x, info)


def _found(step, start, guess, d, n_b, settings):
    """``((u, z, P_b, P_D), info)``: the solution, by iteration."""
    dtype = start.dtype
    tolerance = settings.tolerance_for(dtype)
    kin_N, active = step.kinematics(), step.active()
    law_N, contacts = step.law(kin_N), active.shape[0]
    # From here on rows of dry friction are contacts, too.
    all_of = dry_friction.Joined(step.dry(), contacts, d)
    kin, law, active, guess = all_of.kinematics(kin_N), all_of.law(law_N), all_of.active(active), all_of.guess(*guess)
    n, d = all_of.n, all_of.d
    allowed = contact.join(active, jnp.broadcast_to(active[:, None], (n, d)))

    def improved(u, z, P_b):
        """Solution of the problem linearized at ``u`` and at the impulse of ``z`` and ``P_b``."""
        effect = step.effect(u)
        if effect and not step.linear:
            # What the residual would be without percussions, to first order.
            p = impulse(kin, z, P_b)
            _, condensed = step.condensed(u, kin)
            residual = step.residual(u, p) + effect(p)
        else:
            residual, condensed = step.condensed(u, kin)
        free, P = condensed.free(u, residual, kin.chi_b)
        info, z = nothing_to_solve(dtype), condensed.convert(z) if n else z
        if n:
            convert = condensed.convert
            problem = contact_problem(step, all_of, condensed, law.mu, law.least)
            c = all_of.free(problem.G, condensed.at_contacts(free) + convert(kin.chi + law.rebound))
            problem = problem._replace(c=c)
            result = contact.solve(problem, z, settings)
            z = result.z
            free, P = condensed.add(free, P, z)
            worst = result.contact if all_of.dry is None else jnp.where(result.contact < contacts, result.contact, -1)
            info = Info(result.iterations, result.residual, result.error <= 1, worst)
        info = info._replace(converged=info.converged & condensed.obeyed(free, P, z, tolerance))
        return (linalg.pack(free), linalg.pack(z), condensed.percussions(P)), info, condensed.A

    def told(info):
        """The info, whose residual is not a number where a restitution that depends on the speed is none: `Outcome` tells it apart."""
        if not laws.depends_on_speed(step.system):
            return info
        lawless = jnp.any(jnp.isnan(law_N.rebound) & jnp.isfinite(step.before(kin_N)))
        lawless = lawless if law_N.least is None else lawless | jnp.any(jnp.isnan(law_N.least))
        return info._replace(residual=jnp.where(lawless, jnp.nan, info.residual))

    def split(x):
        u, z, P_b = x
        z, P_D = all_of.part(z)
        return u, z, P_b, P_D

    x = start, jnp.where(allowed, guess, 0), jnp.zeros((n_b,), dtype)
    if step.linear:
        x, info, _ = improved(*x)
        return split(x), told(info)

    def iteration(carry):
        x, previous = carry
        x, info, A = improved(*x)
        u, z, P_b = x
        p = impulse(kin, z, P_b)
        # Every row in its own units; below the round-off of the largest there is nothing to gain.
        momentum = jnp.abs(A)
        size = momentum @ (jnp.abs(u) + jnp.abs(start)) + jnp.abs(p)
        floor = momentum @ step.resolution() + jnp.max(size)
        if n_b:
            # Forces of rows that nearly depend on each other are large, and cancel.
            floor = floor + jnp.abs(kin.W_b) @ jnp.abs(P_b)
        floor = thresholds.round_off(dtype) * floor
        error = jnp.max(jnp.abs(step.residual(u, p)) / (tolerance * size + floor + thresholds.tiny(dtype)))
        return (x, info._replace(iterations=info.iterations + previous.iterations)), error

    first = (x, nothing_to_solve(dtype)), jnp.full((), jnp.inf, dtype)
    (x, info), error, _ = iterate(iteration, *first, settings.max_outer)
    return split(x), told(info._replace(converged=info.converged & (error <= 1)))


@dataclass(frozen=True)
class Response:
    """Derivative of the solution of a `Step` by the implicit function theorem: one linear solve, no iteration."""

    d: Any  # tangential directions
    solver: Any

    def __call__(self, x, step, dstep):
        """``(du, dz, dP_b, dP_D)`` for a tangent of the step."""
        n = x[1].shape[0] // (self.d + 1)
        sizes = gathered.sizes(n, self.d) if step.gathers else ()
        if not sizes:
            return self.whole(x, step, dstep)
        active = step.active()
        if step.system.gathers or not step.at_one_place or len(sizes) == 1:
            return self.of_active(x, step, dstep, active, (*sizes, n))

        # What differentiates all contacts anyway does so once, not in every branch.
        @storing_solutions
        def in_contact():
            placed = pushed(lambda step: step.placed(), (step,), (dstep,), passed_on=True)
            return self.of_active(x, *placed, active, (*sizes[1:], n))

        def in_flight():
            return self.of_active(x, step, dstep, active, sizes[:1])

        return lax.cond(gathered.largest(jnp.any(active)), in_contact, in_flight)

    def of_active(self, x, step, dstep, active, sizes):
        """The same with as many contacts, of a few numbers, as it takes for the active ones."""

        def branch(choice):
            if choice is None:
                return storing_solutions(lambda: self.whole(x, step, dstep))

            def chosen():
                u, z, *others = x
                du, dz, *d_others = self.whole((u, choice.rows(z, self.d), *others), step, dstep, lambda step: step.restricted(choice))
                return du, choice.put_rows(dz, self.d), *d_others

            # What a branch stores for the way back, every other one would have to fill with zeros: it is computed again.
            return storing_solutions(chosen)

        return gathered.switch(active, sizes, branch)

    def whole(self, x, step, dstep, restricted=lambda step: step):
        """The same with all contacts of ``restricted(step)``, and percussions in ``x`` of these alone."""
        u, z, P_b, P_D = x
        of_all, d_of_all, step = step, dstep, restricted(step)
        n = z.shape[0] // (self.d + 1)
        joined = dry_friction.Joined(step.dry(), n, self.d)
        z = joined.guess(z, P_D)
        u, z, P_b, compliance = self.unique(u, z, P_b, step, joined)

        def equations(step):
            """Residual of the balance, bilateral rows, xi, mu and the least percussion, at fixed unknowns."""
            step = restricted(step)
            kin = step.kinematics()
            all_of = dry_friction.Joined(step.dry(), n, self.d)
            kin, law = all_of.kinematics(kin), all_of.law(step.law(kin))
            balance = step.residual(u, impulse(kin, z, P_b))
            xi = kin.at_contacts(u) + law.rebound if z.shape[0] else kin.chi
            rows = kin.at_constraints(u) if P_b.shape[0] else kin.chi_b
            return balance, rows, xi, law.mu, law.least

        (_, _, xi, mu, least), (d_balance, d_rows, d_xi, d_mu, d_least) = pushed(equations, (of_all,), (d_of_all,))
        _, condensed = step.condensed(u, joined.kinematics(step.kinematics()))
        convert = condensed.convert
        free, dP = condensed.free(jnp.zeros_like(u), d_balance, d_rows)
        dz = z
        if z.shape[0]:
            d_xi = convert(d_xi) + condensed.at_contacts(free)
            d_least = None if d_least is None else convert(d_least)
            problem = contact_problem(step, joined, condensed, mu, least)
            if compliance is not None:
                problem, xi = problem._replace(G=problem.G + jnp.diag(compliance)), xi + compliance * z
            dz = contact.response(problem, convert(z), convert(xi), d_xi, convert(d_mu), self.solver, d_least)
            free, dP = condensed.add(free, dP, dz)
            dz = linalg.pack(dz)
        dz, dP_D = joined.part(dz)
        return linalg.pack(free), dz, condensed.percussions(dP), dP_D

    def unique(self, u, z, P_b, step, joined):
        """``(u, z, P_b, compliance)`` where the derivative is taken: contacts that may share a load in several ways yield a little.

        See `contact.sharing`; ``compliance`` is None where contacts are too few for that.
        """
        if z.shape[0] <= u.shape[0]:
            return u, z, P_b, None
        kin = step.kinematics()
        kin, law = joined.kinematics(kin), joined.law(step.law(kin))
        _, condensed = step.condensed(u, kin)
        problem = contact_problem(step, joined, condensed, law.mu, law.least)
        if not problem.redundant:
            return u, z, P_b, None
        problem = problem._replace(c=kin.at_contacts(u) + law.rebound - linalg.matmul(problem.G, z))
        constant = lax.stop_gradient(problem.arrays())._replace(**problem.static)
        soft, compliance = self.solver.yielding(constant, lax.stop_gradient(z))
        if compliance is None:
            return u, z, P_b, None
        # The derivative of the solution is, with this rule, that of the yielding contacts already.
        change = lax.stop_gradient(soft - z)
        du, dP_b = lax.stop_gradient(condensed.add(jnp.zeros_like(u), jnp.zeros_like(P_b), change))
        return u + du, z + change, P_b + condensed.percussions(dP_b), compliance


def contact_problem(step, all_of, condensed, mu, least):
    """The `contact.Problem` of a step, without c, in the kind that ``condensed`` is written in; ``all_of``: `dry_friction.Joined`."""
    convert, d, n_D = condensed.convert, all_of.d, all_of.n_D
    G, discs = all_of.operator(condensed.G), all_of.discs(laws.discs(step.system))
    pushing = contact.movable(convert(all_of.active(step.active())), G, d, discs, n_D)
    # Planar problems are small, and Lemke's method solves all of them.
    redundant = d > 1 and all_of.contacts * (d + 1) + n_D > condensed.kin.W.shape[0] and not condensed.unpacked
    least = None if least is None else convert(least)
    return contact.Problem(G, None, convert(mu), pushing, d, None, least, discs, redundant, given=n_D)
