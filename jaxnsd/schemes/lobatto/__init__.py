"""Lobatto IIIA-IIIB schemes: their equations, the solution of the stages, and the end of a step."""

from .scheme import Lobatto, LobattoState

__all__ = ["Lobatto", "LobattoState"]
