"""The benchmark systems, one file each. Each has ``initial_state()``, the ``(q0, u0)`` of its source."""

from pathlib import Path

from .bead_column import BeadColumn
from .bouncing_ball import BouncingBall
from .corner_block import CornerBlock
from .cube import Cube
from .double_pendulum import DoublePendulum
from .elastic_bar import ElasticBar, elastic_bar
from .point_mass_on_slope import PointMassOnSlope
from .rotating_ball import RotatingBall
from .slider_crank import SliderCrank, SliderCrankMinimal
from .sphere import Sphere
from .spring_pendulum import SpringPendulum
from .tippe_top import TippeTop, tippe_top
from .tossed_cube import TossedCube
from .two_discs import TwoDiscs
from .woodpecker import Woodpecker

#: name -> class, or function that makes a model
MODELS = {
    model.__name__: model
    for model in (
        BouncingBall,
        SpringPendulum,
        Woodpecker,
        elastic_bar,
        BeadColumn,
        RotatingBall,
        SliderCrank,
        SliderCrankMinimal,
        PointMassOnSlope,
        CornerBlock,
        DoublePendulum,
        TwoDiscs,
        Sphere,
        Cube,
        tippe_top,
        TossedCube,
    )
}

#: Small scenes in MJCF, for `jaxnsd.bodies.from_mjcf` and the command line: name -> file
SCENES = {path.stem: path for path in sorted((Path(__file__).parent / "scenes").glob("*.xml"))}

__all__ = ["MODELS", "SCENES", "ElasticBar", "TippeTop", *MODELS]
