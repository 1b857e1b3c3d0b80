"""Whether a board is what its plan makes of its releases: recomputed, number by number.

What hides below the tolerance is about 12 bits of the largest numbers of an array, one more for each halving
below them. Where board and plan were computed alike, on one kind
of processor with the same versions, nothing does: ask for exact equality.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import BillboardError, PlanError
from cloister.core.findings import EarlierPrior, ReadFrom
from cloister.privacy.guarantee import NoiseMade
from cloister.privacy.randomness import Origin
from cloister.store.billboard import Billboard

if TYPE_CHECKING:
    from cloister.core.channel import Channel
    from cloister.plan.plan import Plan
    from cloister.store.records import Release

#: How far a public number may be from what is computed here: so many roundings of the largest in its array.
#: Processors add up in other orders; 126 was the most that was measured (docs/audit.md).
ROUNDINGS = 2**10
#: The same of 32-bit floats, which are computed in 64 bits and rounded once.
FEW_ROUNDINGS = 4
_TINY = ROUNDINGS * float(np.finfo(np.float64).eps)


def check_board(plan: Plan, board: Billboard, since: int = 0, exact: bool = False) -> bool:
    """Refuse a board of another plan, or one with releases or arrays that the plan does not make.

    Parameters
    ----------
    plan, board : Plan, Billboard
        The board may be finished or not.
    since : int, default=0
        Its first `since` records were checked before, and are not looked at again.
    exact : bool, default=False
        Whether arrays must be those computed here to the last bit. They are on the machine that made the
        board, with the same versions and threads; elsewhere processors add up in other orders, and a number
        may differ by 2e-13 of the largest in its array. Below that, an operator can hide something.

    Returns
    -------
    bool
        Whether all is equal to the last bit.

    Notes
    -----
    Types, shapes, whole numbers, zeros and, where noise is exact, the grid of releases agree to the last bit
    everywhere. Each round is computed from what was computed here, and not posted, of the one before.
    """
    if board.plan != plan.fingerprint or board.capacity != len(plan.rounds) or not board.records:
        same = "" if plan.algorithm.network is None else ", of the same network, its frozen part included"
        raise BillboardError(
            f"This billboard belongs to another plan. Pass the plan it was opened with{same}."
        )
    own, same_bits = board.before(max(0, since - 1)), True
    if not since:
        plan.noise_on(board)
        own = Billboard.create(plan.algorithm.start(), board.plan, board.capacity)
        same_bits = _compare(board.before(0), own, "The start", exact)
    for t in range(max(0, since - 1), board.rounds):
        release = board.releases[t]
        _check_release(plan, t, release, plan.algorithm.channel(own), exact)
        own = board.before(t).post(release, plan.algorithm.update(release, own))
        same_bits &= _compare(board.before(t + 1), own, f"Release {t}", exact)
    return same_bits


def _check_release(plan: Plan, t: int, release: Release, channel: Channel, exact: bool) -> None:
    """Refuse a release that is on another channel or grid than its round's, or says other facts."""
    round = plan.rounds[t]
    if release.channel not in [i for i, c in enumerate(round.channels) if c == channel]:
        raise BillboardError(f"Release {t} is not on the channel that its plan uses there.")
    if release.value.shape != (channel.size,) or release.value.dtype != np.float64:
        raise BillboardError(
            f"Release {t} does not have the shape of its channel, or is not of 64-bit floats."
        )
    denominator = plan.denominator
    tolerance = 0.0 if exact else _TINY
    priced, found = (denominator, round.share), (release.denominator, release.share)
    agree = all(map(partial(math.isclose, rel_tol=tolerance), found, priced))
    if not (agree and plan.has_noise(t, channel, release.noise, tolerance, release.answered)):
        raise BillboardError(f"Release {t} does not have the noise, denominator or share of its plan.")
    least, answered = plan.quorum, release.answered
    if (least is None) != (answered is None) or not (least or 0) <= (answered or 0) <= plan.n_tasks:
        raise BillboardError(
            f"Release {t} must be of at least the quorum of its plan, {least}. Got {answered}."
        )
    if plan.mechanism.exact and not plan.mechanism.correlated and not channel.on_grid(release.value):
        raise BillboardError(
            f"Release {t} is not made of whole numbers of its channel's steps, as sums with exact noise are."
        )


def _compare(posted: Billboard, own: Billboard, what: str, exact: bool) -> bool:
    """Refuse arrays that are not those computed here; say whether they are the same to the last bit."""
    found, due = posted.records[-1].public, own.records[-1].public
    same_bits = found.keys() == due.keys() and all(_same_bits(found[name], due[name]) for name in due)
    if same_bits:
        return True
    if exact or found.keys() != due.keys() or not all(_agree(found[name], due[name]) for name in due):
        bits = " to the last bit, on this machine" if exact else ""
        raise BillboardError(f"{what} was not computed as the plan's algorithm does it{bits}.")
    return False


def _same_bits(found: Array, due: Array) -> bool:
    return _same_kind(found, due) and found.tobytes() == due.tobytes()


def _same_kind(found: Array, due: Array) -> bool:
    return found.dtype == due.dtype and found.shape == due.shape


def _agree(found: Array, due: Array) -> bool:
    """Say whether floats are equal but for rounding; whole numbers, zeros and what is not finite must be."""
    if not _same_kind(found, due):
        return False
    if due.dtype.kind not in "fc":
        return found.tobytes() == due.tobytes()
    one, two = (array.reshape(-1).view(array.real.dtype) for array in (found, due))
    plain = np.isfinite(two) & (two != 0)
    if one[~plain].tobytes() != two[~plain].tobytes() or not np.isfinite(one).all(where=plain):
        return False
    one, two = one[plain], two[plain]
    roundings = ROUNDINGS if two.dtype.itemsize == 8 else FEW_ROUNDINGS
    most = roundings * np.finfo(two.dtype).eps * np.abs(two).max(initial=0.0)
    return bool((np.abs(one - two) <= most).all())


def prior_of(plan: Plan, board: Billboard) -> EarlierPrior:
    """Return what a finished board of a plan says, for a later plan to start from; see `Plan.prior_on`."""
    check_board(plan, board)
    if not board.complete:
        raise PlanError(
            f"A plan starts from a finished board. This one has {board.rounds} of {board.capacity} "
            "releases. Finish its run first."
        )
    found = plan.algorithm.findings(board).prior
    if found is None:
        raise PlanError(
            "A plan starts from a board that says where weights lie, such as one of SharedPrior with "
            f"structure Joint() or Mean(). Got a board of {type(plan.algorithm).__name__}."
        )
    guarantee = plan.guarantee_on(board)
    doubts = guarantee.reasons if guarantee.holds or guarantee.reasons else ("that run has no noise",)
    return replace(found, source=board.head.hex(), doubts=doubts).mark_read(ReadFrom.BOARD)


def noise_of(plan: Plan, board: Billboard) -> NoiseMade:
    """Say how the noise on a board was made; refuse one that claims noise that its plan does not have."""
    for origin, together in product((Origin.SYSTEM, Origin.SEED), (False, True)):
        made = plan.noise_from(origin, board.doubts, together)
        if board.noise in ("", str(made)):  # boards of old do not say
            return made
    raise BillboardError(f"This billboard claims noise that its plan does not have: {board.noise!r}.")
