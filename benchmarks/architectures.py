"""Networks of other libraries as they come: trained, or refused with all reasons and then mended.

Tiny ones with random weights, of timm, torchvision, transformers and peft. Each is given to `Module`; where
that refuses it, to `fix_network`, whose changes are counted. Then three tasks train it for two rounds without
noise on Local(block=1), on Batched, and on Batched in bfloat16, all on the processor. How far apart models
are is told in shares of the longest way that a parameter went. Beside it is by how much torch's own gradient
of the mended network, of two examples, is off in bfloat16: in shares of its largest number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.clients import Figures, Targets
from cloister import Plan, Tasks
from cloister.algorithms import FedAvg
from cloister.engines import Batched, Local
from cloister.engines.run import run as run_plan
from cloister.errors import CloisterError
from cloister.learners import Descent, Module, fix_network
from cloister.mechanisms import NoNoise
from cloister.networks.module_checks import way_to_run
from cloister.networks.network_inputs import RowKind

NAME = "architectures"
PATHS = ("src/cloister/networks",)
CLASSES, ROWS, SIDE, WORDS, STEPS = 3, 12, 32, 60, 8
TEXT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_labels": CLASSES, "intermediate_size": 32, "max_position_embeddings": 2 * STEPS, "pad_token_id": 0,
}  # fmt: skip
Make = Callable[[], nn.Module]


def images() -> Any:
    return np.random.default_rng(0).standard_normal((ROWS, 3, SIDE, SIDE), dtype=np.float32)


def texts() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mask = np.arange(STEPS) < rng.integers(3, STEPS + 1, ROWS)[:, None]
    return {"input_ids": rng.integers(5, WORDS, (ROWS, STEPS)) * mask, "attention_mask": mask}


def torchvisions() -> dict[str, Make]:
    from torchvision import models as m

    options: dict[str, Any] = {"num_classes": CLASSES}
    return {
        "resnet": lambda: m.ResNet(m.resnet.BasicBlock, [1, 1, 1, 1], **options),
        "mobilenet v2": lambda: m.mobilenet_v2(width_mult=0.25, **options),
        "swin": lambda: m.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 2], [2, 2], stochastic_depth_prob=0.1, **options
        ),
    }


def timms() -> dict[str, Make]:
    import timm

    narrow = {"img_size": SIDE, "depth": 2, "embed_dim": 16, "num_heads": 2}
    small = {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8), "drop_path_rate": 0.1}

    def with_frozen_body() -> nn.Module:
        net: Any = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **narrow)
        net.requires_grad_(False)
        net.get_classifier().requires_grad_(True)
        found: nn.Module = net
        return found

    return {
        "vit": lambda: timm.create_model(
            "vit_tiny_patch16_224", num_classes=CLASSES, drop_rate=0.1, **narrow
        ),
        "vit, frozen body": with_frozen_body,
        "convnext": lambda: timm.create_model("convnext_atto", num_classes=CLASSES, **small),
        "mobilenet v3": lambda: timm.create_model("mobilenetv3_small_050", num_classes=CLASSES),
    }


def transformer_networks() -> dict[str, Make]:
    import transformers as t

    gpt = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": 0}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    modern = {**TEXT, **ends, "cls_token_id": 1, "sep_token_id": 2}
    return {
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**TEXT)),
        "gpt2": lambda: t.GPT2ForSequenceClassification(t.GPT2Config(**gpt, **ends, num_labels=CLASSES)),
        "llama": lambda: t.LlamaForSequenceClassification(t.LlamaConfig(**TEXT, num_key_value_heads=1)),
        "modernbert": lambda: t.ModernBertForSequenceClassification(t.ModernBertConfig(**modern)),
    }


def adapted() -> dict[str, Make]:
    import peft

    made = transformer_networks()

    def with_lora(name: str, targets: list[str], head: str) -> nn.Module:
        config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=[head], lora_dropout=0.1)
        found: nn.Module = peft.get_peft_model(made[name](), config)
        return found

    return {
        "bert, lora": lambda: with_lora("bert", ["query", "value"], "classifier"),
        "llama, lora": lambda: with_lora("llama", ["q_proj", "v_proj"], "score"),
    }


def trained(net: nn.Module, tasks: Tasks, engine: Any) -> Any:
    algorithm = FedAvg(Module(net), Descent(0.01, batch=2, epochs=1), clip=1.0, rounds=2)
    plan = Plan(algorithm, NoNoise(), n_tasks=len(tasks))
    return run_plan(plan, tasks, engine=engine, random_state=0).private.models["coef"][0]


def torch_gradient(learner: Module, tasks: Tasks, short: bool) -> torch.Tensor:
    """Return the gradient of two examples' mean loss, as plain torch has it, of what is trained."""
    net, kind = learner.for_rows(tasks.X).net, RowKind.of(tasks.X)
    leaves = [p for p in net.parameters() if p.requires_grad]
    with torch.enable_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=short):
            outputs = net(kind.synthetic(2))
        loss = nn.functional.cross_entropy(outputs.float(), torch.tensor([0, 1]))
    return torch.cat([slope.reshape(-1) for slope in torch.autograd.grad(loss, leaves)])


def looked_at(make: Make, X: Any) -> tuple[list[str], float, float]:
    """Return a row of the table, and how far models are apart between engines and in 16 bits."""
    torch.manual_seed(0)
    net, changes = make(), "-"
    tasks = Tasks.from_arrays(X, np.arange(ROWS) % CLASSES, np.arange(ROWS) % 3)
    try:
        Module(net).try_rows(tasks.X, tasks.y)
        refused = "no"
    except CloisterError as error:
        refused = f"{max(1, len(str(error).splitlines()) - 1)}"
        fixed = fix_network(net, X)
        net, changes = fixed.net, f"{len(fixed.changes)}"
    learner = Module(net)
    ways = {block: trained(net, tasks, block) for block in (Local(block=1), Batched("cpu"))}
    alone, together = ways.values()
    moved = np.abs(alone - learner.start()).max()
    apart = float(np.abs(alone - together).max() / moved)
    short = float(np.abs(alone - trained(net, tasks, Batched("cpu", bf16=True))).max() / moved)
    gradients = [torch_gradient(learner, tasks, short) for short in (False, True)]
    off = float((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max())
    way = way_to_run(learner.for_rows(tasks.X).net, RowKind.of(tasks.X)).value
    total = sum(p.numel() for p in net.parameters())
    far = [f"{share:.1g}" for share in (apart, short, off)]
    return [f"{total}", f"{learner.size}", refused, changes, way, *far], apart, short


def run(quick: bool) -> tuple[Figures, Targets, list[list[str]]]:
    libraries = {
        "torchvision": (torchvisions, images), "timm": (timms, images),
        "transformers": (transformer_networks, texts), "peft": (adapted, texts),
    }  # fmt: skip
    head = ["library", "network", "parameters", "trained", "faults", "mended by", "tasks at once"]
    head += ["engines apart", "bfloat16 apart", "torch's"]
    rows, apart, short = [head], list[float](), list[float]()
    for library, (networks, data) in libraries.items():
        for name, make in list(networks().items())[: 1 if quick else None]:
            cells, one, two = looked_at(make, data())
            rows.append([library, name, *cells])
            apart.append(one)
            short.append(two)
    figures = {"networks": float(len(apart)), "engines_apart": max(apart), "bfloat16_apart": max(short)}
    return figures, {"engines_apart": ("<=", 1e-3), "networks": (">=", 1 if quick else 10)}, rows
