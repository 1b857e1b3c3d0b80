r"""Sums from which some tasks may drop out: double masks, and shares that open one set of survivors.

One attempt at a round's sum has five steps, each a message of every task to the curator and one back:

1. *Keys.* Each task offers two fresh keys, signed. The curator shows all of them to everybody.
2. *Shares.* Each task draws a seed for a mask of its own, and splits it, and that of its pair key, among all
   who offered keys: k shares give either back. Shares are sealed to their holders.
3. *Masked message.* Lifted, with its noise share, plus the mask of the own seed, plus or minus a mask for
   each pair of holders.
4. *Survivors.* The curator names those whose masked messages it has, at least n - t. Each of them signs that
   set, one set an attempt.
5. *Opening.* A task that sees k signatures under one set hands out, of each survivor, its share of the own
   seed and, of each holder that dropped out, its share of the pair key: never both of one task.

The curator takes own masks of survivors and pair masks of the others off the sum.

*Why one set.* k > (n + c) / 2, and an honest task signs one set an attempt: two sets cannot both have k
signatures, with c dishonest ones under both. So all honest helpers of an attempt help with one set, which has
n - t tasks or more. An honest task that has helped does so in no other attempt of the round, and two
attempts cannot both have k helpers, by the same count. Without the signatures, curators that name different
survivors to different tasks could drop almost 2t of them.

*Why another attempt is free* as long as no honest task has handed out a share: every message is then still
under the own mask of its task, whose seed nobody has k shares of. The message with its noise is the same in
all attempts; keys, seeds and masks are fresh.

References
----------
Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, Figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from cloister.core.arrays import Integers, Words
from cloister.core.errors import InputError, SignatureError
from cloister.privacy.noise_states import NoisySum
from cloister.secure.all_or_wait import masked
from cloister.secure.primitives import (
    agreed,
    derived,
    digest,
    encoded,
    mask,
    public_key,
    sealed,
    stream,
    unsealed,
)
from cloister.secure.session import Memory, Offer, Session, Signer, check_offers, commit, offers_digest, once
from cloister.secure.shamir import COINS, SECRET, SHARE, combined, split, weights

_SIGNATURES = "Signatures under one set of survivors"


class Step(StrEnum):
    """What a task says in an attempt, in this order. The words stand in messages."""

    KEYS = "keys"
    SHARES = "shares"
    MESSAGE = "message"
    SURVIVORS = "survivors"
    OPENING = "opening"


@dataclass(frozen=True)
class Opening:
    """What a task hands out to open one set: shares of survivors' own seeds, of the others' pair keys."""

    place: int
    seeds: Mapping[int, bytes] = field(repr=False)
    pairs: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True)
class Attempt:
    """Which attempt at which round's sum, on which board; public."""

    session: Session
    round: int
    head: bytes
    number: int

    @cached_property
    def context(self) -> bytes:
        return self.session.context(self.round, self.head, self.number)

    def again(self) -> Attempt:
        """Return the next attempt at the same sum."""
        return replace(self, number=self.number + 1)

    def ballot(self, keys: bytes, survivors: Iterable[int]) -> bytes:
        """Return what a task signs when it takes a set for that of the survivors."""
        return encoded("survivors", self.context, keys, *sorted(survivors))

    def check_size(self, places: Iterable[int], least: int, what: str) -> None:
        count = len(set(places))
        if count < least:
            raise InputError(
                f"{what} of {least} tasks or more are needed to open a sum of {self.session.tasks}. Got "
                f"{count}: wait for more, or try again."
            )


@dataclass
class Member:
    """One task in one attempt: everything it says follows from its secrets, and is the same if asked again.

    Parameters
    ----------
    attempt : Attempt
        Public.
    signer : Signer
        The task's secrets; keys, seeds and coins of an attempt are derived from them and its context.
    memory : Memory
        What the task has committed itself to: it is asked before anything is said.

    Notes
    -----
    All is derived as in `all_or_wait.Member`. Seeds are of the task's secret, a name and the attempt's
    context; of the first 31 bytes of ``pair`` and ``box`` come X25519 keys (``x25519``), of those of ``own``
    the key of the own mask (``own mask``). ``pair`` and ``own`` are split so: the secret is the constant of a
    polynomial, whose other coefficients, the highest first, are 48 bytes each of the key stream under ``coins
    of pair`` or ``coins of own``; the share of place i, from 0, is its value at i + 1. A box holds the share
    of ``own``, then that of ``pair``. Its key is of ``box``, the hash of all offers, who seals and who opens;
    its associated data is that hash.

    Examples
    --------
    Test vectors for another implementation, of four tasks:

    >>> from cloister.privacy.trust import SecureSum
    >>> from cloister.secure.primitives import identity
    >>> from cloister.secure.session import Session, ShortMemory, Signer
    >>> signers = [Signer(i, identity=bytes([i]) * 32, secret=bytes([16 + i]) * 32) for i in range(4)]
    >>> keys = tuple(identity(s.identity) for s in signers)
    >>> attempt = Attempt(Session("vectors", "plan", SecureSum(dropouts=1), keys), 0, bytes(32), 0)
    >>> members = [Member(attempt, signer, ShortMemory()) for signer in signers]
    >>> offers = [member.offer() for member in members]
    >>> boxes = [member.share(offers) for member in members]
    >>> boxes[1][0].hex()[:64]
    'cecf0ba6e8cc82204ad7059f526de50853a4c1c53d46825b521b73b6fb2e4f9f'
    >>> for place, member in enumerate(members[:3]):
    ...     held = {other.place: boxes[other.place][place] for other in offers if other.place != place}
    ...     print(member.mask(offers, held, np.array([1, -2])).tolist())
    [16658755607960202733, 11264560343856503311]
    [17054277508420372549, 10134232982238592121]
    [4515195464101562127, 15309313621898250045]
    """

    attempt: Attempt
    signer: Signer
    memory: Memory

    def __post_init__(self) -> None:
        number, last = self.attempt.number, self.memory.read(f"{self.attempt.round} attempt")
        if last is not None and int(last) > number:
            raise InputError(
                f"Attempt {number} of round {self.attempt.round} is over: {int(last)} has begun."
            )
        self._check_unopened()
        once(
            self.memory,
            f"{self.attempt.round} head",
            self.attempt.head,
            f"Round {self.attempt.round} was answered on another board.",
        )
        if last is None or int(last) < number:
            self.memory.write(f"{self.attempt.round} attempt", str(number).encode())

    def offer(self) -> Offer:
        """Return this attempt's keys."""
        return self._offer

    @cached_property
    def _offer(self) -> Offer:
        pair, box = (public_key(self._private(name)) for name in ("pair", "box"))
        return Offer.make(self.signer, self.attempt.context, pair, box)

    def share(self, offers: Iterable[Offer]) -> dict[int, bytes]:
        """Return shares of the own seed and pair key, sealed for each of those who offered keys."""
        offers = list(offers)
        keys = self._keys(offers)
        others = [offer for offer in offers if offer.place != self.place]
        boxes = self._box_keys(others, keys, to_them=True)
        return {place: sealed(key, self._share(place), keys) for place, key in boxes.items()}

    def mask(self, offers: Iterable[Offer], boxes: Mapping[int, bytes], message: Integers) -> Words:
        """Return the masked message, for those whose shares it holds; `boxes` are what they sealed for it."""
        offers = list(offers)
        keys, _ = self._held(offers, boxes)
        commit(self.memory, self.attempt.round, self.attempt.head, message)
        agreements = agreed(self._private("pair"), {o.place: o.pair for o in offers if o.place in boxes})
        total = masked(message, self.place, agreements, self.attempt.context, keys)
        total += mask(own_mask_key(self._seed("own"), self.attempt.context), total.size)
        return total

    def sign(self, offers: Iterable[Offer], boxes: Mapping[int, bytes], survivors: Iterable[int]) -> bytes:
        """Sign who is in the sum: one set an attempt, with this task in it."""
        keys = self._check_survivors(list(offers), boxes, set(survivors))
        return self.signer.sign(self.attempt.ballot(keys, survivors))

    def open(
        self,
        offers: Iterable[Offer],
        boxes: Mapping[int, bytes],
        survivors: Iterable[int],
        signatures: Mapping[int, bytes],
    ) -> Opening:
        """Help to open the sum of the survivors, which enough of them have signed: one set a round, ever."""
        offers, alive = list(offers), set(survivors)
        keys = self._check_survivors(offers, boxes, alive)
        check_ballots(self.attempt, keys, alive, signatures)
        chosen = encoded(self.attempt.number, digest(self.attempt.ballot(keys, alive)))
        name, refusal = f"{self.attempt.round} opened", "Another set was opened in this round."
        once(self.memory, name, chosen, refusal)
        _, held = self._held(offers, boxes)
        seeds = {place: held[place][:SHARE] for place in sorted(alive)}
        pairs = {place: held[place][SHARE:] for place in sorted(set(held) - alive)}
        return Opening(self.place, seeds, pairs)

    @property
    def place(self) -> int:
        return self.signer.place

    def _check_unopened(self) -> None:
        """Refuse all but repetition once a share was handed out in another attempt."""
        opened = self.memory.read(f"{self.attempt.round} opened")
        if opened is not None and not opened.startswith(encoded(self.attempt.number)):
            raise InputError(f"Round {self.attempt.round} was opened in another attempt. Post its sum.")

    def _keys(self, offers: list[Offer]) -> bytes:
        """Return a hash of the keys that are shown, which never change in an attempt."""
        session, keys = self.attempt.session, offers_digest(self.attempt.context, offers)
        if self.memory.read(self._named("keys")) != keys:  # else they were found signed before
            check_offers(session, self.attempt.context, offers, self.offer(), session.fewest)
            once(self.memory, self._named("keys"), keys, "Other keys were shown in this attempt.")
        return keys

    def _held(self, offers: list[Offer], boxes: Mapping[int, bytes]) -> tuple[bytes, dict[int, bytes]]:
        """Return the hash of all keys, and the shares that this task holds: of whom, never changes."""
        keys = self._keys(offers)
        offered = {offer.place: offer for offer in offers}
        if not set(boxes) <= set(offered) - {self.place}:
            raise InputError("Shares must be of other tasks that have offered keys.")
        self.attempt.check_size({*boxes, self.place}, self.attempt.session.fewest, "Shares")
        refusal = "Shares of other tasks were shown in this attempt."
        once(self.memory, self._named("holders"), encoded(*sorted(boxes)), refusal)
        box_keys = self._box_keys([offered[place] for place in boxes], keys, to_them=False)
        held = {place: unsealed(box_keys[place], box, keys) for place, box in boxes.items()}
        return keys, held | {self.place: self._share(self.place)}

    def _check_survivors(self, offers: list[Offer], boxes: Mapping[int, bytes], alive: set[int]) -> bytes:
        keys = self._keys(offers)
        if self.place not in alive or not alive <= {*boxes, self.place}:
            raise InputError("Survivors must be among those who hold shares, this task one of them.")
        self.attempt.check_size(alive, self.attempt.session.fewest, "Messages")
        self._check_unopened()
        named = digest(self.attempt.ballot(keys, alive))
        once(self.memory, self._named("survivors"), named, "Other survivors were named in this attempt.")
        return keys

    def _share(self, place: int) -> bytes:
        """Return the shares of the own seed and of the pair key's that another task holds."""
        return b"".join(shares[place + 1] for shares in self._split)

    @cached_property
    def _split(self) -> list[dict[int, bytes]]:
        """Split the own seed and that of the pair key among all places of the roster."""
        session = self.attempt.session
        threshold, places = session.threshold, range(1, session.tasks + 1)
        coins = (stream(self._seed(f"coins of {name}"), COINS * (threshold - 1)) for name in ("own", "pair"))
        secrets = (self._seed(name)[:SECRET] for name in ("own", "pair"))
        return [split(*parts) for parts in zip(secrets, (threshold,) * 2, (places,) * 2, coins, strict=True)]

    def _seed(self, name: str) -> bytes:
        return derived(self.signer.secret, name, self.attempt.context)

    def _private(self, name: str) -> bytes:
        return pair_private(self._seed(name)[:SECRET], self.attempt.context)

    def _box_keys(self, others: Iterable[Offer], keys: bytes, to_them: bool) -> dict[int, bytes]:
        """Return the keys that seal what goes from this task to others, or from them to it."""
        found = {}
        secrets = agreed(self._private("box"), {other.place: other.box for other in others})
        for place, secret in secrets.items():
            ends = (self.place, place) if to_them else (place, self.place)
            found[place] = derived(secret, "box", keys, *ends)
        return found

    def _named(self, name: str) -> str:
        return f"{self.attempt.round} {self.attempt.number} {name}"


def pair_private(seed: bytes, context: bytes) -> bytes:
    """Return the X25519 key that follows from a seed, which is what is shared."""
    return derived(seed, "x25519", context)


def own_mask_key(seed: bytes, context: bytes) -> bytes:
    return derived(seed[:SECRET], "own mask", context)


def check_ballots(
    attempt: Attempt, keys: bytes, survivors: Iterable[int], signatures: Mapping[int, bytes]
) -> None:
    """Refuse a set of survivors that fewer than k of them have signed."""
    alive = set(survivors)
    statement = encoded(attempt.ballot(keys, alive))
    for place, signature in signatures.items():
        if place not in alive:
            raise SignatureError(f"Task {place} has signed for survivors, and is none.")
        attempt.session.check_signed(place, signature, statement, f"Task {place}'s word for the survivors")
    attempt.check_size(signatures, attempt.session.threshold, _SIGNATURES)


@dataclass
class Collector:
    """The curator's part of an attempt: it gathers what tasks say, and knows no secret.

    Each step takes what has come, passes over what is not allowed, and says what to show to whom.

    Attributes
    ----------
    alive : list of int
        Whose messages are in the sum.
    total : uint64 array
        Their sum, under masks.
    """

    attempt: Attempt
    offers: list[Offer] = field(default_factory=list)
    boxes: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    alive: list[int] = field(default_factory=list)
    total: Words | None = field(default=None, repr=False)
    signatures: dict[int, bytes] = field(default_factory=dict, repr=False)

    def take_offers(self, offers: Iterable[Offer]) -> list[Offer]:
        """Return the keys to be shown to everybody who offered some."""
        found: dict[int, Offer] = {}
        for offer in offers:
            try:
                offer.check(self.attempt.session, self.attempt.context)
            except (InputError, SignatureError):
                continue
            found.setdefault(offer.place, offer)
        self.attempt.check_size(found, self.attempt.session.fewest, "Keys")
        self.offers = [found[place] for place in sorted(found)]
        return self.offers

    def take_shares(self, sent: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Return what to hand to each task: shares of all who have sent some to all."""
        offered = {offer.place for offer in self.offers}
        holders = {place for place in offered if set(sent.get(place, ())) == offered - {place}}
        self.attempt.check_size(holders, self.attempt.session.fewest, "Shares")
        self.boxes = {to: {by: sent[by][to] for by in sorted(holders - {to})} for to in sorted(holders)}
        return self.boxes

    def take_rows(self, rows: Mapping[int, Words]) -> list[int]:
        """Return who is in the sum. From here on the set does not change, whoever else answers."""
        self.attempt.check_size(set(rows) & set(self.boxes), self.attempt.session.fewest, "Messages")
        self.alive = sorted(set(rows) & set(self.boxes))
        self.total = np.sum([rows[place] for place in self.alive], axis=0, dtype=np.uint64)
        return self.alive

    @property
    def keys(self) -> bytes:
        return offers_digest(self.attempt.context, self.offers)

    def take_signatures(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the signatures to be shown to all survivors: no more than they need to see."""
        found, statement = {}, encoded(self.attempt.ballot(self.keys, self.alive))
        for place, signature in signatures.items():
            try:
                self.attempt.session.check_signed(place, signature, statement, "It")
            except (InputError, SignatureError):
                continue
            if place in self.alive:
                found[place] = signature
        needed = self.attempt.session.threshold
        self.attempt.check_size(found, needed, _SIGNATURES)
        self.signatures = dict(sorted(found.items())[:needed])
        return self.signatures

    def take_openings(self, openings: Iterable[Opening]) -> NoisySum:
        """Return the sum, with the noise of all who are in it."""
        assert self.total is not None
        alive, dead = set(self.alive), set(self.boxes) - set(self.alive)
        found = {
            one.place: one
            for one in openings
            if one.place in alive and set(one.seeds) == alive and set(one.pairs) == dead
        }
        self.attempt.check_size(found, self.attempt.session.threshold, "Openings")
        helpers = [found[place] for place in sorted(found)][: self.attempt.session.threshold]
        factors = weights([one.place + 1 for one in helpers])
        total = self.total.copy()
        for place in alive:
            seed = combined(factors, [one.seeds[place] for one in helpers])
            total -= mask(own_mask_key(seed, self.attempt.context), total.size)
        for place in dead:
            total -= self.pair_masks(
                place, combined(factors, [one.pairs[place] for one in helpers]), total.size
            )
        return NoisySum(total.view(np.int64), len(alive))

    def pair_masks(self, place: int, seed: bytes, size: int) -> Words:
        """Return what a lost task would have taken off, with its sign turned: masks of its pairs."""
        private = pair_private(seed, self.attempt.context)
        offered = {offer.place: offer for offer in self.offers}
        if public_key(private) != offered[place].pair:
            raise InputError(f"The shares of task {place}'s key do not give it back: one of them is wrong.")
        agreements = agreed(private, {other: offered[other].pair for other in self.alive})
        nothing = np.zeros(size, dtype=np.int64)
        return -masked(nothing, place, agreements, self.attempt.context, self.keys)
