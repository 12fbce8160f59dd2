"""What the kernels of pairs of shapes take and give."""

from typing import NamedTuple

from .lists import pick


class Touch(NamedTuple):
    """Where pairs of shapes touch, or would: in the frame of the world."""

    gap: object  # (n,) in m
    first: object  # (n, 3) point on the first shape
    second: object  # (n, 3) point on the second shape
    normal: object  # (n, 3) from the first to the second


class Frames(NamedTuple):
    """Frames and sizes of shapes."""

    R: object  # (n, 3, 3)
    x: object  # (n, 3)
    size: object  # (n, 3)

    def of(self, numbers):
        """Those of the shapes with these numbers."""
        return Frames(*(pick(part, numbers) for part in self))
