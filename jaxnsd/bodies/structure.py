"""What of a system of bodies is no number: names, parents, kinds, which shapes can touch; and the index sets that follow from it.

All is hashable, so that it may be a static field of a pytree: two systems with one structure share their compiled programs.
"""

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import lists

#: Coordinates and velocities of a joint of each kind.
SIZES = {"free": (7, 6), "ball": (4, 3), "hinge": (1, 1), "slide": (1, 1)}


class JointOf(NamedTuple):
    """A joint: its name, kind, body (number), and whether its motion is prescribed."""

    name: str
    kind: str
    body: int
    prescribed: bool = False


class ShapeOf(NamedTuple):
    """A shape: its name, kind, body (number, 0 the world), and how many points it has.

    ``across``: the axis of its own (0, 1, 2) that lies across the plane of the motion, so that a box has four corners; None: there is none.
    """

    name: str
    kind: str
    body: int
    points: int = 0
    across: int | None = None


class SiteOf(NamedTuple):
    """A site: its name, body (number, 0 the world), and the kind of its volume, "" if it has none."""

    name: str
    body: int
    kind: str = ""


class TendonOf(NamedTuple):
    """A tendon: its name, and joints (numbers), or sites (numbers) of each branch.

    ``shortest``: whether its limits have a lower one.
    """

    name: str
    joints: tuple[int, ...] = ()
    branches: tuple[tuple[int, ...], ...] = ()
    shortest: bool = True


class SensorOf(NamedTuple):
    """A sensor: its name, kind, and the number of what it is of: joint, motor, tendon, body or frame; the frame that it is relative to.

    Frames are the world, the bodies, and then the sites.
    """

    name: str
    kind: str
    of: int
    frame: int = 0


class Contact(NamedTuple):
    """A row of the contacts: names of the two shapes, or of a joint or tendon and its limit; ``pair`` is its place in pairs, or limits."""

    first: str
    second: str
    kind: str
    pair: int

    def __str__(self):
        return f"{self.first} and {self.second}"


@dataclass(frozen=True)
class Structure:
    """Bodies are numbered from 1 on in an order in which parents come first; 0 is the world."""

    bodies: tuple[str, ...]
    parents: tuple[int, ...]
    joints: tuple[JointOf, ...]
    shapes: tuple[ShapeOf, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    limits: tuple[int, ...] = ()  # joints, and tendons, whose numbers here begin after those of the joints
    connects: tuple[tuple[int, int], ...] = ()  # bodies
    welds: tuple[tuple[int, int], ...] = ()  # bodies
    couples: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()  # joints; of the second none, or some
    springs: tuple[tuple[int, int], ...] = ()  # bodies
    motors: tuple[tuple[str, tuple[int, ...]], ...] = ()  # names, joints
    #: Axis (0, 1, 2) of the world to which all motion is perpendicular: contacts have one tangential direction; None: motion in space.
    plane: int | None = None
    #: Whether springs of joints, motors that feed back, and the drag of a medium are there at all: what is not there is not computed.
    has: frozenset = frozenset()
    #: What a model file has that is not here.
    left_out: tuple[str, ...] = ()
    #: Initial states of a model file: (name, coordinates, velocities, controls of the motors).
    keyframes: tuple[tuple[str, tuple[float, ...], tuple[float, ...], tuple[float, ...]], ...] = ()
    #: Of the connects, then of the welds: the loop's plane, as (velocity of a hinge across it, body that carries the loop, the axis of this
    #: body that is most along the plane); None: there is none, or all motion is parallel to ``plane``.
    across: tuple[tuple[int, int, int] | None, ...] = ()
    #: Velocities with dry friction: all of every joint that has some; and tendons, whose numbers here begin after those of the velocities.
    dry: tuple[int, ...] = ()
    sites: tuple[SiteOf, ...] = ()
    sensors: tuple[SensorOf, ...] = ()
    #: Sensors of a model file that are not here: (name, kind).
    sensors_left_out: tuple[tuple[str, str], ...] = ()
    #: Model file, a path or its text, of which pictures take what bodies look like. It moves nothing: no program depends on it.
    source: str | None = dataclasses.field(default=None, compare=False, repr=False)
    #: Name of the model, which pictures say.
    name: str = dataclasses.field(default="", compare=False)
    tendons: tuple[TendonOf, ...] = ()
    #: Motors that pull at tendons, both by number.
    pulls: tuple[tuple[int, int], ...] = ()

    def __hash__(self):
        return self._hash

    @functools.cached_property
    def _hash(self):
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare))

    @property
    def limited(self):
        """Names of the joints and tendons with limits."""
        names = [part.name for part in (*self.joints, *self.tendons)]
        return [names[j] for j in self.limits]

    @property
    def rubbed(self):
        """Name of the joint or tendon of each row of dry friction."""
        names, n_u = [joint.name for joint in self.joints], self.layout.n_u
        return [names[self.layout.joint_of_dof[k]] if k < n_u else self.tendons[k - n_u].name for k in self.dry]

    @functools.cached_property
    def layout(self):
        """`Layout`."""
        return Layout(self)


def find(kind, name, names):
    """Place of a name; KeyError with the names that there are, the likely one first."""
    if name in names:
        return names.index(name)
    raise KeyError(lists.unknown(kind, name, names))


def named(keyframes, key, caller):
    """Place of the keyframe of this name or number; KeyError with those that there are."""
    names = [name for name, *_ in keyframes]
    if isinstance(key, str) and key in names:
        return names.index(key)
    if isinstance(key, str) or not 0 <= key < len(names):
        there = ", ".join(f"{k}: {name!r}" if name else str(k) for k, name in enumerate(names))
        raise KeyError(f"{caller}: there is no keyframe {key!r}; the model has {there or 'none'}")
    return key


class Layout:
    """Index sets of a `Structure`, as NumPy arrays: made once.

    An *element* is a joint, or a body without joints: a link of the chain from the world to a body. Velocities are those of the system,
    then those that are prescribed.
    """

    def __init__(self, structure):
        joints, self.n_b = structure.joints, len(structure.bodies)
        of_body = [[j for j, joint in enumerate(joints) if joint.body == b] for b in range(self.n_b + 1)]
        self._elements(structure, of_body)
        self._addresses(joints)
        self._movement(structure, of_body)
        self._columns(joints)

    def _elements(self, structure, of_body):
        """Elements, each with its parent (element + 1; 0: the world), joint (n_j: none) and the body whose frame it starts (n_b: none)."""
        joints, n_b = structure.joints, self.n_b
        parent, joint_of, offset, last = [], [], [], [0]
        for b in range(1, n_b + 1):
            above = last[structure.parents[b - 1]]
            for k, j in enumerate(of_body[b] or [len(joints)]):
                parent.append(above)
                joint_of.append(j)
                free = j < len(joints) and joints[j].kind == "free"
                offset.append(b - 1 if k == 0 and not free else n_b)
                above = len(parent)
            last.append(above)
        self.joint_of, self.offset = np.array(joint_of, int), np.array(offset, int)
        #: (n_b + 1,) last element of each body, the world first
        self.last = np.array(last)
        #: rounds of pointers to ancestors at distance 1, 2, 4, ...: (n_e,) each
        self.rounds = []
        ancestors = np.array([0, *parent])
        while ancestors.any():
            self.rounds.append(ancestors[1:])
            ancestors = ancestors[ancestors]
        self.element_of_joint = np.array([joint_of.index(j) for j in range(len(joints))], int)

    def _addresses(self, joints):
        """Where coordinates and velocities of the joints start."""
        self.kinds = {kind: np.array([j for j, joint in enumerate(joints) if joint.kind == kind], int) for kind in SIZES}
        self.n_q = sum(SIZES[j.kind][0] for j in joints if not j.prescribed)
        self.n_u = sum(SIZES[j.kind][1] for j in joints if not j.prescribed)
        self.prescribed = [j for j, joint in enumerate(joints) if joint.prescribed]
        self.n_s = self.n_u + sum(SIZES[joints[j].kind][1] for j in self.prescribed)
        q_at, u_at, free, driven = [], [], [0, 0], [self.n_q, self.n_u]
        for joint in joints:
            at = driven if joint.prescribed else free
            q_at.append(at[0])
            u_at.append(at[1])
            at[:] = (a + size for a, size in zip(at, SIZES[joint.kind], strict=True))
        self.q_at, self.u_at = np.array(q_at, int), np.array(u_at, int)
        #: (number of quaternions,) where they start in q, and where their angular velocities start in u
        turning = [j for j, joint in enumerate(joints) if joint.kind in ("free", "ball") and not joint.prescribed]
        self.quaternions = np.array([q_at[j] + 3 * (joints[j].kind == "free") for j in turning], int)
        self.spins = np.array([u_at[j] + 3 * (joints[j].kind == "free") for j in turning], int)
        #: coordinates that are no quaternions, and their velocities
        self.straight_q, self.straight_u = [], []
        for j, joint in enumerate(joints):
            if not joint.prescribed and joint.kind != "ball":
                count = 3 if joint.kind == "free" else 1
                self.straight_q += range(q_at[j], q_at[j] + count)
                self.straight_u += range(u_at[j], u_at[j] + count)

    def _dofs(self, joints):
        """Ranges of the velocities of every joint."""
        return [range(start, start + SIZES[joint.kind][1]) for start, joint in zip(self.u_at.tolist(), joints, strict=True)]

    def _movement(self, structure, of_body):
        """Which velocities move which bodies, and carry which axes."""
        joints, n_b, dofs = structure.joints, self.n_b, self._dofs(structure.joints)
        moves = np.zeros((n_b + 1, self.n_s), bool)
        carried = np.zeros((self.n_s, self.n_s), bool)
        self.body_of_dof, self.joint_of_dof = np.zeros(self.n_s, int), np.zeros(self.n_s, int)
        for b in range(1, n_b + 1):
            moves[b] = moves[structure.parents[b - 1]]
            for j in of_body[b]:
                if joints[j].kind in ("hinge", "slide"):
                    carried[dofs[j]] = moves[b]
                moves[b, list(dofs[j])] = True
                if joints[j].kind == "ball":
                    carried[dofs[j]] = moves[b]
                if joints[j].kind == "free":
                    carried[dofs[j][3:]] = moves[b]
                self.body_of_dof[list(dofs[j])], self.joint_of_dof[list(dofs[j])] = b, j
        self.moves, self.carried = moves, carried
        #: [k, j]: velocity k moves the body of velocity j, so that their entry of the mass matrix is computed from j's composite body
        self.path = moves[self.body_of_dof].T
        #: (n_b + 1,) the first moving body on the way from the world to a body: twists of its tree are about its origin
        self.root = np.zeros(n_b + 1, int)
        for b in range(1, n_b + 1):
            above = self.root[structure.parents[b - 1]]
            self.root[b] = above or (b if of_body[b] else 0)
        self._floating(joints, of_body, dofs)

    def _floating(self, joints, of_body, dofs):
        """Trees that float: on a free joint, or on two or three sliders as of `planar`, which translate all of it along fixed axes."""
        roots, first = self.root[self.body_of_dof[: self.n_u]], {0: []}
        for b in set(roots.tolist()) - {0}:
            sliders = itertools.takewhile(lambda j: joints[j].kind == "slide" and not joints[j].prescribed, of_body[b])
            free = joints[of_body[b][0]].kind == "free" and not joints[of_body[b][0]].prescribed
            along = list(dofs[of_body[b][0]][:3]) if free else [dofs[j][0] for j in sliders][:3]
            first[b] = along if len(along) > 1 else []
        #: (n_u, 3) the translations of the tree that a velocity belongs to, and which of them there are
        self.translations = np.array([(first[b] + [0, 0, 0])[:3] for b in roots], int).reshape(-1, 3)
        self.there = np.array([np.arange(3) < len(first[b]) for b in roots], bool).reshape(-1, 3)
        #: (n_u,) velocities of such trees that are none of these
        self.behind = np.array([bool(first[b]) and k not in first[b] for k, b in enumerate(roots)], bool)
        #: whether all translations are those of free joints, along the axes of the world
        self.all_free = all(joints[self.joint_of_dof[k]].kind == "free" for along in first.values() for k in along)
        #: (n_b + 1, n_b + 1) bodies of one tree
        self.together = self.root[:, None] == self.root[None]

    @functools.cached_property
    def turned_together(self):
        """Angular velocities of joints that turn freely, one of each tree at a time, as trees do not feel each other.

        Directions (m, n_s) of the velocities, the one (n_u,) that each velocity belongs to, and which velocities (n_u, n_u) feel which.
        """
        of_tree, root = {}, self.root[self.body_of_dof[: self.n_u]]
        turns = np.zeros(self.n_u, bool)
        direction_of = np.zeros(self.n_u, int)
        for start in self.spins:
            first = of_tree.setdefault(root[start], 0)
            direction_of[start : start + 3] = first + np.arange(3)
            turns[start : start + 3] = True
            of_tree[root[start]] += 3
        directions = np.zeros((max(of_tree.values(), default=0), self.n_s))
        directions[direction_of[turns], np.flatnonzero(turns)] = 1
        return directions, direction_of, (root[:, None] == root[None]) & turns[None]

    @functools.cached_property
    def pairs_of_turning(self):
        """Of the directions of `turned_together` and each velocity, (m, n_u): the velocity of its tree that turns, the one of both that is
        farther from the root, and whether one of them moves the body of the other.
        """
        directions, direction_of, felt = self.turned_together
        k = np.stack([np.argmax(felt & (direction_of == m)[None], axis=1) for m in range(len(directions))])
        own = np.arange(self.n_u)
        there = np.stack([felt[own, x] & (direction_of[x] == m) for m, x in enumerate(k)])
        beyond, before = self.path[k, own[None]], self.path[own[None], k]
        return k, np.where(beyond, own[None], k), there & (beyond | before)

    @property
    def not_carried(self):
        """[k, i]: velocity i moves the body of velocity k, whose axis does not carry that of i."""
        return self.path.T & ~self.carried.T

    def _columns(self, joints):
        """Columns of the velocities, by kind of joint: (kind, rows) -> order of velocities."""
        dofs = self._dofs(joints)
        order = np.full(self.n_s, -1)
        start = 0
        for kind in SIZES:
            for j in self.kinds[kind]:
                n = SIZES[kind][1]
                order[dofs[j]] = np.arange(start, start + n)
                start += n
        self.order_of_dofs = order
        place = np.full(len(joints) + 1, len(joints))
        place[np.concatenate([self.kinds[kind] for kind in SIZES])] = np.arange(len(joints))
        #: place of each joint, and of none, where joints are ordered by kind
        self.place_of_joint = place
