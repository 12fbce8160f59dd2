"""Programs that do the same, told by what their jaxprs say: a step asks for its contacts in a hundred places, each traced for itself."""

from .control import known_numbers
from .jaxprs import said


def key(program):
    """What a `control.Program` does, as a value that can be compared; functions that are named in it count by their place in memory."""
    given = tuple(None if x is None else (x.shape, known_numbers(x)) for x in program.given)
    kinds = tuple((kind.shape, kind.dtype) for part in (program.kinds, program.results) for kind in part)
    return said(program.closed), given, kinds, len(program.kinds), program.sizes
