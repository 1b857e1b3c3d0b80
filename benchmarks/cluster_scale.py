"""Many tasks of 30 rows and 10 features from Parquet, by two actors: one run in a process of its own.

``python -m benchmarks.cluster_scale TASKS`` prints one line of JSON: the peak memory of the driver and of the
largest worker, and the time from files to models, that is dealing rows out, reading them, rounds and models.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

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


def workers_peak(found: dict[str, int]) -> None:
    """Note the peak memory of every process of Ray that computes, as long as this one lives."""
    while True:
        for place in Path("/proc").iterdir():
            try:
                title = (place / "cmdline").read_bytes().split(b"\0")[0]
                if place.name.isdigit() and title.startswith((b"ray::ShardActor", b"ray::silently")):
                    status = (place / "status").read_text()
                    found[place.name] = int(status.split("VmHWM:")[1].split()[0])
            except (OSError, IndexError):
                continue
        time.sleep(0.2)


def measure(tasks: int, shards: int, memory: int) -> dict[str, float]:
    from cloister import SharedPriorRegressor, run
    from cloister.engines import Cluster
    from cloister.tables.codebook import Codebook
    from cloister.tables.parquet_shards import ParquetShards

    names = [f"x{j}" for j in range(FEATURES)]
    book = Codebook.from_mapping(dict.fromkeys(names, (-1, 1)) | {"y": (-8, 8)}, names, "y", "task")
    peaks: dict[str, int] = {}
    threading.Thread(target=workers_peak, args=[peaks], daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        source = Path(home) / "table"
        source.mkdir()
        subprocess.run([sys.executable, __file__, "--write", str(source), str(tasks)], check=True)
        stamps = [time.perf_counter()]
        cluster = Cluster(2, models=Path(home) / "models", memory=memory)
        with cluster.connected():
            stamps.append(time.perf_counter())
            made = ParquetShards.split(
                source, book, Path(home) / "shards", buckets=shards, spread=cluster.each, groups=FILES
            )
            stamps.append(time.perf_counter())
            plan = SharedPriorRegressor(epsilon=1.0).plan(len(made), book)
            stamps.append(time.perf_counter())
            run(plan, made, engine=cluster)
        stamps.append(time.perf_counter())
        written = sum(path.stat().st_size for path in (Path(home) / "models").iterdir())
    start, split, price, ran = (b - a for a, b in itertools.pairwise(stamps))
    return {
        "tasks": tasks,
        "rounds": len(plan.rounds),
        "start_s": start,
        "split_s": split,
        "price_s": price,
        "run_s": ran,
        "ms_a_task": 1000 * (split + ran) / tasks,
        "driver_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "worker_gb": max(peaks.values()) / 2**20,
        "models_gb": written / 2**30,
    }


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        count = int(sys.argv[1])
        print(json.dumps(measure(count, shards=max(4, count // 15_000), memory=1 << 29)))
