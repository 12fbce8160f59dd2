"""What was measured: trajectories of any length, rate and completeness."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..programs.given import shown


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """One measured motion: N frames of m numbers.

    t:       (N,) times in s, increasing, not necessarily uniform; dates (datetime64) are counted from the first one
    y:       (N, m) or (N,) what was measured; an entry that is not finite was not measured, nor one that a masked array masks
    q0, u0:  (n_q,), (n_u,) the state that the motion starts from: known, or a first guess (see `FreeState`, and ``initial`` of `Problem`)
    t0:      its time in s; default t[0]
    mask:    (N,) or (N, m) booleans, False for what is to be left out
    weights: (N,) or (N, m), factors on the squares of the whitened residuals; default 1
    q, u:    (N, n_q), (N, n_u) measured states, from which `Windows` starts; default none
    name:    by which reports call it

    Raises ValueError for shapes that do not fit, and for times that do not increase.
    """

    t: Any
    y: Any
    q0: Any = None
    u0: Any = None
    t0: float | None = None
    mask: Any = None
    weights: Any = None
    q: Any = None
    u: Any = None
    name: str = ""

    def __post_init__(self):
        if not isinstance(self.name, str):
            raise TypeError(f"Trajectory: name must be text, got {shown(self.name)}")
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        who = f"Trajectory {self.name!r}" if self.name else "Trajectory"
        t, t0 = np.asarray(self.t), self.t0
        if t.dtype.kind in "mM":
            # As numbers they would be nanoseconds, since 1970.
            begin = t.ravel()[0] if t.dtype.kind == "M" and t.size else np.timedelta64(0, "ns")
            t0 = t0 if t0 is None or isinstance(t0, (int, float)) else (np.asarray(t0) - begin) / np.timedelta64(1, "s")
            t = np.where(np.isnat(t), np.nan, (t - begin) / np.timedelta64(1, "s"))
        put("t", _numbers(who, "t", t))
        y = _numbers(who, "y", self.y)
        put("y", y[:, None] if y.ndim == 1 else y)
        n = len(self.t) if self.t.ndim else 0
        if self.t.ndim != 1 or n < 1 or self.y.ndim != 2 or len(self.y) != n:
            raise ValueError(f"{who}: t must be (N,) and y (N, m), got {self.t.shape} and {y.shape}")
        if not np.all(np.isfinite(self.t)) or np.any(np.diff(self.t) <= 0):
            raise ValueError(f"{who}: the times t must be finite and increase; sort the frames, and drop those that occur twice")
        for name in ("q", "u"):
            if getattr(self, name) is not None:
                put(name, _numbers(who, name, getattr(self, name)))
                if getattr(self, name).ndim != 2 or len(getattr(self, name)) != n:
                    raise ValueError(f"{who}: {name} must be (N, n_{name}) with N = {n} as t, got {getattr(self, name).shape}")
        for name, of in (("q0", "q"), ("u0", "u")):
            value = getattr(self, name)
            if isinstance(value, FreeState):
                raise TypeError(f"{who}: {name} must be numbers, a first guess, got {value!r}; that is for Problem(..., free_state=)")
            if value is None and getattr(self, of) is None:
                raise ValueError(f"{who}: {name} is missing: give the state that the motion starts from, or states q and u")
            put(name, _numbers(who, name, getattr(self, of)[0] if value is None else value))
            if getattr(self, name).ndim != 1 or not np.all(np.isfinite(getattr(self, name))):
                raise ValueError(f"{who}: {name} must be one axis of finite numbers, got {value!r}")
        put("t0", float(_numbers(who, "t0", self.t[0] if t0 is None else t0)))
        if not np.isfinite(self.t0) or self.t0 > self.t[0] + 1e-9 * (1 + abs(self.t0)):
            raise ValueError(f"{who}: t0 = {self.t0} must not be after the first frame, at {self.t[0]}")
        mask = np.isfinite(self.y)
        if self.mask is not None:
            given = np.asarray(self.mask)
            if given.dtype != bool and not (given.dtype.kind in "iu" and np.all((given == 0) | (given == 1))):
                raise ValueError(f"{who}: mask must be booleans, True for what was measured, got {given.dtype}")
            mask = mask & self._wide(who, "mask", given.astype(bool))
        put("mask", mask)
        weights = self._wide(who, "weights", _numbers(who, "weights", 1.0 if self.weights is None else self.weights))
        if not np.all(weights >= 0) or not np.all(np.isfinite(weights)):
            raise ValueError(f"{who}: weights must be finite and not negative")
        put("weights", weights)

    def _wide(self, who, name, value):
        try:
            if value.ndim == 1:
                if len(value) != len(self.t):
                    raise ValueError
                value = value[:, None]
            return np.broadcast_to(value, self.y.shape)
        except ValueError:
            raise ValueError(f"{who}: {name} must be (N,) or (N, m), here {self.y.shape}, got {value.shape}") from None

    def __len__(self):
        return len(self.t)

    def __repr__(self):
        return f"Trajectory({self.name!r}, {len(self)} frames of {self.y.shape[1]} from {self.t[0]:g} to {self.t[-1]:g} s)"

    @classmethod
    def from_xarray(
        cls, dataset: Any, y: str | Sequence[str], *, time: str = "t", q: str | None = None, u: str | None = None, **options: Any
    ) -> "Trajectory":
        """A trajectory from an `xarray.Dataset`: ``y``, ``q``, ``u`` name variables with an axis ``time``; missing values are masked.

        Several variables for ``y`` are put side by side. ``options`` are further fields, such as q0, u0 and name.
        """
        names = [y] if isinstance(y, str) else list(y)
        missing = [name for name in (time, *names, q, u) if name is not None and name not in dataset]
        if missing:
            raise ValueError(
                f"Trajectory.from_xarray: the dataset has no {', '.join(missing)}; it has {', '.join(map(str, dataset.variables))}"
            )

        def values(name):
            array = dataset[name].transpose(time, ...).values
            return array.reshape(len(array), -1)

        states = {key: values(name) for key, name in (("q", q), ("u", u)) if name is not None}
        return cls(dataset[time].values, np.concatenate([values(name) for name in names], axis=1), **states, **options)


def _numbers(who, name, value):
    """An array of floats; what a masked array masks is NaN."""
    try:
        value = np.ma.asanyarray(value) if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        if value.dtype.kind == "c":
            raise TypeError
        return np.array(np.ma.filled(value.astype(float), np.nan))
    except (TypeError, ValueError):
        raise ValueError(f"{who}: {name} must be an array of real numbers, got {shown(value)}") from None


@dataclass(frozen=True)
class FreeState:
    """Initial states are unknown: estimated with the parameters, each from its own trajectory.

    sigma_q, sigma_u:  standard deviations, scalars or (n_u,), of what the given q0 and u0 are off by; they are a prior, so that a loose one
                       lets the data decide. 0: that entry is known. Coordinates move along q_dot, so that a quaternion stays one
    """

    sigma_q: Any
    sigma_u: Any

    def __post_init__(self):
        for name in ("sigma_q", "sigma_u"):
            value = _numbers("FreeState", name, getattr(self, name))
            if value.ndim > 1 or not np.all(value >= 0) or not np.all(np.isfinite(value)):
                raise ValueError(f"FreeState: {name} must be finite and not negative, scalar or (n_u,), got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(np.atleast_1d(value).tolist()))


@dataclass(frozen=True)
class Windows:
    """Cut each trajectory into windows of so many frames, each simulated from a state at its first frame; what comes between is compared.

    `OneStep` is ``Windows(1)`` from measured states; `MultipleShooting` has free states at the first frame of each window, which the end
    of the window before has to meet. Shorter windows make an easier problem: chaos has no time to grow. From measured states a fit takes
    over the noise of these states, and is biased by it.

    Where a state is not finite no window starts: the one before goes on. The frame at which a window with free states starts is compared
    too: if ``y`` there and the state come of one measurement, ``free`` has to be loose, ten times its noise, or it counts twice.

    frames:      intervals between frames in a window
    free:        `FreeState` of each window about the measured state, or None
    continuity:  with ``free``: ``(sigma_q, sigma_u)``, by which the end of a window may miss the start of the next, in each entry
    """

    frames: int
    free: FreeState | None = None
    continuity: tuple[float, float] | None = None

    def __post_init__(self):
        if isinstance(self.frames, bool) or not isinstance(self.frames, numbers.Integral) or self.frames < 1:
            raise ValueError(f"Windows: frames must be a positive whole number, got {self.frames!r}")
        if (self.free is None) != (self.continuity is None):
            raise ValueError("Windows: free and continuity go together: states that are free must meet, and measured ones cannot")
        if self.free is not None and not isinstance(self.free, FreeState):
            raise TypeError(f"Windows: free must be a FreeState(sigma_q, sigma_u), got {self.free!r}")
        sigma = np.ones(2) if self.continuity is None else _numbers("Windows", "continuity", self.continuity)
        if sigma.shape != (2,) or not np.all((sigma > 0) & np.isfinite(sigma)):
            raise ValueError(f"Windows: continuity must be two positive standard deviations, got {self.continuity!r}")


def OneStep() -> Windows:
    """From every measured state to the next frame."""
    return Windows(1)


def MultipleShooting(frames: int, free: FreeState, continuity: tuple[float, float]) -> Windows:
    """Windows of so many frames from free states, joined with the standard deviations ``continuity``."""
    return Windows(frames, free, continuity)
