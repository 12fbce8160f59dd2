"""The time-stepping schemes: frozen values with `init` and `step`."""

from .base import Scheme
from .moreau import Moreau, SymmetricMoreau, VariationalMoreau

__all__ = ["Moreau", "Scheme", "SymmetricMoreau", "VariationalMoreau"]
