"""What leaves a node whose plan has tasks add the noise: its message with a share, and under masks.

The node lifts its message and places it by its group itself. Masks follow from the keys for agreement that
stand on the signed roster, which the owner has approved with the plan: no key is sent, and the operator's
word for a key counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cloister.core.arrays import Integers
from cloister.core.errors import InputError
from cloister.engines.noise_at_home import noisy_message
from cloister.engines.workers import group_positions
from cloister.nodes.identity import Identity, PublicIdentity
from cloister.nodes.messages import SumStep
from cloister.nodes.node_folder import Approval, NodeFolder
from cloister.plan.plan import Plan
from cloister.privacy.trust import SecureSum
from cloister.secure.all_or_wait import masked
from cloister.secure.double_masking import Attempt, Member
from cloister.secure.exchange import said
from cloister.secure.session import Session, Signer, commit
from cloister.store.billboard import Billboard
from cloister.store.commitments import FolderMemory
from cloister.store.signatures import SignedRoster

#: The file of a run's folder in which a node keeps what it has committed itself to.
SUMS = "sums"


def session_of(plan: Plan, signed: SignedRoster) -> Session:
    """Return the public frame of a run's masked sums: it is that of the signed roster, with its keys."""
    assert isinstance(plan.trust, SecureSum)
    keys = tuple(text.encode() for text in signed.keys)
    return Session(signed.run, plan.fingerprint, plan.trust, keys, PublicIdentity.verify)


class NoiseShares:
    """What one node adds to its messages of a run.

    Parameters
    ----------
    home : NodeFolder
        Has the node's keys, and the secret that its shares of noise follow from.
    folder : Path
        Of the run: there stands what the node has committed itself to.
    signed : SignedRoster
        Who takes part, with their keys.
    approval : Approval
        Says which roster the owner has approved.
    plan : Plan
        Whose `trust` is not in a curator.
    """

    def __init__(
        self, home: NodeFolder, folder: Path, signed: SignedRoster, approval: Approval, plan: Plan
    ) -> None:
        self.home, self.signed, self.plan = home, signed, plan
        self.memory = FolderMemory(folder / SUMS)
        self.place = signed.roster.position(home.settings.task)
        if plan.trust.masked and (not signed.keys or approval.roster != signed.fingerprint):
            raise InputError(
                "A message is masked for the tasks of a roster that the owner has approved, with their keys. "
                "Type cloister node approve with --roster."
            )

    def added(self, board: Billboard, row: Integers) -> Integers:
        """Return a round's message as it leaves: the same bytes whenever the same is asked for."""
        plan, t = self.plan, board.rounds
        noisy = self._noisy(board, row)
        commit(self.memory, t, board.head, noisy)
        if not plan.trust.masked:
            return noisy
        context = session_of(plan, self.signed).context(t, board.head, 0)
        about = context, bytes.fromhex(self.signed.fingerprint)
        return masked(noisy, self.place, self._agreements(), *about).view(np.int64)

    def said(self, board: Billboard, ask: SumStep, row: Callable[[], Integers]) -> bytes:
        """Return what the node says in a step of an attempt; what it commits itself to is on disk before."""
        own = Identity.load(self.home.folder)
        self._check_own(own)
        session = session_of(self.plan, self.signed)
        drawn = self.home.source.stream(f"secure sums {self.signed.fingerprint}").words(4)
        secret = drawn.astype("<u8").tobytes()
        signer = Signer(self.place, own.private, secret, Identity.sign)
        attempt = Attempt(session, board.rounds, board.head, ask.attempt)
        member = Member(attempt, signer, self.memory)
        return said(member, ask.step, ask.shown, lambda: self._noisy(board, row()))

    def _noisy(self, board: Billboard, row: Integers) -> Integers:
        """Return a round's message, lifted at home, with the node's share of noise."""
        plan, t = self.plan, board.rounds
        group = int(group_positions(plan, self.signed.roster)[self.place])
        own = self.home.source.stream(f"noise share {self.signed.fingerprint}", t)
        return noisy_message(plan, t, plan.algorithm.channel(board), row, group, own)

    def _check_own(self, own: Identity) -> None:
        if self.signed.keys[self.place] != own.public:
            raise InputError("The roster does not have this node's own keys. Nothing is answered.")

    def _agreements(self) -> dict[int, bytes]:
        """Return the secret that this node has with each other one."""
        own = Identity.load(self.home.folder)
        self._check_own(own)
        others = {at: text for at, text in enumerate(self.signed.keys) if at != self.place}
        return {
            at: own.agreement.exchange(PublicIdentity.from_text(text).agreement)
            for at, text in others.items()
        }
