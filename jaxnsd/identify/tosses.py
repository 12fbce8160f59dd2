"""Measured tosses of a cube on a board: reading them, the score of a model, and the fit of `jaxnsd.models.TossedCube` to them.

A toss is an array (N, 13), a row for each frame: position of the centre (m), unit quaternion (w, x, y, z) body to world, velocity (m/s,
world frame), angular velocity (rad/s, body frame). The score of a model on a toss: simulated from row 0 on, the mean over all frames of the
distance between measured and simulated centre, in % of the cube's width, and of the angle between measured and simulated orientation, in
degrees; of a set of tosses the mean of these, and the median beside it. Where row 0 comes from makes three scores, never to be mixed:

    stored    (A) row 0 as it is in the file
    measured  (B) row 0 through a `Measurement`, a handful of parameters that are the same for all tosses
    flight    (C) a ballistic motion, fitted to the frames before the first contact
"""

import dataclasses
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..models import TossedCube
from .data import Trajectory
from .evaluate import Evaluator, Point
from .problem import Problem
from .robust import Robust

WIDTH = 0.1048  # m
FRAME = 1 / 148  # s
INITIAL = ("stored", "measured", "flight")

#: ``(% of the width, degrees)``: the score of `TossedCube` on 100 measured tosses that were not fitted, by where row 0 comes from.
#: Medians are 8.1 and 6.2, 7.5 and 6.0, 5.8 and 5.3. Fitted were 300 others, from flights, by 60 steps of Adam on batches of 40, on which
#: it is 7.5 and 7.6: these 100 are easier ones. What buys what, from flights, each put back on its own without a new fit: friction of
#: an impact equal to that of sliding 20 and 7 (sliding equal to that of an impact 6 and 0.7), the centre of mass in the middle 3.2 and
#: 4.4, the authors' inertia 1.2 and 2.9, e_F = 0 2.0 and 2.0, sharp corners 0.7 and 2.3, one restitution for all 0.5 and nothing.
#: What is left: from frames of the model itself, with the noise of the measured ones, a flight's state scores 2.2 and 2.7, as what is
#: off at the first impact grows with every one; and 40 ms after a single impact the model is off by 1 % and 1.2 degrees.
SHIPPED_SCORE = {"stored": (9.83, 8.57), "measured": (8.60, 8.36), "flight": (6.36, 6.65)}

#: No number of a toss, in metres and seconds, is larger.
LARGEST = 1e6

#: Steps of the simulation from frame to frame.
STEPS = 4

#: A frame costs about the sum of its errors, as it does in the score.
ROBUST = Robust("soft_l1", 1.0, "frame")


@dataclass(frozen=True, eq=False)
class Tosses:
    """Tosses: ``frames``, a list of arrays (N, 13), ``names``, the time ``dt`` from frame to frame in s, what was ``skipped`` and why."""

    frames: list
    names: list
    dt: float = FRAME
    skipped: tuple = ()

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, numbers):
        """Those with these numbers."""
        numbers = np.atleast_1d(np.arange(len(self))[numbers])
        return Tosses([self.frames[k] for k in numbers], [self.names[k] for k in numbers], self.dt)


def load(path: str | Path, half_width: float = 0.5 * WIDTH) -> Tosses:
    """Tosses from an .npz file with ``state``, ``offsets`` and, if there are, ``toss_id`` and ``dt``; or from the published layout.

    That is a folder with a comma-separated file for each toss, or one such file: 19 columns, position, quaternion, velocity, angular
    velocity, six zeros, with lengths in units of ``half_width``. Files and tosses that are corrupt or shorter than two frames are skipped,
    named in ``skipped`` and in a warning. Raises FileNotFoundError, and ValueError where no toss is left.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    dt, good, bad = FRAME, [], []
    if path.is_file() and path.suffix == ".npz":
        dt, parts = _packed(path)
    else:
        files = [path] if path.is_file() else _tables(path)
        parts = [(file.stem, _published(file, half_width)) for file in files]
    for name, rows in parts:
        reason = rows if isinstance(rows, str) else _fault(rows)
        if reason:
            bad.append((name, reason))
            continue
        rows = rows.copy()
        rows[:, 3:7] /= np.linalg.norm(rows[:, 3:7], axis=1, keepdims=True)
        good.append((name, rows))
    if not good:
        text = f": {bad[0][0]}: {bad[0][1]}" if bad else "; expected an .npz file, or .csv files, one for each toss"
        raise ValueError(f"{str(path)!r} holds no toss that can be used{text}")
    if bad:
        shown = "; ".join(f"{name}: {reason}" for name, reason in bad[:5]) + ("; ..." if len(bad) > 5 else "")
        warnings.warn(f"{len(bad)} of {len(parts)} tosses are skipped: {shown}", stacklevel=2)
    return Tosses([rows for _, rows in good], [name for name, _ in good], dt, tuple(bad))


def _packed(path):
    try:
        with open(path, "rb") as binary, np.load(binary) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is none, or a damaged one"
        raise ValueError(f"{str(path)!r} cannot be read as .npz: {why}") from error
    missing = {"state", "offsets"} - arrays.keys()
    if missing:
        raise ValueError(f"{str(path)!r} has no array {', '.join(sorted(missing))}; it has {', '.join(sorted(arrays))}")
    for name in {"state", "offsets", "dt"} & arrays.keys():
        if arrays[name].dtype.kind not in "iuf":
            raise ValueError(f"{str(path)!r}: {name} must be real numbers, got dtype {arrays[name].dtype}")
    state, offsets = arrays["state"].astype(float), arrays["offsets"]
    if not np.all(np.isfinite(offsets)) or np.any(offsets != np.floor(offsets)):
        raise ValueError(f"{str(path)!r}: offsets must be whole numbers of rows")
    offsets = offsets.astype(int)
    if state.ndim != 2 or state.shape[1] != 13 or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(f"{str(path)!r}: state must be (frames, 13) and offsets (tosses + 1,), got {state.shape} and {offsets.shape}")
    ids = arrays.get("toss_id", np.arange(len(offsets) - 1))
    if ids.shape != (len(offsets) - 1,):
        raise ValueError(f"{str(path)!r}: toss_id must be ({len(offsets) - 1},), a name for each toss, got {ids.shape}")
    if len(np.unique(ids)) < len(ids):
        ids = [f"{name} ({k})" for k, name in enumerate(ids)]
    parts = []
    for name, begin, end in zip(ids, offsets[:-1], offsets[1:], strict=True):
        inside = 0 <= begin < end <= len(state)
        parts.append((f"toss {name}", state[begin:end] if inside else f"rows {begin} to {end} of {len(state)}: cut short"))
    dt = np.squeeze(arrays.get("dt", FRAME))
    if dt.shape != () or not (np.isfinite(dt) and dt > 0):
        raise ValueError(f"{str(path)!r}: dt must be one positive number, got {dt}")
    return float(dt), parts


def _tables(folder):
    """Its comma-separated files, in the order of their numbers."""
    return sorted((file for file in folder.iterdir() if file.suffix.lower() == ".csv"), key=lambda file: (len(file.stem), file.stem))


def _published(file, half_width):
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data")  # it is said below
            rows = np.loadtxt(file, delimiter=",", ndmin=2)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, UnicodeDecodeError):
        return "cannot be read: a table of numbers with commas between them is expected"
    if not rows.size:
        return "is empty"
    if rows.shape[1] not in (13, 19):
        return f"has {rows.shape[-1]} columns, not 19"
    rows = rows[:, :13].copy()
    rows[:, :3] *= half_width
    rows[:, 7:10] *= half_width
    return rows


def _fault(rows):
    """Why a toss cannot be used; empty if it can."""
    if len(rows) < 2:
        return f"has {len(rows)} frames, a toss two at least"
    if not np.all(np.isfinite(rows)):
        return "has values that are not finite"
    if np.max(np.abs(rows)) > LARGEST:
        return f"has values beyond {LARGEST:g}"
    off = np.max(np.abs(np.linalg.norm(rows[:, 3:7], axis=1) - 1))
    return f"its quaternions are off unit length by {off:.2g}" if off > 0.01 else ""


# ---------------------------------------------------------------------------------------------------------------- orientation
def product(a, b):
    """Product of quaternions (..., 4)."""
    xp = jnp if isinstance(a, jax.Array) or isinstance(b, jax.Array) else np
    w, x, y, z = (a[..., i] for i in range(4))
    W, X, Y, Z = (b[..., i] for i in range(4))
    parts = [w * W - x * X - y * Y - z * Z, w * X + x * W + y * Z - z * Y, w * Y - x * Z + y * W + z * X, w * Z + x * Y - y * X + z * W]
    return xp.stack(parts, -1)


def rotation_vector(p):
    """Rotation vector (..., 3) in rad of a quaternion (..., 4); of the two, the shorter."""
    xp = jnp if isinstance(p, jax.Array) else np
    p = xp.where(p[..., :1] < 0, -p, p)
    v = p[..., 1:]
    square = xp.sum(v * v, -1, keepdims=True)
    small = square < 1e-20
    n = xp.sqrt(xp.where(small, 1, square))
    return xp.where(small, 2 * v, v / n * 2 * xp.arctan2(n, p[..., :1]))


def quaternion(v):
    """Unit quaternion (..., 4) of a rotation vector (..., 3)."""
    xp = jnp if isinstance(v, jax.Array) else np
    square = xp.sum(v * v, -1, keepdims=True)
    small = square < 1e-16
    n = xp.sqrt(xp.where(small, 1, square))
    return xp.concatenate([xp.where(small, 1 - square / 8, xp.cos(n / 2)), xp.where(small, 0.5, xp.sin(n / 2) / n) * v], -1)


def difference(predicted, measured):
    """Residual (6,) of a pose (7,): distance of the centres over the cube's width, rotation vector in rad."""
    turn = product(predicted[3:] * jnp.array([1.0, -1.0, -1.0, -1.0]), measured[3:])
    return jnp.concatenate([(predicted[:3] - measured[:3]) / WIDTH, -rotation_vector(turn)])


# ---------------------------------------------------------------------------------------------------------- where row 0 comes from
#: What a measurement does to row 0, the same for all tosses: by how much position, orientation and velocity lag behind, in s, by what
#: factor velocities and angular velocities are too small, and how far above what is said the centre is, in m.
MEASUREMENT = {"lag_position": 0.0, "lag_turn": 0.0, "lag_velocity": 0.0, "velocity": 1.0, "spin": 1.0, "height": 0.0}


#: The measurement that ships: `fit_measurement` of 300 tosses.
MEASURED = {
    "lag_position": 5e-5,
    "lag_turn": -1.5e-4,
    "lag_velocity": 3.17e-3,
    "velocity": 0.9917,
    "spin": 1.0289,
    "height": -2e-5,
}


def corrected(q0, u0, measurement, gravity):
    """Initial state ``(q0 (7,), u0 (6,))`` of a measured row: what lags is moved on along the flight, what is small is enlarged."""
    fall = jnp.array([0.0, 0.0, -1.0]) * gravity
    v = measurement["velocity"] * (u0[:3] + measurement["lag_velocity"] * fall)
    spin = measurement["spin"] * u0[3:]
    x = q0[:3] + measurement["lag_position"] * v + jnp.array([0.0, 0.0, 1.0]) * measurement["height"]
    return jnp.concatenate([x, product(q0[3:], quaternion(measurement["lag_turn"] * spin))]), jnp.concatenate([v, spin])


def in_flight(system, rows, margin=0.003):
    """Number of frames before the first one whose lowest sphere is less than ``margin`` in m above the board."""
    w, x, y, z = rows[:, 3:7].T
    up = np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], axis=1)
    reach = 0.5 * float(system.side) - float(system.radius)
    gaps = rows[:, 2] - reach * np.abs(up).sum(1) - float(system.radius) - float(system.board)
    low = np.flatnonzero(gaps < margin)
    return int(low[0]) if low.size else len(rows)


def free_rotation(system, p, spin, t):
    """Orientations (n, 4) of a free symmetric top after times t (n,), from the orientation p, with angular velocity ``spin`` in the body.

    It turns about the angular momentum by |L| t / A, and about its own axis by what is left of its spin, (1 - C / A) omega_z t.
    """
    ratio = float(system.inertia_z) / float(system.inertia)
    momentum = turned(p, spin * [1, 1, ratio])
    own = np.outer(t, [0, 0, (1 - ratio) * spin[2]])
    return product(quaternion(np.outer(t, momentum)), product(p[None], quaternion(own)))


def turned(p, v):
    """Vectors v (..., 3) of the body frame in the world frame; with the conjugate of p the other way round."""
    pure = np.concatenate([np.zeros((*np.shape(v)[:-1], 1)), v], -1)
    return product(product(p, pure), p * [1, -1, -1, -1])[..., 1:]


def flight_state(system, rows, dt=FRAME):
    """Initial state ``(q0 (7,), u0 (6,))`` of the flight that fits the poses before the first contact best, in the sense of least squares.

    The centre of mass falls with the gravity of the system, and the cube turns about it as a free symmetric top. With less than three
    frames in flight, row 0 as it is.
    """
    n = in_flight(system, rows)
    q0, u0 = rows[0, :7], rows[0, 7:]
    if n < 3:
        return q0, u0
    t, arm = np.arange(n) * dt, np.array([0.0, 0.0, float(system.offset)])
    fall = np.outer(-0.5 * float(system.gravity) * t**2, [0, 0, 1])
    centre_of_mass = rows[:n, :3] + turned(rows[:n, 3:7], np.broadcast_to(arm, (n, 3)))
    x, v = np.linalg.lstsq(np.stack([np.ones(n), t], 1), centre_of_mass - fall, rcond=None)[0]

    def off(delta):
        """Rotations, in the body frame, from the fit to the measured orientations, if the start is moved by ``delta`` (6,)."""
        at = free_rotation(system, product(p, quaternion(delta[:3])), spin + delta[3:], t)
        return rotation_vector(product(at * [1, -1, -1, -1], rows[:n, 3:7])).ravel()

    p, spin, h = rows[0, 3:7], u0[3:], 1e-5
    for _ in range(10):
        J = np.stack([(off(h * e) - off(-h * e)) / (2 * h) for e in np.eye(6)], 1)
        step = -np.linalg.lstsq(J, off(np.zeros(6)), rcond=None)[0]
        p, spin = product(p, quaternion(step[:3])), spin + step[3:]
        if np.max(np.abs(step)) < 1e-9:
            break
    p = p / np.linalg.norm(p)
    return np.concatenate([x - turned(p, arm), p]), np.concatenate([v - turned(p, np.cross(spin, arm)), spin])


def fit_measurement(tosses: Tosses, system: Any) -> dict:
    """Parameters of a measurement, as `MEASUREMENT`, that take row 0 of each toss to its `flight_state`, in the sense of least squares.

    No impact takes part: this is how the states were measured, not how the cube moves.
    """
    rows = np.stack([rows[0] for rows in tosses.frames])
    states = [flight_state(system, rows, tosses.dt) for rows in tosses.frames]
    q, u = (np.stack(part) for part in zip(*states, strict=True))
    v, spin = u[:, :3], u[:, 3:]
    fall = np.broadcast_to([0.0, 0.0, -float(system.gravity)], v.shape)
    velocity, lagged = np.linalg.lstsq(np.stack([rows[:, 7:10].ravel(), fall.ravel()], 1), v.ravel(), rcond=None)[0]
    turn = rotation_vector(product(rows[:, 3:7] * [1, -1, -1, -1], q[:, 3:]))
    up = np.broadcast_to([0.0, 0.0, 1.0], v.shape)
    lag, height = np.linalg.lstsq(np.stack([v.ravel(), up.ravel()], 1), (q[:, :3] - rows[:, :3]).ravel(), rcond=None)[0]
    found = {
        "lag_position": lag,
        "lag_turn": np.sum(turn * spin) / np.sum(spin**2),
        "lag_velocity": lagged / velocity,
        "velocity": velocity,
        "spin": np.sum(spin * rows[:, 10:]) / np.sum(rows[:, 10:] ** 2),
        "height": height,
    }
    return {name: float(value) for name, value in found.items()}


# ------------------------------------------------------------------------------------------------------------------ fit and score
def trajectories(tosses: Tosses, system: Any = None, initial: str = "stored") -> list[Trajectory]:
    """Tosses as data of a `Problem`: poses (7,) and initial states; with ``initial="flight"`` those of `flight_state`."""
    _check_initial(initial)
    out = []
    for name, rows in zip(tosses.names, tosses.frames, strict=True):
        q0, u0 = flight_state(system, rows, tosses.dt) if initial == "flight" else (rows[0, :7], rows[0, 7:])
        out.append(Trajectory(np.arange(len(rows)) * tosses.dt, rows[:, :7], q0, u0, name=name))
    return out


def problem(
    tosses: Tosses,
    system: TossedCube | None = None,
    fit: Any = (),
    *,
    initial: str = "stored",
    measurement: dict | None = None,
    robust: Robust | None = ROBUST,
    steps: int = STEPS,
    horizon: float = 30.0,
    **options: Any,
) -> Problem:
    """The `Problem` of fitting a model to tosses: ``steps`` of the simulation in a frame.

    A frame costs about the sum of its errors, as it does in the score: 3 % of the width and 3.4 degrees are one standard deviation, from
    which on the loss is linear.
    """
    system = TossedCube() if system is None else system
    data = trajectories(tosses, system, initial)
    if initial == "measured":
        measurement = MEASURED | (measurement or {})
        if not isinstance(fit, (list, tuple, dict)) or any(name.startswith("measurement.") for name in fit):
            measurement = {"gravity": float(system.gravity)} | measurement
            options["initial"] = lambda q0, u0, t, y, m: corrected(q0, u0, m, m["gravity"])
        else:
            data = [_corrected(one, measurement, float(system.gravity)) for one in data]
            measurement = None
    else:
        measurement = None
    noise = np.array([0.03] * 3 + [0.06] * 3)
    return Problem(
        system,
        data,
        fit=list(fit) if isinstance(fit, (tuple, list)) else fit,
        dt=tosses.dt / steps,
        measurement=measurement,
        measure=lambda t, q, u, m: q,
        residual=difference,
        noise=noise,
        robust=robust,
        horizon=horizon,
        **options,
    )


def _corrected(one, measurement, gravity):
    q0, u0 = (np.asarray(x) for x in corrected(one.q0, one.u0, measurement, gravity))
    return dataclasses.replace(one, q0=q0, u0=u0)


@dataclass(frozen=True, eq=False)
class Score:
    """Errors of each toss, NaN where the simulation failed: ``position`` in % of the width, ``angle`` in degrees, ``names``."""

    position: np.ndarray
    angle: np.ndarray
    names: list

    @property
    def mean(self) -> tuple[float, float]:
        """Means over the tosses that were simulated."""
        return float(np.nanmean(self.position)), float(np.nanmean(self.angle))

    @property
    def median(self) -> tuple[float, float]:
        """Medians."""
        return float(np.nanmedian(self.position)), float(np.nanmedian(self.angle))

    @property
    def failed(self) -> list[str]:
        """Tosses whose simulation failed."""
        return [name for name, x in zip(self.names, self.position, strict=True) if not np.isfinite(x)]


def score(
    tosses: Tosses,
    system: TossedCube | None = None,
    *,
    initial: str = "stored",
    measurement: dict | None = None,
    steps: int = STEPS,
) -> Score:
    """`Score` of a model (default: the one that ships, fitted for this kind of initial state) on tosses."""
    _check_initial(initial)
    return scored(problem(tosses, system, initial=initial, measurement=measurement, steps=steps))


def scored(of: Problem, z=None) -> Score:
    """`Score` of a problem that `problem` made, at the unknowns z; default: at the first guess."""
    evaluator = Evaluator(of)
    z = of.unknowns.first() if z is None else np.asarray(z)
    shown = evaluator.shown(Point(z, np.zeros((evaluator.n, of.n_local))), np.arange(evaluator.n))
    shown_r = shown["residual"] * np.sqrt(np.diag(of.covariance))
    mask = of.items["mask"].all(2)
    frames = mask.sum(1)
    out = []
    for part, unit in ((slice(0, 3), 100.0), (slice(3, 6), 180 / np.pi)):
        error = np.where(mask, np.linalg.norm(shown_r[..., part], axis=-1), 0).sum(1) / frames
        out.append(np.where(shown["ok"], unit * error, np.nan))
    return Score(*out, of.names)


def _check_initial(initial):
    if initial not in INITIAL:
        raise ValueError(f"tosses: initial must be one of {', '.join(INITIAL)}, got {initial!r}")
