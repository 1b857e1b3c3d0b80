"""``deploy start``: registers nodes, starts the curator, and starts it again until the board is complete."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from cloister.deploy.status import Status, status
from cloister.engines.flower.control import Control
from cloister.engines.flower.deployment import Deployment
from cloister.errors import ClusterError

__all__ = ["curate"]


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
    fruitless, done, run, now = 0, -1, None, None
    while fruitless <= patience:
        try:
            with Control.of(deployment) as control:
                deployment.__dict__.pop("nodes", None)
                control.register()
                if run is None:
                    run = control.start()
                while True:
                    ended = control.over(run)
                    now = status(deployment, control)
                    view(now)
                    if ended:
                        break
                    time.sleep(every)
        except (httpx.HTTPError, OSError):
            fruitless += 1
            time.sleep(every)
            continue
        if now.complete and (deployment.state / "finished.json").exists():
            return now
        fruitless = fruitless + 1 if now.done == done else 0
        done, run = now.done, None
    raise ClusterError(
        f"The curator was started {patience} times without a new round. Read {deployment.state / 'logs'}, "
        "then type the same again: the run goes on."
    )
