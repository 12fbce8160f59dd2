"""Models that MuJoCo compiles, and what they say, in all of its versions."""

import contextlib
from pathlib import Path

import numpy as np

from ..programs.given import shown
from . import parts

#: What MuJoCo calls its kinds of geoms.
GEOMS = ("plane", "hfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")


def read(caller, model, from_string, from_file):
    """What MuJoCo makes of a path or of a string of XML."""
    if not isinstance(model, str | Path):
        raise TypeError(f"{caller}: the model must be a path, or a string of XML, got {shown(model)}")
    text = str(model)
    if text.lstrip().startswith("<"):
        return from_string(text)
    if not Path(model).is_file():
        raise ValueError(f"{caller}: there is no file {text!r}; give a path, or a string of XML that starts with <")
    return from_file(text)


#: What to do about what MuJoCo refuses, by words of its own, and how a URDF is mended.
CURES = {
    "mjMINVAL": "give this link mass and inertia, or a fixed joint",
    "balanceinertia": 'correct the moments, or write <compiler balanceinertia="true"/> into the file',
    "positive eigenvalues": "correct the moments",
}
REPAIR = ", or have it mended with repair=True"


@contextlib.contextmanager
def refusals(caller):
    """Within, an error of MuJoCo's becomes one that says so; our own stay as they are."""
    try:
        yield
    except ValueError as error:
        if caller in str(error):
            raise
        said = " ".join(str(error).partition("The static bodies of the spec")[0].split())
        cure = next((f"; {cure}" for words, cure in CURES.items() if words in said), "")
        cure += REPAIR if cure and caller == "from_urdf" else ""
        raise ValueError(f"{caller}: MuJoCo refuses the model: {said}{cure}") from None


def in_package(file, folder):
    """Where ``package://name/rest`` is: there, or the rest alone, in the folder of the model or one above it; else as it was."""
    if not file.startswith("package://"):
        return file
    place = Path(file.removeprefix("package://"))
    rest = Path(*place.parts[1:])
    folder = Path(folder).resolve()
    places = (above / part for above in (folder, *folder.parents) for part in (place, rest))
    return next((str(found) for found in places if found.is_file()), file)


def mujoco_for(caller):
    """The package ``mujoco``; ImportError says who needs it."""
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(f"{caller} needs the package mujoco: pip install mujoco") from error
    return mujoco


def shape(kind, size, **common):
    """A shape of this kind, of a size in MuJoCo's half lengths."""
    a, b, c = map(float, size)
    return {
        "plane": lambda: parts.Plane(**common),
        "sphere": lambda: parts.Sphere(a, **common),
        "capsule": lambda: parts.Capsule(a, 2 * b, **common),
        "cylinder": lambda: parts.Cylinder(a, 2 * b, **common),
        "ellipsoid": lambda: parts.Ellipsoid((a, b, c), **common),
        "box": lambda: parts.Box((2 * a, 2 * b, 2 * c), **common),
    }[kind]()


def in_frame(same, position, orientation, frames):
    """A frame in that of a body, as MuJoCo moves it along: what is within its tolerance of the body's own, or of its inertia's, is there.

    frames:  position and orientation of the body's own frame, and of that of its inertia
    """
    at, turned, at_inertia, along_inertia = frames
    return {
        0: (position, orientation),
        1: (at, turned),
        2: (at_inertia, along_inertia),
        3: (position, turned),
        4: (position, along_inertia),
    }[int(same)]


def there(m, attribute):
    """What a model says of each of its parts; zeros where this version of MuJoCo knows no such thing."""
    return getattr(m, attribute, np.zeros(max(m.nv, m.njnt, m.ngeom, m.npair, m.ntendon, m.nu, m.nsensor)))
