"""The time-stepping schemes: frozen values with `init` and `step`."""

from .alpha import HHT, GeneralizedAlpha, KrenkHogsberg, Newmark
from .base import Scheme
from .lobatto import Lobatto
from .located import LocatedImpacts
from .moreau import Moreau, SymmetricMoreau, VariationalMoreau
from .theta import MoreauJean, MoreauJeanVariant

__all__ = [
    "HHT",
    "GeneralizedAlpha",
    "KrenkHogsberg",
    "Lobatto",
    "LocatedImpacts",
    "Moreau",
    "MoreauJean",
    "MoreauJeanVariant",
    "Newmark",
    "Scheme",
    "SymmetricMoreau",
    "VariationalMoreau",
]
