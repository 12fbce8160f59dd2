"""An ensemble with a store and two workers, as a script that a test kills: ``python killed_run.py STORE N [WORKERS]``.

Prints a line for every chunk of the store that is there when it ends, and the statistics as exact numbers.
"""

import json
import sys

import jax

import jaxnsd
from jaxnsd import ensemble
from jaxnsd.models import BouncingBall


def observe(system, sol):
    """What is stored."""
    return {"height": sol.q[-1, 0], "e_N": system.e_N}


def main(path, n, workers=None):
    """Run, and print."""
    jax.config.update("jax_enable_x64", True)
    result = ensemble.run(
        BouncingBall(),
        jaxnsd.Moreau(),
        n,
        jax.random.key(7),
        sample={"e_N": ensemble.Uniform(0.4, 0.9)},
        observe=observe,
        reduce={"moments": ensemble.Moments(), "quantiles": ensemble.Quantiles((0.1, 0.5, 0.9), of="height", size=64)},
        t1=5.0,
        dt=1e-3,
        chunk=416,
        store=path,
        workers=workers,
    )
    moments = result["moments"]
    numbers = {
        "n": moments.n,
        "mean": float(moments.mean["height"]).hex(),
        "variance": float(moments.variance["height"]).hex(),
        "quantiles": [float(x).hex() for x in result["quantiles"].values],
        "computed": result.computed,
    }
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
