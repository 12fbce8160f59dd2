"""The repository passes its own linter and is formatted by it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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
    assert len(found.pop("jaxnsd/jax_internals.py")) > 5, "nothing is found anywhere, so nothing is tested"
    assert not {path: names for path, names in found.items() if names}
