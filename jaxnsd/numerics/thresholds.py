"""Thresholds of the library: each with its reason or measurement, scaled by what it is compared with, aware of the dtype."""

import jax.numpy as jnp
import numpy as np

#: Round-off of a sum of a few products, in units of the machine precision times its largest term. Measured: residuals of momentum
#: balances and constraint rows at the last Newton step are 1 to 6 of these units on the benchmark systems, in both precisions.
ROUND_OFF = 16


def eps(dtype):
    """Machine precision, as a number."""
    return float(jnp.finfo(dtype).eps)


def tiny(dtype):
    """Smallest normal number: what keeps a bound from being zero."""
    return float(jnp.finfo(dtype).tiny)


def round_off(dtype):
    """What counts as zero relative to the terms of a sum: 3.6e-15 in float64, 1.9e-6 in float32."""
    return ROUND_OFF * eps(dtype)


def pivot(dtype):
    """Relative size under which a pivot counts as zero: 1.1e-11 in float64, 1.4e-5 in float32.

    Redundant rows come with pivots of a few eps; independent ones of the benchmark systems with 1e-6 and more. In between lie rows that
    a solution is still able to tell apart, with eps / pivot as its relative error.
    """
    return eps(dtype) ** 0.7


def touch(dtype):
    """Gap, as a part of what the forces close in a step, above which a contact was open: 5.5e-7 in float64, 1.7e-3 in float32.

    Contacts at rest are off by the rounding of velocities, summed over the steps since they landed.
    """
    return eps(dtype) ** 0.4


def immovable(dtype):
    """What part of the velocities along a contact those across it are that count as none: 5.5e-7 in float64, 3.1e-5 in float32.

    Measured: faces of two meshes that turn on each other, of a robot, whose files say places with seven digits, have 4e-8. A wedge of 1e-3
    is none of them.
    """
    return max(eps(np.float64) ** 0.4, 256 * eps(dtype))


def small(tolerance, dtype):
    """Violation of a contact law that needs no excuse, as a part of the largest free velocity: 5.5e-7 in float64, 1.7e-3 in float32."""
    return max(tolerance, eps(dtype) ** 0.4)


def excuse(dtype):
    """Round-off of a row of a contact problem, as a part of the sum of its terms: what excuses more than a `small` violation.

    Where there is no solution, as of a body between walls that close, percussions grow until a tolerance relative to their terms excuses
    anything. Measured in float32, in units of the machine precision: 4000 stacks of mass ratio 1e3 and 1e4 end with at most 0.64; of 2000
    of 1e5, whose pivots are round-off, 2 solve all but 19, and 1 leaves one in ten. Of 500 pairs of closing walls 63 pass with 4, one
    with 2, by 1.3e-3. Not all is told apart: of 217 planar problems of 4 contacts that have no solution 49 pass in float32, by up to 0.2
    of the free velocity, where 194 did without this; 27 of the 49 have a solution as rounded to float32. In float64 none passes.
    """
    return 2 * eps(dtype)


def violation(tolerance, dtype):
    """Most that round-off excuses (see `excuse`), as a part of the largest free velocity: 1e-4 in float64, 0.2 in float32.

    Percussions with more of it are not determined, and excuse nothing. Measured: in float32 heavy bodies on light ones, mass ratio 1e5,
    violate the law by a tenth of what gravity makes in a step, and not less; with 1e6 they sink by 6 cm in 0.2 s, which is no success.
    `InteriorPoint` takes as much for any problem whose terms are large.
    """
    return max(tolerance, 1e-4 if jnp.finfo(dtype).bits == 64 else 0.2)


#: Slip below this part of what is gained in a step is rest: what is left of slip when a contact sticks is round-off, below 1e-6 of it in
#: float32, and slip that passes through zero is gone in a step.
REST = 1e-3

#: An impact that leaves the contact slower than this multiple of the speed gained in a step is one of the last of a sequence: the next
#: ones come within a dozen steps.
LAST = 4

#: Contacts are coupled where their entry of the Delassus operator is larger than this, relative to the diagonal; round-off is below.
COUPLED = 1e-10


def energy(dtype):
    """Energy that counts as round-off, relative to the largest energy of a motion: 9.1e-13 in float64, 4.9e-4 in float32.

    The energies before and after a step cancel in the balance; each is a sum over all coordinates. Measured: up to 1e-13 with 20 elements
    of a bar in float64.
    """
    return 4096 * eps(dtype)
