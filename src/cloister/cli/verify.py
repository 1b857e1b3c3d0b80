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
    as it was written? Exit code 1 if not. Hashes show damage and edits; with the head that was printed,
    signed or published, also whether somebody computed them anew.

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
    from cloister.app.verify import Evidence, shown, verify_folder

    if head is not None and re.fullmatch(r"[0-9a-fA-F]{64}", head) is None:
        raise InputError(f"--head must be 64 hexadecimal digits. Got {shown(head)}. Copy it whole.")
    seen = Evidence(folder, head, types or (), exact, earlier)
    checks = verify_folder(seen)
    if json:
        emit(_document(seen, checks))
    else:
        say("\n".join(map(str, checks)), _verdict(seen))
    if not seen.good:
        raise typer.Exit(1)


def _verdict(seen: Evidence) -> str:
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
        "holds": seen.good and claimed is not None and claimed.holds,
        "head": seen.head_found if "board" in seen.passed else None,
        "plan": seen.plan.fingerprint if "plan" in seen.passed else None,
        "checks": [{"check": c.name, "ok": c.ok, "detail": c.detail} for c in checks],
        "guarantee": None if claimed is None else claimed.to_dict(),
    }
