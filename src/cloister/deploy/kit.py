"""``deploy init``: a folder with everything that an operator needs, closed to strangers from the start."""

from __future__ import annotations

import math
import os
import secrets
from pathlib import Path

import tomli_w

from cloister.channel import Relation
from cloister.deploy.certificates import make_authority, make_certificate
from cloister.deploy.pages import pages
from cloister.engines.flower.deployment import Deployment, Settings
from cloister.errors import InputError
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.store.files import make_folder, private_folder, write_file, write_private
from cloister.store.signatures import Operator

__all__ = ["add_node", "create"]

#: What a request of a node holds beyond its message, at most.
_AROUND = 1 << 14


def create(
    folder: Path, plan: Plan, settings: Settings, codebook: bytes | None = None, trial: bool = False
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


def _keys(folder: Path, settings: Settings, trial: bool) -> None:
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
