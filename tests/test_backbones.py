"""Backbones in the hub's layout, written to disk with random weights and loaded back as a user's folder would be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from deltamask import hub, mask_model
from deltamask.adapter import Adapter
from deltamask.backbones import base
from deltamask.backbones.convmixer import ConvMixer
from deltamask.errors import ConfigError, DataError
from deltamask.masking import find_blocks
from deltamask.training import Images, Prefix

ASSET = Path(__file__).resolve().parents[2] / "shared" / "assets" / "vit-small-dinov2"
NORMS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory) -> Path:
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("dinov2")
    config = Dinov2Config(hidden_size=24, num_hidden_layers=6, num_attention_heads=2, image_size=70, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """Both towers, as the hub's checkpoint has them."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2}
    vision = {**small, "image_size": 32, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=small, vision_config=vision)).save_pretrained(folder)
    processor = {**NORMS, "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
def convmixer(tmp_path_factory) -> Path:
    """What timm writes: its names, a classifier, counters of batches."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("convmixer")
    model = ConvMixer(12, 6)
    state = model.state_dict() | {"head.weight": torch.zeros(5, 12), "head.bias": torch.zeros(5)}
    save_file({k: v.half() if v.is_floating_point() else v for k, v in state.items()}, folder / "model.safetensors")
    cfg = {
        "input_size": [3, 28, 28],
        "interpolation": "bicubic",
        "crop_pct": 0.96,
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
    }
    (folder / "config.json").write_text(json.dumps({"architecture": "convmixer_12_6", "pretrained_cfg": cfg}))
    return folder


def masked_per_block(width: int, mlp: int) -> int:
    return 4 * width * width + 2 * width * mlp


@pytest.mark.parametrize(
    ("kind", "features", "size", "per_block"),
    [
        ("dinov2", 24, 224, masked_per_block(24, 96)),
        ("clip", 16, 32, masked_per_block(16, 32)),
        ("convmixer", 12, 28, 12 * 49 + 12 * 12),
    ],
)
def test_a_folder_in_the_hubs_layout(kind, features, size, per_block, request) -> None:
    module = base.load(str(request.getfixturevalue(kind)))
    assert module.feature_size == features
    assert module.preprocess.size == size
    assert len(find_blocks(module)) == 6
    masked = mask_model(module, "last:5")
    assert masked.num_masked == 5 * per_block
    assert {w.block for w in masked.layers} == {1, 2, 3, 4, 5}
    x = torch.randn(2, 3, size, size)
    masked.train()
    masked(x).square().sum().backward()
    assert masked(x).shape == (2, features)
    assert masked.scores.grad is not None
    assert (masked.scores.grad != 0).any()


@pytest.mark.parametrize("kind", ["dinov2", "clip", "convmixer"])
def test_the_prefix_is_kept_for_every_backbone(kind, request) -> None:
    module = base.load(str(request.getfixturevalue(kind)), 42)
    masked = mask_model(module, "last:5")
    prefix = Prefix(masked)
    data = Images(torch.randn(5, 3, 42, 42), torch.zeros(5, dtype=torch.long))
    kept = prefix.keep(data)
    assert prefix.usable
    assert kept.activations is not None
    with masked.showing("sampled", key=3):
        assert torch.equal(prefix.features(kept, slice(0, 5)), masked(data.images))


@pytest.mark.parametrize(("kind", "own"), [("dinov2", 70), ("clip", 32), ("convmixer", 28)])
def test_other_image_sizes(kind, own, request) -> None:
    module = base.load(str(request.getfixturevalue(kind)), 56)
    assert module.preprocess.size == 56
    for side in (56, own):
        assert module(torch.randn(1, 3, side, side)).shape == (1, module.feature_size)


def test_the_features_are_those_of_transformers(dinov2, clip) -> None:
    from transformers import CLIPVisionModel, Dinov2Model

    x = torch.randn(2, 3, 70, 70)
    want = Dinov2Model.from_pretrained(dinov2).eval()(x)
    assert torch.equal(base.load(str(dinov2))(x), want.last_hidden_state[:, 0])
    x = torch.randn(2, 3, 32, 32)
    tower = CLIPVisionModel.from_pretrained(clip).eval()
    assert torch.allclose(base.load(str(clip))(x), tower(x).pooler_output, atol=1e-6)


def test_preprocessing_is_that_of_the_checkpoint(dinov2, clip, convmixer) -> None:
    assert base.load(str(dinov2)).preprocess == replace(base.IMAGENET, crop=224 / 256)
    found = base.load(str(clip)).preprocess
    assert found == base.Preprocess(32, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic", 1.0)
    assert base.load(str(convmixer)).preprocess == base.Preprocess(28, (0.5,) * 3, (0.2,) * 3, "bicubic", 0.96)
    assert base.load(str(dinov2), 56).preprocess == replace(base.IMAGENET, size=56)


def test_convmixer_has_the_names_and_the_size_of_the_published_checkpoint() -> None:
    model = ConvMixer(768, 32)
    names = set(model.state_dict())
    for name in ("stem.0.weight", "stem.2.running_mean", "blocks.31.0.fn.0.bias", "blocks.0.0.fn.2.weight"):
        assert name in names
    assert {"blocks.0.1.weight", "blocks.31.3.num_batches_tracked"} <= names
    # 21.11 million parameters are published, of which 769,000 belong to the classifier.
    assert sum(p.numel() for p in model.parameters()) + 769_000 == 21_110_248
    assert mask_model(model, "last:5").num_masked == 5 * 768 * (768 + 49)


def test_clip_b32_masks_as_many_weights_as_the_paper() -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    with torch.device("meta"):
        model = CLIPVisionModel(CLIPVisionConfig())
    assert sum(w.stop - w.start for w in mask_layers(model)) == 35_389_440


def mask_layers(model: nn.Module):
    from deltamask.masking import choose_weights

    return choose_weights(model, "last:5")


@pytest.mark.skipif(not ASSET.exists(), reason="the evaluation assets are not on this machine")
def test_real_dinov2_loads_through_the_same_path() -> None:
    module = base.load(str(ASSET), 56)
    assert module.feature_size == 384
    masked = mask_model(module, "last:5")
    assert masked.num_masked == 8_847_360
    # Real weights, not freshly drawn ones: the checkpoint's numbers are in the module.
    stored = load_file(ASSET / "model.safetensors")["encoder.layer.11.mlp.fc2.weight"].float()
    assert torch.equal(module.get_parameter("model.encoder.layer.11.mlp.fc2.weight"), stored)


def test_a_users_own_function(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build():\n"
        "    body = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(6)]\n"
        "    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16, 8), *body)\n"
        "    model.image_size = 4\n"
        "    return model\n"
        "def pairs():\n"
        "    class Pair(torch.nn.Linear):\n"
        "        image_size = 4\n"
        "        def forward(self, x):\n"
        "            return x, x\n"
        "    return Pair(3, 3)\n"
        "def nothing():\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    module = base.load("mine:build")
    assert (module.feature_size, module.preprocess.size) == (8, 4)
    assert mask_model(module, "last:5").num_masked == 5 * 64
    for name, message in (
        ("mine:biuld", "expected MODULE:FUNCTION"),
        ("nowhere.at.all:build", "No module named"),
        ("mine:nothing", "returned int; expected a torch module"),
        ("mine:pairs", "gives tuple; a backbone gives"),
    ):
        with pytest.raises(ConfigError, match=message):
            base.load(name)


def test_a_mask_over_a_hub_model_applies_to_its_checkpoint(dinov2) -> None:
    from deltamask.heads import Head

    module = base.load(str(dinov2))
    masked = mask_model(module, "last:2")
    theta = np.random.default_rng(0).random(masked.num_masked).astype(np.float32)
    adapter = Adapter.of(masked, theta, Head.init(3, 24, 0), 1, {})
    again = base.load(str(dinov2))
    state = Adapter.from_bytes(adapter.to_bytes()).apply(again)
    again.load_state_dict(state)
    x = torch.randn(2, 3, 70, 70)
    with masked.showing("thresholded", theta):
        assert torch.equal(again(x), masked(x))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no .*config.json"),
        ({"config.json": "{"}, "config.json: "),
        ({"config.json": "[1]"}, "holds list; expected an object"),
        ({"config.json": '{"model_type": "dinov2"}'}, "can't be loaded as Dinov2Model"),
        ({"config.json": '{"model_type": "no_such_model"}'}, "can't be loaded as AutoModel"),
        ({"config.json": '{"architecture": "convmixer_big"}'}, "expected convmixer_WIDTH_DEPTH"),
        ({"config.json": '{"architecture": "convmixer_8_2"}'}, "does not fit convmixer_8_2"),
        (
            {"config.json": '{"architecture": "convmixer_8_2"}', "model.safetensors": "?"},
            "does not fit convmixer_8_2",
        ),
    ],
)
def test_broken_folders_say_what_is_wrong(files, message, tmp_path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        base.load(str(tmp_path))


def test_names_that_lead_nowhere(monkeypatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(ConfigError, match="did you mean 'embedded'"):
        base.load("embeded")
    with pytest.raises(DataError, match="expected a folder, a hub id"):
        base.load("./nowhere")
    with pytest.raises(DataError, match="can't be reached and nothing is in its cache"):
        base.load("nobody/nothing-of-this-name")
    with pytest.raises(ConfigError, match="takes 28 alone"):
        base.load("embedded", 56)


def test_what_a_hub_answers_becomes_one_line_with_the_remedy() -> None:
    from huggingface_hub import errors

    response = SimpleNamespace(headers={}, request=None)
    for raised, said in (
        (errors.GatedRepoError("gated", response=response), "is gated: accept its terms"),
        (errors.RepositoryNotFoundError("no", response=response), "is not on the hub, or private"),
        (errors.HfHubHTTPError("500 oh", response=response), "the hub answered 500 oh"),
        (errors.OfflineModeIsEnabled("off"), "nothing is in its cache"),
        (ConnectionError("no route"), "no route"),
    ):
        with pytest.raises(DataError, match=said), hub.explained("model", "a/b", offline=False):
            raise raised
