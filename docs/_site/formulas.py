"""Formulas as MathML, which browsers draw without a script."""

from docutils.nodes import SkipNode
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def markup(node, as_block):
    try:
        return latex2mathml.tex2mathml(node.astext().replace("½", r"\tfrac{1}{2}"), as_block=as_block)
    except MathError as error:
        logger.warning("formula %r: %s", node.astext(), error, location=node)
        return ""


def inline(self, node):
    self.body.append(markup(node, False))
    raise SkipNode


def block(self, node):
    self.body.append(f'<div class="formula">{markup(node, True)}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
