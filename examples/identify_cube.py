"""A cube that was tossed on a board: friction, restitution and rounding from measured tosses, by gradients through the impacts.

    python examples/identify_cube.py FILE [--initial stored|measured|flight] [--iterations 40] [--folds 1] [--out identify_cube.png]

FILE is an archive or a folder of tosses, see `jaxnsd.identify.tosses`; the data are not part of this repository. Three quarters of the
tosses, 300 at the most, are fitted, the others tell what the fit is worth; with --folds N each of N parts is left out in turn. Whole tosses
are compared, from row 0 to the end, over some ten impacts. Such a loss has many small minima: each step of the optimizer looks at another
batch of tosses, and averages over them.
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax

from jaxnsd import identify, plotting
from jaxnsd.command_line import options
from jaxnsd.identify import tosses
from jaxnsd.models import TossedCube

#: Where a fit starts: what the data's authors state, a centre of mass in the middle, and the gravity of their lengths, from the free fall.
FIRST = TossedCube(
    side=0.1027,
    offset=0.0,
    inertia=8.1e-4,
    inertia_z=8.1e-4,
    radius=0.003,
    board=0.0,
    gravity=9.62,
    e_corner=0.2,
    e_edge=0.2,
    e_face=0.2,
    slope=0.0,
    e_F=0.1,
    mu=0.18,
    mu_impact=0.18,
    fade=0.05,
)

PART = identify.Bounded(0.0, 0.9)
#: Lengths in centimetres, half of that where the data tell more.
PHYSICS = {
    "mu": identify.Positive(),
    "mu_impact": identify.Positive(),
    "fade": identify.Positive(),
    "e_corner": PART,
    "e_edge": PART,
    "e_face": PART,
    "e_F": PART,
    "slope": identify.Free(0.3),
    "radius": identify.Bounded(0.0, 0.012),
    "side": identify.Free(5e-3),
    "offset": identify.Free(1e-2),
    "inertia": identify.Positive(),
    "inertia_z": identify.Positive(),
    "board": identify.Free(5e-3),
}
#: How much 1 is in z: lags in frames, factors in 10 %, heights in mm.
MEASUREMENT = {
    "measurement.lag_position": identify.Free(tosses.FRAME),
    "measurement.lag_turn": identify.Free(tosses.FRAME),
    "measurement.lag_velocity": identify.Free(tosses.FRAME),
    "measurement.velocity": identify.Free(0.1),
    "measurement.spin": identify.Free(0.1),
    "measurement.height": identify.Free(1e-3),
}


def fit(of, initial, iterations, first=FIRST, batch=24, rate=0.06, progress=False):
    """`identify.Result` of fitting tosses with the batches of a stochastic optimizer."""
    fitted = PHYSICS | (MEASUREMENT if initial == "measured" else {})
    problem = tosses.problem(of, first, fitted, initial=initial)
    steps = optax.cosine_decay_schedule(rate, iterations)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(steps, b1=0.8, b2=0.95))
    return identify.fit(problem, identify.FirstOrder(optimizer, max_iterations=iterations, batch=batch), progress=progress)


def folds(n, count, most=300, seed=0):
    """Pairs (train, test) of numbers of tosses; with a single fold a quarter is left out."""
    order = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(order, count) if count > 1 else [order[: max(1, n // 4)]]
    return [(np.sort(np.setdiff1d(order, part))[:most], np.sort(part)) for part in parts]


def main(argv=None):
    """Fit, print and draw."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir() or args.out.suffix not in options.PICTURES:
        parser.error(f"--out must be a {', '.join(options.PICTURES)} file in a directory that exists, got {str(args.out)!r}")
    jax.config.update("jax_enable_x64", True)
    try:
        data = tosses.load(args.file)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if len(data) < max(2, args.folds):
        parser.error(f"{len(data)} tosses cannot be parted into {args.folds} folds and some to fit")
    scores = []
    for train, test in folds(len(data), args.folds):
        began = time.perf_counter()
        result = fit(data[train], args.initial, args.iterations, progress=True)
        system = jax.tree.map(float, result.system)
        measurement = result.measurement and {name: float(x) for name, x in result.measurement.items()}
        seconds = time.perf_counter() - began
        before = tosses.score(data[test], FIRST, initial=args.initial, measurement=tosses.MEASUREMENT)
        score = tosses.score(data[test], system, initial=args.initial, measurement=measurement)
        print(f"{len(train)} tosses fitted in {seconds:.0f} s, {len(test)} others; row 0: {args.initial}\n{system}\n{measurement or ''}")
        for name, found in (("first guess", before), ("fitted", score)):
            print("{:<12} mean {:.2f} %, {:.2f} degrees; median {:.2f} %, {:.2f} degrees".format(name, *found.mean, *found.median))
        scores.append(score.mean)
    if len(scores) > 1:
        print("all folds    mean {:.2f} %, {:.2f} degrees".format(*np.mean(scores, axis=0)))
    plotting.save(picture(data[test], system, args.initial, measurement, score), args.out)
    print(f"picture      {args.out}")
    return 0


@plotting.styled
def picture(data, system, initial, measurement, score):
    """Measured against simulated: a good toss, the median one, a bad one; and the errors of all."""
    order = np.argsort(np.where(np.isfinite(score.angle), score.angle, np.inf))
    shown = [order[len(order) // 10], order[len(order) // 2], order[(9 * len(order)) // 10]]
    problem = tosses.problem(data[shown], system, initial=initial, measurement=measurement)
    found = identify.evaluate.Evaluator(problem).shown(
        identify.evaluate.Point(problem.unknowns.first(), np.zeros((len(shown), 0))), np.arange(len(shown))
    )
    fig, axes = plotting.figure(2, 4, width=12.0, height=5.6)
    for column, (k, which) in enumerate(zip(shown, ("a good one", "the median one", "a bad one"), strict=True)):
        rows = data.frames[k]
        t, q = np.arange(len(rows)) * data.dt, found["q"][column][: len(rows)]
        for ax, part, scale, unit in ((axes[0, column], slice(0, 3), 1e3, "centre in mm"), (axes[1, column], slice(3, 7), 1, "quaternion")):
            simulated = q[:, part] * (1 if part.start == 0 else np.sign(np.sum(q[:, 3:7] * rows[:, 3:7], axis=1))[:, None])
            for i, colour in zip(range(part.stop - part.start), plotting.COLOURS, strict=False):
                ax.plot(t, scale * rows[:, part][:, i], ".", color=colour, markersize=3, alpha=0.4)
                ax.plot(t, scale * simulated[:, i], color=colour, linewidth=1, label="xyz"[i] if part.start == 0 else "wxyz"[i])
            ax.set(xlabel="time $t$ in s", ylabel=unit)
            ax.legend(frameon=False, fontsize="x-small", ncols=4)
            ax.margins(y=0.2)
        axes[0, column].set_title(f"{which}: {data.names[k]}")
    for ax, values, unit in ((axes[0, 3], score.position, "% of the width"), (axes[1, 3], score.angle, "degrees")):
        values = values[np.isfinite(values)]
        ax.hist(values, bins=30, color=plotting.COLOURS[5])
        ax.axvline(values.mean(), color="black", linewidth=1, label=f"mean {values.mean():.1f}")
        ax.axvline(np.median(values), color="black", linewidth=1, linestyle=":", label=f"median {np.median(values):.1f}")
        ax.set(xlabel=f"error in {unit}", ylabel="tosses that were not fitted")
        ax.legend(frameon=False)
    return fig


def _parser():
    parser = options.Parser(prog="identify_cube.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="archive or folder of tosses")
    parser.add_argument("--initial", choices=tosses.INITIAL, default="flight", help="where row 0 comes from (default: %(default)s)")
    parser.add_argument("--iterations", type=options.count, default=40, metavar="N", help="steps of the optimizer (default: %(default)s)")
    parser.add_argument(
        "--folds", type=options.count, default=1, metavar="N", help="parts that are left out in turn (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("identify_cube.png"), metavar="FILE", help="the picture (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
