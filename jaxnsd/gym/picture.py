"""Pictures of an environment, by what draws films."""

from types import SimpleNamespace

import numpy as np

from ..drawing import films, scene
from ..programs.given import shown

#: Options, as `jaxnsd.drawing.film` has them.
OPTIONS = {"follow": None, "view": None, "size": (480, 360), "geometry": None, "title": ""}


def checked(caller, system, options):
    """All options; raises TypeError for a system that cannot be drawn, and for options that there are not."""
    if options is not None and (not isinstance(options, dict) or set(options) - set(OPTIONS)):
        raise TypeError(f"{caller}: picture must be a dict of options, of {', '.join(OPTIONS)}, got {shown(options)}")
    scene.drawable(caller, system)
    options = OPTIONS | (options or {})
    films.pixels(caller, options["size"])
    films.look(caller, options["view"], options["title"], False)
    return options


def of(task, start, state, *, follow, view, size, geometry, title):
    """Picture (height, width, 3) of a state; what is seen is as large as all of where the episode started and is."""
    system = task._of(state.system)
    # Two frames, of which the second is drawn. What has not moved yet has two times all the same.
    t = max(float(task.time(state)), 1e-9)
    motion = SimpleNamespace(t=np.array([0.0, t]), q=np.stack([np.asarray(start.q), np.asarray(state.q)]), P_N=None)
    parts = scene.of("gym", [("", system, motion)], t, geometry=geometry, arrows=False)
    return np.ascontiguousarray(films.painter(parts, follow, view, size, title)(1)[..., :3])
