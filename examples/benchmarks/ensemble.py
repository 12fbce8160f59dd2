"""What an ensemble costs beside its simulations: overhead of the engine, one and two processes, memory of many members.

    python examples/benchmarks/ensemble.py [--balls 1000000] [--woodpeckers 100000]

The overhead is the time that the cores are not within the compiled program: waiting, in Python, or reducing. It is told within one run, as
two runs differ by more on a machine that others use too. Each measurement is a process of its own, so that its peak of memory is its own
too; peaks are of resident memory, with Python, JAX and the compiler.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time

import jax

from jaxnsd import Moreau, ensemble
from jaxnsd.command_line import options
from jaxnsd.ensemble import engine
from jaxnsd.models import RotatingBall, Woodpecker

MODELS = {
    "balls": (RotatingBall, {"e_N": ensemble.Uniform(0.3, 0.7), "mu": ensemble.Normal(0.2, 0.01)}, 5.0, 1e-2),
    "woodpeckers": (Woodpecker, {"mu": ensemble.Normal(0.3, 0.02), "e_N_beak": ensemble.Uniform(0.4, 0.6)}, 0.5, 1e-3),
}
REDUCE = {"moments": ensemble.Moments(), "quantiles": ensemble.Quantiles(), "extremes": ensemble.Extremes()}


def observe(system, sol):
    """Where a member ends."""
    return {"q": sol.q[-1], "u": sol.u[-1]}


def arguments(model, n):
    """Arguments of `ensemble.run`, and its options."""
    make, sample, t1, dt = MODELS[model]
    return (make(), Moreau(), n, jax.random.key(1)), {"sample": sample, "observe": observe, "reduce": REDUCE, "t1": t1, "dt": dt}


def measured(model, n, workers):
    """One run, in this process: members, failures, seconds without compilation, peak of memory in MiB."""
    first, options = arguments(model, n)
    cold = ensemble.run(*first[:2], 1, *first[3:], **options)  # fills the compilation cache of the process
    result = ensemble.run(*first, **options, workers=workers, progress=True)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"n": result.done, "failed": result.failed, "seconds": result.seconds, "peak": peak / 1024, "compilation": cold.seconds}


def overhead(model, chunks):
    """Of a run of so many chunks: seconds, those of them for which the cores were not within the program, or reduced, and the chunk."""
    first, options = arguments(model, 1)
    sample = ensemble.Independent(first[0], options["sample"])
    times = {name: options[name] for name in ("t1", "dt")}
    job = engine._job(first[1], 2**20, first[3], sample, observe, REDUCE, None, 1, None, times)
    chunk = engine._default_chunk(job)
    job = dataclasses.replace(job, n=chunks * chunk)
    (program,) = job.compiled(job.block)
    spent = {"program": [], "reduce": []}

    def timed(name, call):
        def result(*args, **options):
            start = time.perf_counter()
            result = jax.block_until_ready(call(*args, **options))
            spent[name].append(time.perf_counter() - start)
            return result

        return result

    job._programs[job.block] = [timed("program", program)]
    job.__dict__["reduce"] = timed("reduce", job.reduce)
    start = time.perf_counter()
    engine._Driver(job, chunk, None, engine.executors.Engine(None, None), False).run()
    whole = time.perf_counter() - start
    cores = os.cpu_count()
    # What is reduced beside the program takes its core; so it is not time of the program.
    engine_alone = cores * whole - sum(spent["program"]) + sum(spent["reduce"])
    return {"chunk": chunk, "whole": whole, "engine": engine_alone / cores}


def in_a_process(*call):
    """What `measured` or `overhead` returns, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--call", json.dumps(call)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main(argv=None):
    """Measure and print."""
    parser = options.Parser(prog="ensemble.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--balls", type=options.count, default=1000000, metavar="N", help="rotating balls of 500 steps (default: %(default)s)"
    )
    parser.add_argument("--woodpeckers", type=options.count, default=100000, metavar="N", help="of 500 steps (default: %(default)s)")
    parser.add_argument("--call", help="one measurement, as the others are called")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    if args.call:
        name, *rest = json.loads(args.call)
        print(json.dumps({"measured": measured, "overhead": overhead}[name](*rest)))
        return 0
    for model in MODELS:
        cost = in_a_process("overhead", model, 16)
        share = cost["engine"] / (cost["whole"] - cost["engine"])
        print(f"{model}: 16 chunks of {cost['chunk']} members, {cost['whole'] / 16:.2f} s each; engine {100 * share:.1f} %")
    for model in MODELS:
        n = getattr(args, model)
        for workers in (None, 1, 2):
            got = in_a_process("measured", model, n, workers)
            where = "this process" if workers is None else f"{workers} process{'es' if workers > 1 else ''}"
            speed = 500 * n / got["seconds"]
            print(
                f"{model}: {n} in {where}: {got['seconds']:.1f} s, {speed:.3g} steps/s, {got['failed']} failed, peak {got['peak']:.0f} MiB"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
