"""The site of the pages is built without a warning, loads nothing from the network, and its index has every public name."""

import importlib
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from repository import ROOT

import jaxnsd

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_site"))

from docstrings import first_sentence, restructured  # noqa: E402

SUBPACKAGES = ("bodies", "ensemble", "identify", "orbits", "drawing", "models", "schemes")


def link(name):
    return f":py:obj:`{name}`" if name == "simulate" else f"``{name}``"


def lines(text):
    return [line for line in restructured(inspect.cleandoc(text).splitlines(), link) if line]


def test_docstrings_become_restructured_text():
    assert lines("Finds `x` with ``a_`` *at once*, a * b, |p| and W_ of `simulate`.") == [
        r"Finds \ ``x``\  with \ ``a_``\  \ *at once*\ , a \* b, \|p\| and W\_ of \ :py:obj:`simulate`\ ."
    ]
    assert lines("Sentence.\n\nt, q:  a time,\n       and a state\nm:     kg") == [
        "Sentence.",
        "``t``, ``q``",
        "   a time, and a state",
        "``m``",
        "   kg",
    ]
    assert lines("Sentence.\n\n    x_ = 1\n\nMore.") == ["Sentence.", ".. code-block:: text", "   x_ = 1", "More."]
    rows = ("=====  ======  ====", "``a``  (N,)    one", "               two", "``b``  longer than that", "=====  ======  ====")
    cells = [re.sub(r"\\ ?", "", line).strip() for line in lines("Sentence.\n\n" + "\n".join(rows))[3:]]
    assert cells == ["* - ``a``", "- (N,)", "- one two", "* - ``b``", "-", "- longer than that"]
    assert first_sentence("Solves A14 (77) once.\nAnd again.\n\nMore.") == "Solves A14 (77) once."


class _Loaded(HTMLParser):
    """What a page loads, and does not only link to."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "link" and attributes.get("rel") in ("canonical", "index", "search", "next", "prev", "author"):
            return
        for name in ("src", "srcset", "data", "poster", *(("href",) if tag in ("link", "image", "use") else ())):
            if name in attributes:
                self.found.append(attributes[name] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the site."""
    for needed in ("sphinx", "myst_nb", "pydata_sphinx_theme", "imageio_ffmpeg"):
        pytest.importorskip(needed)
    out = tmp_path_factory.mktemp("site") / "docs"
    done = subprocess.run(
        [sys.executable, str(DOCS / "build.py"), str(out), "--films", "cradle"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert not done.stderr.strip(), done.stderr[-5000:]
    return out


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = _Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found or page.parent.name == "gallery"
        assert not [url for url in parser.found if re.match(r"(https?:)?//", url)], page.name
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import\s+[\"'](https?:)?//", text), sheet.name


@pytest.mark.slow
def test_the_index_has_every_public_name(site):
    index = (site / "genindex.html").read_text(encoding="utf-8")
    targets = set(re.findall(r'href="[^"#]*#(?:module-)?([\w.]+)"', index))
    wanted = {f"jaxnsd.{name}" for name in jaxnsd.__all__}
    for part in SUBPACKAGES:
        wanted |= {f"jaxnsd.{part}.{name}" for name in importlib.import_module(f"jaxnsd.{part}").__all__}
    assert len(wanted) > 160
    assert not wanted - targets


@pytest.mark.slow
def test_the_site_can_be_searched_and_read_in_the_dark(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "theme-switch-button" in text and "search-button" in text
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(f'"{page}"' in index for page in ("start", "gradients", "reference/jaxnsd", "notebooks/01_quickstart"))
    assert "<math" in (site / "notebooks/02_gradients_through_impact.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_gallery_shows_its_films(site):
    text = (site / "gallery.html").read_text(encoding="utf-8")
    assert re.findall(r'src="(gallery/\w+\.\w+)"', text) == ["gallery/cradle.mp4"] and 'href="gallery/cradle.html"' in text
    assert all((site / "gallery" / name).stat().st_size > 10_000 for name in ("cradle.mp4", "cradle.html"))


def test_no_more_than_ten_lines_of_exceptions():
    text = (DOCS / "conf.py").read_text(encoding="utf-8")
    ignored = re.search(r"^nitpick_ignore_regex = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)[1]
    assert len(ignored.splitlines()) <= 10
    assert "nitpicky = True" in text and '"-W"' in (DOCS / "build.py").read_text(encoding="utf-8")
    assert not re.search(r"suppress_warnings|nitpick_ignore\b", text)
