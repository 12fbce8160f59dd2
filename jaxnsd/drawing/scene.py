"""What there is to be seen of a motion, as numbers: the bodies' meshes and their places, points and lines of one's own, arrows."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..mechanics.system import System
from ..programs.given import numbers, shown
from ..simulation import checks
from ..simulation.nodes import steps_until
from ..simulation.solution import Solution
from . import meshes

#: Okabe & Ito's palette without yellow and black, see `jaxnsd.plotting.COLOURS`.
COLOURS = tuple((int(c[1:3], 16) / 255, int(c[3:5], 16) / 255, int(c[5:7], 16) / 255) for c in (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
))  # fmt: skip
FIXED = (0.6, 0.6, 0.6)
ARROW = (0.75, 0.1, 0.1)

#: Size of a point that is drawn, and thickness of a line in space, as parts of the size of the scene.
POINT, LINE = 0.012, 0.004
#: Length of the largest arrow as a part of the size of the scene.
LONGEST = 0.35
#: Percussions of so many seconds of the film are seen together, so that an impact is seen at all.
HELD = 0.12


@dataclass
class Solid:
    """A rigid mesh: places (F, 3) and rotations (F, 3, 3) at the F times of the scene. ``ghost``: 0, or which of the further members."""

    name: str
    mesh: meshes.Mesh
    position: np.ndarray
    rotation: np.ndarray
    colour: tuple
    ghost: int = 0


@dataclass
class Lines:
    """Lines (F, m, k, d) through k points each; where all of them end where they begin they are areas."""

    name: str
    points: np.ndarray
    filled: bool
    colour: tuple
    ghost: int = 0


@dataclass
class Balls:
    """Discs in the plane, balls in space: centres (F, m, d), radii (F, m), and angles (F, m) in rad in the plane, or None."""

    name: str
    centre: np.ndarray
    radius: np.ndarray
    angle: np.ndarray | None
    colour: tuple
    ghost: int = 0


@dataclass
class Ground:
    """The surface of what fills half of the plane or of space: a point (d,) and the normal (d,), of length one, away from it."""

    name: str
    point: np.ndarray
    normal: np.ndarray


@dataclass
class Scene:
    """A motion at F times.

    forces: (F, n, d) mean forces in N of the contacts' percussions in the last instants, at points (F, n, d) where they acted last
    own:    what the method draw of the first member returned
    size, middle: radius and middle (d,) of a ball around all that moves
    """

    name: str
    t: np.ndarray
    dimension: int
    solids: list[Solid] = field(default_factory=list)
    lines: list[Lines] = field(default_factory=list)
    balls: list[Balls] = field(default_factory=list)
    grounds: list[Ground] = field(default_factory=list)
    contacts: tuple[str, ...] = ()
    points: np.ndarray | None = None
    forces: np.ndarray | None = None
    own: dict = field(default_factory=dict)
    plane: int | None = None
    up: int = 2
    size: float = 1.0
    middle: np.ndarray | None = None

    def track(self, name):
        """Where what has this name is at all times, (F, d)."""
        for part in (*self.solids, *self.balls, *self.lines):
            if part.name == name and not part.ghost:
                where = part.position if isinstance(part, Solid) else part.centre if isinstance(part, Balls) else part.points
                return where.reshape(len(self.t), -1, self.dimension).mean(axis=1)
        names = dict.fromkeys(part.name for part in (*self.solids, *self.balls, *self.lines))
        raise KeyError(f"follow: nothing that is drawn is called {name!r}; there is {', '.join(map(repr, names))}")

    def arrows(self, k):
        """``[(point (d,), vector (d,) in m)]`` of what is drawn at time k: the length grows as the root of the force."""
        if self.forces is None or not self.forces.size:
            return []
        size = np.linalg.norm(self.forces, axis=2)
        if not size.max():
            return []
        length = LONGEST * self.size * np.sqrt(size[k] / size.max())
        there = np.flatnonzero(length > 0.02 * self.size)
        return [(self.points[k, i], length[i] * self.forces[k, i] / size[k, i]) for i in there]


# ------------------------------------------------------------------------------------------------------------ what is given
def checked(caller: str, system: Any, sol: Any, members: Any, span: Any) -> list[tuple[str, System, Solution]]:
    """``[(name of the member, its system, its solution)]`` of what is drawn, the first of them as it is, the others as ghosts."""
    systems = list(system) if isinstance(system, (list, tuple)) else [system]
    for one in systems:
        if not isinstance(one, System):
            raise TypeError(f"{caller}: system must be a System, or a list of them, one for each member, got {type(one).__name__}")
        drawable(caller, one)
    for name in ("t", "q", "P_N"):
        if not hasattr(sol, name):
            raise TypeError(f"{caller}: sol must be a Solution, what jaxnsd.simulate returns, got {type(sol).__name__}")
    for one in systems:
        checks.motion(caller, sol, one)
    shape = np.shape(sol.t)[:-1]
    if not shape:
        if members is not None:
            raise ValueError(f"{caller}: members chooses of a batch, and this is the solution of one motion: leave it out")
        chosen = [()]
    elif members is None:
        raise ValueError(f"{caller}: one motion can be drawn, got a batch of shape {shape}: choose by members, members=0 or members=[0, 1]")
    else:
        kinds = {None if (array := numbers(x)) is None else array.dtype.kind for x in jax.tree.leaves(members)}
        if not kinds <= {"i", "u"}:
            raise TypeError(f"{caller}: members must be numbers of members, a number or a list of them, got {shown(members)}")
        one = isinstance(members, (int, np.integer)) or (isinstance(members, tuple) and len(shape) > 1)
        chosen = [_index(caller, member, shape) for member in ([members] if one else members)]
        if not chosen:
            raise ValueError(f"{caller}: members must name one member at least, got {members!r}")
    if len(systems) not in (1, len(chosen)):
        raise ValueError(f"{caller}: a list of systems must have one for each of the {len(chosen)} members drawn, got {len(systems)}")
    systems = systems * len(chosen) if len(systems) == 1 else systems
    found = []
    for index, one in zip(chosen, systems, strict=True):
        motion = jax.tree.map(lambda x, index=index: x[index], sol) if index else sol
        if getattr(motion, "stop", None) is not None:
            motion = motion.trimmed()
        if np.shape(motion.t)[0] < 2:
            raise ValueError(f"{caller}: a motion must have two times at least, got one, as with save_at=[0.5]: store more of them")
        name = f"member {index[0] if len(index) == 1 else index}" if index else ""
        found.append((name, one, motion))
        _finite(caller, motion, name, _span(caller, np.asarray(found[0][2].t), span))
    return found


def drawable(caller: str, system: System) -> None:
    """Raise TypeError for a system that cannot be drawn."""
    if not system.defines("draw") and not _of_bodies(system):
        raise TypeError(
            f"{caller}: {type(system).__name__} says nothing of what it looks like: give it a method draw(t, q) that returns points and "
            "lines by name, see jaxnsd.drawing, or make it of jaxnsd.bodies"
        )


def _of_bodies(system):
    from ..bodies import Multibody

    return isinstance(system, Multibody)


def _index(caller, member, shape):
    index = tuple(int(i) for i in np.atleast_1d(member))
    if len(index) != len(shape) or any(not -n <= i < n for i, n in zip(index, shape, strict=True)):
        what = f"a number from 0 to {shape[0] - 1}" if len(shape) == 1 else f"{len(shape)} numbers within {shape}"
        raise ValueError(f"{caller}: a member of a batch of shape {shape} is {what}, got {member!r}")
    return index


def _finite(caller, sol, name, span):
    t = np.asarray(sol.t)
    low, high = span
    inside = (t >= low) & (t <= high)
    bad = inside & ~np.isfinite(np.asarray(sol.q)).all(axis=1)
    if bad.any():
        k = int(np.argmax(bad))
        start = f"span=({low:g}, {t[k - 1]:g})" if k and t[k - 1] > low else "another span"
        raise ValueError(
            f"{caller}: the coordinates{f' of {name}' if name else ''} are not finite from t = {t[k]:g} s on; sol.raise_if_failed() "
            f"says why, and {start} draws what is before"
        )


def _span(caller, t, span):
    if span is None:
        return float(t[0]), float(t[-1])
    array = numbers(said := span)
    span = () if array is None else tuple(np.asarray(array, float).reshape(-1))
    if len(span) != 2 or not t[0] - 1e-9 <= span[0] < span[1] <= t[-1] + 1e-9:
        raise ValueError(f"{caller}: span must be two times between {t[0]:g} and {t[-1]:g} s, the first one smaller, got {shown(said)}")
    return span


# -------------------------------------------------------------------------------------------------------------- the scene
def of(
    caller: str,
    parts: list[tuple[str, System, Solution]],
    interval: float,
    span: Any = None,
    held: float = HELD,
    geometry: Any = None,
    arrows: bool = True,
    end: bool = False,
) -> Scene:
    """The `Scene` of motions at times that are ``interval`` s apart; ``end``: and at the end, where that is none of them.

    parts: of `checked`; held: seconds of the motion whose percussions are seen together; geometry: see `films.film`
    """
    _, system, first = parts[0]
    low, high = _span(caller, np.asarray(first.t), span)
    t = low + interval * np.arange(int((high - low) / interval + 1e-6) + 1)
    if end and high - t[-1] > 1e-6 * interval:
        t = np.append(t, high)
    name = system.structure.name if _of_bodies(system) else ""
    scene = Scene(name or type(system).__name__, t, 2)
    for number, (_, system, sol) in enumerate(parts):
        q = _between(np.asarray(sol.t, float), np.asarray(sol.q, float), t)
        if _of_bodies(system):
            _bodies(caller, scene, system, q, number, geometry)
        if system.defines("draw"):
            _own(caller, scene, system, q, number)
    _measure(scene)
    if arrows:
        contacts = _contacts(caller, parts[0][1], first)
        if contacts is not None:
            scene.contacts, scene.points, scene.forces = _forces(first, t, held, *contacts)
    return scene


def _between(nodes, q, t):
    """Coordinates (F, n_q) at times between the nodes, straight from one to the next; no number depends on a quaternion's length."""
    k = np.clip(np.searchsorted(nodes, t, side="right") - 1, 0, len(nodes) - 2)
    part = np.clip((t - nodes[k]) / (nodes[k + 1] - nodes[k]), 0.0, 1.0)[:, None]
    return (1 - part) * q[k] + part * q[k + 1]


def _cast(x, like):
    """Numbers of the dtype that the system's are of."""
    return jnp.asarray(x, jnp.asarray(like).dtype)


def _look(caller, system, geometry):
    """Meshes of the bodies: of a model file, where there is one, else of the shapes that touch, which a False asks for."""
    structure, touching = system.structure, meshes.of_bodies(system)
    if geometry is False or (geometry is None and structure.source is None):
        return touching
    if geometry is not None:
        return meshes.of_file(geometry, system.body_names)
    try:
        shown = meshes.of_file(structure.source, system.body_names)
    except (ImportError, ValueError, OSError) as error:
        # Meshes that only pictures need may be missing, or the file be gone by now.
        warnings.warn(f"{caller}: {error}; the shapes that can touch are drawn; geometry=False asks for these", UserWarning, stacklevel=5)
        return touching
    # Of what the file hides, the shapes for contact alone, say.
    names = ("world", *structure.bodies)
    return {names[shape.body]: touching[names[shape.body]] for shape in structure.shapes if names[shape.body] in touching} | shown


def _bodies(caller, scene, system, q, ghost, geometry):
    position, rotation = (np.asarray(x, float) for x in jax.jit(jax.vmap(system.pose))(*_times(scene.t, q, system.mass)))
    names, frames = system.body_names, len(scene.t)
    scene.dimension, scene.plane = 3, system.structure.plane
    gravity = np.abs(np.asarray(system.gravity, float))
    scene.up = int(np.argmax(gravity)) if gravity.any() else 2 if scene.plane != 2 else 1
    shown = _look(caller, system, geometry)
    for name, parts in shown.items():
        b = None if name == "world" else names.index(name)
        if b is None and ghost:
            continue
        places = (np.zeros((frames, 3)), np.tile(np.eye(3), (frames, 1, 1))) if b is None else (position[:, b], rotation[:, b])
        for colour in dict.fromkeys(colour for *_, colour in parts):
            mesh = meshes.joined([mesh for _, mesh, own in parts if own == colour])
            default = FIXED if b is None else COLOURS[b % len(COLOURS)]
            scene.solids.append(Solid(name, mesh, *places, colour or default, ghost))
    if not ghost:
        for k, shape in enumerate(system.structure.shapes):
            if shape.kind == "plane" and not shape.body:
                normal = meshes.of_numbers(np.asarray(system.shape_orientation[k]))[:, 2]
                scene.grounds.append(Ground(shape.name, np.asarray(system.shape_position[k], float), normal))


def _times(t, q, like):
    return _cast(t, like), _cast(q, like)


def _looks(caller, system):
    """``draw`` with arrays where it returns numbers or lists."""

    def draw(t, q):
        found = system.draw(t, q)
        if not isinstance(found, dict) or not found.keys() - {"contacts"}:
            got = f"a dict of {', '.join(found) or 'nothing'}" if isinstance(found, dict) else type(found).__name__
            raise TypeError(f"{caller}: draw(t, q) must return a dict of points and lines by name, got {got}")
        return {name: tuple(map(jnp.asarray, x)) if isinstance(x, tuple) else jnp.asarray(x) for name, x in found.items()}

    return draw


def _own(caller, scene, system, q, ghost):
    """What a method ``draw`` returns, see `jaxnsd.drawing`."""
    q = jnp.asarray(q)
    found = jax.jit(jax.vmap(_looks(caller, system)))(jnp.asarray(scene.t, q.dtype), q)
    found = {name: jax.tree.map(lambda x: np.asarray(x, float), value) for name, value in found.items() if name != "contacts"}
    sizes = {name: np.shape(value[0] if isinstance(value, tuple) else value)[-1:] for name, value in found.items()}
    if not set(sizes.values()) <= {(2,)} and not set(sizes.values()) <= {(3,)}:
        raise ValueError(f"{caller}: points of draw(t, q) must all have two, or all three, coordinates as last axis, got {sizes}")
    scene.dimension = next(iter(sizes.values()))[0]
    if scene.dimension == 2 and _of_bodies(system):
        raise ValueError(f"{caller}: draw(t, q) of a system of bodies must return points in space, with three coordinates, got {sizes}")
    first = scene.own if ghost else found
    moving = 0
    for name, value in found.items():
        own, like = (x if isinstance(x, tuple) else (x,) for x in (value, first.get(name, ())))
        # What is the same for all members, the floor say, is drawn once.
        if ghost and len(own) == len(like) and all(map(np.array_equal, own, like)):
            continue
        fixed = all(np.ptp(x, axis=0).max(initial=0.0) == 0 for x in own)
        colour = FIXED if fixed else COLOURS[moving % len(COLOURS)]
        moving += not fixed
        _add(caller, scene, name, value, colour, ghost)
    scene.own = first


def _add(caller, scene, name, value, colour, ghost):
    d = scene.dimension
    if isinstance(value, tuple):
        place, other, *angle = value
        if len(value) in (2, 3) and other.shape == place.shape and place.ndim == 2 and not angle:
            normal = other[0] / np.linalg.norm(other[0])
            return None if ghost else scene.grounds.append(Ground(name, place[0], normal))
        if len(value) in (2, 3) and place.ndim in (2, 3):
            frames = len(place)
            place = place.reshape(frames, -1, d)
            radius, *angle = (np.broadcast_to(x.reshape(frames, -1), place.shape[:2]) for x in value[1:])
            return scene.balls.append(Balls(name, place, radius, angle[0] if angle else None, colour, ghost))
    elif value.ndim == 2:
        return scene.balls.append(Balls(name, value[:, None], np.zeros((len(value), 1)), None, colour, ghost))
    elif value.ndim in (3, 4) and value.shape[-2] > 1:
        points = value.reshape(len(value), -1, *value.shape[-2:])
        filled = points.shape[2] > 3 and np.array_equal(points[:, :, 0], points[:, :, -1])
        return scene.lines.append(Lines(name, points, filled, colour, ghost))
    shapes = [x.shape[1:] for x in value] if isinstance(value, tuple) else value.shape[1:]
    raise ValueError(
        f"{caller}: draw(t, q)[{name!r}] must be a point (d,), a line (k, d), lines (m, k, d), or a tuple (centre, radius), "
        f"(centre, radius, angle) or (point, normal), got shapes {shapes}"
    )


def extent(scene: Scene, fixed: bool) -> np.ndarray:
    """Corners (n, d) of what moves, at all times; of what does not where there is nothing else, or ``fixed`` asks for it."""
    found = []
    for part in scene.solids:
        corners = part.mesh.corners.reshape(-1, 3)
        if len(corners) and (fixed or part.name != "world"):
            low, high = corners.min(axis=0), corners.max(axis=0)
            box = np.stack(np.meshgrid(*zip(low, high, strict=True), indexing="ij"), axis=-1).reshape(8, 3)
            found.append((part.position[:, None] + box @ np.swapaxes(part.rotation, 1, 2)).reshape(-1, 3))
    for part in scene.balls:
        for sign in (-1.0, 1.0):
            found.append((part.centre + sign * part.radius[..., None]).reshape(-1, scene.dimension))
    for part in scene.lines:
        if fixed or part.colour != FIXED:
            found.append(part.points.reshape(-1, scene.dimension))
    return np.concatenate(found) if found else np.zeros((0, scene.dimension))


def seen(scene: Scene) -> np.ndarray:
    """Corners (n, d) of what the picture is to show."""
    for fixed in (False, True):
        if len(points := extent(scene, fixed)):
            return points
    return np.zeros((1, scene.dimension))


def _measure(scene):
    points = seen(scene)
    low, high = points.min(axis=0), points.max(axis=0)
    scene.middle = 0.5 * (low + high)
    scene.size = float(max(0.5 * np.linalg.norm(high - low), 1e-6))


# ------------------------------------------------------------------------------------------------------------- percussions
def names_of_contacts(system: System, n: int) -> tuple[str, ...]:
    """Names of the ``n`` contacts: of bodies those of the shapes that touch, several of which may be the same; else its own, or numbers."""
    if _of_bodies(system):
        return tuple(map(str, system.contacts))
    return system.contact_names or tuple(f"contact {i}" for i in range(n))


def _check_places(caller, where, n):
    """Raise ValueError for what a system says about its ``n`` contacts if no arrows can be drawn of it."""
    shapes = [getattr(x, "shape", ()) for x in (where if isinstance(where, tuple | list) else (where,))]
    like, *others = shapes
    tangents = all(x == like or (len(x) == 3 and (x[0], x[2]) == like) for x in others[1:])
    if len(like) != 2 or like[0] != n or len(others) not in (1, 2) or others[0] != like or not tangents:
        raise ValueError(
            f"{caller}: draw(t, q)['contacts'] must be (points, normals) or (points, normals, tangents) of the contacts, of shape ({n}, d) "
            f"each, got {'one array of shape' if not others else 'shapes'} {', '.join(map(str, shapes))}"
        )


def _contacts(caller, system, sol):
    """``(names, points, percussions)`` of the contacts, the latter two (N, n, d); None where nothing says where the contacts are."""
    t, q, P_N = np.asarray(sol.t)[1:], np.asarray(sol.q)[1:], np.asarray(sol.P_N, float)
    P_F = np.asarray(getattr(sol, "P_F", np.zeros((*P_N.shape, 0))), float)
    # Steps without a percussion need no places.
    n, touching = P_N.shape[1], np.flatnonzero((P_N > 0).any(axis=1))
    draw = _looks(caller, system) if system.defines("draw") else None
    said = draw is not None and "contacts" in (looks := jax.eval_shape(draw, *_times(0.0, q[0], q)))
    if said:
        _check_places(caller, looks["contacts"], n)
    if not n or not len(touching):
        return None
    if said:
        where = jax.jit(jax.vmap(lambda t, q: draw(t, q)["contacts"]))(*_times(t, q, q))
        points, normals, *tangents = (np.asarray(x, float) for x in where)
        force = P_N[..., None] * normals
        if tangents and P_F.shape[2]:
            tangent = tangents[0].reshape(*points.shape[:2], -1, points.shape[2])
            force = force + np.einsum("nij,nijd->nid", P_F[:, :, : tangent.shape[2]], tangent)
        return names_of_contacts(system, n), points, force
    if not _of_bodies(system):
        return None
    from ..bodies.multibody import bodies_of

    rows = np.array([k for k, contact in enumerate(system.contacts) if contact.kind != "limit"], int)
    if not len(rows):
        return None
    to_world = bodies_of(system.structure)[1][rows] == 0

    def at(t, q):
        touch = system.touches(t, q)
        return touch.second, touch.normal, system.tangents(touch.normal)

    point, normal, tangents = (
        np.zeros((len(t), len(rows), *shape)) for shape in ((3,), (3,), (1 if system.structure.plane is not None else 2, 3))
    )
    found = jax.jit(jax.vmap(at))(*_times(t[touching], q[touching], system.mass))
    for full, part in zip((point, normal, tangents), found, strict=True):
        full[touching] = np.asarray(part, float)[:, rows]
    d = min(tangents.shape[2], P_F.shape[2])
    force = P_N[:, rows, None] * normal + np.einsum("nij,nijd->nid", P_F[:, rows, :d], tangents[:, :, :d])
    force = np.where(to_world[None, :, None], -force, force)
    return tuple(str(system.contacts[k]) for k in rows), point, np.where(P_N[:, rows, None] > 0, force, 0.0)


def _forces(sol, t, held, names, points, percussions):
    """Mean forces (F, n, d) over the last ``held`` s and the points (F, n, d) where they acted, of percussions at ``sol.t[1:]``."""
    nodes = np.asarray(sol.t, float)
    # Percussions between two stored times are of the steps that ended there: of one that is longer than these are apart, or of none.
    until = np.asarray(steps_until(sol)) * float(sol.dt) if isinstance(sol, Solution) else nodes
    weight = np.linalg.norm(percussions, axis=2)
    used = np.flatnonzero(weight.any(axis=0))
    weight, percussions, points = weight[:, used], percussions[:, used], points[:, used]

    # A node on the border belongs to the interval that it ends.
    last = np.searchsorted(nodes[1:], t + 1e-9, side="right")
    start = np.searchsorted(nodes[1:], t - held + 1e-9, side="right")
    total = np.concatenate([np.zeros((1, *percussions.shape[1:])), np.cumsum(percussions, axis=0)])
    # Where it was touched last, one more than its node; 0 where it was not yet.
    touched = np.maximum.accumulate(np.where(weight > 0, np.arange(1, len(weight) + 1)[:, None], 0), axis=0)
    touched = np.concatenate([np.zeros((1, weight.shape[1]), int), touched])[last]
    where = points[np.maximum(touched - 1, 0), np.arange(points.shape[1])]
    span = until[last] - until[start]
    span = np.where(span > 0, span, 1.0)
    forces = np.where((touched > start[:, None])[..., None], total[last] - total[start], 0.0) / span[:, None, None]
    return tuple(names[k] for k in used), where, forces


def sums(nodes: np.ndarray, t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums (F, n) of percussions (N, n), each in the interval that ends at a time of the scene."""
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    last = np.searchsorted(nodes[1:], t + 1e-9, side="right")
    return total[last] - total[np.concatenate([[last[0]], last[:-1]])]


def solids_of_space(scene: Scene) -> list[Solid]:
    """All of a scene in space that is rigid: its solids, and its balls and points as such."""
    found = list(scene.solids)
    for part in scene.balls:
        for i in range(part.centre.shape[1]):
            radius = part.radius[0, i] or POINT * scene.size
            turn = np.tile(np.eye(3), (len(scene.t), 1, 1))
            found.append(Solid(part.name, meshes.sphere(radius), part.centre[:, i], turn, part.colour, part.ghost))
    return found
