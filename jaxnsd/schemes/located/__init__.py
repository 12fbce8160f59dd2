"""Impacts at their time: a scheme that locates impacts inside of its fixed step (see `jaxnsd.schemes.located.scheme`)."""

from .scheme import LocatedImpacts, LocatedState

__all__ = ["LocatedImpacts", "LocatedState"]
