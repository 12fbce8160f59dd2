"""Monte Carlo: many members, each with a sample of its own, in chunks that workers share and an interrupted run does not lose.

    result = ensemble.run(system, scheme, n, key, sample=..., observe=..., reduce=..., t1=..., dt=...)

`run` simulates and reduces, `gradient` gives derivatives of expectations. What is drawn: `Normal`, `LogNormal`, `Uniform`, `Beta`,
`Independent`, and points of low discrepancy, `Sobol`, `Halton`, `LatinHypercube`. What becomes of it: `Moments`, `Covariance`,
`Proportion`, `Quantiles`, `Histogram`, `Extremes`, and one's own, `Associative`, `Reduction`.
"""

from .engine import Interrupted, gradient, run
from .executors import WorkerLostError
from .points import Halton, LatinHypercube, Sobol
from .reductions import Associative, Covariance, Extremes, Histogram, Moments, Proportion, Quantiles, Reduction
from .result import Failures, Result
from .samples import Beta, Independent, LogNormal, Normal, Uniform
from .store import StoreError

__all__ = [
    "Associative",
    "Beta",
    "Covariance",
    "Extremes",
    "Failures",
    "Halton",
    "Histogram",
    "Independent",
    "Interrupted",
    "LatinHypercube",
    "LogNormal",
    "Moments",
    "Normal",
    "Proportion",
    "Quantiles",
    "Reduction",
    "Result",
    "Sobol",
    "StoreError",
    "Uniform",
    "WorkerLostError",
    "gradient",
    "run",
]
