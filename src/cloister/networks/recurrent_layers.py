"""Recurrent layers written out step by step, so that one program trains those of many clients at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


def is_plain(layer: nn.Module) -> bool:
    """Say whether a recurrent layer is of a kind that is written out here."""
    if type(layer) not in (nn.RNN, nn.GRU, nn.LSTM):
        return False
    return bool(layer.batch_first) and not any((layer.proj_size, layer.dropout))


def unrolled(layer: nn.Module) -> type[nn.Module]:
    """Return the class to which a plain recurrent layer is swapped."""
    return _RECURRENT[type(layer)]


class _Unrolled(nn.RNNBase):
    """A recurrent layer written out step by step, with or without a client axis; each kind adds one step.

    torch has one kernel for a whole sequence, and no way to run it for many clients at once. Here the input's
    share of all steps is one batched product, and a loop over time adds what a step makes of the one before.
    Inputs, outputs and parameters are those of torch's own layers with ``batch_first=True``.
    """

    states = 1

    def step(self, seen: Tensor, recalled: Tensor, state: State) -> State:
        """Take a step from the shares of the input and of the last step; all are (clients, examples, ...)."""
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Tensor | State | None = None) -> tuple[Tensor, Tensor | State]:
        if not isinstance(input, Tensor) or input.ndim != 3:
            raise ValueError(f"{self.mode} takes one tensor of shape (examples, steps, features) here.")
        weight = self._parameter("weight_hh", "l0")
        clients = len(weight) if weight.ndim == 3 else 1
        rows = input.reshape(clients, -1, *input.shape[1:])
        given = None if hx is None else (hx,) if isinstance(hx, Tensor) else hx
        ends: list[State] = []
        for layer in range(self.num_layers):
            ways = []
            for back in (False, True)[: 1 + self.bidirectional]:
                name = f"l{layer}_reverse" if back else f"l{layer}"
                found, end = self._sweep(
                    rows.flip(2) if back else rows, name, self._begin(rows, given, len(ends))
                )
                ways.append(found.flip(2) if back else found)
                ends.append(end)
            rows = torch.cat(ways, dim=-1)
        last = tuple(torch.stack([end[i].flatten(0, 1) for end in ends]) for i in range(self.states))
        return rows.flatten(0, 1), last if self.states > 1 else last[0]

    def _begin(self, rows: Tensor, given: State | None, place: int) -> State:
        shape = (*rows.shape[:2], self.hidden_size)
        if given is None:
            return (rows.new_zeros(shape),) * self.states
        return tuple(part[place].reshape(shape) for part in given)

    def _sweep(self, rows: Tensor, name: str, state: State) -> tuple[Tensor, State]:
        """Go once through the steps of one layer, in one direction."""
        read, keep = (self._parameter(part, name) for part in ("weight_ih", "weight_hh"))
        biases = [self._parameter(part, name) if self.bias else None for part in ("bias_ih", "bias_hh")]
        seen = _product(rows.flatten(1, 2), read, biases[0])
        found = []
        for now in seen.reshape(*rows.shape[:3], -1).unbind(dim=2):
            state = self.step(now, _product(state[0], keep, biases[1]), state)
            found.append(state[0])
        return torch.stack(found, dim=2), state

    def _parameter(self, part: str, name: str) -> Tensor:
        found: Tensor = getattr(self, f"{part}_{name}")
        return found


class _RNN(_Unrolled, nn.RNN):  # type: ignore[misc]  # torch says that its own forward takes less
    def step(self, seen: Tensor, recalled: Tensor, state: State) -> State:
        total = seen + recalled
        return (torch.relu(total) if self.nonlinearity == "relu" else torch.tanh(total),)


class _GRU(_Unrolled, nn.GRU):  # type: ignore[misc]
    def step(self, seen: Tensor, recalled: Tensor, state: State) -> State:
        (r, z, n), (r_last, z_last, n_last) = seen.chunk(3, dim=-1), recalled.chunk(3, dim=-1)
        fresh = torch.tanh(n + torch.sigmoid(r + r_last) * n_last)
        kept = torch.sigmoid(z + z_last)
        return ((1 - kept) * fresh + kept * state[0],)


class _LSTM(_Unrolled, nn.LSTM):  # type: ignore[misc]
    states = 2

    def step(self, seen: Tensor, recalled: Tensor, state: State) -> State:
        write, forget, fresh, show = (seen + recalled).chunk(4, dim=-1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(write) * torch.tanh(fresh)
        return torch.sigmoid(show) * torch.tanh(cell), cell


_RECURRENT: dict[type[nn.Module], type[nn.Module]] = {nn.RNN: _RNN, nn.GRU: _GRU, nn.LSTM: _LSTM}


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply each client's rows, (clients, n, features), by its own weights, or by the only ones."""
    out = rows @ weight.transpose(-1, -2)
    if bias is None:
        return out
    return out + (bias[:, None] if bias.ndim == 2 else bias)
