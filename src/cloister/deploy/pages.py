"""The texts of an operator's folder: Flower's app, units for systemd, a compose file, nginx, a runbook."""

from __future__ import annotations

import shlex
from importlib.resources import files
from string import Template

from cloister.deploy.processes import (
    executor_command,
    forget_command,
    link_command,
    proxy_command,
    script,
    settings,
)
from cloister.engines.flower.deployment import Deployment
from cloister.engines.flower.proxy import CALLS

__all__ = ["pages"]

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
    texts = files("cloister.deploy") / "templates"
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
