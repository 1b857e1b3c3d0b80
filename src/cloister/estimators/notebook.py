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

from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr

from cloister.privacy.guarantee import Guarantee
from cloister.tables.summary import short_guarantee

__all__ = ["ShownInNotebooks"]

#: What of a fit anybody may see.
PUBLIC = (
    *("n_features_in_", "feature_names_in_", "classes_", "codebook_"),
    *("plan_", "billboard_", "guarantee_"),
)


class ShownInNotebooks(BaseEstimator):  # type: ignore[misc]
    """The part of an estimator that scikit-learn asks when it draws one, alone or in a pipeline."""

    def _html_repr(self) -> str:
        with _known_sections():
            diagram: str = estimator_html_repr(self)
        guarantee = getattr(self, "guarantee_", None)
        return diagram if guarantee is None else diagram + _facts(guarantee, hasattr(self, "coef_"))

    def _get_params_html(self, deep: bool = True, doc_link: str = "") -> Any:
        shown = super()._get_params_html(deep, doc_link)
        with _known_sections():
            shown._repr_html_inner()  # reads the docstring, once for all diagrams
        return shown

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        shown = super()._get_fitted_attr_html(doc_link)
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
