"""What is public, and the pages of the reference that say so."""

import enum
import importlib
import inspect

from docstrings import first_sentence, inline

#: Parts of the page of a module: title -> names. What is not named here comes last.
PARTS = {
    "Systems": ("System", "system", "static", "Parameter", "LinearSystem", "Tridiagonal"),
    "Runs": ("simulate", "check", "Solution", "SimulationError", "Outcome", "Event", "at_times", "node_velocities"),
    "States that joints and contacts allow": ("project_position", "project_velocity"),
    "Programs that are kept": ("keep",),
    "Schemes": (
        "Scheme",
        "Moreau",
        "SymmetricMoreau",
        "VariationalMoreau",
        "MoreauJean",
        "MoreauJeanVariant",
        "Newmark",
        "HHT",
        "GeneralizedAlpha",
        "KrenkHogsberg",
        "Lobatto",
        "LocatedImpacts",
    ),
    "Laws of impact": ("NewtonImpact", "PoissonImpact"),
    "Contact problems": ("solve_contact_problem", "ContactSolution", "AbstractContactSolver", "SemismoothNewton", "InteriorPoint"),
}
#: What names stand for that are neither classes nor functions.
DATA = {
    "Parameter": "The type of a field that holds numbers: a number, or an array of them.",
    "MODELS": "The models by name: classes, or functions that make a model.",
    "COLOURS": "Okabe and Ito's palette, as words of matplotlib.",
    "STYLE": "Settings of matplotlib in which pictures are drawn.",
    "SPECIAL": "Markers of the special points of a branch.",
    "SCENES": "Files in MJCF by name, for `jaxnsd.bodies.from_mjcf` and the command line.",
}
#: Pages: modules whose public names they list.
MODULES = (
    "jaxnsd",
    "jaxnsd.bodies",
    "jaxnsd.models",
    "jaxnsd.schemes",
    "jaxnsd.sets",
    "jaxnsd.ensemble",
    "jaxnsd.identify",
    "jaxnsd.orbits",
    "jaxnsd.gym",
    "jaxnsd.energy",
    "jaxnsd.compare",
    "jaxnsd.plotting",
    "jaxnsd.drawing",
    "jaxnsd.drawing.plots",
)


def names(module):
    """Public names of a module: those of ``__all__``, else what it defines."""
    module = importlib.import_module(module)
    own = [name for name, value in vars(module).items() if name[0] != "_" and getattr(value, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", own))


def documented():
    """Full names of all classes and functions that have an entry, and of the modules."""
    found = {module: importlib.import_module(module) for module in MODULES}
    for module in MODULES:
        for name in names(module):
            found.setdefault(f"{module}.{name}", getattr(importlib.import_module(module), name))
    return found


def linker(known, module):
    """``link(name)`` of what a docstring of this module has in single backticks: a link where there is an entry, else code."""

    def link(name):
        for prefix in (module + ".", "jaxnsd.", "", *(other + "." for other in MODULES if other != "jaxnsd.models")):
            if prefix + name in known:
                return f":py:obj:`{name} <{prefix}{name}>`"
        owner, _, attribute = name.rpartition(".")
        if owner and attribute and (target := link(owner)).startswith(":"):
            return target.replace(f"`{owner} <", f"`{name} <")
        return f"``{name}``"

    return link


def page(module):
    """The page of a module, reStructuredText."""
    known, link = documented(), linker(documented(), module)
    lines = [f".. _{module}:", "", module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:", ""]
    parts = {title: [name for name in part if name in names(module)] for title, part in PARTS.items()} if module == "jaxnsd" else {}
    placed = {name for part in parts.values() for name in part}
    rest = [name for name in names(module) if name not in placed]
    parts["Modules" if parts else ""] = rest
    for title, part in parts.items():
        if title:
            lines += [title, "-" * len(title), ""]
        lines += [".. list-table::", "   :class: fields", ""]
        for name in part:
            value = known[f"{module}.{name}"]
            told = inspect.getdoc(value) if callable(value) or inspect.ismodule(value) else DATA[name]
            lines += [f"   * - {link(name)}", f"     - {inline(first_sentence(told), link)}"]
        lines += ["", f".. py:currentmodule:: {module}", ""]
        for name in part:
            if not inspect.ismodule(known[f"{module}.{name}"]):
                lines += [*_entry(module, name, known), ""]
    return "\n".join(lines) + "\n"


def _entry(module, name, known):
    value = known[f"{module}.{name}"]
    above = f"jaxnsd.{name}"
    if module != "jaxnsd" and known.get(above) is value:
        return [f".. py:class:: {name}", "   :no-contents-entry:", "", f"   The same as :py:obj:`{above}`."]
    if inspect.isclass(value):
        # What a base class has said is said there.
        bases = [other for other in known.values() if inspect.isclass(other) and other is not value and issubclass(value, other)]
        again = [name for name in vars(value) if name[0] != "_" and any(hasattr(other, name) for other in bases)]
        options = ["   :members:", *([f"   :exclude-members: {', '.join(again)}"] if again else [])]
        if issubclass(value, enum.Enum):
            options += ["   :undoc-members:", "   :member-order: bysource"]
        return [f".. autoclass:: {name}", *options]
    if inspect.isroutine(value):
        return [f".. autofunction:: {name}"]
    return [f".. autodata:: {name}", "   :no-value:"]
