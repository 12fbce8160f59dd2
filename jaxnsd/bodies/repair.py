"""What MuJoCo refuses of a URDF, mended: inertias that no body has, and links that move without mass or moments of inertia."""

import numpy as np

from ..programs.given import shown

#: MuJoCo refuses a mass, or a moment, of a moving link below 1e-15 (mjMINVAL). What is missing is marked by the first number, and found
#: again, also where several links are one body, by being below the second one; in kg and kg m^2.
MARK, MISSING = 2e-15, 1e-13
#: A link without mass, or without moments, gets this part of those of the lightest link that has both; 1 g of a radius of gyration of 1 cm
#: where none has.
PART = 1e-3
NONE_SOUND = 1e-3, 1e-7
#: By this part less than it could be the largest moment is told apart from one that round-off makes too large.
ROUND_OFF = 1e-12
#: Smaller changes of a moment, as part of the largest one, are not worth a word.
UNTOLD = 1e-9
#: Most characters of the names of one kind of mending.
NAMES = 90


def compiled(spec):
    """``(model, what was mended)``: a ``mujoco.MjSpec`` compiled, as it is where MuJoCo takes it; in words, "" where nothing was.

    Of the inertias that no body has, those with a principal moment larger than the sum of the others, or negative, the principal axes are
    kept, and the moments become the `nearest` ones. Links that move without mass, or with a moment that is zero, get the `least`.

    Raises ValueError for a mass that is negative or no number, and for what MuJoCo refuses all the same.
    """
    try:
        return spec.copy().compile(), ""
    except ValueError:
        pass
    for body in spec.bodies:
        if not body.mass >= 0:
            raise ValueError(f"from_urdf: the mass of the link {body.name!r} must be a number that is not negative, got {shown(body.mass)}")
    least_mass, least_moment = least(spec)
    balanced, change = _balance(spec, least_moment)
    for body in spec.bodies[1:]:
        if not body.explicitinertial and not body.geoms:
            body.ipos = 0.0, 0.0, 0.0  # MuJoCo puts the mass of nothing elsewhere
    compiler = spec.compiler
    compiler.boundmass, compiler.boundinertia = max(compiler.boundmass, MARK), max(compiler.boundinertia, MARK)
    model = spec.compile()
    without_mass, without_moment = _fill(model, least_mass, least_moment)
    kinds = (
        ("inertia", "inertias", f"no body can have, changed the least (by up to {100 * change:.2g} %)", balanced),
        ("link", "links", f"moved without mass, now {least_mass:.2g} kg", without_mass),
        ("link", "links", f"moved without a moment of inertia, now {least_moment:.2g} kg m^2", without_moment),
    )
    texts = [f"{len(names)} {several if names[1:] else one} that {what}: {_listed(names)}" for one, several, what, names in kinds if names]
    return model, "; ".join(texts)


def nearest(moments):
    """Principal moments (3,) of a body, none larger than the sum of the others, that differ least from these, in the mean square.

    With the axes kept this is the nearest inertia tensor in Frobenius' norm.
    """
    order = np.argsort(moments)
    a, b, c = np.asarray(moments, float)[order]
    if (excess := c - a - b) > 0:
        a, b, c = a + excess / 3, b + excess / 3, c - excess / 3
    if a < 0:  # a rod, without a moment about its axis
        a, b, c = 0.0, *([max((moments[order[1]] + moments[order[2]]) / 2, 0.0)] * 2)
    out = np.empty(3)
    out[order] = a, b, min(c, (a + b) * (1 - ROUND_OFF) if a > 0 else b)
    return out


def least(spec):
    """``(mass in kg, moment in kg m^2)`` that a moving link has at least: a thousandth of those, at the mean, of the lightest sound one."""
    sound = [(body.mass, np.mean(moments)) for body, moments, _ in _inertias(spec) if body.mass > MISSING and _sound(moments)]
    return tuple(PART * x for x in min(sound)) if sound else NONE_SOUND


def _inertias(spec):
    """``(body, principal moments, axes)`` of the bodies that say their inertia, and have one."""
    for body in spec.bodies:
        if not body.explicitinertial:
            continue
        xx, yy, zz, xy, xz, yz = body.fullinertia
        if np.isfinite(xx):
            moments, axes = np.linalg.eigh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        else:
            moments, axes = np.array(body.inertia), None
        if np.any(moments):
            yield body, moments, axes


def _sound(moments):
    """Whether MuJoCo takes these moments for certain, up to round-off."""
    return min(moments) > MISSING and 2 * max(moments) <= sum(moments) * (1 + ROUND_OFF)


def _balance(spec, least_moment):
    """Make inertias those of bodies; names of these links, and the largest change as part of the largest moment."""
    names, largest = [], 0.0
    for body, moments, axes in _inertias(spec):
        if min(moments) > MISSING and 2 * max(moments) < sum(moments) * (1 - ROUND_OFF):
            continue
        mended = np.maximum(nearest(moments), least_moment if min(moments) <= MISSING else 0.0)
        if axes is None:
            body.inertia = mended
        else:
            tensor = (axes * mended) @ axes.T
            body.fullinertia = [*np.diag(tensor), tensor[0, 1], tensor[0, 2], tensor[1, 2]]
        change = np.max(np.abs(mended - moments)) / np.max(np.abs(moments))
        if change > UNTOLD:
            names.append(body.name)
            largest = max(largest, change)
    return names, largest


def _fill(model, least_mass, least_moment):
    """Give moving bodies the least mass and moments, where these are missing; names of those without mass, and without moments alone."""
    without_mass, without_moment = [], []
    masses, moments = model.body_mass.copy(), model.body_inertia.copy()
    has = (masses > MISSING) & (moments.min(axis=1) > MISSING)
    model.body_mass[masses <= MISSING], model.body_inertia[moments <= MISSING] = 0.0, 0.0  # what was but a mark
    for b in range(1, model.nbody):
        # As MuJoCo has it: what is fixed to a body may have what it lacks.
        if not model.body_dofnum[b] or np.any(has[model.body_weldid == b]):
            continue
        (without_moment if masses[b] > MISSING else without_mass).append(model.body(b).name)
        model.body_mass[b] = masses[b] if masses[b] > MISSING else least_mass
        model.body_inertia[b] = np.where(moments[b] > MISSING, moments[b], least_moment)
    return without_mass, without_moment


def _listed(names):
    """The first few of these names, and how many more there are."""
    shown, length = [], 0
    for name in names:
        length += len(name) + 4
        if shown and (length > NAMES or len(shown) == 3):
            break
        shown.append(repr(name if len(name) <= NAMES else f"{name[:NAMES]}..."))
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
