"""Uncertain woodpeckers: how fast does the toy descend, if friction and restitution are known only roughly?

    python examples/monte_carlo.py [--members 100000] [--chunk 2048] [--mu 0.3] [--out monte_carlo.png]

Every member draws its friction coefficient from a lognormal and the restitution of its beak from a beta distribution. Memory holds one
chunk of trajectories at a time, thinned out by `save_every`, and of those that are done a few numbers and a coarse history of the height.
A member whose simulation fails is counted under its outcome and left out of the statistics.
"""

import resource
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxnsd import Moreau, Outcome, cli, demo, plotting, progress, simulate
from jaxnsd.models import Woodpecker

SAVE_EVERY = 10  # steps between stored nodes, where knocks of the beak are looked for
THIN = 5  # stored nodes between those whose height is kept for the picture
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def main(argv=None):
    """Simulate, print the statistics, draw the picture."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.mu > 0 or not args.mu_spread > 0:
        parser.error(f"--mu and --mu-spread must be positive, got {args.mu:g} and {args.mu_spread:g}")
    if not 0 < args.e_N < 1 or not 0 < args.e_N_spread**2 < args.e_N * (1 - args.e_N):
        parser.error(f"--e-N must lie in (0, 1) and --e-N-spread in (0, sqrt(e_N (1 - e_N))), got {args.e_N:g} and {args.e_N_spread:g}")
    if not args.out.parent.is_dir() or args.out.suffix not in cli.PICTURES:
        parser.error(f"--out must be a {', '.join(cli.PICTURES)} file in a directory that exists, got {str(args.out)!r}")

    jax.config.update("jax_enable_x64", True)
    mu, e_N = draw(args)
    try:
        results, first, rest = run_in_chunks(mu, e_N, args)
    except ValueError as error:
        parser.error(str(error))
    walks = report(results, mu, args, first, rest)
    if walks.any():
        plotting.save(picture(results, mu, e_N, walks), args.out)
        print(f"picture        {args.out}")
    return 0


def draw(args):
    """Friction coefficients and restitutions (members,)."""
    key_mu, key_e = jax.random.split(jax.random.key(args.seed))
    mu = args.mu * np.exp(args.mu_spread * np.asarray(jax.random.normal(key_mu, (args.members,))))
    concentration = args.e_N * (1 - args.e_N) / args.e_N_spread**2 - 1  # of the beta distribution with this mean and deviation
    e_N = jax.random.beta(key_e, args.e_N * concentration, (1 - args.e_N) * concentration, (args.members,))
    return mu, np.asarray(e_N)


def run_in_chunks(mu, e_N, args):
    """``(results, seconds of the first chunk, seconds of the others)``, results a dict of arrays with one row a member."""
    q0, u0 = Woodpecker().initial_state()

    @jax.jit
    @jax.vmap
    def run(mu, e_N):
        sol = simulate(Woodpecker(mu=mu, e_N_beak=e_N), Moreau(), q0, u0, args.t1, args.dt, save_every=SAVE_EVERY)
        speed, knocks = demo.descent(sol)
        outcome = jnp.maximum(jnp.max(sol.outcome), sol.initial_outcome)
        return {"speed": speed, "knocks": knocks, "outcome": outcome, "t": sol.t[::THIN], "y": sol.q[::THIN, 0].astype(jnp.float32)}

    chunk = min(args.chunk, len(mu))
    pieces, times = [], [time.perf_counter()]
    with progress.bar(total=len(mu), unit=" woodpeckers", unit_scale=True) as bar:
        for start in range(0, len(mu), chunk):
            # A last chunk that is not full is filled with the last member, so that all have one shape and one compilation.
            members = np.minimum(np.arange(start, start + chunk), len(mu) - 1)
            whole = jax.device_get(run(mu[members], e_N[members]))
            t = whole.pop("t")[0]
            pieces.append({name: np.array(value[: len(mu) - start]) for name, value in whole.items()})
            times.append(time.perf_counter())
            bar.update(len(pieces[-1]["y"]))
    results = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return results | {"t": t}, times[1] - times[0], times[-1] - times[1]


def report(results, mu, args, first, rest):
    """Print the statistics; returns which members walk, boolean (members,)."""
    speed, knocks, outcome = results["speed"], results["knocks"], results["outcome"]
    done = outcome == Outcome.SUCCESS
    stops, walks, _ = demo.classify(speed, knocks, done)
    n, chunk = len(mu), min(args.chunk, len(mu))
    steps = round(args.t1 / args.dt)
    print(
        f"{n} woodpeckers, mu = {args.mu:g} with {100 * args.mu_spread:g} % spread, e_N of the beak = {args.e_N:g} +- {args.e_N_spread:g}"
    )
    pace = f", then {steps * (n - chunk) / rest:.2g} steps/s" if n > chunk else ""
    print(f"{steps * n:.3g} steps in chunks of {chunk}: {first:.1f} s for the first chunk with its compilation{pace}")
    for code in Outcome:
        if np.any(outcome == code):
            print(f"  {code.name:<14} {np.sum(outcome == code):7d}" + ("" if code == Outcome.SUCCESS else "   left out below"))
    if done.any():
        shares = {"walk": walks, "slide down the pole": done & ~stops & ~walks, "come to a stop": stops}
        print("of these       " + ", ".join(f"{100 * which.sum() / done.sum():.2f} % {name}" for name, which in shares.items()))
    if walks.any():
        walking = 1e3 * speed[walks]
        error = walking.std() / np.sqrt(walking.size)
        print(
            f"descent speed  mean {walking.mean():.2f} +- {error:.2f} mm/s, standard deviation {walking.std():.2f} mm/s, of those that walk"
        )
        print("quantiles      " + ", ".join(f"{100 * p:g} %: {np.quantile(walking, p):.1f}" for p in QUANTILES) + " mm/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak memory    {peak / 2**30:.2f} GiB, of the whole process")
    return walks


@plotting.styled
def picture(results, mu, e_N, walks):
    """Histogram of the speed, bands of the height, and who walks."""
    speed, done = 1e3 * results["speed"][walks], results["outcome"] == Outcome.SUCCESS
    fig, axes = plotting.figure(1, 3, width=11.0, height=3.5, width_ratios=[1, 1, 1.15])

    ax = axes[0]
    low, high = np.quantile(speed, [0.002, 0.998])
    ax.hist(speed[(speed >= low) & (speed <= high)], bins=60, color=plotting.COLOURS[5], density=True)
    for p, style in ((0.05, ":"), (0.5, "-"), (0.95, ":")):
        x = np.quantile(speed, p)
        ax.axvline(x, ymax=0.72, color="black", linewidth=1, linestyle=style, label=f"{100 * p:g} %: {x:.0f} mm/s")
    ax.set(xlabel="descent speed in mm/s", ylabel="density in s/mm", title=f"{walks.sum()} that walk")
    ax.set_ylim(top=1.4 * ax.get_ylim()[1])
    ax.legend(frameon=False, loc="upper right", fontsize="small")

    ax = plotting.ensemble_bands(results["t"], 1e3 * results["y"][walks], QUANTILES, ax=axes[1])
    ax.set(ylabel="height $y$ in mm", title="their descent")
    ax.legend(frameon=False, loc="lower left")

    ax = axes[2]
    bins = [np.linspace(*np.quantile(x[done], [0.001, 0.999]), 25) for x in (mu, e_N)]
    count = np.histogram2d(mu[done], e_N[done], bins)[0]
    walking = np.histogram2d(mu[walks], e_N[walks], bins)[0]
    share = np.ma.masked_where(count < 5, 100 * walking / np.maximum(count, 1))
    mesh = ax.pcolormesh(*bins, share.T, cmap="viridis", vmin=0, vmax=100)
    fig.colorbar(mesh, ax=ax, label="share that walks in %")
    ax.set(xlabel=r"friction coefficient $\mu$", ylabel="restitution of the beak $e_N$", title="who walks (white: fewer than 5 drawn)")
    return fig


def _parser():
    parser = cli.Parser(prog="monte_carlo.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--members", type=cli.count, default=10000, metavar="N", help="woodpeckers (default: %(default)s)")
    parser.add_argument("--chunk", type=cli.count, default=2048, metavar="N", help="of them in memory at once (default: %(default)s)")
    parser.add_argument("--mu", type=cli.number, default=0.3, metavar="X", help="median of the friction coefficient (default: %(default)s)")
    parser.add_argument("--mu-spread", type=cli.number, default=0.08, metavar="X", help="its relative spread (default: %(default)s)")
    parser.add_argument("--e-N", type=cli.number, default=0.5, metavar="X", help="mean restitution of the beak (default: %(default)s)")
    parser.add_argument("--e-N-spread", type=cli.number, default=0.07, metavar="X", help="its standard deviation (default: %(default)s)")
    parser.add_argument("--t1", type=cli.number, default=1.2, metavar="S", help="simulated time in s (default: %(default)s)")
    parser.add_argument("--dt", type=cli.number, default=2e-4, metavar="S", help="step size in s (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("monte_carlo.png"), metavar="FILE", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
