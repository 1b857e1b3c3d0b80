"""Envelopes: what makes a question the operator's and an answer a node's, whoever carries them.

Flower's link checks who connects, and not whose name a message bears: any registered node can send what looks
like an answer of another one, or like a question of the curator. So neither counts without a signature. It
also keeps every message in a file, and its logs are not ours. So answers are encrypted to the curator that
asks: every question bears a public key whose other half is in that curator's memory alone, and ends with it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cloister.errors import SignatureError
from cloister.store.signatures import Operator

__all__ = ["new_reader", "open_answer", "open_question", "seal_answer", "seal_question"]

_QUESTION, _ANSWER, _KEY = b"cloister question 1\0", b"cloister answer 1\0", b"cloister answer key 1\0"
#: Bytes of a signature by Ed25519 (the operator's), and of one by ECDSA over P-384 (a node's).
_OPERATORS, _NODES = 64, 96
#: Bytes of a public key of X25519.
_READER = 32


def new_reader() -> Any:
    """Draw the private key by which a curator reads answers to its questions; never written anywhere."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def seal_question(operator: Operator, name: str, request: bytes, reader: Any) -> bytes:
    """Return a question to one node, signed, with the public key to which the answer is encrypted."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(operator.secret)
    content: bytes = reader.public_key().public_bytes_raw() + request
    return key.sign(_question(name, content)) + content


def open_question(operator: bytes, name: str, sealed: bytes) -> bytes:
    """Return a question that the owner of this public key asks the node of this name; refuse any other."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature, content = sealed[:_OPERATORS], sealed[_OPERATORS:]
    try:
        Ed25519PublicKey.from_public_bytes(operator).verify(signature, _question(name, content))
    except InvalidSignature:
        raise SignatureError(
            "A question came that the operator has not signed, or not for this node. It is passed over."
        ) from None
    return content[_READER:]


def seal_answer(key: Any, sealed: bytes, reply: bytes) -> bytes:
    """Return an answer to a question that `open_question` has let through: encrypted, then signed.

    Parameters
    ----------
    key : EllipticCurvePrivateKey
        The node's own.
    sealed : bytes
        The question.
    reply : bytes
        What its asker alone is to read.
    """
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    reader = X25519PublicKey.from_public_bytes(sealed[_OPERATORS : _OPERATORS + _READER])
    once = new_reader()
    mine: bytes = once.public_key().public_bytes_raw()
    hidden: bytes = mine + _cipher(once.exchange(reader), sealed, mine).encrypt(bytes(12), reply, None)
    r, s = decode_dss_signature(key.sign(_answered(sealed, hidden), _algorithm()))
    return r.to_bytes(_NODES // 2, "big") + s.to_bytes(_NODES // 2, "big") + hidden


def open_answer(key: Any, reader: Any, sealed: bytes, answer: bytes) -> bytes:
    """Return what the owner of this public key replies to a sealed question; refuse anything else."""
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    half, hidden = _NODES // 2, answer[_NODES:]
    r, s = int.from_bytes(answer[:half], "big"), int.from_bytes(answer[half:_NODES], "big")
    try:
        key.verify(encode_dss_signature(r, s), _answered(sealed, hidden), _algorithm())
        once = hidden[:_READER]
        shared = reader.exchange(X25519PublicKey.from_public_bytes(once))
        reply: bytes = _cipher(shared, sealed, once).decrypt(bytes(12), hidden[_READER:], None)
    except (InvalidSignature, InvalidTag, ValueError):
        raise SignatureError(
            "An answer came that the node's key has not signed, or not for this question. It does not count."
        ) from None
    return reply


def _cipher(shared: bytes, sealed: bytes, once: bytes) -> Any:
    """Return the cipher of one answer; its key is for that alone, so that its nonce may be zero."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return ChaCha20Poly1305(HKDF(SHA256(), 32, None, _KEY + _hash(sealed) + once).derive(shared))


def _question(name: str, content: bytes) -> bytes:
    return _QUESTION + _hash(name.encode()) + _hash(content)


def _answered(sealed: bytes, hidden: bytes) -> bytes:
    return _ANSWER + _hash(sealed) + _hash(hidden)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())
