"""`FlowerTransport`: the curator's questions to nodes, and their answers, as sealed messages of Flower.

A node is known by a key of its own and by the address of the curator that it trusts. Flower's link checks who
connects, and not whose name a message bears: any registered node can send what looks like an answer of
another one, or like a question of the curator. So neither counts without a signature. The link also keeps
every message in a file, and its logs are not ours. So answers are encrypted to the curator that asks: every
question bears a public key whose other half is in that curator's memory alone, and ends with it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cloister.core.errors import InputError, SignatureError
from cloister.store.files import write_file, write_private
from cloister.store.signatures import Operator


@dataclass(frozen=True)
class CuratorAddress:
    """Where a node finds the curator's link, and which certificate it believes.

    Attributes
    ----------
    address : str
        ``host:port`` of the curator's proxy.
    certificate : str
        The certificate of the authority that has signed the proxy's, a PEM file; a path that is not absolute
        is seen from the node's folder.
    """

    address: str
    certificate: str

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CuratorAddress:
        """Read the way from a node's folder."""
        path = Path(folder) / "link.toml"
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            found = cls(str(document["address"]), str(document["certificate"]))
        except (OSError, ValueError, KeyError):
            raise InputError(
                f'{path} must have the lines address = "host:port" and certificate = "ca.crt". Write them as '
                "the operator tells you."
            ) from None
        return cls(found.address, str(Path(folder) / found.certificate))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        text = tomli_w.dumps({"address": self.address, "certificate": self.certificate})
        return write_file(Path(folder) / "link.toml", text.encode())


@dataclass(frozen=True)
class Identity:
    """A node's own key (ECDSA over P-384), by which link and curator know it; not the operator's to make.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     identity = Identity.create(folder)
    ...     identity.public == Identity.load(folder).public, identity.public[:26]
    (True, '-----BEGIN PUBLIC KEY-----')
    """

    key: Any

    @classmethod
    def create(cls, folder: str | os.PathLike[str]) -> Identity:
        """Draw a key and write it to a node's folder: ``link.key``, secret; ``link.pub``, public."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key

        path = Path(folder) / "link.key"
        if path.exists():
            raise InputError(f"{path} is there already, and is left as it is. Remove it to draw another key.")
        key = generate_private_key(SECP384R1())
        form = serialization.PrivateFormat.PKCS8
        text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_private(path, text)
        made = cls(key)
        write_file(Path(folder) / "link.pub", made.public.encode())
        return made

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Identity:
        """Read the key of a node's folder."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = Path(folder) / "link.key"
        try:
            return cls(load_pem_private_key(path.read_bytes(), None))
        except (OSError, ValueError):
            raise InputError(f"{path} must be this node's key. Restore it, or make the node anew.") from None

    @property
    def public(self) -> str:
        """The public key, as text."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        found: bytes = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return found.decode()


def read_public_key(text: str) -> Any:
    """Read a node's public key."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except ValueError:
        key = None
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1):
        return key
    raise InputError("A node's key must be a public key over P-384, in PEM. Use the node's file link.pub.")


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


def _answer_context(sealed: bytes, hidden: bytes) -> bytes:
    return _ANSWER + _hash(sealed) + _hash(hidden)


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())


#: Seconds between two looks for answers; and until a node that has not answered is asked the same again.
POLL, AGAIN = 0.25, 20.0
#: Under these names the bytes stand in a message.
_RECORD, _FIELD = "cloister", "bytes"


class _Due:
    """When each node is asked, and asked again: at once, then after longer and longer times."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._wait: dict[str, float] = {}

    def now(self, name: str) -> bool:
        return time.monotonic() >= self._at.get(name, 0.0)

    def asked(self, name: str) -> None:
        wait = self._wait.get(name, AGAIN)
        self._at[name], self._wait[name] = time.monotonic() + wait, 2 * wait

    def away(self, name: str) -> None:
        """Look for a node that is not there again in a second."""
        self._at[name] = time.monotonic() + 1.0

    def forged(self, name: str) -> None:
        """Ask again soon: somebody else was faster than the node, or it is not itself."""
        self._at[name] = time.monotonic() + self._wait.get(name, AGAIN) / 40


class FlowerTransport:
    """The way to nodes over a grid of Flower.

    A name belongs to a public key, which the operator has registered, and an answer counts for the name whose
    key has signed it; it is encrypted to a key that this object keeps in memory alone. Who is away is asked
    when it is back, and who has taken a question along into a crash is asked again: a node gives the same
    answer twice.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        What Flower hands to a ServerApp.
    operator : Operator
        Signs the questions.
    keys : mapping of str to str
        Each task's public key, by its name on the roster.
    log : callable, optional
        Takes a sentence about every answer that is passed over. Private. By default a warning of the logger
        ``cloister.flower``.
    """

    def __init__(
        self, grid: Any, operator: Operator, keys: Mapping[str, str], log: Callable[[str], None] | None = None
    ) -> None:
        self.grid, self.operator, self._reader = grid, operator, new_reader()
        self.keys = {name: read_public_key(text) for name, text in keys.items()}
        self._names = {" ".join(text.split()): name for name, text in keys.items()}
        self.log = log or logging.getLogger("cloister.flower").warning
        #: When each node has last answered, by the clock. Private: it tells who takes part.
        self.last_seen: dict[str, float] = {}

    def ask(self, requests: Mapping[str, bytes], deadline: float) -> Iterator[tuple[str, bytes]]:
        until = time.monotonic() + deadline
        sealed = {
            name: seal_question(self.operator, name, request, self._reader)
            for name, request in requests.items()
        }
        waiting, due = set(requests), _Due()
        pending: dict[str, str] = {}
        while waiting and time.monotonic() < until:
            self._push({name: sealed[name] for name in waiting if due.now(name)}, due, pending, until)
            for name, answer in self._pull(pending):
                try:
                    reply = open_answer(self.keys[name], self._reader, sealed[name], answer)
                except SignatureError as error:
                    self.log(f"Node {name!r}: {error}")
                    due.forged(name)
                    continue
                waiting.discard(name)
                self.last_seen[name] = time.time()
                yield name, reply
            if waiting:
                time.sleep(POLL)

    def _push(self, sealed: Mapping[str, bytes], due: _Due, pending: dict[str, str], until: float) -> None:
        """Ask those of these nodes that are there."""
        from flwr.app import Message

        if not sealed:
            return
        ids = self._ids()
        found = sorted(name for name in sealed if name in ids)
        ttl = max(until - time.monotonic(), 1.0)
        messages = [
            Message(body(sealed[name]), dst_node_id=ids[name], message_type="query", ttl=ttl)
            for name in found
        ]
        for name, number in zip(found, self.grid.push_messages(messages) if messages else (), strict=True):
            if number:
                pending[number] = name
                due.asked(name)
        for name in set(sealed) - set(found):
            due.away(name)

    def _ids(self) -> dict[str, int]:
        """Return who is there, by the key that was registered."""
        nodes = {
            " ".join(node.public_key.decode(errors="replace").split()): node.node_id
            for node in self.grid.get_nodes()
        }
        return {self._names[key]: number for key, number in nodes.items() if key in self._names}

    def _pull(self, pending: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        """Yield who was asked and what came back; nothing of what a reply says of itself is believed."""
        if not pending:
            return
        for message in self.grid.pull_messages(list(pending)):
            name = pending.pop(message.metadata.reply_to_message_id, None)
            if name is None:
                continue
            if message.has_error():
                self.log(f"Node {name!r}: Flower brought an error, {message.error.code}, and no answer.")
                continue
            data = message_body(message)
            if data is None:
                self.log(f"Node {name!r}: a message came that holds no answer.")
                continue
            yield name, data


def body(data: bytes) -> Any:
    """Return the content of a message of Flower that holds these bytes, and nothing else."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_FIELD: data})})


def message_body(message: Any) -> bytes | None:
    """Return the bytes of a message; None if it is not made as ours are."""
    from flwr.app import ConfigRecord

    try:
        record = message.content[_RECORD]
        data = record[_FIELD] if isinstance(record, ConfigRecord) else None
    except (KeyError, TypeError, ValueError):
        return None
    return data if isinstance(data, bytes) else None
