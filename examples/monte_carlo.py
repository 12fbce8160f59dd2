"""Uncertain woodpeckers: how fast does the toy descend, if friction and restitution are known only roughly?

    python examples/monte_carlo.py [--members 100000] [--workers 2] [--store woodpeckers.zarr] [--mu 0.3] [--out monte_carlo.png]

Every member draws its friction coefficient from a lognormal and the restitution of its beak from a beta distribution. `jaxnsd.ensemble`
runs them in chunks; with a store an interrupted run goes on where it stopped. A member whose simulation fails is counted under its outcome
and left out of the statistics. What is kept in memory here for the picture is a few numbers and a coarse history of the height.
"""

import functools
import resource
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxnsd import Moreau, ensemble, plotting
from jaxnsd.command_line import demo, options
from jaxnsd.models import Woodpecker

SAVE_EVERY = 10  # steps between stored nodes, where knocks of the beak are looked for
THIN = 5  # stored nodes between those whose height is kept for the picture
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def main(argv=None):
    """Simulate, print the statistics, draw the picture."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir() or args.out.suffix not in options.PICTURES:
        parser.error(f"--out must be a {', '.join(options.PICTURES)} file in a directory that exists, got {str(args.out)!r}")

    jax.config.update("jax_enable_x64", True)
    try:
        result = run(args)
    except (ValueError, ensemble.StoreError) as error:
        parser.error(str(error))
    walks = report(result, args)
    if walks.any():
        plotting.save(picture(result["members"], walks), args.out)
        print(f"picture        {args.out}")
    return 0


def run(args):
    """The ensemble; its statistic "members" is a dict of arrays with one row for every member that succeeded."""
    random = {"mu": ensemble.LogNormal(args.mu, args.mu_spread), "e_N_beak": ensemble.Beta(args.e_N, args.e_N_spread)}
    return ensemble.run(
        Woodpecker(),
        Moreau(),
        args.members,
        jax.random.key(args.seed),
        sample=random,
        observe=observe,
        reduce={
            "members": ensemble.Associative(dict, concatenated),
            "walk": ensemble.Proportion(of=functools.partial(becomes, 1)),
            "slide down the pole": ensemble.Proportion(of=functools.partial(becomes, 2)),
            "come to a stop": ensemble.Proportion(of=functools.partial(becomes, 0)),
        },
        t1=args.t1,
        dt=args.dt,
        save_every=SAVE_EVERY,
        chunk=args.chunk,
        workers=args.workers,
        store=args.store,
        progress=True,
    )


def observe(system, sol):
    """What is kept of a member: what was drawn, its speed, its knocks, and its height, thinned."""
    speed, knocks = demo.descent(sol)
    kept = {"t": sol.t[::THIN], "y": sol.q[::THIN, 0].astype(jnp.float32)}
    return {"mu": system.mu, "e_N": system.e_N_beak, "speed": speed, "knocks": knocks} | kept


def concatenated(a, b):
    """The members of both."""
    return {name: np.concatenate([a[name], b[name]]) for name in a}


def becomes(which, seen):
    """Whether members stop (0), walk (1), or slide down (2)."""
    return demo.classify(seen["speed"], seen["knocks"], np.ones(len(seen["speed"]), bool))[which]


def report(result, args):
    """Print the statistics; returns which of the members that succeeded walk, boolean."""
    steps = round(args.t1 / args.dt)
    spread = f"mu = {args.mu:g} with {100 * args.mu_spread:g} % spread, e_N of the beak = {args.e_N:g} +- {args.e_N_spread:g}"
    print(f"{result.n} woodpeckers, {spread}")
    print(f"{result.computed * steps:.3g} steps in {result.seconds:.1f} s with compilation")
    for code, count in result.counts.items():
        print(f"  {code.name:<17} {count:7d}" + ("" if code == 0 else "   left out below"))
    if result["members"] is None:
        return np.zeros(0, bool)
    for name in ("walk", "slide down the pole", "come to a stop"):
        low, high = result[name].interval()
        print(f"{name:<20} {100 * result[name].share:.2f} %  (95 % interval {100 * low:.2f} to {100 * high:.2f} %)")
    walks = becomes(1, result["members"])
    if walks.any():
        walking = 1e3 * result["members"]["speed"][walks]
        error = walking.std() / np.sqrt(walking.size)
        print(
            f"descent speed  mean {walking.mean():.2f} +- {error:.2f} mm/s, standard deviation {walking.std():.2f} mm/s, of those that walk"
        )
        print("quantiles      " + ", ".join(f"{100 * p:g} %: {np.quantile(walking, p):.1f}" for p in QUANTILES) + " mm/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"peak memory    {peak / 2**30:.2f} GiB, of the whole process")
    return walks


@plotting.styled
def picture(members, walks):
    """Histogram of the speed, bands of the height, and who walks."""
    mu, e_N, speed = members["mu"], members["e_N"], 1e3 * members["speed"][walks]
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

    ax = plotting.ensemble_bands(members["t"][0], 1e3 * members["y"][walks], QUANTILES, ax=axes[1])
    ax.set(ylabel="height $y$ in mm", title="their descent")
    ax.legend(frameon=False, loc="lower left")

    ax = axes[2]
    bins = [np.linspace(*np.quantile(x, [0.001, 0.999]), 25) for x in (mu, e_N)]
    count = np.histogram2d(mu, e_N, bins)[0]
    walking = np.histogram2d(mu[walks], e_N[walks], bins)[0]
    share = np.ma.masked_where(count < 5, 100 * walking / np.maximum(count, 1))
    mesh = ax.pcolormesh(*bins, share.T, cmap="viridis", vmin=0, vmax=100)
    fig.colorbar(mesh, ax=ax, label="share that walks in %")
    ax.set(xlabel=r"friction coefficient $\mu$", ylabel="restitution of the beak $e_N$", title="who walks (white: fewer than 5 drawn)")
    return fig


def _parser():
    parser = options.Parser(prog="monte_carlo.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--members", type=options.count, default=10000, metavar="N", help="woodpeckers (default: %(default)s)")
    parser.add_argument("--chunk", type=options.count, metavar="N", help="of them in memory at once (default: about 2^24 steps)")
    parser.add_argument("--workers", type=options.count, metavar="N", help="processes (default: this one)")
    parser.add_argument("--store", type=Path, metavar="DIR.zarr", help="keep every member here, and go on from here (default: nowhere)")
    parser.add_argument(
        "--mu", type=options.number, default=0.3, metavar="X", help="median of the friction coefficient (default: %(default)s)"
    )
    parser.add_argument("--mu-spread", type=options.number, default=0.08, metavar="X", help="its relative spread (default: %(default)s)")
    parser.add_argument("--e-N", type=options.number, default=0.5, metavar="X", help="mean restitution of the beak (default: %(default)s)")
    parser.add_argument(
        "--e-N-spread", type=options.number, default=0.07, metavar="X", help="its standard deviation (default: %(default)s)"
    )
    parser.add_argument("--t1", type=options.number, default=1.2, metavar="S", help="simulated time in s (default: %(default)s)")
    parser.add_argument("--dt", type=options.number, default=2e-4, metavar="S", help="step size in s (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("monte_carlo.png"), metavar="FILE", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
