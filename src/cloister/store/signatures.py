"""The operator's signatures: under the roster of a run, and under every head of its board.

A head stands for a whole board. A signed one cannot be taken back: two heads of one run and one length that
differ prove that two boards were shown, to whoever holds the operator's public key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.core.errors import InputError, SignatureError
from cloister.core.roster import Roster
from cloister.store.files import write_private

KEY, SIGNATURE = 32, 64
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_run_name(run: object) -> str:
    """Return the name of a run; refuse one that is no name of a folder everywhere."""
    if isinstance(run, str) and _RUN.fullmatch(run):
        return run
    raise InputError(
        "A run's name must be up to 64 letters, digits, dots, dashes and underscores, the first a letter or "
        f"digit. Got {run!r}. Write, say, 'exam-2026'."
    )


def public_key(text: str) -> bytes:
    """Read a public key, 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY:
        raise InputError(f"A public key must be 64 hexadecimal digits. Got {text.strip()[:80]!r}.")
    return key


@dataclass(frozen=True)
class SignedRoster:
    """Who is asked in a run, of which plan and codebook, as the operator has signed it. Public.

    Attributes
    ----------
    run : str
        The run's name; an operator uses it once.
    plan : str
        Fingerprint of the plan.
    roster : Roster
        The tasks, and their public groups.
    codebook : str
        SHA-256 of the codebook by which tables become rows; empty where the plan takes rows as they are.
    signature : bytes
        Ed25519, of `statement`.
    keys : tuple of str
        The public keys of each task's node, in the order of the names: those that sign and those that agree
        on secrets; empty where nodes have none.
    """

    run: str
    plan: str
    roster: Roster
    codebook: str
    signature: bytes
    keys: tuple[str, ...] = ()

    @property
    def statement(self) -> bytes:
        return _roster_statement(self.run, self.plan, self.roster, self.codebook, self.keys)

    @property
    def fingerprint(self) -> str:
        """A hash of all that is signed."""
        return hashlib.sha256(self.statement).hexdigest()

    def verify(self, key: bytes) -> None:
        """Refuse a roster that the owner of this public key has not signed."""
        _verify(key, self.signature, self.statement, "This roster")

    def to_bytes(self) -> bytes:
        return json.dumps(
            {**json.loads(self.statement), "signature": self.signature.hex()}, indent=1
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SignedRoster:
        """Read what `to_bytes` wrote; whose signature it is, `verify` says."""
        try:
            document = json.loads(data)
            signature = bytes.fromhex(document.pop("signature"))
            roster = Roster.written(document["names"], document["groups"])
            found = cls(
                check_run_name(document["run"]),
                str(document["plan"]),
                roster,
                str(document["codebook"]),
                signature,
                tuple(map(str, document.get("keys", ()))),
            )
            if json.loads(found.statement) == document:
                return found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise InputError("This is not a signed roster, or it was edited. Ask the operator for it again.")


@dataclass(frozen=True)
class SignedHead:
    """The head of a board of so many records, as the operator has signed it. Public, and evidence.

    Attributes
    ----------
    run, roster : str
        The run's name, and the fingerprint of its signed roster.
    length : int
        How many records the board has: one more than releases.
    head : bytes
        The hash of the last record, which stands for all.
    signature : bytes
        Ed25519, of `statement`.

    Examples
    --------
    >>> operator = Operator.new("exam-2026")
    >>> one, two = (operator.sign_head("f" * 64, 3, bytes([k]) * 32) for k in (1, 2))
    >>> one.forks(one, operator.public), one.forks(two, operator.public)
    (False, True)
    """

    run: str
    roster: str
    length: int
    head: bytes
    signature: bytes

    @property
    def statement(self) -> bytes:
        return _head_statement(self.run, self.roster, self.length, self.head)

    def verify(self, key: bytes) -> None:
        """Refuse a head that the owner of this public key has not signed."""
        _verify(key, self.signature, self.statement, f"Record {self.length - 1}")

    def forks(self, other: SignedHead, key: bytes) -> bool:
        """Say whether both together prove that the operator has shown two boards of one run.

        Heads of different runs, or of different lengths, cannot be compared, and are refused.
        """
        self.verify(key)
        other.verify(key)
        if self.run != other.run:
            raise InputError(
                f"Heads are compared within one run. Got {self.run!r} and {other.run!r}. Ask the other node "
                "for the head of this run."
            )
        if self.roster != other.roster:
            return True
        if self.length != other.length:
            raise InputError(
                f"Heads must be of boards of one length. Got {self.length} and {other.length} records. Ask "
                f"for the head after {min(self.length, other.length)} records: node status --records."
            )
        return self.head != other.head

    def to_dict(self) -> dict[str, Any]:
        return {**json.loads(self.statement), "signature": self.signature.hex()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SignedHead:
        """Read what `to_dict` wrote; whose signature it is, `verify` says."""
        try:
            found = cls(
                check_run_name(document["run"]),
                str(document["roster"]),
                int(document["length"]),
                bytes.fromhex(document["head"]),
                bytes.fromhex(document["signature"]),
            )
            if found.to_dict() == dict(document):
                return found
        except (ValueError, KeyError, TypeError, OverflowError):
            pass
        raise InputError("This is not a signed head. Pass what `cloister node status --json` prints.")


@dataclass(frozen=True)
class Operator:
    """Who signs the roster and the board of a run: a secret key, and the name of the run.

    Parameters
    ----------
    run : str
        The run's name. Two runs under one name are a forked board, and the signatures prove it.
    secret : bytes
        32 bytes, the private key of Ed25519.
    """

    run: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_run_name(self.run)
        if len(self.secret) != KEY:
            raise InputError(f"A secret key must be {KEY} bytes. Use Operator.new, or Operator.load.")

    @classmethod
    def new(cls, run: str) -> Operator:
        """Draw a key."""
        return cls(run, secrets.token_bytes(KEY))

    @classmethod
    def load(cls, path: str | os.PathLike[str], run: str) -> Operator:
        """Read a key that `save` wrote; of one that is none nothing is repeated."""
        try:
            secret = bytes.fromhex(Path(path).read_text(encoding="ascii").strip())
        except ValueError:
            secret = b""
        if len(secret) != KEY:
            raise InputError(
                f"{path} must hold the operator's secret key, 64 hexadecimal digits. Restore it."
            )
        return cls(run, secret)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the secret key, for this user alone."""
        return write_private(Path(path), self.secret.hex().encode() + b"\n")

    @property
    def public(self) -> bytes:
        """The public key, which every node holds."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key: bytes = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return key

    def sign_roster(
        self, plan: str, roster: Roster, codebook: str = "", keys: tuple[str, ...] = ()
    ) -> SignedRoster:
        """Sign who is asked, by which keys, in a run of the plan with this fingerprint."""
        statement = _roster_statement(self.run, plan, roster, codebook, keys)
        return SignedRoster(self.run, plan, roster, codebook, self._key.sign(statement), keys)

    def sign_head(self, roster: str, length: int, head: bytes) -> SignedHead:
        """Sign the head of a board of so many records, of the run with this signed roster."""
        statement = _head_statement(self.run, roster, length, head)
        return SignedHead(self.run, roster, length, head, self._key.sign(statement))

    @property
    def _key(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)


def _verify(key: bytes, signature: bytes, statement: bytes, what: str) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, statement)
    except InvalidSignature:
        raise SignatureError(
            f"{what} is not signed by the operator whose key is held here. Ask the operator."
        ) from None


def _roster_statement(run: str, plan: str, roster: Roster, codebook: str, keys: tuple[str, ...]) -> bytes:
    """Return what is signed; a roster without keys is as earlier versions wrote it."""
    groups = None if roster.groups is None else list(roster.groups)
    if keys and not len(keys) == len(set(keys)) == len(roster):
        raise InputError("A roster must have keys for each task, and none twice. Ask the operator.")
    return _canonical(
        {
            **(
                {"format": "cloister roster 2", "keys": list(keys)}
                if keys
                else {"format": "cloister roster 1"}
            ),
            "run": run,
            "plan": plan,
            "codebook": codebook,
            "names": list(roster.names),
            "groups": groups,
        }
    )


def _head_statement(run: str, roster: str, length: int, head: bytes) -> bytes:
    return _canonical(
        {"format": "cloister head 1", "run": run, "roster": roster, "length": length, "head": head.hex()}
    )


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
