"""What a node computes: one task's state and messages, from its own rows and the board alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloister.arrays import Integers, States, Words
from cloister.engines.local import Local, LocalWorkers
from cloister.errors import InputError, StorageError
from cloister.plan import Plan
from cloister.store.billboard import Billboard
from cloister.store.checkpoints import CheckpointFile, SavedState
from cloister.tasks import Tasks

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
        silence = np.zeros(channel.dim, dtype=np.int64)
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
