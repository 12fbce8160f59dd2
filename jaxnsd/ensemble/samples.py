"""What is random: distributions of parameters, and the sample that draws them independently of each other."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from ..mechanics.system import System
from ..native.jax_internals import is_traced
from ..programs.given import numbers, shown


@dataclasses.dataclass(frozen=True)
class Normal:
    """Normal distribution with ``mean`` and standard ``deviation``."""

    mean: float
    deviation: float

    def __post_init__(self):
        _finite(self)
        _positive(self, "deviation")

    def draw(self, key: jax.Array, dtype: Any) -> jax.Array:
        """One random number."""
        return self.mean + self.deviation * jax.random.normal(key, (), dtype)

    def quantile(self, p: jax.Array) -> jax.Array:
        """Number below which the probability is p."""
        return self.mean + self.deviation * ndtri(p)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The logarithm is normal: ``median`` and ``deviation`` of the logarithm, about the relative spread where it is small."""

    median: float
    deviation: float

    def __post_init__(self):
        _finite(self)
        _positive(self, "median", "deviation")

    def draw(self, key: jax.Array, dtype: Any) -> jax.Array:
        """One random number."""
        return self.median * jnp.exp(self.deviation * jax.random.normal(key, (), dtype))

    def quantile(self, p: jax.Array) -> jax.Array:
        """Number below which the probability is p."""
        return self.median * jnp.exp(self.deviation * ndtri(p))


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform distribution from ``low`` to ``high``."""

    low: float
    high: float

    def __post_init__(self):
        _finite(self)
        if not self.low < self.high:
            raise ValueError(f"{self}: low must be smaller than high")

    def draw(self, key: jax.Array, dtype: Any) -> jax.Array:
        """One random number."""
        return jax.random.uniform(key, (), dtype, self.low, self.high)

    def quantile(self, p: jax.Array) -> jax.Array:
        """Number below which the probability is p."""
        return self.low + (self.high - self.low) * p


@dataclasses.dataclass(frozen=True)
class Beta:
    """Beta distribution on (0, 1) with this ``mean`` and standard ``deviation``: a restitution that is roughly known."""

    mean: float
    deviation: float

    def __post_init__(self):
        _finite(self)
        if not (0 < self.mean < 1 and 0 < self.deviation**2 < self.mean * (1 - self.mean)):
            raise ValueError(f"{self}: the mean must lie in (0, 1), the deviation in (0, sqrt(mean (1 - mean)))")

    def draw(self, key: jax.Array, dtype: Any) -> jax.Array:
        """One random number."""
        concentration = self.mean * (1 - self.mean) / self.deviation**2 - 1
        return jax.random.beta(key, self.mean * concentration, (1 - self.mean) * concentration, (), dtype)


DISTRIBUTIONS = {"normal": Normal, "lognormal": LogNormal, "uniform": Uniform, "beta": Beta}


@dataclasses.dataclass(frozen=True, eq=False)
class Independent:
    """Sample that draws parameters of a system, or of its start, independently of each other.

    ``parameters`` maps names to `Normal`, `LogNormal`, `Uniform`, `Beta`, or what has ``draw(key, dtype)``. A name is a scalar field of the
    system, of bodies one that `Multibody.replace` takes, ``"torso.mass"`` or ``"pair floor-foot.mu"``, or an argument of the method
    ``initial_state``, from which every member starts; where ``start=(q0, u0)`` is given, ``q0[i]``
    or ``u0[i]``. ``initial`` holds further arguments of ``initial_state``. With points of low discrepancy (``points=`` of `run`) the
    numbers are quantiles of the coordinates of a point, in the order of the names.

    Raises ValueError for a name that the system does not have, TypeError for what is no distribution.
    """

    system: System
    parameters: dict[str, Any]
    start: tuple[Any, Any] | None = None
    initial: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        of = type(self.system).__name__
        if not isinstance(self.system, System):
            raise TypeError(f"Independent: system must be a system such as BouncingBall(), got {shown(self.system)}")
        if not isinstance(self.parameters, dict):
            raise TypeError(f'Independent: parameters must be a dict such as {{"mu": Normal(0.3, 0.02)}}, got {shown(self.parameters)}')
        if not self.parameters:
            raise ValueError(f'Independent needs a parameter that is random, such as {{"mu": Normal(0.3, 0.02)}} for {of}')
        if self.start is None and not hasattr(self.system, "initial_state"):
            raise ValueError(f"{of} has no method initial_state(): give start=(q0, u0)")
        if self.start is not None:
            parts = [numbers(x) for x in self.start] if isinstance(self.start, (tuple, list)) else []
            if [getattr(x, "ndim", None) for x in parts] != [1, 1]:
                raise ValueError(f"Independent: start must be (q0, u0), two arrays of numbers, got {shown(self.start)}")
        if not isinstance(self.initial, dict):
            raise TypeError(f"Independent: initial must be a dict of arguments of initial_state, got {shown(self.initial)}")
        known = self._names()
        for name in self.initial:
            if name not in known:
                raise ValueError(f"{of}.initial_state has no argument {name!r}")
        for name, distribution in self.parameters.items():
            if name not in known and not hasattr(self.system, "replace"):
                raise ValueError(f"{of} has no parameter {name!r}; it has {', '.join(known)}")
            if not hasattr(distribution, "draw") or isinstance(distribution, type):
                raise TypeError(f"{name} must be a distribution such as Normal(0.3, 0.02), got {shown(distribution)}")
            if name in self._fields() and np.ndim(getattr(self.system, name)):
                raise ValueError(
                    f"{of}.{name} is an array, and numbers are drawn: give a function sample(key) in place of names, that returns "
                    f"(dataclasses.replace(system, {name}=...), q0, u0)"
                )
            if name not in known:
                try:
                    jax.eval_shape(lambda x, name=name: self.system.replace({name: x}), np.zeros(()))
                except (KeyError, ValueError, TypeError) as error:
                    raise ValueError(f"{of}.{error.args[0]}") from None

    def __call__(self, key: jax.Array, point: jax.Array | None = None) -> tuple[System, jax.Array, jax.Array]:
        """``(system, q0, u0)`` of one member."""
        dtype = jnp.result_type(float)
        values, fields = self.values(key, point), self._fields()
        system = dataclasses.replace(self.system, **{name: x for name, x in values.items() if name in fields})
        known = self._names()
        if of_bodies := {name: x for name, x in values.items() if name not in known}:
            system, values = system.replace(of_bodies), {name: x for name, x in values.items() if name in known}
        if self.start is None:
            q0, u0 = system.initial_state(**self.initial | {name: x for name, x in values.items() if name not in fields})
            return system, jnp.asarray(q0), jnp.asarray(u0)
        parts = {"q0": jnp.asarray(self.start[0], dtype), "u0": jnp.asarray(self.start[1], dtype)}
        for name, x in values.items():
            if name not in fields:
                parts[name[:2]] = parts[name[:2]].at[int(name[3:-1])].set(x)
        return system, parts["q0"], parts["u0"]

    def values(self, key: jax.Array, point: jax.Array | None = None) -> dict[str, jax.Array]:
        """The numbers of one member, by their names."""
        dtype = jnp.result_type(float)
        if point is None:
            # The numbers of a name do not depend on which others there are.
            return {name: d.draw(jax.random.fold_in(key, _code(name)), dtype) for name, d in self.parameters.items()}
        for name, distribution in self.parameters.items():
            if not hasattr(distribution, "quantile"):
                raise TypeError(f"{type(distribution).__name__} of {name} has no quantile: it cannot be drawn from points")
        return {name: d.quantile(point[i].astype(dtype)) for i, (name, d) in enumerate(self.parameters.items())}

    def _fields(self):
        """Names of the parameters of the system."""
        return [f.name for f in dataclasses.fields(self.system) if not f.metadata.get("static")]

    def _names(self):
        """All names that may be drawn."""
        if self.start is not None:
            return [*self._fields(), *(f"{part}[{i}]" for part, x in zip(("q0", "u0"), self.start, strict=True) for i in range(len(x)))]
        code = self.system.initial_state.__code__
        return [*self._fields(), *code.co_varnames[1 : code.co_argcount]]


def _code(name):
    """A number for a name, by FNV-1a: Python's own hash of a string changes from process to process."""
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _finite(distribution):
    for name, value in vars(distribution).items():
        if isinstance(value, (np.ndarray, jax.Array)) and not is_traced(value) and np.ndim(value) == 0:
            value = value.item()
            object.__setattr__(distribution, name, value)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
            raise ValueError(f"{type(distribution).__name__}: {name} must be a finite number, got {value!r}")


def _positive(distribution, *names):
    for name in names:
        if not getattr(distribution, name) > 0:
            raise ValueError(f"{distribution}: {name} must be positive")
