"""An elastic bar hits a wall: what contact and the numerical damping of a scheme make of a travelling wave (the question of Acary 2014).

    python examples/elastic_bar.py [--nodes 100] [--dt 2e-6] [--out elastic_bar.png]

A bar that flies undeformed against a rigid wall stays there while a compression wave runs to its free end and comes back, 2 L / c, with
a constant contact force, and then leaves undeformed, with the speed it came with. A mesh of n nodes cannot carry the sharp front: it
oscillates behind it, and how much of that is left depends on the scheme. Prints a table, draws the contact force and the velocity of
the free end beside those of the continuous bar, and the energy.
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np

from jaxnsd import HHT, GeneralizedAlpha, KrenkHogsberg, MoreauJean, MoreauJeanVariant, Newmark, energy, plotting, simulate
from jaxnsd.command_line import options
from jaxnsd.models import elastic_bar

LENGTH, SECTION, MODULUS, DENSITY = 1.0, 3.14e-4, 210e9, 7800.0
GAP, SPEED = 5e-5, 0.1
WAVE_SPEED = np.sqrt(MODULUS / DENSITY)
FORCE = SECTION * np.sqrt(MODULUS * DENSITY) * SPEED

#: Without numerical damping; little of it, at high frequencies; much of it, at all frequencies.
SCHEMES = (
    MoreauJean(0.5),
    Newmark(),
    HHT(0.1),
    GeneralizedAlpha(0.5),
    KrenkHogsberg(0.5),
    MoreauJeanVariant(0.75),
    MoreauJean(1.0),
)


def continuous(t, x, length):
    """``(displacement, velocity)`` (len(t), len(x)) of the continuous bar between its arrival at the wall and long after, d'Alembert."""
    t, x = np.asarray(t)[:, None] - GAP / SPEED, np.asarray(x)[None, :]
    arrives, returns = x / WAVE_SPEED, (2 * length - x) / WAVE_SPEED
    displacement = -SPEED * (np.minimum(t, arrives) - np.maximum(t - returns, 0))
    return displacement, np.where(t < arrives, -SPEED, np.where(t < returns, 0.0, SPEED))


def main(argv=None):
    """Simulate with every scheme, print the table, draw the picture."""
    parser = options.Parser(prog="elastic_bar.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--nodes", type=options.count, default=100, metavar="N", help="nodes of the bar (default: %(default)s)")
    parser.add_argument("--dt", type=options.number, default=2e-6, metavar="S", help="step size in s (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("elastic_bar.png"), metavar="FILE", help="picture (default: %(default)s)")
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir() or args.out.suffix not in options.PICTURES:
        parser.error(f"--out must be a {', '.join(options.PICTURES)} file in a directory that exists, got {str(args.out)!r}")
    jax.config.update("jax_enable_x64", True)
    try:
        bar = elastic_bar(args.nodes, LENGTH, SECTION, MODULUS, DENSITY)
        motions = [(scheme, *run(bar, scheme, args.dt)) for scheme in SCHEMES]
    except ValueError as error:
        parser.error(str(error))
    length = LENGTH * (1 - 1 / args.nodes)  # n nodes at a distance of L / n
    duration = 2 * length / WAVE_SPEED
    print(f"Elastic bar of {args.nodes} nodes, dt = {args.dt:g} s")
    print(f"Continuous bar: contact for {1e6 * duration:.0f} us with {FORCE:.0f} N, rebound with {SPEED} m/s\n")
    print(report(motions, bar, length, args.dt))
    plotting.save(picture(motions, length), args.out)
    print(f"\npicture     {args.out}")
    return 0


def run(bar, scheme, dt):
    """Solution, energy balance and steps per second."""
    steps = round(1.5e-3 / dt)

    def go():
        return jax.block_until_ready(simulate(bar, scheme, *bar.initial_state(GAP, SPEED), steps * dt, dt))

    sol = go().raise_if_failed()
    start = time.perf_counter()
    go()
    seconds = time.perf_counter() - start
    return sol, jax.jit(energy.balance, static_argnums=1)(bar, scheme, sol), steps / seconds


def report(motions, bar, length, dt):
    """The table: contact, rebound, energy, distance to the continuous bar."""
    x = np.arange(bar.mass.shape[0]) * length / (bar.mass.shape[0] - 1)
    lines = [f"{'scheme':<28}{'contact us':>11}{'rebound m/s':>13}{'energy kept':>13}{'by scheme':>11}{'error of v':>12}{'steps/s':>10}"]
    for scheme, sol, balance, speed in motions:
        pushing = np.flatnonzero(np.asarray(sol.P_N[:, 0]) > 0)
        weights = np.asarray(bar.mass @ np.ones(len(x)))
        rebound = weights @ np.asarray(sol.u[-1]) / weights.sum()
        total = np.asarray(balance.total)
        _, exact = continuous(sol.t, x, length)
        error = np.sqrt(np.mean((np.asarray(sol.u) - exact) ** 2)) / SPEED
        lines.append(
            f"{name(scheme):<28}{1e6 * dt * (pushing[-1] - pushing[0] + 1):>11.0f}{rebound:>13.4f}{total[-1] / total[0]:>13.4f}"
            f"{float(np.sum(balance.numerical)) / total[0]:>11.1e}{error:>12.3f}{speed:>10.0f}"
        )
    return "\n".join(lines)


def name(scheme):
    """Short name for legends."""
    value = next((getattr(scheme, key) for key in ("theta", "alpha", "rho_inf") if hasattr(scheme, key)), None)
    return scheme.name if value is None else f"{scheme.name}({value:g})"


@plotting.styled
def picture(motions, length):
    """Contact force, velocity of the free end and energy over time: undamped schemes, damped schemes."""
    fig, axes = plotting.figure(3, 2, width=8.4, height=7.2)
    # Newmark moves as Moreau-Jean with theta = 1/2, and Krenk-Hogsberg as generalized-alpha, where nothing is damped.
    distinct = [motion for motion in motions if not isinstance(motion[0], (Newmark, KrenkHogsberg))]
    titles = ("no numerical damping, or of high frequencies only", "numerical damping of all frequencies")
    for column, group, title in zip(axes.T, (distinct[:3], distinct[3:]), titles, strict=True):
        t = 1e3 * np.asarray(group[0][1].t)
        contact = (t >= 1e3 * GAP / SPEED) & (t <= 1e3 * (GAP / SPEED + 2 * length / WAVE_SPEED))
        _, end = continuous(1e-3 * t, [length], length)
        column[0].plot(t, np.where(contact, 1e-3 * FORCE, 0), color="0.6", linewidth=2.5, label="continuous bar")
        column[1].plot(t, end[:, 0], color="0.6", linewidth=2.5)
        for scheme, sol, balance, _ in group:
            dt = float(sol.t[1] - sol.t[0])
            column[0].plot(t[1:], 1e-3 * np.asarray(sol.P_N[:, 0]) / dt, linewidth=0.9, label=name(scheme))
            column[1].plot(t, sol.u[:, -1], linewidth=0.9)
            column[2].plot(t, np.asarray(balance.total) / float(balance.total[0]), linewidth=1.1)
        column[0].set(ylabel="contact force in kN", ylim=(0, 2e-3 * FORCE), title=title)
        column[0].legend(frameon=False)
        column[1].set(ylabel="velocity of the free end in m/s", ylim=(-0.2, 0.26))
        column[2].set(ylabel="energy $T + V$ / at the start", xlabel="time $t$ in ms", ylim=(0.7, 1.03))
        for ax in column:
            ax.set_xlim(0.4, t[-1])
        for ax in column[:2]:
            ax.tick_params(labelbottom=False)
    return fig


if __name__ == "__main__":
    sys.exit(main())
