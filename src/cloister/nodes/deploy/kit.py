"""``deploy init``: a folder with everything that an operator needs, closed to strangers from the start.

It holds a certificate for TLS (from an authority that is made for a trial) and texts: units for systemd, a
compose file, a runbook.
"""

from __future__ import annotations

import datetime
import ipaddress
import math
import os
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import tomli_w

from cloister.app.folder import codebook_of_plan
from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.ledger import Ledger
from cloister.nodes.deploy.deployment import Deployment, DeploymentSettings
from cloister.nodes.deploy.processes import ONE_THREAD, curator_command, service_command
from cloister.nodes.identity import PublicIdentity
from cloister.nodes.messages import reply_size
from cloister.plan.plan import Plan
from cloister.privacy.statement import rounded_up
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
_FILES = {"README.md": "README.md", "compose.yaml": "compose.yaml", "Containerfile": "Containerfile"}


#: What a runbook says of a node that is lost in a secure sum.
_ALL = "the run has ended: every round waits for all. Another run needs a name and a charge of its own."
_AWAY = (
    "rounds go on without it, as long as $quorum are there; each waits for it until the deadline of its "
    "first step. `state/log` says which attempts failed; a failed one has shown nothing, and costs nothing."
)


def pages(deployment: Deployment, plan: Plan) -> dict[str, str]:
    """Return the files of an operator's folder that are made of text, by their names."""
    texts = files("cloister.nodes.deploy") / "templates"
    host, _, port = deployment.settings.address.rpartition(":")
    words = {
        "folder": str(deployment.folder),
        "run": deployment.settings.run,
        "address": deployment.settings.address,
        "host": host,
        "port": port,
        "public": deployment.operator.public.hex(),
        "tasks": str(plan.n_tasks),
        "quorum": str(plan.fewest or "any number"),
        "trust": "",
        "epsilon": rounded_up(plan.guarantee.epsilon),
        "delta": rounded_up(plan.guarantee.delta),
        "unit": "" if plan.guarantee.unit == "task" else f" --unit {plan.guarantee.unit}",
    }
    if plan.trust.masked:
        words["lost"] = Template(_AWAY if plan.trust.stepwise else _ALL).substitute(words)
        words["trust"] = Template((texts / "secure_sum.md").read_text("utf-8")).substitute(words)
    made = {name: Template((texts / of).read_text("utf-8")).substitute(words) for name, of in _FILES.items()}
    return made | _units(deployment, Template((texts / "unit.service").read_text("utf-8")))


def _units(deployment: Deployment, unit: Template) -> dict[str, str]:
    folder = deployment.folder
    common = {"environment": "\n".join(f"Environment={key}={value}" for key, value in ONE_THREAD.items())}
    service = {
        "what": "carries sealed messages",
        "command": shlex.join(service_command(folder)),
        "after": "network-online.target",
        "again": "always",
        "more": f"InaccessiblePaths={folder}/secrets {folder}/state\n",  # it faces strangers
    }
    curator = {
        "what": "runs the plan, and is started again until the board is complete",
        "command": shlex.join(curator_command(folder)),
        "after": "cloister-service.service",
        "again": "on-failure",
        "more": f"ReadWritePaths={folder}\n",
    }
    return {
        f"systemd/cloister-{name}.service": unit.substitute(common | words)
        for name, words in (("service", service), ("curator", curator))
    }


def usual_quorum(plan: Plan) -> int:
    """Return how many nodes a round needs unless the operator says otherwise: all but a fifth.

    A sum of masked messages opens for no fewer than the plan's trust says.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from cloister import Trust
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import LeastSquares
    >>> plans = [Plan(MeanRegularized(LeastSquares(2)), n_tasks=m) for m in (3, 4, 5, 8, 24)]
    >>> [usual_quorum(plan) for plan in plans]
    [3, 4, 4, 7, 20]
    >>> [usual_quorum(replace(plan, trust=Trust.secure_sum())) for plan in plans]
    [3, 4, 5, 8, 24]
    """
    n_tasks = plan.n_tasks
    return plan.trust.fewest(n_tasks) if plan.trust.masked else n_tasks - n_tasks // 5


def create(
    folder: Path,
    plan: Plan,
    settings: DeploymentSettings,
    codebook: Path | None = None,
    trial: bool = False,
    target: str | None = None,
) -> Deployment:
    """Write an operator's folder; nothing is started, and nobody is registered.

    Parameters
    ----------
    folder : Path
        A new folder.
    plan : Plan
        The plan, which every node's owner approves.
    settings : DeploymentSettings
        Name and addresses of the run; rounds and the largest reply are those of the plan.
    codebook : Path, optional
        The codebook file by which nodes make rows of their tables; one that the plan is not for is refused.
    trial : bool
        Whether to make an authority for the service's certificate as well, for a trial; otherwise put
        ``server.crt`` and ``server.key`` from an authority that your nodes believe into ``certificates``.
    target : str, optional
        Which of the codebook's targets, if it has several.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is already there and is left as it is. Choose another folder.")
    book = None if codebook is None else codebook_of_plan(codebook, plan, target)
    if book is not None and not set(book.caveats) <= set(plan.caveats):
        raise InputError(
            f"{codebook} has bounds that were read from the data, and the plan does not say so. Write public "
            "bounds, and make the plan with them."
        )
    private_folder(folder)
    plan.save(folder / "plan.toml")
    if codebook is not None and target is None:
        write_file(folder / "codebook.toml", codebook.read_bytes())  # with its comments
    elif book is not None:
        book.save(folder / "codebook.toml")
    limits = {"rounds": len(plan.rounds), "reply": reply_size(plan)}
    document = {k: v for k, v in vars(settings).items() if v is not None} | limits
    write_file(folder / "deploy.toml", tomli_w.dumps(document).encode())
    write_file(
        folder / "nodes.toml",
        b"# One for each node: its name, its public keys (link.pub), its public group if any.\n",
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
        unit=told.unit,
    )
    os.chmod(deployment.state / "ledger", 0o600)
    for name, text in pages(deployment, plan).items():
        make_folder((folder / name).parent)
        write_file(folder / name, text.encode())
    return deployment


def add_node(deployment: Deployment, name: str | int, key: str, group: str | None = None) -> str:
    """Note who takes part: a name, and the public keys that its owner has sent. Return their fingerprint."""
    found, nodes = PublicIdentity.from_text(key), deployment.nodes
    if str(name) in {str(node["name"]) for node in nodes}:
        raise InputError(
            f"nodes.toml has a node {name!r} already. Take it out of there first, or name another."
        )
    deployment.naming.check([name, *deployment.naming.roster], "nodes.toml")
    nodes.append({"name": name, "key": found.text} | ({} if group is None else {"group": group}))
    text = tomli_w.dumps({"node": nodes}, multiline_strings=True)
    write_file(deployment.folder / "nodes.toml", text.encode())
    return found.fingerprint


def _keys(folder: Path, settings: DeploymentSettings, trial: bool) -> None:
    """Draw the operator's key, and for a trial an authority and the service's certificate."""
    hidden, certificates = private_folder(folder / "secrets"), private_folder(folder / "certificates")
    operator = Operator.new(settings.run)
    operator.save(hidden / "operator.key")
    write_file(folder / "operator.pub", operator.public.hex().encode() + b"\n")
    if trial:
        host = settings.address.rpartition(":")[0]
        make_authority(certificates, "trial-ca")
        make_certificate(certificates, "server", "trial-ca", [host])
