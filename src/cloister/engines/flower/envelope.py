"""Envelopes: what makes a question the operator's and an answer a node's, whoever carries them.

Flower's link checks who connects, and not whose name a message bears: any registered node can send what looks
like an answer of another one, or like a question of the curator. So neither counts without a signature.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cloister.board.signatures import Operator
from cloister.errors import SignatureError

__all__ = ["open_answer", "open_question", "seal_answer", "seal_question"]

_QUESTION, _ANSWER = b"cloister question 1\0", b"cloister answer 1\0"
#: Bytes of a signature by Ed25519 (the operator's), and of one by ECDSA over P-384 (a node's).
_OPERATORS, _NODES = 64, 96


def seal_question(operator: Operator, name: str, request: bytes) -> bytes:
    """Return a question to one node, signed."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(operator.secret)
    return key.sign(_asked(name, request)) + request


def open_question(operator: bytes, name: str, sealed: bytes) -> bytes:
    """Return a question that the owner of this public key asks the node of this name; refuse any other."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature, request = sealed[:_OPERATORS], sealed[_OPERATORS:]
    try:
        Ed25519PublicKey.from_public_bytes(operator).verify(signature, _asked(name, request))
    except InvalidSignature:
        raise SignatureError(
            "A question came that the operator has not signed, or not for this node. It is passed over."
        ) from None
    return request


def seal_answer(key: Any, sealed: bytes, reply: bytes) -> bytes:
    """Return an answer to a sealed question, signed by a node's private key."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    r, s = decode_dss_signature(key.sign(_answered(sealed, reply), _algorithm()))
    return r.to_bytes(_NODES // 2, "big") + s.to_bytes(_NODES // 2, "big") + reply


def open_answer(key: Any, sealed: bytes, answer: bytes) -> bytes:
    """Return what the owner of this public key replies to a sealed question; refuse anything else."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    half, reply = _NODES // 2, answer[_NODES:]
    r, s = int.from_bytes(answer[:half], "big"), int.from_bytes(answer[half:_NODES], "big")
    try:
        key.verify(encode_dss_signature(r, s), _answered(sealed, reply), _algorithm())
    except InvalidSignature:
        raise SignatureError(
            "An answer came that the node's key has not signed, or not for this question. It does not count."
        ) from None
    return reply


def _asked(name: str, request: bytes) -> bytes:
    return _QUESTION + _hash(name.encode()) + _hash(request)


def _answered(sealed: bytes, reply: bytes) -> bytes:
    return _ANSWER + _hash(sealed) + _hash(reply)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())
