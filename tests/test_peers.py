"""Beside public packages in pure Python; benchmarks/crosscheck.py has those that are not."""

from __future__ import annotations

import math

import loralib
import numpy as np
import probables
import pytest
import torch
from torch.nn import functional as F

from deltamask import codecs
from deltamask.config import load
from deltamask.methods.lora import Lora
from deltamask.task import build


def test_adapters_of_query_and_value_are_those_of_their_authors() -> None:
    """The same output and gradients from the same A and B, in the fused projection of a real model."""
    task = build(load(values={"clients": 2, "blocks": "last:1", "lora.rank": 3, "lora.alpha": 12}))
    method = Lora(task)
    numbers = torch.from_numpy(np.random.default_rng(0).normal(0, 0.05, method.start().size).astype(np.float32))
    leaves = {name: t.clone().requires_grad_() for name, t in method.split(numbers).items()}
    plain = task.masked.module.get_submodule("blocks.7.qkv")
    width = plain.in_features
    peer = loralib.MergedLinear(width, 3 * width, r=3, lora_alpha=12, enable_lora=[True, False, True])
    peer.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        peer.lora_A.copy_(torch.cat([leaves["A0"], leaves["A1"]]))
        peer.lora_B.copy_(torch.cat([leaves["B0"], leaves["B1"]]))

    rng = np.random.default_rng(1)
    x, goal = (torch.from_numpy(rng.standard_normal((20, n)).astype(np.float32)) for n in (width, 3 * width))
    weight = method.weights(leaves)["blocks.7.qkv.weight"]
    ours, theirs = F.linear(x, weight, plain.bias), peer(x)
    assert torch.allclose(ours, theirs, atol=1e-4 * float(theirs.detach().abs().max()))
    F.mse_loss(ours, goal).backward()
    F.mse_loss(theirs, goal).backward()
    for part, theirs in (("A", peer.lora_A.grad), ("B", peer.lora_B.grad)):
        found = torch.cat([leaves[f"{part}0"].grad, leaves[f"{part}1"].grad])
        assert torch.allclose(found, theirs, atol=1e-4 * float(theirs.abs().max()))
    assert not peer.weight.requires_grad


def test_adapters_start_like_those_of_their_authors() -> None:
    method = Lora(build(load(values={"clients": 2, "lora.rank": 16})))
    ours = np.concatenate([a.ravel() for a in method.first])
    torch.manual_seed(0)
    layers = [loralib.Linear(128, 128, r=16) for _ in method.first]
    theirs = torch.cat([layer.lora_A.detach().ravel() for layer in layers]).numpy()
    assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=0.01)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)  # 20,480 numbers each: six standard errors


def test_a_bloom_filter_errs_as_often_as_another_of_its_size() -> None:
    count, asked = 5000, 30_000
    keys = np.sort(np.random.default_rng(0).choice(1_000_000, count, replace=False))
    peer = probables.BloomFilter(count, 1 / 64, hash_function=probables.hashes.default_sha256)
    for key in keys.tolist():
        peer.add(str(key))
    outside = np.setdiff1d(np.arange(1_000_000)[::30], keys)[:asked].tolist()
    bits = 8 * peer.bloom_length / count
    ours = codecs.get(f"bloom:{bits}")
    data = ours.encode(keys, 1_000_000)
    assert 8 * (len(data) - ours.head_length(data)) <= 8 * peer.bloom_length + 8
    wrong = (len(ours.decode(data, 1_000_000)) - count) / (1_000_000 - count)
    hits = sum(peer.check(str(key)) for key in outside)
    expected = (1 - math.exp(-peer.number_hashes / bits)) ** peer.number_hashes
    assert abs(hits - asked * expected) < 4 * math.sqrt(asked * expected) + 0.03 * asked * expected
    assert wrong == pytest.approx(expected, rel=0.05)
