"""What has happened at the contacts, one by one, read off a solution after the run."""

from typing import NamedTuple

import numpy as np

from ..mechanics.results import Event
from . import tables


class Happening(NamedTuple):
    """An event at contacts.

    ==============  ======================================================================================================
    ``t``           s: when it was located, else the end of its step or stored interval
    ``event``       `Event` bits of the step, ``Event.IMPACT in happening.event``
    ``contacts``    numbers of the contacts: that which was located; else those that began to push in the step; else those that push
    ``names``       their names, "contact 3" where the system gives none
    ``step``        number of the stored interval, so that ``sol.P_N[step]`` acts in it
    ``q``           (n_q,) coordinates at its end
    ``before``      (n_u,) velocities at its beginning, as they are stored
    ``after``       (n_u,) velocities at its end
    ==============  ======================================================================================================
    """

    t: float
    event: Event
    contacts: tuple[int, ...]
    names: tuple[str, ...]
    step: int
    q: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def __str__(self) -> str:
        """One line: what, where, when."""
        kinds = " and ".join(kind.name.lower() for kind in Event if kind in self.event)
        return f"{kinds} at t = {self.t:.6g} s{': ' if self.names else ''}{', '.join(self.names)}"


def happenings(values):
    """List of each `Happening` of one motion with values."""
    t, q, u, P_N, bits = (np.asarray(getattr(values, name)) for name in ("t", "q", "u", "P_N", "events"))
    names = tables.names_of(values).get("contact_index", [f"contact {i}" for i in range(P_N.shape[1])])
    # Of a stored interval of several steps the impacts of its last one alone are stored.
    located = values.auxiliary if values.save_every == 1 else {}
    found = []
    for k in np.flatnonzero(bits):
        pushes = P_N[k] > 0
        begins = pushes & ~(P_N[k - 1] > 0) if k else pushes
        parts = [(t[k + 1], np.flatnonzero(begins if begins.any() else pushes))]
        if "impact_times" in located:
            times, which = (np.asarray(located[name])[k + 1] for name in ("impact_times", "impact_contacts"))
            parts = [(times[i], which[i : i + 1]) for i in np.argsort(times) if which[i] >= 0 and np.isfinite(times[i])] or parts
        for time, contacts in parts:
            contacts = tuple(map(int, contacts))
            about = Event(int(bits[k])), contacts, tuple(names[i] for i in contacts), int(k)
            found.append(Happening(float(time), *about, q[k + 1], u[k], u[k + 1]))
    return found
