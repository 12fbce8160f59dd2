"""Stiffness, damping and friction of a block that sticks and slips, identified from a noisy record of its motion.

    python examples/identify.py [--starts 8] [--iterations 250] [--noise 5e-4] [--out identify.png]

A block lies on a rough table and hangs on a spring whose other end is moved to and fro. Displacements are measured; a least-squares fit
by gradient, from several starting points at once, recovers three parameters with their uncertainty.

Why this gradient may be trusted. jaxnsd differentiates the steps as computed, with every event held on its step. Where an impact lets the
velocity jump at a time that depends on the parameters, such a derivative does not tend to the true one as dt -> 0. Nor does it where
sliding reverses at once, since the acceleration jumps while the velocity passes through zero. Here the contact stays closed and the
spring's end moves slowly, so that the block rests before it slides back: when it comes to rest its velocity vanishes, and so does the
derivative; when it breaks loose the acceleration is continuous. The derivative of the steps then tends to the true one
(tests/test_examples.py checks it). The script counts the reversals of the fitted motion that do not pass through rest.
With impacts, choose a loss whose impacts do not move
with the parameters, as the demo does (`jaxnsd.demo.residuals`).

Needs tqdm: pip install "jaxnsd[progress]".
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jaxnsd
from jaxnsd import cli, demo, plotting


@jaxnsd.system
class Block(jaxnsd.System):
    """A block on a rough table, drawn by a spring with a moving end: q = (x, y), displacement and height above the table in m."""

    stiffness: float = 200.0  # N/m
    damping: float = 1.5  # N s/m
    mu: float = 0.25
    mass: float = 1.0  # kg
    gravity: float = 9.81  # m/s^2

    def mass_matrix(self, t, q):
        """m times the identity."""
        return self.mass * jnp.eye(2)

    def force(self, t, q, u):
        """Spring, damper and weight; the spring's end moves slowly to and fro."""
        end = 0.05 * jnp.sin(2 * jnp.pi * 0.6 * t)
        return jnp.stack([self.stiffness * (end - q[0]) - self.damping * u[0], -self.mass * self.gravity])

    def gap(self, t, q):
        """Height above the table."""
        return q[1:]

    def tangential_velocity(self, t, q, u):
        """Sliding velocity."""
        return u[:1, None]


NAMES = ("stiffness", "damping", "mu")
UNITS = ("N/m", "N s/m", "")
LOWER, UPPER = np.array([100.0, 0.0, 0.0]), np.array([400.0, 8.0, 0.45])
DT, T1, EVERY = 1e-3, 4.0, 10  # step in s, length of the record in s, steps between measurements


def motion(parameters, dt=DT):
    """The motion for ``parameters`` (3,) in the order of NAMES, stored where it is measured: a `Solution`."""
    system = Block(**dict(zip(NAMES, parameters, strict=True)))
    every = round(EVERY * DT / dt)
    return jaxnsd.simulate(system, jaxnsd.SymmetricMoreau(), jnp.zeros(2), jnp.zeros(2), T1, dt, save_every=every, sensitivity="discrete")


def measure(truth, noise, seed):
    """Displacements (N + 1,) with noise, simulated with a tenth of the step, so that the fit does not see its own discretization."""
    x = np.asarray(motion(truth, DT / 10).raise_if_failed().q[:, 0])
    return x + noise * np.asarray(jax.random.normal(jax.random.key(seed), x.shape))


def bounded(z):
    """Parameters within their bounds, from unbounded coordinates z (3,)."""
    return LOWER + (UPPER - LOWER) * jax.nn.sigmoid(z)


def unbounded(parameters):
    """Inverse of `bounded`."""
    share = (parameters - LOWER) / (UPPER - LOWER)
    return jnp.asarray(np.log(share / (1 - share)))


def residual(parameters, measured, noise):
    """Predicted minus measured displacements in units of the noise, (N + 1,)."""
    return (motion(parameters).q[:, 0] - measured) / noise


def fit(measured, noise, first, iterations):
    """Least squares by Adam from all starting points ``first`` (starts, 3) at once.

    Returns the histories of the parameters (iterations, starts, 3) and of the loss (iterations, starts).
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(0.15, iterations), b2=0.99)

    def loss(z):
        return jnp.mean(residual(bounded(z), measured, noise) ** 2)

    @jax.jit
    @jax.vmap
    def iterate(z, state):
        value, gradient = jax.value_and_grad(loss)(z)
        update, state = optimizer.update(gradient, state)
        return optax.apply_updates(z, update), state, bounded(z), value

    z = unbounded(first)
    state, history = jax.vmap(optimizer.init)(z), []
    for _ in tqdm(range(iterations), unit="iteration"):
        z, state, *here = iterate(z, state)
        history.append(jax.device_get(here))
    paths, losses = (np.stack(x) for x in zip(*history, strict=True))
    return paths, losses


def sliding(sol):
    """Direction of sliding at the stored nodes (N + 1,): -1, 1, or 0 where the block rests."""
    velocity = np.asarray(sol.u[:, 0])
    return np.where(np.abs(velocity) < 1e-9, 0, np.sign(velocity))


def reversals(sol):
    """How often sliding reverses without a stored node at rest in between."""
    direction = sliding(sol)
    return int(np.sum(direction[1:] * direction[:-1] < 0))


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
    if not args.out.parent.is_dir() or args.out.suffix not in cli.PICTURES:
        parser.error(f"--out must be a {', '.join(cli.PICTURES)} file in a directory that exists, got {str(args.out)!r}")

    jax.config.update("jax_enable_x64", True)
    began = time.perf_counter()
    measured = measure(truth, args.noise, args.seed)
    draws = jax.random.uniform(jax.random.key(args.seed + 1), (args.starts, 3), minval=0.1, maxval=0.9)
    first = LOWER + (UPPER - LOWER) * np.asarray(draws)
    paths, losses = fit(measured, args.noise, first, args.iterations)

    finite = np.where(np.isfinite(losses[-1]), losses[-1], np.inf)
    best = paths[-1, np.argmin(finite)]
    sol = motion(jnp.asarray(best)).raise_if_failed()
    r = (np.asarray(sol.q[:, 0]) - measured) / args.noise
    J = np.asarray(jax.jit(jax.jacfwd(lambda p: residual(p, measured, args.noise)))(jnp.asarray(best)))
    errors, covariance, _ = demo.standard_errors(r, J)
    correlation = covariance / np.outer(errors, errors)
    agree = np.sum(np.all(np.abs(paths[-1] - best) < errors, axis=1))

    print(f"{len(measured)} displacements with a noise of {1e3 * args.noise:g} mm, over {T1:g} s")
    print(f"{args.starts} starts, {args.iterations} iterations of Adam: {agree} end within one standard error of the best")
    print(f"{reversals(sol)} reversals of sliding in the fitted motion do not pass through rest (0 expected: the gradient is right)")
    print(f"mean square of residual / noise: {np.min(finite):.3f} at the best (1 expected), {np.max(finite):.3g} at the worst start")
    print("            recovered   standard error      truth   off by")
    for name, unit, value, error, true in zip(NAMES, UNITS, best, errors, truth, strict=True):
        print(f"{name:<10} {value:10.4f}   {error:14.4f} {true:10.4g}   {abs(value - true) / error:.1f} standard errors   {unit}".rstrip())
    print(f"correlation of damping and friction: {correlation[1, 2]:.2f}")
    plotting.save(picture(measured, sol, best, r, losses, covariance, truth), args.out)
    print(f"picture    {args.out}, {time.perf_counter() - began:.0f} s in all")
    return 0


@plotting.styled
def picture(measured, sol, best, r, losses, covariance, truth):
    """The fit and its residuals, the loss, and damping and friction with their uncertainty."""
    t, x = np.asarray(sol.t), 1e3 * np.asarray(sol.q[:, 0])
    fig, axes = plotting.figure(2, 2, width=9.0, height=6.0)

    ax = axes[0, 0]
    ax.plot(t, 1e3 * measured, ".", color="0.6", markersize=2.5, label="measured")
    ax.plot(t, x, color=plotting.COLOURS[0], linewidth=0.9, label="fitted")
    ax.plot(t, np.where(sliding(sol) == 0, x, np.nan), color=plotting.COLOURS[1], linewidth=2.2, label="fitted, sticking")
    ax.set(xlabel="time $t$ in s", ylabel="displacement $x$ in mm", title="the fit")
    ax.set_ylim(top=1.4 * np.max(1e3 * measured))
    ax.legend(frameon=False, ncols=3, loc="upper center")

    ax = axes[1, 0]
    ax.axhspan(-1, 1, color="0.92", label="one standard deviation of the noise")
    ax.plot(t, r, ".", color=plotting.COLOURS[0], markersize=2.5)
    ax.set(xlabel="time $t$ in s", ylabel="residual / noise", title="what the fit leaves", ylim=(-4.5, 4.5))
    ax.legend(frameon=False, loc="upper right")

    ax = axes[0, 1]
    ax.semilogy(losses, color=plotting.COLOURS[0], linewidth=0.8, alpha=0.8)
    ax.axhline(1, color="0.5", linewidth=0.8, linestyle="--", label="noise")
    ax.set(xlabel="iteration of Adam", ylabel="mean square of the residual / noise", title=f"loss from {losses.shape[1]} starts")
    ax.legend(frameon=False, loc="upper right")

    ax = axes[1, 1]
    pair = np.ix_([1, 2], [1, 2])
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance[pair]) @ np.stack([np.cos(angle), np.sin(angle)])
    # This share of a normal distribution in the plane lies within this many standard deviations.
    for share, radius, shade in ((95, 2.448, plotting.COLOURS[5]), (50, 1.177, plotting.COLOURS[0])):
        ax.fill(*(best[1:, None] + radius * circle), color=shade, alpha=0.5, linewidth=0, label=f"{share} % region")
    ax.plot(*best[1:], "o", color="white", markeredgecolor=plotting.COLOURS[0], markersize=5, label="recovered")
    ax.plot(*truth[1:], "+", color="black", markersize=9, label="truth")
    ax.set(xlabel="damping in N s/m", ylabel=r"friction coefficient $\mu$", title="result and uncertainty")
    ax.margins(0.1)
    ax.legend(frameon=False, loc="upper right")
    return fig


def _parser():
    parser = cli.Parser(prog="identify.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--starts", type=cli.count, default=8, metavar="N", help="starting points, at once by vmap (default: %(default)s)")
    parser.add_argument("--iterations", type=cli.count, default=250, metavar="N", help="of the optimizer (default: %(default)s)")
    parser.add_argument("--noise", type=cli.number, default=5e-4, metavar="S", help="of the measurement in m (default: %(default)s)")
    for name, unit in zip(NAMES, UNITS, strict=True):
        text = f"true value{' in ' if unit else ''}{unit} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=cli.number, default=getattr(Block, name), metavar="X", help=text)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the noise and of the starts (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("identify.png"), metavar="FILE", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
