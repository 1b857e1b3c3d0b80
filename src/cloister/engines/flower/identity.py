"""How a node is known on its way to the curator: a key of its own, and an address that it trusts."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cloister.errors import InputError
from cloister.store.files import write_file, write_private

__all__ = ["CuratorAddress", "Identity", "read_public_key"]


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
