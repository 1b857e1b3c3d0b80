"""`Node`: one task of a roster, in a folder of its own; takes questions as bytes, and answers in bytes.

Its state and messages follow from its own rows and the board alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cloister.core.arrays import Integers, States, Words
from cloister.core.errors import BillboardError, InputError, SignatureError, StorageError
from cloister.core.tasks import Tasks
from cloister.engines.curator import bill_of, charge
from cloister.engines.local import Local, LocalWorkers
from cloister.engines.workers import check_groups
from cloister.nodes.identity import Identity
from cloister.nodes.messages import REFUSAL, Reply, ReplyKind, Request, RequestKind
from cloister.nodes.node_folder import Approval, KeptBoard, NodeFolder
from cloister.nodes.noise_shares import SUMS, NoiseShares
from cloister.plan.plan import Plan
from cloister.privacy.sampling import may_take_part
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile, SavedState
from cloister.store.commitments import FolderMemory
from cloister.store.files import private_folder, remove_drafts, write_private
from cloister.store.signatures import SignedHead, SignedRoster, check_run_name, public_key

#: Under this name the last message stands among the states: they are what follows it.
_MESSAGE = "the message of this round"
_HERE = np.ones(1, dtype=np.bool_)


@dataclass
class Work:
    """One task's work in one run; what it remembers is a file.

    A message is in that file, with the state after it, before anybody has it: asked again, the task sends the
    same. What fails on the rows is a message of zeros, which every channel allows: nobody else notices.

    Parameters
    ----------
    plan : Plan
        The plan.
    rows : Tasks, optional
        The task's rows; without any it sends zeros.
    seeds : uint64 array of shape (1,)
        The task's own seed.
    kept : CheckpointFile
        The file.
    takes_part : callable
        Says of each round up to this one whether the task takes part in it.
    log : callable
        Takes a sentence about what failed. Private.
    """

    plan: Plan
    rows: Tasks | None
    seeds: Words
    kept: CheckpointFile
    takes_part: Callable[[int], bool]
    log: Callable[[str], None]

    def message(self, board: Billboard) -> Integers:
        """Return the task's message of the coming round: the same whenever it is asked for."""
        found = self.kept.read(board)
        if found is not None and found[0] == board.rounds and _MESSAGE in found[1].states:
            message: Integers = found[1].states[_MESSAGE]
            return message
        states, message = self._round(board, found)
        if not self.kept.write(SavedState(states | {_MESSAGE: message}, 0), board):
            raise StorageError(f"{self.kept.path} cannot be written. Free some space.")
        return message

    def finish(self, board: Billboard) -> States:
        """Return the task's own model, from its state and the whole board."""
        if self.rows is None:
            raise InputError("There are no rows. Mend them, approve the plan again, and run the node.")
        with Local(threads=1).workers(self.plan, self.rows, self.seeds) as workers:
            self._catch_up(workers, board, self.kept.read(board))
            return {name: array[0] for name, array in workers.finish(board).items()}

    def _round(self, board: Billboard, found: tuple[int, SavedState] | None) -> tuple[States, Integers]:
        """Return the state after a round, and what is sent in it."""
        channel = self.plan.algorithm.channel(board)  # its own, whatever a curator takes it to be
        numbers = channel.size if self.plan.unit.by_record else channel.dim
        silence = np.zeros(numbers, dtype=np.int64)
        states: States = {} if found is None else _without_message(found[1].states)
        if self.rows is None:
            return states, silence
        try:
            with Local(threads=1).workers(self.plan, self.rows, self.seeds) as workers:
                self._catch_up(workers, board, found)
                states = workers.save_state().states
                took_part = self.takes_part(board.rounds)
                if not took_part and not self.plan.sampling.hidden:
                    return states, silence
                # Without a coin too: the time it takes would tell.
                message = workers.collect_rows(board, channel)[0]
                if workers.rejected():
                    self.log("A message was not finite, and zeros were sent in its place.")
                return (workers.save_state().states, message) if took_part else (states, silence)
        except Exception as error:  # on the rows: to refuse would tell others about them
            self.log(f"Round {board.rounds} failed here, and zeros were sent: {error}")
            return states, silence

    def _catch_up(
        self, workers: LocalWorkers, board: Billboard, found: tuple[int, SavedState] | None
    ) -> None:
        """Bring the state to where the coming round begins: by all work that the file does not have."""
        if found is None:
            workers.start(board.before(0))
            done = 0
        else:
            workers.restore_state(SavedState(_without_message(found[1].states), 0))
            done = found[0] + (_MESSAGE in found[1].states)
        for t in range(done, board.rounds):
            if self.takes_part(t):
                workers.listen(board.before(t), _HERE)
            elif self.plan.sampling.hidden:  # the same work without a coin: the time it takes would tell
                before = workers.save_state()
                workers.listen(board.before(t), _HERE)
                workers.restore_state(before)


def _without_message(states: States) -> States:
    return {name: array for name, array in states.items() if name != _MESSAGE}


class Node:
    """One task of a roster: a folder that holds its rows, state and model, and answers a curator's questions.

    Parameters
    ----------
    folder : path
        A node's folder, as `NodeFolder.create` or ``cloister node init`` made it.
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
        self.home = NodeFolder(Path(folder))
        self.types = tuple(types)
        self._plans: dict[str, tuple[Approval, Plan]] = {}
        self._boards: dict[str, KeptBoard] = {}

    def answer(self, request: bytes) -> bytes:
        """Answer one question of a curator; never raises, and tells no reason."""
        try:
            with self.home.locked():
                return self._answer(Request.from_bytes(request)).to_bytes()
        except Exception as error:
            self.home.log(f"Refused: {type(error).__name__}: {error}")
            return REFUSAL

    @property
    def runs(self) -> list[str]:
        """Names of the runs that this node has taken part in, or was asked to."""
        return sorted(path.parent.name for path in (self.home.folder / "runs").glob("*/board"))

    def signed_head(self, run: str, records: int | None = None) -> SignedHead:
        """Return the head of a run's board after so many records, as the operator has signed it. Public."""
        return self._kept(self._known_roster(run), run).signed_head(records)

    def board(self, run: str) -> Billboard:
        """Return the public board of a run, as far as it is here."""
        board = self._kept(self._known_roster(run), run).board
        if board is None:
            raise InputError(f"No record of run {run!r} is here yet. Ask the operator.")
        return board

    def model(self, run: str) -> States:
        """Return this task's own model of a finished run. Private."""
        path = self._folder(run) / "model.npz"
        if not path.exists():
            raise InputError(f"There is no model of run {run!r} here yet. See the node's log.")
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept)

    def codebook(self, run: str) -> str:
        """Return the SHA-256 of the codebook that a run is for; empty without one. Public."""
        return self._known_roster(run).codebook

    def finish(self, run: str) -> None:
        """Make the model of a run whose board is whole here, if that was interrupted; else do nothing."""
        board = self._kept(self._known_roster(run), run).board
        if board is not None and board.complete and not (self._folder(run) / "model.npz").exists():
            self.answer(Request(RequestKind.FINISH, run, board.rounds, len(board.records)).to_bytes())

    def _answer(self, request: Request) -> Reply:
        signed, folder = self._roster(request), self._folder(request.run)
        if signed is None:
            return Reply(ReplyKind.BEHIND, request.run, request.round, "", 0)
        approval, plan = self._approved(signed.plan)
        self._check_roster(signed, approval, plan)
        if (folder / "forked.json").exists():
            raise SignatureError("This board is forked, as forked.json proves. Nothing is answered any more.")
        if folder.exists():
            remove_drafts(folder)
        kept = self._kept(signed, request.run)
        if request.first > len(kept):
            return _reply(ReplyKind.BEHIND, request, kept)
        if not len(kept) and request.records:
            self._begin(folder, signed, request, approval, plan)
        kept.extend(request.first, request.records, plan)
        board = kept.board
        if board is None or board.rounds < request.round:
            return _reply(ReplyKind.BEHIND, request, kept)
        if board.rounds > request.round:
            self.home.log(f"Round {request.round} is over: {board.rounds} releases are posted.")
            return _ahead(request, kept)
        if request.kind is RequestKind.FINISH:
            self._finish(folder, kept, lambda: self._work(folder, plan, approval, request))
            return _reply(ReplyKind.DONE, request, kept)
        if board.complete:
            raise BillboardError("All rounds of this run are over.")
        if request.asked < (plan.quorum or 0):
            raise InputError(f"Round {request.round} asks {request.asked} nodes, fewer than {plan.quorum}.")
        if (request.step is not None) != plan.trust.stepwise:
            raise InputError("Sums that nodes may drop out of are asked for in steps, and no others.")
        if (folder / "data").read_text(encoding="ascii") != approval.data:
            raise InputError("The rows of this plan were changed since the run began. Bring them back.")
        work = self._work(folder, plan, approval, request)
        self._charge(folder, signed, plan, board)
        reply = partial(Reply, run=request.run, round=request.round, head=board.head.hex(), records=len(kept))
        if not plan.trust.at_home:
            return reply(ReplyKind.MESSAGE, row=work.message(board))
        shares = NoiseShares(self.home, folder, signed, approval, plan)
        if request.step is None:
            return reply(ReplyKind.MESSAGE, row=shares.added(board, work.message(board)))
        return reply(ReplyKind.STEP, said=shares.said(board, request.step, lambda: work.message(board)))

    def _folder(self, run: str) -> Path:
        return self.home.folder / "runs" / check_run_name(run)

    def _known_roster(self, run: str) -> SignedRoster:
        path = self._folder(run) / "roster.json"
        if not path.exists():
            raise InputError(f"There is no run {run!r} here. See the folders in {path.parent.parent}.")
        return SignedRoster.from_bytes(path.read_bytes())

    def _kept(self, roster: SignedRoster, run: str) -> KeptBoard:
        """Return a run's board as it is on disk; read it again only if another process has changed it."""
        known = self._boards.get(run)
        if known is None or not known.current or known.roster != roster:
            known = KeptBoard(self._folder(run), roster, public_key(self.home.settings.operator))
            self._boards[run] = known
        return known

    def _roster(self, request: Request) -> SignedRoster | None:
        """Return the run's roster, the one that was kept or one that is sent, signed; refuse a second one."""
        sent, known = request.roster, None
        if (self._folder(request.run) / "roster.json").exists():
            known = self._known_roster(request.run)
        if sent is None:
            return known
        sent.verify(public_key(self.home.settings.operator))
        if sent.run != request.run:
            raise InputError("The roster is of another run than the question.")
        if known is not None and sent != known:
            raise SignatureError("The operator has signed two rosters of this run. Ask the other owners.")
        return sent

    def _approved(self, fingerprint: str) -> tuple[Approval, Plan]:
        """Return what the owner has approved, read again only when it was approved anew."""
        approval = self.home.approval(fingerprint)
        known = self._plans.get(fingerprint)
        if known is None or known[0] != approval:
            plan = approval.plan(self.types)
            if plan.fingerprint != fingerprint:
                raise InputError(f"{approval.folder} holds another plan than was approved. Approve it anew.")
            self._plans[fingerprint] = known = approval, plan
        return known

    def _check_roster(self, signed: SignedRoster, approval: Approval, plan: Plan) -> None:
        """Refuse a run in which this task is not as its owner knows it."""
        settings, roster = self.home.settings, signed.roster
        at = roster.position(settings.task)
        if len(roster) != plan.n_tasks:
            raise InputError(f"The plan is for {plan.n_tasks} tasks. The roster lists {len(roster)}.")
        check_groups(plan, roster)
        group = None if roster.groups is None else str(roster.groups[at])
        if group != settings.group:
            raise InputError(f"The roster has this task in group {group!r}, and not in {settings.group!r}.")
        if signed.codebook != approval.codebook:
            raise InputError("The run is for another codebook than the one that was approved.")

    def _begin(
        self, folder: Path, signed: SignedRoster, request: Request, approval: Approval, plan: Plan
    ) -> None:
        """Refuse a board that promises less than its plan; then tie the run to its roster and these rows."""
        if any(charge.run == _key(signed) for charge in self.home.ledger.history):
            # One board is paid for, and nothing here says which. A charge follows the board's first record.
            raise BillboardError("This run was answered, and its board is gone. Restore runs/ from a copy.")
        self._check_keys(signed, approval)
        first = request.records[0]
        operator = public_key(self.home.settings.operator)
        board = Billboard.from_bytes(first.record)
        SignedHead(signed.run, signed.fingerprint, 1, board.head, first.signature).verify(operator)
        if board.plan != plan.fingerprint:
            raise BillboardError("The board is of another plan than its roster.")
        less = [doubt for doubt in plan.guarantee_on(board).doubts if doubt not in plan.guarantee.doubts]
        if less and not approval.trial:
            raise BillboardError(f"The board promises less than its plan: {less[0]}.")
        private_folder(folder.parent)
        private_folder(folder)
        write_private(folder / "data", approval.data.encode())
        write_private(folder / "roster.json", signed.to_bytes())

    def _check_keys(self, signed: SignedRoster, approval: Approval) -> None:
        """Refuse a roster of other keys than those that the owner has approved, where this node has any."""
        if not Identity.is_in(self.home.folder):
            return
        if signed.fingerprint != approval.roster:
            raise InputError(
                "The run's roster of names and keys is not the one that the owner has approved with the "
                "plan. Type cloister node approve with --roster."
            )

    def _charge(self, folder: Path, signed: SignedRoster, plan: Plan, board: Billboard) -> None:
        """Charge the node's own ledger for the whole run, once, before its first message."""
        if not (folder / "charged").exists():
            if plan.trust.at_home:
                FolderMemory(folder / SUMS).write("begun", b"")
            charge(self.home.ledger, bill_of(plan, board), _key(signed))
            write_private(folder / "charged", signed.fingerprint.encode())
        elif plan.trust.at_home and not (folder / SUMS).exists():
            raise StorageError(f"{folder / SUMS} is gone: it says what was answered. Restore it from a copy.")

    def _work(self, folder: Path, plan: Plan, approval: Approval, request: Request) -> Work:
        settings, source = self.home.settings, self.home.source
        seeds = source.stream(f"local {request.run}").words(1)
        if settings.seed is not None:
            seeds = np.array([settings.seed], dtype=np.uint64)
        return Work(
            plan,
            approval.rows(settings),
            seeds,
            CheckpointFile(folder / "states", source.key, approval.data),
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
        path = folder / "coins"
        known = path.read_text(encoding="ascii") if path.exists() else ""
        coins = request.coins or ""
        if request.kind is RequestKind.FINISH and not coins:  # it was asked in no other round
            coins = known.ljust(rounds, "0")
        if len(coins) != min(rounds, request.round + 1) or not coins.startswith(known[: len(coins)]):
            raise InputError("The curator has changed its word on who takes part in which round.")
        if not may_take_part(plan.sampling, rounds, [t for t, coin in enumerate(coins) if coin == "1"]):
            raise InputError("This task would take part in more rounds than its plan is priced for.")
        if len(coins) > len(known):
            write_private(path, coins.encode())
        return lambda t: coins[t] == "1"

    def _finish(self, folder: Path, kept: KeptBoard, work: Callable[[], Work]) -> None:
        """Make the model at home; that it fails is told at home."""
        if kept.board is None or not kept.board.complete:
            raise BillboardError("A model is made from a finished board, and this one is not.")
        if not (folder / "model.npz").exists():
            try:
                model = work().finish(kept.board)
            except Exception as error:  # on the rows: to refuse would tell others about them
                self.home.log(f"No model could be made: {error}")
                return
            buffer = io.BytesIO()
            np.savez(buffer, **model)  # type: ignore[arg-type]  # a name could be that of an option
            write_private(folder / "model.npz", buffer.getvalue())
        (folder / "states").unlink(missing_ok=True)


def _key(signed: SignedRoster) -> str:
    """Return the name of a run in the node's ledger."""
    return f"{signed.run} {signed.fingerprint}"


def _reply(kind: ReplyKind, request: Request, kept: KeptBoard) -> Reply:
    head = "" if kept.board is None else kept.board.head.hex()
    return Reply(kind, request.run, request.round, head, len(kept))


def _ahead(request: Request, kept: KeptBoard) -> Reply:
    """Return the proof, in the operator's own hand, that the board is further than the question."""
    head = kept.signed_head()
    return Reply(
        ReplyKind.AHEAD,
        request.run,
        request.round,
        head.head.hex(),
        head.length,
        signature=head.signature.hex(),
    )
