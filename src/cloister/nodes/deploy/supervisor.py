"""``deploy start`` and ``deploy status``: an operator's run, until its board is complete.

The first registers nodes and starts the curator, again if need be. The second says where the run stands:
board, ledger, and who was heard of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from cloister.core.errors import ClusterError
from cloister.nodes.flower.deployment import Control, Deployment
from cloister.store.billboard import Billboard, scan
from cloister.store.files import bytes_of


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


def curate(
    deployment: Deployment, view: Callable[[Status], None], patience: int = 20, every: float = 1.0
) -> Status:
    """Run the plan to its end over the link of this machine; whatever dies on the way is started again.

    Parameters
    ----------
    deployment : Deployment
        The operator's folder; link, executor and proxy run.
    view : callable
        Is shown where the run stands, every now and then.
    patience : int
        After so many starts in a row without a round it is given up.
    every : float
        Seconds between two looks.
    """
    fruitless, done, run = 0, -1, None
    while not deployment.finished:
        if fruitless > patience:
            raise ClusterError(
                f"The curator was started {patience} times without a new round. Read "
                f"{deployment.state / 'logs'}, then type the same again: the run goes on."
            )
        try:
            with Control.of(deployment) as control:
                deployment.__dict__.pop("nodes", None)
                control.register()
                if run is None:
                    run = control.start()
                _watch(deployment, control, run, view, every)
        except (httpx.HTTPError, OSError):  # the link is away: the curator may outlive that
            fruitless += 1
            time.sleep(every)
            continue
        posted = status(deployment).done
        fruitless = fruitless + 1 if posted == done else 0
        done, run = posted, None
    return status(deployment)


def _watch(
    deployment: Deployment, control: Control, run: int, view: Callable[[Status], None], every: float
) -> None:
    """Look on until a start has ended; a curator that was killed is noticed here before Flower does."""
    began, gone = False, 0
    while not control.over(run):
        view(status(deployment, control))
        time.sleep(every)
        at_work = deployment.curated
        began, gone = began or at_work, 0 if at_work or not began else gone + 1
        if gone * every > 5.0:
            control.stop(run)
            return
    view(status(deployment, control))
