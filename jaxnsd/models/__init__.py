"""The benchmark systems, one file each. Each has ``initial_state()``, the ``(q0, u0)`` of its source."""

from .bead_column import BeadColumn
from .bouncing_ball import BouncingBall
from .corner_block import CornerBlock
from .double_pendulum import DoublePendulum
from .rotating_ball import RotatingBall
from .sphere import Sphere
from .spring_pendulum import SpringPendulum
from .two_discs import TwoDiscs
from .woodpecker import Woodpecker

#: class name -> class
MODELS = {
    cls.__name__: cls
    for cls in (BouncingBall, SpringPendulum, Woodpecker, BeadColumn, RotatingBall, CornerBlock, DoublePendulum, TwoDiscs, Sphere)
}

__all__ = ["MODELS", *MODELS]
