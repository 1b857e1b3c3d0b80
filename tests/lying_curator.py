"""A curator that asks nodes whatever it likes, with the operator's key: for tests of what they refuse."""

from __future__ import annotations

from cloister.engines import RemoteNodes
from cloister.nodes.messages import Reply, ReplyKind, RequestKind, SumStep
from cloister.secure.double_masking import Attempt, Collector, Step
from cloister.secure.exchange import Exchange, packed


class LyingCurator:
    """Plays the steps of a round's sum, over any transport; what is shown to whom can be anything.

    Parameters
    ----------
    transport, operator, plan, roster, keys
        As of `RemoteNodes`.
    """

    def __init__(self, transport, operator, plan, roster, keys, deadline=20.0):
        engine = RemoteNodes(transport, operator, deadline=deadline, keys=keys, log=lambda line: None)
        self._workers = engine.workers(plan, roster, ())
        self.workers = self._workers.__enter__()
        self.plan, self.board, self.names = plan, plan.create_board(), [str(name) for name in roster]
        self.workers.asked = len(self.names)
        self.session = self.workers.sums.session

    def begin(self, number: int = 0) -> Exchange:
        attempt = Attempt(self.session, self.board.rounds, self.board.head, number)
        self.exchange = Exchange(Collector(attempt), self.plan.longest_message)
        return self.exchange

    def ask(self, place: int, step: Step, shown: bytes | None = None, number: int | None = None):
        """Return what a task says, or None if it refuses; by default it is shown what the protocol has."""
        if shown is None:
            shown = self.exchange.shown(step, place)
        if number is None:
            number = self.exchange.collector.attempt.number
        return self.asked(place, SumStep(number, step, shown))

    def asked(self, place: int, step: SumStep | None):
        name = self.names[place]
        steps = {} if step is None else {name: step}
        for _, reply in self.workers._replies(RequestKind.ROUND, [name], self.board, steps):
            assert isinstance(reply, Reply)
            return reply.said if reply.kind is ReplyKind.STEP else reply.row
        return None

    def tables(self, place: int) -> list[dict[int, bytes]]:
        """Return all that may be shown to a task: keys, sealed shares, survivors, signatures."""
        found = self.exchange.collector
        offers = {offer.place: offer.to_bytes() for offer in found.offers}
        alive = dict.fromkeys(found.alive, b"")
        return [offers, dict(found.boxes.get(place, {})), alive, dict(found.signatures)]

    def to(self, last: Step, alive=None):
        """Play honestly up to a step, that one included; of messages, those of some tasks alone."""
        for step in Step:
            places = self.exchange.asked(step)
            if step is Step.MESSAGE and alive is not None:
                places = list(alive)
            said = {place: self.ask(place, step) for place in places}
            assert None not in said.values(), step
            total = self.exchange.take(step, said)
            if step is last:
                return total
        raise AssertionError(last)

    def ballots(self, places, alive) -> dict[int, bytes | None]:
        """Ask tasks to sign a set of survivors, whatever the messages that are there."""
        out = {}
        for place in places:
            offers, boxes, _, _ = self.tables(place)
            out[place] = self.ask(place, Step.SURVIVORS, packed(offers, boxes, dict.fromkeys(alive, b"")))
        return out

    def opening(self, place: int, alive, signatures):
        offers, boxes, _, _ = self.tables(place)
        shown = packed(offers, boxes, dict.fromkeys(alive, b""), signatures)
        return self.ask(place, Step.OPENING, shown)
