"""What leaves a node whose plan has tasks add the noise: its message with a share, and under masks.

The node lifts its message and places it by its group itself. Masks follow from the keys for agreement that
stand on the signed roster, which the owner has approved with the plan: no key is sent, and the operator's
word for a key counts for nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cloister.core.arrays import Integers
from cloister.core.errors import InputError, PlanError
from cloister.engines.noise_at_home import noisy_message
from cloister.engines.workers import group_positions
from cloister.nodes.identity import Identity, PublicIdentity
from cloister.nodes.node_folder import Approval, NodeFolder
from cloister.plan.plan import Plan
from cloister.privacy.trust import SecureSum
from cloister.secure.all_or_wait import masked
from cloister.secure.session import Session, commit
from cloister.store.billboard import Billboard
from cloister.store.commitments import FolderMemory
from cloister.store.signatures import SignedRoster


def check_between_nodes(plan: Plan) -> None:
    """Refuse plans whose sums need more than one message a round, which is what nodes send."""
    if isinstance(plan.trust, SecureSum) and plan.trust.dropouts:
        raise PlanError(
            "Between nodes a secure sum waits for everyone: with drop-outs it takes five messages a round. "
            f"Got dropouts={plan.trust.dropouts}. Use Trust.secure_sum(0, {plan.trust.colluders})."
        )


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
        self.memory = FolderMemory(folder / "sums")
        self.place = signed.roster.position(home.settings.task)
        if plan.trust.masked and (not signed.keys or approval.roster != signed.fingerprint):
            raise InputError(
                "A message is masked for the tasks of a roster that the owner has approved, with their keys. "
                "Type cloister node approve with --roster."
            )

    def added(self, board: Billboard, row: Integers) -> Integers:
        """Return a round's message as it leaves: the same bytes whenever the same is asked for."""
        plan, t = self.plan, board.rounds
        channel, group = (
            plan.algorithm.channel(board),
            int(group_positions(plan, self.signed.roster)[self.place]),
        )
        own = self.home.source.stream(f"noise share {self.signed.fingerprint}", t)
        noisy = noisy_message(plan, t, channel, row, group, own)
        commit(self.memory, t, board.head, noisy)
        if not isinstance(plan.trust, SecureSum):
            return noisy
        keys = tuple(text.encode() for text in self.signed.keys)
        session = Session(self.signed.run, plan.fingerprint, plan.trust, keys)
        about = session.context(t, board.head, 0), bytes.fromhex(self.signed.fingerprint)
        return masked(noisy, self.place, self._agreements(), *about).view(np.int64)

    def _agreements(self) -> dict[int, bytes]:
        """Return the secret that this node has with each other one."""
        own = Identity.load(self.home.folder)
        if self.signed.keys[self.place] != own.public:
            raise InputError("The roster does not have this node's own keys. Nothing is answered.")
        others = {at: text for at, text in enumerate(self.signed.keys) if at != self.place}
        return {
            at: own.agreement.exchange(PublicIdentity.from_text(text).agreement)
            for at, text in others.items()
        }
