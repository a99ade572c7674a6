"""Local training: determinism, the frozen-prefix cache and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deltamask import mask_model
from deltamask.backbones.embedded import TinyViT
from deltamask.errors import DataError
from deltamask.heads import Head, train_head
from deltamask.training import Images, LocalTraining, Prefix, fit, train_scores


@pytest.fixture(scope="module")
def data() -> Images:
    rng = torch.Generator().manual_seed(0)
    return Images(torch.rand(83, 1, 28, 28, generator=rng), torch.randint(0, 10, (83,), generator=rng))


@pytest.fixture(scope="module")
def backbone() -> TinyViT:
    torch.manual_seed(1)
    return TinyViT(dim=64, depth=5)


def trained(
    backbone: nn.Module, data: Images, *, cache: bool, file=None, key: int = 3, batch: int = 16
) -> np.ndarray:
    masked = mask_model(backbone, "last:2")
    prefix = Prefix(masked, enabled=cache)
    kept = prefix.keep(data, file=file)
    assert (kept.activations is not None) == cache
    theta = np.full(masked.num_masked, 0.8, np.float32)
    head = Head.init(10, 64, 0).on(torch.device("cpu"))
    return train_scores(prefix, head, kept, theta, LocalTraining(epochs=2, batch=batch), key)


def test_the_prefix_cache_gives_bit_identical_results(backbone, data, tmp_path) -> None:
    plain = trained(backbone, data, cache=False)
    assert np.array_equal(trained(backbone, data, cache=True), plain)
    mapped = tmp_path / "activations.npy"
    assert np.array_equal(trained(backbone, data, cache=True, file=mapped), plain)
    assert np.load(mapped, mmap_mode="r").shape == (83, 16, 64)
    assert 0 < plain.min() < 0.75 < 0.85 < plain.max() < 1


def test_training_depends_on_its_key_alone(backbone, data) -> None:
    a, b, other = (trained(backbone, data, cache=True, key=k) for k in (3, 3, 4))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, other)


def test_the_skipped_blocks_really_do_not_run(backbone, data) -> None:
    masked = mask_model(backbone, "last:2")
    prefix = Prefix(masked)
    kept = prefix.keep(data)
    calls = []
    hooks = [b.attn.register_forward_hook(lambda *_: calls.append(1)) for b in backbone.blocks if hasattr(b, "attn")]
    hooks += [b.qkv.register_forward_hook(lambda *_: calls.append(1)) for b in backbone.blocks]
    with masked.showing("plain"):
        short = prefix.features(kept, slice(0, 4))
        assert len(calls) == 2
        assert torch.equal(short, masked(data.images[:4]))
    for hook in hooks:
        hook.remove()
    assert "forward" not in vars(backbone.blocks[0])


class SkipConnection(nn.Module):
    """Reads its first block's output again at the end, so no block may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](x)
        y = first
        for block in self.blocks[1:]:
            y = block(y)
        return y + first


class ByKeyword(SkipConnection):
    """Hands its blocks their input by name."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(input=x)
        return x


class Pairs(nn.Module):
    """Its blocks take and return two tensors."""

    class Block(nn.Linear):
        def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(pair[0]), pair[1]

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[self.Block(8, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks((x, x))[0]


class LeftOut(SkipConnection):
    """Does not run its last blocks at all."""

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)


@pytest.mark.parametrize("kind", [SkipConnection, ByKeyword, Pairs, LeftOut])
def test_a_model_that_cannot_start_in_the_middle_is_run_whole(kind) -> None:
    masked = mask_model(kind(), "last:2")
    prefix = Prefix(masked)
    data = Images(torch.randn(5, 8), torch.zeros(5, dtype=torch.long))
    with pytest.warns(UserWarning, match="without the prefix cache"):
        kept = prefix.keep(data)
    assert kept.activations is None
    with masked.showing("plain"):
        assert torch.equal(prefix.features(kept, slice(0, 5)), masked(data.images))


def test_no_prefix_where_masks_start_at_the_first_block(backbone, data) -> None:
    assert not Prefix(mask_model(backbone, "all")).usable
    assert not Prefix(mask_model(backbone, "first:1")).usable
    assert Prefix(mask_model(backbone, "last:4")).usable
    assert not Prefix(mask_model(nn.Linear(3, 3), "all")).usable


def test_every_image_counts_once_an_epoch() -> None:
    seen: list[int] = []
    weight = torch.zeros(1, requires_grad=True)

    def loss(index: Tensor) -> Tensor:
        seen.extend(index.tolist())
        return (weight * len(index)).sum()

    fit(loss, [weight], 10, epochs=2, batch=4, lr=0.1, key=0)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_a_diverging_loss_and_an_empty_client_say_what_to_do() -> None:
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(DataError, match="loss is nan in epoch 1; lower the learning rate"):
        fit(lambda i: (weight * float("nan")).sum(), [weight], 3, epochs=1, batch=2, lr=0.1, key=0)
    with pytest.raises(DataError, match="no training images"):
        fit(lambda i: weight.sum(), [weight], 0, epochs=1, batch=2, lr=0.1, key=0)


def test_head_learns_separable_features() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (200,), generator=rng)
    features = torch.eye(3)[labels] + 0.1 * torch.randn(200, 3, generator=rng)
    head = train_head(Head.init(3, 3, 0), features, labels, epochs=20, batch=32, lr=0.05, key=1)
    assert (head.on(features.device)(features).argmax(1) == labels).float().mean() > 0.95
