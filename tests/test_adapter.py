"""The trained mask as a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from deltamask import codecs, mask_model
from deltamask.adapter import Adapter
from deltamask.codecs.base import varint
from deltamask.errors import DataError, LimitError, MalformedError, MismatchError, WireError
from deltamask.heads import Head
from deltamask.wire import SERVER, Frame, open_frame, seal


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(20, 20), nn.GELU()) for _ in range(4)])


@pytest.fixture
def adapter() -> Adapter:
    masked = mask_model(model(), "last:2")
    theta = np.random.default_rng(0).uniform(size=masked.num_masked).astype(np.float32) ** 0.3
    return Adapter.of(masked, theta, Head.init(3, 20, 0), 5, {"accuracy": 0.5})


@pytest.mark.parametrize("kept", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_file_round_trip(kept, tmp_path) -> None:
    masked = mask_model(model(), "last:2")
    theta = np.where(np.random.default_rng(1).random(800) < kept, 0.9, 0.1).astype(np.float32)
    before = Adapter.of(masked, theta, Head.init(3, 20, 0), 5, {"accuracy": 0.5})
    size = before.save(tmp_path / "a.dmask")
    after = Adapter.load(tmp_path / "a.dmask")
    assert size == (tmp_path / "a.dmask").stat().st_size
    assert after.layers == before.layers
    assert np.array_equal(after.mask, before.mask)
    assert np.array_equal(after.head.weight, before.head.weight)
    assert (after.model, after.round, after.about) == (before.model, 5, {"accuracy": 0.5})


def test_a_large_mask_takes_its_entropy() -> None:
    masked = mask_model(nn.Sequential(nn.Linear(400, 400)), "all")
    theta = np.where(np.random.default_rng(1).random(160_000) < 0.95, 0.9, 0.1).astype(np.float32)
    size = len(Adapter.of(masked, theta, Head.init(1, 1, 0), 0, {}).to_bytes())
    p = float((theta > 0.5).mean())
    entropy = -160_000 * (p * np.log2(p) + (1 - p) * np.log2(1 - p)) / 8
    assert size < 1.01 * entropy + 200


def test_applied_weights_are_the_thresholded_view(adapter) -> None:
    base, x = model(), torch.randn(4, 20)
    tuned = model()
    tuned.load_state_dict(adapter.apply(base))
    masked = mask_model(model(), "last:2")
    theta = np.where(adapter.mask, 0.9, 0.1).astype(np.float32)
    with masked.showing("thresholded", theta):
        assert torch.equal(masked(x), tuned.eval()(x))
    assert torch.equal(base[2][0].weight, model()[2][0].weight)


class Tied(nn.Module):
    """Its output layer comes first and shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 30, bias=False)
        self.embedding = nn.Embedding(30, 8)
        self.embedding.weight = self.out.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(words))


def test_a_shared_weight_is_masked_under_all_of_its_names() -> None:
    masked, words = mask_model(Tied(), "all"), torch.arange(30)
    theta = np.random.default_rng(0).random(240, np.float32)
    tuned = Tied()
    tuned.load_state_dict(Adapter.of(masked, theta, Head.init(1, 1, 0), 0, {}).apply(masked.module))
    with masked.showing("thresholded", theta):
        assert torch.equal(masked(words), tuned.requires_grad_(False)(words))


def test_another_base_model_is_refused(adapter) -> None:
    base = model()
    with torch.no_grad():
        base[0][0].weight[0, 0] += 1
    with pytest.raises(MismatchError, match="trained on the base model"):
        adapter.apply(base)


def test_damaged_files(adapter, tmp_path) -> None:
    data = adapter.to_bytes()
    for at in range(0, len(data), 7):
        with pytest.raises(WireError):
            Adapter.from_bytes(data[:at])
        with pytest.raises(WireError):
            Adapter.from_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
    with pytest.raises(DataError, match="cannot read"):
        Adapter.load(tmp_path / "none.dmask")


def test_forged_descriptions(adapter) -> None:
    """Sound frames whose content lies."""
    frame = open_frame(adapter.to_bytes())
    for old, new in (
        (b"[20,20]", b"[20,21]"),
        (b'"rarer":0', b'"rarer":7'),
        (b'"head":[3,20]', b'"head":[9,20]'),
        (b'"layers"', b'"lawyer"'),
        (b"{", b"["),
    ):
        assert old in frame.payload, old
        with pytest.raises(WireError):
            Adapter.from_bytes(seal(replace(frame, payload=frame.payload.replace(old, new, 1))))


def forged(size: int, text: bytes) -> bytes:
    """A frame that speaks of ``size`` weights, none of them kept, with a description of one's own."""
    packed = codecs.get("rans").encode(np.zeros(0, np.int64), size)
    payload = varint(len(text)) + text + bytes(8) + packed
    return seal(Frame("adapter", size, 1, SERVER, 0, 0, payload))


def test_a_hundred_bytes_cannot_ask_for_a_terabyte() -> None:
    text = b'{"layers":[["w",[%d]]],"head":[1,1],"rarer":1,"about":{}}'
    assert Adapter.from_bytes(forged(5, text % 5)).mask.tolist() == [0] * 5
    with pytest.raises(LimitError, match="1099511627776 weights"):
        Adapter.from_bytes(forged(2**40, text % 2**40))
    with pytest.raises(LimitError, match="at most 4 accepted"):
        Adapter.from_bytes(forged(5, text % 5), limit=4)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"layers":[["w",[1e999]]],"head":[1,1],"rarer":1,"about":{}}'])
def test_descriptions_that_break_a_parser(text) -> None:
    with pytest.raises(MalformedError):
        Adapter.from_bytes(forged(5, text))
