"""Checks of what the methods of a system return, and of whether they can be traced, from shapes and dtypes alone."""

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced
from ..programs import indices
from ..programs.given import calling, numbers, shown, takes
from . import laws


@functools.lru_cache(maxsize=256)
def check(structure, leaves, q, u):
    """Check the methods of the system of this structure; once for all systems of one class, as `jit` compiles once for them.

    leaves, q, u: shapes and dtypes
    """
    system = jax.tree.unflatten(structure, leaves)
    name, (n_q,), (n_u,) = type(system).__name__, q.shape, u.shape
    if n_q == 0 or n_u == 0:
        raise ValueError(f"simulate: {name} needs at least one coordinate and one velocity, got q0 {q.shape} and u0 {u.shape}")
    if not system.defines("q_dot") and n_q != n_u:
        raise ValueError(f"simulate: q0 and u0 must have one shape, got {q.shape} and {u.shape}, unless {name} defines q_dot(t, q, u)")
    if not any(map(system.defines, ("kinetic_energy", "mass_matrix", "M"))):
        raise TypeError(f"{name} must have an inertia, got neither; write kinetic_energy(t, q, u) or mass_matrix(t, q)")
    for field, n, letter in (("coordinate_names", n_q, "q"), ("velocity_names", n_u, "u")):
        _check_names(system, field, n, letter)
    _Signatures(system, q, u).check()


def _check_names(system, field, n, of):
    """Raise ValueError for what are not ``n`` names."""
    names = getattr(system, field)
    if names is None:
        return
    if not isinstance(names, (tuple, list)) or len(names) != n or not all(isinstance(text, str) for text in names):
        raise ValueError(f"{type(system).__name__}.{field} must be a tuple of {n} strings, one for each entry of {of}, got {shown(names)}")


def _at(q, u):
    return f" for q of shape {q.shape} and u of shape {u.shape}"


class _Signatures:
    """The methods of one system, of which only shapes and dtypes are known."""

    def __init__(self, system, q, u):
        self.system, self.q, self.u = system, q, u
        self.t = jax.ShapeDtypeStruct((), q.dtype)
        self.name = type(system).__name__
        #: Sets of friction of the law: (their kind, their number of directions).
        self.parts = _names(lambda system: [(type(part).__name__, part.d) for part in laws.of(system).sets], system)

    def check(self):
        """Check all of them, in an order in which what others are made of comes first."""
        (n_u,) = self.u.shape
        for given in self.system._functions():
            self.given(*given)
        if self.system._is_assembled():
            n_N, d = self.contacts()
        else:
            n_N, d = self.mechanics()
        self.columns(n_N, d)
        self.dry_friction(n_u)
        self.contact_data(n_N)
        self.sets(n_N)

    def mechanics(self):
        """Check what the user has written of the mechanics, and what is derived of it; ``(n_N, d)``."""
        t, q, u = self.t, self.q, self.u
        (n_q,), (n_u,) = q.shape, u.shape
        self.shape("potential_energy", t, q, wanted=(), meaning="(a scalar)")
        if self.system.defines("kinetic_energy"):
            self.shape("kinetic_energy", t, q, u, wanted=(), meaning="(a scalar)")
        if self.system.defines("mass_matrix"):
            self.shape("mass_matrix", t, q, wanted=(n_u, n_u), meaning="(n_u, n_u)")
        self.shape("q_dot", t, q, u, wanted=(n_q,), meaning="(n_q,)")
        n_N, d = self.contacts()
        _check_names(self.system, "contact_names", n_N, "the gap")
        if self.system.defines("drift_bound"):
            self.shape("drift_bound", t, q)
        n_g, n_gamma = self.constraints("constraint", t, q), self.constraints("velocity_constraint", t, q, u)
        for method, wanted in (
            ("force", (n_u,)),
            ("M", (n_u, n_u)),
            ("momentum", (n_u,)),
            ("b", (n_u,)),
            ("h", (n_u,)),
            ("gap_velocity", (n_N,)),
            ("constraint_velocity", (n_g,)),
            ("W_N", (n_u, n_N)),
            ("W_F", (n_u, n_N, d)),
            ("W_g", (n_u, n_g)),
            ("W_gamma", (n_u, n_gamma)),
        ):
            self.shape(method, t, q, u, wanted=wanted)
        return n_N, d

    def shape(self, method, *args, wanted=None, meaning="", function=None, call=None):
        """Shape of what a method returns, or of what a ``function`` returns that stands for a field; ``wanted`` if that is given.

        call: by which messages name it, where that is not the method of this name
        """
        call, closed = call or f"{self.name}.{method}", None
        q, u, written = self.q, self.u, getattr(type(self.system), method, None)
        function = function or written
        if function is written and inspect.isfunction(written):
            takes(call, written, ("self, t, q", "self, t, q, u")[len(args) - 2])
        with calling(call, _at(q, u)):
            if function is not written or self.system.defines(method):
                closed, out = jax.make_jaxpr(function, return_shape=True)(self.system, *args)
            else:
                out = jax.eval_shape(function, self.system, *args)
        if closed and (traced := [x for x in closed.consts if is_traced(x)]):
            raise TypeError(
                f"{call} must be a function of its arguments and of the fields of {self.name}, got one that reads an array of shape "
                f"{traced[0].shape} which jit, grad or vmap is tracing, and whose derivative would be lost; make it "
                f"{self.system._closes_over}"
            )
        if closed:
            _stays_inside(call, closed, q, u, stacklevel=7)
        if not hasattr(out, "shape"):
            raise TypeError(f"{call} must return an array, got {shown(out)}; jnp.stack([...]) makes one of scalars")
        if out.dtype != q.dtype and not (out.weak_type and out.ndim == 0):
            raise TypeError(f"{call} must return the dtype of the state, {q.dtype}, got {out.dtype}; make its arrays with that dtype")
        if wanted is not None and out.shape != wanted:
            raise ValueError(f"{call} must return shape {wanted}{meaning and f' {meaning}'}, got {out.shape}")
        return out.shape

    def given(self, call, function, n, meaning):
        """What was given as a function of (t, q, u) returns ``n`` numbers."""
        returned = []

        def asked(system, t, q, u):
            value = function(system, t, q, u)
            returned.append(value)
            return jnp.zeros((n,), q.dtype) if numbers(value) is None else jnp.asarray(value, q.dtype)

        self.shape("", self.t, self.q, self.u, wanted=(n,), meaning=f"({meaning})", function=asked, call=call)
        if numbers(returned[0]) is None:
            got = "complex ones" if getattr(returned[0], "dtype", None) in (np.complex64, np.complex128) else shown(returned[0])
            raise TypeError(f"{call} must return real numbers of shape ({n},) ({meaning}), got {got}")

    def contacts(self):
        """``(n_N, d)`` of gaps and tangential velocities."""
        gap = self.shape("gap", self.t, self.q)
        if len(gap) != 1:
            raise ValueError(
                f"{self.name}.gap must return shape (n_N,), one gap per contact, got {gap}; jnp.stack([...]) makes an array of scalars"
            )
        tangential = self.shape("tangential_velocity", self.t, self.q, self.u)
        if len(tangential) != 2 or tangential[0] != gap[0] or (tangential[1] > 2 and not self.parts):
            raise ValueError(
                f"{self.name}.tangential_velocity must return shape ({gap[0]}, d), with d = 1 (planar) or 2 (spatial), got {tangential}; "
                "of (n,) write [:, None] for one direction; more columns are those of rolling and drilling friction, which the law says"
            )
        return tangential

    def constraints(self, method, *args):
        """Number of bilateral constraints of a kind."""
        got = self.shape(method, *args)
        if len(got) != 1:
            raise ValueError(
                f"{self.name}.{method} must return shape (n,), one entry per constraint, got {got}; jnp.stack([...]) makes one"
            )
        return got[0]

    def columns(self, n_N, d):
        """The directions of friction are those of the law's sets."""
        columns = sum(size for _, size in self.parts)
        if self.parts and d != columns:
            shapes = " and ".join(f"{kind} ({size})" for kind, size in self.parts)
            raise ValueError(
                f"{self.name}.tangential_velocity must return shape ({n_N}, {columns}), the columns of the friction of {self.name}.law, "
                f"{shapes}, got {(n_N, d)}"
            )

    def contact_data(self, n_N):
        """Restitution and friction coefficients, fields or methods."""
        dtype = self.q.dtype

        def restitution(system, field):
            given = laws.restitutions(system)[field]
            return _numeric(given(jnp.ones(n_N, dtype)) if callable(given) else given, dtype)

        def coefficient(system, field):
            return _numeric(laws.coefficients(system)[field], dtype)

        for listed, value in ((laws.restitutions, restitution), (laws.coefficients, coefficient)):
            for field in _names(listed, self.system):
                got = self.shape(field, function=functools.partial(value, field=field))
                if got not in ((), (n_N,)):
                    raise ValueError(f"{self.name}.{field} must be a scalar or of shape {(n_N,)}, one entry per contact, got shape {got}")

    def dry_friction(self, n_u):
        """Bounds of dry friction, and the velocities on which it acts."""
        if not laws.has_dry_friction(self.system):
            return
        velocity = self.shape("dry_velocity", self.t, self.q, self.u)
        if len(velocity) != 1 or not velocity[0]:
            raise ValueError(f"{self.name}.dry_velocity must return shape (n_D,), one entry for each row of dry friction, got {velocity}")
        self.shape("W_D", self.t, self.q, self.u, wanted=(n_u, *velocity))

        def bound(system):
            value = system.dry_friction
            return _numeric(value() if callable(value) else value, self.q.dtype)

        got = self.shape("dry_friction", function=bound)
        if got not in ((), velocity):
            raise ValueError(f"{self.name}.dry_friction must be a scalar or of shape {velocity}, one entry per velocity, got shape {got}")

    def sets(self, n_N):
        """What the methods of the law's sets of friction return."""
        for k, (kind, size) in enumerate(self.parts):
            for method, wanted in (("size", (n_N,)), ("axes", (n_N, size, size))):

                def of_set(system, k=k, method=method):
                    return getattr(laws.of(system).sets[k], method)(n_N, self.q.dtype)

                with calling(f"{kind}.{method}", f" for n = {n_N} contacts"):
                    got = jax.eval_shape(of_set, self.system)
                if got is not None and got.shape != wanted:
                    raise ValueError(f"{kind}.{method} must return shape {wanted} for n = {n_N} contacts, got {got.shape}")


def _numeric(value, dtype):
    """What a field or a method without arguments says, as an array; TypeError for what is no number."""
    if numbers(value) is None:
        raise TypeError(f"it must be a number or an array of numbers, got {shown(value)}")
    return jnp.asarray(value, dtype)


def _names(function, system):
    """What a function of a system lists, of which only the shapes are known: a user's method may compute with its fields."""
    names = []
    for field in (*laws.CONTACT_DATA, "law", "dry_friction"):
        if inspect.isfunction(written := getattr(type(system), field, None)):
            with_speed = field in ("e_N", "e_F") and len(inspect.signature(written).parameters) == 2
            why = " alone, as friction does not depend on the motion" if field == "mu" else ""
            takes(f"{type(system).__name__}.{field}", written, "self, speed" if with_speed else "self", why)
    with calling(f"{type(system).__name__}: a method without arguments, as mu or law,"):
        jax.eval_shape(lambda system: names.extend(function(system)), system)
    return names


def traced(call, function, t, q, u):
    """``(closed jaxpr, shape of what it returns)`` of a function of (t, q, u) beside the system, which messages name by ``call``."""
    with calling(call, _at(q, u)):
        closed, out = jax.make_jaxpr(function, return_shape=True)(t, q, u)
    _stays_inside(call, closed, q, u, stacklevel=6)
    return closed, out


def _stays_inside(call, closed, q, u, stacklevel):
    """Raise ValueError, or warn, where a function reads entries that an array does not have."""
    outside = indices.out_of_bounds(closed)
    if not outside:
        return
    what, in_any_case = outside
    text = f"got {what}, for q of shape {q.shape} and u of shape {u.shape}"
    nearest = "entries are counted from 0, and JAX would read the nearest one, or write none, in silence"
    if in_any_case:
        raise ValueError(f"{call} must stay inside of its arrays, {text}; {nearest}")
    warnings.warn(f"{call} may leave its arrays in a loop or a branch: {text}; {nearest}", stacklevel=stacklevel)
