"""The page's test vectors, computed from its words alone."""

from __future__ import annotations

import hashlib
import hmac
from itertools import combinations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from cloister.privacy.trust import SecureSum
from cloister.secure.all_or_wait import Member
from cloister.secure.primitives import stream
from cloister.secure.session import Session, ShortMemory, Signer


def encoded(*parts) -> bytes:
    plain = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in plain)


def hkdf(secret: bytes, *purpose) -> bytes:
    """RFC 5869, one block: extract under a salt of zeros, expand."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, encoded("cloister secure sum 1", *purpose) + b"\1", "sha256")


def test_masked_messages_of_three_tasks():
    identities = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(3)]
    public = [key.public_key().public_bytes_raw() for key in identities]
    roster = hashlib.sha256(encoded("roster", *public)).digest()

    def context(round: int, head: bytes) -> bytes:
        parts = encoded("attempt", "vectors", "plan", roster, 0, 1, round, head, 0)
        return hashlib.sha256(parts).digest()

    setup = context(-1, b"")
    pairs, boxes = (
        [X25519PrivateKey.from_private_bytes(hkdf(bytes([16 + i]) * 32, name, setup)) for i in range(3)]
        for name in ("pair", "box")
    )
    offers, unsigned = [], []
    for i, identity in enumerate(identities):
        own = [key.public_key().public_bytes_raw() for key in (pairs[i], boxes[i])]
        signature = identity.sign(encoded("offer", setup, i, *own))
        unsigned.append(i.to_bytes(4, "little") + b"".join(own))
        offers.append(unsigned[-1] + signature)
    keys = hashlib.sha256(encoded("keys", setup, *unsigned)).digest()
    due = [np.array([1, -2], dtype=np.int64).view(np.uint64) for _ in range(3)]
    for i, j in combinations(range(3), 2):
        shared = pairs[i].exchange(pairs[j].public_key())
        key = hkdf(shared, "pair mask", context(0, bytes(32)), keys, i, j)
        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        mask = np.frombuffer(cipher.update(bytes(16)), dtype="<u8")
        due[i], due[j] = due[i] + mask, due[j] - mask

    session = Session("vectors", "plan", SecureSum(), tuple(public))
    signers = [Signer(i, bytes([i]) * 32, bytes([16 + i]) * 32) for i in range(3)]
    members = [Member(session, signer, ShortMemory()) for signer in signers]
    shown = [member.offer() for member in members]
    assert [offer.to_bytes() for offer in shown] == offers
    for member, expected in zip(members, due, strict=True):
        member.join(shown)
        assert (member.mask(0, bytes(32), np.array([1, -2])) == expected).all()


def test_masks_are_chacha20_as_published():
    """RFC 8439, appendix A.1, test vector 1: the key stream under a key and nonce of zeros."""
    due = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream(bytes(32), 32).hex() == due
