"""The readers that `fuzzing` tries: one entry each. A new kind of file or message adds an entry here."""

from __future__ import annotations

import encodings.cp1252  # noqa: F401  (the reader of CSV files imports it when it is needed)
import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fuzz_nodes import NODE_READERS
from fuzzing import (
    VALUES,
    Reader,
    framed,
    spoil_bytes,
    spoil_json,
    spoil_lines,
    spoil_toml,
    wrote,
)
from torch import nn

import cloister as cl
from cloister import Billboard, Plan, SharedPriorRegressor, Tasks, run
from cloister.algorithms import Joint, Locate, Mean, MeanRegularized, SharedPrior
from cloister.app.folder import read_plan
from cloister.app.outcomes import PLACE, Outcomes, runs_in
from cloister.app.shards import ParquetShards
from cloister.app.task_model import TaskModel
from cloister.app.verify import Evidence, verify_folder
from cloister.learners import Classification, LeastSquares, Module, Regression
from cloister.ledger import Ledger
from cloister.mechanisms import BLT, L2Laplace, Toeplitz
from cloister.sampling import Poisson
from cloister.store.billboard import MAGIC
from cloister.store.model_store import ModelFile, read_models
from cloister.store.records import END, chained
from cloister.tables.codebook import Codebook
from cloister.tables.naming import Naming
from cloister.tables.rows import read_rows

M, DIM = 12, 3
MEAN = MeanRegularized(LeastSquares(DIM), rounds=4, batch=2)
PLAN = Plan(MEAN, sampling=Poisson(0.5), n_tasks=M, delta=1e-2).calibrate(2.0)
CORRELATED = Plan(MEAN, Toeplitz(), n_tasks=M, delta=1e-2).calibrate(2.0)
BOOK = """format = "cloister codebook 2"
task = "school"
interactions = [["hours", "sex"]]
[target]
name = "score"
bounds = [0, 100]
[features.hours]
bounds = [0.5, 60.5]
missing = 7
cuts = [10, 20]
[features.pay]
bounds = [1, 1000]
transform = "log"
[features.age]
bounds = [5, 20]
knots = [8, 10, 12]
[features.sex]
levels = ["F", "M"]
missing = "unknown"
[features.grade]
levels = [1, 2, 3]
ordinal = true
[features.day]
bounds = [2020-01-01, 2026-12-31]
parts = ["days", "weekday", "month"]
"""


def tasks(m: int = M) -> Tasks:
    rng = np.random.default_rng(0)
    ids = np.repeat([f"t{i:02d}" for i in range(m)], 4)
    X = rng.uniform(-0.5, 0.5, (len(ids), DIM))
    return Tasks.from_arrays(X, X.sum(axis=1), ids)


TASKS = tasks()


# ------------------------------------------------------------------ boards and plans


def forge(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Spoil headers and arrays of a board, and compute every hash anew, as one who owns the file can."""
    out, head, at = [MAGIC], b"", len(MAGIC)
    while data[at:] != END:
        stop = at + 8 + int.from_bytes(data[at : at + 8], "little")
        header = data[at + 8 : stop]
        size = sum(int(np.prod(shape)) * 8 for _, _, shape in json.loads(header)["arrays"])
        parts = [header, data[stop : stop + size]]
        if rng.random() < 0.4:
            parts[0] = rng.choice([spoil_json, spoil_bytes])(parts[0], rng, others)
            if rng.random() < 0.7:  # as boards write it
                with suppress(ValueError, RecursionError):
                    document = json.loads(parts[0])
                    parts[0] = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        if rng.random() < 0.2:
            parts[1] = spoil_bytes(parts[1], rng, others)
        head = chained(head, *parts)
        out += [len(parts[0]).to_bytes(8, "little"), *parts, head]
        at = stop + size + 32
    return b"".join([*out, END])


def make_board(folder: Path) -> list[Path]:
    PLAN.save(folder / "plan.toml")
    return [run(PLAN, TASKS, random_state=0).board.save(folder / "board")]


def read_board(folder: Path) -> None:
    plan = Plan.load(folder / "plan.toml")
    try:
        board = Billboard.load(folder / "board")
    except cl.CloisterError:
        Billboard.recover(folder / "board")
        raise
    plan.check(board)
    plan.guarantee_on(board)


def make_plans(folder: Path) -> list[Path]:
    linear = MeanRegularized(LeastSquares(DIM), rounds=4, finetune=2)
    earlier = Plan(SharedPrior(Regression(DIM)), n_tasks=M).calibrate(1.0)
    start = earlier.prior_on(run(earlier, TASKS, random_state=0).board)
    plans = [
        PLAN,
        earlier,
        Plan(SharedPrior(Regression(DIM), Joint(start_from=start)), n_tasks=M).calibrate(1.0),
        Plan(SharedPrior(Regression(DIM), locate=Locate((1, 2))), n_tasks=M).calibrate(1.0),
        Plan(SharedPrior(Classification(2, classes=4), Mean()), L2Laplace(), n_tasks=M).calibrate(1.0),
        Plan(linear, Toeplitz(), n_tasks=M).calibrate(1.0),
        Plan(linear, BLT(), n_tasks=M).calibrate(1.0),
    ]
    return [plan.save(folder / f"{number}.toml") for number, plan in enumerate(plans)]


def read_plans(folder: Path) -> None:
    for path in folder.glob("*.toml"):
        _ = read_plan(path).fingerprint


# ------------------------------------------------------------------ ledgers


def make_ledger(folder: Path) -> list[Path]:
    ledger = Ledger.create(folder / "ledger", "exam", epsilon=10.0, delta=1e-2)
    for seed in range(2):
        run(PLAN, TASKS, random_state=seed, ledger=ledger)
    return [folder / "ledger"]


def spoil_cells(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change cells of a database, with its guards away meanwhile: as one who owns the file can."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data[:18] + b"\1\1" + data[20:])  # not in write-ahead mode, in memory
        guards = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            database.execute(f'DROP TRIGGER "{name}"')
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.choice([1, 1, 3])):
            table = rng.choice(names)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            rows = [row for (row,) in database.execute(f'SELECT rowid FROM "{table}"')]
            if not (columns and rows):
                continue
            column, row = rng.choice(columns), rng.choice(rows)
            try:
                spoil_cell(database, (table, column, row), rng, others)
            except (sqlite3.Error, OverflowError, ValueError):
                continue
        for _, sql in guards:
            database.execute(sql)
        database.commit()
        return database.serialize()


def spoil_cell(
    database: sqlite3.Connection,
    place: tuple[str, str, int],
    rng: random.Random,
    others: Sequence[bytes],
) -> None:
    table, column, row = place
    (old,) = database.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (row,)).fetchone()
    if rng.random() < 0.15:
        database.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))
        return
    if isinstance(old, str) and rng.random() < 0.6:
        spoil = spoil_json if old[:1] in "[{" else spoil_bytes
        new: object = spoil(old.encode(), rng, others).decode(errors="replace")
    else:
        new = rng.choice(
            [v for v in VALUES if isinstance(v, int | float | str | type(None))] + [b"\xff", b""]
        )
    database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (new, row))


def read_ledger(folder: Path) -> None:
    for name in ("ledger-wal", "ledger-shm", "ledger-journal"):
        (folder / name).unlink(missing_ok=True)
    ledger = Ledger.open(folder / "ledger")
    _ = ledger.history, ledger.spent, ledger.head, str(ledger.balance)
    ledger.charge(PLAN.fingerprint, PLAN.cost_under(ledger.relation))


# ------------------------------------------------------------------ codebooks and tables


def make_codebook(folder: Path) -> list[Path]:
    table = "school,score,hours,pay,age,sex,grade,day\na,50,7,20,9,F,1,2021-05-05\nb,,8,1,5,,3,2022-05-05\n"
    (folder / "rows.csv").write_text(table)
    return wrote(folder / "book.toml", BOOK.encode())


def read_codebook(folder: Path) -> None:
    book = Codebook.load(folder / "book.toml")
    _ = book.to_toml() if hasattr(book, "to_toml") else str(book)
    read_rows(folder / "rows.csv", book, target=True, skip=True)


def make_outcomes(folder: Path) -> list[Path]:
    Outcomes({"score": PLAN, "days": PLAN}).save(folder, PLAN.guarantee, Naming())
    return [folder / PLACE]


def read_outcomes_file(folder: Path) -> None:
    runs_in(folder)


def make_tables(folder: Path) -> list[Path]:
    make_codebook(folder)
    (folder / "book.toml").write_bytes(BOOK.encode())
    return [folder / "rows.csv"]


# ------------------------------------------------------------------ journals and folders of runs


class Stopped(Exception):
    pass


def make_journal(folder: Path) -> list[Path]:
    def stop(posted: object) -> None:
        if posted.done == 2:  # type: ignore[attr-defined]
            raise Stopped

    for name, plan in (("fresh", PLAN), ("correlated", CORRELATED)):
        with suppress(Stopped):
            run(plan, TASKS, journal=folder / name, progress=stop)
    shutil.copytree(folder, folder / "kept")
    return [path for name in ("fresh", "correlated") for path in (folder / name).iterdir()]


def read_journal(folder: Path) -> None:
    """Go on with both; then put both back as they were, but for what is spoiled in the next case."""
    try:
        for name, plan in (("fresh", PLAN), ("correlated", CORRELATED)):
            done = run(plan, TASKS, journal=folder / name)
            plan.check(done.board, exact=True)
    finally:
        for path in (folder / "kept").rglob("*"):
            place = folder / path.relative_to(folder / "kept")
            if path.is_file() and (not place.exists() or place.read_bytes() != path.read_bytes()):
                place.write_bytes(path.read_bytes())


def make_run(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    school = np.repeat([f"s{i}" for i in range(20)], 5)
    X = {"school": school, "hours": rng.uniform(0, 10, 100), "district": np.repeat(["n", "s"], 50)}
    bounds = {"hours": (0, 10), "target": (0, 20)}
    model = SharedPriorRegressor("school", epsilon=1.0, bounds=bounds, groups="district", random_state=0)
    place = model.fit(X, X["hours"] + rng.normal(0, 1, 100)).save(folder / "run")
    names = ["manifest.txt", "run.toml", "guarantee.json", "estimator.toml", "groups.json", "codebook.toml"]
    return [place / name for name in (*names, "head.txt", "models/s1.json", "models/index.csv")]


def read_run(folder: Path) -> None:
    place, errors = folder / "run", []
    for read in (
        lambda: verify_folder(Evidence(place, None, ())),
        lambda: cl.load(place).predict({"school": ["s1"], "hours": [1.0], "district": ["n"]}),
        lambda: str(TaskModel.load(place / "models" / "s1.json").summary()),
    ):
        try:
            read()
        except cl.CloisterError as error:
            errors.append(error)
    if errors:
        raise errors[0]


# ------------------------------------------------------------------ networks and Parquet


def module() -> Module:
    torch.manual_seed(0)
    return Module(nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 2)))


def make_network(folder: Path) -> list[Path]:
    net = module()
    return [net.save(folder / "net.safetensors", net.start(), {"plan": "p", "head": "h"}, private=True)]


def read_network(folder: Path) -> None:
    module().load(folder / "net.safetensors")


def spoil_table(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Write a Parquet file anew with other columns: of other types, names, lengths or notes."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError):
        return spoil_bytes(data, rng, others)
    at, rows = rng.randrange(table.num_columns), table.num_rows
    name = table.column_names[at]
    columns: list[Callable[[], pa.Array]] = [
        lambda: pa.nulls(rows),
        lambda: pa.array([None, *table[name].to_pylist()[1:]], table[name].type),
        lambda: pa.array([rng.choice(["x", "", "\0", "a" * 999]) for _ in range(rows)]),
        lambda: pa.array([[1.0, 2.0]] * rows),
        lambda: pa.array([{"x": 1}] * rows),
        lambda: pa.array([rng.choice([0, -1, 2**62]) for _ in range(rows)]),
        lambda: pa.array([rng.choice([np.nan, np.inf, 1e308, 0.5]) for _ in range(rows)]),
        lambda: pa.array([b"\xff"] * rows, pa.binary()),
        lambda: pa.array([True] * rows),
    ]
    match rng.randrange(5):
        case 0:
            table = table.drop_columns([name])
        case 1:
            table = table.rename_columns([rng.choice(["x", "task", n]) for n in table.column_names])
        case 2:
            notes = {b"cloister": spoil_bytes(b"{}", rng, others)} if rng.random() < 0.5 else {}
            kept = table.schema.metadata or {}
            table = table.replace_schema_metadata(
                {key: spoil_json(v, rng, others) for key, v in kept.items()} | notes
            )
        case 3:
            table = table.slice(0, rng.choice([0, 1, rows // 2]))
        case _:
            table = table.set_column(at, name, rng.choice(columns)())
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def make_shards(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    (folder / "rows").mkdir()
    names = np.repeat([f"s{i}" for i in range(8)], 5)
    table = {"school": names, "hours": rng.uniform(0, 10, 40), "score": rng.uniform(0, 20, 40), "part": names}
    pq.write_table(pa.table(table), folder / "rows" / "0.parquet")
    made = ParquetShards.split(folder / "rows", small_book(), folder / "shards", buckets=2, groups="part")
    return [path for path in made.folder.iterdir() if path.is_file()]


def small_book() -> Codebook:
    return Codebook.from_mapping({"hours": (0, 10), "score": (0, 20)}, ["hours"], "score", "school")


def read_shards(folder: Path) -> None:
    shards = ParquetShards.open(folder / "shards", small_book())
    _ = shards.roster
    for number in range(len(shards.positions)):
        shards.part(number).load()


def make_parquet(folder: Path) -> list[Path]:
    make_shards(folder)
    return [folder / "rows" / "0.parquet"]


def read_parquet(folder: Path) -> None:
    read_rows(folder / "rows" / "0.parquet", small_book(), target=True)
    shutil.rmtree(folder / "again", ignore_errors=True)
    ParquetShards.split(folder / "rows", small_book(), folder / "again", buckets=2, groups="part")


def make_models(folder: Path) -> list[Path]:
    models = {"coef": np.ones((4, 2)), "covariance": np.ones((4, 2, 2)), "level": np.ones(4)}
    file = ModelFile(folder, 0)
    file.write(np.array([f"t{i}" for i in range(4)]), models)
    return [file.path]


def read_shard(folder: Path) -> None:
    read_models(ModelFile(folder, 0).path)


READERS = [
    *NODE_READERS,
    Reader("board", make_board, read_board, (spoil_bytes, forge, forge)),
    Reader("plan", make_plans, read_plans, (spoil_bytes, spoil_toml, spoil_toml)),
    Reader("ledger", make_ledger, read_ledger, (spoil_bytes, spoil_cells, spoil_cells)),
    Reader("outcomes", make_outcomes, read_outcomes_file, (spoil_bytes, spoil_json)),
    Reader("codebook", make_codebook, read_codebook, (spoil_bytes, spoil_toml, spoil_toml)),
    Reader("csv table", make_tables, read_codebook, (spoil_bytes, spoil_lines)),
    Reader("journal", make_journal, read_journal, (spoil_bytes, spoil_json, spoil_lines)),
    Reader("run folder", make_run, read_run, (spoil_bytes, spoil_json, spoil_toml, spoil_lines)),
    Reader("safetensors", make_network, read_network, (spoil_bytes, framed(spoil_json), framed(spoil_bytes))),
    Reader("parquet shards", make_shards, read_shards, (spoil_bytes, spoil_json, spoil_table)),
    Reader("parquet table", make_parquet, read_parquet, (spoil_bytes, spoil_table)),
    Reader("parquet models", make_models, read_shard, (spoil_bytes, spoil_table)),
]  # fmt: skip
