"""What a guarantee does not say of a run: when, by which version, who held the rows, approved, and paid."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from cloister._version import __version__
from cloister.core.document import check_format
from cloister.core.errors import InputError
from cloister.ledger import Ledger
from cloister.store.files import write_file

FORMAT = "cloister run 1"


@dataclass(frozen=True)
class RunRecord:
    r"""What is kept of a run beside its plan and board. Public: names people, and nothing of any row.

    Attributes
    ----------
    rows_together : bool, optional
        Whether one operator, who was the curator too, held the rows of all tasks; None if that is not known.
    approved_by, approved_on : str
        Who approved the price, and when, if somebody said so.
    finished_on, version : str
        The day on which the run ended, and the version of cloister that ended it.
    in_ledger : bool, optional
        Whether a ledger was charged for it; None if that is not known.
    account : str
        Whose account in a ledger was charged, if one was.
    charge : int, optional
        The charge's number there, from 1 on.
    ledger_head : str
        The hash of that charge, and so of all before it.

    Examples
    --------
    >>> record = RunRecord(rows_together=True, approved_by="Dr. Ada Example", approved_on="2026-11-19")
    >>> print("\n".join(record.sentences))
    One operator held the rows of all tasks, and was the curator.
    Approved by Dr. Ada Example, 2026-11-19.
    >>> print(record.ended(None, "").sentences[-1])
    No ledger was charged: nothing adds this run up with others over the same tasks.
    """

    rows_together: bool | None = None
    approved_by: str = ""
    approved_on: str = ""
    finished_on: str = ""
    version: str = ""
    in_ledger: bool | None = None
    account: str = ""
    charge: int | None = None
    ledger_head: str = ""

    @classmethod
    def approved(cls, name: str | None) -> RunRecord:
        """Return the record of a run whose price somebody approves today."""
        if name is not None and not name.strip():
            raise InputError("approved_by must be a name. Got an empty one. Leave it out if nobody approved.")
        return cls() if name is None else cls(approved_by=name, approved_on=date.today().isoformat())

    def ended(self, ledger: Ledger | None, plan: str) -> RunRecord:
        """Return the record of a run that ends today, with the last charge of a plan, by its fingerprint."""
        ours = [] if ledger is None else [each for each in ledger.history if each.plan == plan]
        today = date.today().isoformat()
        found = replace(self, finished_on=today, version=__version__, in_ledger=bool(ours))
        if ledger is None or not ours:
            return found
        last = ours[-1]
        return replace(found, account=ledger.population, charge=last.number + 1, ledger_head=last.hash)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Say it in words; nothing of what is not known."""
        held = {
            True: "One operator held the rows of all tasks, and was the curator.",
            False: "Each task kept its own rows; the curator saw clipped messages.",
        }
        said = [] if self.rows_together is None else [held[self.rows_together]]
        if self.finished_on:
            said.append(f"Finished on {self.finished_on}, by version {self.version} of cloister.")
        if self.approved_by:
            said.append(f"Approved by {self.approved_by}, {self.approved_on}.")
        if self.charge is not None:
            said.append(f"Paid for by charge {self.charge} of the account {self.account!r}.")
        elif self.in_ledger is False:
            said.append("No ledger was charged: nothing adds this run up with others over the same tasks.")
        return tuple(said)

    def save(self, path: Path) -> None:
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        write_file(path, tomli_w.dumps({"format": FORMAT} | known).encode())

    @classmethod
    def load(cls, path: Path) -> RunRecord:
        """Read what :meth:`save` wrote; of a run of earlier versions, which has none, nothing is known."""
        if not path.exists():
            return cls()
        try:
            found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
            check_format(found.pop("format", None), FORMAT, path)
            read = cls(**found)
            right = {"rows_together": bool, "in_ledger": bool, "charge": int}
            if all(type(value) is right.get(name, str) for name, value in found.items()):
                return read
        except InputError:
            raise
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        raise InputError(f"{path} does not say how the run was made. Restore it, or remove it.")
