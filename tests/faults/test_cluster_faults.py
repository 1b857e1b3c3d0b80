"""Killed actors, nodes and drivers, and what workers say: the same head, and nothing of a row in any log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from cloister import Billboard, run
from cloister.engines import Cluster

ray = pytest.importorskip("ray", reason="needs the extra ray")
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # earlier versions warn of it

pytestmark = pytest.mark.slow

M = 40
#: What every script begins with: tasks whose rows can be told in a log, and a plan with coins.
BEGIN = """
import os, sys
import numpy as np
from cloister import Plan, Tasks, run
from cloister.algorithms import MeanRegularized
from cloister.engines import Cluster
from cloister.learners import LeastSquares
from cloister.mechanisms import Gaussian
from cloister.sampling import Poisson

rng = np.random.default_rng(0)
ids = np.repeat(np.arange(40), 6)
tasks = Tasks.from_arrays(rng.uniform(-0.5, 0.5, (240, 3)), rng.uniform(-0.123456789, 0.5, 240), ids)
plan = Plan(MeanRegularized(LeastSquares(3), rounds=12), Gaussian(0.9), Poisson(0.5), n_tasks=40)
"""


def script(text, **kwargs):
    code = BEGIN + textwrap.dedent(text)
    env = os.environ | {"RAY_worker_niceness": "0"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, **kwargs)


def expected():
    names: dict = {}
    exec(BEGIN, names)
    return run(names["plan"], names["tasks"], random_state=5), names["plan"], names["tasks"]


def test_a_driver_that_is_killed_goes_on(tmp_path):
    """Twice, in rounds 3 and 8, without a word of farewell; then the same call ends with the same head."""
    go = """
    def step(posted):
        if posted.done == int(sys.argv[1] if len(sys.argv) > 1 else KILL):
            os.kill(os.getpid(), 9)
    done = run(plan, tasks, random_state=5, engine=Cluster(2), journal=FOLDER, progress=step)
    print(done.board.head.hex())
    """
    one, _, _ = expected()
    folder = str(tmp_path / "journal")
    for kill in (3, 8):
        killed = script(f"KILL, FOLDER = {kill}, {folder!r}\n" + textwrap.dedent(go))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert Billboard.recover(f"{folder}/board").rounds >= kill - 1
    ended = script(f"KILL, FOLDER = -1, {folder!r}\n" + textwrap.dedent(go))
    assert ended.stdout.strip() == one.board.head.hex(), ended.stderr


def test_a_node_that_is_killed(tmp_path):
    """Of two nodes with two actors each, one is killed: the others take its shards."""
    from ray.cluster_utils import Cluster as Nodes

    one, plan, tasks = expected()
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 10**8})
    second = nodes.add_node(num_cpus=2, object_store_memory=10**8)
    try:
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")

        def step(posted):
            if posted.done == 5:
                nodes.remove_node(second, allow_graceful=False)

        two = run(plan, tasks, random_state=5, engine=Cluster(4), progress=step)
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert two.board.head == one.board.head
    for name, array in one.private.models.items():
        np.testing.assert_array_equal(two.private.models[name], array)


def test_what_a_worker_prints_and_raises_stays_there():
    """An algorithm prints a row, logs it, and fails with it; and Ray forwards everything."""
    said = script(
        """
        import logging, ray
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=True)
        folder = ray._private.worker._global_node.get_session_dir_path()

        class Talking(MeanRegularized):
            def send(self, states, block, board):
                if board.rounds == 2 and block.y.any():  # and not on made-up rows
                    rows = ",".join(map(str, block.y.ravel()))
                    print("told", rows, flush=True)
                    print("told", rows, file=sys.stderr, flush=True)
                    logging.getLogger().error("told %s", rows)
                    os.write(2, f"told {rows}".encode())
                    raise ValueError(f"told {rows}")
                return super().send(states, block, board)

        plan = Plan(Talking(LeastSquares(3), rounds=4), Gaussian(0.9), n_tasks=40)
        try:
            run(plan, tasks, engine=Cluster(1))
        except Exception as error:
            print("RAISED", type(error).__name__, error, error.__cause__, error.__context__)
        import time
        time.sleep(2)
        ray.shutdown()
        values = [str(value) for value in tasks.y]
        for path, _, files in os.walk(folder):
            for name in filter(lambda name: os.path.isfile(os.path.join(path, name)), files):
                text = open(os.path.join(path, name), errors="replace").read()
                if "told " in text or any(value in text for value in values):
                    print("LEAKED", name)
        """
    )
    assert "RAISED AlgorithmError A computation of shard 0 failed with AlgorithmError" in said.stdout, said
    _, _, tasks = expected()
    for text in (said.stdout, said.stderr):
        assert "told " not in text
        assert "LEAKED" not in text
        assert not any(str(value) in text for value in tasks.y)


def test_a_card_for_each_actor():
    """Ray gives an actor its card and shows it no other; without a real one the actor says so."""
    pytest.importorskip("torch")
    said = script(
        """
        import torch
        from cloister.algorithms import FedAvg
        from cloister.engines import Batched
        from cloister.learners import Descent, Module

        class Seen(Batched):
            def workers(self, plan, tasks, seeds):
                assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
                return super().workers(plan, tasks, seeds)

        net = Module(torch.nn.Sequential(torch.nn.Linear(3, 2)))
        plan = Plan(FedAvg(net, Descent(0.1), clip=0.3, rounds=2), Gaussian(0.9), n_tasks=40)
        tasks = Tasks.from_arrays(tasks.X.astype(np.float32), (tasks.y > 0).astype(int), ids)
        run(plan, tasks, engine=Cluster(1, cards=1, engine=Seen("cpu")))
        try:
            run(plan, tasks, engine=Cluster(1, cards=1, engine=Batched("cuda")))
            print("RAN", torch.cuda.is_available())
        except Exception as error:
            print("REFUSED", not torch.cuda.is_available(), type(error).__name__, error)
        """
    )
    assert said.stdout.startswith(("RAN True", "REFUSED True PlanError torch sees no graphics card")), said


#: Returns the processes, but this one, that have to do with a session's folder, with their titles.
OF_FOLDER = """
from pathlib import Path

def of_folder(folder):
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) == os.getpid():
            continue
        try:
            words = (each / "cmdline").read_bytes().decode(errors="replace").replace(chr(0), " ")
            files = [os.readlink(file) for file in (each / "fd").iterdir()]
        except OSError:
            continue
        if folder in words or any(file.startswith(folder + "/") for file in files):
            found.append((int(each.name), words))
    return found

def session():
    import ray
    return ray._private.worker._global_node.get_session_dir_path()

def agents():
    return [at for at, words in of_folder(session()) if words.startswith("ray::") and "Agent" in words]
"""


def _left(folder):
    """Return what is left of a session, when its time is over."""
    names: dict = {}
    exec("import os\n" + OF_FOLDER, names)
    until = time.monotonic() + 40
    while names["of_folder"](folder) and time.monotonic() < until:
        time.sleep(0.5)
    return names["of_folder"](folder)


@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="looks at /proc")
def test_a_driver_that_is_killed_leaves_no_process():
    """Also not the agents, which Ray itself forgets."""
    text = """
    import time
    def step(posted):
        if posted.done == 3:
            while len(agents()) < 2:
                time.sleep(0.1)
            print(session(), flush=True)
            os.kill(os.getpid(), 9)
    run(plan, tasks, engine=Cluster(2), progress=step)
    """
    said = script(OF_FOLDER + textwrap.dedent(text), timeout=300)
    assert said.returncode == -signal.SIGKILL, said.stderr
    assert _left(said.stdout.strip()) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="looks at /proc")
def test_a_machine_whose_agents_have_ended_is_noticed_and_said():
    """An actor is lost, and Ray starts no other: a line after a while, and a sentence at the end."""
    text = """
    import logging, time
    from cloister.cluster import driver
    logging.basicConfig(level=logging.WARNING)
    driver.SOON, driver.PATIENCE = 2.0, 6.0
    began = []
    def step(posted):
        if posted.done == 3:
            while len(agents()) < 2:
                time.sleep(0.1)
            print(session(), flush=True)
            began.append(time.monotonic())
            found = of_folder(session())
            actors = [number for number, words in found if words.startswith("ray::ShardActor")]
            assert actors
            for number in agents() + actors:
                os.kill(number, 9)
    try:
        done = run(plan, tasks, random_state=5, engine=Cluster(1), progress=step)
        print("DONE", done.board.head.hex())
    except Exception as error:
        print("REFUSED", type(error).__name__, error)
    print("TOOK", time.monotonic() - began[0])
    """
    said = script(OF_FOLDER + textwrap.dedent(text), timeout=300)
    lines = said.stdout.splitlines()  # Ray says things of its own between
    (ended,) = (line for line in lines if line.startswith(("REFUSED", "DONE")))
    assert ended.startswith("REFUSED ClusterError All actors were lost"), said
    assert "none has started in its place for 2 seconds" in said.stderr
    assert float(lines[-1].split()[1]) < 60
    assert _left(lines[0]) == []
