"""What an ensemble returns."""

import dataclasses
from typing import Any

import numpy as np

from ..mechanics.results import Outcome
from ..simulation.solution import Solution
from . import store
from .reductions import just_below


@dataclasses.dataclass(frozen=True)
class Failures:
    """Members that failed, the first thousand: their numbers ``index`` (k,), and the `jaxnsd.Outcome` codes ``outcome`` (k,)."""

    index: np.ndarray
    outcome: np.ndarray

    def __len__(self) -> int:
        return len(self.index)


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """What is known of the members that are done.

    ==============  ==============================================================================================================
    ``n``           members that were asked for; ``done`` of them are finished, ``complete`` says whether that is all
    ``counts``      dict: how many members ended with which `jaxnsd.Outcome`
    ``failures``    `Failures`: the members that failed, one by one; ``sample(i)`` is what was drawn for one, ``solution(i)`` its motion
    ``statistics``  dict: what the reductions made of the members that succeeded, by their names; ``result["name"]`` is the same
    ``infinite``    dict: members that succeeded and whose observation of this name is infinite or NaN, as it may be meant
    ``computed``    members that were computed by this call, not found in the store, in ``seconds`` with compilation
    ``store``       the directory, or None
    ==============  ==============================================================================================================
    """

    n: int
    done: int
    counts: dict[Outcome, int]
    failures: Failures
    statistics: dict[str, Any]
    infinite: dict[str, int]
    computed: int
    seconds: float
    store: Any
    _job: Any

    @property
    def complete(self) -> bool:
        """Whether all members are done."""
        return self.done == self.n

    @property
    def failed(self) -> int:
        """How many members failed."""
        return self.done - self.counts.get(Outcome.SUCCESS, 0)

    def __getitem__(self, name: str) -> Any:
        """A statistic by its name. Raises KeyError."""
        if name not in self.statistics:
            raise KeyError(f"no statistic is called {name!r}; there is {', '.join(self.statistics)}")
        return self.statistics[name]

    def __repr__(self) -> str:
        """One line."""
        counts = ", ".join(f"{count} {code.name}" for code, count in self.counts.items())
        names = ", ".join(self.statistics)
        return f"Result({self.done} of {self.n} members: {counts}; statistics {names}; {self.computed} computed in {self.seconds:.1f} s)"

    def sample(self, index: int) -> Any:
        """``(system, q0, u0)`` of a member."""
        return self._job.again(self._member(index))

    def solution(self, index: int, **options: Any) -> Solution:
        """The whole motion of a member, simulated again; ``options`` replace those of the ensemble, such as save_every.

        It is computed as in the ensemble, by another program, since it returns more: its last bits are the same as a rule, not by promise.
        """
        return self._job.again(self._member(index), self._job.options | options)

    def dataset(self, drawn: bool = True) -> Any:
        """What is in the store, an `xarray.Dataset` along "member" that is read when it is used; ``outcome`` -1: not done.

        drawn: what an `Independent` has drawn stands beside what was observed, by its names; it is drawn again, n numbers of each name

        Attributes name the system, the scheme and the version. ``to_dataframe()`` of n members with one number each has n rows.
        """
        data = store.dataset(self._stored())
        again = self._job.drawn() if drawn else {}
        # Whoever observes something under such a name has it as observed.
        return data.assign({name: ("member", x) for name, x in again.items() if name not in data})

    def quantiles(self, name: str, p: Any) -> np.ndarray:
        """Exact quantiles (len(p), ...) of what is stored under a name, of the members that succeeded; the column must fit into memory.

        Each is one of the members: of n sorted ones number ceil(p n). Raises ValueError for p outside of [0, 1].
        """
        if not np.all((np.asarray(p, float) >= 0) & (np.asarray(p, float) <= 1)):
            raise ValueError(f"quantiles: p must be probabilities in [0, 1], got {p!r}")
        data = store.dataset(self._stored())
        if name not in data:
            raise KeyError(f"the store holds nothing called {name!r}; it holds {', '.join(str(x) for x in data)}")
        good = data[store.OUTCOME].values == Outcome.SUCCESS
        return np.quantile(data[name].values[good], just_below(p), axis=0, method="inverted_cdf")

    def _stored(self):
        if self.store is None:
            raise ValueError('there is no store: give store="name.zarr" to the run')
        return self.store

    def _member(self, index):
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < self.n:
            raise ValueError(f"a member is a whole number from 0 to {self.n - 1}, got {index!r}")
        return int(index)
