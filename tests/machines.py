"""Run the tests that depend on floating point as other processors would: ``make test-machines``.

Libraries choose their kernels by what a processor can do, and have variables that make them choose as if it
could do less. A promise that holds on one kind of processor alone fails here. Arguments are given to pytest
in place of the tests below: ``python tests/machines.py tests/learners``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from numpy._core import _multiarray_umath as numpy_kernels

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/test_golden.py",
    "tests/test_channel.py",
    "tests/test_curves.py",
    "tests/test_own_algorithm.py",
    "tests/test_verification.py",
    "tests/algorithms",
    "tests/engines/test_batched.py",
    "tests/engines/test_local.py",
    "tests/engines/test_sizes.py",
    "tests/engines/test_threads.py",
    "tests/engines/test_workers.py",
    "tests/learners",
    "tests/privacy/test_noise.py",
    "tests/store",
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def numpy_without(*kept: str) -> str:
    """Return the instructions that NumPy has kernels for and this processor can do, without those kept."""
    there = numpy_kernels.__cpu_features__
    return " ".join(name for name in numpy_kernels.__cpu_dispatch__ if there.get(name) and name not in kept)


#: What each machine's libraries are told; NumPy, SciPy's OpenBLAS, torch, oneDNN and MKL each in its words.
MACHINES = {
    "AVX2, one thread": dict.fromkeys(THREADS, "1")
    | {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": numpy_without("X86_V3", "AVX2", "FMA3"),
    },
    "SSE, two threads": dict.fromkeys(THREADS, "2")
    | {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": numpy_without(),
    },
    "this processor, two threads": dict.fromkeys(THREADS, "2"),
}


#: Says which kernels the libraries chose: a setting that one of them ignores would be a run of nothing.
LOOK = """
import os, threadpoolctl, scipy.linalg
from numpy._core import _multiarray_umath as kernels
try:
    import torch
except ImportError:
    torch = None
there = [name for name in kernels.__cpu_dispatch__ if kernels.__cpu_features__.get(name)]
blas = {pool["architecture"] for pool in threadpoolctl.threadpool_info() if "architecture" in pool}
chosen = torch.backends.cpu.get_cpu_capability() if torch else "not installed"
print(f"NumPy: {there}; OpenBLAS: {sorted(blas)}; torch: {chosen}")
wanted = os.environ.get("ATEN_CPU_CAPABILITY")
assert torch is None or wanted in (None, chosen.lower()), chosen
assert not set(os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()) & set(there), there
core = os.environ.get("OPENBLAS_CORETYPE")
assert core is None or {core.lower()} == {name.lower() for name in blas}, blas
"""


def between() -> bool:
    """Post boards on each machine, this one included, and check them on each."""
    passed, script = True, [sys.executable, str(ROOT / "tests" / "boards_between.py")]
    machines = {"this processor, one thread": dict.fromkeys(THREADS, "1"), **MACHINES}
    with tempfile.TemporaryDirectory() as folder:
        for what in ("post", "check"):
            for here, variables in machines.items():
                environment = os.environ | {key: value for key, value in variables.items() if value}
                for at, there in enumerate(machines):
                    if what == "check":
                        print(f"== boards of {there!r}, checked on {here!r}", flush=True)
                    elif there != here:
                        continue
                    done = subprocess.run(
                        [*script, what, f"{folder}/{at}"], env=environment, cwd=ROOT, check=False
                    )
                    passed &= done.returncode == 0
    return passed


def main(chosen: list[str]) -> int:
    failed = [] if chosen or between() else ["boards between machines"]
    for name, variables in MACHINES.items():
        told = " ".join(f"{key}={value!r}" for key, value in variables.items() if value)
        print(f"== {name}: {told}", flush=True)
        start = time.monotonic()
        processes = "1" if variables[THREADS[0]] == "2" else "2"  # two cores, either way
        command = [sys.executable, "-m", "pytest", "-n", processes, "-m", "not slow", *(chosen or TESTS)]
        environment = os.environ | {key: value for key, value in variables.items() if value}
        subprocess.run([sys.executable, "-c", LOOK], env=environment, check=True)
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        print(
            f"== {name}: {'failed' if status else 'passed'} in {time.monotonic() - start:.0f} s", flush=True
        )
        failed += [name] * bool(status)
    print(f"failed: {', '.join(failed)}" if failed else "passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
