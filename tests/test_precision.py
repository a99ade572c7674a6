"""Matrix products in bfloat16: what they leave in float32, and how little they change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deltamask import mask_model
from deltamask.backbones.embedded import TinyViT
from deltamask.config import load
from deltamask.heads import Head
from deltamask.precision import mixed
from deltamask.task import build
from deltamask.training import Images, LocalTraining, Prefix, train_scores

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "product"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_products_are_in_the_asked_precision_and_attention_in_float32(precision, product) -> None:
    x = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    with mixed(precision, CPU):
        assert F.linear(x, torch.ones(5, 8)).dtype == product
        half = x.to(product)
        positional = F.scaled_dot_product_attention(half, half, half)
        named = F.scaled_dot_product_attention(query=half, key=half, value=half)
    assert positional.dtype == named.dtype == torch.float32
    assert torch.equal(positional, named)
    exact = half.float()
    assert torch.equal(positional, F.scaled_dot_product_attention(exact, exact, exact))
    assert F.linear(x, torch.ones(5, 8)).dtype == torch.float32  # nothing is left behind


def test_training_in_bfloat16_is_deterministic_and_close_to_float32() -> None:
    torch.manual_seed(1)
    masked = mask_model(TinyViT(dim=64, depth=5), "last:2")
    data = Images(torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    head = Head.init(10, 64, 0).on(CPU)
    start = np.full(masked.num_masked, 0.8, np.float32)
    prefix = Prefix(masked)
    kept = prefix.keep(data)
    moved = {}
    for precision in ("float32", "bfloat16"):
        how = LocalTraining(epochs=1, batch=32, precision=precision)
        one, two = (train_scores(prefix, head, kept, start, how, key=3) - start for _ in range(2))
        assert np.array_equal(one, two)
        moved[precision] = one
    assert not np.array_equal(moved["float32"], moved["bfloat16"])
    assert moved["bfloat16"].dtype == np.float32
    # Adam's first steps follow the gradients' signs: a few near zero differ, most do not.
    assert np.corrcoef(moved["float32"], moved["bfloat16"])[0, 1] > 0.95


def test_evaluation_in_bfloat16_finds_about_the_same_accuracy() -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        task = build(load(overrides=["clients=2", f"evaluation.precision={precision}"]))
        with task.masked.showing("plain"):
            found.append(task.accuracy(Head.init(task.classes, task.features, 5)))
    assert abs(found[0] - found[1]) <= 5 / 359  # images of 359 on the fence
