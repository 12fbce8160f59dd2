"""What every scheme shares: the state it carries, what it reports, and what it is asked for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics import laws
from ..mechanics.local import Kinematics, Local, local
from ..mechanics.system import System
from . import parameters
from .condensed import Condensed

if TYPE_CHECKING:
    from .velocity import Step


class Percussions(NamedTuple):
    """Percussions (impulses, N s) of a step: ``P_N`` (n_N,), ``P_F`` (n_N, d), ``P_g`` (n_g,), ``P_gamma`` (n_gamma,), and, of a system
    with dry friction, ``P_D`` (n_D,).
    """

    P_N: jax.Array
    P_F: jax.Array
    P_g: jax.Array
    P_gamma: jax.Array
    P_D: jax.Array | None = None


class State(NamedTuple):
    """What a scheme carries from node to node: coordinates, velocity leaving the node, percussions at the node."""

    q: jax.Array
    u: jax.Array
    P: Percussions


class Info(NamedTuple):
    """How the equations of a step were solved."""

    iterations: jax.Array  # Newton iterations on the contact problem
    residual: jax.Array  # largest entry of the natural map, in units of percussion
    converged: jax.Array
    contact: jax.Array  # contact with the largest entry where the step did not converge, else -1


class Evaluated(NamedTuple):
    """What a step has evaluated of a system where it ends."""

    system: Any  # seen there, for functions that are asked for there alone
    M: jax.Array | None = None  # (n_u, n_u) mass matrix; None: it has not
    h: jax.Array | None = None  # (n_u,) forces with the velocity before; None: it has not


def no_percussions(system, t, q, u):
    """Zero percussions in the shapes of a system."""
    shapes = jax.eval_shape(
        lambda: (system.gap(t, q), system.tangential_velocity(t, q, u), system.constraint(t, q), system.velocity_constraint(t, q, u))
    )
    dry = laws.has_dry_friction(system)
    P_D = jnp.zeros(jax.eval_shape(system.dry_velocity, t, q, u).shape, q.dtype) if dry else None
    return Percussions(*(jnp.zeros(s.shape, q.dtype) for s in shapes), P_D)


def nothing_to_solve(dtype):
    """`Info` of a node without a contact problem."""
    zero = jnp.zeros((), jnp.int32)
    return Info(zero, jnp.zeros((), dtype), jnp.ones((), bool), zero - 1)


def allowed(A, W):
    """The part of a change of velocity, made by ``A^-1``, that bilateral constraints with directions W allow, (n_u, n_u), by NumPy."""
    Y = np.linalg.solve(A, W)
    return np.eye(len(A)) - Y @ np.linalg.lstsq(W.T @ Y, W.T, rcond=None)[0]


def total(info, more):
    """`Info` of a step that was solved in two parts."""
    return Info(
        info.iterations + more.iterations,
        jnp.maximum(info.residual, more.residual),
        info.converged & more.converged,
        jnp.maximum(info.contact, more.contact),
    )


@dataclass(frozen=True)
class Scheme:
    """A time-stepping scheme: a frozen value with `init` and `step`; `step` is the body of `jax.lax.scan`.

    ``order`` is the order of convergence on smooth motion. What `prepare` makes of the system, once for all steps, takes its place in
    `init` and `step`. A state has the fields of `State`; those of its further fields that are listed in ``auxiliary`` are stored in
    `Solution.auxiliary`.
    """

    order: ClassVar[int]
    #: Where that order is a lower one, in words; none if nowhere.
    order_note: ClassVar[str] = ""
    auxiliary: ClassVar[tuple[str, ...]] = ()
    #: Sentence that says why nodes do not tell the works of percussions, and what to use instead; None if they do, see `between`.
    unbalanced: ClassVar[str | None] = None
    #: Whether gaps are closed on position level: then the step's own derivative forgets the state before an impact.
    position_level: ClassVar[bool] = False
    #: By what part of a step the velocity of a state is ahead of its coordinates in time.
    lead: ClassVar[float] = 0.0

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Where a class has none of its own `dataclass` writes one, which shows all fields.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Scheme.__repr__

    def __post_init__(self):
        parameters.check(self)

    def __repr__(self):
        """As it is written in Python, without what is at its default."""
        try:
            default = vars(type(self)())
        except TypeError:  # a scheme that has no defaults
            default = {}
        text = [f"{key}={value!r}" for key, value in vars(self).items() if key not in default or value != default[key]]
        return f"{self.name}({', '.join(text)})"

    @property
    def name(self) -> str:
        """The scheme's name, as it is written in Python."""
        return type(self).__name__

    def refuse(self, system: System, t: ArrayLike, q: jax.Array, u: jax.Array) -> str | None:
        """Sentence that says why this scheme cannot take the system, and what to use instead; None if it can."""
        del system, t, q, u

    def advise(self, system: System, t: ArrayLike, q: jax.Array) -> str | None:
        """Sentence that warns where system and scheme are outside of a theorem together; None if they are not. Values are known."""
        del system, t, q

    def check(self, system: System, dt: ArrayLike) -> None:
        """Raise ValueError where the scheme cannot step this system with this dt. Values are known."""
        del system, dt

    def prepare(self, system: System, dt: ArrayLike) -> Any:
        """What `init` and `step` get as the system: the system itself, or with it what does not change from step to step."""
        del dt
        return system

    def system(self, prepared: Any) -> System:
        """The system, or its tangent, in what `prepare` made of it."""
        return prepared

    def keeping_rows(self, prepared: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array | None = None, found: Any = None) -> Any:
        """What `prepare` made, for a step from (t, q): each row of its system is one and the same contact wherever the step asks for it.

        Told the velocity u, contacts that are too far away for this step may be left out. found: what `System.found` says at (t, q)
        """
        system = self.system(prepared)
        kept = system.keeping_rows(t, q, u, dt, found)
        return prepared if kept is system else self.prepare(kept, dt)

    def evaluated(self, prepared: Any, t: ArrayLike, q: jax.Array, u: jax.Array) -> Evaluated:
        """What `step` has evaluated where it ends anyway, at (t, q) with the velocity u before: by default nothing.

        Asked for again it is the same in the compiled program, and costs nothing.
        """
        del t, q, u
        return Evaluated(self.system(prepared))

    def local(self, prepared: Any, t: ArrayLike, q: jax.Array, u: jax.Array) -> Local:
        """`Local` of the system at (t, q), without M where the scheme has its factors; of ``u`` only the shape matters."""
        return local(self.system(prepared), t, q, u)

    def mass_times(self, prepared: Any, M: jax.Array | None, x: jax.Array) -> jax.Array:
        """``M x``, with the M of `local`."""
        del prepared
        return M @ x

    def inertia(self, prepared: Any, M: jax.Array | None, kin: Kinematics) -> Condensed:
        """`Condensed` form of the mass matrix, with the M of `local`."""
        del prepared
        return Condensed(M, kin)

    def shifted(self, prepared: Any, t: ArrayLike, state: Any, tangent: Any, dq: jax.Array, du: jax.Array) -> Any:
        """Tangent of a state at t whose coordinates and velocity are moved by dq and du."""
        del prepared, t, state
        return tangent._replace(q=tangent.q + dq, u=tangent.u + du)

    def after_the_end(self, auxiliary: dict[str, Any]) -> dict[str, Any]:
        """What is stored of `auxiliary`, each (N, ...), of nodes after the one at which a motion has ended: what held there by default.

        What tells of the step that ends at a node, percussions say, is that of no step.
        """
        return auxiliary

    def between(self, system: System, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, q_plus: jax.Array) -> "Step":
        """The `velocity.Step` from a node (t, q, u) to the next, whose coordinates are known: where do its percussions work, on what?

        Those of `Lobatto` work at its stages, which a solution has stored.
        """
        raise NotImplementedError

    def init(
        self, system: Any, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array, settings: AbstractContactSolver
    ) -> tuple[Any, Info]:
        """``(state, info)`` at the first node, from the initial coordinates and velocity."""
        raise NotImplementedError

    def step(self, system: Any, t: ArrayLike, dt: ArrayLike, state: Any, settings: AbstractContactSolver) -> tuple[Any, Info]:
        """``(state, info)`` at time ``t + dt`` from the state at ``t``."""
        raise NotImplementedError


def on_position_level(scheme):
    """`Scheme.position_level`; of `LocatedImpacts` the scheme that it wraps says it."""
    return getattr(scheme, "scheme", scheme).position_level
