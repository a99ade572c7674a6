"""Low-rank adapters: which weights carry them, what they add, what they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from deltamask.config import load
from deltamask.errors import ConfigError
from deltamask.masking import choose_weights
from deltamask.methods.ffa_lora import FfaLora
from deltamask.methods.flasc import Flasc
from deltamask.methods.lora import Lora
from deltamask.methods.lora_eden import LoraEden
from deltamask.methods.lowrank import Projection, projections
from deltamask.task import build
from deltamask.wire import open_frame


@pytest.fixture(scope="module")
def task():
    return build(load(values={"clients": 8, "head.epochs": 2, "rounds": 1}))


class Separate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))


def layers(module: nn.Module):
    return choose_weights(module, "all")


def test_query_and_value_by_the_names_of_libraries() -> None:
    blocks = nn.Sequential(Separate(), Separate())
    assert [p.name for p in projections(layers(blocks), "q,v")] == [
        "0.query.weight",
        "0.value.weight",
        "1.query.weight",
        "1.value.weight",
    ]
    fused = nn.MultiheadAttention(8, 2)
    assert projections(layers(fused), "q,v") == [
        Projection("in_proj_weight", 0, 8, 8),
        Projection("in_proj_weight", 16, 8, 8),
    ]
    apart = nn.MultiheadAttention(8, 2, kdim=4, vdim=4)
    assert [(p.name, p.columns) for p in projections(layers(apart), "q,v")] == [
        ("q_proj_weight", 8),
        ("v_proj_weight", 4),
    ]


def test_other_weights_by_pattern_and_none_at_all() -> None:
    plain = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    assert projections(layers(plain), "1.*") == [Projection("1.weight", 0, 2, 6)]
    with pytest.raises(ConfigError, match=r"lora\.targets='q,v' names none of the 2 matrices"):
        projections(layers(plain), "q,v")
    with pytest.raises(ConfigError, match="names none of the 0 matrices"):
        projections(layers(nn.Conv2d(1, 1, 3)), "q,v")


@pytest.mark.parametrize("kind", [Lora, FfaLora])
def test_weights_are_base_plus_scaled_products(kind, task) -> None:
    method = kind(task)
    start = method.start()
    plain = task.masked.split(task.masked.frozen)
    for name, w in method.weights(method.split(torch.from_numpy(start))).items():
        assert torch.equal(w, plain[name])  # B is zero
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(start.size).astype(np.float32)
    parts = method.split(torch.from_numpy(numbers))
    shown = method.weights(parts)
    assert set(shown) == {f"blocks.{b}.qkv.weight" for b in range(3, 8)}
    for i, p in enumerate(method.adapted):
        a = parts.get(f"A{i}", torch.from_numpy(method.first[i]))
        want = plain[p.name][p.first : p.first + p.rows] + 4 * parts[f"B{i}"] @ a  # alpha 16, rank 4
        assert torch.allclose(shown[p.name][p.first : p.first + p.rows], want, atol=1e-6)
    for name, w in shown.items():
        assert torch.equal(w[128:256], plain[name][128:256])  # the key projection carries none
    assert sum(t.numel() for t in parts.values()) == start.size


def test_what_a_round_costs(task) -> None:
    """10,240 numbers: query and value of five blocks of width 128 at rank 4."""
    sizes = {}
    for kind in (Lora, FfaLora, LoraEden, Flasc):
        method = kind(task)
        down = method.broadcast(method.init())
        up = method.client(down, 0, task.clients[0])
        sizes[kind] = len(open_frame(up).payload), len(open_frame(down).payload)
    assert sizes[Lora] == (20_480, 20_480)
    assert sizes[FfaLora] == (10_240, 10_240)
    assert sizes[LoraEden] == (10_240 // 8 + 4 * 2, 20_480)
    # A quarter of the numbers in two bytes, and where they are: at least its entropy of 0.81 bits a number.
    assert 0.5 * 10_240 + 0.8 * 10_240 / 8 < sizes[Flasc][0] < 0.5 * 10_240 + 0.85 * 10_240 / 8
    assert sizes[Flasc][1] <= sizes[Flasc][0] * 1.05


def test_training_moves_what_is_sent_and_lowers_the_loss(task) -> None:
    method = Lora(task)
    start = method.start()
    trained = method.train(0, 0, task.clients[0], start)
    assert trained.shape == start.shape
    assert np.isfinite(trained).all()
    moved = method.split(torch.from_numpy(trained - start))
    assert all(part.abs().max() > 0 for part in moved.values())
    ffa = FfaLora(task)
    assert ffa.start().size == start.size // 2
    assert not ffa.start().any()
