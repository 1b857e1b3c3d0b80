"""``deploy init``: a folder with everything that an operator needs, closed to strangers from the start.

It holds certificates for TLS (an authority and what it signs, for trials and for one machine's inside) and
texts: Flower's app, units for systemd, a compose file, nginx, a runbook.
"""

from __future__ import annotations

import datetime
import ipaddress
import math
import os
import secrets
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import tomli_w

from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.ledger import Ledger
from cloister.nodes.deploy.processes import (
    executor_command,
    forget_command,
    link_command,
    proxy_command,
    script,
    settings,
)
from cloister.nodes.flower.deployment import Deployment, DeploymentSettings
from cloister.nodes.flower.proxy import CALLS
from cloister.plan.plan import Plan
from cloister.store.files import make_folder, private_folder, write_file, write_private
from cloister.store.signatures import Operator

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


#: Each file of the folder, and the template that it is made of.
_FILES = {
    "README.md": "README.md",
    "app/pyproject.toml": "project.toml",
    "app/curator/__init__.py": "apps_init.txt",
    "app/curator/apps.py": "apps.txt",
    "compose.yaml": "compose.yaml",
    "Containerfile": "Containerfile",
    "nginx.conf": "nginx.conf",
}
#: Nodes behind one address for which nginx leaves room: the key in a request's head proves nothing to it.
_NODES = 10
_UNITS = {
    "link": "Flower's link, on this machine alone",
    "proxy": "the only way to Flower's link",
    "executor": "starts the curator when the link asks for it",
    "curator": "runs the plan, and starts it again until the board is complete",
}


def pages(deployment: Deployment) -> dict[str, str]:
    """Return the files of an operator's folder that are made of text, by their names."""
    texts = files("cloister.nodes.deploy") / "templates"
    host, _, port = deployment.settings.address.rpartition(":")
    words = {
        "folder": str(deployment.folder),
        "python_folder": repr(str(deployment.folder)),
        "run": deployment.settings.run,
        "address": deployment.settings.address,
        "host": host,
        "port": port,
        "link": str(deployment.settings.link),
        "largest": str(deployment.settings.largest),
        "rate": str(round(deployment.settings.rate)),
        "burst": str(round(2 * deployment.settings.rate)),
        "rate_of_address": str(round(_NODES * deployment.settings.rate)),
        "burst_of_address": str(round(2 * _NODES * deployment.settings.rate)),
        "calls": "|".join(sorted(call.rpartition("/")[2] for call in CALLS)),
        "public": deployment.operator.public.hex(),
        "forget": shlex.join(forget_command(deployment)),
    }
    made = {name: Template((texts / of).read_text("utf-8")).substitute(words) for name, of in _FILES.items()}
    return made | _units(deployment, Template((texts / "unit.service").read_text("utf-8")))


def _units(deployment: Deployment, unit: Template) -> dict[str, str]:
    commands = {
        "link": link_command(deployment),
        "proxy": proxy_command(deployment),
        "executor": executor_command(deployment),
        "curator": [script("cloister"), "deploy", "start", str(deployment.folder)],
    }
    more = {  # who faces strangers sees no secret; a link that ends after its run leaves no database
        "proxy": f"InaccessiblePaths={deployment.folder}/secrets {deployment.folder}/state\n",
        "link": f"ExecStopPost={shlex.join(forget_command(deployment))}\n",
    }
    environment = "\n".join(f"Environment={key}={value}" for key, value in settings(deployment).items())
    made = {}
    for name, what in _UNITS.items():
        after = "network-online.target" if name in ("link", "proxy") else "cloister-link.service"
        words = {
            "what": what,
            "after": after,
            "command": shlex.join(commands[name]),
            "environment": environment,
            "folder": str(deployment.folder),
            "again": "on-failure" if name == "curator" else "always",
            "more": more.get(name, ""),
        }
        made[f"systemd/cloister-{name}.service"] = unit.substitute(words)
    return made


#: What a request of a node holds beyond its message, at most.
_AROUND = 1 << 14


def create(
    folder: Path, plan: Plan, settings: DeploymentSettings, codebook: bytes | None = None, trial: bool = False
) -> Deployment:
    """Write an operator's folder; nothing is started, and nobody is registered.

    Parameters
    ----------
    folder : Path
        A new folder.
    plan : Plan
        The plan, which every node's owner approves.
    settings : Settings
        Name and addresses of the run; rounds and the largest request are those of the plan.
    codebook : bytes, optional
        The codebook file by which nodes make rows of their tables.
    trial : bool
        Whether to make an authority for the proxy's certificate as well, for a trial; otherwise put
        ``proxy.crt`` and ``proxy.key`` from an authority that your nodes believe into ``certificates``.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is already there and is left as it is. Choose another folder.")
    private_folder(folder)
    plan.save(folder / "plan.toml")
    if codebook is not None:
        write_file(folder / "codebook.toml", codebook)
    dims = [channel.dim for round in plan.rounds for channel in round.channels]
    limits = {"rounds": len(plan.rounds), "largest": 8 * max(dims) + _AROUND}
    document = {k: v for k, v in vars(settings).items() if v is not None} | limits
    write_file(folder / "deploy.toml", tomli_w.dumps(document).encode())
    write_file(
        folder / "nodes.toml",
        b"# One for each node: its name, its public key (link.pub), its public group if any.\n",
    )
    _keys(folder, settings, trial)
    deployment = Deployment(folder.resolve())
    told = plan.guarantee
    epsilon = math.ceil(1000 * told.epsilon) / 1000
    Ledger.create(
        deployment.state / "ledger",
        settings.run,
        epsilon=epsilon,
        delta=told.delta,
        relation=Relation(told.relation),
    )
    os.chmod(deployment.state / "ledger", 0o600)
    for name, text in pages(deployment).items():
        make_folder((folder / name).parent)
        write_file(folder / name, text.encode())
    return deployment


def add_node(deployment: Deployment, name: str | int, key: str, group: str | None = None) -> None:
    """Note who takes part: a name, and the public key that its owner has sent."""
    nodes = [*deployment.nodes, {"name": name, "key": key} | ({} if group is None else {"group": group})]
    text = tomli_w.dumps({"node": nodes}, multiline_strings=True)
    write_file(deployment.folder / "nodes.toml", text.encode())
    deployment.__dict__.pop("nodes", None)


def _keys(folder: Path, settings: DeploymentSettings, trial: bool) -> None:
    """Draw the operator's key, the executor's secret, and certificates for this machine's inside."""
    hidden, certificates = private_folder(folder / "secrets"), private_folder(folder / "certificates")
    Operator.new(settings.run).save(hidden / "operator.key")
    write_private(hidden / "executor.secret", secrets.token_hex(32).encode())
    make_authority(certificates, "inner-ca")
    make_certificate(certificates, "inner", "inner-ca", ["127.0.0.1", "localhost"])
    (certificates / "inner-ca.key").unlink()
    if trial:
        host = settings.address.rpartition(":")[0]
        make_authority(certificates, "trial-ca")
        make_certificate(certificates, "proxy", "trial-ca", [host])
