"""What adapters on a public language model are worth: mean test accuracy over source files, as parties.

Which section of a docstring do 32 words of it come from? A task is a file of SciPy or PyTorch. The body, two
small blocks that guess masked words, has seen NumPy and scikit-learn alone, and no sections. As for images
(`adapters-accuracy`), an adapter of rank 2 stands beside its last layer, which is the way out of the last
block. Words are averaged before it: it is linear, so that this changes nothing. What comes to it is scaled,
and what it makes is whitened, by public rows. Test rows are of docstrings of their own. Ways, budgets, and
how settings are chosen are those for images; that other split also settled how long the body is trained.
Beside means: the tenth of files that are worst off, and how many are worse off than with a head alone, over
all splits. On a processor, in about five minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import Figures, Table, Targets
from benchmarks.adapters import Block
from benchmarks.adapters_accuracy import ALONE, CHOICES, EPSILONS, SEEDS, Choice, Given, chosen
from benchmarks.docstrings import SECTIONS, VOCABULARY, WORDS, File, files
from cloister import Tasks
from cloister.learners import Descent
from harness.cells import Cells, Json

NAME = "adapters-text"
PUBLIC, PARTIES = ("numpy", "sklearn"), ("scipy", "torch")
#: Files with so many rows in so many docstrings are tasks; a side of a split has so many rows at most.
ENOUGH_ROWS, ENOUGH_DOCSTRINGS, MOST_ROWS = 60, 4, 30
WIDTH, HEADS, BLOCKS = 64, 4, 2
#: How the body is trained: the last word is the mask.
MASKED, LR, BATCH, EPOCHS = 0.15, 3e-3, 128, 8
#: Added to what is divided by when public rows are whitened, as a share of the largest.
FLOOR = 0.1
#: Ways of telling whether there is an adapter, of those for images.
WAYS = ("head", "told")
#: Tried beside what is tried for images, as messages are smaller here; and what adapters are multiplied by.
SMALLER = (Choice(0.1, 0.1, 3), Choice(0.3, 0.2, 3))
TRIED_ALONE = (Descent(0.003, batch=20, steps=150), *ALONE)
SCALES = (0.03, 0.1, 0.3, 1.0)


class Body(nn.Module):
    """Embedded words and places, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY + 1, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(BLOCKS)))
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)

    def forward(self, words: Tensor) -> Tensor:
        return self.blocks(self.words(words) + self.places.weight)


def missed(body: Body, words: Tensor, hidden: Tensor) -> Tensor:
    """Return the mean log loss of the body's guesses of hidden words."""
    said = F.layer_norm(body(words.masked_fill(hidden, VOCABULARY))[hidden], (WIDTH,))
    return F.cross_entropy(said @ body.words.weight.T, words[hidden])


def pretrained(words: Tensor, epochs: int) -> Body:
    """Return a body that has guessed hidden words of public rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = Body()
        descent = torch.optim.Adam(body.parameters(), LR)
        for _ in range(epochs):
            for some in words[torch.randperm(len(words))].split(BATCH):
                hidden = (torch.rand(some.shape) < MASKED) & (some > 0)
                descent.zero_grad()
                missed(body, some, hidden).backward()
                descent.step()
    return body.eval()


@torch.no_grad()
def before_last(body: Body, words: Tensor) -> Tensor:
    """Return what comes to that layer, averaged over words."""
    given: list[Tensor] = []
    block = body.blocks[-1]
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        for layer in (block.between, block.narrow)
    ]
    there = (words > 0).float()[:, :, None]
    body(words)
    for hook in hooks:
        hook.remove()
    return (torch.cat(given, dim=2) * there).sum(1) / there.sum(1)


@torch.no_grad()
def last_layer(body: Body, inputs: Tensor) -> nn.Linear:
    """Return the way out of the last block, the way past it, and what whitens public rows, as one layer."""
    out = body.blocks[-1].narrow
    weight = torch.cat([torch.eye(WIDTH), out.weight], dim=1) * spread(inputs)
    _, lengths, axes = torch.linalg.svd(scaled(inputs, inputs) @ weight.T, full_matrices=False)
    last = nn.Linear(weight.shape[1], WIDTH, bias=False)
    last.weight.copy_(axes @ weight / (lengths + FLOOR * lengths[0])[:, None])
    return last


def spread(inputs: Tensor) -> Tensor:
    """Return what inputs are divided by, so that the square of a public row's norm is 1 on average."""
    return inputs.std(0) * math.sqrt(inputs.shape[1])


def scaled(rows: Tensor, public: Tensor) -> Tensor:
    return (rows - public.mean(0)) / spread(public)


@lru_cache(maxsize=1)
def seen(quick: bool) -> tuple[nn.Linear, list[tuple[File, np.ndarray]]]:
    """Return the body's last layer, and each party with what comes to it of its rows."""
    rows = [row.words for name in PUBLIC for file in files(name) for row in file.rows]
    public = torch.tensor(rows[:: 20 if quick else 1])
    body = pretrained(public, 1 if quick else EPOCHS)
    inputs = before_last(body, public)
    parties = [file for name in PARTIES for file in files(name) if is_large(file)][:: 5 if quick else 1]
    words = (torch.tensor([row.words for row in file.rows]) for file in parties)
    made = [scaled(before_last(body, one), inputs).numpy() for one in words]
    return last_layer(body, inputs), list(zip(parties, made, strict=True))


def is_large(file: File) -> bool:
    docstrings = {row.docstring for row in file.rows}
    return len(file.rows) >= ENOUGH_ROWS and len(docstrings) >= ENOUGH_DOCSTRINGS


def sides(file: File, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test rows: each docstring, in random order, joins the smaller side."""
    of = np.array([row.docstring for row in file.rows])
    train = np.zeros(len(of), dtype=bool)
    test = train.copy()
    for docstring in rng.permutation(np.unique(of)):
        side = train if train.sum() <= test.sum() else test
        side |= of == docstring
    found = (rng.permutation(np.flatnonzero(side))[:MOST_ROWS] for side in (train, test))
    return next(found), next(found)


def split(seed: int, quick: bool) -> tuple[Tasks, Tasks]:
    """Return training and test rows of all parties."""
    rng, parts = np.random.default_rng(seed), ([], [])
    for index, (file, X) in enumerate(seen(quick)[1]):
        y = np.array([row.section for row in file.rows])
        for part, rows in zip(parts, sides(file, rng), strict=True):
            part.append((X[rows], y[rows], np.full(len(rows), index)))
    train, test = (Tasks.from_arrays(*map(np.concatenate, zip(*part, strict=True))) for part in parts)
    return train, test


def measure(cell: Json) -> dict[str, list[float]]:
    """Return means on each split and each file's mean over splits, with settings chosen on another split."""
    way, epsilon, seeds, quick = cell
    splits = partial(split, quick=quick)
    given = Given(splits, seen(quick)[0], len(SECTIONS), TRIED_ALONE, [*CHOICES, *SMALLER], SCALES)
    found = chosen(given, way, epsilon, seeds, "cpu", quick)
    return {"splits": np.mean(found, axis=1).tolist(), "files": np.mean(found, axis=0).round(6).tolist()}


def run(quick: bool, cells: Cells, seeds: Sequence[int] | None = None) -> tuple[Figures, Targets, Table]:
    """Measure all ways; quickly, one split of some files, without a choice."""
    ways = [("alone_head", ""), ("alone_told", "")]
    ways += [(way, f"{epsilon:g}") for way in WAYS for epsilon in EPSILONS[: 1 if quick else None]]
    splits = list(seeds or (range(1) if quick else SEEDS))
    found = cells.measured(measure, [(*way, splits, quick) for way in ways])
    alone = np.array(found[0]["files"])
    figures: Figures = {"files": len(alone)}
    rows = [["way", "epsilon", "accuracy", "standard error", "worst tenth", "worse than alone"]]
    for (way, epsilon), one in zip(ways, found, strict=True):
        name, means, each = "_".join(filter(None, (way, epsilon))), one["splits"], np.array(one["files"])
        error = np.std(means, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        worst = float(np.sort(each)[: math.ceil(len(each) / 10)].mean())
        figures |= {name: float(np.mean(means)), f"{name}_worst": worst}
        worse = f"{np.sum(each < alone)} of {len(each)}"
        rows.append(
            [
                way.replace("_", " "),
                epsilon or "-",
                f"{np.mean(means):.4f}",
                f"{error:.4f}",
                f"{worst:.4f}",
                worse,
            ]
        )
    return figures, {}, rows
