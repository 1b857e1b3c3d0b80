"""Train a public body for handwriting on Omniglot, and write its weights: what `frozen-accuracy` stands on.

A body learns to tell 6,492 characters apart, the 1,623 of Omniglot, each turned four ways, whose images are
bent, moved, made smaller or larger, and drawn with thicker and fainter strokes. On a graphics card
(``--device cuda``) it is a convolutional network, trained by AdamW with a step size that falls along a
cosine and smoothed labels; the classifier sees the direction of its 128 features alone. On a processor it
is one convolution and a linear discriminant analysis, without descent, in a minute (`body_filters`).
Features that tell characters apart best come first. The weights go to ``--out FILE``, or to a place that
git ignores; they are never published.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import Figures, Table, Targets
from benchmarks.body_filters import FILTERS, filter_body, solve
from cloister.datasets import load_omniglot
from harness.sources import data_file

NAME = "body"
DATA = ("omniglot_28.npz",)
BODY = Path(__file__).parents[1] / ".cache" / "omniglot_body.npz"
FEATURES, GROUPS = 128, 8
TURNS = 4
#: Scores are so many times the cosine between features and a class's direction.
SHARPNESS, SMOOTHING = 15.0, 0.05
WEIGHT_DECAY = 1e-2
#: The step size rises until so much of the training is done, and falls along a cosine from then on.
RISE, FALL = 0.05, 0.3


@dataclass(frozen=True)
class Size:
    """How wide and deep a body is, and how long it is trained."""

    #: Widths of the convolutions of each of the three stages; each stage halves the sides of the image.
    stages: tuple[tuple[int, ...], ...]
    epochs: int
    batch: int
    lr: float
    minutes: float


CARD = Size(((96, 96), (192, 192), (384, 384)), epochs=35, batch=512, lr=2.5e-3, minutes=8.0)
QUICK = Size(((8,), (8,), (16,)), epochs=1, batch=128, lr=2e-3, minutes=0.1)
#: Bent images that a body without descent is made from, and that features are put in order by.
SOLVED, ORDERED = 60_000, 20_000
#: Angle, shear, and moves across and down, of the views of an image that features are averaged over.
VIEWS = (
    (0.0, 0.0, 0.0, 0.0),
    *((sign * 0.12, 0.0, 0.0, 0.0) for sign in (1, -1)),
    *((0.0, sign * 0.15, 0.0, 0.0) for sign in (1, -1)),
    *((0.0, 0.0, sign * 0.1, 0.0) for sign in (1, -1)),
    *((0.0, 0.0, 0.0, sign * 0.1) for sign in (1, -1)),
)


def body(stages: Sequence[Sequence[int]]) -> nn.Sequential:
    """Return the network without weights: images of 28 by 28 pixels, ink 1 on 0, become 128 numbers.

    A first stage of a single convolution takes every second pixel instead of pooling: it is far cheaper.
    """
    layers: list[nn.Module] = []
    before = 1
    for number, widths in enumerate(stages):
        strided = number == 0 and len(widths) == 1
        for width in widths:
            side, stride = (5, 2) if strided else (3, 1)
            layers.append(nn.Conv2d(before, width, side, stride, padding=side // 2))
            layers += [nn.GroupNorm(GROUPS, width), nn.ReLU()]
            before = width
        layers += [] if strided else [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * before, FEATURES))


def save(net: nn.Module, made_of: dict[str, object], path: Path) -> None:
    """Write weights as plain arrays; what was there is replaced when the new file is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"draft-{path.name}")
    weights = {name: value.detach().float().cpu().numpy() for name, value in net.state_dict().items()}
    np.savez(draft, made_of=np.array(json.dumps(made_of)), **weights)
    draft.replace(path)


def load(path: Path = BODY) -> nn.Sequential:
    """Read a body that this benchmark has written."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there. Train it: python -m benchmarks body --out {path}")
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    made_of = json.loads(str(arrays.pop("made_of")))
    net = body(made_of["stages"]) if "stages" in made_of else filter_body(made_of["filters"], FEATURES)
    net.load_state_dict({name: torch.as_tensor(value) for name, value in arrays.items()})
    return net.eval()


class Views(nn.Module):
    """A body's features of an image, averaged over nine views of it: turned, sheared and moved a little.

    Images are shown `zoom` times as large first. All of it is public and the same for every image.
    """

    grids: Tensor

    def __init__(self, net: nn.Module, zoom: float = 1.0) -> None:
        super().__init__()
        self.net = net
        ways = [
            [[math.cos(angle), shear - math.sin(angle), across], [math.sin(angle), math.cos(angle), down]]
            for angle, shear, across, down in VIEWS
        ]
        grids = F.affine_grid(torch.tensor(ways) / zoom, [len(VIEWS), 1, 28, 28], align_corners=False)
        self.register_buffer("grids", grids)

    def forward(self, images: Tensor) -> Tensor:
        count = len(images)
        grids = self.grids.repeat(count, 1, 1, 1)
        views = F.grid_sample(images.repeat_interleave(len(VIEWS), 0), grids, align_corners=False)
        return F.normalize(self.net(views), dim=1).unflatten(0, (count, len(VIEWS))).mean(1)


def bend(images: Tensor, rng: torch.Generator) -> Tensor:
    """Turn, scale, shear, warp and move each image by its own draws, and change its strokes.

    Strokes are made thicker before an image is made smaller and after, and fainter or stronger.
    """
    n, device = len(images), images.device
    draw = lambda *shape: torch.rand(*shape, generator=rng, device=device)  # noqa: E731
    angle, shear, move = 0.7 * (draw(n) - 0.5), 0.6 * (draw(n) - 0.5), 0.3 * (draw(n, 2) - 0.5)
    smaller = 0.75 * (1.9 / 0.75) ** draw(n) ** 1.5
    slim = torch.exp(0.4 * (draw(n) - 0.5))
    across = torch.stack([smaller * slim * angle.cos(), smaller * (shear - angle.sin()), move[:, 0]], 1)
    down = torch.stack([smaller * angle.sin(), smaller / slim * angle.cos(), move[:, 1]], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    warp = F.interpolate(0.22 * (draw(n, 2, 5, 5) - 0.5), (28, 28), mode="bicubic", align_corners=True)
    thick = draw(n, 1, 1, 1) * (draw(n, 1, 1, 1) < 0.6)
    images = torch.lerp(images, F.max_pool2d(images, 3, 1, 1), thick)
    bent = F.grid_sample(images, grid + warp.permute(0, 2, 3, 1), align_corners=False)
    thick = draw(n, 1, 1, 1) * (draw(n, 1, 1, 1) < 0.5)
    bent = torch.lerp(bent, F.max_pool2d(bent, 3, 1, 1), thick)
    return (bent * (0.7 + 0.7 * draw(n, 1, 1, 1))).clamp(0, 1)


@torch.no_grad()
def foremost_first(net: nn.Sequential, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Turn a body's features so that those in which the classes' means differ most come first.

    Features of norm 1 are turned about the origin, so that no linear head, and no distance, is changed.
    """
    features, classes = zip(*((F.normalize(net(X), dim=1), y) for X, y in batches), strict=True)
    found, which = torch.cat(features).double(), torch.unique(torch.cat(classes), return_inverse=True)[1]
    sums = torch.zeros(int(which.max()) + 1, FEATURES, dtype=found.dtype, device=found.device)
    means = sums.index_add(0, which, found) / torch.bincount(which)[:, None]
    _, directions = torch.linalg.eigh(torch.cov(means.T))
    turn = directions.flip(1).T.float()
    last = net[-1]
    assert isinstance(last, nn.Linear)
    last.weight.copy_(turn @ last.weight)
    last.bias.copy_(turn @ last.bias)


def step_share(done: float) -> float:
    """Return the share of the largest step size that is used when a share of the training is done."""
    if done < RISE:
        return max(done / RISE, 0.05)
    return 0.5 * (1 + math.cos(math.pi * max(0.0, done - FALL) / (1 - FALL)))


@dataclass(frozen=True)
class Images:
    """Omniglot in memory, once: which of its images, turned how, is class and row of a number."""

    pixels: Tensor
    character: Tensor

    def __len__(self) -> int:
        return TURNS * len(self.pixels)

    @property
    def classes(self) -> int:
        return TURNS * (int(self.character.max()) + 1)

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        turn, row = rows % TURNS, rows // TURNS
        images, characters = self.pixels[row], self.character[row]
        turned = [torch.rot90(images, k, (2, 3)) for k in range(TURNS)]
        kept = torch.stack(turned)[turn, torch.arange(len(rows), device=rows.device)]
        return kept, TURNS * characters + turn


def read(device: str) -> Images:
    data = load_omniglot(data_file("omniglot_28.npz"))
    _, character = np.unique(data.character, return_inverse=True)
    pixels = torch.as_tensor(data.images[:, None].astype(np.float32) / 255)
    return Images(pixels.to(device), torch.as_tensor(character).to(device))


@dataclass(frozen=True)
class Epoch:
    """What there is after an epoch, or when time is up."""

    net: nn.Sequential
    epochs: float
    loss: float
    #: Share of the bent images of the last hundred steps that were named rightly, before each step.
    accuracy: float
    seconds: float


def train(images: Images, size: Size, device: str, seed: int = 0) -> Iterator[Epoch]:
    """Train a body; yield it after every epoch."""
    torch.manual_seed(seed)
    rng = torch.Generator(device).manual_seed(seed)
    net = body(size.stages).to(device, memory_format=torch.channels_last)
    classes = nn.Parameter(torch.randn(images.classes, FEATURES, device=device) / math.sqrt(FEATURES))
    optimizer = torch.optim.AdamW([*net.parameters(), classes], size.lr, weight_decay=WEIGHT_DECAY)
    each = len(images) // size.batch
    steps, start, done = size.epochs * each, time.monotonic(), 0.0
    losses: list[Tensor] = []
    right: list[Tensor] = []
    for step in range(1, steps + 1):
        if (step - 1) % each == 0:
            order = torch.randperm(len(images), generator=rng, device=device)
        at = (step - 1) % each * size.batch
        pixels, target = images[order[at : at + size.batch]]
        for group in optimizer.param_groups:
            group["lr"] = size.lr * step_share(done)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            features = net(bend(pixels, rng).to(memory_format=torch.channels_last))
            cosine = F.normalize(features.float(), dim=1) @ F.normalize(classes, dim=1).T
        loss = F.cross_entropy(SHARPNESS * cosine.float(), target, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        right.append((cosine.argmax(1) == target).float().mean())
        seconds = time.monotonic() - start
        done = max(step / steps, seconds / (60 * size.minutes))
        if step % each == 0 or done >= 1:
            lately = (float(torch.stack(values[-100:]).mean()) for values in (losses, right))
            yield Epoch(net, step / each, *lately, seconds)
        if done >= 1:
            return


def run(quick: bool, device: str, out: Path | None = None) -> tuple[Figures, Targets, Table]:
    """Make a body as the device allows, and write it; quickly, on a processor, both ways a little."""
    place = out or (BODY.with_name("omniglot_body_quick.npz") if quick else BODY)
    images = read(device)
    figures: Figures = {}
    if not device.startswith("cuda"):
        start = time.process_time()
        net = solve(lambda *size: draw(images, *size), 4000 if quick else SOLVED, images.classes, FEATURES)
        save(net, {"filters": FILTERS}, place)
        figures["processor_seconds"] = time.process_time() - start
    if quick or device.startswith("cuda"):
        size = QUICK if quick else CARD
        for epoch in train(images, size, device):
            save(epoch.net, {"stages": size.stages}, place)
            figures |= {"epochs": epoch.epochs, "seconds": epoch.seconds, "loss": epoch.loss}
            figures["training_accuracy"] = epoch.accuracy
            print(", ".join(f"{k} {v:.4g}" for k, v in figures.items()), file=sys.stderr, flush=True)
        foremost_first(epoch.net, draw(images, 512 if quick else ORDERED, 512))
        save(epoch.net, {"stages": size.stages}, place)
    return figures, {}, [[str(place), ""], *([k, f"{v:.4g}"] for k, v in figures.items())]


def draw(images: Images, count: int, batch: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield so many bent images and their classes, none of them twice, in batches; at most all."""
    rng = torch.Generator(images.pixels.device).manual_seed(seed)
    order = torch.randperm(len(images), generator=rng, device=images.pixels.device)[:count]
    for at in range(0, len(order), batch):
        pixels, target = images[order[at : at + batch]]
        yield bend(pixels, rng), target
