"""Build the site: `python docs/build.py out/docs`, which `make docs` does.

Sphinx reads one folder. The pages, the notebooks and their pictures are copied into one, beside the site, and the pages of the reference
are written into it. What has not changed is left as it is, so that a second run is quick.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent

#: What stands where: section -> its pages. The page of a section has its name.
SECTIONS = {
    "start": ["systems", "models", "troubleshooting"],
    "how_to": [
        "bodies",
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
    "background": ["schemes", "contact", "gradients", "notebooks/*", "sources"],
    "reference": [],
    "developing": ["house", "a_step", "adding", "changelog"],
}


def toctree(entries, *options):
    """A table of contents that is seen beside the pages."""
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *entries, "```", ""])


def write(path, content):
    """Write what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)
    return path


def gather(source):
    """Everything that Sphinx reads, in the folder ``source``."""
    import public

    kept = {write(source / "conf.py", (HERE / "conf.py").read_bytes())}
    for path in sorted(HERE.rglob("*")):
        if path.suffix == ".md":
            # What lies beside docs/ lies within it here.
            text = re.sub(r"\]\(\.\./(notebooks|examples)/", r"](\1/", path.read_text(encoding="utf-8"))
            text = text.replace("](../CHANGELOG.md)", "](changelog.md)")
            if path.parent == HERE and (pages := SECTIONS.get(path.stem)):
                text += toctree(pages, ":glob:")
            kept.add(write(source / path.relative_to(HERE), text.encode()))
        elif path.is_file() and path.suffix in (".gif", ".png", ".css", ".py") and "__pycache__" not in path.parts:
            kept.add(write(source / path.relative_to(HERE), path.read_bytes()))
    for path in (*sorted((ROOT / "notebooks").glob("*.ipynb")), *sorted((ROOT / "examples/benchmarks").glob("*.png"))):
        kept.add(write(source / path.relative_to(ROOT), path.read_bytes()))
    kept.add(write(source / "changelog.md", (ROOT / "CHANGELOG.md").read_bytes()))
    index = (HERE / "README.md").read_text(encoding="utf-8") + toctree(SECTIONS)
    kept.add(write(source / "index.md", index.encode()))
    entries = [*(f"reference/{module}" for module in public.MODULES), "genindex"]
    reference = (HERE / "reference.md").read_text(encoding="utf-8") + toctree(entries)
    kept.add(write(source / "reference.md", reference.encode()))
    for module in public.MODULES:
        kept.add(write(source / f"reference/{module}.rst", public.page(module).encode()))
    for path in source.rglob("*"):
        if path.is_file() and path not in kept and "__pycache__" not in path.parts:
            path.unlink()


def main(out):
    sys.path[:0] = [str(HERE / "_site"), str(ROOT)]
    from sphinx.cmd.build import main as sphinx

    source = out.parent / f"{out.name}-source"
    gather(source)
    return sphinx(["-W", "--keep-going", "-q", "-b", "html", "-d", str(out.parent / f"{out.name}-doctrees"), str(source), str(out)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/docs")))
