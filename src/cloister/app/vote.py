"""Running all candidates and the vote: in memory, or durably in a folder, where a killed call goes on.

The vote is charged once, however often it goes on.

Until it is complete it works in a draft beside the folder. Every candidate's run, and the vote, has a journal
of its own there, under ``choice``; beside them lie two kinds of private files, which are deleted at the end:
the election last, when the folder is in place, so that until then nothing else can pass for what was begun.

=========== ============================================================================================
election    the key that rows are split by, a digest of the data under it, the key of the charge, and
            whether all is written
kept-0, ... what the vote and the winner's models need of a candidate's run that is complete: the tasks'
            losses on rows that they kept back, and their local seeds
=========== ============================================================================================
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from cloister.app.choice import Choice, TuningResult, Vote
from cloister.app.folder import check_free, put_in_place, read_run, tidy, unfinished_folder, write_run
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.run_record import RunRecord
from cloister.core.arrays import Floats, Words
from cloister.core.document import foreign_types
from cloister.core.errors import InputError, PlanError
from cloister.core.tasks import Tasks, local_key
from cloister.engines.curator import Bill, charge, check_price
from cloister.engines.local import Local
from cloister.engines.run import Run, check_run, replay, run
from cloister.learners.linear.losses import Loss
from cloister.ledger import Ledger
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.randomness import source_of
from cloister.store.billboard import Billboard
from cloister.store.files import private_folder, remove_drafts, sync_folder, write_private
from cloister.store.secret import Secret, digest_of
from cloister.tables.codebook import Codebook

_WARNING = "SECRET: who has this can tell which rows were kept back. Share it with nobody."
_GIVE_UP = "or remove that folder to give it up: what it has spent stays spent"


def vote(
    election: Vote,
    tasks: Tasks,
    *,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> TuningResult:
    """Run all candidates, let tasks vote by their own held-out rows, and return the winner.

    The winner's models are replayed against its board on all of each task's rows, which is free.

    Parameters
    ----------
    election : Vote
        Candidates and budget.
    tasks : Tasks
        As many as it says.
    ledger : Ledger, optional
        Charged once, for everything, before anything leaves a task.
    random_state : int, optional
        Makes it reproducible and INSECURE.

    Examples
    --------
    >>> from cloister.algorithms import Independent, MeanRegularized
    >>> from cloister.learners import LeastSquares, Regression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.5, 0.5, (300, 8, 3))
    >>> y = X @ [0.9, -0.9, 0.5] + 0.2 * rng.normal(size=(300, 8))  # all alike, few rows: sharing pays
    >>> loss = LeastSquares(3)
    >>> grid = (Independent(Regression(3, intercept=False)), MeanRegularized(loss, lam=1.0, lr=1.0, clip=2.0))
    >>> election = Vote(grid, loss, n_tasks=300, epsilon=4.0)
    >>> choice = vote(election, Tasks.from_list(list(X), list(y)), random_state=0)
    >>> choice.index, type(choice.candidate).__name__
    (1, 'MeanRegularized')
    """
    check_tasks(tasks, election.n_tasks)
    plans = election.plans
    guarantee = election.guarantee_from(source_of(random_state).origin)
    check_vote(election, tasks)
    if ledger is not None:
        charge(ledger, Bill(election.fingerprint, election.cost_under, guarantee.doubts))
        guarantee = replace(guarantee, all_runs=ledger.balance.all_runs)
    train, test = tasks.split(election.holdout, split_seed(random_state))
    runs = [run(plan, train, random_state=run_seed(random_state, i)) for i, plan in enumerate(plans[:-1])]
    losses = np.column_stack([held_out_losses(done, test, election.loss) for done in runs])
    count = run(plans[-1], slips_of(train, losses), random_state=run_seed(random_state, len(runs)))
    record = Choice(plans, (*(done.board for done in runs), count.board))
    best = record.winner
    found = on_all_rows(runs[best], tasks, guarantee)
    return TuningResult(best, election.candidates[best], found, np.array(record.votes), guarantee, record)


def check_vote(election: Vote, tasks: Tasks) -> None:
    """Refuse what the runs of a vote refuse before their charge; they are all charged at once."""
    for plan in election.plans[:-1]:
        check_run(plan, tasks, Local())
    check_price(election.plans[-1])


def slips_of(tasks: Tasks, losses: Floats) -> Tasks:
    """Return what tasks vote by: one row each, the losses of all candidates."""
    count = len(tasks)
    return Tasks(tasks.ids, losses, np.zeros(count), np.ones(count), np.arange(count + 1, dtype=np.int64))


def chosen_run(choice: TuningResult, codebook: Codebook, settings: EstimatorSettings) -> TableRun:
    """Return the chosen run over a table, with the record and the guarantee of the whole choice."""
    return replace(TableRun.of(choice.run, codebook, settings), choice=choice.record)


def held_out_losses(done: Run, test: Tasks, loss: Loss) -> Floats:
    """Return each task's mean loss on its own held-out rows; NaN for a task that has none."""
    losses = np.full(len(done.private.ids), np.nan)
    layout = test.layout()
    for index, block in zip(layout, test.blocks(layout), strict=True):
        at = np.searchsorted(done.private.ids, test.ids[index])
        coef = done.private.models["coef"][at]
        losses[at] = loss.value(coef, block.X, block.y, block.weight)
    return losses


def on_all_rows(done: Run, tasks: Tasks, guarantee: Guarantee) -> Run:
    """Replay the chosen run on all rows, which is free; its guarantee is that of the whole choice.

    `Tasks.split`, by which it was of a part of them, sorts tasks by name.
    """
    own = tasks.select(np.argsort(tasks.ids))
    models = replay(done.plan, done.board, own, seeds=done.private.seeds)
    private = replace(done.private, models=models)
    return replace(done, private=private, all_runs=guarantee.all_runs, of_choice=guarantee)


def check_tasks(tasks: Tasks, n_tasks: int) -> None:
    if len(tasks) != n_tasks:
        raise InputError(f"The choice is for {n_tasks} tasks. Got {len(tasks)}. Make one for these.")


def split_seed(random_state: int | None) -> int:
    """Return the seed that tasks split their rows by."""
    return secrets.randbits(63) if random_state is None else int(random_state)


def run_seed(random_state: int | None, number: int | str) -> int | None:
    """Return another seed for every run, so that no two have the same noise."""
    return None if random_state is None else int(local_key(int(random_state), f"run {number}"))


def vote_in_folder(
    folder: Path,
    election: Vote,
    tasks: Callable[[], Tasks],
    codebook: Codebook,
    settings: Sequence[EstimatorSettings],
    *,
    record: RunRecord = RunRecord(),  # noqa: B008
    ledger: Ledger | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    resumed: Callable[[int], None] | None = None,
) -> TableRun:
    """Vote as `vote` does, and leave the chosen run in a folder with the record of all of them.

    Parameters
    ----------
    folder : Path
        Where the chosen run will be: a new folder, or (with `force`) that of an older run.
    election : Vote
        Candidates and budget.
    tasks : callable
        Returns the encoded tasks.
    codebook : Codebook
        How they are encoded.
    settings : sequence of EstimatorSettings
        Which estimator each candidate is of.
    record : RunRecord
        Who approved it, if somebody has. Who held the rows and which charge paid for it is added.
    ledger : Ledger, optional
        Charged once for everything, however often it goes on.
    force : bool
        Whether to replace an older run.
    progress : callable, optional
        Called with (runs done, runs in all).
    resumed : callable, optional
        Called with the number of complete runs when an unfinished vote goes on; the vote is one of them, if
        all is complete and only put in place.
    """
    tidy(folder)
    check_free(folder, force)
    draft = unfinished_folder(folder)
    if draft.is_symlink() or draft.exists():
        private_folder(draft)
    begun = _begin(draft, election, tasks(), codebook, ledger, resumed)
    if not begun.written:
        made = replace(record, rows_together=True).ended(ledger, election.fingerprint)
        _finish(begun, codebook, settings, made, progress)
    _remove_kept(draft)
    put_in_place(draft, folder, force)
    finished = read_run(folder, [kind for plan in election.plans for kind in foreign_types(plan)])
    if ledger is None:
        return finished
    return replace(finished, guarantee=replace(finished.guarantee, all_runs=ledger.balance.all_runs))


@dataclass(frozen=True)
class _Begun:
    """A vote that was charged for, if it is to be, and may let things out."""

    draft: Path
    election: Vote
    tasks: Tasks
    secret: Secret
    written: bool

    @property
    def rows(self) -> tuple[Tasks, Tasks]:
        """The rows that messages are made of, and those that are kept back: the same whenever it goes on."""
        split = hashlib.blake2b(bytes.fromhex(self.secret.key), digest_size=8, person=b"cloister split")
        return self.tasks.split(self.election.holdout, int.from_bytes(split.digest()) >> 1)

    def home(self, name: object) -> Path:
        return self.draft / "choice" / str(name)

    def kept(self, number: int) -> Path:
        return self.draft / f"kept-{number}"


def _begin(
    draft: Path,
    election: Vote,
    tasks: Tasks,
    codebook: Codebook,
    ledger: Ledger | None,
    resumed: Callable[[int], None] | None,
) -> _Begun:
    """Charge for everything, once; refuse what may not take place before anything is written or charged."""
    check_tasks(tasks, election.n_tasks)
    check_vote(election, tasks)
    if (draft / "plan.toml").exists() and not (draft / "election").exists():
        raise InputError(
            f"{draft} holds another run, which is not a vote, or not this one. Do what began it again, "
            f"{_GIVE_UP}."
        )
    place = private_folder(draft) / "election"
    remove_drafts(draft)
    fresh = not place.exists()
    if fresh:
        begun = _Begun(draft, election, tasks, Secret.new(tasks, None, ledger is not None), written=False)
        _write(begun)
    else:
        begun = _read(draft, election, tasks, ledger)
    if begun.written and Codebook.load(draft / "codebook.toml").to_dict() != codebook.to_dict():
        raise InputError(
            f"The codebook has changed since the vote in {draft} was begun. Bring it back as it was, "
            f"{_GIVE_UP}."
        )
    if ledger is not None:
        bill = Bill(election.fingerprint, election.cost_under, election.guarantee.doubts)
        try:
            charge(ledger, bill, begun.secret.run)
        except (InputError, PlanError):  # it may not take place, and nothing was recorded
            if fresh:
                place.unlink()
                with suppress(OSError):
                    draft.rmdir()
            raise
    if not fresh and resumed is not None:
        resumed(len(election.plans) if begun.written else sum(1 for _ in draft.glob("kept-*")))
    return begun


def _write(begun: _Begun) -> None:
    document = {"warning": _WARNING, "plans": begun.election.fingerprint, "written": begun.written}
    write_private(begun.draft / "election", json.dumps(document | asdict(begun.secret), indent=1).encode())


def _read(draft: Path, election: Vote, tasks: Tasks, ledger: Ledger | None) -> _Begun:
    """Read what a vote needs to go on; refuse to go on with anything else than what was begun."""
    place = draft / "election"
    try:
        document = json.loads(place.read_text(encoding="utf-8"))
        plans, written = document.pop("plans"), document.pop("written")
        del document["warning"]
        secret = Secret(**document)._of_this_version(draft)
        same_rows = digest_of(tasks, bytes.fromhex(secret.key)) == secret.data
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(f"{place} was edited: this vote cannot go on. Restore it, {_GIVE_UP}.") from None
    if plans != election.fingerprint:
        raise PlanError(
            f"The unfinished vote in {draft} is among other plans. Give the same settings, {_GIVE_UP}."
        )
    if not same_rows:
        raise InputError(
            f"The data, or how it is encoded, has changed since the vote in {draft} was begun, and "
            f"nothing is paid for releases of other data. Bring it back as it was, {_GIVE_UP}."
        )
    if secret.charged and ledger is None:
        raise InputError(
            f"The unfinished vote in {draft} was begun with a ledger. Name it again, {_GIVE_UP}."
        )
    return _Begun(draft, election, tasks, secret, written is True)


def _finish(
    begun: _Begun,
    codebook: Codebook,
    settings: Sequence[EstimatorSettings],
    record: RunRecord,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Run what is not yet complete, count the votes, and write the chosen run to the draft."""
    draft, plans = begun.draft, begun.election.plans
    private_folder(draft / "choice")
    train, test = begun.rows
    heard = []
    for number, plan in enumerate(plans[:-1]):
        heard.append(_candidate(begun, number, plan, train, test))
        if progress is not None:
            progress(number + 1, len(plans))
    if not _complete(begun.home("vote")):
        slips = slips_of(train, np.column_stack([losses for losses, _ in heard]))
        run(plans[-1], slips, journal=begun.home("vote"))
    names = [*range(len(plans) - 1), "vote"]
    choice = Choice(plans, tuple(Billboard.load(begun.home(name) / "board") for name in names))
    best = choice.winner
    plan, board = plans[best], choice.boards[best]
    own = begun.tasks.select(np.argsort(begun.tasks.ids))
    models = replay(plan, board, own, seeds=heard[best][1])
    found = TableRun(plan, board, choice.guarantee, codebook, own.ids, models, settings[best], {}, choice)
    found = replace(found, record=record)
    plan.save(draft / "plan.toml")
    board.save(draft / "board")
    write_run(draft, found, found.task_models())
    _write(replace(begun, written=True))


def _candidate(begun: _Begun, number: int, plan: Plan, train: Tasks, test: Tasks) -> tuple[Floats, Words]:
    """Return the tasks' losses and local seeds of a candidate's run; do it, or go on with it, if need be."""
    place = begun.kept(number)
    if not (place.exists() and _complete(begun.home(number))):

        def save(done: Run) -> None:
            file = io.BytesIO()
            losses = held_out_losses(done, test, begun.election.loss)
            np.savez(file, losses=losses, seeds=done.private.seeds)
            write_private(place, file.getvalue())

        run(plan, train, journal=begun.home(number), save=save)
    with np.load(place) as kept:
        return kept["losses"], kept["seeds"]


def _complete(home: Path) -> bool:
    board = home / "board"
    return board.is_file() and board.stat().st_size > 0 and not (home / "secret").exists()


def _remove_kept(draft: Path) -> None:
    for place in draft.glob("kept-*"):
        place.unlink()
    sync_folder(draft)
