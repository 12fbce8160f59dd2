"""What is shipped: the wheel holds the package, the source distribution all that its tests load."""

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest
from repository import ROOT

pytest.importorskip("hatchling")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Directory with the wheel and the source distribution."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(directory)], cwd=ROOT, check=True, capture_output=True)
    return directory


def sources(folder):
    """Files below a folder of the repository, as paths from its root."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {name for name in files if "__pycache__" not in name and ".ipynb_checkpoints" not in name}


def test_the_wheel_is_the_package(built):
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert {name for name in names if not name.split("/")[0].endswith(".dist-info")} == sources("jaxnsd")


def test_the_source_distribution_holds_what_its_tests_load(built, tmp_path):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for name in {"README.md", "LICENSE", "Makefile", "CHANGELOG.md"}.union(
        *map(sources, ("jaxnsd", "tests", "examples", "notebooks", "docs"))
    ):
        assert (unpacked / name).is_file(), name
    # One file that imports nothing but the package, and those that load README, notebooks and examples.
    tests = [f"tests/{name}.py" for name in ("numerics/test_butcher", "whole/test_readme", "whole/test_notebooks", "whole/test_examples")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not bad", *tests]
    environment = os.environ | {"PYTHONPATH": str(unpacked), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
