"""Masks over modules: choosing weights, gradients, views, and that the user's module stays untouched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deltamask import mask_model, sampling
from deltamask.errors import ConfigError
from deltamask.masking import choose_weights, find_blocks


class Conv(nn.Module):
    """A convolutional model whose blocks are Sequentials in a Sequential, with batch norms between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.Sequential(
            *[nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.GELU()) for _ in range(6)]
        )
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.out(self.body(self.stem(x)).mean((2, 3))) * scale


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def randomised(masked, seed=0):
    theta = np.random.default_rng(seed).uniform(0.02, 0.98, masked.num_masked).astype(np.float32)
    masked.load_theta(theta)
    return theta


def test_blocks_are_found_by_structure() -> None:
    assert [name for name, _ in find_blocks(Conv())] == [f"body.{i}" for i in range(6)]
    assert [name for name, _ in find_blocks(transformer())] == [f"layers.{i}" for i in range(4)]
    assert find_blocks(nn.Linear(3, 3)) == []


def test_choice_of_weights() -> None:
    model = Conv()
    assert [w.name for w in choose_weights(model, "last:2")] == ["body.4.0.weight", "body.5.0.weight"]
    assert [w.block for w in choose_weights(model, "first:2")] == [0, 1]
    assert len(choose_weights(model, "all")) == 8
    assert [w.name for w in choose_weights(model, "stem.*, out.weight")] == ["stem.weight", "out.weight"]
    # query, key, value in one tensor, output, two linear layers; no norm, no bias
    assert [w.name.split(".", 2)[2] for w in choose_weights(transformer(), "last:1")] == [
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    ]
    ends = [(w.start, w.stop) for w in choose_weights(model, "all")]
    assert ends[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("make", "blocks", "message"),
    [
        (Conv, "last:7", "has 6 blocks; take 1 to 6"),
        (Conv, "last:0", "take 1 to 6"),
        (Conv, "nothing.*", "matches no maskable weight"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), "last:5", "no list of repeated blocks; use blocks='all'"),
        (lambda: nn.LayerNorm(3), "all", "no linear or convolution weights"),
    ],
)
def test_a_choice_that_does_not_fit_names_the_remedy(make, blocks, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mask_model(make(), blocks)


def test_views_against_explicit_weights() -> None:
    model, x = Conv(), torch.randn(2, 1, 8, 8)
    masked = mask_model(model, "all")
    theta = randomised(masked)
    theta = masked.theta()
    want = {
        "thresholded": (theta >= 0.5).astype(np.float32),
        "expected": theta,
        "sampled": sampling.mask(7, sampling.thresholds(theta)).astype(np.float32),
        "plain": np.ones_like(theta),
    }
    plain = Conv().eval()
    for view, factor in want.items():
        plain.load_state_dict(model.state_dict())
        with torch.no_grad():
            for name, part in masked.split(torch.from_numpy(factor)).items():
                plain.get_parameter(name).mul_(part)
        with masked.showing(view, key=7):
            assert torch.equal(masked(x), plain(x)), view
    masked.eval()
    with masked.showing("thresholded"):
        shown = masked(x)
    assert torch.equal(masked(x), shown)
    with pytest.raises(ConfigError, match="view is 'best'"), masked.showing("best"):
        pass


def test_the_module_stays_as_it_was_and_keeps_its_arguments() -> None:
    model, x = Conv(), torch.randn(2, 1, 8, 8)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    masked = mask_model(model, "last:3")
    masked.train()
    loss = masked(x, scale=2.0).square().sum()
    loss.backward()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # batch statistics included
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert not model.training
    assert masked.scores.grad is not None
    assert masked.num_masked == 3 * 36


@pytest.mark.parametrize("ste", ["identity", "expected"])
def test_straight_through_gradient(ste) -> None:
    model, x = transformer(), torch.randn(3, 5, 16)
    masked = mask_model(model, "last:2", ste=ste)
    randomised(masked)
    masked.reseed(11)
    F.mse_loss(masked(x), x).backward()
    theta = torch.sigmoid(masked.scores.detach())
    bits = torch.from_numpy(sampling.mask(11, sampling.thresholds(theta.numpy())).astype(np.float32))
    leaf = (masked.frozen * bits).requires_grad_()
    with masked.using(masked.split(leaf)):
        F.mse_loss(masked(x), x).backward()
    want = leaf.grad * masked.frozen * theta * (1 - theta) * (theta if ste == "expected" else 1)
    assert torch.allclose(masked.scores.grad, want, rtol=1e-5, atol=1e-9)
    assert masked.scores.grad.abs().max() > 0


def test_each_forward_pass_draws_anew_and_the_key_repeats_it() -> None:
    masked, x = mask_model(Conv(), "all"), torch.randn(2, 1, 8, 8)
    randomised(masked)
    masked.reseed(5)
    first, second = masked(x), masked(x)
    masked.reseed(5)
    assert torch.equal(masked(x), first)
    assert not torch.equal(first, second)


def test_tied_weights_are_masked_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    masked = mask_model(model, "all")
    assert masked.num_masked == 16
    theta = np.full(16, 0.01, np.float32)
    with masked.showing("thresholded", theta):
        assert torch.equal(masked(torch.ones(1, 4)), model[1].bias[None])


def test_fingerprint_changes_with_any_weight_and_no_score() -> None:
    torch.manual_seed(0)
    model = Conv()
    masked = mask_model(model, "last:2")
    before = masked.fingerprint()
    randomised(masked)
    assert masked.fingerprint() == before
    with torch.no_grad():
        model.stem.bias[0] += 1e-3
    assert masked.fingerprint() != before


def test_wrong_theta_and_wrong_estimator_are_refused() -> None:
    masked = mask_model(Conv(), "last:2")
    with pytest.raises(ConfigError, match="the model has 72"):
        masked.load_theta(np.zeros(3, np.float32))
    for wrong in (np.nan, 1.5, -0.1):
        theta = np.full(72, 0.5, np.float32)
        theta[7] = wrong
        with pytest.raises(ConfigError, match="expected 0 to 1"):
            masked.load_theta(theta)
        with pytest.raises(ConfigError, match="expected 0 to 1"), masked.showing("sampled", theta):
            pass
    masked.load_theta(np.broadcast_to(np.float32(0.5), 72))  # read-only
    with pytest.raises(ConfigError, match="ste is 'relaxed'"):
        mask_model(Conv(), ste="relaxed")  # type: ignore[arg-type]


def test_modules_that_cannot_carry_a_mask_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"0.weight is torch.bfloat16; .* module.float"):
        mask_model(nn.Sequential(nn.Linear(3, 3)).bfloat16(), "all")
    with pytest.raises(ConfigError, match="no shape yet"):
        mask_model(nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(3)), "last:1")
    with pytest.raises(ConfigError, match="carries a mask already"):
        mask_model(mask_model(Conv(), "all"), "all")
