"""In place of Ray: actors in this process, asked at once. What travels is pickled, and a lost one is lost.

What depends on processes, on what Ray does with errors and with memory, is tested on a real one.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


def travelled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@dataclass(frozen=True, eq=False)
class Promise:
    value: Any
    lost: bool = False


@dataclass(eq=False)
class Handle:
    """An actor; its methods are asked by ``handle.method.remote(...)``."""

    actor: Any
    asked: list[str]
    lost: bool = False

    def __getattr__(self, name):
        def remote(*args):
            self.asked.append(name)
            if self.lost:
                return Promise(None, lost=True)
            return Promise(travelled(getattr(self.actor, name)(*travelled(args))))

        return SimpleNamespace(remote=remote)


@dataclass
class PretendRay:
    """What `Cluster` uses of Ray; `asked` lists the methods of all actors as they were called."""

    asked: list[str] = field(default_factory=list)
    ObjectRef = Promise
    exceptions = SimpleNamespace(
        RayError=RayError,
        RayActorError=RayActorError,
        ObjectLostError=RayActorError,
        OutOfMemoryError=RayActorError,
        NodeDiedError=RayActorError,
    )

    def remote(self, **resources):
        def wrapped(made):
            if isinstance(made, type):
                return SimpleNamespace(remote=lambda *args: Handle(made(*travelled(args)), self.asked))
            return SimpleNamespace(remote=lambda *args: Promise(travelled(made(*travelled(args)))))

        return wrapped

    def wait(self, promises, num_returns=1, timeout=None):
        return promises[:1], promises[1:]

    def get(self, promise):
        if promise.lost:
            raise RayActorError
        return promise.value

    def kill(self, handle):
        handle.lost = True

    def cluster_resources(self):
        return {"CPU": 8.0}


@contextmanager
def pretended(monkeypatch):
    """Let clusters use pretended actors meanwhile, which print where tests do."""
    ray = PretendRay()

    @contextmanager
    def session(address, cpus, cards):
        yield ray

    with monkeypatch.context() as patch:
        patch.setattr("cloister.cluster.engine.session", session)
        patch.setattr("cloister.cluster.actor._prepare_process", lambda: None)
        yield ray
