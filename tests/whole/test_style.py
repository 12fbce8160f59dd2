"""The repository passes its own linter and is formatted by it."""

import ast
import subprocess
import sys

import pytest
from repository import ROOT


@pytest.mark.parametrize("arguments", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff(arguments):
    done = subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


#: What JAX does not promise to keep, by the names of modules.
INTERNALS = ("jax._src.", "jax.core.", "jax.extend.", "jax.interpreters.", "jax.experimental.", "jax.api_util.", "jaxlib.mlir.")


def test_one_module_alone_takes_what_jax_does_not_promise():
    """Imports, and names such as ``jax.core.Tracer``, of which `jax_internals` knows in which versions they were tried."""

    def names(tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Attribute):
                yield ast.unparse(node)

    def reaches(path):
        return {name for name in names(ast.parse(path.read_text(encoding="utf-8"))) if f"{name}.".startswith(INTERNALS)}

    found = {path.relative_to(ROOT).as_posix(): reaches(path) for path in (ROOT / "jaxnsd").rglob("*.py")}
    assert len(found.pop("jaxnsd/native/jax_internals.py")) > 5, "nothing is found anywhere, so nothing is tested"
    assert not {path: names for path, names in found.items() if names}


#: The folders, and the public modules beside them, from below: each imports from those before it.
WINGS = (
    "native",
    "programs",
    "numerics",
    "sets",
    "contact",
    "mechanics",
    "schemes",
    "simulation",
    "bodies",
    "models",
    "energy",
    "plotting",
    "compare",
    "drawing",
    "gym",
    "orbits",
    "ensemble",
    "identify",
    "command_line",
)


def test_imports_point_one_way():
    """Between the folders; an import inside of a function is one that is not needed to begin with, and does not count."""

    def imports(path):
        """Folders that a file imports from when it is imported."""
        tree, package = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT / "jaxnsd").parts[:-1]
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                yield from [base[0]] if base[0] else [alias.name for alias in node.names]

    found = {path: set(imports(path)) for path in (ROOT / "jaxnsd").rglob("*.py")}
    assert "mechanics" in found[ROOT / "jaxnsd/schemes/moreau.py"], "nothing is found anywhere, so nothing is tested"
    places = {path: path.relative_to(ROOT / "jaxnsd").parts[0].removesuffix(".py") for path in found}
    assert set(WINGS) == set(places.values()) - {"__init__", "__main__"}
    order = {wing: k for k, wing in enumerate(WINGS)}
    pairs = ((path.relative_to(ROOT).as_posix(), wing, places[path]) for path, wings in found.items() for wing in wings)
    upwards = {(file, wing) for file, wing, own in pairs if own in order and order.get(wing, 0) > order[own]}
    assert not upwards


def test_no_merge_is_left_open():
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    texts = [
        *ROOT.glob("*.md"),
        *(path for folder in ("jaxnsd", "tests", "docs", "examples") for path in (ROOT / folder).rglob("*.[pm][yd]")),
    ]
    assert len(texts) > 200 and not [path.name for path in texts for line in path.read_text("utf-8").splitlines() if line.startswith(marks)]
