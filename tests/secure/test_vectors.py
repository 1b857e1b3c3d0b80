"""The test vectors, computed from the words of the docstrings alone."""

from __future__ import annotations

import hashlib
import hmac
from itertools import permutations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cloister.privacy.trust import SecureSum
from cloister.secure import all_or_wait, double_masking
from cloister.secure.primitives import stream
from cloister.secure.session import Session, ShortMemory, Signer

HEAD, MESSAGE = bytes(32), np.array([1, -2])


def encoded(*parts) -> bytes:
    plain = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in plain)


def sha256(*parts) -> bytes:
    return hashlib.sha256(encoded(*parts)).digest()


def hkdf(secret: bytes, *purpose) -> bytes:
    """RFC 5869, one block: extract under a salt of zeros, expand."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, encoded("cloister secure sum 1", *purpose) + b"\1", "sha256")


def chacha20(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(size))


def public(key) -> bytes:
    return key.public_key().public_bytes_raw()


class Tasks:
    """The tasks of the vectors: each signs with bytes of its place, and has a secret of 16 more."""

    def __init__(self, tasks: int, trust: SecureSum) -> None:
        self.places, self.trust = range(tasks), trust
        self.identities = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in self.places]
        self.session = Session("vectors", "plan", trust, tuple(map(public, self.identities)))
        self.signers = [Signer(i, bytes([i]) * 32, bytes([16 + i]) * 32) for i in self.places]

    def context(self, round: int, head: bytes) -> bytes:
        roster = sha256("roster", *map(public, self.identities))
        trust = self.trust.dropouts, self.trust.colluders
        return sha256("attempt", "vectors", "plan", roster, *trust, round, head, 0)

    def secret(self, place: int, *purpose) -> bytes:
        return hkdf(bytes([16 + place]) * 32, *purpose)

    def offers(self, context: bytes, pairs, boxes) -> tuple[list[bytes], bytes]:
        """Return the keys that tasks offer, signed, and the hash of all keys."""
        own = [(public(pair), public(box)) for pair, box in zip(pairs, boxes, strict=True)]
        unsigned = [i.to_bytes(4, "little") + b"".join(own[i]) for i in self.places]
        signed = [self.identities[i].sign(encoded("offer", context, i, *own[i])) for i in self.places]
        both = zip(unsigned, signed, strict=True)
        return [keys + signature for keys, signature in both], sha256("keys", context, *sorted(unsigned))

    def masked(self, place: int, pairs, context: bytes, keys: bytes) -> np.ndarray:
        total = MESSAGE.astype(np.int64).view(np.uint64)
        for other in set(self.places) - {place}:
            shared = pairs[place].exchange(pairs[other].public_key())
            key = hkdf(shared, "pair mask", context, keys, *sorted((place, other)))
            mask = np.frombuffer(chacha20(key, 16), dtype="<u8")
            total = total + mask if place < other else total - mask
        return total


def test_masked_messages_of_three_tasks():
    own = Tasks(3, SecureSum())
    setup = own.context(-1, b"")
    pairs, boxes = (
        [X25519PrivateKey.from_private_bytes(own.secret(i, name, setup)) for i in own.places]
        for name in ("pair", "box")
    )
    offers, keys = own.offers(setup, pairs, boxes)
    members = [all_or_wait.Member(own.session, signer, ShortMemory()) for signer in own.signers]
    shown = [member.offer() for member in members]
    assert [offer.to_bytes() for offer in shown] == offers
    for place, member in enumerate(members):
        member.join(shown)
        due = own.masked(place, pairs, own.context(0, HEAD), keys)
        assert (member.mask(0, HEAD, MESSAGE) == due).all()


def shares(secret: bytes, coins: bytes, threshold: int) -> list[bytes]:
    """Values of a polynomial at 1, 2, ...: its highest coefficients are coins, its lowest the secret."""
    prime, size = 2**255 - 19, 48
    drawn = [int.from_bytes(coins[at : at + size], "little") for at in range(0, len(coins), size)]
    powers = range(threshold - 1, 0, -1)
    found = []
    for x in range(1, 5):
        high = sum(coin * pow(x, power, prime) for coin, power in zip(drawn, powers, strict=True))
        found.append(((high + int.from_bytes(secret, "little")) % prime).to_bytes(32, "little"))
    return found


def test_an_attempt_of_four_tasks_from_which_one_may_drop_out():
    own, threshold = Tasks(4, SecureSum(dropouts=1)), 3
    context = own.context(0, HEAD)
    seeds = {
        name: [own.secret(i, name, context) for i in own.places]
        for name in ("pair", "box", "own", "coins of own", "coins of pair")
    }
    pairs, boxes = (
        [X25519PrivateKey.from_private_bytes(hkdf(seed[:31], "x25519", context)) for seed in seeds[name]]
        for name in ("pair", "box")
    )
    offers, keys = own.offers(context, pairs, boxes)
    attempt = double_masking.Attempt(own.session, 0, HEAD, 0)
    members = [double_masking.Member(attempt, signer, ShortMemory()) for signer in own.signers]
    shown = [member.offer() for member in members]
    assert [offer.to_bytes() for offer in shown] == offers

    sent = [member.share(shown) for member in members]
    split = {
        name: [
            shares(seed[:31], chacha20(coins, 48 * (threshold - 1)), threshold)
            for seed, coins in zip(seeds[name], seeds[f"coins of {name}"], strict=True)
        ]
        for name in ("own", "pair")
    }
    for i, j in permutations(own.places, 2):
        key = hkdf(boxes[i].exchange(boxes[j].public_key()), "box", keys, i, j)
        text = split["own"][i][j] + split["pair"][i][j]
        assert sent[i][j] == ChaCha20Poly1305(key).encrypt(bytes(12), text, keys)

    held = {j: {i: sent[i][j] for i in own.places if i != j} for j in own.places}
    alive = [0, 1, 2]
    ballot = encoded(encoded("survivors", context, keys, *alive))
    for i in alive:
        mask = chacha20(hkdf(seeds["own"][i][:31], "own mask", context), 16)
        due = own.masked(i, pairs, context, keys) + np.frombuffer(mask, dtype="<u8")
        assert (members[i].mask(shown, held[i], MESSAGE) == due).all()
        assert members[i].sign(shown, held[i], alive) == own.identities[i].sign(ballot)


def test_masks_are_chacha20_as_published():
    """RFC 8439, appendix A.1, test vector 1: the key stream under a key and nonce of zeros."""
    due = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream(bytes(32), 32).hex() == due
