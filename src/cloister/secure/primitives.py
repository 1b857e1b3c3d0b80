"""Keys, masks and sealed boxes: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 of `cryptography`.

Every key is derived for one purpose, which is part of what it is derived from, parts after their lengths. So
no two purposes share a key, and a key seals one text at most, under a nonce of zeros.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cloister.core.arrays import Words
from cloister.core.errors import InputError, SignatureError

KEY, SIGNATURE, TAG = 32, 64, 16


def encoded(*parts: bytes | str | int) -> bytes:
    """Return parts, each after its length, so that no two lists look alike."""
    plain = [str(part).encode() if not isinstance(part, bytes) else part for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in plain)


def digest(*parts: bytes | str | int) -> bytes:
    return hashlib.sha256(encoded(*parts)).digest()


def derived(secret: bytes, *purpose: bytes | str | int, size: int = KEY) -> bytes:
    """Return bytes that follow from a secret for one purpose: HKDF-SHA256, without salt.

    Examples
    --------
    >>> derived(bytes(32), "mask", 1) == derived(bytes(32), "mask", 2)
    False
    """
    return HKDF(SHA256(), size, None, encoded("cloister secure sum 1", *purpose)).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """Return the first bytes of ChaCha20's key stream under a key that is used for this alone."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(size))


def mask(key: bytes, count: int) -> Words:
    """Return so many words of 64 bits that look uniform to who does not have the key."""
    return np.frombuffer(stream(key, 8 * count), dtype="<u8").astype(np.uint64, copy=False)


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, publics: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return what the owner of a private key knows with each of others, by their public keys (X25519)."""
    own = X25519PrivateKey.from_private_bytes(private)
    try:
        return {at: own.exchange(X25519PublicKey.from_public_bytes(key)) for at, key in publics.items()}
    except ValueError:  # a point of small order: everybody would know the secret
        raise InputError(
            "A public key must be a point of X25519 of large order. Refuse who sent it."
        ) from None


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt one text under a key that seals no other."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unsealed(key: bytes, text: bytes, about: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), text, about)
    except InvalidTag:
        raise InputError("A share was changed on its way, or sealed for something else.") from None


def signed(secret: bytes, statement: bytes) -> bytes:
    """Return the Ed25519 signature of the owner of 32 secret bytes."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(statement)


def identity(secret: bytes) -> bytes:
    """Return the Ed25519 public key of 32 secret bytes."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def check_signature(public: bytes, signature: bytes, statement: bytes, what: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        raise SignatureError(f"{what} is not signed by its task's key on the roster.") from None
