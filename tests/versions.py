"""Run tests with the oldest and the newest libraries that pyproject.toml allows: ``make test-versions``.

Two environments are made in ``build/versions``. *oldest* has this Python and, of every library that the core
and its extras need, the version at the lower bound; *newest* has the newest Python that is found (or that of
``--python``) and the newest libraries. torch is installed only where a build for processors is at hand, as
constraints.txt says: others bring gigabytes of CUDA. Arguments are the tests to run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "versions"
EXTRAS = ("data", "excel", "postgres", "ray", "report", "table")
#: What only tests need.
TOOLS = ("gdpnum", "hypothesis", "pgserver", "polars", "pytest", "pytest-xdist")


def lowest(requirement: str) -> str:
    """Return a requirement at its lower bound: ``numpy>=1.26`` as ``numpy==1.26``."""
    return re.sub(r">=([\d.]+)[^;]*", r"==\1", requirement)


def requirements(oldest: bool) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    needed = [*project["dependencies"], *(one for extra in EXTRAS for one in optional[extra])]
    needed += [one for one in optional["dev"] if re.match(r"[\w-]+", one)[0] in TOOLS]  # type: ignore[index]
    return sorted({lowest(one) if oldest else one for one in needed})


def newest_python() -> str:
    """Return the newest Python from 3.11 on that is on the path, or that pyenv has."""
    known = sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python"), key=_numbers)
    on_path = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    found = {}
    for python in filter(None, [*map(str, known), *on_path]):
        done = subprocess.run([python, "-V"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[_numbers(done.stdout)] = python
    return found[max(found)]


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(text))))


def environment(name: str, python: str) -> Path:
    """Make an environment, or bring it up to date; return its Python."""
    folder = FOLDER / name
    print(f"== {name}: {python} into {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin" / "python"
    install = [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, "--upgrade", *requirements(name == "oldest")], check=True)
    subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
    pinned = re.search(r"^torch==.*", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    local = [*install, "--no-deps", "--no-index", pinned[0] if pinned else "torch"]
    if subprocess.run(local, capture_output=True, check=False).returncode == 0:
        subprocess.run([*install, pinned[0] if pinned else "torch", "safetensors"], check=True)
    return own


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="what to run (tests)")
    parser.add_argument("--only", choices=["oldest", "newest"], help="one of the two")
    parser.add_argument("--python", help="for newest: which Python")
    chosen = parser.parse_args()
    pythons = {"oldest": sys.executable, "newest": chosen.python or newest_python()}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    failed = []
    for name in [chosen.only] if chosen.only else pythons:
        own = environment(name, pythons[name])
        command = [str(own), "-m", "pytest", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider"]
        command += ["-W", "default::DeprecationWarning"] if name == "oldest" else []  # between old libraries
        status = subprocess.run([*command, *chosen.tests], cwd=ROOT, env=os.environ | threads, check=False)
        subprocess.run([str(own), "-m", "pip", "list", "--format=freeze"], check=True)
        print(f"== {name}: {'failed' if status.returncode else 'passed'}", flush=True)
        failed += [name] * bool(status.returncode)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
