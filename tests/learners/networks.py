"""Small networks that between them have every layer that is swapped, and some that are not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Tied(nn.Module):
    """A next-word model whose two ends share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.write = nn.Linear(4, 5, bias=False)
        self.write.weight = self.read.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.write(self.norm(self.read(words).mean(dim=1)))


class Own(nn.Module):
    """A layer that nobody has heard of, and a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.head = nn.Linear(4, 3)
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x[:, self.order] * self.scale))


class Weighs(nn.Module):
    """A layer of bare parameters, with a layer inside; it takes two tensors, one by name."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.linspace(0.5, 1.5, 4)), nn.Linear(4, 4)

    def forward(self, x: Tensor, *, beside: Tensor) -> Tensor:
        return self.inner(x) * self.scale + beside


class Unknown(nn.Module):
    """Layers that are not known, between those that are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own, self.bent, self.head = nn.Linear(4, 4), Weighs(), nn.PReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bent(self.own(self.first(x), beside=x)))


class Attends(nn.Module):
    """Attention as torch has it: it returns a tensor and, where no weights are asked for, nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x, need_weights=False)
        return self.head(out.mean(dim=1))


class LowRank(nn.Module):
    """A frozen layer, and bare adapters of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class AdaptedBlock(nn.Module):
    """Attention between frozen norms and layers, with adapters on its queries; its products are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.key, self.out = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.requires_grad_(False)
        self.query, self.head = LowRank(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        query, key = (
            part.unflatten(-1, (2, 2)).transpose(1, 2) for part in (self.query(seen), self.key(seen))
        )
        found = F.scaled_dot_product_attention(query, key, key).transpose(1, 2).flatten(2)
        return self.head((x + self.out(F.gelu(found))).mean(dim=1))


class Reaches(nn.Module):
    """Made of layers that could be swapped, but uses their parameters in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) / self.head.weight.norm()


class Recurs(nn.Module):
    """Reads a sequence and scores what is next; uses outputs and last states alike."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.read, self.head = layer, nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, last = self.read(x)
        last = sum(last) if isinstance(last, tuple) else last
        out, _ = self.read(x, None)
        return self.head(torch.cat([out[:, -1], last.movedim(0, 1).flatten(1)[:, -out.shape[2] :]], dim=1))


class Placed(nn.Module):
    """Adds the embeddings of places, which all examples share, to those of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(5, 4), nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        seen = self.words(words) + self.places(torch.arange(words.shape[1])[None])
        return self.head(torch.tanh(seen).mean(dim=1))


class Branches(nn.Module):
    """Asks which way to go of a parameter, of which clients have one each."""

    def __init__(self) -> None:
        super().__init__()
        self.sign, self.head = nn.Parameter(torch.ones(())), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * (self.sign if self.sign > 0 else -self.sign)


class Drops(nn.Module):
    """Tosses coins without a layer for it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(x, 0.5, self.training))


class Centres(nn.Module):
    """Subtracts the mean over examples."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(dim=0))


class Counts(nn.Module):
    """Remembers how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x)


#: name: (network, shape of one input, whether layers are swapped)
NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)), (4,), True),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=(1, 2), bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 5, (3, 2), stride=2, dilation=(1, 2), padding="valid"),
            nn.Conv2d(5, 3, 2, padding="same"),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        (2, 10, 9),
        True,
    ),
    "words": (Tied, (6,), True),
    "places": (Placed, (6,), True),
    "normalised": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)),
        (4,),
        True,
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (4, 3)), nn.GroupNorm(2, 4), nn.Flatten()),
        (4,),
        True,
    ),
    "lstm": (lambda: Recurs(nn.LSTM(2, 4, num_layers=2, batch_first=True), 4), (5, 2), True),
    "gru": (lambda: Recurs(nn.GRU(2, 3, batch_first=True, bidirectional=True), 6), (4, 2), True),
    "rnn": (lambda: Recurs(nn.RNN(2, 3, nonlinearity="relu", bias=False, batch_first=True), 3), (4, 2), True),
    "layers that are not known": (Unknown, (4,), True),
    "attends": (Attends, (3, 4), True),
    "own layer": (Own, (4,), False),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4 * 4, 3)),
        (2, 4, 4),
        True,
    ),
    "reaches in": (Reaches, (4,), False),
}
#: The same, of which a part is frozen.
ADAPTED = {"adapters": (AdaptedBlock, (3, 4), True)}


def build(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network of these lists, started at a fixed place, and the shape of its inputs."""
    make, shape, _ = (NETWORKS | ADAPTED)[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = make()
        net(inputs(name, 2))  # lazy layers learn their shape
        for parameter in net.parameters():  # normalisers start at 0 and 1, which would hide mistakes
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return net, shape


def inputs(name: str, *lead: int, seed: int = 0) -> Tensor:
    """Return made-up inputs of a network of these lists."""
    shape, draw = (NETWORKS | ADAPTED)[name][1], torch.Generator().manual_seed(seed)
    if name in ("words", "places"):
        return torch.randint(0, 5, (*lead, *shape), generator=draw)
    return torch.randn((*lead, *shape), generator=draw)


class Pretrained(nn.Module):
    """A frozen body with batch norm and dropout, whose statistics are not those of a start, and a head."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(5)
        norm.running_mean += 0.3
        norm.running_var *= 2.0
        self.body = nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class LoRA(nn.Module):
    """A frozen linear layer and a trained one of low rank beside it, of layers or of bare parameters."""

    def __init__(self, base: nn.Linear, rank: int, layers: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.layers = layers
        if layers:
            self.down = nn.Linear(base.in_features, rank, bias=False)
            self.up = nn.Linear(rank, base.out_features, bias=False)
        else:
            self.A = nn.Parameter(0.3 * torch.randn(rank, base.in_features))
            self.B = nn.Parameter(0.3 * torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (self.up(self.down(x)) if self.layers else x @ self.A.T @ self.B.T)


class Adapted(nn.Module):
    """Two frozen layers, the second with an adapter."""

    def __init__(self, layers: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5).requires_grad_(False)
        self.second = LoRA(nn.Linear(5, 3), 2, layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))
