"""Many tasks of 30 rows and 10 features, from Parquet by two actors or in memory: a run in its own process.

``python -m benchmarks.cluster_scale TASKS`` prints one line of JSON: the time from files to models, that is
dealing rows out, reading them, rounds and models; the peak memory of the driver and of the largest worker.
``--in-memory TASKS`` is the fit of the same table by one process that holds all of it. On a machine that does
other things, seconds on a processor (of driver and workers together, their start included) say more than
those on the wall.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.tables.codebook import Codebook

ROWS, FEATURES, FILES = 30, 10, 20


def write(folder: Path, tasks: int) -> None:
    """Write a table of tasks that resemble each other; their rows are all over the files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    mean, own = rng.normal(0, 0.5, FEATURES), rng.normal(0, 0.3, (tasks, FEATURES))
    for number in range(FILES):
        task = np.repeat(np.arange(tasks), ROWS)[number::FILES]
        X = rng.uniform(-1, 1, (len(task), FEATURES))
        y = np.einsum("nd,nd->n", X, mean + own[task]) + rng.normal(0, 0.5, len(task))
        columns = {"task": task, "y": np.clip(y, -8, 8)} | {f"x{j}": X[:, j] for j in range(FEATURES)}
        pq.write_table(pa.table(columns), folder / f"{number:03d}.parquet")


@dataclass
class Processes:
    """The processes of Ray below this one that compute: peak memory, and seconds on a processor, of each."""

    peaks: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    looking: float = 0.0  # seconds that looking at them took

    def watch(self) -> None:
        """Look at them again and again, as long as this process lives."""
        while True:
            self.look()
            self.looking = time.thread_time()
            time.sleep(0.5)

    def look(self) -> float:
        """Look at them once; return the seconds that they, and those that have ended, had so far."""
        tick = os.sysconf("SC_CLK_TCK")
        for place in Path("/proc").iterdir():
            try:
                if place.name.isdigit() and _computes((place / "cmdline").read_bytes()):
                    if int(_stat(_stat(place.name)[1])[1]) != os.getpid():
                        continue  # of another cluster
                    status, times = (place / "status").read_text(), _stat(place.name)[11:13]
                    self.peaks[place.name] = int(status.split("VmHWM:")[1].split()[0])
                    self.seconds[place.name] = sum(map(int, times)) / tick
            except (OSError, IndexError):
                continue
        return sum(self.seconds.values())


def _computes(title: bytes) -> bool:
    return title.startswith(b"ray::") and b"Agent" not in title


def _stat(process: str) -> list[str]:
    """Return what the kernel counts of a process, from its state on; its parent is next."""
    return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()


def own_seconds() -> float:
    """Return the seconds that this process was on a processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Clock:
    """Seconds of this process, by what they went to: on a processor, and by the clock on the wall."""

    processor: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        used, begun = own_seconds(), time.perf_counter()
        yield
        self.processor[what], self.wall[what] = own_seconds() - used, time.perf_counter() - begun


def codebook() -> Codebook:
    from cloister.tables.codebook import Codebook

    names = [f"x{j}" for j in range(FEATURES)]
    return Codebook.from_mapping(dict.fromkeys(names, (-1, 1)) | {"y": (-8, 8)}, names, "y", "task")


def in_memory(tasks: int) -> dict[str, float]:
    """Fit the same table, all of it in memory, in this process."""
    import numpy as np

    from cloister import SharedPriorRegressor

    with tempfile.TemporaryDirectory() as home:
        table = written(Path(home), tasks)
        X = np.stack([table[f"x{j}"].to_numpy() for j in range(FEATURES)], axis=1)
        y, task = table["y"].to_numpy(), table["task"].to_numpy()
    clock, model = Clock(), SharedPriorRegressor(epsilon=1.0, bounds=codebook())
    with clock.on("price"):  # once, and remembered
        _ = model.plan(tasks, codebook()).guarantee
    with clock.on("fit"):
        model.fit(X, y, tasks=task)
    return {
        "tasks": tasks,
        "cpu_ms_a_task": 1000 * clock.processor["fit"] / tasks,
        "ms_a_task": 1000 * clock.wall["fit"] / tasks,
        "load": os.getloadavg()[0],
    }


def written(folder: Path, tasks: int) -> Any:
    """Write the table in a process of its own, whose memory goes with it; return it as a whole."""
    import pyarrow.parquet as pq

    subprocess.run([sys.executable, __file__, "--write", str(folder), str(tasks)], check=True)
    return pq.read_table(folder)


def from_parquet(tasks: int, shards: int, memory: int) -> dict[str, float]:
    """Deal the table out, run over its shards, and write the models."""
    from cloister import SharedPriorRegressor, run
    from cloister.app.shards import ParquetShards
    from cloister.engines import Cluster

    workers, clock, book = Processes(), Clock(), codebook()
    threading.Thread(target=workers.watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        source, models = Path(home) / "table", Path(home) / "models"
        source.mkdir()
        subprocess.run([sys.executable, __file__, "--write", str(source), str(tasks)], check=True)
        cluster = Cluster(2, models=models, memory=memory)
        with clock.on("all"), cluster.connected():
            with clock.on("split"):
                made = ParquetShards.split(
                    source, book, Path(home) / "shards", buckets=shards, spread=cluster.each, shares=FILES
                )
            with clock.on("price"):
                plan = SharedPriorRegressor(epsilon=1.0).plan(len(made), book)
            with clock.on("run"):
                run(plan, made, engine=cluster)
        size = sum(path.stat().st_size for path in models.iterdir())
    driver = clock.processor["all"] - clock.processor["price"] - workers.looking
    return {
        "tasks": tasks,
        "rounds": len(plan.rounds),
        "cpu_ms_a_task": 1000 * (driver + workers.look()) / tasks,
        "driver_cpu_ms_a_task": 1000 * driver / tasks,
        "ms_a_task": 1000 * (clock.wall["split"] + clock.wall["run"]) / tasks,
        "split_s": clock.wall["split"],
        "run_s": clock.wall["run"],
        "load": os.getloadavg()[0],
        "driver_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "worker_gb": max(workers.peaks.values()) / 2**20,
        "models_gb": size / 2**30,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "--in-memory":
        print(json.dumps(in_memory(int(sys.argv[2]))))
    else:
        count = int(sys.argv[1])
        print(json.dumps(from_parquet(count, shards=max(4, count // 15_000), memory=1 << 30)))
