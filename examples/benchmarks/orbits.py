"""Periodic orbits of an impact oscillator: `jaxnsd.orbits` beside a shooting code in SciPy.

    python examples/benchmarks/orbits.py [--stages 4] [--steps 48] [--points 100] [--repeat 3]

The oscillator x'' + 2 z x' + x = cos(w t), x <= 0, with restitution 0.8 and one impact a period. The code in SciPy is what one writes by
hand: `solve_ivp` with an event at the stop, the equations of variation integrated beside, the jump of both at the impact, and Newton's
method; tolerances 1e-10. Both go over the same frequencies, each orbit from the one before, and both are measured against an orbit in 16
digits. Prints CPU seconds of one orbit and of the branch after compilation, the errors of state and multipliers, and the ratio. Most of the
time of `orbits.periodic` are the checks of its input, which `jax.jit` does once.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from _timing import best, cpu_seconds
from scipy.integrate import solve_ivp

import jaxnsd
from jaxnsd import orbits

DAMPING, RESTITUTION, FREQUENCY = 0.05, 0.8, 2.2

#: State at t = 0 and multipliers there, from flows in closed form with the impact found in 30 digits.
STATE = np.array([-1.7755030036081109, 0.48729113228156752])
MULTIPLIERS = np.array([0.556632661249565 - 0.41371588992275j, 0.556632661249565 + 0.41371588992275j])


@jaxnsd.system
class Oscillator(jaxnsd.System):
    """A mass on a spring, forced, with a stop: q = (displacement,)."""

    frequency: float = FREQUENCY

    def kinetic_energy(self, t, q, u):
        """T."""
        return 0.5 * u @ u

    def force(self, t, q, u):
        """Damper, spring and forcing."""
        return -2 * DAMPING * u - q + jnp.cos(self.frequency * t)

    def gap(self, t, q):
        """Distance from the stop."""
        return -q

    def e_N(self):
        """Restitution."""
        return jnp.full(1, RESTITUTION)


def turn(system):
    """The period."""
    return 2 * jnp.pi / system.frequency


def returned(z, w):
    """``(state, derivative (2, 2))`` after a period, by SciPy."""
    A = np.array([[0.0, 1.0], [-1.0, -2 * DAMPING]])

    def rate(t, x):
        return A @ x + np.array([0.0, np.cos(w * t)])

    def f(t, y):
        return np.concatenate([rate(t, y[:2]), (A @ y[2:].reshape(2, 2)).ravel()])

    def hit(t, y):
        return y[0]

    hit.terminal, hit.direction = True, 1
    options = {"method": "DOP853", "rtol": 1e-10, "atol": 1e-12}
    t, T, y = 0.0, 2 * np.pi / w, np.concatenate([z, np.eye(2).ravel()])
    while True:
        sol = solve_ivp(f, (t, T), y, events=hit, **options)
        y = sol.y[:, -1]
        if sol.status != 1:
            return y[:2], y[2:].reshape(2, 2)
        t, x, V = sol.t[-1], y[:2], y[2:].reshape(2, 2)
        after = np.array([0.0, -RESTITUTION * x[1]])
        R, normal = np.diag([1.0, -RESTITUTION]), np.array([1.0, 0.0])
        # The jump of the derivative, with the shift of the impact in time.
        jump = R + np.outer(rate(t, after) - R @ rate(t, x), normal) / (normal @ rate(t, x))
        y = np.concatenate([after, (jump @ V).ravel()])


def shot(z, w):
    """``(state, derivative)`` of the orbit near z, by Newton's method."""
    for _ in range(20):
        end, D = returned(z, w)
        step = np.linalg.solve(D - np.eye(2), end - z)
        z = z - step
        if np.abs(step).max() < 1e-9:
            return z, D
    raise RuntimeError("Newton's method did not converge")


def errors(z, multipliers):
    """Largest errors of a state and of its multipliers."""
    return np.abs(z - STATE).max(), np.abs(np.sort_complex(multipliers) - MULTIPLIERS).max()


def main(argv=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--stages", type=int, default=4, help="of the Lobatto scheme (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=48, help="steps a period (default: %(default)s)")
    parser.add_argument("--points", type=int, default=100, help="orbits of the branch (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="calls of which the fastest counts (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.steps < 16 or args.points < 2 or args.repeat < 1 or not 2 <= args.stages <= 5:
        parser.error("needs at least 16 steps, 2 points, 1 repetition, and 2 to 5 stages")
    jax.config.update("jax_enable_x64", True)
    scheme, guess = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(args.stages)), STATE + 3e-3
    frequencies = np.linspace(FREQUENCY, 2.6, args.points)

    def orbit(z, w):
        return orbits.periodic(Oscillator(w), scheme, z[:1], z[1:], turn, n_steps=args.steps)

    @jax.jit
    def compiled(z, w):
        found = orbit(z, w)
        return jnp.where(found.success, jnp.concatenate([found.q, found.u]), jnp.nan)

    def checked(z, w):
        found = orbit(z, w).raise_if_failed()
        return np.concatenate([found.q, found.u])

    def branch(one):
        z = guess
        for w in frequencies:
            z = one(z, w)
        return np.asarray(z)

    def measured(one):
        return [best(what, cpu_seconds, args.repeat)[1] for what in (lambda: one(guess, FREQUENCY), lambda: branch(one))]

    found, (state, derivative) = orbit(guess, FREQUENCY).raise_if_failed(), shot(guess, FREQUENCY)
    ours = errors(np.concatenate([found.q, found.u]), np.asarray(found.multipliers))
    theirs = errors(state, np.linalg.eigvals(derivative))
    by_scipy = lambda z, w: shot(z, w)[0]  # noqa: E731
    rows = {
        "orbits.periodic": (measured(checked), ours),
        "inside of jax.jit": (measured(compiled), ours),
        "SciPy": (measured(by_scipy), theirs),
    }
    print(f"impact oscillator, {args.steps} steps a period, Lobatto({args.stages})")
    print(f"branch of {args.points} orbits, {FREQUENCY} to {frequencies[-1]}")
    print(f"{'CPU time':<20}{'one orbit':>12}{'branch':>12}{'state off by':>16}{'multipliers off by':>20}")
    for name, ((one, many), (of_state, of_multipliers)) in rows.items():
        print(f"{name:<20}{1e3 * one:>9.2f} ms{many:>10.3f} s{of_state:>16.1e}{of_multipliers:>20.1e}")
    for name in list(rows)[:2]:
        ratios = [theirs / ours for theirs, ours in zip(rows["SciPy"][0], rows[name][0], strict=True)]
        print(f"SciPy takes {ratios[0]:.1f} times as long as {name} for one orbit, {ratios[1]:.1f} times for the branch")
    print(f"states at the end of the branch differ by {np.abs(branch(compiled) - branch(by_scipy)).max():.1e}")


if __name__ == "__main__":
    main()
