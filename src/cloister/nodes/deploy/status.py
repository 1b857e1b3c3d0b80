"""Where a run stands, as its operator sees it: board, ledger, and who was heard of. Private."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from cloister.core.errors import CloisterError
from cloister.nodes.deploy.deployment import Deployment
from cloister.nodes.entry import KeyAuth, httpx
from cloister.nodes.http_transport import only
from cloister.store.billboard import Billboard, scan
from cloister.store.files import bytes_of

#: A node was here if the service has seen it within so many seconds.
_LATELY = 60.0


@dataclass(frozen=True)
class NodeStatus:
    """One node, as the operator sees it. Private: who answers late is not for everybody.

    Attributes
    ----------
    name : str
        The task's name.
    link : str
        ``here``, ``away`` or ``never seen``, as the service says it; without the service ``ended`` if the run
        is complete, else ``unknown``.
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
    answered : tuple of int
        Of how many nodes each release is, where the plan has a quorum: as the board says it.
    notes : int
        Lines of the operator's private log: what did not count, and what is waited for.
    last : str
        The last of these lines.
    """

    run: str
    rounds: int
    done: int
    head: str
    spent: float
    budget: float
    nodes: tuple[NodeStatus, ...]
    answered: tuple[int, ...]
    notes: int
    last: str

    @property
    def complete(self) -> bool:
        return self.done == self.rounds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def status(deployment: Deployment) -> Status:
    """Look at a deployment's folder, and ask its service if it runs."""
    board = _board(deployment)
    complete = board is not None and board.complete
    seen = {} if complete else _seen(deployment)
    heard, now = _heard(deployment), time.time()
    nodes = tuple(
        NodeStatus(
            name,
            "ended" if complete else _link(name, seen),
            None if name not in heard else now - heard[name],
        )
        for name in deployment.keys
    )
    ledger, log = deployment.ledger, deployment.state / "log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    releases = () if board is None else board.releases
    return Status(
        deployment.settings.run,
        deployment.settings.rounds,
        0 if board is None else board.rounds,
        "" if board is None else board.head.hex(),
        ledger.spent,
        ledger.epsilon,
        nodes,
        tuple(release.answered for release in releases if release.answered is not None),
        len(lines),
        lines[-1] if lines else "",
    )


def _link(name: str, seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return "unknown"
    if name not in seen or seen[name]["seen"] is None:
        return "never seen"
    return "here" if seen[name]["here"] or seen[name]["seen"] < _LATELY else "away"


def _seen(deployment: Deployment) -> Mapping[str, Any] | None:
    """Return what the service says of nodes; None if it does not run."""
    told = deployment.settings
    try:
        with httpx.Client(
            base_url=f"https://{deployment.reach}",
            verify=only(deployment.certificate),
            auth=KeyAuth.of_operator(told.address, deployment.operator),
            timeout=5.0,
            trust_env=False,
        ) as client:
            found = client.get("/v1/nodes")
            seen: Mapping[str, Any] = found.json()
            return seen if found.status_code == 200 else None
    except (httpx.HTTPError, OSError, ValueError):
        return None


def _board(deployment: Deployment) -> Billboard | None:
    path = deployment.journal / "board"
    try:
        return scan(bytes_of(path), path).board  # as far as it is whole: a curator may be writing
    except OSError:
        return None


def _heard(deployment: Deployment) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads((deployment.state / "heard.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found


@contextmanager
def shown(deployment: Deployment, view: Callable[[Status], None], every: float) -> Iterator[None]:
    """Show where a run stands meanwhile, from now on, every so many seconds."""
    over = threading.Event()

    def look() -> None:
        while True:
            with suppress(CloisterError, OSError, ValueError):  # a file that is just being written
                view(status(deployment))
            if over.wait(every):
                return

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()
