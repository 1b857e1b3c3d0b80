"""Flat parameters as networks of torch's: modules, state_dicts, and files without pickle."""

from __future__ import annotations

import builtins
import copy
import json

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from cloister import Plan, Tasks, run
from cloister.algorithms import FedAvg, MeanRegularized, Personalized
from cloister.engines import Batched, Run
from cloister.errors import InputError, MissingExtraError
from cloister.learners import Descent, LeastSquares, Module
from cloister.mechanisms import NoNoise

M = 6


class Net(nn.Module):
    """A frozen body with batch norm, a shared layer, a personal head, and a weight used twice."""

    def __init__(self, seed=0, width=4):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
            self.mix, self.again = nn.Linear(width, width), nn.Linear(width, width)
            self.head = nn.Linear(width, 2)
        self.again.weight = self.mix.weight
        self.body.requires_grad_(False)
        self.body[1].running_mean.fill_(0.3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        return self.head(self.scale * torch.tanh(self.again(torch.tanh(self.mix(self.body(x))))) + self.shift)


@pytest.fixture(scope="module")
def learner():
    return Module(Net(), personal=("head.*",))


@pytest.fixture(scope="module")
def train():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    return Tasks.from_arrays(X, (X[:, 0] > 0).astype(int), np.repeat([f"t{i}" for i in range(M)], 10))


@pytest.fixture(scope="module")
def done(learner, train):
    algorithm = Personalized(learner, Descent(lr=0.3, batch=5), clip=1.0, rounds=2)
    return run(Plan(algorithm, n_tasks=M).calibrate(8.0), train, random_state=0, engine=Batched("cpu"))


def test_a_tasks_network_says_what_its_model_says(done, learner, train):
    """To the bit of the batched program, up to how products are added: it is the same function."""
    for task in ("t0", "t4"):
        coef, X = done.model(task)["coef"], train.only(task).X
        with torch.no_grad():
            found = done.network(task)(torch.as_tensor(X)).numpy()
        np.testing.assert_allclose(found, learner.predict(coef[None], X[None])[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(done.model("t0")["coef"], done.model("t4")["coef"])
    public = done.public_network()
    np.testing.assert_allclose(
        learner.flatten(public.state_dict())[: learner.shared_size], done.board["mean"], rtol=1e-6
    )
    np.testing.assert_array_equal(public.head.weight.detach(), learner.net.head.weight.detach())


def test_state_dicts_go_out_and_come_back(done, learner):
    coef = done.model("t3")["coef"]
    state = learner.state_dict(coef)
    other = Net(seed=5)
    other.load_state_dict(state)
    torch.testing.assert_close(other.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(state["again.weight"], state["mix.weight"])
    np.testing.assert_array_equal(learner.flatten(other.state_dict()), coef)
    np.testing.assert_array_equal(learner.flatten(learner.net.state_dict()), learner.trainer.start.numpy())


def test_the_learners_own_network_stays_as_it_is(learner, done):
    before = copy.deepcopy(learner.net.state_dict())
    made = learner.module(done.model("t0")["coef"])
    with torch.no_grad():
        made.head.weight.zero_()
    torch.testing.assert_close(learner.net.state_dict(), before, rtol=0, atol=0)


def spoiled(state, name, change):
    return {**state, name: change(state[name])}


def test_a_state_dict_of_another_network_or_body_is_refused(learner):
    state = learner.net.state_dict()
    for name in ("body.0.weight", "body.1.running_mean", "scale"):
        with pytest.raises(InputError, match=f"'{name}' is frozen or a buffer, and has other numbers"):
            learner.flatten(spoiled(state, name, lambda old: old + 1))
    with pytest.raises(InputError, match=r"has no 'head\.bias'"):
        learner.flatten({name: value for name, value in state.items() if name != "head.bias"})
    with pytest.raises(InputError, match="'extra', which this one has not"):
        learner.flatten({**state, "extra": torch.zeros(1)})
    with pytest.raises(InputError, match=r"'head\.bias' must be torch\.float32 of shape \(2,\)"):
        learner.flatten(spoiled(state, "head.bias", lambda old: old[:1]))
    with pytest.raises(InputError, match=r"Got torch\.float64"):
        learner.flatten(spoiled(state, "head.bias", torch.Tensor.double))
    with pytest.raises(InputError, match=r"flat parameters, of shape \(\d+,\)\. Got shape \(2, 7\)"):
        learner.module(np.zeros((2, 7)))


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_is_read_by_cloister_and_by_torch_alone(done, learner, tmp_path):
    path = done.export("t2", tmp_path / "t2.safetensors")
    assert path.stat().st_mode & 0o777 == 0o600
    found = learner.load(path)
    np.testing.assert_array_equal(found.coef, done.model("t2")["coef"])
    assert (found.plan, found.head, found.task) == (done.plan.fingerprint, done.board.head.hex(), "t2")
    assert repr(found) == f"NetworkFile({learner.size} parameters, of task 't2', private)"
    torch.testing.assert_close(found.network.state_dict(), learner.state_dict(found.coef), rtol=0, atol=0)
    plain = Net(seed=9)
    plain.load_state_dict(safetensors.torch.load_file(path))
    torch.testing.assert_close(plain.state_dict(), found.network.state_dict(), rtol=0, atol=0)


def test_the_public_file_follows_from_the_public_folder(done, learner, tmp_path):
    """It is what somebody writes who has plan and board alone; no task's name or number is in it."""
    done.save(tmp_path / "folder")
    read = Run.load(tmp_path / "folder", types=[learner])
    mine, theirs = done.export_public(tmp_path / "mine"), read.export_public(tmp_path / "theirs")
    assert mine.read_bytes() == theirs.read_bytes()
    assert learner.load(mine).task is None
    size = int.from_bytes(mine.read_bytes()[:8], "little")
    facts = json.loads(mine.read_bytes()[8 : 8 + size])["__metadata__"]
    assert set(facts) == {"cloister"}
    assert set(json.loads(facts["cloister"])) == {"format", "network", "plan", "head"}
    with pytest.raises(InputError, match="This run holds no models"):
        read.export("t2", tmp_path / "none")


@pytest.mark.parametrize(
    "other",
    [
        lambda: Module(Net(width=5), personal=("head.*",)),
        lambda: Module(Net()),  # the same numbers, told
        lambda: Module(with_body(0.4), personal=("head.*",)),
        lambda: Module(with_shift(1.0), personal=("head.*",)),
    ],
    ids=["layers", "shared", "body", "buffer"],
)
def test_another_network_is_refused_by_its_digest(other, done, tmp_path):
    path = done.export_public(tmp_path / "net")
    with pytest.raises(InputError, match=r"is of another network.* Load it with the Module that was trained"):
        other().load(path)


def with_body(mean):
    net = Net()
    net.body[1].running_mean.fill_(mean)
    return net


def with_shift(shift):
    net = Net()
    net.shift.fill_(shift)
    return net


def test_where_training_started_does_not_matter(done, tmp_path):
    """A process that builds the network again has another random head, and reads the file all the same."""
    path = done.export_public(tmp_path / "net")
    net = Net()
    with torch.no_grad():
        net.head.weight.zero_()
    np.testing.assert_array_equal(
        Module(net, personal=("head.*",)).load(path).coef, learner_of(done).load(path).coef
    )


def learner_of(finished):
    return finished.plan.algorithm.network


def test_files_that_are_damaged_or_foreign_are_refused(done, learner, tmp_path):
    path = done.export_public(tmp_path / "net")
    data = path.read_bytes()
    for number, wrong in enumerate((b"", data[:-9], b"\x80\x04pickle", data[:40] + b"\xff" + data[41:])):
        spoilt = tmp_path / f"spoilt{number}"
        spoilt.write_bytes(wrong)
        with pytest.raises(InputError, match=r"is no safetensors file, or is damaged\. Restore it"):
            learner.load(spoilt)
    foreign = tmp_path / "foreign"
    for facts in (None, {"cloister": "["}, {"cloister": "[1]"}, {"cloister": '{"format": 1}'}):
        safetensors.torch.save_file({"a": torch.zeros(2)}, foreign, facts)
        with pytest.raises(InputError, match=r"was not written by cloister.*learner\.flatten"):
            learner.load(foreign)
    with pytest.raises(InputError, match="There is no file"):
        learner.load(tmp_path / "nothing")


def test_what_has_no_network_says_so(train, tmp_path, monkeypatch):
    line = run(Plan(MeanRegularized(LeastSquares(3), rounds=1), NoNoise(), n_tasks=M), train)
    for use in (lambda: line.network("t0"), line.public_network, lambda: line.export("t0", tmp_path / "x")):
        with pytest.raises(InputError, match=r"MeanRegularized trains no network here\. Use model\(task\)"):
            use()
    net = run(Plan(FedAvg(Module(nn.Linear(3, 2)), Descent(lr=0.1), rounds=1), NoNoise(), n_tasks=M), train)
    found = builtins.__import__

    def without(name, *rest):
        if name.startswith("safetensors"):
            raise ModuleNotFoundError(name=name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'cloister\[networks\]'"):
        net.export("t0", tmp_path / "x")
