"""Thousands of networks at once: a block of tasks is one program, on a graphics card or on the processor.

Tasks of similar size share a bucket. All blocks of a bucket have one shape, so that one compiled program
serves them; places that no task fills have rows of weight zero and send nothing. Data and states that do not
fit on the device stay in pinned memory and pass through it block by block.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cloister.core.arrays import Array, Integers, States, Words, as_array
from cloister.core.channel import Channel, finite_rows
from cloister.core.errors import PlanError
from cloister.core.named_inputs import row_size
from cloister.core.tasks import Tasks
from cloister.engines.workers import (
    AnyTasks,
    Coins,
    Workers,
    begins_later,
    begins_now,
    check_messages,
    check_states,
    checked_rows,
    group_positions,
)
from cloister.networks.body_features import keep_features
from cloister.networks.network_faults import failures_named, require_tensors
from cloister.networks.network_inputs import RowKind
from cloister.networks.placement import (
    Bucket,
    Cut,
    Fetched,
    Footprint,
    OrderedMap,
    free_memory,
    sent,
    side_by_side,
    stored_like,
)
from cloister.networks.training import Precision, Trainer, matmul_precision
from cloister.plan.algorithm import Network
from cloister.plan.plan import Plan
from cloister.privacy.caveats import SHARED_DEVICE, Caveat
from cloister.privacy.chacha_proposals import Sampler, agrees, on_processor
from cloister.privacy.noise_states import TaskSum
from cloister.store.billboard import Billboard, BoardView
from cloister.store.checkpoints import SavedState
from cloister.store.model_store import ModelStore
from cloister.store.records import Release

T = TypeVar("T")

#: Bytes that a step of one block touches on a processor: what its caches hold, more or less.
CACHE = 1 << 24
#: Numbers that are clipped and added at once on a processor, in 64 bits: they should stay in its caches. But
#: after every pass over them a thread may wait for the interpreter, which another has: pieces should be few.
CHUNK = 1 << 19
#: The largest piece of memory, in bytes, that the GNU C library learns from.
LARGEST_PIECE = (1 << 25) - (1 << 16)
#: Layers of a network that is compiled, at most: compiling takes about half a second for each.
DEEP = 50


@dataclass(frozen=True)
class Batched:
    """The engine for networks (`cloister.learners.Module`).

    Parameters
    ----------
    device : str
        Such as "cuda" or "cpu".
    tf32, bf16 : bool
        Products of 32-bit numbers in TF32, or networks in bfloat16: faster on a graphics card, less exact.
    block : int, optional
        Tasks in a block; by default as many as free memory allows.
    compiled : bool, optional
        On a graphics card, compile what a round does, once, beside recording it: a network of few layers is
        two or three times faster. By default those of at most 50 layers are; of a deep one most of the time
        goes to large products, and compiling takes a minute.

    Privacy
    -------
    A block of tasks is one program, and rows never mix in it. How many rows a task has, and whether it takes
    part, can still move where in memory another's numbers lie, and with that the last bits of a matrix
    product. Who plants data to magnify such bits could feel it, and the guarantee says that it is *not proven
    to the last bit*. Where tasks distrust each other so far, take ``block=1`` on a processor.

    Messages are clipped and summed on the device, in 64 bits; what is proven of `Channel` holds there, the
    whole numbers of exact noise included. On a card exact noise is computed there for the curator, from the
    key of the release; it is what a processor would have drawn, bit for bit.

    Notes
    -----
    On the processor as many blocks are computed at once as torch has threads (`torch.set_num_threads`), each
    on one of them, and by default blocks are cut for that many. What a frozen body makes of rows is computed
    in parts in the same way. A run is the same to the bit each time with the same number of threads, and with
    another if `block` is given. On a graphics card products may be added in another order, and replay agrees
    to rounding.
    """

    device: str = "cuda"
    tf32: bool = False
    bf16: bool = False
    block: int | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError):
            raise PlanError(
                f'device must be "cuda", "cuda:1", "cpu" or their like. Got {self.device!r}.'
            ) from None

    @property
    def remote(self) -> bool:
        return False

    def doubts_of(self, plan: Plan) -> tuple[Caveat, ...]:
        """None on a processor where every task is a block of its own."""
        alone = self.block == 1 and torch.device(self.device).type == "cpu"
        return () if alone else (SHARED_DEVICE,)

    def noise_sampler(self) -> Sampler:
        """Return the card, if there is one: of a network's noise one core would make a round of its own.

        Before it is trusted it must find what the processor finds
        (`cloister.privacy.chacha_proposals.agrees`).
        """
        device = torch.device(self.device)
        number = device.index or 0
        there = device.type == "cuda" and number < torch.cuda.device_count()
        return _card_sampler(number) if there and importlib.util.find_spec("triton") else on_processor

    @contextmanager
    def workers(self, plan: Plan, tasks: AnyTasks, seeds: Words) -> Iterator[Workers]:
        rows, device = checked_rows(plan, tasks, self), torch.device(self.device)
        if device.type == "cuda" and not _is_there(device):
            which = "" if device.index is None else f" {self.device}"
            raise PlanError(f'torch sees no graphics card{which} here. Use Batched("cpu") or Local().')
        device = torch.empty(0, device=device).device  # with its number, as tensors there have it
        # Each block on one thread, whatever others' sizes: how many share a product tells in its last bits.
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        _keep_memory()
        with side_by_side(threads) as each:
            network, trainer, rows = self._prepared(plan, rows, device, each)
            group = group_positions(plan, rows)
            buckets = self._cut(plan, trainer, rows, rows.sizes, threads).buckets(rows, seeds, group)
            senders = buckets
            if plan.unit.by_record:
                ones = np.ones(len(rows.y), dtype=np.int64)
                cut = self._cut(plan, trainer, rows, ones, threads)
                senders = cut.record_buckets(rows, seeds, group, plan.unit.limit)
            bound = [
                plan.algorithm.with_network(network.on_device(own))
                for own in (trainer, *(trainer.twin() for _ in range(threads - 1)))
            ]
            yield _BatchedWorkers(plan, bound, trainer, buckets, senders, each)

    def _cut(self, plan: Plan, trainer: Trainer, rows: Tasks, sizes: Integers, threads: int) -> Cut:
        """Return how to cut tasks with so many rows into blocks."""
        rate = plan.sampling.probability(plan.n_tasks, len(plan.rounds)) if plan.rounds else 1.0
        if trainer.device.type == "cuda":
            takes = _footprint(plan, trainer, rows.X, sizes, self.block)
            return Cut(takes.tasks, rate, trainer.device, takes.rows_bytes > 0)
        share = math.ceil(plan.senders / threads)
        limit = self.block or min(share, _in_caches(plan, trainer, rows.X, sizes))
        return Cut(limit, rate, trainer.device, resident=True)

    def footprint(self, plan: Plan, tasks: Tasks) -> Footprint:
        """Return what a run would take of the card's memory; looks at shapes alone, on a machine without too.

        Parameters
        ----------
        plan : Plan
            Of an algorithm on a network.
        tasks : Tasks
            Whose sizes count, and the shape of a row.

        Returns
        -------
        Footprint
            Tasks in a block, and bytes. As private as the number of rows of the largest task is.

        Examples
        --------
        >>> from cloister.algorithms import FedAvg
        >>> from cloister.learners import Descent, Module
        >>> tasks = Tasks.from_arrays(np.zeros((400, 9)), np.zeros(400, dtype=int), np.arange(400) % 40)
        >>> net = torch.nn.Sequential(torch.nn.Linear(9, 999), torch.nn.Tanh(), torch.nn.Linear(999, 2))
        >>> algorithm = FedAvg(Module(net), Descent(0.1, batch=5), rounds=3)
        >>> plan = Plan(algorithm, n_tasks=40).calibrate(epsilon=1.0)
        >>> takes = Batched("cuda", block=20).footprint(plan, tasks)
        >>> takes.tasks, round(takes.peak_bytes / 1e6)
        (20, 12)
        """
        rows, device = checked_rows(plan, tasks, self), torch.device(self.device)
        here = device if device.type == "cuda" and _is_there(device) else torch.device("cpu")
        _, trainer, shown = self._prepared(plan, rows.select([int(rows.sizes.argmax())]), here, map)
        return _footprint(plan, trainer, shown.X, rows.sizes, self.block)

    def _prepared(
        self, plan: Plan, rows: Tasks, device: torch.device, each: OrderedMap
    ) -> tuple[Network, Trainer, Tasks]:
        """Return the network that is left to train, what trains it, and the rows that it takes."""
        network, precision = plan.algorithm.network, Precision(self.tf32, self.bf16)
        if network is None:
            raise PlanError(
                f"The batched engine trains networks. {type(plan.algorithm).__name__} has none; use Local()."
            )
        with failures_named(plan.n_tasks):
            network, rows = keep_features(network, rows, device, precision, self.block, each)
            network = network.for_rows(rows.X)
        layers = sum(not any(layer.children()) for layer in network.net.modules())
        compiled = layers <= DEEP if self.compiled is None else self.compiled
        trainer = Trainer(network.net, network.loss, device, precision, compiled, network.personal)
        with failures_named(2):
            network.on_device(trainer).settle(rows.X)
        return network, trainer, rows


@lru_cache(maxsize=16)
def _card_sampler(number: int) -> Sampler:
    """Return a card's sampler once it has found what the processor finds; else the processor's."""
    from cloister.networks.card_noise import CardSampler

    sampler = CardSampler(torch.device("cuda", number))
    try:
        if agrees(sampler):
            return sampler
    except NotImplementedError:  # an old torch lacks an operation
        return on_processor
    warnings.warn(f"Card {number} computes other noise than processors do, which draw it now.", stacklevel=2)
    return on_processor


@dataclass
class _DeviceBoard:
    """The board as a device sees it: its arrays are tensors there."""

    board: BoardView
    device: torch.device
    arrays: dict[str, Tensor] = field(default_factory=dict)
    derived: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def plan(self) -> str:
        return self.board.plan

    @property
    def capacity(self) -> int:
        return self.board.capacity

    @property
    def rounds(self) -> int:
        return self.board.rounds

    @property
    def releases(self) -> Sequence[Release]:
        return self.board.releases

    def before(self, round: int) -> _DeviceBoard:
        return _DeviceBoard(self.board.before(round), self.device)

    def derive(self, function: Callable[..., T], *public: Hashable) -> T:
        key = (function, public)
        if key not in self.derived:
            self.derived[key] = function(*public, self)
        found: T = self.derived[key]
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.board

    def __getitem__(self, name: str) -> Array:
        if name not in self.arrays:
            self.arrays[name] = sent(self.board[name], self.device)
        return as_array(self.arrays[name])


@dataclass
class _BatchedWorkers:
    plan: Plan
    #: The algorithm, bound to a network of its own for each block that is computed at the same time.
    algorithms: list[Any]
    trainer: Trainer
    buckets: list[Bucket]
    #: Whoever sends: the tasks themselves, or their records.
    senders: list[Bucket]
    each: OrderedMap = map
    clips: dict[Hashable, Callable[[Tensor], tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bad = torch.zeros((), dtype=torch.int64, device=self.trainer.device)

    def start(self, board: Billboard) -> None:
        for bucket in self.buckets:
            bucket.states = {}
        if not begins_later(self.plan, board):
            self._begin(board)

    def _begin(self, board: Billboard) -> None:
        here = _DeviceBoard(board, self.trainer.device)

        def begun(algorithm: Any, bucket: Bucket, at: slice | Tensor, real: int) -> dict[str, Tensor]:
            return _first(algorithm.init(bucket.block(at, real), here), real)

        for bucket in self.buckets:
            parts = list(self._over([bucket], self._everyone, begun))
            bucket.states = {
                name: stored_like(torch.cat([p[name] for p in parts]), bucket.X) for name in parts[0]
            }

    def collect(self, board: Billboard, channel: Channel, coins: Coins) -> TaskSum:
        exact = self.plan.mechanism.exact

        def added(messages: Tensor, real: int, groups: Integers) -> tuple[Any, Any]:
            step, total, bad = _at_once(messages), None, 0
            for at in range(0, real, step):
                clipped, finite = (x[: real - at] for x in self._clip(channel, messages[at : at + step]))
                own = groups[at : at + len(clipped)]
                part = channel.whole_sum(clipped, own) if exact else channel.lifted_sum(clipped, own)
                total = part if total is None else total + part
                bad = bad + (~finite).sum()
            return total, bad

        total: Any = None
        for part, bad in self._send(board, channel.dim, coins, added):
            total = part if total is None else total + part
            self.bad += bad
        if total is None:
            total = channel.total(torch.zeros(0, channel.dim, device=self.trainer.device), exact)
        if not isinstance(total, Tensor):
            return np.asarray(total)
        found = Fetched(total)
        if total.is_cuda:
            np.ones(2 * found.size)  # pages for this round's record, made and kept while the card computes
        return found

    def _clip(self, channel: Channel, messages: Tensor) -> tuple[Any, Any]:
        """Return clipped messages, as they are added, and which of them are finite.

        On a card this is one compiled program, if there is one channel for all rounds that it can serve. A
        processor is handed arrays of NumPy, which goes over so few numbers in less time than torch.
        """
        clip = channel.whole if self.plan.mechanism.exact else channel.units
        both = lambda rows: (clip(rows), finite_rows(rows))  # noqa: E731
        alike = len({c for r in self.plan.rounds for c in r.channels}) == 1
        if not messages.is_cuda:
            return both(messages.numpy())
        if not (self.trainer.compiled and alike):
            return both(messages)
        from cloister.networks.recorded import compiled

        key = (channel, messages.shape, messages.dtype)
        if key not in self.clips:
            self.clips[key] = compiled(both)
        found: tuple[Tensor, Tensor] = self.clips[key](messages)
        return found

    def rejected(self) -> int:
        return int(self.bad)

    def listen(self, board: Billboard, coins: Coins) -> None:
        dim = self.plan.algorithm.channel(board).dim
        count = lambda messages, real, _: (~finite_rows(messages[:real])).sum()  # noqa: E731
        for bad in self._send(board, dim, coins, count):
            self.bad += bad

    def finish(self, board: Billboard, folder: Path | None = None) -> States:
        if begins_now(self.plan, board):
            self._begin(board)
        here = _DeviceBoard(board, self.trainer.device)
        models = ModelStore(len(self._everyone), folder)

        def ended(algorithm: Any, bucket: Bucket, at: slice | Tensor, real: int) -> tuple[Any, States]:
            found = algorithm.finish(bucket.states_of(at), bucket.block(at, real), here).items()
            part = {name: array[:real].cpu().numpy() for name, array in found}
            return bucket.members(at, real), part

        for members, part in self._over(self.buckets, self._everyone, ended):
            models.put(members, part)
        return models.arrays()

    def save_state(self, folder: Path | None = None) -> SavedState:
        states = ModelStore(len(self._everyone), folder)
        for bucket in self.buckets:
            states.put(bucket.index, {name: array.cpu().numpy() for name, array in bucket.states.items()})
        return SavedState(states.arrays(), self.rejected())

    def restore_state(self, saved: SavedState) -> None:
        for bucket in self.buckets:
            rows = {name: torch.from_numpy(array[bucket.index]) for name, array in saved.states.items()}
            bucket.states = {name: stored_like(array, bucket.X) for name, array in rows.items()}
        self.bad.fill_(saved.rejected)

    def _on_device(self) -> AbstractContextManager[Any]:
        """Give kernels, and what is recorded of them, to this card and not to the first one."""
        device = self.trainer.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _send(
        self, board: Billboard, dim: int, coins: Coins, take: Callable[[Tensor, int, Integers], T]
    ) -> Iterator[T]:
        """Let the sampled tasks do a round's work, block by block; keep new states, yield what is taken."""
        if begins_now(self.plan, board):
            self._begin(board)
        here = _DeviceBoard(board, self.trainer.device)

        def sent(algorithm: Any, bucket: Bucket, at: slice | Tensor, real: int) -> T:
            block = bucket.block(at, real)
            messages, states = algorithm.send(bucket.states_of(at), block, here)
            require_tensors(algorithm, "send", (messages, *states.values()))
            check_messages(tuple(messages.shape), len(block), dim)
            check_states(self.plan, states)
            taken = take(messages, real, block.group)  # may be a view of states, which are put in place next
            bucket.keep(states, at, real)
            return taken

        if self.plan.unit.by_record:
            coins = np.full(sum(len(bucket.index) for bucket in self.senders), True)
        return self._over(self.senders, coins, sent)

    def _over(self, buckets: list[Bucket], coins: Coins, work: Callable[..., T]) -> Iterator[T]:
        """Yield what work comes to on each block of the tasks with a coin, with an algorithm of its own."""
        parts = (
            (bucket, *chunk)
            for bucket in buckets
            for chunk in bucket.chunks(np.flatnonzero(coins[bucket.index]))
        )

        def done(part: tuple[Bucket, slice | Tensor, int]) -> T:
            algorithm = self.algorithms.pop()
            try:
                with failures_named(part[2], algorithm):
                    return work(algorithm, *part)
            finally:
                self.algorithms.append(algorithm)

        with self._on_device(), matmul_precision(self.trainer.precision):
            yield from self.each(done, parts)

    @property
    def _everyone(self) -> Coins:
        return np.full(sum(len(bucket.index) for bucket in self.buckets), True)


def _at_once(messages: Tensor) -> int:
    """Return how many messages to clip and add at once: on a processor what its caches hold, evenly."""
    pieces = 1 if messages.is_cuda else max(1, round(messages.numel() / CHUNK))
    return max(1, math.ceil(len(messages) / pieces))


def _first(states: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: array[:count] for name, array in states.items()}


def _keep_memory() -> None:
    """Let the C library keep what is freed; else it returns megabytes at every step and asks again.

    It does so once it has freed a piece as large as this. The piece is never touched and costs nothing.
    """
    torch.empty(LARGEST_PIECE, dtype=torch.uint8)


def _is_there(card: torch.device) -> bool:
    return (card.index or 0) < torch.cuda.device_count()


def _in_caches(plan: Plan, trainer: Trainer, X: Array, sizes: Integers) -> int:
    """Return of how many tasks the caches hold what a step touches: rows, activations, weights and slopes."""
    rows = min(plan.algorithm.local_batch or 2**31, int(sizes.max()))
    activations = trainer.activations(RowKind.of(X).synthetic(1))
    return max(1, CACHE // (4 * (rows * (row_size(X) + activations) + 3 * trainer.layout.size)))


def _footprint(plan: Plan, trainer: Trainer, X: Array, sizes: Integers, block: int | None) -> Footprint:
    """Return what tasks take: states or messages a dozen times over, rows, and a minibatch's way back."""
    rows, device = int(sizes.max()), trainer.device
    dim = max((c.dim for r in plan.rounds[:1] for c in r.channels), default=0)  # of several models
    numbers = 12 * max(dim, trainer.layout.size) + 4 * rows * row_size(X)
    kept = trainer.bytes_kept(RowKind.of(X).synthetic(1).to(device))
    task = 4 * numbers + min(plan.algorithm.local_batch or 2**31, rows) * kept
    free = free_memory(device) if device.type == "cuda" else math.inf
    return Footprint.of(int(sizes.sum()) * X[:1].nbytes, task, len(sizes), free, block)
