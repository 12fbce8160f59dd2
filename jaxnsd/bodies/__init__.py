"""Systems of rigid bodies: from parts, from MJCF and URDF files, or from models of MuJoCo."""

from .assemble import assemble
from .forces import Medium, Rows
from .mjcf import from_mjcf, from_mujoco, from_urdf
from .multibody import Multibody, Pose
from .parts import (
    Body,
    Box,
    Capsule,
    Connect,
    Couple,
    Cylinder,
    Ellipsoid,
    Free,
    Motor,
    Pair,
    Plane,
    Points,
    Prismatic,
    Revolute,
    Sensor,
    Site,
    Sphere,
    Spherical,
    Spring,
    Tendon,
    Weld,
    planar,
)
from .sensors import Velocity, readings
from .structure import Contact

__all__ = [
    "Body",
    "Box",
    "Capsule",
    "Connect",
    "Contact",
    "Couple",
    "Cylinder",
    "Ellipsoid",
    "Free",
    "Medium",
    "Motor",
    "Multibody",
    "Pair",
    "Plane",
    "Points",
    "Pose",
    "Prismatic",
    "Revolute",
    "Rows",
    "Sensor",
    "Site",
    "Sphere",
    "Spherical",
    "Spring",
    "Tendon",
    "Velocity",
    "Weld",
    "assemble",
    "from_mjcf",
    "from_mujoco",
    "from_urdf",
    "planar",
    "readings",
]
