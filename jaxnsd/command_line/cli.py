"""The command line: ``list`` what there is, ``run`` one simulation, ``compare`` schemes, ``orbit``, ``ensemble`` of many members,
``evaluate-tosses`` a score, ``demo`` the main job.

Exit status: 0 done, 1 the simulation failed (what was computed is written all the same), 2 bad arguments, said in one line, 130 or 143
interrupted by Ctrl-C or SIGTERM (what was computed is written).
"""

import argparse
import ast
import contextlib
import difflib
import inspect
import json
import os
import sys
import textwrap
import time
import warnings
from pathlib import Path

import jax
import numpy as np

from .. import __version__, ensemble, schemes
from ..ensemble import observables
from ..ensemble.points import POINTS
from ..ensemble.samples import DISTRIBUTIONS
from ..models import MODELS, SCENES
from ..programs import interrupts, progress
from ..programs.files import writable
from ..schemes.projection import project_position
from ..simulation.nodes import node_velocities
from ..simulation.parts import PartedRun
from ..simulation.simulate import SimulationError

SCHEMES = {name: getattr(schemes, name) for name in schemes.__all__ if name != "Scheme"}
PICTURES = (".png", ".pdf", ".svg")

#: Loops of a file that are open by more than this at its start, in m or rad, are closed before the run.
OPEN = 1e-9


def main(argv=None):
    """Run the command line with the arguments ``argv`` (default: those of the process) and return the exit status."""
    args = _parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        with interrupts.raised():
            _use_cache(args)
            return args.command(args)
    except _ArgumentError as error:
        return _complain(f"jaxnsd {args.name}", error, 2)
    except BrokenPipeError:
        # Who read the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except interrupts.Interrupted as interrupt:
        return interrupts.leave(_complain(f"jaxnsd {args.name}", interrupt, interrupt.status))


class _ArgumentError(Exception):
    """What a user typed makes no sense; the message says what does."""


class Parser(argparse.ArgumentParser):
    """An argument parser that complains in one line."""

    def error(self, message):
        sys.exit(_complain(self.prog, f"{message} (see {self.prog} --help)", 2))


def _complain(who, message, status):
    message = " ".join(str(message).split()).removeprefix(f"{who.removeprefix('jaxnsd ')}: ")
    print(f"{who}: {message}", file=sys.stderr)
    return status


def _parser():
    parser = Parser(
        prog="jaxnsd",
        description="Simulate mechanical systems with hard contact, impact and Coulomb friction.",
        epilog="The first run of a model with a scheme compiles it. With --cache DIR, or JAX_COMPILATION_CACHE_DIR set to a directory, the "
        "next process starts with what was compiled.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jaxnsd {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="the models with their parameters, and the schemes", allow_abbrev=False)
    listing.set_defaults(command=_list)

    run = commands.add_parser("run", help="simulate a model and say what happened", allow_abbrev=False)
    run.add_argument("model", metavar="MODEL", help="name of a model or scene, see: jaxnsd list; or a file in MJCF or URDF (with mujoco)")
    run.add_argument(
        "--scheme", default="Moreau", metavar="S", help="time-stepping scheme, such as Moreau or 'HHT(alpha=0.1)' (default: %(default)s)"
    )
    run.add_argument("--dt", type=number, default=1e-3, metavar="S", help="step size in s (default: %(default)s)")
    run.add_argument("--t1", type=number, default=1.0, metavar="S", help="end time in s (default: %(default)s)")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="parameter of the model or of its start, or of what reads a file, such as e_N or key of a keyframe; commas make an array; "
        "repeatable",
    )
    run.add_argument("--save-every", type=count, default=1, metavar="N", help="store every N-th step (default: %(default)s)")
    run.add_argument("--out", type=Path, metavar="FILE.npz", help="write the arrays here")
    run.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the motion here (.png, .pdf or .svg)")
    run.add_argument("--film", type=Path, metavar="FILE.mp4", help="film of the motion (.mp4, with imageio-ffmpeg, or .gif)")
    run.add_argument("--page", type=Path, metavar="FILE.html", help="page of the motion, which turns and plays in a browser (.html)")
    run.add_argument(
        "--speed", type=number, default=1.0, metavar="X", help="of film and page: 0.1 is ten times slower (default: %(default)s)"
    )
    run.add_argument("--follow", metavar="NAME", help="what the camera of film and page moves with (default: it stands)")
    run.add_argument("--float32", action="store_true", help="single precision (default: double)")
    run.add_argument("--progress", action="store_true", help="show a bar (with tqdm)")
    _add_cache(run)
    run.set_defaults(command=_run)

    comparison = commands.add_parser("compare", help="one model, several schemes: the table to choose a scheme by", allow_abbrev=False)
    comparison.add_argument("model", metavar="MODEL", help="name of a model, see: jaxnsd list")
    comparison.add_argument(
        "--scheme", action="append", metavar="S", help="a scheme, such as 'HHT(alpha=0.1)'; repeatable (default: all that take the model)"
    )
    comparison.add_argument("--dt", type=number, default=1e-3, metavar="S", help="step size in s (default: %(default)s)")
    comparison.add_argument("--t1", type=number, default=1.0, metavar="S", help="end time in s (default: %(default)s)")
    comparison.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model or of its start; repeatable"
    )
    comparison.add_argument("--no-order", action="store_true", help="leave out the observed order: it takes two more runs of every scheme")
    _add_cache(comparison)
    comparison.set_defaults(command=_compare)

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
    monte_carlo.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model or of its start; repeatable"
    )
    monte_carlo.add_argument(
        "--observe", action="append", default=[], metavar="WHAT", help=f"{observables.WORDS}; repeatable (default: all q at the end)"
    )
    monte_carlo.add_argument("--points", choices=sorted(POINTS), help="points of low discrepancy in place of random ones (needs SciPy)")
    monte_carlo.add_argument("--seed", type=seed, default=0, metavar="K", help="of the random numbers (default: %(default)s)")
    monte_carlo.add_argument("--scheme", default="Moreau", metavar="S", help="time-stepping scheme (default: %(default)s)")
    monte_carlo.add_argument("--dt", type=number, default=1e-3, metavar="S", help="step size in s (default: %(default)s)")
    monte_carlo.add_argument("--t1", type=number, default=1.0, metavar="S", help="end time in s (default: %(default)s)")
    monte_carlo.add_argument(
        "--store", type=Path, metavar="DIR.zarr", help="keep what is observed of every member here, and go on from here"
    )
    monte_carlo.add_argument("--resume", action="store_true", help="the store must be there")
    monte_carlo.add_argument("--workers", type=count, metavar="N", help="processes (default: this one, with a thread for every core)")
    monte_carlo.add_argument("--chunk", type=count, metavar="N", help="members in memory at once (default: about 2^24 steps)")
    monte_carlo.add_argument("--float32", action="store_true", help="single precision (default: double)")
    monte_carlo.add_argument("--progress", action="store_true", help="show a bar (with tqdm)")
    _add_cache(monte_carlo)
    monte_carlo.set_defaults(command=_ensemble)

    orbit = commands.add_parser("orbit", help="the periodic motion of a model, and how it changes with a parameter", allow_abbrev=False)
    orbit.add_argument("model", metavar="MODEL", help=f"name of a model with a limit cycle: {', '.join(_cyclic())}")
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
    orbit.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model; repeatable")
    orbit.add_argument("--out", type=Path, metavar="FILE.npz", help="write the branch here, for orbits.Branch.load, or the curve")
    orbit.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the curve, else the branch, else the orbit, here (.png, .pdf or .svg)"
    )
    _add_cache(orbit)
    orbit.set_defaults(command=_orbit)

    tosses = commands.add_parser("evaluate-tosses", help="score of the model of a tossed cube on measured tosses", allow_abbrev=False)
    tosses.add_argument("file", type=Path, metavar="FILE", help=".npz file, or a folder with one .csv file for each toss")
    tosses.add_argument(
        "--initial",
        choices=("stored", "measured", "flight"),
        default="stored",
        help="row 0 of a toss as stored, through a fitted measurement, or from its flight (default: %(default)s)",
    )
    _add_cache(tosses)
    tosses.set_defaults(command=_evaluate_tosses)

    demo = commands.add_parser("demo", help="woodpecker toy, 4096 of them at once, two parameters from noisy data", allow_abbrev=False)
    demo.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="directory for pictures and arrays (default: %(default)s)"
    )
    demo.add_argument("--quick", action="store_true", help="a smaller version, in a few seconds")
    _add_cache(demo)
    demo.set_defaults(command=_demo)
    return parser


def _add_cache(parser):
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="keep compiled programs here: the next process starts with them (default: $JAX_COMPILATION_CACHE_DIR, or nowhere)",
    )


def _use_cache(args):
    """Keep compiled programs in the directory of ``--cache``, short compilations too."""
    directory = getattr(args, "cache", None)
    if directory is not None:
        _make_directory("--cache", directory)
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _joined(argv):
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


def _list(args):
    del args
    print("Models (jaxnsd run MODEL --set NAME=VALUE):")
    for name, cls in MODELS.items():
        fields, start = _parameters(cls)
        print(f"  {name}\n      {_first_line(cls)}")
        for title, values in (("parameters", fields), ("start", start)):
            if values:
                text = ", ".join(f"{key}={value}" for key, value in values.items())
                print(textwrap.fill(text, 120, initial_indent=f"      {title + ':':<12}", subsequent_indent=" " * 18))
    print("\nScenes in MJCF (jaxnsd run SCENE; with the package mujoco):")
    for name, path in SCENES.items():
        print(f"  {name}\n      {_comment(path)}")
    print("\nSchemes (--scheme NAME):")
    for name, cls in SCHEMES.items():
        scheme = cls()
        print(f"  {name:<18} order {scheme.order}   {_first_line(cls)}")
        if scheme.order_note:
            print(f"{'':<31}order {scheme.order_note}")
    return 0


def _comment(path):
    """The comment a scene starts with."""
    return path.read_text(encoding="utf-8").partition("<!--")[2].partition("-->")[0].strip()


def _first_line(cls):
    return inspect.getdoc(cls).split("\n")[0]


def _parameters(cls):
    """``(fields of the model, arguments of its initial state)``, each a dict of names and default values."""
    fields = inspect.signature(cls).parameters
    # A model is a class, or a function that makes an instance of the class it is annotated with.
    made = cls if isinstance(cls, type) else cls.__annotations__["return"]
    arguments = inspect.signature(made.initial_state).parameters
    return tuple({name: argument.default for name, argument in part.items() if name != "self"} for part in (fields, arguments))


def _choose(kind, name, choices):
    if name in choices:
        return choices[name]
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]}?" if close else f"one of {', '.join(choices)}"
    raise _ArgumentError(f"unknown {kind} {name!r}; {hint}")


def _file(name):
    """The file of MJCF or URDF that a model argument is, or names; None for a name of a model."""
    if name in MODELS:
        return None
    path = SCENES.get(name, Path(name))
    return path if name in SCENES or path.suffix.lower() in (".xml", ".urdf") or path.is_file() else None


def _from_file(path, settings):
    """``(system, q0, u0)`` of a model file, as it is in the file, at rest or in the state of a keyframe."""
    from .. import bodies

    if not path.is_file():
        raise _ArgumentError(f"there is no file {str(path)!r}")
    read = bodies.from_urdf if path.suffix.lower() == ".urdf" else bodies.from_mjcf
    parameters = inspect.signature(read).parameters.values()
    options = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in ("control", "plane")} | {"key": ""}
    values = _settings(path.name, settings, options)
    key = values.pop("key", None)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            system = read(path, **values)
        q0, u0 = system.initial_state(int(key) if key and key.isdecimal() else key)
    except ImportError as error:
        raise _ArgumentError(error) from error
    except KeyError as error:
        raise _ArgumentError(error.args[0]) from error
    for warning in caught:
        print(f"jaxnsd run: {warning.message}", file=sys.stderr)
    away = np.abs(np.asarray(system.constraint(0.0, q0)))
    if away.size and away.max() > OPEN:
        q0 = project_position(system, q0, 0.0)
        print(f"jaxnsd run: loops of {path.name} are open by {away.max():.3g} at its start, which was moved to close them", file=sys.stderr)
    return system, q0, u0


def _settings(name, settings, options):
    """``NAME=VALUE`` settings as a dict, of the types of the defaults ``options``."""
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise _ArgumentError(f"--set takes NAME=VALUE, got {setting!r}")
        if key not in options:
            raise _ArgumentError(f"{name} has no parameter {key!r}; it has {', '.join(options)}")
        values[key] = _value(key, text, options[key])
    return values


def _model(name, settings):
    """``(system, q0, u0)`` of a model with ``NAME=VALUE`` settings, or of a file."""
    path = _file(name)
    if path is not None:
        return _from_file(path, settings)
    cls = _choose("model", name, MODELS)
    fields, start = _parameters(cls)
    values = _settings(name, settings, fields | start)
    system = cls(**{key: value for key, value in values.items() if key in fields})
    return system, *system.initial_state(**{key: value for key, value in values.items() if key in start})


def _scheme(text):
    """A scheme from its name, or from a call with numbers or a scheme: ``MoreauJean(theta=0.6)``, ``LocatedImpacts(Lobatto(2))``."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = None
    return _called(node, text)


def _called(node, text):
    call = isinstance(node, ast.Call)
    try:
        name = (node.func if call else node).id
        values = [_argument(value) for value in node.args] if call else []
        keywords = {keyword.arg: _argument(keyword.value) for keyword in node.keywords} if call else {}
        if None in keywords:  # of two stars
            raise ValueError
    except (ValueError, AttributeError):
        raise _ArgumentError(f"--scheme takes a name or a call with numbers, such as MoreauJean(theta=0.6), got {text!r}") from None
    make = _choose("scheme", name, SCHEMES)
    parameters = inspect.signature(make).parameters
    for keyword in keywords:
        if keyword not in parameters:
            raise _ArgumentError(f"{text}: {name} has no parameter {keyword!r}; it has {', '.join(parameters) or 'none'}")
    if len(values) > len(parameters):
        raise _ArgumentError(f"{text}: {name} takes {', '.join(parameters) or 'nothing'}, got {len(values)} numbers")
    try:
        return make(*values, **keywords)
    except (TypeError, ValueError) as error:
        raise _ArgumentError(f"{text}: {error}") from error


def _argument(node):
    return _called(node, ast.unparse(node)) if isinstance(node, (ast.Call, ast.Name)) else ast.literal_eval(node)


def _value(key, text, default):
    """Value of a parameter, of the type of its default; several numbers with commas between them make an array."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise _ArgumentError(f"{key} is true or false, got {text!r}")
        return text.lower() == "true"
    try:
        if isinstance(default, int):
            return int(text)
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise _ArgumentError(f"{key} must be a {'whole ' if isinstance(default, int) else ''}number, got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else jax.numpy.asarray(numbers)


def _check_file(option, path, endings):
    if path is None:
        return
    if path.suffix not in endings:
        raise _ArgumentError(f"{option} must end in {' or '.join(endings)}, got {str(path)!r}")
    try:
        writable(path)
    except OSError as error:
        raise _ArgumentError(f"{option}: {error}") from error


def _make_directory(option, path):
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _ArgumentError(f"{option}: cannot make the directory {str(path)!r}: {error.strerror}") from error


def _check_films(args, system, q0):
    """Complain, before the run, of a film or a page that cannot be made."""
    if not (args.film or args.page):
        return
    from .. import drawing

    try:
        drawing.check(system, q0, film=args.film, page=args.page, speed=args.speed, follow=args.follow)
    except ImportError as error:
        raise _ArgumentError(error) from error
    except KeyError as error:
        raise _ArgumentError(error.args[0]) from error


def _film(args, system, sol):
    """Film and page, and a line for each."""
    from .. import drawing

    options = {"speed": args.speed, "follow": args.follow, "title": args.model if _file(args.model) is None else Path(args.model).name}
    if (path := _file(args.model)) is not None:
        try:
            drawing.meshes.of_file(path, ())
        except ValueError as error:
            # Meshes that only pictures need may be missing: the shapes that touch are there. Said once, for film and page.
            options["geometry"] = False
            print(f"jaxnsd run: {error}; the shapes that can touch are drawn", file=sys.stderr)
    try:
        if args.film:
            print(f"film        {drawing.film(system, sol, args.film, **options)!r}")
        if args.page:
            print(f"page        {drawing.page(system, sol, args.page, **options)!r}")
    except ValueError as error:
        # A run that failed is said below.
        print(f"jaxnsd run: {error}", file=sys.stderr)


def _run(args):
    jax.config.update("jax_enable_x64", not args.float32)
    _check_file("--out", args.out, (".npz",))
    _check_file("--plot", args.plot, PICTURES)
    scheme = _scheme(args.scheme)
    try:
        system, q0, u0 = _model(args.model, args.set)
        _check_films(args, system, q0)

        def make():
            return PartedRun(system, scheme, q0, u0, args.t1, args.dt, save_every=args.save_every)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="simulating in float32")
            run, stop, *seconds = _computed(make, args.progress)
    except (TypeError, ValueError) as error:
        raise _ArgumentError(error) from error
    sol = run.solution()
    if sol is None:
        raise stop.but("before anything was computed")

    _summarize(args, system, sol, *seconds)
    try:
        if args.out:
            settings = {"model": args.model, "scheme": args.scheme, "dt": args.dt, "t1": args.t1, "set": args.set}
            np.savez_compressed(args.out, **arrays(sol), settings=json.dumps(settings))
            print(f"arrays      {args.out}")
        if args.plot:
            from .. import plotting

            with np.errstate(all="ignore"):
                title = f"{args.model}, {args.scheme}, $\\Delta t$ = {args.dt:g} s"
                if _file(args.model) is not None:
                    fig, ax = plotting.figure(width=7.0, height=5.0)
                    plotting.strobe(system, sol, ax=ax).set_title(title)
                else:
                    fig = plotting.overview(system, sol, title)
                plotting.save(fig, args.plot)
            print(f"picture     {args.plot}")
        if args.film or args.page:
            _film(args, system, sol)
    except OSError as error:
        if stop:
            raise stop.but(f"and cannot write: {error}") from error
        return _complain("jaxnsd run", f"cannot write: {error}", 1)
    if stop:
        steps = len(sol.outcome) * args.save_every
        raise stop.but(f"after {steps} of {run.history.n_steps} steps, at t = {float(sol.t[-1]):g} s; what is done is above")
    try:
        sol.raise_if_failed()
    except SimulationError as error:
        return _complain("jaxnsd run", error, 1)
    return 0


def _evaluate_tosses(args):
    from ..identify import tosses

    jax.config.update("jax_enable_x64", True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = tosses.load(args.file)
    except (OSError, ValueError) as error:
        raise _ArgumentError(error) from error
    for warning in caught:
        print(f"jaxnsd evaluate-tosses: {warning.message}", file=sys.stderr)
    found = interrupts.wait_for(lambda: tosses.score(data, initial=args.initial))
    print(f"tosses      {len(data)} of {args.file}, {sum(map(len, data.frames))} frames; row 0: {args.initial}")
    if found.failed:
        print(f"failed      {len(found.failed)}, left out of the means: {', '.join(found.failed)}")
    if len(found.failed) == len(data):
        return _complain("jaxnsd evaluate-tosses", "no toss could be simulated", 1)
    print("median      {:.2f} % of the width, {:.2f} degrees".format(*found.median))
    print("{:.2f} % of the width, {:.2f} degrees".format(*found.mean))
    return 0


def _computed(make, show):
    """Compute a `PartedRun`: ``(run, interrupt that ended it or None, seconds of all, seconds of a step after compilation or None)``."""
    run, stop, times = make(), None, [time.perf_counter()]

    def go():
        for done in run:
            times.append(time.perf_counter())
            if stop:
                return
            if bar is not None:
                bar.update(done - bar.n)

    if show:
        progress.compiling(f"a run of {type(run.system).__name__}", run.history.scheme, run.history.n_steps)
    shown = progress.bar(total=run.history.n_steps, unit="steps", unit_scale=True) if show else contextlib.nullcontext()
    try:
        with shown as bar:
            interrupts.wait_for(go)
        parts = np.diff(times)[1:]
        if not parts.size and times[-1] - times[0] < 20:
            # Of a run of one part, a second run tells the speed after compilation; what checks its input is no part of it.
            again = make()
            parts = [interrupts.wait_for(lambda: _timed(lambda: next(again)))[1]]
    except interrupts.Interrupted as interrupt:
        stop, parts = interrupt, np.diff(times)[1:]
    return run, stop, times[-1] - times[0], float(np.median(parts)) / run.part if len(parts) else None


def _compare(args):
    from .. import compare

    jax.config.update("jax_enable_x64", True)
    chosen = [_scheme(text) for text in args.scheme] if args.scheme else [make() for make in SCHEMES.values()]
    try:
        system, q0, u0 = _model(args.model, args.set)

        def go():
            order = not args.no_order
            return compare.compare(system, chosen, q0, u0, args.t1, args.dt, order=order, report=lambda line: print(line, file=sys.stderr))

        rows = interrupts.wait_for(go)
    except (TypeError, ValueError) as error:
        raise _ArgumentError(error) from error
    print(f"{args.model}, dt = {args.dt:g} s, to t = {args.t1:g} s\n\n{compare.table(rows)}\n\n{compare.legend()}")
    return 0 if all(row.success for row in rows if row.refused is None) else 1


def _cyclic():
    """Names of the models that know of a limit cycle."""
    return [name for name, cls in MODELS.items() if hasattr(cls, "limit_cycle")]


def _orbit(args):
    from .. import orbits, plotting
    from ..orbits.leaves import parameter

    jax.config.update("jax_enable_x64", True)
    _check_file("--out", args.out, (".npz",))
    _check_file("--plot", args.plot, PICTURES)
    if (args.follow is None) != (args.to is None):
        raise _ArgumentError("--follow NAME and --to X belong together")
    if (args.curve is None) != (args.curve_to is None):
        raise _ArgumentError("--curve NAME and --curve-to Y belong together")
    if args.curve and args.follow is None:
        raise _ArgumentError("--curve follows a special point of a branch: give --follow NAME and --to X as well")
    if args.out and args.follow is None:
        raise _ArgumentError("--out writes a branch: give --follow NAME and --to X as well")
    cls = _choose("model", args.model, MODELS)
    if args.model not in _cyclic():
        raise _ArgumentError(
            f"orbit takes a model with a limit cycle, {', '.join(_cyclic())}, got {args.model!r}; jaxnsd.orbits.periodic takes any system"
        )
    try:
        system = cls(**_settings(args.model, args.set, _parameters(cls)[0]))
        for option, name in (("--follow", args.follow), ("--curve", args.curve)):
            if name is not None:
                parameter(option, system, name)
        arguments = {"scheme": _scheme(args.scheme), "n_steps": args.steps} | system.limit_cycle()
        orbit = interrupts.wait_for(lambda: orbits.periodic(system, **arguments))
        print(f"{args.model}, {args.scheme}, {args.steps} steps a period\n{orbit}\n{orbit.sentence}")
        if not bool(orbit.success):
            return _complain("jaxnsd orbit", "no orbit was found", 1)
        for k, (value, trivial) in enumerate(zip(np.asarray(orbit.multipliers), np.asarray(orbit.trivial), strict=True)):
            note = "   of a shift in time: its distance from 1 tells the error of the others" if trivial else ""
            print(f"multiplier {k}  {value.real:+.8f} {value.imag:+.8f}i   absolute value {abs(value):.8f}{note}")
        print(f"stable      {'yes' if bool(orbit.stable) else 'no'}")
        branch = args.follow and interrupts.wait_for(lambda: orbits.follow(orbit, args.follow, args.to, max_points=args.points))
        if branch:
            print(f"branch      {branch}")
        if args.curve and not branch.special:
            return _complain("jaxnsd orbit", "the branch has no special point to follow", 1)
        curve = args.curve and interrupts.wait_for(
            lambda: orbits.curve(branch.special[0], args.curve, args.curve_to, max_points=args.points)
        )
    except (TypeError, ValueError) as error:
        raise _ArgumentError(error) from error
    if curve:
        print(f"curve       {curve}")
    try:
        if args.out:
            (curve or branch).save(args.out)
            print(f"arrays      {args.out}")
        if args.plot:
            fig, ax = plotting.figure(width=6.0, height=4.0)
            if curve:
                plotting.curve(curve, ax=ax)
            elif branch:
                plotting.branch(branch, "period", label="period in s", ax=ax)
            else:
                plotting.orbit(orbit, int(np.argmax(np.ptp(np.asarray(orbit.solution.q), axis=0))), ax=ax)
            plotting.save(fig, args.plot)
            print(f"picture     {args.plot}")
    except OSError as error:
        return _complain("jaxnsd orbit", f"cannot write: {error}", 1)
    return 0


def _ensemble(args):
    jax.config.update("jax_enable_x64", not args.float32)
    scheme = _scheme(args.scheme)
    if _file(args.model) is not None:
        raise _ArgumentError(
            f"ensemble takes a model by its name, see jaxnsd list, got {args.model!r}; jaxnsd.ensemble.run takes any system"
        )
    try:
        system, *_ = _model(args.model, args.set)
        if not args.sample:
            raise _ArgumentError("something must be random, --sample NAME=DIST, such as --sample 'e_N=uniform(0.2,0.8)'")
        _, start = _parameters(MODELS[args.model])
        # Of a start that is set, what is not random.
        settings = dict(setting.split("=", 1) for setting in args.set)
        initial = {name: _value(name, text, start[name]) for name, text in settings.items() if name in start}
        drawn = [_distribution(text) for text in args.sample]
        names = [name for name, _ in drawn]
        for name in names:
            if names.count(name) > 1:
                raise _ArgumentError(f"--sample {name} is given more than once")
            if name in settings:
                raise _ArgumentError(f"{name} is random by --sample and fixed by --set: leave out one of them")
        sample = ensemble.Independent(system, dict(drawn), initial=initial)
        q0, u0 = system.initial_state()
        observe = observables.Observables(tuple(args.observe) or tuple(f"q[{i}]" for i in range(len(q0))))
        observe.check(system, len(q0), len(u0))
        points = args.points and POINTS[args.points](len(args.sample), args.seed)
        if args.resume and not args.store:
            raise _ArgumentError("--resume goes on from a store: name it by --store")
        key, resume = jax.random.key(args.seed), True if args.resume else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="simulating in float32")
            result = ensemble.run(
                system,
                scheme,
                args.n,
                key,
                sample=sample,
                observe=observe,
                reduce={"moments": ensemble.Moments(), "quantiles": ensemble.Quantiles(), "extremes": ensemble.Extremes()},
                points=points,
                chunk=args.chunk,
                store=args.store,
                resume=resume,
                workers=args.workers,
                progress=args.progress,
                t1=args.t1,
                dt=args.dt,
            )
    except ensemble.StoreError as error:
        if error.result is not None:
            _report(args, error.result)
            return _complain("jaxnsd ensemble", error, 1)
        raise _ArgumentError(error) from error
    except ensemble.Interrupted as interrupt:
        _report(args, interrupt.result)
        raise
    except (TypeError, ValueError, ImportError) as error:
        raise _ArgumentError(error) from error
    _report(args, result)
    return 0 if result.failed < result.done else _complain("jaxnsd ensemble", "every member failed", 1)


def _distribution(text):
    """``(name, distribution)`` of ``mu=normal(0.3,0.02)``."""
    name, equals, call = text.partition("=")
    try:
        node = ast.parse(call, mode="eval").body
        kind, values = node.func.id, [ast.literal_eval(value) for value in node.args]
    except (SyntaxError, AttributeError, ValueError):
        equals = ""
    if not equals:
        raise _ArgumentError(f"--sample takes NAME=DISTRIBUTION, such as mu=normal(0.3,0.02), got {text!r}")
    make = _choose("distribution", kind, DISTRIBUTIONS)
    try:
        return name, make(*values)
    except TypeError:
        wanted = ", ".join(inspect.signature(make).parameters)
        raise _ArgumentError(f"--sample {text}: {kind} takes {wanted}") from None


def _report(args, result):
    """Print the statistics of an ensemble."""
    print(f"{args.model}, {args.scheme}, dt = {args.dt:g} s, to t = {args.t1:g} s: {result.done} of {result.n} members")
    rate = f", {result.computed / result.seconds:.3g} members/s with compilation" if result.computed else ""
    print(f"computed    {result.computed} in {result.seconds:.1f} s{rate}; {result.done - result.computed} were in the store")
    for code, n in result.counts.items():
        print(f"  {code.name:<18}{n:>9}{'' if code == 0 else '   left out below'}")
    if result.failed:
        print(f"first of those that failed: member {int(result.failures.index[0])}")
    moments, quantiles, extremes = (result[name] for name in ("moments", "quantiles", "extremes"))
    if moments is None:
        return
    low, high = moments.interval()
    title = " ".join(f"{100 * p:>10g} %" for p in quantiles.p)
    print(f"\n{'observed':<14}{'mean':>12} {'(95 % interval)':>26} {'deviation':>12} {title} {'smallest':>12} {'largest':>12}")
    for name in moments.mean:
        interval = f"({low[name]:.6g}, {high[name]:.6g})"
        values = " ".join(f"{x:>12.6g}" for x in quantiles.values[name])
        ends = f"{extremes.smallest[name][0]:>12.6g} {extremes.largest[name][0]:>12.6g}"
        print(f"{name:<14}{moments.mean[name]:>12.6g} {interval:>26} {moments.deviation[name]:>12.4g} {values} {ends}")
    if quantiles.rank_error:
        print(f"quantiles are those of probabilities within {100 * quantiles.rank_error:.2g} %")
    for name, n in result.infinite.items():
        print(f"{name} is infinite or no number in {n} members that succeeded")
    if result.store:
        print(f"store       {result.store}")


def _timed(function):
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def arrays(sol):
    """The arrays of a `Solution` as a dict of NumPy arrays, for `numpy.savez`."""
    names = ("t", "q", "u", "P_N", "P_F", "P_g", "P_gamma", "P_D", "iterations", "residual", "outcome", "contact", "events")
    return {name: np.asarray(value) for name in names if (value := getattr(sol, name)) is not None}


def _summarize(args, system, sol, total, step):
    from .. import plotting

    steps = len(sol.outcome) * args.save_every
    energy = jax.jit(system.total_energy)
    u = node_velocities(system, sol.scheme, sol)
    begin, end = (float(energy(sol.t[k], sol.q[k], u[k])) for k in (0, -1))
    closed = int(plotting.impacts(sol).sum())
    speed = f"{1 / step:.3g} steps/s after compilation ({total:.1f} s with it)" if step else f"{total:.1f} s with compilation"
    print(f"{args.model}, {args.scheme}, dt = {args.dt:g} s, to t = {args.t1:g} s, {sol.q.dtype}")
    print(f"steps       {steps}, {speed}")
    print(f"impacts     {closed} (contacts that closed between stored nodes)")
    print(f"energy      {begin:.6g} J to {end:.6g} J, change {end - begin:+.3g} J")
    print(f"iterations  {int(sol.iterations.sum()) / steps:.2f} per step, largest residual {float(sol.residual.max()):.2g} N s")
    print(f"success     {'yes' if bool(sol.success) else 'no'}")


def _demo(args):
    jax.config.update("jax_enable_x64", True)
    _make_directory("--out", args.out)
    from . import demo

    return interrupts.wait_for(lambda: demo.main(args.out, quick=args.quick))
