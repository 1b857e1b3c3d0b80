"""What all pages share: one frame and style sheet, and a stamp that says which plan a page is about."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from cloister._version import __version__
from cloister.core.errors import MissingExtraError
from cloister.plan.plan import Plan


@dataclass(frozen=True)
class Stamp:
    """What every page says of itself, so that it is not taken for that of another plan, date or version.

    Attributes
    ----------
    plan : str
        The plan in a few words.
    fingerprint : str
        Its hash.
    date : str
        When the page was made, in UTC.
    version : str
        Of cloister.

    Examples
    --------
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plan = Plan(MeanRegularized(LeastSquares(3), rounds=5), n_tasks=200).calibrate(epsilon=1.0)
    >>> Stamp.of(plan, datetime(2026, 7, 1, 12, tzinfo=UTC)).for_print  # doctest: +ELLIPSIS
    'mean-regularized over 200 tasks, 5 noisy sums | plan ... | 2026-07-01 12:00 UTC | cloister ...'
    """

    plan: str
    fingerprint: str
    date: str
    version: str

    @classmethod
    def of(cls, plan: Plan, when: datetime | None = None) -> Stamp:
        """Stamp a page about a plan, made now or at another moment."""
        rounds = len(plan.rounds)
        name = plan.algorithm.plain_name
        named = f"{name}{',' * (',' in name)} over {plan.n_tasks:,} tasks"
        sums = f"{rounds:,} noisy sum{'s' if rounds != 1 else ''}"
        moment = (datetime.now(UTC) if when is None else when).astimezone(UTC)
        return cls(f"{named}, {sums}", plan.fingerprint, f"{moment:%Y-%m-%d %H:%M} UTC", __version__)

    @property
    def for_print(self) -> str:
        """One line for the foot of every printed page."""
        return f"{self.plan} | plan {self.fingerprint[:16]} | {self.date} | cloister {self.version}"

    @property
    def print_style(self) -> str:
        """The style sheet that prints that line."""
        small = "font: 7.5pt system-ui, sans-serif; color: #444;"
        number = 'content: counter(page) " / " counter(pages); white-space: nowrap;'
        return (
            f"@media print {{ @page {{ @bottom-left {{ content: {css_string(self.for_print)}; {small} }}\n"
            f"@bottom-right {{ {number} {small} }} }} }}"
        )


def load_template(name: str) -> Any:
    """Return a page's template; it needs the extra ``tables``."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("jinja2", "tables", "Writing a report page") from error
    loader = jinja2.FunctionLoader(
        lambda part: resources.files("cloister.report").joinpath(part).read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.finalize = _unbroken
    environment.filters["shell"] = shlex.quote
    return environment.get_template(name)


def _unbroken(value: Any) -> Any:
    """Keep a number and its per cent sign on one line."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if type(value) is str else value


def css_string(text: str) -> str:
    r"""Return a text as a string of CSS that nothing in it can end: all but plain characters are escaped.

    Examples
    --------
    >>> print(css_string('1 | a"</style>'))
    "1 | a\22 \3c \2f style\3e "
    """
    plain = " .,:|()-_"
    inside = (c if (c.isalnum() and c.isascii()) or c in plain else f"\\{ord(c):x} " for c in text)
    return f'"{"".join(inside)}"'
