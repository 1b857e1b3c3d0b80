"""Who a node is, and where it finds its curator: keys, their fingerprints, and an address.

A node has two keys of its own: one signs its answers and lets it in (ECDSA over P-384), the other agrees on
secrets with the other nodes of a roster (X25519). Both public halves stand on the signed roster.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cloister.core.errors import InputError, SignatureError
from cloister.store.files import write_file, write_private

_BLOCK = re.compile(r"-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----")


@dataclass(frozen=True)
class CuratorAddress:
    """Where a node finds the operator's service, and which certificate it believes.

    Attributes
    ----------
    address : str
        ``host:port`` of the service.
    certificate : str
        The certificate of the authority that has signed the service's, a PEM file; a path that is not
        absolute is seen from the node's folder.
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
        except (OSError, ValueError, KeyError, RecursionError):
            raise InputError(
                f'{path} must have the lines address = "host:port" and certificate = "ca.crt". Type cloister '
                "node link, as the operator tells you."
            ) from None
        return cls(found.address, str(Path(folder) / found.certificate))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        text = tomli_w.dumps({"address": self.address, "certificate": self.certificate})
        return write_file(Path(folder) / "link.toml", text.encode())


@dataclass(frozen=True)
class PublicIdentity:
    """What others know of a node: its two public keys.

    Attributes
    ----------
    signing : EllipticCurvePublicKey
        By which its answers and its way in are checked; over P-384.
    agreement : X25519PublicKey
        With which others agree on secrets that only they and this node know.
    """

    signing: Any
    agreement: Any

    @classmethod
    def from_text(cls, text: str) -> PublicIdentity:
        """Read the file ``link.pub`` of a node: two public keys in PEM."""
        from cryptography.exceptions import InternalError, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            keys = [load_pem_public_key(block.encode()) for block in _BLOCK.findall(text)]
        except (ValueError, UnsupportedAlgorithm, InternalError):
            keys = []
        match keys:
            case [EllipticCurvePublicKey() as signing, X25519PublicKey() as agreement]:
                if isinstance(signing.curve, SECP384R1):
                    return cls(signing, agreement)
        raise InputError(
            "A node's key must be its whole file link.pub: a key over P-384 and one of X25519, in PEM. Have "
            "its owner type cloister node link again, and send that file."
        )

    @staticmethod
    def verify(text: bytes, signature: bytes, statement: bytes, what: str) -> None:
        """Refuse a statement that the owner of these public keys, as text, has not signed."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA384

        try:
            PublicIdentity.from_text(text.decode()).signing.verify(signature, statement, ECDSA(SHA384()))
        except InvalidSignature:
            raise SignatureError(f"{what} is not signed by its task's key on the roster.") from None

    @property
    def text(self) -> str:
        """The file ``link.pub``; the same for the same keys."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return "".join(
            key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
            for key in (self.signing, self.agreement)
        )

    @property
    def fingerprint(self) -> str:
        """128 bits of SHA-256 over both keys, for comparison by telephone: eight groups of four digits."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


@dataclass(frozen=True)
class Identity:
    """A node's own keys, secret; not the operator's to make.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     identity = Identity.create(folder)
    ...     identity.public == Identity.load(folder).public, identity.public[:26]
    (True, '-----BEGIN PUBLIC KEY-----')
    >>> len(PublicIdentity.from_text(identity.public).fingerprint)
    39
    """

    key: Any
    agreement: Any

    @classmethod
    def create(cls, folder: str | os.PathLike[str]) -> Identity:
        """Draw what is missing of a node's keys: ``link.key`` and ``agree.key``, secret; ``link.pub``."""
        from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        home = Path(folder)
        if not (home / "link.key").exists():
            write_private(home / "link.key", _pem(generate_private_key(SECP384R1())))
        if not (home / "agree.key").exists():
            write_private(home / "agree.key", _pem(X25519PrivateKey.generate()))
        made = cls.load(folder)
        write_file(home / "link.pub", made.public.encode())
        return made

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Identity:
        """Read the keys of a node's folder."""
        from cryptography.exceptions import InternalError, UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        home = Path(folder)
        try:
            files = [(home / name).read_bytes() for name in ("link.key", "agree.key")]
            keys = [load_pem_private_key(content, None) for content in files]
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm, InternalError):  # TypeError: a password
            keys = []
        match keys:
            case [EllipticCurvePrivateKey() as signing, X25519PrivateKey() as agreement]:
                return cls(signing, agreement)
        raise InputError(
            f"{home} must have this node's two keys, link.key and agree.key. Type cloister node link: it "
            "draws what is missing, as for nodes of earlier versions; then send link.pub anew."
        )

    @property
    def private(self) -> bytes:
        """The key that signs, in PEM. Secret."""
        return _pem(self.key)

    @staticmethod
    def sign(private: bytes, statement: bytes) -> bytes:
        """Sign a statement as `PublicIdentity.verify` checks it."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA384
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key: Any = load_pem_private_key(private, None)
        signature: bytes = key.sign(statement, ECDSA(SHA384()))
        return signature

    @staticmethod
    def is_in(folder: str | os.PathLike[str]) -> bool:
        """Say whether a node has a key by which a curator knows it."""
        return (Path(folder) / "link.key").exists()

    @property
    def public(self) -> str:
        """The public keys, as text."""
        return PublicIdentity(self.key.public_key(), self.agreement.public_key()).text


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found
