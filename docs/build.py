"""Build the site: `python docs/build.py out/docs`, which `make docs` does.

Sphinx reads one folder. The pages, the notebooks and their pictures are copied into one, and the pages of the reference are written into
it. All is made anew each time: a page shows what other pages, docstrings and the files in `_site` say.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent

#: What stands where: section -> its pages. The page of a section has its name.
SECTIONS = {
    "start": ["systems", "models", "troubleshooting"],
    "how_to": [
        "bodies",
        "runs",
        "films",
        "ensembles",
        "identification",
        "controllers",
        "other_libraries",
        "orbits",
        "energy",
        "from_mujoco",
        "from_siconos",
        "speed",
        "command_line",
    ],
    "background": ["equations", "schemes", "contact", "gradients", "notebooks/*", "sources"],
    "reference": [],
    "developing": ["house", "a_step", "adding", "changelog"],
}


def toctree(entries, *options):
    """A table of contents that is seen beside the pages."""
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *entries, "```", ""])


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def gather(source):
    """Everything that Sphinx reads, in the folder ``source``."""
    import public

    for path in sorted(HERE.rglob("*")):
        if path.suffix == ".md":
            # What lies beside docs/ lies within it here.
            text = re.sub(r"\]\(\.\./(notebooks|examples)/", r"](\1/", path.read_text(encoding="utf-8"))
            text = text.replace("](../CHANGELOG.md)", "](changelog.md)")
            if path.parent == HERE and (pages := SECTIONS.get(path.stem)):
                text += toctree(pages, ":glob:")
            write(source / path.relative_to(HERE), text)
        elif path.suffix in (".gif", ".png", ".css", ".py"):
            write(source / path.relative_to(HERE), path.read_bytes())
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        write(source / path.relative_to(ROOT), path.read_text(encoding="utf-8").replace("](../docs/", "](../"))
    for path in (ROOT / "examples/benchmarks").glob("*.png"):
        write(source / path.relative_to(ROOT), path.read_bytes())
    write(source / "changelog.md", (ROOT / "CHANGELOG.md").read_bytes())
    write(source / "index.md", (HERE / "README.md").read_text(encoding="utf-8") + toctree(SECTIONS))
    for module in public.MODULES:
        write(source / f"reference/{module}.rst", public.page(module))
    entries = [*(f"reference/{module}" for module in public.MODULES), "genindex"]
    write(source / "reference.md", (HERE / "reference.md").read_text(encoding="utf-8") + toctree(entries))


def main(out):
    sys.path[:0] = [str(HERE / "_site"), str(ROOT)]
    from sphinx.cmd.build import main as sphinx

    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, read = Path(folder) / "docs", Path(folder) / "read"
        gather(source)
        return sphinx(["-W", "--keep-going", "-q", "-b", "html", "-d", str(read), str(source), str(out)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/docs")))
