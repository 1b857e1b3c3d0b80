"""Certificates for TLS: an authority and what it signs, for trials and for one machine's inside."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloister.store.files import write_file, write_private

__all__ = ["make_authority", "make_certificate"]

_DAYS = 825


def make_authority(folder: Path, name: str) -> None:
    """Draw an authority's key and write ``NAME.key``, secret, and ``NAME.crt``, for everybody."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    key = generate_private_key(SECP256R1())
    subject = _named(f"cloister {name}")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _builder(subject, subject, key.public_key(), _DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    _write(folder, name, key, _signed(builder, key, key))


def make_certificate(folder: Path, name: str, authority: str, hosts: Sequence[str]) -> None:
    """Draw a server's key and write ``NAME.key`` and ``NAME.crt``, signed by an authority of this folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    parent = x509.load_pem_x509_certificate((folder / f"{authority}.crt").read_bytes())
    signer = load_pem_private_key((folder / f"{authority}.key").read_bytes(), None)
    key = generate_private_key(SECP256R1())
    builder = _builder(_named(hosts[0]), parent.subject, key.public_key(), _DAYS - 1)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
    )
    purpose = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(purpose, critical=False)
    _write(folder, name, key, _signed(builder, signer, signer))


def _builder(subject: Any, issuer: Any, public: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(
        now - datetime.timedelta(hours=1)
    )
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _signed(builder: Any, signer: Any, authority: Any) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return builder.add_extension(identifier, critical=False).sign(signer, SHA256())


def _write(folder: Path, name: str, key: Any, certificate: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    write_private(
        folder / f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    write_file(folder / f"{name}.crt", certificate.public_bytes(Encoding.PEM))


def _named(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
