"""The documentation site: `make docs` builds it into build/site, without a network, warnings as errors."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import cloister

project = "cloister"
author = "The cloister developers"
project_copyright = "the cloister developers"
version = release = cloister.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
html_theme = "furo"
html_title = "cloister"
html_math_renderer = "mathml"
html_theme_options = {"footer_icons": []}

myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]

#: Docstrings are NumPy's, with a section of our own; names in single backticks are names.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_custom_sections = [("Privacy", "notes_style"), ("Objective", "notes_style")]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = True
#: Words such as "rows" in the type of a parameter are names of several attributes as well.
suppress_warnings = ["ref.python"]

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"^\* \[[^]]+\]\(([^)#]+)\.md\)", re.MULTILINE)


def add_sidebar(app: object, name: str, source: list[str]) -> None:
    """Give a front page's links to the sidebar, section by section, so that they are written once."""
    if not name.endswith("README"):
        return
    parts = _SECTION.split(source[0])
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if pages := _PAGE.findall(text):
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"
    if name != root_doc:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def skip_others(app: object, what: str, name: str, item: object, skip: bool, options: object) -> bool | None:
    """Leave out methods that scikit-learn makes for every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def write_mathml(translator: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw by themselves: nothing is fetched."""
    display = "math_block" in type(node).__name__
    mathml = tex2mathml(node.astext(), as_block=display)
    if display:
        mathml = f'<div style="padding: 0.5em 0; overflow-x: auto">{mathml}</div>'
    translator.body.append(mathml)
    raise nodes.SkipNode


def write_index(app: Any, failed: Exception | None) -> None:
    """Lead whoever opens the site's folder to the front page."""
    if failed is None and app.builder.format == "html":
        moved = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        link = f'<a href="{root_doc}.html">cloister</a>'
        page = f'<!doctype html><html lang="en"><title>cloister</title>{moved}{link}</html>'
        Path(app.outdir, "index.html").write_text(page + "\n", encoding="utf-8")


def setup(app: Any) -> None:
    app.add_html_math_renderer(
        "mathml", inline_renderers=(write_mathml, None), block_renderers=(write_mathml, None)
    )
    app.connect("source-read", add_sidebar)
    app.connect("autodoc-skip-member", skip_others)
    app.connect("build-finished", write_index)
