"""Build the site: `python docs/build.py out/docs`, which `make docs` does. With `--films cradle` or so it has only these films.

Sphinx reads one folder. The pages, the notebooks and their pictures are copied into one, and the pages of the reference are written into
it. All is made anew each time: a page shows what other pages, docstrings and the files in `_site` say.
"""

import argparse
import re
import shutil
import subprocess
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
        "gallery",
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


def filmed(folder, names):
    """Names of the films in ``folder`` -> what a page shows of them. `examples/gallery.py` makes all of them, or these ``names``."""
    script = ROOT / "examples/gallery.py"
    subprocess.run([sys.executable, script, "--out", folder, *(["--only", *names] if names else [])], check=True, stdout=subprocess.DEVNULL)
    found = {}
    for path in folder.iterdir():
        if path.suffix in (".mp4", ".gif"):
            address = f'src="gallery/{path.name}" style="width: 480px; max-width: 100%"'
            film = f"<img {address}>" if path.suffix == ".gif" else f"<video controls loop autoplay muted playsinline {address}></video>"
            found[path.stem] = f'{film}\n<p><a href="gallery/{path.stem}.html">Turn it, stop it, look closer</a></p>'
    return found


def gather(source, films):
    """Everything that Sphinx reads, in the folder ``source``; ``films`` is of `filmed`."""
    import public

    for path in sorted(HERE.rglob("*")):
        if path.suffix == ".md":
            # What lies beside docs/ lies within it here.
            text = re.sub(r"\]\(\.\./(notebooks|examples)/", r"](\1/", path.read_text(encoding="utf-8"))
            text = text.replace("](../CHANGELOG.md)", "](changelog.md)")
            text = re.sub(r"<!-- film: (\w+) -->", lambda found: films.get(found[1], ""), text)
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


def main(argv=None):
    sys.path[:0] = [str(HERE / "_site"), str(ROOT)]
    from sphinx.cmd.build import main as sphinx

    parser = argparse.ArgumentParser(prog="build.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "out/docs", help="folder of the site (default: out/docs)")
    parser.add_argument("--films", nargs="+", metavar="NAME", help="films of the gallery that are made (default: all)")
    args = parser.parse_args(argv)
    shutil.rmtree(args.out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source, read, gallery = (Path(folder) / name for name in ("docs", "read", "gallery"))
        gather(source, filmed(gallery, args.films))
        status = sphinx(["-W", "--keep-going", "-q", "-b", "html", "-d", str(read), str(source), str(args.out)])
        shutil.copytree(gallery, args.out / "gallery")
    return status


if __name__ == "__main__":
    sys.exit(main())
