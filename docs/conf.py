"""Sphinx makes the site of these pages with this: `make docs`, which calls build.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

import jax
import matplotlib.axes
import matplotlib.figure
import public
from docstrings import restructured
from sphinx.util.typing import stringify_annotation

import jaxnsd
from jaxnsd.drawing import plots
from jaxnsd.plotting import figures, fits, motions
from jaxnsd.plotting import orbits as pictures_of_orbits
from jaxnsd.schemes import base, velocity

# Names that annotations have in quotes.
later = {name: getattr(jaxnsd.orbits, name) for name in ("Basin", "Branch", "Orbit", "Diagram")} | {"Result": jaxnsd.identify.Result}
for module in (figures, fits, motions, pictures_of_orbits, plots):
    vars(module).update(later, Axes=matplotlib.axes.Axes, Figure=matplotlib.figure.Figure, Multibody=jaxnsd.bodies.Multibody)
base.Step = velocity.Step

project = "jaxnsd"
author = "the jaxnsd authors"
copyright = author
version = release = jaxnsd.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "myst_nb", "formulas"]
exclude_patterns = ["README.md", "_site"]
root_doc = "index"
nitpicky = True
smartquotes = False
# Types of other packages, whose pages are elsewhere, and those of our own that nobody makes by hand.
nitpick_ignore_regex = [
    ("py:.*", r"(jax|numpy|np|matplotlib|optax|os|collections|concurrent|types|pathlib|typing|xarray|gymnasium)\..*"),
    ("py:.*", r"jaxnsd\.([a-z_]+\.[a-z_.]+|laws|system)\.[A-Z]\w*"),
]

# Notebooks have their outputs, which a test makes anew.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "jaxnsd"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "jaxnsd"},
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
}


def setup(app):
    known = public.documented()

    def docstring(app, what, name, value, options, lines):
        module = max((module for module in public.MODULES if f"{name}.".startswith(f"{module}.")), key=len)
        lines[:] = restructured(lines, public.linker(known, module))

    # JAX's name for what is or becomes an array, not the six types that it stands for.
    arrays = stringify_annotation(jax.typing.ArrayLike, "smart")

    def signature(app, what, name, value, options, arguments, returned):
        return tuple(text and text.replace(arrays, "~jax.typing.ArrayLike") for text in (arguments, returned))

    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
