"""Blocks of Python in README and on the pages run, in order, and print what stands beside them; links lead somewhere."""

import contextlib
import io
import re

import pytest
from repository import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for name, text in PAGES.items()}
#: Packages that pages call, and that not every environment has.
NEEDED = {
    "docs/other_libraries.md": ("optimistix", "blackjax", "equinox", "gymnasium"),
    "docs/from_mujoco.md": ("mujoco",),
    "docs/ensembles.md": ("mujoco",),
}
WORD = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?|[^\s\d,;()\[\]]+", re.IGNORECASE)


def agrees(printed, comment):
    """Whether the comment begins with the line that was printed; a remark may follow behind a semicolon."""
    words, said = WORD.findall(printed), list(WORD.finditer(comment))
    if len(words) > len(said):
        return False
    rest = comment[said[len(words) - 1].end() :].lstrip(" )]")
    return rest[:1] in ("", ";") and all(same(word, match[0]) for word, match in zip(words, said, strict=False))


def same(word, said):
    """Numbers agree to a unit of the last digit that is said; what is below 1e-9 is round-off, which machines do not share."""
    try:
        number, expected = float(word), float(said)
    except ValueError:
        return word == said
    digits, _, exponent = said.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(number - expected) <= 1.001 * unit or max(abs(number), abs(expected)) < 1e-9


def test_lines_that_agree_and_lines_that_do_not():
    assert agrees("(4001,) True", "(4001,) True")
    assert agrees("0.657 -0.175", "0.657 -0.175; exact: 0.658 and -0.175")
    assert agrees("all 750 steps; holds to 2.1e-14", "all 750 steps; holds to 3.4e-14")
    assert not agrees("0.657 1.000", "0.657 -0.175; exact: 0.658 and -0.175")
    assert not agrees("(4001,) False", "(4001,) True")
    assert not agrees("0.657", "0.657 -0.175")
    assert not agrees("0.657 -0.175 3", "0.657 -0.175")


def test_files_of_the_house_are_there():
    """What the page on the house names, it finds: files and folders of the package."""
    table = PAGES["docs/house.md"].split("What to know")[0]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / "jaxnsd" / name).exists()]


def test_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 150


def test_links_lead_to_files_and_headings():
    def anchors(text):
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    links = [(name, link) for name, text in PAGES.items() for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert len(links) > 30
    for name, link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), (name, link)
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), (name, link)


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks])
def test_blocks_print_what_stands_beside_them(page, tmp_path, monkeypatch):
    for package in NEEDED.get(page, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    namespace, compared = {}, 0
    for block in BLOCKS[page]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, page, "exec"), namespace)
        comments = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE)
        lines = printed.getvalue().splitlines()
        assert len(lines) == len(comments), (lines, comments)
        for line, comment in zip(lines, comments, strict=True):
            assert agrees(line, comment), (line, comment)
        compared += len(lines)
    assert compared >= 1
    if page == "README.md":
        assert (tmp_path / "ball.png").stat().st_size > 10_000
