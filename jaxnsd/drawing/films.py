"""Films of motions: shaded bodies in space, lines and discs in the plane."""

import base64
import importlib.util
import io
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..programs import progress
from ..programs.files import path_of, saying, writable
from ..programs.given import flag, numbers, shown
from . import meshes, raster, scene

if TYPE_CHECKING:
    from ..mechanics.system import System
    from ..simulation.solution import Solution

#: Azimuth and elevation of the camera in degrees, in space.
VIEW = (-62.0, 18.0)
KINDS = (".mp4", ".gif")


@dataclass(frozen=True, repr=False)
class Film:
    """A film that was made: its bytes, and what is in it. In a notebook it shows itself, without the network.

    data: the file's bytes; kind: "mp4" or "gif"; frames: how many; fps: per second; size: (width, height) in pixels
    speed: seconds of the motion in a second of the film; path: where it was written, or None
    """

    data: bytes
    kind: str
    frames: int
    fps: float
    size: tuple[int, int]
    speed: float
    path: Path | None = None

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.frames / self.fps

    def __repr__(self) -> str:
        """One line."""
        where = f"{str(self.path)!r}, " if self.path else ""
        width, height = self.size
        return f"Film({where}{self.kind}, {self.frames} frames, {self.seconds:.3g} s, {width} x {height}, {len(self.data) / 1e3:.3g} kB)"

    def _repr_html_(self) -> str:
        text, style = base64.b64encode(self.data).decode(), f'style="max-width: 100%; width: {self.size[0]}px"'
        if self.kind == "gif":
            return f'<img src="data:image/gif;base64,{text}" {style}>'
        return f'<video controls loop autoplay muted playsinline {style} src="data:video/mp4;base64,{text}"></video>'


def film(
    system: "System | list[System]",
    sol: "Solution",
    path: str | os.PathLike[str] | None = None,
    *,
    speed: float = 1.0,
    fps: float = 25.0,
    span: tuple[float, float] | None = None,
    members: Any = None,
    follow: str | None = None,
    view: tuple[float, float] | None = None,
    arrows: bool = True,
    geometry: str | os.PathLike[str] | bool | None = None,
    size: tuple[int, int] = (800, 600),
    title: str = "",
) -> Film:
    """Film of a motion: of a system of `jaxnsd.bodies`, or of one with a method ``draw(t, q)`` (see `jaxnsd.drawing`).

    system:   a `System`; a list of them, one for each of the members, where their parameters are seen
    sol:      a `Solution`, or a batch of them
    path:     file to write, .mp4 (extra ``film``: imageio-ffmpeg) or .gif; None: none. What is returned shows itself in a notebook
    speed:    seconds of the motion in a second of the film: 1 real time, 0.1 ten times slower
    fps:      frames a second
    span:     (start, end) in s of what is drawn; None: all of it
    members:  of a batch: a number, or several, of which the first is drawn as it is, the others as ghosts; tuples where it has several axes
    follow:   name of a body, point or line with which the camera moves; None: it stands where all of the motion is seen
    view:     azimuth and elevation of the camera in degrees, in space; (-90, 0) looks along y
    arrows:   whether forces of contacts are drawn: mean forces over the last 0.12 s of the film, so that impacts are seen. The length of an
              arrow grows with the root of the force
    geometry: model file, MJCF or URDF, whose visual shapes and meshes are drawn (needs mujoco); None: the file that the bodies were read
              from, where there is one; False: the shapes that touch
    size:     (width, height) in pixels, even numbers
    title:    a line above

    Returns a `Film`. Raises, before anything is computed, ValueError for another ending, a folder that there is not, numbers that make no
    sense, a batch without ``members``, a member that there is not, coordinates that are not finite; TypeError for a system that cannot be
    drawn; ImportError without imageio-ffmpeg where an .mp4 is asked for; KeyError for a name to follow that there is not.
    """
    path, kind = _target(path)
    _numbers(speed, fps, size)
    look("film", view, title, arrows)
    parts = scene.checked("film", system, sol, members, span)
    shown = scene.of("film", parts, speed / fps, span, scene.HELD * speed, geometry, arrows)
    draw = painter(shown, follow, view, size, title, speed)
    count = len(shown.t)
    frames = progress.bar(map(draw, range(count)), total=count, desc="film", unit="frame") if count > 200 else map(draw, range(count))
    data = (_mp4 if kind == "mp4" else _gif)(frames, size, fps)
    if path is not None:
        path.write_bytes(data)
    return Film(data, kind, count, fps, tuple(size), speed, path)


def painter(shown, follow, view, size, title, speed=1.0):
    """``draw(k)``, the picture (height, width, 3) of the frame k of a `scene.Scene`."""
    track = None if follow is None else shown.track(follow)
    return (_in_space if shown.dimension == 3 else _in_plane)(shown, track, view, size, title, speed)


def _target(path):
    """``(path, kind)``."""
    has_ffmpeg = importlib.util.find_spec("imageio_ffmpeg") is not None
    if path is None:
        return None, "mp4" if has_ffmpeg else "gif"
    with saying("film"):
        path = path_of(path)
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"film: the file must end in .mp4 or .gif, got {str(path)!r}")
    target("film", path)
    if path.suffix.lower() == ".mp4" and not has_ffmpeg:
        raise ImportError("film: an .mp4 needs imageio-ffmpeg: pip install imageio-ffmpeg, or write a .gif, which needs nothing more")
    return path, path.suffix.lower()[1:]


def target(caller, path):
    """Raise ValueError for a file that cannot be written."""
    try:
        writable(path)
    except OSError as error:
        raise ValueError(f"{caller}: {error}") from None


def look(caller, view, title, arrows):
    """Raise TypeError or ValueError for what is no view, no title, or neither with nor without arrows."""
    if (view is not None and np.shape(angles := numbers(view)) != (2,)) or (view is not None and angles is None):
        raise ValueError(f"{caller}: view must be (azimuth, elevation) in degrees, got {shown(view)}")
    if not isinstance(title, str):
        raise TypeError(f"{caller}: title must be text, got {shown(title)}")
    flag(f"{caller}: arrows", arrows)


def positive(caller, **values):
    """Raise ValueError for what is no positive number."""
    for name, value in values.items():
        if np.shape(array := numbers(value)) or array is None or not 0 < value < np.inf:
            raise ValueError(f"{caller}: {name} must be a positive number, got {shown(value)}")


def _numbers(speed, fps, size):
    positive("film", speed=speed, fps=fps)
    pixels("film", size)


def pixels(caller, size):
    """Raise ValueError for what is no size of a picture."""
    pixels = numbers(size)
    if pixels is None or pixels.shape != (2,) or np.any(pixels % 2) or np.any(pixels < 16) or np.any(pixels > 8192):
        raise ValueError(f"{caller}: size must be (width, height) in pixels, even numbers from 16 to 8192, got {shown(size)}")


# --------------------------------------------------------------------------------------------------------------- the files
def _mp4(frames, size, fps):
    """Bytes of an mp4 (H.264, which browsers and slides play)."""
    import subprocess
    import tempfile

    import imageio_ffmpeg

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "film.mp4")
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", str(fps), "-i", "-"]
        target = ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart", file]
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *target]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
            try:
                for frame in frames:
                    writer.stdin.write(np.ascontiguousarray(frame).data)
            except BrokenPipeError:
                pass  # it says why
            said = writer.communicate()[1]
        if writer.returncode:
            raise RuntimeError(f"film: ffmpeg could not write the film: {said.decode(errors='replace').strip()}")
        return Path(file).read_bytes()


def _gif(frames, size, fps):
    """Bytes of a GIF, whose frames last whole hundredths of a second: their ends are those of the film, rounded."""
    from PIL import Image

    del size
    pictures = [Image.fromarray(frame).quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for frame in frames]
    ends = np.round(100 * np.arange(len(pictures) + 1) / fps).astype(int)
    file = io.BytesIO()
    pictures[0].save(
        file, "GIF", save_all=True, append_images=pictures[1:], duration=[10 * int(d) for d in np.diff(ends)], loop=0, optimize=False
    )
    return file.getvalue()


# -------------------------------------------------------------------------------------------------------------- in space
def _in_space(shown, track, view, size, title, speed):
    """Function of the number of a frame that returns its picture (height, width, 3)."""
    from PIL import Image, ImageDraw

    width, height = size
    axes = raster.axes_of(*_angles(shown, view), shown.up)
    points = scene.seen(shown)
    if track is not None:
        points = around(shown, track, points)
    camera = raster.aimed(points, axes, width, height)
    radius = 0.5 * np.linalg.norm(points.max(axis=0) - points.min(axis=0))
    square = _round_length(radius / 3)
    solids = scene.solids_of_space(shown)
    font, small = _fonts(height)
    caption = f"squares of {square:g} m" if shown.grounds else ""
    backdrop = raster.Backdrop([(g.point, g.normal) for g in shown.grounds], square, 1.6 * radius)
    thick = scene.LINE * radius

    def draw(k):
        middle = points.mean(axis=0) if track is None else track[k]
        at = camera if track is None else camera._replace(eye=camera.eye + track[k] - track[0])
        layers = {}
        for part in solids:
            layers.setdefault(part.ghost, []).append(_placed(part, k))
        for part in shown.lines:
            layers.setdefault(part.ghost, []).append((_of_lines(part, k, thick), part.colour))
        bodies = layers.pop(0, [])
        arrows = [(meshes.arrow(v, 1.6 * thick).moved(np.eye(3), x), scene.ARROW) for x, v in shown.arrows(k)]
        picture = raster.render(
            at,
            raster.painted(bodies),
            backdrop,
            [raster.painted(ghost) for ghost in layers.values()],
            raster.painted(arrows),
            middle,
            shown.up,
        )
        image = Image.fromarray(picture)
        pen = ImageDraw.Draw(image)
        pen.text((0.02 * width, 0.02 * height), _time(shown.t[k], speed), (40, 40, 40), font)
        pen.text((0.02 * width, 0.975 * height), caption, (110, 110, 110), small, anchor="ls")
        if title:
            pen.text((0.98 * width, 0.02 * height), title, (40, 40, 40), font, anchor="ra")
        return np.asarray(image)

    return draw


def _angles(shown, view):
    """Azimuth and elevation in rad; of a motion in a plane across it, with the third axis to the right."""
    if view is None and shown.plane is not None and shown.plane != shown.up:
        right = 3 - shown.plane - shown.up
        # vertical x away = right
        sign = np.cross(np.eye(3)[shown.up], np.eye(3)[shown.plane])[right]
        along = {(shown.up + 1) % 3: 0.0, (shown.up + 2) % 3: np.pi / 2}[shown.plane]
        return along + (0.0 if sign > 0 else np.pi), np.radians(10.0)
    return np.radians(VIEW if view is None else view)


def around(shown, track, points):
    """Points (8, 3) that the picture is to show at the start: what is followed stays where it is, with what is around it."""
    reach = _reach(shown, track, points.reshape(-1, 3))
    return track[0] + reach * np.array(np.meshgrid(*[(-1, 1)] * 3)).reshape(3, 8).T


def _reach(shown, track, points):
    """How far from what is followed the picture goes: the largest distance of what else moves at the same time."""
    frames, reach = len(shown.t), 0.0
    for part in scene.solids_of_space(shown):
        if part.name == "world" or not len(part.mesh.corners):
            continue
        corners = part.mesh.corners.reshape(-1, 3)
        own = np.linalg.norm(corners, axis=1).max()
        reach = max(reach, np.quantile(np.linalg.norm(part.position - track, axis=1), 0.5) + own)
    for part in shown.lines:
        if part.colour != scene.FIXED:
            reach = max(reach, np.quantile(np.abs(part.points.reshape(frames, -1, 3) - track[:, None]).max(axis=(1, 2)), 0.5))
    return reach if reach else np.ptp(points, axis=0).max()


def _round_length(x):
    """A length of one digit, 1, 2 or 5, below x."""
    power = 10.0 ** np.floor(np.log10(x))
    return float(power * max(digit for digit in (1.0, 2.0, 5.0) if digit * power <= x * (1 + 1e-9)))


def _placed(part, k):
    return part.mesh.moved(part.rotation[k], part.position[k]), part.colour


def _of_lines(part, k, thick):
    """Mesh of lines as rods, or of what they are the border of."""
    if part.filled:
        front = np.concatenate([meshes.fan(line[:-1]) for line in part.points[k]])
        return meshes.flat(np.concatenate([front, front[:, ::-1]]))
    return meshes.joined([meshes.rod(a, b, thick) for line in part.points[k] for a, b in itertools.pairwise(line)])


def _fonts(height):
    import matplotlib
    from PIL import ImageFont

    file = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    return ImageFont.truetype(file, max(9, round(0.03 * height))), ImageFont.truetype(file, max(8, round(0.024 * height)))


def _time(t, speed):
    return f"t = {t:.2f} s" if speed == 1 else f"t = {t:.{2 + max(0, int(np.ceil(-np.log10(speed))))}f} s, {speed:g} of real time"


# ------------------------------------------------------------------------------------------------------------ in the plane
def _in_plane(shown, track, view, size, title, speed):
    """As `_in_space`, with axes in m."""
    del view
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ..plotting import STYLE

    with matplotlib.rc_context(STYLE):
        width, height = size[0] / 100, size[1] / 100
        fig = Figure(figsize=(width, height), dpi=100)
        canvas = FigureCanvasAgg(fig)
        # Letters have the same size in small pictures: numbers and labels need the same room.
        left, bottom, right, top = min(0.72 / width, 0.3), min(0.54 / height, 0.3), min(0.24 / width, 0.1), min(0.48 / height, 0.2)
        ax = fig.add_axes((left, bottom, 1 - left - right, 1 - bottom - top))
        ax.set(xlabel="$x$ in m", ylabel="$y$ in m")
        ax.set_aspect("equal", adjustable="datalim")
        middle, half = _window(shown, track, ax)
        artists = _artists(ax, shown, half)
        label = ax.set_title("")
        if title:
            fig.text(0.97, 0.985, title, ha="right", va="top", fontsize="medium")
    names = [artist for artist, *_ in artists if artist.get_label()[0] != "_"]
    if 1 < len(names) <= 8:
        for columns in range(min(len(names), 4), 0, -1):
            legend = ax.legend(handles=names, frameon=False, fontsize="small", loc="upper right", ncols=columns)
            if legend.get_window_extent().width <= ax.get_window_extent().width:
                break

    def draw(k):
        with matplotlib.rc_context(STYLE):
            at = middle if track is None else track[k]
            ax.set_xlim(at[0] - half[0], at[0] + half[0])
            ax.set_ylim(at[1] - half[1], at[1] + half[1])
            for artist, update in artists:
                update(artist, k)
            label.set_text(_time(shown.t[k], speed))
            canvas.draw()
            return np.array(canvas.buffer_rgba())[..., :3]

    return draw


def _window(shown, track, ax):
    """``(middle (2,), half (2,))`` of what the axes show, in the ratio of the axes."""
    points = scene.seen(shown)
    near = [line.points.reshape(-1, 2) for line in shown.lines if line.colour == scene.FIXED and not line.filled]
    low, high = points.min(axis=0), points.max(axis=0)
    if track is not None:
        parts = [
            part.centre if isinstance(part, scene.Balls) else part.points
            for part in (*shown.balls, *shown.lines)
            if part.colour != scene.FIXED
        ]
        reach = max(np.abs(part.reshape(len(track), -1, 2) - track[:, None]).max() for part in parts)
        reach += max((part.radius.max() for part in shown.balls), default=0.0)
        low, high = track[0] - reach, track[0] + reach
    elif near:
        # Of what does not move as much as is close by.
        fixed, room = np.concatenate(near), 0.6 * max(high - low)
        low, high = np.minimum(low, np.maximum(fixed.min(axis=0), low - room)), np.maximum(high, np.minimum(fixed.max(axis=0), high + room))
    for ground in shown.grounds if track is None else ():
        # The nearest point of the surface is in the picture.
        middle = 0.5 * (low + high)
        foot = middle - ((middle - ground.point) @ ground.normal) * ground.normal - 0.05 * max(high - low) * ground.normal
        low, high = np.minimum(low, foot), np.maximum(high, foot)
    half = 0.55 * (high - low) + 1e-9
    box = ax.get_position()
    ratio = box.width * ax.figure.get_figwidth() / (box.height * ax.figure.get_figheight())
    height = max(half[1], half[0] / ratio)
    return 0.5 * (low + high), np.array([height * ratio, height])


def _artists(ax, shown, half):
    """``[(artist, update(artist, k))]`` of all that moves."""
    from matplotlib.patches import Circle, Polygon

    found, named = [], set()

    def add(artist, update, name=None, ghost=False):
        label = f"_{name}" if name in named or ghost or name is None else name
        named.add(name)
        artist.set_label(label)
        if ghost:
            artist.set_alpha(0.3)
        found.append((artist, update))

    reach = 4 * np.linalg.norm(half) + np.linalg.norm(scene.extent(shown, True) - shown.middle, axis=1).max()
    for ground in shown.grounds:
        n = ground.normal
        along = np.array([-n[1], n[0]])
        foot = shown.middle - ((shown.middle - ground.point) @ n) * n
        corners = [foot - reach * along, foot + reach * along, foot + reach * along - reach * n, foot - reach * along - reach * n]
        ax.add_patch(Polygon(corners, facecolor="0.92", edgecolor="none", zorder=0))
        ax.plot(*np.array(corners[:2]).T, color="0.35", linewidth=1.2, zorder=1)
    for part in shown.lines:
        fixed = part.colour == scene.FIXED
        for i in range(part.points.shape[1]):
            name = None if fixed or i else part.name
            if part.filled:
                patch = Polygon(part.points[0, i], facecolor=_pale(part.colour), edgecolor=part.colour, linewidth=1.3, zorder=2)
                ax.add_patch(patch)
                add(patch, lambda a, k, i=i, p=part: a.set_xy(p.points[k, i]), name, part.ghost)
            else:
                (line,) = ax.plot(*part.points[0, i].T, color=part.colour, linewidth=1.6, zorder=3, solid_capstyle="round")
                add(line, lambda a, k, i=i, p=part: a.set_data(*p.points[k, i].T), name, part.ghost)
    for part in shown.balls:
        for i in range(part.centre.shape[1]):
            name = None if part.colour == scene.FIXED or i else part.name
            if not part.radius[0, i]:
                (dot,) = ax.plot(*part.centre[0, i], "o", color=part.colour, markersize=6, zorder=4, linestyle="none")
                add(dot, lambda a, k, i=i, p=part: a.set_data(*p.centre[k, i][:, None]), name, part.ghost)
                continue
            disc = Circle(
                part.centre[0, i], part.radius[0, i], facecolor=_pale(part.colour), edgecolor=part.colour, linewidth=1.3, zorder=2
            )
            ax.add_patch(disc)
            add(disc, lambda a, k, i=i, p=part: a.set(center=p.centre[k, i], radius=p.radius[k, i]), name, part.ghost)
            if part.angle is not None:
                (spoke,) = ax.plot([], [], color=part.colour, linewidth=1.3, zorder=3)
                add(spoke, lambda a, k, i=i, p=part: a.set_data(*_spoke(p, k, i)), None, part.ghost)
    if shown.forces is not None and shown.forces.size:
        (shafts,) = ax.plot([], [], color=scene.ARROW, linewidth=2.0, zorder=6)
        heads = [ax.add_patch(Polygon(np.zeros((3, 2)), color=scene.ARROW, zorder=6)) for _ in range(shown.forces.shape[1])]
        tip = 0.03 * np.linalg.norm(half)

        def point(artist, k):
            arrows = shown.arrows(k)
            lines = [x for start, v in arrows for x in (start, start + v, np.full(2, np.nan))]
            artist.set_data(*(np.array(lines).T if lines else ([], [])))
            for i, head in enumerate(heads):
                head.set_visible(i < len(arrows))
                if i < len(arrows):
                    start, v = arrows[i]
                    n = v / np.linalg.norm(v)
                    side = np.array([-n[1], n[0]])
                    end = start + v + 0.5 * tip * n
                    head.set_xy([end, end - tip * n + 0.4 * tip * side, end - tip * n - 0.4 * tip * side])

        add(shafts, point)
    return found


def _spoke(part, k, i):
    end = part.centre[k, i] + part.radius[k, i] * np.array([np.cos(part.angle[k, i]), np.sin(part.angle[k, i])])
    return np.stack([part.centre[k, i], end]).T


def _pale(colour):
    return tuple(1 - 0.35 * (1 - np.asarray(colour)))
