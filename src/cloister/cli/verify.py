"""``cloister verify``: whether the public part of a run is what it says it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.options import Folder, Json, Types
from cloister.cli.shell import emit, say
from cloister.core.errors import InputError

if TYPE_CHECKING:
    from cloister.app.verify import Check, Evidence
    from cloister.privacy.guarantee import Guarantee


#: The exit code if nothing is wrong, and yet not all could be checked.
UNREAD = 3


def verify(
    folder: Folder,
    head: Annotated[str | None, typer.Option(help="The head as you kept it.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare to the last bit, on the machine that made the run.")
    ] = False,
    earlier: Annotated[
        Path | None, typer.Option(help="Folder of the run that this one starts from, to compare.")
    ] = None,
    types: Types = None,
    json: Json = False,
) -> None:
    r"""Check a run's public part by computing it again.

    Is the board whole, does it belong to the plan, has every release the noise that was paid for, does
    everything else follow from the releases, is the guarantee what the plan gives, and is every public file
    as it was written? Exit code 1 if not, 3 if that takes a class or network that was not given. Hashes
    show damage and edits; with the head that was printed, signed or published, also whether somebody
    computed them anew.

    Processors add up in other orders, so numbers are compared up to 2e-13 of the largest in their array,
    below which a curator could hide something; --exact compares every bit. That the noise was drawn at
    random cannot be seen from outside: for this the curator is trusted. Of a journal, which is plan and
    board alone, these are checked.

    \b
    For example:
      cloister verify exam-run
      cloister verify exam-run --head $(cat exam-run/head.txt)
      cloister verify exam-run --exact
    """
    from cloister.app.outcomes import has_outcomes
    from cloister.app.verify import Evidence, shown, verify_folder

    if head is not None and re.fullmatch(r"[0-9a-fA-F]{64}", head) is None:
        raise InputError(f"--head must be 64 hexadecimal digits. Got {shown(head)}. Copy it whole.")
    if has_outcomes(folder):
        if head is not None or earlier is not None:
            raise InputError(f"{folder} holds several outcomes: --head and --earlier are for one of them.")
        return _verify_outcomes(folder, exact, types, json)
    seen = Evidence(folder, head, types or (), exact, earlier)
    checks = verify_folder(seen)
    if json:
        emit(_document(seen, checks))
    else:
        say("\n".join(map(str, checks)), _verdict(seen))
    if not seen.good:
        raise typer.Exit(UNREAD if seen.unread else 1)
    return None


def _verify_outcomes(folder: Path, exact: bool, types: list[str] | None, json: bool) -> None:
    """Check the run of each outcome, and what all of them promise together."""
    from cloister.app.outcomes import runs_in
    from cloister.app.verify import Evidence, verify_folder, verify_together

    places = runs_in(folder)
    runs = {name: Evidence(place, None, types or (), exact) for name, place in places.items()}
    checks = {name: verify_folder(seen) for name, seen in runs.items()}
    last, due = verify_together(folder, runs)
    holds = due is not None and due.holds
    unread = next((seen.unread for seen in runs.values() if seen.unread), "")
    if last.ok is False or not all(seen.good or seen.unread for seen in runs.values()):
        unread = ""
    if json:
        each = {name: _document(seen, checks[name]) for name, seen in runs.items()}
        told = None if due is None else due.to_dict()
        said = {"check": last.name, "ok": last.ok, "detail": last.detail}
        emit(
            {
                "folder": folder,
                "ok": due is not None,
                "holds": holds,
                "outcomes": each,
                "together": said,
                "guarantee": told,
            }
        )
    else:
        for name, seen in runs.items():
            say("\n".join([f"Outcome {name}", *map(str, checks[name])]), _verdict(seen), apart=True)
        say(f"All outcomes together\n{last}", _verdict_together(folder, due, unread), apart=True)
    if due is None:
        raise typer.Exit(UNREAD if unread else 1)


def _unchecked(folder: Path, unread: str) -> str:
    return f"{folder} could NOT be checked. Do not rely on its guarantee yet. {unread}"


def _verdict_together(folder: Path, due: Guarantee | None, unread: str) -> str:
    if unread:
        return _unchecked(folder, unread)
    if due is None:
        return f"{folder} does NOT pass. Do not rely on its guarantee; restore it from a copy."
    if not due.holds:
        reasons = "; ".join(due.reasons) or "there is no noise"
        return f"{folder} is consistent, but its guarantee does NOT hold: {reasons}."
    return f"{folder} passes. Its guarantee is in guarantee.txt."


def _verdict(seen: Evidence) -> str:
    if seen.unread:
        return _unchecked(seen.folder, seen.unread)
    if not seen.good:
        return f"{seen.folder} does NOT pass. Do not rely on its guarantee; restore it from a copy."
    if seen.guarantee is not None and not seen.guarantee.holds:
        reasons = "; ".join(seen.guarantee.reasons) or "there is no noise"
        return f"{seen.folder} is consistent, but its guarantee does NOT hold: {reasons}."
    head = f"The head, to compare with a copy:\n{seen.head_found}"
    if seen.journal:
        return (
            f"{seen.folder} passes: a journal, of which plan and board give this.\n{head}\n\n{seen.guarantee}"
        )
    if seen.words:
        return f"{seen.folder} passes. Its guarantee is in guarantee.txt.\n{head}"
    return (
        f"{seen.folder} passes. Its guarantee is in guarantee.json; guarantee.txt is not there, or in the "
        f"words of an older version, and was not compared.\n{head}\n\n{seen.guarantee}"
    )


def _document(seen: Evidence, checks: list[Check]) -> dict[str, object]:
    claimed = seen.guarantee
    return {
        "folder": seen.folder,
        "ok": seen.good,
        "unread": seen.unread or None,
        "holds": seen.good and claimed is not None and claimed.holds,
        "head": seen.head_found if "board" in seen.passed else None,
        "plan": seen.plan.fingerprint if "plan" in seen.passed else None,
        "checks": [{"check": c.name, "ok": c.ok, "detail": c.detail} for c in checks],
        "guarantee": None if claimed is None else claimed.to_dict(),
    }
