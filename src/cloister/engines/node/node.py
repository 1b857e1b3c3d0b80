"""`Node`: one task of a roster, in a folder of its own; takes questions as bytes, and answers in bytes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from cloister.board.signatures import SignedHead, SignedRoster, public_key
from cloister.board.storage import remove_drafts, write_private
from cloister.engines.checkpoints import KeptStates
from cloister.engines.curator import bill_of, charge
from cloister.engines.node.home import Approval, Home
from cloister.engines.node.kept_board import KeptBoard
from cloister.engines.node.wire import REFUSAL, Ask, Reply, Request, Say
from cloister.engines.node.work import Work
from cloister.engines.workers import group_positions
from cloister.errors import BillboardError, InputError, SignatureError
from cloister.plan import Plan
from cloister.privacy.sampling import may_take_part

__all__ = ["Node"]


class Node:
    """One task of a roster: a folder that holds its rows, state and model, and answers a curator's questions.

    Parameters
    ----------
    folder : path
        A node's folder, as `Home.create` or ``cloister node init`` made it.
    types : iterable, optional
        Classes of your own, or the `Module` of a network, that an approved plan names.

    Privacy
    -------
    What leaves is one message a round, clipped and on the grid, for a plan that the owner has approved, after
    its price was charged to the node's own ledger. Everything else that leaves is public: how many records of
    the board are here. Whatever goes wrong is told in the folder's ``log`` alone. A question is refused, in
    the same bytes always, for reasons that do not depend on rows; what fails on rows is a message of zeros.
    """

    def __init__(self, folder: str | os.PathLike[str], types: Iterable[object] = ()) -> None:
        self.home = Home(Path(folder))
        self.types = tuple(types)
        self._plans: dict[str, Plan] = {}

    def answer(self, request: bytes) -> bytes:
        """Answer one question of a curator; never raises, and tells no reason."""
        try:
            with self.home.locked():
                return self._answer(Request.from_bytes(request)).to_bytes()
        except Exception as error:
            self.home.log(f"Refused: {type(error).__name__}: {error}")
            return REFUSAL

    def signed_head(self, run: str, records: int | None = None) -> SignedHead:
        """Return the head of a run's board after so many records, as the operator has signed it. Public."""
        folder = self.home.folder / "runs" / run
        if not (folder / "roster.json").exists():
            raise InputError(f"There is no run {run!r} here. See the folders in {folder.parent}.")
        roster = SignedRoster.from_bytes((folder / "roster.json").read_bytes())
        return KeptBoard(folder, roster, public_key(self.home.settings.operator)).signed_head(records)

    def _answer(self, request: Request) -> Reply:
        folder = self.home.run_folder(request.run)
        remove_drafts(folder)
        roster = self._roster(folder, request)
        if roster is None:  # records after the first were sent to who does not have that
            return Reply(Say.BEHIND, request.run, request.round, "", 0)
        approval = self.home.approval(roster.plan)
        plan = self._plan(roster.plan, approval)
        self._check_roster(roster, approval, plan)
        kept = KeptBoard(folder, roster, public_key(self.home.settings.operator))
        if request.first > len(kept):
            return self._reply(Say.BEHIND, request, kept)
        fresh = not len(kept)
        if fresh and request.records:
            self._check_start(plan, request, approval)
        kept.extend(request.first, request.records, plan)
        board = kept.board
        if (folder / "forked.json").exists():
            raise SignatureError("This board is forked, as forked.json proves. Nothing is answered any more.")
        if request.ask is Ask.HEAD:
            return self._reply(Say.DONE, request, kept)
        if board is None or board.rounds < request.round:
            return self._reply(Say.BEHIND, request, kept)
        if board.rounds > request.round:
            raise BillboardError(f"Round {request.round} is over: {board.rounds} releases are posted.")
        begun = self._begin(folder, approval)
        work = self._work(folder, plan, approval, request)
        if request.ask is Ask.FINISH:
            if not board.complete:
                raise BillboardError("A model is made from a finished board, and this one is not.")
            self._finish(folder, work, kept)
            return self._reply(Say.DONE, request, kept)
        if board.complete:
            raise BillboardError("All rounds of this run are over.")
        if not begun:
            charge(self.home.ledger, bill_of(plan, board), f"{roster.run} {roster.fingerprint}")
            write_private(folder / "charged", roster.fingerprint.encode())
        row = work.message(board)
        return Reply(Say.MESSAGE, request.run, request.round, board.head.hex(), len(kept), row)

    def _reply(self, say: Say, request: Request, kept: KeptBoard) -> Reply:
        head = "" if kept.board is None else kept.board.head.hex()
        return Reply(say, request.run, request.round, head, len(kept))

    def _roster(self, folder: Path, request: Request) -> SignedRoster | None:
        """Return the run's roster; the first that is signed is kept, and another one is refused."""
        path, sent = folder / "roster.json", request.roster
        if sent is not None:
            sent.verify(public_key(self.home.settings.operator))
        if path.exists():
            known = SignedRoster.from_bytes(path.read_bytes())
            if sent is not None and sent != known:
                raise SignatureError("The operator has signed two rosters of this run. Ask the other owners.")
            return known
        if sent is not None:
            if sent.run != request.run:
                raise InputError("The roster is of another run than the question.")
            write_private(path, sent.to_bytes())
        return sent

    def _plan(self, fingerprint: str, approval: Approval) -> Plan:
        if fingerprint not in self._plans:
            plan = approval.plan(self.types)
            if plan.fingerprint != fingerprint:
                raise InputError(f"{approval.folder} holds another plan than was approved. Approve it anew.")
            self._plans[fingerprint] = plan
        return self._plans[fingerprint]

    def _check_roster(self, roster: SignedRoster, approval: Approval, plan: Plan) -> None:
        """Refuse a run in which this task is not as its owner knows it."""
        settings = self.home.settings
        at = roster.roster.position(settings.task)
        if len(roster.roster) != plan.n_tasks:
            raise InputError(f"The plan is for {plan.n_tasks} tasks. The roster lists {len(roster.roster)}.")
        group = None if roster.roster.groups is None else str(roster.roster.groups[at])
        if group != settings.group:
            raise InputError(f"The roster has this task in group {group!r}, and not in {settings.group!r}.")
        group_positions(plan, roster.roster)
        if roster.codebook != approval.codebook:
            raise InputError("The run is for another codebook than the one that was approved.")

    def _check_start(self, plan: Plan, request: Request, approval: Approval) -> None:
        """Refuse a board that promises less than the plan did when it was approved."""
        from cloister.board.billboard import Billboard

        board = Billboard.from_bytes(request.records[0].record)
        if board.plan != plan.fingerprint:
            raise BillboardError("The board is of another plan than its roster.")
        less = [doubt for doubt in plan.guarantee_on(board).doubts if doubt not in plan.guarantee.doubts]
        if less and not approval.trial:
            raise BillboardError(f"The board promises less than its plan: {less[0]}.")

    def _begin(self, folder: Path, approval: Approval) -> bool:
        """Tie a run to the rows that it began with; say whether it was charged before."""
        path = folder / "data"
        if not path.exists():
            write_private(path, approval.data.encode())
        elif path.read_text(encoding="ascii") != approval.data:
            raise InputError("The rows of this plan were changed since the run began. Bring them back.")
        return (folder / "charged").exists()

    def _work(self, folder: Path, plan: Plan, approval: Approval, request: Request) -> Work:
        settings, source = self.home.settings, self.home.source
        seeds = source.stream(f"local {request.run}").words(1)
        if settings.seed is not None:
            seeds = np.array([settings.seed], dtype=np.uint64)
        return Work(
            plan,
            approval.rows(settings),
            seeds,
            KeptStates(folder / "states", source.key, approval.data),
            self._coins(folder, plan, request),
            self.home.log,
        )

    def _coins(self, folder: Path, plan: Plan, request: Request) -> Callable[[int], bool]:
        """Return in which rounds the task takes part: by its own coins, or as it is told, once for all."""
        rounds = len(plan.rounds)
        if plan.sampling.independent:
            own = self.home.source.stream(f"coins {request.run}")
            drawn = plan.sampling.draw(own.numbered, 1, rounds)
            return lambda t: bool(drawn[t, 0])
        told, path = request.coins or "", folder / "coins"
        known = path.read_text(encoding="ascii") if path.exists() else ""
        if len(told) != min(rounds, request.round + 1) or not told.startswith(known[: len(told)]):
            raise InputError("The curator has changed its word on who takes part in which round.")
        if not may_take_part(plan.sampling, rounds, [t for t, coin in enumerate(told) if coin == "1"]):
            raise InputError("This task would take part in more rounds than its plan is priced for.")
        if len(told) > len(known):
            write_private(path, told.encode())
        return lambda t: told[t] == "1"

    def _finish(self, folder: Path, work: Work, kept: KeptBoard) -> None:
        """Make the model at home; that it fails is told at home."""
        if (folder / "model.npz").exists():
            return
        assert kept.board is not None
        try:
            model = work.finish(kept.board)
        except Exception as error:
            self.home.log(f"No model could be made: {error}")
            return
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **model)
        write_private(folder / "model.npz", buffer.getvalue())
        write_private(folder / "head.json", json.dumps(kept.signed_head().to_dict(), indent=1).encode())
