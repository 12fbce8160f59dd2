"""The main job, ``python -m jaxnsd demo``: a woodpecker toy, thousands of them, and two parameters recovered from noisy data.

Writes three pictures and ``demo.npz`` into a directory and a short report to the terminal.
"""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import plotting
from ..models import RotatingBall, Woodpecker
from ..plotting import COLOURS
from ..programs import progress
from ..schemes import Moreau
from ..simulation.simulate import simulate

#: Published period of the limit cycle, s.
PERIOD = 0.146


def main(directory, quick=False):
    """Do all three parts, write their results into ``directory`` (which exists), and return the exit status."""
    start = time.perf_counter()
    results = {}
    for i, part in enumerate((limit_cycle, ensemble, identification), start=1):
        lines, figure, arrays = part(quick)
        name = part.__name__
        plotting.save(figure, directory / f"{name}.png")
        results |= {f"{name}_{key}": np.asarray(value) for key, value in arrays.items()}
        print(f"\n{i}. {lines[0]}")
        print("\n".join(f"   {line}" for line in lines[1:]), flush=True)
    np.savez_compressed(directory / "demo.npz", **results)
    names = ", ".join(f"{part.__name__}.png" for part in (limit_cycle, ensemble, identification))
    print(f"\nWritten to {directory}: {names}, demo.npz. Took {time.perf_counter() - start:.0f} s.")
    return 0


# ------------------------------------------------------------------------------------------------------ one woodpecker
def limit_cycle(quick=False):
    """A woodpecker from its initial state to its limit cycle (Capobianco & Eugster 2018, Fig. 7): ``(lines, figure, arrays)``."""
    system = Woodpecker()
    t1, dt = (1.5, 1e-4) if quick else (3.0, 1e-5)
    q0, u0 = system.initial_state()
    options = {"save_every": round(1e-4 / dt), "progress": True}
    sol = simulate(system, Moreau(), q0, u0, t1, dt, **options).raise_if_failed()
    gentle = simulate(system, Moreau(), q0, 0.5 * u0, t1, dt, **options).raise_if_failed()
    beak = np.flatnonzero(plotting.impacts(sol)[:, 0])
    knocks = np.asarray(sol.t)[beak + 1]
    # The beak may close several times within a knock; a new one comes at least half a period later.
    first = np.insert(np.diff(knocks) > PERIOD / 2, 0, True)
    beak, knocks = beak[first], knocks[first]
    settled = len(knocks) // 2
    cycles = np.diff(knocks[settled:])
    fall = np.asarray(sol.q)[beak[settled], 0] - np.asarray(sol.q)[beak[-1], 0]
    speed = fall / (knocks[-1] - knocks[settled])
    lines = [
        "Woodpecker toy",
        f"{round(t1 / dt)} steps of {dt:g} s, {len(knocks)} knocks of the beak",
        f"period of the limit cycle  {cycles.mean():.4f} s over {len(cycles)} cycles (published: {PERIOD} s)",
        f"descent                    {1e3 * speed:.1f} mm/s, {1e3 * speed * cycles.mean():.2f} mm a cycle",
    ]
    arrays = {"t": sol.t, "q": sol.q, "u": sol.u, "P_N": sol.P_N, "knocks": knocks, "period": cycles.mean(), "descent_speed": speed}
    arrays |= {"gentle_q": gentle.q, "gentle_u": gentle.u}
    return lines, _draw_limit_cycle(sol, gentle, knocks), arrays


@plotting.styled
def _draw_limit_cycle(sol, gentle, knocks):
    t, q, u = (np.asarray(x) for x in (sol.t, sol.q, sol.u))
    fig, axes = plotting.figure(2, 2, width=8.0, height=6.2)
    # The last whole cycles stand for the limit cycle.
    settled = t >= knocks[-4]
    for ax, i, name in ((axes[0, 0], 1, "M"), (axes[0, 1], 2, "S")):
        ax.plot(q[settled, i], u[settled, i], color=COLOURS[0], label="limit cycle")
        # The sleeve starts from one point in both: one dot is seen around the other.
        runs = ((sol, COLOURS[1], "start", 9), (gentle, COLOURS[4], "start at half the speed, first four cycles", 4.5))
        for run, colour, label, size in runs:
            way = np.asarray(run.t) < 4 * PERIOD
            ax.plot(run.q[way, i], run.u[way, i], color=colour, linewidth=0.8, zorder=1)
            ax.plot(run.q[0, i], run.u[0, i], "o", color=colour, markersize=size, label=label)
        ax.set_xlabel(rf"$\varphi_{name}$ in rad")
        ax.set_ylabel(rf"$\dot\varphi_{name}$ in rad/s")
    axes[0, 0].set_title("sleeve")
    axes[0, 1].set_title("woodpecker")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside upper center")

    begin, end = knocks[-4] - 0.02, knocks[-2] + 0.02
    shown = (t >= begin) & (t <= end)
    ax = axes[1, 0]
    for i, name, colour in ((1, "M", COLOURS[1]), (2, "S", COLOURS[0])):
        ax.plot(t[shown], q[shown, i], color=colour, label=rf"$\varphi_{name}$")
    for k, knock in enumerate(knocks[-4:-1]):
        ax.axvline(knock, color="0.6", linewidth=0.8, linestyle=":", label="beak knocks" if k == 0 else None)
    ax.set(xlabel="time $t$ in s", ylabel="angle in rad", title="two cycles", xlim=(begin, end), ylim=(-0.57, 0.32))
    ax.legend(frameon=False, ncols=3, loc="upper center")

    ax = axes[1, 1]
    ax.plot(t, 1e3 * q[:, 0], color=COLOURS[0])
    ax.set(xlabel="time $t$ in s", ylabel="height $y$ in mm", title="descent")
    return fig


# ------------------------------------------------------------------------------------------------------------- many of them
def ensemble(quick=False):
    """Thousands of woodpeckers with uncertain friction and restitution: ``(lines, figure, arrays)``."""
    n, chunk = (256, 64) if quick else (4096, 64)
    t1, dt, every = 1.2, 2e-4, 10
    key_mu, key_e = jax.random.split(jax.random.key(7))
    mu = 0.3 * jnp.exp(0.08 * jax.random.normal(key_mu, (n,)))
    e = jax.random.beta(key_e, 25.0, 25.0, (n,))
    q0, u0 = Woodpecker().initial_state()

    @jax.jit
    @jax.vmap
    def run(mu, e):
        sol = simulate(Woodpecker(mu=mu, e_N_beak=e), Moreau(), q0, u0, t1, dt, save_every=every)
        return sol.t[::5], sol.q[::5, 0], *descent(sol), sol.success

    def work(first):
        return jax.device_get(run(mu[first : first + chunk], e[first : first + chunk]))

    starts = range(0, n, chunk)
    began = time.perf_counter()
    pieces = [work(0)]  # compiles
    compiled = time.perf_counter()
    pieces += progress.bar(map(work, starts[1:]), total=len(starts), initial=1, desc="woodpeckers", unit_scale=chunk, unit="")
    seconds = time.perf_counter() - compiled
    t, y, speed, knocks, success = (np.concatenate(x) for x in zip(*pieces, strict=True))

    stops, walks, falls = classify(speed, knocks, success)
    quantiles = np.quantile(speed[walks], [0.05, 0.5, 0.95])
    share = {name: 100 * np.mean(which) for name, which in (("walk", walks), ("fall", falls), ("stop", stops), ("fail", ~success))}
    rate = (n - chunk) * round(t1 / dt) / seconds
    lines = [
        f"{n} woodpeckers, mu = 0.30 with 8 % spread, e_N of the beak = 0.50 +- {np.std(e):.2f}",
        f"{round(t1 / dt) * n:.3g} steps: {rate:.2g} steps/s, after {compiled - began:.0f} s of compilation",
        f"descent speed  {1e3 * speed[walks].mean():.1f} mm/s +- {1e3 * speed[walks].std():.1f} mm/s (mean and spread of those that walk)",
        "quantiles      " + ", ".join(f"{100 * p:g} %: {1e3 * x:.1f}" for p, x in zip((0.05, 0.5, 0.95), quantiles, strict=True)) + " mm/s",
        f"do not walk    {100 - share['walk']:.1f} %: {share['fall']:.1f} % slide down the pole, {share['stop']:.1f} % come to a stop, "
        f"{share['fail']:.2g} % of the runs did not converge",
    ]
    arrays = {"mu": mu, "e_N_beak": e, "speed": speed, "walks": walks, "falls": falls, "t": t[0], "y": y, "success": success}
    return lines, _draw_ensemble(np.asarray(mu), np.asarray(e), speed, walks, falls, t[0], y), arrays


def classify(speed, knocks, success):
    """``(stops, walks, falls)``, boolean and disjoint: what becomes of the woodpeckers whose run succeeded."""
    stops = success & (speed < 5e-3)
    walks = success & ~stops & (knocks >= 3) & (speed < 0.5)
    return stops, walks, success & ~stops & ~walks


def descent(sol):
    """``(speed, knocks)`` in the second half: from the first to the last knock of the beak, so that only whole cycles count.

    With fewer than three knocks, the mean speed of the whole second half.
    """
    n = sol.P_N.shape[0]
    closed = sol.P_N[:, 0] > 0
    knock = closed & ~jnp.roll(closed, 1) & (jnp.arange(n) >= n // 2)
    knocks = jnp.sum(knock)
    enough = knocks >= 3
    first = jnp.where(enough, jnp.argmax(knock), n // 2)
    last = jnp.where(enough, n - 1 - jnp.argmax(knock[::-1]), n - 1)
    return (sol.q[first, 0] - sol.q[last, 0]) / (sol.t[last] - sol.t[first]), knocks


@plotting.styled
def _draw_ensemble(mu, e, speed, walks, falls, t, y):
    fig, axes = plotting.figure(1, 3, width=11.0, height=3.6, width_ratios=[1.25, 1, 1])
    ax = axes[0]
    low, high = 1e3 * np.quantile(speed[walks], [0.005, 0.995])
    points = ax.scatter(mu[walks], e[walks], c=1e3 * speed[walks], s=5, cmap="viridis", vmin=low, vmax=high, linewidths=0)
    ax.scatter(mu[falls], e[falls], s=9, marker="x", color=COLOURS[1], linewidths=0.8, label="slides down")
    fig.colorbar(points, ax=ax, label="descent speed in mm/s", extend="both")
    ax.set(xlabel=r"friction coefficient $\mu$", ylabel=r"restitution of the beak $e_N$", title="who walks, and how fast", ylim=(0.14, 0.8))
    ax.legend(frameon=False, loc="lower right")

    ax = axes[1]
    shown = 1e3 * speed[walks]
    ax.hist(shown[(shown >= low) & (shown <= high)], bins=40, color=COLOURS[5], density=True)
    for p, style in ((0.05, ":"), (0.5, "-"), (0.95, ":")):
        x = np.quantile(shown, p)
        ax.axvline(x, ymax=0.7, color="black", linewidth=1, linestyle=style, label=f"{100 * p:g} %: {x:.0f} mm/s")
    ax.set(xlabel="descent speed in mm/s", ylabel="density in s/mm", title="those that walk")
    ax.set_ylim(top=1.5 * ax.get_ylim()[1])
    ax.legend(frameon=False, loc="upper right", fontsize="small")

    ax = plotting.ensemble_bands(t, 1e3 * y[walks], ax=axes[2])
    ax.set(ylabel="height $y$ in mm", title="those that walk")
    ax.legend(frameon=False, loc="lower left")
    return fig


# --------------------------------------------------------------------------------------------- parameters from noisy data
#: Standard deviations of the measured coordinates (m, m, rad) and velocities (m/s, m/s, rad/s).
NOISE_Q, NOISE_U = np.array([1e-3, 1e-3, 1e-2]), np.array([0.05, 0.05, 0.5])
TRUTH = {"e_N": 0.7, "mu": 0.17}
UPPER = np.array([1.0, 0.5])  # bounds of e_N and mu; the lower ones are 0


def measure(key, t1=2.2, dt=1e-3):
    """A spinning ball that bounces, measured at every ``dt`` with noise: ``(t (N + 1,), q (N + 1, 3), u (N + 1, 3))``.

    Simulated with a tenth of the step that the identification will use, so that it does not see its own discretization.
    """
    system = RotatingBall(**TRUTH)
    sol = simulate(system, Moreau(), *system.initial_state(omega=200.0), t1, dt / 10, save_every=10).raise_if_failed()
    errors = (np.asarray(jax.random.normal(key, sol.q.shape)) for key in jax.random.split(key))
    t, q, u = (np.asarray(x) for x in (sol.t, sol.q, sol.u))
    return t, q + NOISE_Q * next(errors), u + NOISE_U * next(errors)


def windows(u, before=6, count=10, length=20):
    """First nodes of windows of ``length`` steps that hold one impact each, found where the measured vertical velocity jumps.

    ``count`` windows an impact, which share no measurement; each begins at least ``before`` steps ahead of the impact.
    """
    impact = np.flatnonzero(np.diff(u[:, 1]) > 12 * NOISE_U[1])
    impact = impact[np.insert(np.diff(impact) > 2 * length, 0, True)]
    starts = (impact[:, None] - before - np.arange(count)).ravel()
    return np.sort(starts[(starts >= 0) & (starts + length < len(u))]), length


def residuals(parameters, q, u, starts, length, dt):
    """Measured minus predicted velocity at the end of every window, in units of the noise, (windows, 3).

    A window starts at a measured state and holds one impact. The time of that impact depends on the state, not on ``e_N`` and ``mu``:
    what the derivative of a discrete map misses, the shift of the impacts in time, is zero here, and the derivative is right.
    """
    e_N, mu = parameters
    system = RotatingBall(e_N=e_N, mu=mu)

    def arrive(q, u):
        return simulate(system, Moreau(), q, u, length * dt, dt, sensitivity="discrete").u[-1]

    end = jax.vmap(arrive)(jnp.asarray(q[starts]), jnp.asarray(u[starts]))
    return (u[starts + length] - end) / NOISE_U[None]


def fit(residual, first, iterations):
    """Least squares by Adam from all starting points at once, in unbounded coordinates: ``(paths, loss, r, J)``.

    ``first`` (starts, 2); returns the histories (iterations, starts, 2) and (iterations, starts), and at their ends the residuals
    (starts, n) and their derivatives with respect to the parameters (starts, n, 2).
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(0.1, iterations), b2=0.99)

    def linearize(z):
        """Residuals, their Jacobian in forward mode (two parameters, many residuals), loss and its gradient in z."""
        parameters, stretch = jax.jvp(lambda z: UPPER * jax.nn.sigmoid(z), (z,), (jnp.ones_like(z),))
        J, r = jax.jacfwd(lambda p: (residual(p),) * 2, has_aux=True)(parameters)
        return parameters, r, J, 0.5 * jnp.mean(r**2), stretch * (J.T @ r) / r.size

    @jax.jit
    def iterate(z, state):
        parameters, r, J, loss, gradient = jax.vmap(linearize)(z)
        update, state = optimizer.update(gradient, state)
        return optax.apply_updates(z, update), state, (parameters, loss), (r, J)

    z = jnp.asarray(np.log(first / (UPPER - first)))
    state, history = optimizer.init(z), []
    for _ in progress.bar(range(iterations), desc="identification", unit="iteration"):
        z, state, here, (r, J) = iterate(z, state)
        history.append(jax.device_get(here))
    paths, loss = (np.stack(x) for x in zip(*history, strict=True))
    return paths, loss, np.asarray(r), np.asarray(J)


def standard_errors(r, J):
    """``(errors (2,), covariance (2, 2), s)``: the Gauss-Newton covariance s^2 (J^T J)^-1, s^2 the variance of the residuals."""
    variance = r @ r / (r.size - J.shape[1])
    covariance = variance * np.linalg.inv(J.T @ J)
    return np.sqrt(np.diag(covariance)), covariance, np.sqrt(variance)


def identification(quick=False):
    """Restitution and friction of a bouncing, spinning ball from its noisy trajectory: ``(lines, figure, arrays)``."""
    dt = 1e-3
    n, iterations = (4, 200) if quick else (16, 300)
    t, q, u = measure(jax.random.key(3), dt=dt)
    starts, length = windows(u)

    def residual(parameters):
        return residuals(parameters, q, u, starts, length, dt).ravel()

    first = UPPER * np.asarray(jax.random.uniform(jax.random.key(4), (n, 2), minval=0.05, maxval=0.95))
    paths, loss, r, J = fit(residual, first, iterations)
    chosen = np.argmin(loss[-1])
    best = paths[-1, chosen]
    errors, covariance, scatter = standard_errors(r[chosen], J[chosen])
    system = replace(RotatingBall(**TRUTH), e_N=float(best[0]), mu=float(best[1]))
    fitted = simulate(system, Moreau(), *system.initial_state(omega=200.0), float(t[-1]), dt / 10, save_every=10)
    agree = np.sum(np.all(np.abs(paths[-1] - best) < errors / 10, axis=1))
    lines = [
        "Restitution and friction of a bouncing, spinning ball from one noisy trajectory",
        f"{len(starts)} windows of {length} steps around impacts, each from a measured state, {3 * len(starts)} residual velocities",
        f"{n} starts at once by vmap, {iterations} iterations of Adam: {agree} of {n} end within a tenth of a standard error of the best",
        "        recovered   standard error   truth   off by",
        *(
            f"{name:<6}  {value:9.4f}   {error:14.4f}   {truth:5.3g}   {abs(value - truth) / error:.1f} standard errors"
            for (name, truth), value, error in zip(TRUTH.items(), best, errors, strict=True)
        ),
        "A derivative of the simulated steps does not know that impacts shift in time when parameters change. These windows are chosen so",
        "that they do not: the one impact in each comes at a time that does not depend on e_N and mu, and the gradient is right.",
    ]
    arrays = {
        "t": t,
        "q": q,
        "u": u,
        "windows": starts,
        "paths": paths,
        "loss": loss,
        "best": best,
        "covariance": covariance,
        "scatter": scatter,
    }
    return lines, _draw_identification(t, q, fitted, starts, length, paths, loss, best, covariance), arrays


@plotting.styled
def _draw_identification(t, q, fitted, starts, length, paths, loss, best, covariance):
    fig, axes = plotting.figure(2, 2, width=8.0, height=6.2)
    ax = axes[0, 0]
    inside = np.unique(starts[:, None] + np.arange(length + 1))
    outside = np.setdiff1d(np.arange(len(t)), inside)[::10]
    ax.plot(t[outside], q[outside, 1], ".", color="0.7", markersize=6, label="measured")
    ax.plot(t[inside[::2]], q[inside[::2], 1], ".", color=COLOURS[1], markersize=6, label="in windows around impacts")
    ax.plot(fitted.t, fitted.q[:, 1], color=COLOURS[0], linewidth=0.7, label="simulated, recovered parameters")
    ax.set(xlabel="time $t$ in s", ylabel="height $y$ in m", title="bouncing, spinning ball", ylim=(0, 1.45))
    ax.legend(frameon=False, loc="upper right")

    ax = axes[0, 1]
    ax.semilogy(loss, color=COLOURS[0], linewidth=0.8, alpha=0.7)
    ax.set(xlabel="iteration of Adam", ylabel="loss", title=f"loss from {loss.shape[1]} starts")

    ax = axes[1, 0]
    for path in np.moveaxis(paths, 1, 0):
        ax.plot(path[:, 0], path[:, 1], color=COLOURS[0], linewidth=0.7, alpha=0.7)
    ax.plot(paths[0, :, 0], paths[0, :, 1], "o", color=COLOURS[0], markersize=3, label="starts")
    truth = list(TRUTH.values())
    ax.plot(*truth, "+", color="black", markersize=9, label="truth")
    ax.set(xlabel="restitution $e_N$", ylabel=r"friction coefficient $\mu$", title="paths to the optimum", xlim=(0, 1), ylim=(0, 0.6))
    ax.legend(frameon=False, loc="upper left", ncols=2)

    ax = axes[1, 1]
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(angle), np.sin(angle)])
    # This share of a normal distribution in the plane lies within this many standard deviations.
    for share, radius, shade in ((95, np.sqrt(5.991), COLOURS[5]), (50, np.sqrt(1.386), COLOURS[0])):
        ax.fill(*(best[:, None] + radius * circle), color=shade, alpha=0.5, linewidth=0, label=f"{share} % region")
    ax.plot(*best, "o", color="white", markeredgecolor=COLOURS[0], markersize=5, label="recovered")
    ax.plot(*truth, "+", color="black", markersize=9, label="truth")
    ax.set(xlabel="restitution $e_N$", ylabel=r"friction coefficient $\mu$", title="result and uncertainty")
    ax.margins(0.15)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    ax.legend(frameon=False, loc="upper left", ncols=2)
    return fig
