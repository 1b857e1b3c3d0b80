"""``cloister museum``: guarantees that are printed and false, measured against their claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import Json
from cloister.cli.shell import advance, emit, say, show_table
from cloister.core.errors import InputError
from cloister.privacy.statement import rounded_down

if TYPE_CHECKING:
    from cloister.audit.museum import Conviction, Exhibit

_TOGETHER = 0.95

_Name = Annotated[str | None, typer.Argument(metavar="NAME", help="One exhibit; all of them by default.")]


def museum(
    name: _Name = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    json: Json = False,
) -> None:
    r"""Refute false guarantees, most of them printed, by attacks.

    Each exhibit is a small implementation of something that was claimed to be private. The other tasks
    collude, and what they see is turned into a lower bound on the real epsilon. Its repaired twin stands the
    same attack. All bounds of a run hold together with 95 % confidence.

    Exit code 0: every claim is refuted and no repaired one is. Exit code 1: not so.

    \b
    For example:
      cloister museum
      cloister museum sample-counts --seed 7
    """
    shown, found = _named(name), []
    with advance("Exhibits") as progress:
        for number, exhibit in enumerate(shown):
            progress(number, len(shown))
            found.append((exhibit, *_try(exhibit, len(shown), seed)))
    if json:
        emit({"confidence_together": _TOGETHER, "exhibits": [_document(*row) for row in found]})
    else:
        _show(found, with_story=name is not None)
    if not all(_as_expected(broken, repaired) for _, broken, repaired in found):
        raise typer.Exit(1)


def _show(found: list[tuple[Exhibit, Conviction, Conviction]], with_story: bool) -> None:
    if with_story:
        exhibit = found[0][0]
        title = f"{exhibit.title[0].upper()}{exhibit.title[1:]}."
        say(title, f"Claimed: {exhibit.source}.", exhibit.story)
    heads = ["exhibit", "delta", "claimed", "measured", "verdict"]
    show_table(heads, (cells for row in found for cells in _cells(*row)))
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


def _try(exhibit: Exhibit, among: int, seed: int) -> tuple[Conviction, Conviction]:
    from cloister.audit.museum import convict, convict_repaired, each

    confidence = each(_TOGETHER, 2 * among)
    broken = convict(exhibit, seed=seed, confidence=confidence)
    return broken, convict_repaired(exhibit, seed=seed, confidence=confidence)


def _as_expected(broken: Conviction, repaired: Conviction) -> bool:
    return broken.stands and not repaired.stands


def _cells(exhibit: Exhibit, broken: Conviction, repaired: Conviction) -> list[list[str]]:
    """Return a row for the exhibit, and one for its repaired twin."""
    return [
        [
            name,
            f"{trial.claim.delta:g}",
            f"{trial.claim.epsilon:.3g}",
            rounded_down(trial.bound.epsilon),
            "refuted" if trial.stands else "stands",
        ]
        for name, trial in ((exhibit.name, broken), ("  repaired", repaired))
    ]


def _impossible(exhibit: Exhibit, broken: Conviction) -> str:
    return (
        f"{exhibit.name}: {broken.impossible:.4f} of the silent runs were impossible under the neighbour; "
        f"theory says {exhibit.impossible:.4f}."
    )


def _document(exhibit: Exhibit, broken: Conviction, repaired: Conviction) -> dict[str, object]:
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


def _trial(trial: Conviction) -> dict[str, object]:
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
