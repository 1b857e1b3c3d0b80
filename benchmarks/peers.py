"""What others do, for a comparison in the same run: pfl-research, and clients one after another."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

#: Seconds of each contender, one of each turn.
Times = dict[str, NDArray[np.float64]]


def in_turns(contenders: dict[str, Callable[[], float | None]], turns: int) -> Times:
    """Measure each once a turn: what slows a machine for a while slows all that are compared.

    Every other turn goes backwards, so that none always follows the same one. Who says None is left out.
    """
    found: dict[str, list[float | None]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            found[name].append(contenders[name]())
    return {name: np.array(times) for name, times in found.items() if None not in times}


def one_after_another(
    net: nn.Module,
    X: NDArray[Any],
    y: NDArray[Any],
    batch: int,
    lr: float,
    device: str,
    clients: int,
    bf16: bool = False,
) -> float:
    """Return seconds for a round of all clients, from some of them, in plain PyTorch."""
    data, labels = (torch.as_tensor(a[: clients + 1], device=device) for a in (X, y))
    torch.set_float32_matmul_precision("high")

    def train(k: int) -> None:
        own = copy.deepcopy(net).to(device)
        optimiser = torch.optim.SGD([w for w in own.parameters() if w.requires_grad], lr=lr)
        for at in range(0, data.shape[1], batch):
            optimiser.zero_grad()
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
                outputs = own(data[k, at : at + batch])
            F.cross_entropy(outputs.float(), labels[k, at : at + batch]).backward()
            optimiser.step()

    train(clients)
    _wait(device)
    start = time.perf_counter()
    for k in range(clients):
        train(k)
    _wait(device)
    return (time.perf_counter() - start) * len(X) / clients


def by_vmap(
    net: nn.Module,
    X: NDArray[Any],
    y: NDArray[Any],
    batch: int,
    lr: float,
    device: str,
    rounds: int,
    bf16: bool = False,
) -> float | None:
    """Return seconds for a round of all clients by ``torch.vmap`` of ``torch.func.grad``, if torch can."""
    data, labels = (torch.as_tensor(a, device=device) for a in (X, y))
    torch.set_float32_matmul_precision("high")
    net = copy.deepcopy(net).to(device)

    def loss(own: dict[str, torch.Tensor], rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
            outputs = functional_call(net, own, (rows,))
        return F.cross_entropy(outputs.float(), targets)

    gradients = vmap(grad(loss))
    trained = {name: w.detach() for name, w in net.named_parameters() if w.requires_grad}

    def train() -> None:
        params = {name: w.expand(len(data), *w.shape).clone() for name, w in trained.items()}
        for at in range(0, data.shape[1], batch):
            found = gradients(params, data[:, at : at + batch], labels[:, at : at + batch])
            params = {name: w - lr * found[name] for name, w in params.items()}
        _wait(device)

    try:
        train()
    except RuntimeError:  # it has no rule for some layers
        return None
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        train()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def pfl_research(
    net: nn.Module, X: NDArray[Any], y: NDArray[Any], batch: int, lr: float, rounds: int
) -> float | None:
    """Return seconds for a round of pfl-research (no clipping, no noise), if it is importable."""
    try:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.metrics import Metrics, Weighted
        from pfl.model.pytorch import PyTorchModel
    except ImportError:
        return None
    stamps = []

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(net)

        def loss(self, x: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), targets)

        def metrics(self, x: torch.Tensor, targets: torch.Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(0.0, 1)}

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            stamps.append(time.perf_counter())
            return False, Metrics()

    network = Network()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    device = next(model.pytorch_model.parameters()).device
    users = FederatedDataset(
        lambda k: Dataset(
            [torch.as_tensor(X[k], device=device), torch.as_tensor(y[k], device=device)], user_id=str(k)
        ),
        get_user_sampler("minimize_reuse", list(range(len(X)))),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=len(X),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(users, None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=lr, local_batch_size=batch
        ),
        callbacks=[Clock()],
    )
    return float(np.median(np.diff(stamps)))


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
