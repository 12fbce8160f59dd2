"""The outcome codes of a step, the sentences that explain them, and the events of a step."""

import enum


class Outcome(enum.IntEnum):
    """What became of a step or of a contact problem. Larger is worse; a saved interval carries its worst code.

    INVALID_PARAMETER is the worst: a parameter that is traced turned out to be outside of its range (restitution outside [0, 1], negative
    friction, a dt that is not positive), so there is no law that the motion could obey. It takes the place of all other codes of the run.
    A restitution that is a function of the speed of approach gives it to the steps in which it leaves its range.
    """

    SUCCESS = 0
    NOT_CONVERGED = 1
    DRIFTED = 2
    DIVERGED = 3
    NON_FINITE = 4
    INVALID_PARAMETER = 5


class Event(enum.IntFlag):
    """What happened at the contacts in a step, as bits; a saved interval carries those of all its steps.

    IMPACT:        a contact closed faster than 1.5 times the speed that the forces make in a step: an impact that is told from a landing
    GRAZING:       a contact closed slower than that: a soft landing, or a grazing impact. Where the closing speed vanishes the
                   motion has no derivative with respect to its initial state, and next to it a large one
    SIMULTANEOUS:  two or more contacts had an impact that the mass matrix couples, or one had an impact and another, coupled with it,
                   touched without a load. Motions nearby take them one after the other, in either order: derivatives are one-sided
    ACCUMULATION:  an impact, with restitution, after which the contact closes again within a dozen steps: the step does not resolve what
                   is left of a sequence of impacts (Zeno), which is captured as a whole. Of `LocatedImpacts`, which resolves impacts of
                   any number of steps apart: one after which the next would be too slow to be located, or a contact that closes twice
                   in a step
    """

    IMPACT = 1
    GRAZING = 2
    SIMULTANEOUS = 4
    ACCUMULATION = 8


#: code -> (what happened, what to try)
EXPLANATION = {
    Outcome.SUCCESS: ("the contact problem was solved to tolerance", "nothing to do"),
    Outcome.NOT_CONVERGED: (
        "the equations of the step were not solved to tolerance, or, with Lobatto, by stages with more energy than there is",
        "where bodies jam (mu near 1 or above) the step may have no solution: a smaller mu; in float32 try float64, or a larger tolerance "
        "in SemismoothNewton(...); with more contacts than Lemke's method takes (16 spatial, 32 planar), a larger max_rescues there; with "
        "a scheme that is implicit in the velocity, a smaller dt or a larger max_outer",
    ),
    Outcome.DRIFTED: (
        "a constraint on position level is violated by more than System.drift_bound says, a loop of bodies by more than a thousandth of "
        "their size, or of a radian",
        "try a smaller dt, or Lobatto(stages=3), which holds constraints on position level; coordinate_projection, where it is switched "
        "off; loops that are open all the same are at the end of their reach, where a motor or a limit contradicts them",
    ),
    Outcome.DIVERGED: (
        "the kinetic energy grew beyond every bound that the initial state suggests",
        "try a smaller dt (a stiff spring needs dt < 2 / omega with an explicit scheme), and check the signs of stiffness and damping",
    ),
    Outcome.NON_FINITE: (
        "the state became infinite or not a number, or a gap or a parameter is",
        "try a smaller dt; look for a division by zero or the root of a negative number in the system's functions near the last "
        "finite state",
    ),
    Outcome.INVALID_PARAMETER: (
        "a parameter is outside of its range: e_N and e_F must lie in [0, 1], mu, or what the friction of a law has in its place, must not "
        "be negative, dt must be positive, no velocity may have negative inertia (at the start: a negative mass, say), a lower limit of a "
        "joint or a motor must not be above the upper one, no mass or size of a body be negative, and the system must not say, too, what "
        "its law says (Poisson's law: e_F, which is zero)",
        "keep the parameters in their range, such as jax.nn.sigmoid(x) for a restitution and jax.nn.softplus(x) for a friction "
        "coefficient in place of a free x; jaxnsd.check(...) outside of jit and vmap names the parameter; a restitution that is a function "
        "of the speed of approach must stay in [0, 1] at every speed of the run, as by jnp.clip(e, 0, 1)",
    ),
}
