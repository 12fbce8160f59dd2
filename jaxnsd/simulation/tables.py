"""A solution as a table: for xarray with its axes, for pandas with a row for each node."""

import re

import numpy as np

from ..mechanics.results import Event, Outcome

#: Axes of what is stored, after those of a batch, and units.
ARRAYS = {
    "q": (("node", "coordinate"), ""),
    "u": (("node", "velocity"), ""),
    "P_N": (("step", "contact_index"), "N s"),
    "P_F": (("step", "contact_index", "direction"), "N s"),
    "P_g": (("step", "constraint"), "N s"),
    "P_gamma": (("step", "velocity_constraint"), "N s"),
    "P_D": (("step", "dry_friction"), "N s"),
    "iterations": (("step",), ""),
    "residual": (("step",), "N s"),
    "outcome": (("step",), ""),
    "contact": (("step",), ""),
    "events": (("step",), ""),
}


def arrays(values):
    """`ARRAYS` that a solution has: no percussions of dry friction where there is none."""
    return {name: of for name, of in ARRAYS.items() if getattr(values, name) is not None}


def about(values):
    """What a solution is of, as attributes: names and numbers, which every format of files takes."""
    from .. import __version__

    system = {"system": values.labels.system} if values.labels.system else {}
    every = {} if values.save_every is None else {"save_every": values.save_every}
    return system | {"scheme": repr(values.scheme)} | every | {"jaxnsd_version": __version__}


def names_of(values):
    """``{axis: names}`` of the axes that have names."""
    named = dict(zip(("coordinate", "velocity", "contact_index"), values.labels[1:], strict=True))
    return {axis: _distinct([plain(name) for name in names]) for axis, names in named.items() if names}


def plain(name):
    r"""A name as it is typed, without the marks of a formula: "dot phi_M in rad/s" for ``$\dot\varphi_M$ in rad/s``."""

    def typed(formula):
        return re.sub(r"[{}\\]", "", re.sub(r"\\dot\s*", "dot ", formula[1].replace(r"\var", "\\")))

    return re.sub(r"\$(.*?)\$", typed, name)


def _distinct(names):
    """Names of which none is there twice: of the corners of a box that touch the same floor, all but the first are numbered."""
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} {k + 1}" if k else name for name, k in zip(names, before, strict=True)]


def dataset(values):
    """`xarray.Dataset` of a solution with values."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("Solution.to_xarray() needs xarray: pip install xarray") from error
    batch = batch_axes(values)
    t = np.asarray(values.t)
    alike = bool(batch) and t.size > 0 and np.array_equal(t, np.broadcast_to(t[(0,) * len(batch)], t.shape), equal_nan=True)
    t, at = (t[(0,) * len(batch)], ()) if alike else (t, batch)
    codes = {
        "outcome": {"flag_values": [int(code) for code in Outcome], "flag_meanings": " ".join(code.name for code in Outcome)},
        "events": {"flag_masks": [int(event) for event in Event], "flag_meanings": " ".join(event.name for event in Event)},
    }
    variables = {
        name: ((*batch, *axes), np.asarray(getattr(values, name)), ({"units": unit} if unit else {}) | codes.get(name, {}))
        for name, (axes, unit) in arrays(values).items()
    }
    if values.stop is not None:
        variables["stop"] = (batch, np.asarray(values.stop), {})
    times = {"t": ((*at, "node"), t, {"units": "s"}), "t_step": ((*at, "step"), t[..., 1:], {"units": "s"})}
    return xarray.Dataset(variables, coords=times | names_of(values), attrs=about(values))


def batch_axes(values):
    """Names of the axes of a batch: none, "member", or "member_0", "member_1", ..."""
    n = np.ndim(values.t) - 1
    return ("member",) if n == 1 else tuple(f"member_{i}" for i in range(n))


def frame(values):
    """`pandas.DataFrame` of a solution with values."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("Solution.to_dataframe() needs pandas: pip install pandas") from error
    batch, names = batch_axes(values), names_of(values)
    shape = np.shape(values.t)
    columns = {axis: np.broadcast_to(place, shape).ravel() for axis, place in zip(batch, np.indices(shape, sparse=True)[:-1], strict=True)}
    columns["t"] = np.asarray(values.t).ravel()
    first = {name: getattr(values.initial, name) for name in values.initial._fields}
    first |= {"iterations": 0, "residual": 0, "outcome": values.initial_outcome, "contact": -1, "events": 0}
    for name, (axes, _) in arrays(values).items():
        x = np.asarray(getattr(values, name))
        if name in first:
            # What happened in an interval is in the row of the node at its end, what happened at the first node in its row.
            start = np.broadcast_to(np.asarray(first[name], x.dtype), (*shape[:-1], *x.shape[len(shape) :]))
            x = np.concatenate([np.expand_dims(start, len(batch)), x], axis=len(batch))
        for place in np.ndindex(x.shape[len(shape) :]):
            label = ", ".join(str(names[axis][i] if axis in names else i) for axis, i in zip(axes[1:], place, strict=True))
            columns[f"{name}[{label}]" if place else name] = x[(..., *place)].ravel()
    table = pandas.DataFrame(columns)
    if values.stop is not None:
        # After the end of a motion there are no nodes.
        table = table[(np.arange(shape[-1]) <= np.asarray(values.end)[..., None]).ravel()].reset_index(drop=True)
    table.attrs = about(values)
    return table
