"""What can be typed: the commands and their options, and the types of the values."""

import argparse
import sys
from pathlib import Path

from .. import __version__
from ..ensemble import observables
from ..ensemble.points import POINTS
from . import given

#: Endings of pictures.
PICTURES = (".png", ".pdf", ".svg")


class Parser(argparse.ArgumentParser):
    """An argument parser that complains in one line."""

    def error(self, message):
        sys.exit(complain(self.prog, f"{message} (see {self.prog} --help)", 2))


def complain(who, message, status):
    """Print a message in one line on stderr, behind the name of the program or command, and give the exit status back."""
    message = " ".join(str(message).split()).removeprefix(f"{who.removeprefix('jaxnsd ')}: ")
    print(f"{who}: {message}", file=sys.stderr)
    return status


def joined(argv):
    """The arguments, with a negative number as value of the option before it: ``-1e-3`` would be an option to argparse, ``-0.001`` not."""
    joined = []
    for text in argv:
        option = joined[-1] if joined else ""
        if text.startswith("-") and _is_number(text) and option.startswith("--") and len(option) > 2 and "=" not in option:
            joined[-1] = f"{option}={text}"
        else:
            joined.append(text)
    return joined


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def number(text):
    """Argument type: a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def count(text):
    """Argument type: a positive whole number."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return value


def seed(text):
    """Argument type: what keys are made of."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got {text!r}")
    return value


def parser():
    """The `Parser` of the command line, with all commands."""
    parser = Parser(
        prog="jaxnsd",
        description="Simulate mechanical systems with hard contact, impact and Coulomb friction.",
        epilog="The first run of a model with a scheme compiles it. With --cache DIR, or JAX_COMPILATION_CACHE_DIR set to a directory, the "
        "next process starts with what was compiled.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jaxnsd {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    commands.add_parser("list", help="the models with their parameters, and the schemes", allow_abbrev=False)
    _add_run(commands)
    _add_compare(commands)
    _add_ensemble(commands)
    _add_orbit(commands)
    _add_tosses(commands)
    _add_demo(commands)
    return parser


def _add_run(commands):
    run = commands.add_parser("run", help="simulate a model and say what happened", allow_abbrev=False)
    run.add_argument("model", metavar="MODEL", help="name of a model or scene, see: jaxnsd list; or a file in MJCF or URDF (with mujoco)")
    run.add_argument(
        "--scheme", default="Moreau", metavar="S", help="time-stepping scheme, such as Moreau or 'HHT(alpha=0.1)' (default: %(default)s)"
    )
    _add_times(run)
    _add_set(run, "parameter of the model or of its start, or of what reads a file, such as e_N or key of a keyframe; commas make an array")
    run.add_argument("--save-every", type=count, default=1, metavar="N", help="store every N-th step (default: %(default)s)")
    run.add_argument("--out", type=Path, metavar="FILE.npz", help="write the arrays here")
    run.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the motion here (.png, .pdf or .svg)")
    run.add_argument("--film", type=Path, metavar="FILE.mp4", help="film of the motion (.mp4, with imageio-ffmpeg, or .gif)")
    run.add_argument("--page", type=Path, metavar="FILE.html", help="page of the motion, which turns and plays in a browser (.html)")
    run.add_argument(
        "--speed", type=number, default=1.0, metavar="X", help="of film and page: 0.1 is ten times slower (default: %(default)s)"
    )
    run.add_argument("--follow", metavar="NAME", help="what the camera of film and page moves with (default: it stands)")
    _add_precision_and_bar(run)
    _add_cache(run)


def _add_compare(commands):
    comparison = commands.add_parser("compare", help="one model, several schemes: the table to choose a scheme by", allow_abbrev=False)
    comparison.add_argument("model", metavar="MODEL", help="name of a model, see: jaxnsd list")
    comparison.add_argument(
        "--scheme", action="append", metavar="S", help="a scheme, such as 'HHT(alpha=0.1)'; repeatable (default: all that take the model)"
    )
    _add_times(comparison)
    _add_set(comparison, "parameter of the model or of its start")
    comparison.add_argument("--no-order", action="store_true", help="leave out the observed order: it takes two more runs of every scheme")
    _add_cache(comparison)


def _add_ensemble(commands):
    monte_carlo = commands.add_parser(
        "ensemble", help="many members with random parameters: statistics of what is observed", allow_abbrev=False
    )
    monte_carlo.add_argument("model", metavar="MODEL", help="name of a model, see: jaxnsd list")
    monte_carlo.add_argument("--n", type=count, default=10000, metavar="N", help="number of members (default: %(default)s)")
    monte_carlo.add_argument(
        "--sample",
        action="append",
        default=[],
        metavar="NAME=DIST",
        help="parameter that is random: normal(mean,deviation), lognormal(median,deviation), uniform(low,high) or beta(mean,deviation); "
        "repeatable",
    )
    _add_set(monte_carlo, "parameter of the model or of its start")
    monte_carlo.add_argument(
        "--observe", action="append", default=[], metavar="WHAT", help=f"{observables.WORDS}; repeatable (default: all q at the end)"
    )
    monte_carlo.add_argument("--points", choices=sorted(POINTS), help="points of low discrepancy in place of random ones (needs SciPy)")
    monte_carlo.add_argument("--seed", type=seed, default=0, metavar="K", help="of the random numbers (default: %(default)s)")
    monte_carlo.add_argument("--scheme", default="Moreau", metavar="S", help="time-stepping scheme (default: %(default)s)")
    _add_times(monte_carlo)
    monte_carlo.add_argument(
        "--store", type=Path, metavar="DIR.zarr", help="keep what is observed of every member here, and go on from here"
    )
    monte_carlo.add_argument("--resume", action="store_true", help="the store must be there")
    monte_carlo.add_argument("--workers", type=count, metavar="N", help="processes (default: this one, with a thread for every core)")
    monte_carlo.add_argument("--chunk", type=count, metavar="N", help="members in memory at once (default: about 2^24 steps)")
    _add_precision_and_bar(monte_carlo)
    _add_cache(monte_carlo)


def _add_orbit(commands):
    orbit = commands.add_parser("orbit", help="the periodic motion of a model, and how it changes with a parameter", allow_abbrev=False)
    orbit.add_argument("model", metavar="MODEL", help=f"name of a model with a limit cycle: {', '.join(given.cyclic())}")
    orbit.add_argument("--follow", metavar="NAME", help="parameter to follow the orbit in, such as mu")
    orbit.add_argument("--to", type=number, metavar="X", help="value of it at which the branch ends")
    orbit.add_argument("--curve", metavar="NAME", help="second parameter, in which the first special point of the branch is followed")
    orbit.add_argument("--curve-to", type=number, metavar="Y", help="value of it at which the curve ends")
    orbit.add_argument(
        "--points", type=count, default=100, metavar="N", help="orbits of the branch, and of the curve, at most (default: %(default)s)"
    )
    orbit.add_argument("--steps", type=count, default=2000, metavar="N", help="steps a period (default: %(default)s)")
    orbit.add_argument(
        "--scheme", default="LocatedImpacts(MoreauJean)", metavar="S", help="a scheme that locates impacts (default: %(default)s)"
    )
    _add_set(orbit, "parameter of the model")
    orbit.add_argument("--out", type=Path, metavar="FILE.npz", help="write the branch here, for orbits.Branch.load, or the curve")
    orbit.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the curve, else the branch, else the orbit, here (.png, .pdf or .svg)"
    )
    _add_cache(orbit)


def _add_tosses(commands):
    tosses = commands.add_parser("evaluate-tosses", help="score of the model of a tossed cube on measured tosses", allow_abbrev=False)
    tosses.add_argument("file", type=Path, metavar="FILE", help=".npz file, or a folder with one .csv file for each toss")
    tosses.add_argument(
        "--initial",
        choices=("stored", "measured", "flight"),
        default="stored",
        help="row 0 of a toss as stored, through a fitted measurement, or from its flight (default: %(default)s)",
    )
    _add_cache(tosses)


def _add_demo(commands):
    demo = commands.add_parser("demo", help="woodpecker toy, 4096 of them at once, two parameters from noisy data", allow_abbrev=False)
    demo.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="directory for pictures and arrays (default: %(default)s)"
    )
    demo.add_argument("--quick", action="store_true", help="a smaller version, in a few seconds")
    _add_cache(demo)


def _add_times(parser):
    parser.add_argument("--dt", type=number, default=1e-3, metavar="S", help="step size in s (default: %(default)s)")
    parser.add_argument("--t1", type=number, default=1.0, metavar="S", help="end time in s (default: %(default)s)")


def _add_set(parser, what):
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"{what}; repeatable")


def _add_precision_and_bar(parser):
    parser.add_argument("--float32", action="store_true", help="single precision (default: double)")
    parser.add_argument("--progress", action="store_true", help="show a bar (with tqdm)")


def _add_cache(parser):
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="keep compiled programs here: the next process starts with them (default: $JAX_COMPILATION_CACHE_DIR, or nowhere)",
    )
