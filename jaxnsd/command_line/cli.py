"""The command line: ``list`` what there is, ``run`` one simulation, ``compare`` schemes, ``orbit``, ``ensemble`` of many members,
``evaluate-tosses`` a score, ``demo`` the main job.

Exit status: 0 done, 1 the simulation failed (what was computed is written all the same), 2 bad arguments, said in one line, 130 or 143
interrupted by Ctrl-C or SIGTERM (what was computed is written).
"""

import contextlib
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

from .. import ensemble
from ..ensemble import observables
from ..ensemble.points import POINTS
from ..models import MODELS, SCENES
from ..programs import interrupts, progress
from ..simulation.nodes import node_velocities
from ..simulation.parts import PartedRun
from ..simulation.solution import SimulationError
from . import given, options


def main(argv=None):
    """Run the command line with the arguments ``argv`` (default: those of the process) and return the exit status."""
    args = options.parser().parse_args(options.joined(sys.argv[1:] if argv is None else argv))
    try:
        with interrupts.raised():
            _use_cache(args)
            return COMMANDS[args.name](args)
    except given.ArgumentError as error:
        return options.complain(f"jaxnsd {args.name}", error, 2)
    except BrokenPipeError:
        # Who read the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except interrupts.Interrupted as interrupt:
        return interrupts.leave(options.complain(f"jaxnsd {args.name}", interrupt, interrupt.status))


def _use_cache(args):
    """Keep compiled programs in the directory of ``--cache``, short compilations too."""
    directory = getattr(args, "cache", None)
    if directory is not None:
        given.make_directory("--cache", directory)
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _list(args):
    del args
    print("Models (jaxnsd run MODEL --set NAME=VALUE):")
    for name, cls in MODELS.items():
        fields, start = given.parameters(cls)
        print(f"  {name}\n      {_first_line(cls)}")
        for title, values in (("parameters", fields), ("start", start)):
            if values:
                text = ", ".join(f"{key}={value}" for key, value in values.items())
                print(textwrap.fill(text, 120, initial_indent=f"      {title + ':':<12}", subsequent_indent=" " * 18))
    print("\nScenes in MJCF (jaxnsd run SCENE; with the package mujoco):")
    for name, path in SCENES.items():
        print(f"  {name}\n      {_comment(path)}")
    print("\nSchemes (--scheme NAME):")
    for name, cls in given.SCHEMES.items():
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


def _film(args, system, sol):
    """Film and page, and a line for each."""
    from .. import drawing

    file = given.model_file(args.model)
    looks = {"speed": args.speed, "follow": args.follow, "title": args.model if file is None else Path(args.model).name}
    if file is not None:
        try:
            drawing.meshes.of_file(file, ())
        except ValueError as error:
            # Meshes that only pictures need may be missing: the shapes that touch are there. Said once, for film and page.
            looks["geometry"] = False
            print(f"jaxnsd run: {error}; the shapes that can touch are drawn", file=sys.stderr)
    try:
        if args.film:
            print(f"film        {drawing.film(system, sol, args.film, **looks)!r}")
        if args.page:
            print(f"page        {drawing.page(system, sol, args.page, **looks)!r}")
    except ValueError as error:
        # A run that failed is said below.
        print(f"jaxnsd run: {error}", file=sys.stderr)


def _run(args):
    jax.config.update("jax_enable_x64", not args.float32)
    given.check_file("--out", args.out, (".npz",))
    given.check_file("--plot", args.plot, options.PICTURES)
    scheme = given.scheme(args.scheme)
    try:
        system, q0, u0 = given.model(args.model, args.set)
        given.check_films(args, system, q0)

        def make():
            return PartedRun(system, scheme, q0, u0, args.t1, args.dt, save_every=args.save_every)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="simulating in float32")
            run, stop, *seconds = _computed(make, args.progress)
    except (TypeError, ValueError) as error:
        raise given.ArgumentError(error) from error
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
                if given.model_file(args.model) is not None:
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
        return options.complain("jaxnsd run", f"cannot write: {error}", 1)
    if stop:
        steps = len(sol.outcome) * args.save_every
        raise stop.but(f"after {steps} of {run.history.n_steps} steps, at t = {float(sol.t[-1]):g} s; what is done is above")
    try:
        sol.raise_if_failed()
    except SimulationError as error:
        return options.complain("jaxnsd run", error, 1)
    return 0


def _evaluate_tosses(args):
    from ..identify import tosses

    jax.config.update("jax_enable_x64", True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = tosses.load(args.file)
    except (OSError, ValueError) as error:
        raise given.ArgumentError(error) from error
    for warning in caught:
        print(f"jaxnsd evaluate-tosses: {warning.message}", file=sys.stderr)
    found = interrupts.wait_for(lambda: tosses.score(data, initial=args.initial))
    print(f"tosses      {len(data)} of {args.file}, {sum(map(len, data.frames))} frames; row 0: {args.initial}")
    if found.failed:
        print(f"failed      {len(found.failed)}, left out of the means: {', '.join(found.failed)}")
    if len(found.failed) == len(data):
        return options.complain("jaxnsd evaluate-tosses", "no toss could be simulated", 1)
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
    chosen = [given.scheme(text) for text in args.scheme] if args.scheme else [make() for make in given.SCHEMES.values()]
    try:
        system, q0, u0 = given.model(args.model, args.set)

        def go():
            order = not args.no_order
            return compare.compare(system, chosen, q0, u0, args.t1, args.dt, order=order, report=lambda line: print(line, file=sys.stderr))

        rows = interrupts.wait_for(go)
    except (TypeError, ValueError) as error:
        raise given.ArgumentError(error) from error
    print(f"{args.model}, dt = {args.dt:g} s, to t = {args.t1:g} s\n\n{compare.table(rows)}\n\n{compare.legend()}")
    return 0 if all(row.success for row in rows if row.refused is None) else 1


def _orbit(args):
    from .. import orbits, plotting
    from ..orbits.leaves import parameter

    jax.config.update("jax_enable_x64", True)
    given.check_file("--out", args.out, (".npz",))
    given.check_file("--plot", args.plot, options.PICTURES)
    if (args.follow is None) != (args.to is None):
        raise given.ArgumentError("--follow NAME and --to X belong together")
    if (args.curve is None) != (args.curve_to is None):
        raise given.ArgumentError("--curve NAME and --curve-to Y belong together")
    if args.curve and args.follow is None:
        raise given.ArgumentError("--curve follows a special point of a branch: give --follow NAME and --to X as well")
    if args.out and args.follow is None:
        raise given.ArgumentError("--out writes a branch: give --follow NAME and --to X as well")
    cls = given.choose("model", args.model, MODELS)
    if args.model not in given.cyclic():
        raise given.ArgumentError(
            f"orbit takes a model with a limit cycle, {', '.join(given.cyclic())}, got {args.model!r}; "
            "jaxnsd.orbits.periodic takes any system"
        )
    try:
        system = cls(**given.settings_of(args.model, args.set, given.parameters(cls)[0]))
        for option, name in (("--follow", args.follow), ("--curve", args.curve)):
            if name is not None:
                parameter(option, system, name)
        arguments = {"scheme": given.scheme(args.scheme), "n_steps": args.steps} | system.limit_cycle()
        orbit = interrupts.wait_for(lambda: orbits.periodic(system, **arguments))
        print(f"{args.model}, {args.scheme}, {args.steps} steps a period\n{orbit}\n{orbit.sentence}")
        if not bool(orbit.success):
            return options.complain("jaxnsd orbit", "no orbit was found", 1)
        for k, (value, trivial) in enumerate(zip(np.asarray(orbit.multipliers), np.asarray(orbit.trivial), strict=True)):
            note = "   of a shift in time: its distance from 1 tells the error of the others" if trivial else ""
            print(f"multiplier {k}  {value.real:+.8f} {value.imag:+.8f}i   absolute value {abs(value):.8f}{note}")
        print(f"stable      {'yes' if bool(orbit.stable) else 'no'}")
        branch = args.follow and interrupts.wait_for(lambda: orbits.follow(orbit, args.follow, args.to, max_points=args.points))
        if branch:
            print(f"branch      {branch}")
        if args.curve and not branch.special:
            return options.complain("jaxnsd orbit", "the branch has no special point to follow", 1)
        curve = args.curve and interrupts.wait_for(
            lambda: orbits.curve(branch.special[0], args.curve, args.curve_to, max_points=args.points)
        )
    except (TypeError, ValueError) as error:
        raise given.ArgumentError(error) from error
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
        return options.complain("jaxnsd orbit", f"cannot write: {error}", 1)
    return 0


def _ensemble(args):
    jax.config.update("jax_enable_x64", not args.float32)
    scheme = given.scheme(args.scheme)
    if given.model_file(args.model) is not None:
        raise given.ArgumentError(
            f"ensemble takes a model by its name, see jaxnsd list, got {args.model!r}; jaxnsd.ensemble.run takes any system"
        )
    try:
        system, *_ = given.model(args.model, args.set)
        if not args.sample:
            raise given.ArgumentError("something must be random, --sample NAME=DIST, such as --sample 'e_N=uniform(0.2,0.8)'")
        _, start = given.parameters(MODELS[args.model])
        # Of a start that is set, what is not random.
        settings = dict(setting.split("=", 1) for setting in args.set)
        initial = {name: given.value_of(name, text, start[name]) for name, text in settings.items() if name in start}
        drawn = [given.distribution(text) for text in args.sample]
        names = [name for name, _ in drawn]
        for name in names:
            if names.count(name) > 1:
                raise given.ArgumentError(f"--sample {name} is given more than once")
            if name in settings:
                raise given.ArgumentError(f"{name} is random by --sample and fixed by --set: leave out one of them")
        sample = ensemble.Independent(system, dict(drawn), initial=initial)
        q0, u0 = system.initial_state()
        observe = observables.Observables(tuple(args.observe) or tuple(f"q[{i}]" for i in range(len(q0))))
        observe.check(system, len(q0), len(u0))
        points = args.points and POINTS[args.points](len(args.sample), args.seed)
        if args.resume and not args.store:
            raise given.ArgumentError("--resume goes on from a store: name it by --store")
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
            return options.complain("jaxnsd ensemble", error, 1)
        raise given.ArgumentError(error) from error
    except ensemble.Interrupted as interrupt:
        _report(args, interrupt.result)
        raise
    except (TypeError, ValueError, ImportError) as error:
        raise given.ArgumentError(error) from error
    _report(args, result)
    return 0 if result.failed < result.done else options.complain("jaxnsd ensemble", "every member failed", 1)


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
    closed = int(plotting.impacts(sol, system).sum())
    speed = f"{1 / step:.3g} steps/s after compilation ({total:.1f} s with it)" if step else f"{total:.1f} s with compilation"
    print(f"{args.model}, {args.scheme}, dt = {args.dt:g} s, to t = {args.t1:g} s, {sol.q.dtype}")
    print(f"steps       {steps}, {speed}")
    print(f"impacts     {closed} (contacts that closed between stored nodes)")
    print(f"energy      {begin:.6g} J to {end:.6g} J, change {end - begin:+.3g} J")
    print(f"iterations  {int(sol.iterations.sum()) / steps:.2f} per step, largest residual {float(sol.residual.max()):.2g} N s")
    print(f"success     {'yes' if bool(sol.success) else 'no'}")


def _demo(args):
    jax.config.update("jax_enable_x64", True)
    given.make_directory("--out", args.out)
    from . import demo

    return interrupts.wait_for(lambda: demo.main(args.out, quick=args.quick))


COMMANDS = {
    "list": _list,
    "run": _run,
    "compare": _compare,
    "ensemble": _ensemble,
    "orbit": _orbit,
    "evaluate-tosses": _evaluate_tosses,
    "demo": _demo,
}
