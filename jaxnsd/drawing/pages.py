"""A page that turns, zooms and plays: one HTML file, which asks nothing of the network.

It is drawn by three.js (MIT licence, see `three.LICENSE`), of which the part that is used is shipped here: version 0.187.0 of the
package on npm, made small by esbuild 0.28.2, 146 kB as it is compressed. viser's ``as_html()`` would have been less code, but its file has
neither names on hover nor plots beside its time line, and takes 155 MB of packages; plotly, k3d and meshcat write larger files, or need
the network. A page is 200 kB plus what moves, also compressed.

    export {...the names that page.html takes from THREE...} from "three";
    export {OrbitControls} from "three/examples/jsm/controls/OrbitControls.js";
    esbuild entry.js --bundle --minify --format=iife --global-name=THREE --target=es2020 | gzip -n -9 > three.min.js.gz
"""

import base64
import gzip
import html
import json
import os
import re
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..energy import of_states
from ..programs.files import path_of, saying
from ..simulation.nodes import node_velocities
from . import films, meshes, raster, scene

if TYPE_CHECKING:
    from ..mechanics.system import System
    from ..simulation.solution import Solution

HERE = Path(__file__).parent
#: Most times that a page holds; between them it goes straight on.
MOST = 1500
#: Curves of percussions that are told apart: of more contacts the largest.
CURVES = 6


@dataclass(frozen=True, repr=False)
class Page:
    """A page that was made. In a notebook it shows itself, without the network.

    html: the file's text; frames: number of times that it holds; path: where it was written, or None
    """

    html: str
    frames: int
    path: Path | None = None

    def __repr__(self) -> str:
        """One line."""
        where = f"{str(self.path)!r}, " if self.path else ""
        return f"Page({where}{self.frames} frames, {len(self.html.encode()) / 1e3:.3g} kB)"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width: 100%; height: 560px; border: 1px solid #ddd"></iframe>'


def page(
    system: "System | list[System]",
    sol: "Solution",
    path: str | os.PathLike[str] | None = None,
    *,
    speed: float = 1.0,
    span: tuple[float, float] | None = None,
    members: Any = None,
    follow: str | None = None,
    view: tuple[float, float] | None = None,
    arrows: bool = True,
    geometry: str | os.PathLike[str] | bool | None = None,
    title: str = "",
) -> Page:
    """One HTML file of a motion, without the network: it turns, zooms and plays, names what is under the pointer, and has a slider of the
    time beside plots of energy and percussions. Everything is drawn as by `film`.

    system, sol, span, members, view, arrows, geometry, title: as for `film`
    path:     file to write, .html; None: none. What is returned shows itself in a notebook
    speed:    with which it starts, seconds of the motion in a second: 1 real time
    follow:   name of what the camera moves with at the start; it is chosen on the page, too

    The space bar stops and goes on, the arrow keys go from time to time, ``fall.html#t=0.5`` opens at 0.5 s. Returns a `Page`. Raises as
    `film` does.
    """
    path = checked_path(path)
    films.positive("page", speed=speed)
    films.look("page", view, title, arrows)
    parts = scene.checked("page", system, sol, members, span)
    _, first_system, first = parts[0]
    t = np.asarray(first.t, float)
    low, high = (t[0], t[-1]) if span is None else span
    # About 60 times in a second of what is seen, and a whole number of nodes between them, so that their percussions can be compared.
    nodes = max(1, int(np.sum((t >= low - 1e-9) & (t <= high + 1e-9))) - 1)
    stride = max(1, round(nodes * speed / (60 * (high - low))), -(-nodes // MOST))
    stride = next((n for n in range(stride, 2 * stride) if nodes % n == 0), stride)
    shown = scene.of("page", parts, stride * (t[-1] - t[0]) / (len(t) - 1), span, scene.HELD * speed, geometry, arrows, end=True)
    data = Numbers()
    text = json.dumps(_scene(shown, data, follow, view, speed, title) | {"plots": _plots(shown, data, first_system, first)})
    made = (HERE / "page.html").read_text(encoding="utf-8")
    library = base64.b64encode((HERE / "three.min.js.gz").read_bytes()).decode()
    parts = {"title": html.escape(title or shown.name), "library": library, "numbers": data.text(), "scene": text.replace("<", "\\u003c")}
    made = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], made)
    if path is not None:
        path.write_text(made, encoding="utf-8")
    return Page(made, len(shown.t), path)


def check(
    system: "System",
    q: Any,
    *,
    film: str | os.PathLike[str] | None = None,
    page: str | os.PathLike[str] | None = None,
    speed: float = 1.0,
    follow: str | None = None,
) -> None:
    """Raise, before a run, what `film` and `page` would raise for these paths and names, with the system at coordinates q (n_q,)."""
    films._target(film)
    checked_path(page)
    films._numbers(speed, 25.0, (800, 600))
    scene.drawable("film", system)
    still = types.SimpleNamespace(t=np.array([0.0, 1.0]), q=np.stack([q, q]), P_N=np.zeros((1, 0)))
    shown = scene.of("film", [("", system, still)], 1.0, arrows=False)
    if follow is not None:
        shown.track(follow)


def checked_path(path: str | os.PathLike[str] | None) -> Path | None:
    """The path of a page; ValueError for one that cannot be."""
    if path is None:
        return None
    with saying("page"):
        path = path_of(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"page: the file must end in .html, got {str(path)!r}")
    films.target("page", path)
    return path


class Numbers:
    """Arrays one after the other, in single precision: ``add`` returns ``[start, length]`` of one."""

    def __init__(self):
        self.parts, self.length = [], 0

    def add(self, array):
        """Add an array."""
        flat = np.asarray(array, "<f4").ravel()
        self.parts.append(flat)
        self.length += len(flat)
        return [self.length - len(flat), len(flat)]

    def text(self):
        """All of them, compressed."""
        whole = np.concatenate(self.parts).tobytes()
        return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode()


def _scene(shown, data, follow, view, speed, title):
    """What page.html reads, with places in the numbers in place of arrays."""
    flat, frames = shown.dimension == 2, len(shown.t)
    solids = _discs(shown) if flat else scene.solids_of_space(shown)
    points = scene.seen(shown)
    middle, thick = shown.middle, scene.LINE * shown.size * (1.2 if flat else 1.0)
    axes = np.eye(3) * [[1], [1], [-1]] if flat else raster.axes_of(*films._angles(shown, view), shown.up)
    tracks = {}
    for part in (*solids, *shown.lines):
        if part.colour != scene.FIXED and part.name not in tracks and not part.ghost:
            tracks[part.name] = data.add(_spatial(shown.track(part.name)))
    if follow is not None:
        shown.track(follow)
    out = {
        "title": title or shown.name,
        "dimension": shown.dimension,
        "t": data.add(shown.t),
        "digits": 2 + max(0, int(np.ceil(-np.log10(min(speed, 1.0))))),
        "speed": speed,
        "middle": _spatial(middle).tolist(),
        "size": shown.size,
        "up": [0, 1, 0] if flat else np.eye(3)[shown.up].tolist(),
        "eye": (-axes[2]).tolist(),
        "thick": thick,
        "square": films._round_length(shown.size / 3),
        "red": scene.ARROW,
        "palette": scene.COLOURS,
        "longest": scene.LONGEST * shown.size,
        "follow": follow,
        "tracks": tracks,
        "grounds": [{"name": g.name, "point": _spatial(g.point).tolist(), "normal": _spatial(g.normal).tolist()} for g in shown.grounds],
        "contacts": [] if shown.forces is None else list(shown.contacts),
    }
    if shown.forces is not None:
        out |= {"points": data.add(_spatial(shown.points)), "forces": data.add(_spatial(shown.forces))}
    if flat:
        out["half"] = (0.6 * np.ptp(points, axis=0) + 0.1 * shown.size).tolist()
    else:
        if follow is not None:
            track = shown.track(follow)
            points, middle = films.around(shown, track, points), track[0]
        camera = raster.aimed(points, axes, 700, 600)
        out |= {
            "middle": (camera.eye + axes[2] * ((middle - camera.eye) @ axes[2])).tolist(),
            "distance": float((middle - camera.eye) @ axes[2]),
        }
    out["solids"] = [
        {
            "name": part.name,
            "colour": part.colour,
            "ghost": bool(part.ghost),
            "corners": data.add(part.mesh.corners),
            "normals": data.add(part.mesh.normals),
            "light": data.add(part.mesh.light),
            "position": data.add(part.position),
            "quaternion": data.add(quaternions(part.rotation)),
        }
        for part in solids
        if len(part.mesh.light)
    ]
    out["lines"] = [
        {
            "name": part.name,
            "colour": part.colour,
            "ghost": bool(part.ghost),
            "filled": bool(part.filled),
            "shape": [frames, *part.points.shape[1:3]],
            "points": data.add(_spatial(part.points)),
        }
        for part in shown.lines
    ]
    return out


def _spatial(points):
    """Points (..., 3), of points in the plane with a zero."""
    points = np.asarray(points, float)
    return points if points.shape[-1] == 3 else np.concatenate([points, np.zeros((*points.shape[:-1], 1))], axis=-1)


def quaternions(R: np.ndarray) -> np.ndarray:
    """Unit quaternions (F, 4), as (x, y, z, w), of rotation matrices (F, 3, 3); neighbours have the same sign."""
    from ..bodies.rotations import quaternion

    p = np.stack([np.roll(quaternion(one), -1) for one in R])
    turned = np.cumprod(np.concatenate([[1.0], np.where(np.sum(p[1:] * p[:-1], axis=1) < 0, -1.0, 1.0)]))
    return p * turned[:, None]


def _discs(shown):
    """The discs of a scene in the plane as flat solids; where they turn, two of their quarters are lighter."""
    found = []
    for part in shown.balls:
        for i in range(part.centre.shape[1]):
            angle = 2 * np.pi * np.arange(49) / 48
            circle = (part.radius[0, i] or scene.POINT * shown.size) * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
            mesh = meshes.flat(np.stack([0 * circle[1:], circle[:-1], circle[1:]], axis=1))
            light = (np.arange(48) // 12) % 2 == 0 if part.angle is not None else np.full(48, bool(part.radius[0, i]))
            turn = np.zeros(len(shown.t)) if part.angle is None else part.angle[:, i]
            R = np.tile(np.eye(3), (len(turn), 1, 1))
            R[:, 0, 0], R[:, 0, 1], R[:, 1, 0], R[:, 1, 1] = np.cos(turn), -np.sin(turn), np.sin(turn), np.cos(turn)
            where = _spatial(part.centre[:, i])
            found.append(scene.Solid(part.name, mesh._replace(light=light), where, R, part.colour, part.ghost))
    return found


def _plots(shown, data, system, sol):
    """Energies at the times of the scene, and percussions in its intervals, of pairs of shapes together."""
    nodes = np.asarray(sol.t, float)
    k = np.clip(np.searchsorted(nodes, shown.t - 1e-9), 0, len(nodes) - 1)
    t, q = jax.numpy.asarray(sol.t)[k], jax.numpy.asarray(sol.q)[k]
    u = jax.numpy.asarray(node_velocities(system, sol.scheme, sol))[k]
    kinetic, potential = (np.asarray(x, float) for x in of_states(system, t, q, u))
    # What is constant of the potential energy says nothing.
    curves = {"kinetic": kinetic, "potential": potential - potential.min(), "total": kinetic + potential - potential.min()}
    black = {"total": (0.0, 0.0, 0.0)}
    out = [
        {
            "id": "energy",
            "title": "energy in J",
            "curves": [{"name": name, "values": data.add(values), "colour": black.get(name)} for name, values in curves.items()],
        }
    ]
    P_N = np.asarray(sol.P_N, float)
    if P_N.shape[1]:
        names = scene.names_of_contacts(system, P_N.shape[1])
        together = {name: np.zeros(len(P_N)) for name in names}
        for i, name in enumerate(names):
            together[name] = together[name] + P_N[:, i]
        largest = sorted(together, key=lambda name: -together[name].sum())[:CURVES]
        closing = [name for name in together if name in largest and together[name].any()]
        sums = (
            scene.sums(nodes, shown.t, np.stack([together[name] for name in closing], axis=1)) if closing else np.zeros((len(shown.t), 0))
        )
        curves = [{"name": name, "values": data.add(sums[:, i]), "colour": None} for i, name in enumerate(closing)]
        if curves:
            out.append(
                {
                    "id": "percussions",
                    "title": f"percussions P_N in N s in {(shown.t[-1] - shown.t[0]) / max(len(shown.t) - 1, 1):.2g} s",
                    "curves": curves,
                }
            )
    return out
