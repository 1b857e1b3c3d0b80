"""Where a run between institutions stands, for its operator: board, ledger, and who was heard of."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloister.engines.flower.control import Control
from cloister.engines.flower.deployment import Deployment
from cloister.store.billboard import Billboard, scan
from cloister.store.files import bytes_of

__all__ = ["NodeStatus", "Status", "status"]


@dataclass(frozen=True)
class NodeStatus:
    """One node, as the operator sees it. Private: who answers late is not for everybody.

    Attributes
    ----------
    name : str
        The task's name.
    link : str
        What the link says of it: ``registered``, ``online``, ``offline``; without a link
        ``ended`` if the run is complete, else ``unknown``.
    heard : float, optional
        Seconds since its last answer; None if there was none yet.
    """

    name: str
    link: str
    heard: float | None


@dataclass(frozen=True)
class Status:
    """A run, as the operator sees it.

    Attributes
    ----------
    run : str
        Its name.
    rounds, done : int
        Rounds in all, and those whose release is posted.
    head : str
        The board's head, for comparison with what nodes have; empty before the first record.
    spent, budget : float
        Epsilon, of the operator's ledger.
    nodes : tuple of NodeStatus
        All nodes of ``nodes.toml``.
    notes : int
        Lines of the operator's private log: messages that did not count, and why.
    """

    run: str
    rounds: int
    done: int
    head: str
    spent: float
    budget: float
    nodes: tuple[NodeStatus, ...]
    notes: int

    @property
    def complete(self) -> bool:
        return self.done == self.rounds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def status(deployment: Deployment, control: Control | None = None) -> Status:
    """Look at a deployment's folder, and at its link if one is given."""
    board = _board(deployment)
    seen: Mapping[str, Any] = {} if control is None else control.nodes()
    heard, now = _json(deployment, "heard.json"), time.time()
    away = "ended" if board is not None and board.complete else "unknown"
    nodes = tuple(
        NodeStatus(
            name,
            away if control is None else _link(name, seen),
            None if name not in heard else now - heard[name],
        )
        for name in deployment.keys
    )
    ledger, log = deployment.ledger, deployment.state / "log"
    return Status(
        deployment.settings.run,
        deployment.settings.rounds,
        0 if board is None else board.rounds,
        "" if board is None else board.head.hex(),
        ledger.spent,
        ledger.epsilon,
        nodes,
        len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0,
    )


def _link(name: str, seen: Mapping[str, Any]) -> str:
    return str(seen[name].status) if name in seen else "not registered"


def _board(deployment: Deployment) -> Billboard | None:
    path = deployment.journal / "board"
    try:
        return scan(bytes_of(path), path).board  # as far as it is whole: a curator may be writing
    except OSError:
        return None


def _json(deployment: Deployment, name: str) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads((deployment.state / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
