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
