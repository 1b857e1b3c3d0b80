"""Tasks: parties with private data, of any size each, and the blocks in which they are computed on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.arrays import A, Array, Floats, Integers, Words, namespace, shift_right, to_uniforms
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.named_inputs import inputs_of, row_array, row_size
from cloister.core.roster import NO_GROUP, Roster, check_one_each, group_labels, refuse_repeats, task_ids
from cloister.core.spelling import counted

#: So many feature values are computed on as quickly as Python calls a dozen functions.
QUICK_ELEMENTS = 1 << 18
#: Tasks are padded to powers of two if all would have at most so many: it costs less than more blocks do.
PADDED_ELEMENTS = 1 << 21
#: So many are computed on faster than that; tasks of up to SHARED_WIDTH rows share a width then.
SMALL_ELEMENTS, SHARED_WIDTH = 1 << 16, 64
#: A block holds at most this many feature values (8 MB), so that temporaries stay in bounds.
BLOCK_ELEMENTS = 1 << 20
#: In this round, which no run has, a task's stream gives its records keys of their own.
RECORD_KEYS = (1 << 31) - 1


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Some tasks stacked along a leading axis; rows of zero weight are padding.

    Attributes
    ----------
    ids : array of shape (tasks,)
        Names of the tasks.
    X : array of shape (tasks, rows, ...)
        Features, zero where padded.
    y : array of shape (tasks, rows)
        Targets, zero where padded.
    weight : array of shape (tasks, rows)
        Row weights; zero marks padding.
    keys : uint64 array of shape (tasks,)
        Each task's own key for its local randomness (see `local_uniforms`).
    group : int64 array of shape (tasks,), optional
        The position of each task's public group in the plan; -1, of all by default, is none. It is an array
        of NumPy, wherever the others are.
    turn : int64 array of shape (tasks, rows), optional
        The how-manieth row of its person in its task each is, from 0; None where nobody has said.
    """

    ids: Array
    X: Array
    y: Array
    weight: Array
    keys: NDArray[np.uint64]
    group: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    turn: Integers | None = None

    def __post_init__(self) -> None:
        if not len(self.group):
            object.__setattr__(self, "group", np.full(len(self.ids), NO_GROUP))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Block({counted(len(self), 'task')}, private)"

    def uniforms(self, counter: int) -> NDArray[np.float64]:
        """Return one uniform a row from each task's own stream (see `local_uniforms`)."""
        return local_uniforms(self.keys, counter, self.weight.shape[1])

    def take(self, rows: ArrayLike) -> Block:
        at = np.asarray(rows)
        parts = (self.ids, self.X, self.y, self.weight, self.keys, self.group)
        block = Block(*(part[at] for part in parts))
        return block if self.turn is None else replace(block, turn=self.turn[at])

    def counts(self, most: int | None = None) -> Integers:
        """Return how many `records` each task has."""
        return np.asarray(self._heard(most).sum(axis=1))

    def _heard(self, most: int | None) -> NDArray[np.bool_]:
        real = np.asarray(self.weight > 0)
        return real if most is None or self.turn is None else real & (self.turn < most)

    def records(self, most: int | None = None) -> Block:
        """Return each row as a task of one row, in order; padding, and rows of no weight, are left out.

        Each has its task's name and group, and a key of its own; of a person there are the first `most`.

        Examples
        --------
        >>> tasks = Tasks.from_list([[[0.5]], [[1.0], [2.0]]], [[1.0], [2.0, 4.0]], ["a", "b"])
        >>> records = next(tasks.blocks()).records()
        >>> records.ids.tolist(), records.y.tolist()
        (['a', 'b', 'b'], [[1.0], [2.0], [4.0]])
        """
        flat, kept = self.weight.size, np.flatnonzero(self._heard(most))
        task, place = np.divmod(kept, max(1, self.weight.shape[1]))
        rows = [part.reshape(flat, 1, *part.shape[2:])[kept] for part in (self.X, self.y, self.weight)]
        keys = _words(self.keys, RECORD_KEYS, self.weight.shape[1]).view(np.uint64)[task, place]
        return Block(self.ids[task], rows[0], rows[1], rows[2], keys, self.group[task])


def local_key(seed: int, task: object) -> np.uint64:
    """Return a task's own key, a function of the seed and the task's name only."""
    digest = hashlib.blake2b(f"{seed}|{task}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def public_seeds(names: Array, seed: int = 0) -> Words:
    """Return seeds that everybody can compute: where nothing needs to be kept from anybody."""
    return np.array([local_key(seed, name) for name in names], dtype=np.uint64)


def local_uniforms(keys: A, round: int | A, count: int) -> A:
    """Draw `count` uniforms for each task from its own counter-based stream (SplitMix64).

    A draw depends on (the task's key, the round, its position) and on nothing else: neither the order
    of the tasks nor the block they sit in can matter. For minibatches and shuffles at home; never for
    noise or sampling coins, which come from the curator's own secret streams.

    Keys are words of NumPy, or tensors of signed numbers with the same bits. For rounds of shape (e,) draws
    have shape (e, tasks, count).

    Examples
    --------
    >>> keys = np.array([local_key(0, "a"), local_key(0, "b")])
    >>> both = local_uniforms(keys, round=3, count=4)
    >>> bool((local_uniforms(keys[1:], round=3, count=4) == both[1:]).all())
    True
    """
    drawn: A = to_uniforms(_words(keys, round, count))
    return drawn


def _words(keys: A, round: int | A, count: int) -> Any:
    """Draw the words that `local_uniforms` makes numbers of."""
    xp = namespace(keys)
    words: Any = np.asarray(keys).view(np.int64) if xp is np else keys
    position = xp.arange(1, count + 1, dtype=xp.int64, **({} if xp is np else {"device": words.device}))
    first = round << 32 if isinstance(round, int) else (round << 32)[..., None, None]
    z = words[:, None] + (first + position) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ shift_right(z, 31)


def _signed(word: int) -> int:
    """Return the same 64 bits as a signed number."""
    return word - (1 << 64) if word >= 1 << 63 else word


@dataclass(frozen=True, eq=False, repr=False)
class Tasks:
    """The private data of many tasks: rows sorted by task, and where each task's rows begin.

    Build one with `from_table`, `from_arrays` or `from_list`. Tasks may have any number of rows, one
    included; nothing is padded until a block is formed, and blocks hold tasks of similar size. Each task is
    there once, and its rows are in no other: what is made in any other way is checked for that, too.

    `groups` has the public label of each task, as on a `Roster`; see `with_groups`. `turn` says the
    how-manieth row of its person in its task each is; who that is, is not kept.

    Examples
    --------
    >>> tasks = Tasks.from_arrays([[0.1], [0.2], [0.3]], [1.0, 2.0, 3.0], ["b", "a", "b"])
    >>> tasks
    Tasks(2 tasks, 3 rows, 1 features, private)
    >>> [block.ids.tolist() for block in tasks.blocks()]
    [['a', 'b']]
    """

    ids: Array
    X: Array
    y: Array
    weight: NDArray[np.float64]
    offsets: NDArray[np.int64]
    groups: Array | None = None
    turn: Integers | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", task_ids(self.ids))
        refuse_repeats(self.ids)
        if self.groups is not None:
            object.__setattr__(self, "groups", group_labels(self.groups))
            check_one_each(len(self.ids), len(self.groups))
        ends = np.asarray(self.offsets)
        lengths = {len(self.X), len(self.y), len(self.weight), int(ends[-1]) if len(ends) else -1}
        lengths |= set() if self.turn is None else {len(self.turn)}
        if len(ends) != len(self.ids) + 1 or ends[0] or (np.diff(ends) < 0).any() or len(lengths) > 1:
            raise InputError(
                f"The rows of {len(self.ids)} tasks must lie one after the other, first to last. "
                f"Got {len(self.X)} rows of X, {len(self.y)} of y, {len(self.weight)} weights and "
                f"{len(ends)} offsets. Build tasks with from_arrays or from_list."
            )

    @classmethod
    def from_arrays(
        cls,
        X: ArrayLike | Mapping[str, ArrayLike],
        y: ArrayLike,
        task: ArrayLike,
        weight: ArrayLike | None = None,
        person: ArrayLike | None = None,
    ) -> Tasks:
        """Build from flat arrays and one task id a row; rows need not be sorted.

        Several inputs of a network are arrays by name, those of its ``forward``'s arguments. `person` says
        whose each row is, for plans that protect persons: a label that need not be the same in two tasks.
        """
        X, y, names = row_array(X), np.asarray(y), task_ids(task)
        weights = np.ones(len(y)) if weight is None else row_weights(weight)
        lengths = {"X": len(X), "y": len(y), "task": len(names), "weight": len(weights)}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InputError(f"X, y, task and weight must have one entry a row: {found}.")
        ids, inverse = np.unique(names, return_inverse=True)
        check_finite(X, y, names)
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise PrivateDataError("Row weights must be finite and >= 0. Drop the rows or mend the weights.")
        sizes = np.bincount(inverse, minlength=len(ids))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        if (np.diff(inverse) < 0).any():
            order = np.argsort(inverse, kind="stable")
            X, y, weights = X[order], y[order], weights[order]
        built = cls(ids, X, y, weights, offsets)
        return built if person is None else replace(built, turn=_turns(inverse, person))

    @classmethod
    def from_list(
        cls,
        X: Sequence[ArrayLike | Mapping[str, ArrayLike]],
        y: Sequence[ArrayLike],
        ids: Sequence[object] | None = None,
    ) -> Tasks:
        """Build from one feature array, or several by name, and one target array a task."""
        if len(X) != len(y):
            raise InputError(f"X and y must list the same tasks: X has {len(X)}, y has {len(y)}.")
        parts = [np.asarray(part) for part in y]
        names = np.arange(len(parts)) if ids is None else task_ids(list(ids))
        if len(names) != len(parts) or len(set(names.tolist())) != len(parts) or not parts:
            raise InputError(f"ids must name each of the {len(parts)} tasks, and no two alike.")
        features = [row_array(rows) for rows in X]
        for name, rows, part in zip(names.tolist(), features, parts, strict=True):
            if len(rows) != len(part):
                raise InputError(f"Task {name!r} has {counted(len(rows), 'row')} of X but {len(part)} of y.")
            if not len(part):
                raise InputError(f"Task {name!r} has no rows. Leave it out; it can join later by replay.")
        if len({rows.dtype.names for rows in features}) > 1:
            raise InputError("All tasks must have the same inputs, by the same names. Give each all of them.")
        stacked = np.concatenate(features)
        return cls.from_arrays(stacked, np.concatenate(parts), np.repeat(names, [len(p) for p in parts]))

    @classmethod
    def from_table(cls, table: Any, task: str, target: str, features: Sequence[str] | None = None) -> Tasks:
        """Build from a pandas, polars or pyarrow table of numbers with a task column."""
        import narwhals as nw

        frame = nw.from_native(table, eager_only=True)
        for name in [task, target, *(features or [])]:
            if name not in frame.columns:
                raise InputError(f"The table has no column {name!r}. It has: {', '.join(frame.columns)}.")
        chosen = features or [name for name in frame.columns if name not in (task, target)]
        for name in [*chosen, target]:
            if not frame[name].dtype.is_numeric() and frame[name].dtype != nw.Boolean:
                raise InputError(
                    f"Column {name!r} is not numeric. Encode it first (a Codebook with levels does)."
                )
        columns = [np.asarray(frame[name].to_numpy(), dtype=np.float64) for name in chosen]
        y = np.asarray(frame[target].to_numpy(), dtype=np.float64)
        if frame[task].is_null().any():
            raise InputError(f"Task column {task!r} has missing values. Drop those rows or name their task.")
        return cls.from_arrays(np.column_stack(columns), y, frame[task].to_numpy())

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shapes = {name: "x".join(map(str, part.shape[1:])) or "1" for name, part in inputs_of(self.X).items()}
        each = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items())
        return f"Tasks({len(self)} tasks, {len(self.y)} rows, {each} features, private)"

    @property
    def roster(self) -> Roster:
        """The public list of these tasks, made anew from the names as they are now."""
        return Roster(self.ids.tolist(), None if self.groups is None else self.groups.tolist())

    def with_groups(self, labels: Mapping[Any, object]) -> Tasks:
        """Return the same tasks, each with its public label, by name.

        Examples
        --------
        >>> tasks = Tasks.from_list([[[1.0]], [[1.0]]], [[2.0], [4.0]], ["Elm", "Oak"])
        >>> tasks.with_groups({"Oak": "south", "Elm": "north"}).roster.groups
        ('north', 'south')
        """
        missing = [name for name in self.ids.tolist() if name not in labels]
        if missing:
            raise InputError(f"Every task must have a group. Task {missing[0]!r} has none. Add its label.")
        return replace(self, groups=group_labels([labels[name] for name in self.ids.tolist()]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each task. Private: a count is data."""
        return np.diff(self.offsets)

    def blanked(self, which: NDArray[np.bool_]) -> Tasks:
        """Return the same tasks, with zeros in all rows of some: these send zeros and break nothing."""
        rows = np.repeat(which, self.sizes)
        X, y, weight = (np.array(column) for column in self._columns())
        X[rows], y[rows], weight[rows] = 0, 0, 1.0
        return Tasks(self.ids, X, y, weight, self.offsets, self.groups, self.turn)

    def select(self, index: ArrayLike) -> Tasks:
        """Return the tasks at these positions, in this order, none twice; or those a mask is true for."""
        where = np.asarray(index)
        at = np.arange(len(self))[where if where.size else where.astype(np.int64)]
        rows = np.concatenate([np.arange(*self.offsets[i : i + 2]) for i in at] or [np.arange(0)])
        offsets = np.concatenate([[0], np.cumsum(self.sizes[at])])
        labels = None if self.groups is None else self.groups[at]
        turn = None if self.turn is None else self.turn[rows]
        return Tasks(self.ids[at], self.X[rows], self.y[rows], self.weight[rows], offsets, labels, turn)

    def only(self, task: object) -> Tasks:
        """Return one task with its rows, by its name."""
        return self.select([self.roster.position(task)])

    def split(self, test: float = 0.3, seed: int = 0) -> tuple[Tasks, Tasks]:
        """Split every task's rows at random; each keeps at least one row for training.

        The split of a task depends on (seed, its name) only. Tasks left without a test row are absent
        from the second part.
        """
        if not 0 < test < 1:
            raise InputError(f"test must be a share in (0, 1). Got {test}.")
        held_out = np.zeros(len(self.y), dtype=bool)
        for i, (start, stop) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            count = min(round(test * float(stop - start)), int(stop - start) - 1)
            draws = local_uniforms(np.array([local_key(seed, self.ids[i])]), 0, int(stop - start))[0]
            held_out[start + np.argsort(draws)[:count]] = True
        names = np.repeat(self.ids, self.sizes)
        parts = [
            Tasks.from_arrays(self.X[keep], self.y[keep], names[keep], self.weight[keep])
            for keep in (~held_out, held_out)
        ]
        if self.groups is not None:
            labels = dict(zip(self.ids.tolist(), self.groups.tolist(), strict=True))
            parts = [part.with_groups(labels) for part in parts]
        if self.turn is not None:  # of fewer rows it says no less
            parts = [replace(p, turn=self.turn[k]) for p, k in zip(parts, (~held_out, held_out), strict=True)]
        return parts[0], parts[1]

    def layout(self, dim: int = 1, per_row: int = 1, among: int | None = None) -> list[NDArray[np.int64]]:
        """Group tasks of similar size into blocks: positions of the tasks of each.

        Only tasks of one `block_width` share a block, so that how many rows a task is padded to, and with
        that every bit that is computed for it, does not depend on the sizes of the others. A block's rows fit
        into the caches, and so do `dim` numbers of each of its tasks. `per_row` is how many numbers are
        computed with every row, where they are more than its features, as a network's parameters are. `among`
        is how many tasks a plan is for, if these are some of them: each is padded as it is among all.
        """
        features, padded = self._features, self._widths(self.sizes, per_row, among)
        groups = []
        for rows in np.unique(padded):
            index = np.flatnonzero(padded == rows)
            most = max(1, BLOCK_ELEMENTS // max(int(rows) * features, dim))
            groups += [index[start : start + most] for start in range(0, len(index), most)]
        return groups

    def blocks(
        self,
        layout: Sequence[NDArray[np.int64]] | None = None,
        seeds: Words | None = None,
        per_row: int = 1,
        groups: Integers | None = None,
        among: int | None = None,
    ) -> Iterator[Block]:
        """Iterate over the blocks of a layout, made with the same `per_row` and `among`.

        They are views where nothing need be padded, else copies.

        `seeds` has each task's own seed, in their order; by default one that follows from its name. `groups`
        has the position of each one's group in a plan; by default they are in none.
        """
        own = public_seeds(self.ids) if seeds is None else np.asarray(seeds, dtype=np.uint64)
        if own.shape != self.ids.shape:
            raise InputError(f"There must be one seed a task, for {len(self)} tasks. Got {own.shape}.")
        places = np.full(len(self), NO_GROUP) if groups is None else groups
        for index in self.layout(per_row=per_row, among=among) if layout is None else layout:
            X, y, weight, *turn = self._stack(index, per_row, among)
            yield Block(self.ids[index], X, y, weight, own[index], places[index], *turn)

    def _stack(self, index: NDArray[np.int64], per_row: int, among: int | None) -> list[Array]:
        sizes, first = self.sizes[index], self.offsets[index]
        rows = int(self._widths(sizes, per_row, among).max(initial=0))
        if len(index) and (sizes == sizes[0]).all() and (np.diff(index) == 1).all():
            span = slice(first[0], first[0] + sizes[0] * len(index))
            alike = (a[span].reshape(len(index), sizes[0], *a.shape[1:]) for a in self._columns())
            return [a if sizes[0] == rows else _padded(a, rows) for a in alike]
        real = np.arange(rows)[None, :] < sizes[:, None]
        source = (first[:, None] + np.arange(rows)[None, :])[real]
        stacked = []
        for column in self._columns():
            padded = np.zeros((len(index), rows, *column.shape[1:]), dtype=column.dtype)
            padded[real] = column[source]
            stacked.append(padded)
        return stacked

    @property
    def _features(self) -> int:
        return row_size(self.X)

    def _widths(self, sizes: Integers, per_row: int, among: int | None) -> Integers:
        return block_width(sizes, (len(self) if among is None else among) * max(self._features, per_row))

    def _columns(self) -> tuple[Array, ...]:
        return (self.X, self.y, self.weight, *(() if self.turn is None else (self.turn,)))


def _turns(task: Integers, person: ArrayLike) -> Integers:
    """Return the how-manieth row of its person in its task each is, rows by task and then as they came."""
    labels = np.asarray(person)
    if labels.shape != task.shape:
        raise InputError(f"person must have one entry a row, {len(task)}. Got shape {labels.shape}.")
    number = np.unique(labels, return_inverse=True)[1]
    whose = (task * (len(labels) + 1) + number)[np.argsort(task, kind="stable")]
    counts = np.unique(whose, return_counts=True)[1]
    turn = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(turn[np.argsort(np.argsort(whose, kind="stable"))])


def _padded(stacked: Array, rows: int) -> Array:
    """Return tasks of equal size with so many rows each, the last of them zeros."""
    padded = np.zeros((len(stacked), rows, *stacked.shape[2:]), dtype=stacked.dtype)
    padded[:, : stacked.shape[1]] = stacked
    return padded


def block_width(sizes: ArrayLike, numbers: int) -> Integers:
    """Return how many rows tasks are padded to: functions of each one's own size and of public numbers.

    `numbers` is how many numbers all tasks have if each has one row. As long as all of them would be quickly
    computed on, fewer, larger blocks count for more than padding: a width is a power of two, and small tasks
    share one. Above that it is a `padded_size`.

    Examples
    --------
    >>> block_width([1, 7, 9, 30, 70], numbers=3000).tolist()
    [16, 16, 16, 32, 128]
    """
    whole = np.asarray(sizes, dtype=np.int64)
    least = min(SHARED_WIDTH, 1 << (max(1, SMALL_ELEMENTS // numbers).bit_length() - 1))
    doubled = 1 << np.frexp(np.maximum(whole - 1, 0).astype(np.float64))[1].astype(np.int64)
    doubled = np.maximum(doubled, least)
    return np.where(doubled * numbers <= PADDED_ELEMENTS, doubled, padded_size(whole))


def padded_size(sizes: ArrayLike) -> NDArray[np.int64]:
    """Round sizes up to three binary digits: to 1 to 8, 10, 12, 14, 16, 20, ... A quarter is wasted at most.

    Examples
    --------
    >>> padded_size([1, 7, 9, 30, 100]).tolist()
    [1, 7, 10, 32, 112]
    """
    whole = np.asarray(sizes, dtype=np.int64)
    exponent = np.maximum(np.frexp(whole.astype(np.float64))[1] - 3, 0)
    return np.asarray(((whole + (1 << exponent) - 1) >> exponent) << exponent)


def row_weights(weight: ArrayLike) -> Floats:
    """Return weights as numbers; refuse what is not a list of them, such as a column's name."""
    try:
        found = np.asarray(weight, dtype=np.float64)
        if found.ndim == 1:
            return found
        got = f"shape {found.shape}"
    except (TypeError, ValueError):
        got = repr(weight) if isinstance(weight, str) else "entries that are no numbers"
    raise InputError(f"Row weights must be one number a row. Got {got}. Pass a column of numbers itself.")


def check_finite(X: Array, y: Array, names: Array) -> None:
    """Refuse missing or infinite values with the task and the column they are in."""
    parts = [("target", "", y), *(("feature", name, part) for name, part in inputs_of(X).items())]
    for label, name, values in parts:
        if values.dtype.kind not in "biuf":
            raise InputError(f"A {label} column is not numeric. Encode it first (a Codebook does).")
        if values.dtype.kind != "f" or np.isfinite(values).all():
            continue
        at = np.argwhere(~np.isfinite(values))[0]
        where = f"column {at[1]}" if label == "feature" and len(at) > 1 else f"the {name or 'target'}"
        raise PrivateDataError(
            f"Task {names[at[0] : at[0] + 1].tolist()[0]!r} has a missing or infinite value in {where}. "
            "Drop or impute it at home: cloister never fills in private values behind your back."
        )
