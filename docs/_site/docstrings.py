"""Docstrings of jaxnsd as reStructuredText.

In the code a docstring is plain text that is read where it stands: ``name:  what it is`` is a parameter, an indented block is code or a
formula, `name` is something of the library, rows of === frame a table. Nothing in it is escaped. Here it becomes what Sphinx reads.
"""

import re

FIELD = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*):\s+(\S.*)")
INLINE = re.compile(r"``(.+?)``|`([^`]+)`|(?<![\w*])\*([A-Za-z][^*]*?)\*(?![\w*])")


def restructured(lines, link):
    """Lines of reStructuredText of a docstring; ``link(name)`` is the markup of what stands in single backticks."""
    first, *blocks = _blocks(lines) if any(map(str.strip, lines)) else [[]]
    found = [inline(" ".join(map(str.strip, first)), link), ""]  # a sentence, whatever it looks like
    for block in blocks:
        found += [*_block(block, link), ""]
    return found


def first_sentence(text):
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\w\w[.)`])\s+(?=[A-Z`])", paragraph)[0]


def inline(text, link):
    """A line of text with all that would mean something to Sphinx escaped, but for code, links and emphasis."""
    found, end = [], 0
    for match in INLINE.finditer(text):
        code, name, emphasis = match.groups()
        markup = f"``{code}``" if code else link(name) if name else f"*{_escaped(emphasis)}*"
        found += [_escaped(text[end : match.start()]), r"\ " if found or match.start() else "", markup, r"\ "]
        end = match.end()
    joined = "".join([*found, _escaped(text[end:])])
    return re.sub(r"^(?=[-+*(:.>=]|\w{1,3}[.)])", r"\\ ", joined)


def _escaped(text):
    return re.sub(r"([\\*|`]|_(?!\w))", r"\\\1", text)


def _blocks(lines):
    """Runs of lines between blank ones; indented ones belong to one block of code as long as nothing else stands between them."""
    block = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line.rstrip())
        elif block:
            yield block
            block = []


def _block(block, link):
    if block[0].startswith(" "):
        width = min(len(line) - len(line.lstrip()) for line in block)
        dedented = [line[width:] for line in block]
        if dedented[0].startswith("=="):
            return _table(dedented, link)
        return [".. code-block:: text", "", *("   " + line for line in dedented)]
    if block[0].startswith("=="):
        return _table(block, link)
    if len(block) > 1 and set(block[1]) == {"-"}:
        return [f".. rubric:: {block[0]}", "", *(_block(block[2:], link) if block[2:] else [])]
    if FIELD.fullmatch(block[0]):
        return _fields(block, link)
    if block[0].startswith(("- ", "* ")):
        items = re.split(r"\n[-*] ", "\n" + "\n".join(block))[1:]
        return [f"- {inline(' '.join(item.split()), link)}" for item in items]
    return [inline(" ".join(" ".join(block).split()), link)]


def _fields(block, link):
    """Parameters, as a list of definitions; what is indented goes on with the one before."""
    found = []
    for line in block:
        match = FIELD.fullmatch(line)
        if match:
            found.append([match[1], match[2]])
        elif line.startswith(" ") or not found[-1][0]:
            found[-1][1] += " " + line.strip()
        else:  # a sentence about all of them
            found.append(["", line])
    lines = []
    for names, text in found:
        if names:
            lines += [", ".join(f"``{name}``" for name in names.split(", ")), f"   {inline(text, link)}"]
        else:
            lines += ["", inline(text, link)]
    return lines


def _table(block, link):
    starts = [match.start() for match in re.finditer("=+", block[0])]
    rows = []
    for line in block[1:]:
        if line.startswith("=="):
            continue
        cells = _cells(line, starts)
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
    lines = [".. list-table::", "   :class: fields", ""]
    for row in rows:
        for k, cell in enumerate(row):
            lines.append(f"   {'  ' if k else '* '}- {inline(cell, link)}")
    return lines


def _cells(line, starts):
    """Cells of a row; a cell that is longer than its column ends at two spaces, or takes the rest."""
    first, rest = line[: starts[1]].strip(), line[starts[1] :]
    if len(starts) == 2:
        return [first, rest.strip()]
    if not line[: starts[2]].strip():
        return [first, "", line[starts[2] :].strip()]
    parts = re.split(r"\s{2,}", rest.strip(), maxsplit=1)
    return [first, *parts] if len(parts) == 2 else [first, "", parts[0]]
