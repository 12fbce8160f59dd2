"""The outcome codes of a step and the sentences that explain them."""

import enum


class Outcome(enum.IntEnum):
    """What became of a step or of a contact problem. Larger is worse; a saved interval carries its worst code."""

    SUCCESS = 0
    NOT_CONVERGED = 1
    DIVERGED = 2
    NON_FINITE = 3


#: code -> (what happened, what to try)
EXPLANATION = {
    Outcome.SUCCESS: ("the contact problem was solved to tolerance", "nothing to do"),
    Outcome.NOT_CONVERGED: (
        "the equations of the step were not solved to tolerance",
        "try a smaller dt or a larger max_iterations in SemismoothNewton(...); with mu near 1 or above the step may have several "
        "solutions or none",
    ),
    Outcome.DIVERGED: (
        "the kinetic energy grew beyond every bound that the initial state suggests",
        "try a smaller dt (a stiff spring needs dt < 2 / omega with an explicit scheme), and check the signs of stiffness and damping",
    ),
    Outcome.NON_FINITE: (
        "the state became infinite or not a number",
        "try a smaller dt; look for a division by zero or the root of a negative number in the system's functions near the last "
        "finite state",
    ),
}
