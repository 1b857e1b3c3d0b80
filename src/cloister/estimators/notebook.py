"""How a notebook shows an estimator: scikit-learn's diagram, and the public facts of a fit.

Notebooks are committed, mailed and printed. scikit-learn's diagram shows what a fit has learned, a corner of
`coef_` among it; here it shows what is public, and nothing of any task's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from sklearn.utils import estimator_html_repr

from cloister.app.summary import short_guarantee
from cloister.privacy.guarantee import Guarantee

#: What of a fit anybody may see.
PUBLIC = (
    *("n_features_in_", "feature_names_in_", "classes_", "codebook_"),
    *("plan_", "billboard_", "guarantee_"),
)


def diagram(estimator: Any) -> str:
    """Return scikit-learn's diagram of an estimator, with the public facts of its fit."""
    with _known_sections():
        shown: str = estimator_html_repr(estimator)
    guarantee = getattr(estimator, "guarantee_", None)
    return shown if guarantee is None else shown + _facts(guarantee, hasattr(estimator, "coef_"))


def parameters(shown: Any) -> Any:
    """Return scikit-learn's table of parameters, once it has read the docstring, for all diagrams."""
    with _known_sections():
        shown._repr_html_inner()
    return shown


def public_attributes(shown: Any) -> Any:
    """Return scikit-learn's table of what a fit has learned, without what is not public."""
    for name in [name for name in shown if name not in PUBLIC]:
        del shown[name]
    return shown


def _facts(guarantee: Guarantee, models: bool) -> str:
    own = ", each with a model of its own, which is not shown: it is private" if models else ""
    rows = {"tasks": f"{guarantee.n_tasks}{own}", "guarantee": short_guarantee(guarantee)}
    lines = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
    return f"<table style='text-align: left'>{''.join(lines)}</table>"


@contextmanager
def _known_sections() -> Iterator[None]:
    """Let docstrings have a section on privacy, which scikit-learn's reader of docstrings warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unknown section")
        yield
