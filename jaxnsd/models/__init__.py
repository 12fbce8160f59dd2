"""The benchmark systems, one file each. Each has ``initial_state()``, the ``(q0, u0)`` of its source."""

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bar import ElasticBar as ElasticBar
    from .bar import elastic_bar as elastic_bar
    from .bead_column import BeadColumn as BeadColumn
    from .bouncing_ball import BouncingBall as BouncingBall
    from .corner_block import CornerBlock as CornerBlock
    from .cube import Cube as Cube
    from .double_pendulum import DoublePendulum as DoublePendulum
    from .point_mass_on_slope import PointMassOnSlope as PointMassOnSlope
    from .rotating_ball import RotatingBall as RotatingBall
    from .slider_crank import SliderCrank as SliderCrank
    from .slider_crank import SliderCrankMinimal as SliderCrankMinimal
    from .sphere import Sphere as Sphere
    from .spring_pendulum import SpringPendulum as SpringPendulum
    from .top import TippeTop as TippeTop
    from .top import tippe_top as tippe_top
    from .tossed_cube import TossedCube as TossedCube
    from .two_discs import TwoDiscs as TwoDiscs
    from .woodpecker import Woodpecker as Woodpecker

#: Where they are. A file is imported when it is asked for: all of them, and what they stand on, take a seventh of the time of JAX.
_FILES = {
    "BouncingBall": "bouncing_ball",
    "SpringPendulum": "spring_pendulum",
    "Woodpecker": "woodpecker",
    "elastic_bar": "bar",
    "BeadColumn": "bead_column",
    "RotatingBall": "rotating_ball",
    "SliderCrank": "slider_crank",
    "SliderCrankMinimal": "slider_crank",
    "PointMassOnSlope": "point_mass_on_slope",
    "CornerBlock": "corner_block",
    "DoublePendulum": "double_pendulum",
    "TwoDiscs": "two_discs",
    "Sphere": "sphere",
    "Cube": "cube",
    "tippe_top": "top",
    "TossedCube": "tossed_cube",
}

#: What two of the functions there return.
_CLASSES = {"ElasticBar": "bar", "TippeTop": "top"}


class _Models(Mapping[str, Callable[..., Any]]):
    """The models by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in _FILES:
            close = difflib.get_close_matches(str(name), _FILES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(_FILES)}"
            raise KeyError(f"there is no model {name!r}; {hint}")
        return _imported(name, _FILES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)


def _imported(name: str, file: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{file}"), name)


#: name -> class, or function that makes a model
MODELS = _Models()

#: Small scenes in MJCF, for `jaxnsd.bodies.from_mjcf` and the command line: name -> file
SCENES = {path.stem: path for path in sorted((Path(__file__).parent / "scenes").glob("*.xml"))}

__all__ = ["MODELS", "SCENES", *_FILES, *_CLASSES]


def __getattr__(name: str) -> Any:
    if name not in (files := _FILES | _CLASSES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _imported(name, files[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
