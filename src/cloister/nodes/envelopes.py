"""Sealed questions and answers: what they say counts by its signature alone, whoever carries them.

A question is signed by the operator for one node. An answer is signed by that node for that question, and
encrypted to the curator that asks: every question bears a public key whose other half is in that curator's
memory alone, and ends with it. A question says how many bytes an answer has, whatever that says: a number
that follows from the plan, and the step of a secure sum. So sizes tell nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cloister.core.errors import InputError, SignatureError
from cloister.nodes.identity import Identity
from cloister.nodes.node import Node
from cloister.store.signatures import Operator, public_key

_QUESTION, _ANSWER, _KEY = b"cloister question 2\0", b"cloister answer 2\0", b"cloister answer key 2\0"
#: Bytes of a signature by Ed25519 (the operator's), and of one by ECDSA over P-384 (a node's).
_OPERATORS, _NODES = 64, 96
#: Bytes of a public key of X25519, of a tag, and of a length.
_READER, _TAG, _LENGTH = 32, 16, 8
#: Where a question says how long a reply may be.
_ROOM = slice(_OPERATORS + _READER, _OPERATORS + _READER + _LENGTH)
#: No question asks for a longer reply, and no longer one is read.
LARGEST_REPLY = 1 << 30


def answer_size(reply: int) -> int:
    """Return how many bytes a sealed answer has if a reply has so many at most."""
    return _NODES + _READER + _LENGTH + reply + _TAG


def asked_size(sealed: bytes) -> int:
    """Return how many bytes the answer to a sealed question has."""
    return answer_size(int.from_bytes(sealed[_ROOM], "little"))


def new_reader() -> Any:
    """Draw the private key by which a curator reads answers to its questions; never written anywhere."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def seal_question(operator: Operator, name: str, request: bytes, reader: Any, reply: int) -> bytes:
    """Return a question to one node, signed.

    Parameters
    ----------
    operator : Operator
        Who asks.
    name : str
        The node's task.
    request : bytes
        What is asked.
    reader : X25519PrivateKey
        To whose public half the answer is encrypted.
    reply : int
        Bytes that the node's reply has at most: its answer is made as long as if it had them.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(operator.secret)
    content: bytes = reader.public_key().public_bytes_raw() + reply.to_bytes(_LENGTH, "little") + request
    return key.sign(_question(name, content)) + content


def open_question(operator: bytes, name: str, sealed: bytes) -> bytes:
    """Return what the owner of this public key asks the node of this name; refuse any other question."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature, content = sealed[:_OPERATORS], sealed[_OPERATORS:]
    try:
        Ed25519PublicKey.from_public_bytes(operator).verify(signature, _question(name, content))
    except InvalidSignature:
        raise SignatureError(
            "A question came that the operator has not signed, or not for this node. It is passed over."
        ) from None
    return content[_READER + _LENGTH :]


def seal_answer(key: Any, sealed: bytes, reply: bytes) -> bytes:
    """Return an answer to a question that `open_question` has let through: padded, encrypted, signed.

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

    size = int.from_bytes(sealed[_ROOM], "little")
    if not len(reply) <= size <= LARGEST_REPLY:
        raise InputError(f"A reply of {len(reply)} bytes must fit into what was asked for. Got {size} bytes.")
    reader = X25519PublicKey.from_public_bytes(sealed[_OPERATORS : _ROOM.start])
    padded = len(reply).to_bytes(_LENGTH, "little") + reply.ljust(size, b"\0")
    once = new_reader()
    mine: bytes = once.public_key().public_bytes_raw()
    hidden: bytes = mine + _cipher(once.exchange(reader), sealed, mine).encrypt(bytes(12), padded, None)
    r, s = decode_dss_signature(key.sign(_answer_context(sealed, hidden), _algorithm()))
    return r.to_bytes(_NODES // 2, "big") + s.to_bytes(_NODES // 2, "big") + hidden


def open_answer(key: Any, reader: Any, sealed: bytes, answer: bytes) -> bytes:
    """Return what the owner of this public key replies to a sealed question; refuse anything else."""
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    half, hidden = _NODES // 2, answer[_NODES:]
    r, s = int.from_bytes(answer[:half], "big"), int.from_bytes(answer[half:_NODES], "big")
    try:
        key.verify(encode_dss_signature(r, s), _answer_context(sealed, hidden), _algorithm())
        once = hidden[:_READER]
        shared = reader.exchange(X25519PublicKey.from_public_bytes(once))
        padded: bytes = _cipher(shared, sealed, once).decrypt(bytes(12), hidden[_READER:], None)
    except (InvalidSignature, InvalidTag, ValueError):
        raise SignatureError(
            "An answer came that the node's key has not signed, or not for this question. It does not count."
        ) from None
    return padded[_LENGTH : _LENGTH + int.from_bytes(padded[:_LENGTH], "little")]


def _cipher(shared: bytes, sealed: bytes, once: bytes) -> Any:
    """Return the cipher of one answer; its key is for that alone, so that its nonce may be zero."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return ChaCha20Poly1305(HKDF(SHA256(), 32, None, _KEY + _hash(sealed) + once).derive(shared))


def _question(name: str, content: bytes) -> bytes:
    return _QUESTION + _hash(name.encode()) + _hash(content)


def _answer_context(sealed: bytes, hidden: bytes) -> bytes:
    return _ANSWER + _hash(sealed) + _hash(hidden)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())


class SealedNode:
    """A node that answers sealed questions with sealed answers.

    Parameters
    ----------
    node : Node
        The node; its folder has its keys.
    """

    def __init__(self, node: Node) -> None:
        settings = node.home.settings
        self.node, self.name = node, str(settings.task)
        self.operator = public_key(settings.operator)
        self.identity = Identity.load(node.home.folder)

    def answer(self, sealed: bytes) -> bytes | None:
        """Answer a question; one that the operator has not signed is noted at home, and has no answer."""
        try:
            request = open_question(self.operator, self.name, sealed)
            return seal_answer(self.identity.key, sealed, self.node.answer(request))
        except (SignatureError, InputError) as error:
            self.node.home.log(str(error))
            return None
