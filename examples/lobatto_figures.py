"""Slider-crank and point mass on a slope with the Lobatto IIIA-IIIB schemes: the figures of Capobianco et al. (2024), Sections 6.2 and 6.3.

    python examples/lobatto_figures.py [--out out/lobatto] [--quick]

Writes three pictures: the slider's corners, rotation and path (their Fig. 6); position, velocity and penetration of the point mass
(Fig. 8); its errors over the step size with the observed orders (Fig. 9). Prints what was measured on the way.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxnsd import Lobatto, SemismoothNewton, SymmetricMoreau, plotting, simulate
from jaxnsd.command_line import options
from jaxnsd.models import PointMassOnSlope, SliderCrank, SliderCrankMinimal

T1_SLOPE = 1.6  # s: before the mass comes to rest, where the motion is not smooth
FINEST = 3.2e-3  # s: smallest step of the convergence study, of which all others are multiples
TIGHT = SemismoothNewton(tolerance=1e-14)
STEPS = 500  # of every run of it, whatever the step: they share one compilation, and what comes after T1_SLOPE is cut off


def main(argv=None):
    """Simulate, print what was measured, draw the pictures."""
    parser = options.Parser(prog="lobatto_figures.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--out", type=Path, default=Path("out/lobatto"), metavar="DIR", help="directory for the pictures (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="shorter and coarser, in a fraction of the time")
    args = parser.parse_args(argv)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out: cannot make the directory {str(args.out)!r}: {error.strerror}")

    jax.config.update("jax_enable_x64", True)
    for part in (slider_crank, slope, slope_convergence):
        began = time.perf_counter()
        lines, figure = part(args.quick)
        plotting.save(figure, args.out / f"{part.__name__}.png")
        print(f"{lines[0]}\n" + "\n".join(f"   {line}" for line in lines[1:]))
        print(f"   {args.out / part.__name__}.png, {time.perf_counter() - began:.0f} s\n", flush=True)
    return 0


def solver(sol):
    """One line on how the steps were solved."""
    iterations = np.asarray(sol.iterations)
    return f"Newton iterations: {iterations.mean():.2f} on average, {iterations.max()} at most"


# ------------------------------------------------------------------------------------------------------------ slider-crank
@plotting.styled
def slider_crank(quick):
    """Fig. 6: three stages, dt = 1e-4 s, redundant coordinates; and how far the motion in minimal coordinates is from it."""
    system, minimal, dt = SliderCrank(), SliderCrankMinimal(), 1e-4
    scheme, t1 = (Lobatto(stages=2), 0.02) if quick else (Lobatto(stages=3), 0.2)
    sol = simulate(system, scheme, *system.initial_state(), t1, dt).raise_if_failed()
    gap = np.asarray(jax.vmap(system.gap)(sol.t, sol.q))
    rate = np.asarray(jax.vmap(system.gap_velocity)(sol.t, sol.q, sol.u))
    joints = np.asarray(jax.vmap(system.constraint)(sol.t, sol.q))
    lines = [
        f"Slider-crank, {scheme.stages} stages, dt = {dt:g} s, to {t1:g} s: {plotting.impacts(sol).sum()} impacts",
        f"largest penetration {max(0.0, -gap.min()):.1e} m, largest opening of a joint {np.abs(joints).max():.1e} m",
        solver(sol),
    ]
    if not quick:
        other = simulate(minimal, scheme, *minimal.initial_state(), t1, dt).raise_if_failed()
        same = np.asarray(jax.vmap(minimal.bodies)(other.q)).reshape(sol.q.shape)
        lines.append(f"redundant against minimal coordinates: {np.abs(np.asarray(sol.q) - same).max():.1e} in q")

    t = 1e3 * np.asarray(sol.t)
    fig, axes = plotting.figure(3, 3, width=9.0, height=7.0)
    columns = (
        ("(a) corner $P_1$", 1e3 * gap[:, 0], rate[:, 0], "gap $g_{N1}$ in mm", r"$\dot g_{N1}$ in m/s"),
        ("(b) corner $P_3$", 1e3 * gap[:, 2], rate[:, 2], "gap $g_{N3}$ in mm", r"$\dot g_{N3}$ in m/s"),
        (
            "(c) slider, first 20 ms",
            1e3 * np.asarray(sol.q[:, 8]),
            np.asarray(sol.u[:, 8]),
            r"$\varphi_3$ in mrad",
            r"$\dot\varphi_3$ in rad/s",
        ),
    )
    for (title, position, velocity, *labels), end, column in zip(columns, (t[-1], t[-1], 20.0), axes[:2].T, strict=True):
        for ax, values, label, colour in zip(column, (position, velocity), labels, plotting.COLOURS, strict=False):
            ax.axhline(0, color="0.6", linewidth=0.6)
            ax.plot(t, values, color=colour, linewidth=0.9)
            ax.set(ylabel=label, xlim=(0, end))
        column[0].set_title(title)
        column[0].tick_params(labelbottom=False)
        column[1].set_xlabel("time $t$ in ms")

    grid = axes[2, 0].get_gridspec()
    for ax in axes[2]:
        ax.remove()
    ax = fig.add_subplot(grid[2, :])
    clearance = 1e3 * (0.5 * system.guide - system.half_height)
    for side in (-1, 1):
        ax.axhline(side * clearance, color="0.6", linewidth=0.6)
    ax.plot(np.asarray(sol.q[:, 6]), 1e3 * np.asarray(sol.q[:, 7]), color=plotting.COLOURS[2], linewidth=0.9)
    ax.plot(float(sol.q[0, 6]), 1e3 * float(sol.q[0, 7]), "o", color="black", markersize=4)
    ax.annotate("start", (float(sol.q[0, 6]), 1e3 * float(sol.q[0, 7])), (6, -3), textcoords="offset points")
    ax.set(xlabel="$x_3$ in m", ylabel="$y_3$ in mm", title="(d) path of the slider's centre $S_3$; grey: where an upright slider touches")
    return lines, fig


# ------------------------------------------------------------------------------------------------------- point mass on a slope
@plotting.styled
def slope(quick):
    """Fig. 8: three stages, dt = 1e-2 s; below, the gap beside that of a scheme that treats contact on velocity level only."""
    system, scheme, dt, t1 = PointMassOnSlope(), Lobatto(stages=3), 1e-2, 1.0 if quick else 3.0
    lines = [f"Point mass on a slope, {scheme.stages} stages, dt = {dt:g} s, to {t1:g} s"]
    fig, axes = plotting.figure(3, 2, width=8.0, height=6.8)
    for case, column in zip((1, 2), axes.T, strict=True):
        q0, u0 = system.initial_state(case)
        sol, other = (simulate(system, kind, q0, u0, t1, dt).raise_if_failed() for kind in (scheme, SymmetricMoreau()))
        gap, other_gap = (np.asarray(jax.vmap(system.gap)(s.t, s.q)[:, 0]) for s in (sol, other))
        moving = np.linalg.norm(np.asarray(sol.u), axis=1) > 1e-9
        rest = "" if moving[-1] else f", comes to rest after {float(sol.t[moving][-1]):.2f} s"
        depths = (max(0.0, -values.min()) for values in (gap, other_gap))
        lines.append("case {}: largest penetration {:.1e} m, with SymmetricMoreau {:.1e} m{}".format(case, *depths, rest))
        lines.append(solver(sol))

        for ax, values, names, label in (
            (column[0], sol.q, ("$x$", "$y$"), "position in m"),
            (column[1], sol.u, (r"$\dot x$", r"$\dot y$"), "velocity in m/s"),
        ):
            for i, name in enumerate(names):
                ax.plot(sol.t, np.asarray(values)[:, i], color=plotting.COLOURS[i], label=name)
            ax.set_ylabel(label)
            ax.legend(frameon=False)
        for values, kind, style in ((other_gap, "SymmetricMoreau", "--"), (gap, f"Lobatto, {scheme.stages} stages", "-")):
            column[2].plot(sol.t, 1e3 * values, style, label=kind, linewidth=1.0)
        # The fall would dwarf the penetration.
        column[2].set(ylabel="gap $g_N$ in mm", xlabel="time $t$ in s", ylim=(1.3e3 * other_gap.min(), -0.6e3 * other_gap.min()))
        column[2].legend(frameon=False)
        column[0].set_title(f"case {case}: " + ("starts on the slope" if case == 1 else "falls on the slope"))
        for ax in column:
            ax.set_xlim(0, t1)
        for ax in column[:2]:
            ax.tick_params(labelbottom=False)
    return lines, fig


def reference(system, case):
    """Nodes of the exact motion at multiples of FINEST, rows (q, u) up to T1_SLOPE: five stages, and the impact of case 2 located."""
    scheme, n = Lobatto(stages=5), round(T1_SLOPE / FINEST)

    def run(state, dt):
        sol = simulate(system, scheme, *state, STEPS * dt, dt, solver=TIGHT)
        return np.concatenate([np.asarray(sol.q), np.asarray(sol.u)], axis=1)

    if case == 1:
        return run(system.initial_state(1), FINEST)[: n + 1]
    # Free fall, then the plastic impact of a mass that slips: it loses its normal velocity and mu times that of its tangential one.
    (x, y), _ = (np.asarray(s) for s in system.initial_state(2))
    impact = np.sqrt(2 * (y - 1) / system.gravity)
    speed = system.gravity * impact
    after = speed * (1 - system.mu) / 2 * np.array([1.0, -1.0])
    before = int(impact / FINEST)
    t = FINEST * np.arange(before + 1)
    zero = np.zeros_like(t)
    falling = np.stack([zero, y - 0.5 * system.gravity * t**2, zero, -system.gravity * t], axis=1)
    on_slope = run((jnp.array([x, 1.0]), jnp.asarray(after)), (before + 1) * FINEST - impact)[1]
    sliding = run((jnp.asarray(on_slope[:2]), jnp.asarray(on_slope[2:])), FINEST)
    return np.concatenate([falling, sliding])[: n + 1]


def errors(system, case, stages, multiples, exact):
    """Errors (74) of coordinates and velocities, two rows with one entry a step size, and the largest number of Newton iterations."""
    rows, iterations = [], 0
    for multiple in multiples:
        dt = multiple * FINEST
        n = int(T1_SLOPE / dt + 1e-9)
        sol = simulate(system, Lobatto(stages=stages), *system.initial_state(case), STEPS * dt, dt, solver=TIGHT)
        if np.any(np.asarray(sol.outcome)[:n]):
            sol.raise_if_failed()
        iterations = max(iterations, int(sol.iterations[:n].max()))
        values = np.concatenate([np.asarray(sol.q), np.asarray(sol.u)], axis=1)[1 : n + 1]
        difference = np.abs(values - exact[multiple : n * multiple + 1 : multiple])
        rows.append([dt * difference[:, :2].sum(), dt * difference[:, 2:].sum()])
    return np.array(rows).T, iterations


@plotting.styled
def slope_convergence(quick):
    """Fig. 9: errors of positions and velocities over the step size; lines fitted between the coarsest steps and round-off."""
    system = PointMassOnSlope()
    multiples = 2 ** np.arange(2, 6) if quick else 2 ** np.arange(8)
    stages = (2, 3) if quick else (2, 3, 4)
    dts = multiples * FINEST
    lines = [f"Point mass on a slope, orders between dt = {dts[0]:g} and {dts[-1]:g} s"]
    fig, axes = plotting.figure(2, 2, width=8.0, height=6.4)
    for case, column in zip((1, 2), axes.T, strict=True):
        exact = reference(system, case)
        results = [errors(system, case, s, multiples, exact) for s in stages]
        for row, (ax, name) in enumerate(zip(column, ("positions", "velocities"), strict=True)):
            values = np.stack([result[row] for result, _ in results])
            # The coarsest steps of case 1 are not in the asymptotic range, errors of 1e-12 are those of rounding.
            fitted = (dts < 0.15) & (values > 1e-12) if case == 1 else None
            plotting.convergence(dts, values, labels=[f"$s = {s}$" for s in stages], fitted=fitted, ax=ax)
            ax.set_ylabel(f"error of the {name}, C24 (74)")
            slopes = [text.get_text().split()[-1] for text in ax.get_legend().get_texts()]
            lines.append(f"case {case}, {name}: " + ", ".join(f"s = {s} {slope}" for s, slope in zip(stages, slopes, strict=True)))
        lines.append(f"case {case}: {max(most for _, most in results)} Newton iterations at most")
        column[0].set_title(f"case {case}: " + ("starts on the slope, smooth" if case == 1 else "falls on the slope, one impact"))
    return lines, fig


if __name__ == "__main__":
    sys.exit(main())
