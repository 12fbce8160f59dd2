"""The benchmark systems, one file each. Each has ``initial_state()``, the ``(q0, u0)`` of its source."""

from .bead_column import BeadColumn
from .bouncing_ball import BouncingBall
from .corner_block import CornerBlock
from .double_pendulum import DoublePendulum
from .point_mass_on_slope import PointMassOnSlope
from .rotating_ball import RotatingBall
from .slider_crank import SliderCrank, SliderCrankMinimal
from .sphere import Sphere
from .spring_pendulum import SpringPendulum
from .two_discs import TwoDiscs
from .woodpecker import Woodpecker

#: class name -> class
MODELS = {
    cls.__name__: cls
    for cls in (
        BouncingBall,
        SpringPendulum,
        Woodpecker,
        BeadColumn,
        RotatingBall,
        SliderCrank,
        SliderCrankMinimal,
        PointMassOnSlope,
        CornerBlock,
        DoublePendulum,
        TwoDiscs,
        Sphere,
    )
}

__all__ = ["MODELS", *MODELS]
