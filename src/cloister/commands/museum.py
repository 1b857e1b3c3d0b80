"""``cloister museum``: guarantees that are printed and false, measured against their claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.commands.options import Json
from cloister.commands.shell import advance, emit, say, show_table
from cloister.errors import InputError

if TYPE_CHECKING:
    from cloister.audit.museum import Conviction, Exhibit

__all__ = ["museum"]

_TOGETHER = 0.95

_Name = Annotated[str | None, typer.Argument(metavar="NAME", help="One exhibit; all of them by default.")]


def museum(name: _Name = None, json: Json = False) -> None:
    r"""Refute published guarantees that are false, by attacks.

    Each exhibit is a small implementation of something that was claimed to be private. The other tasks
    collude, and what they see is turned into a lower bound on the real epsilon. Its repaired twin stands the
    same attack. All bounds of a run hold together with 95 % confidence.

    \b
    For example:
      cloister museum
      cloister museum wishart-outputs
    """
    shown, found = _named(name), []
    with advance("Exhibits") as progress:
        for number, exhibit in enumerate(shown):
            progress(number, len(shown))
            found.append((exhibit, *_try(exhibit, len(shown))))
    if json:
        return emit({"confidence_together": _TOGETHER, "exhibits": [_document(*row) for row in found]})
    if name is not None:
        say(
            f"{shown[0].title[0].upper()}{shown[0].title[1:]}.",
            f"Claimed: {shown[0].source}.",
            shown[0].story,
        )
    heads = ["exhibit", "delta", "claimed", "measured", "repaired: claimed", "measured"]
    show_table(heads, (_cells(*row) for row in found))
    say(
        *(_impossible(exhibit, broken) for exhibit, broken, _ in found if exhibit.impossible is not None),
        f"Measured: epsilon is at least this much; all bounds hold together with {_TOGETHER:.0%} confidence. "
        "They are as large as the number of runs allows: the truth may be infinite.",
        apart=True,
    )


def _named(name: str | None) -> list[Exhibit]:
    from cloister.audit.museum import museum as exhibits

    shown = [exhibit for exhibit in exhibits() if name in (None, exhibit.name)]
    if not shown:
        names = ", ".join(exhibit.name for exhibit in exhibits())
        raise InputError(f"There is no exhibit named {name!r}. Choose one of {names}.")
    return shown


def _try(exhibit: Exhibit, among: int) -> tuple[Conviction, Conviction]:
    from cloister.audit.museum import convict, convict_repaired, each

    confidence = each(_TOGETHER, 2 * among)
    return convict(exhibit, confidence=confidence), convict_repaired(exhibit, confidence=confidence)


def _cells(exhibit: Exhibit, broken: Conviction, repaired: Conviction) -> list[str]:
    pairs = ((trial.claim.epsilon, trial.bound.epsilon) for trial in (broken, repaired))
    return [exhibit.name, f"{broken.claim.delta:g}", *(f"{number:.3g}" for pair in pairs for number in pair)]


def _impossible(exhibit: Exhibit, broken: Conviction) -> str:
    return (
        f"{exhibit.name}: {broken.impossible:.4f} of the silent runs were impossible under the neighbour; "
        f"theory says {exhibit.impossible:.4f}."
    )


def _document(exhibit: Exhibit, broken: Conviction, repaired: Conviction) -> dict[str, Any]:
    impossible = {"measured": broken.impossible, "exact": exhibit.impossible}
    return {
        "name": exhibit.name,
        "title": exhibit.title,
        "source": exhibit.source,
        "story": exhibit.story,
        "broken": _trial(broken),
        "repaired": {"title": exhibit.repaired.title} | _trial(repaired),
        "impossible": impossible if exhibit.impossible is not None else None,
    }


def _trial(trial: Conviction) -> dict[str, Any]:
    return {
        "claimed_epsilon": trial.claim.epsilon,
        "delta": trial.claim.delta,
        "relation": trial.claim.relation.value,
        "measured_epsilon": trial.bound.epsilon,
        "confidence": trial.bound.confidence,
        "refuted": trial.stands,
        "draws": trial.draws,
        "seed": trial.seed,
    }
