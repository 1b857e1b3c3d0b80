"""Nodes in this process, for tests: every byte is made and read as between machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cloister.engines.node.node import Node

__all__ = ["InProcess"]


@dataclass(frozen=True)
class InProcess:
    """A link to nodes in this process, by their names.

    Examples
    --------
    ``run(plan, roster, engine=RemoteNodes(InProcess({"Elm": Node("elm"), ...}), operator))``
    """

    nodes: Mapping[str, Node]

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        for name, request in requests.items():
            if name in self.nodes:
                yield name, self.nodes[name].answer(request)
