"""Height, speed, friction and restitution of a thrown ball, identified from its path with three kinds of derivative side by side.

    python examples/identify.py [--iterations 15] [--noise 1e-3] [--dt 5e-3] [--out identify.png]

A ball is thrown over a rough floor, on which it bounces. A camera sees it after the first impact only. A least-squares fit by the method of
Levenberg and Marquardt finds what happened before: from what height and how fast it was thrown, and friction and restitution of the floor.
That method lives on the Jacobian of the path, and the impacts shift in time with the parameters: this is where derivatives differ.

    discrete    of the steps as computed: each impact stays on its step. Wrong by O(1), however small the step is
    saltation   of the exact motion, up to O(dt); the default. The motion itself still has the error of a scheme that captures impacts
    located     impacts are found at their time inside of the step: motion and derivative have the order of the scheme

The path without noise comes from a closed form, not from the library. It shows what each kind can reach at best; the fit to the noisy path
shows whose error bars can be trusted.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxnsd
from jaxnsd import plotting
from jaxnsd.command_line import demo, options


@jaxnsd.system
class Ball(jaxnsd.System):
    """A small ball over a rough floor: q = (x, y), distance and height in m."""

    e_N: float = 0.6
    mu: float = 0.1
    gravity: float = 9.81  # m/s^2

    def mass_matrix(self, t, q):
        """Of unit mass: it cancels."""
        return jnp.eye(2, dtype=q.dtype)

    def potential_energy(self, t, q):
        """V = g y."""
        return self.gravity * q[1]

    def gap(self, t, q):
        """Height above the floor."""
        return q[1:]

    def tangential_velocity(self, t, q, u):
        """Velocity along the floor."""
        return u[:1, None]


NAMES, UNITS = ("height", "speed", "mu", "e_N"), ("m", "m/s", "", "")
TRUTH, FIRST = np.array([1.0, 2.0, 0.1, 0.6]), np.array([0.85, 2.3, 0.15, 0.7])
LOWER, UPPER = np.array([0.3, 0.5, 0.0, 0.1]), np.array([3.0, 5.0, 0.5, 0.9])  # bounds of the fit
T0, T1, FRAME = 0.6, 1.5, 0.01  # the camera's record and the time from frame to frame in s
IMPACTS = 50  # that the closed form follows, enough for the bounds

SCHEME = jaxnsd.MoreauJean()
#: The kinds of derivative: a scheme, and how `simulate` differentiates it.
KINDS = {
    "discrete": (SCHEME, "discrete"),
    "saltation": (SCHEME, "saltation"),
    "located": (jaxnsd.LocatedImpacts(SCHEME), "saltation"),
}


def frames():
    """Times of the measurements."""
    return np.arange(round(T0 / FRAME), round(T1 / FRAME) + 1) * FRAME


def simulated(parameters, kind, dt):
    """Path (N, 2) at the times of the measurements, for ``parameters`` (4,) in the order of NAMES."""
    height, speed, mu, e_N = parameters
    scheme, sensitivity = KINDS[kind]
    q0, u0 = jnp.stack([jnp.zeros_like(height), height]), jnp.stack([speed, jnp.zeros_like(speed)])
    sol = jaxnsd.simulate(Ball(e_N=e_N, mu=mu), scheme, q0, u0, T1, dt, save_every=round(FRAME / dt), sensitivity=sensitivity)
    return sol.q[round(T0 / FRAME) :]


def exact(parameters, times):
    """Path (N, 2) at ``times`` (N,) in closed form, from parabola to parabola."""
    height, speed, mu, e_N = parameters
    g = Ball.gravity

    def bounce(state, _):
        t, x, y, vx, vy = state
        s = times - t
        flight = jnp.stack([x + vx * s, y + vy * s - 0.5 * g * s**2], axis=1)
        arriving = jnp.sqrt(vy**2 + 2 * g * y)
        fall = (vy + arriving) / g
        bound = mu * (1 + e_N) * arriving
        return (t + fall, x + vx * fall, jnp.zeros_like(y), vx - jnp.clip(vx, -bound, bound), e_N * arriving), (t, flight)

    zero = jnp.zeros_like(height)
    _, (starts, flights) = lax.scan(bounce, (zero, zero, height, speed, zero), length=IMPACTS)
    last = jnp.sum(starts[:, None] <= times[None, :], axis=0) - 1
    return flights[last, jnp.arange(len(times))]


def linearized(model):
    """Compiled function of the parameters that returns the path and its Jacobian as arrays (2 N,) and (2 N, 4)."""

    def path(parameters):
        q = model(parameters).ravel()
        return q, q

    both = jax.jit(jax.jacfwd(path, has_aux=True))
    return lambda parameters: tuple(np.asarray(x) for x in both(jnp.asarray(parameters))[::-1])


def levenberg_marquardt(model, measured, first, iterations):
    """Least squares with Marquardt's scaling: the parameters after each iteration (iterations + 1, 4), last residuals and Jacobian."""

    def linearize(p):
        q, J = model(p)
        return p, q - measured, J

    (p, r, J), damping, history = linearize(first), 1e-3, [first]
    for _ in range(iterations):
        JJ = J.T @ J
        trial = linearize(np.clip(p - np.linalg.solve(JJ + damping * np.diag(np.diag(JJ)), J.T @ r), LOWER, UPPER))
        better = trial[1] @ trial[1] < r @ r
        if better:
            p, r, J = trial
        damping = np.clip(damping * (0.1 if better else 10), 1e-12, 1e12)
        history.append(p)
    return np.array(history), r, J


def fit(kinds, measured, noise, iterations):
    """What `levenberg_marquardt` finds in ``measured`` without and with ``noise``, for each kind: two dictionaries."""
    clean, noisy = {}, {}
    for kind, model in kinds.items():
        clean[kind] = levenberg_marquardt(model, measured, FIRST, iterations)
        noisy[kind] = levenberg_marquardt(model, measured + noise, FIRST, iterations)
    return clean, noisy


def worst(history, truth):
    """Largest relative error of a parameter, along a history (..., 4)."""
    return np.max(np.abs(history - truth) / np.abs(truth), axis=-1)


def main(argv=None):
    """Measure, fit, print and draw."""
    parser = _parser()
    args = parser.parse_args(argv)
    truth = np.array([getattr(args, name) for name in NAMES])
    for name, value, low, high in zip(NAMES, truth, LOWER, UPPER, strict=True):
        if not low < value < high:
            parser.error(f"--{name} must lie between the bounds of the fit, {low:g} and {high:g}, got {value:g}")
    if not args.noise > 0:
        parser.error(f"--noise must be positive, got {args.noise:g}")
    if not args.dt > 0 or abs(FRAME / args.dt - round(FRAME / args.dt)) > 1e-9:
        parser.error(f"--dt must divide the {FRAME:g} s from frame to frame, got {args.dt:g}")
    if not args.out.parent.is_dir() or args.out.suffix not in options.PICTURES:
        parser.error(f"--out must be a {', '.join(options.PICTURES)} file in a directory that exists, got {str(args.out)!r}")

    jax.config.update("jax_enable_x64", True)
    began = time.perf_counter()
    measured, true_J = linearized(lambda p: exact(p, jnp.asarray(frames())))(truth)
    noise = args.noise * np.asarray(jax.random.normal(jax.random.key(args.seed), measured.shape))
    models = {kind: linearized(lambda p, kind=kind: simulated(p, kind, args.dt)) for kind in KINDS}
    clean, noisy = fit(models, measured, noise, args.iterations)

    print(
        f"{len(frames())} positions from {T0:g} s to {T1:g} s, after the first impact; steps of {args.dt:g} s, {args.iterations} iterations"
    )
    print("\nwithout noise        Jacobian off by    motion off by    parameters off by")
    for kind, model in models.items():
        path, J = model(truth)
        off = np.max(np.abs(J - true_J).mean(axis=0) / np.abs(true_J).mean(axis=0))
        shift, end = np.max(np.abs(path - measured)), worst(clean[kind][0][-1], truth)
        print(f"{kind:<18} {off:14.1e}     {1e3 * shift:10.1e} mm {end:16.1e}")
    print(f"\nwith a noise of {1e3 * args.noise:g} mm: recovered, standard error, and by how many of them it is off")
    print(" " * 11 + "".join(f"{f'{name} ({unit})' if unit else name:>25}" for name, unit in zip(NAMES, UNITS, strict=True)))
    for kind, (history, r, J) in noisy.items():
        errors, _, scatter = demo.standard_errors(r, J)
        parts = [f"{p:9.4f} ± {e:.4f} {abs(p - true) / e:5.1f}" for p, e, true in zip(history[-1], errors, truth, strict=True)]
        print(f"{kind:<11}" + "".join(f"{part:>25}" for part in parts) + f"   residual / noise {scatter / args.noise:.1f}")
    plotting.save(picture(truth, measured + noise, models, clean, noisy), args.out)
    print(f"\npicture    {args.out}, {time.perf_counter() - began:.0f} s in all")
    return 0


@plotting.styled
def picture(truth, measured, models, clean, noisy):
    """The throw and its fit, what the fits leave, and how the errors of the parameters fall without and with noise."""
    fig, axes = plotting.figure(2, 2, width=9.0, height=6.2)
    colours = dict(zip(KINDS, (plotting.COLOURS[1], plotting.COLOURS[0], plotting.COLOURS[2]), strict=True))
    data, times = measured.reshape(-1, 2), frames()

    ax = axes[0, 0]
    fine = np.linspace(0, T1, 2000)
    for kind in ("discrete", "located"):
        x, y = np.asarray(exact(jnp.asarray(noisy[kind][0][-1]), jnp.asarray(fine))).T
        ax.plot(x, y, color=colours[kind], linewidth=0.9, label=f"recovered, {kind}")
    ax.plot(*data.T, ".", color="0.7", markersize=7, zorder=1, label="measured")
    ax.set(xlabel="distance $x$ in m", ylabel="height $y$ in m", title="the throw, from the parameters that were recovered")
    ax.legend(frameon=False, loc="upper right")

    ax = axes[1, 0]
    for kind, (history, _, _) in noisy.items():
        left = (models[kind](history[-1])[0] - measured).reshape(-1, 2)
        ax.plot(times, 1e3 * left[:, 1], color=colours[kind], linewidth=0.8, label=kind)
    ax.set(xlabel="time in s", ylabel="fitted minus measured height in mm", title="what the fits leave")
    ax.set_ylim(top=1.3 * ax.get_ylim()[1])
    ax.legend(frameon=False, loc="upper left", ncols=3)

    for ax, fits, title in ((axes[0, 1], clean, "without noise"), (axes[1, 1], noisy, "with noise")):
        for kind, (history, _, _) in fits.items():
            ax.semilogy(np.maximum(worst(history, truth), 1e-17), "o-", color=colours[kind], markersize=3, label=kind)
        ax.set(xlabel="iteration", ylabel="largest relative error of a parameter", title=title)
    axes[0, 1].legend(frameon=False, loc="center right")
    return fig


def _parser():
    parser = options.Parser(prog="identify.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--iterations", type=options.count, default=15, metavar="N", help="of Levenberg-Marquardt (default: %(default)s)")
    parser.add_argument("--noise", type=options.number, default=1e-3, metavar="S", help="of the measurement in m (default: %(default)s)")
    parser.add_argument("--dt", type=options.number, default=5e-3, metavar="S", help="step in s (default: %(default)s)")
    for name, unit, value in zip(NAMES, UNITS, TRUTH, strict=True):
        text = f"true value{' in ' if unit else ''}{unit} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=options.number, default=float(value), metavar="X", help=text)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the noise (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("identify.png"), metavar="FILE", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
