"""What can be set: one tree of checked settings, from TOML files, ``--set key=value`` and keyword arguments.

>>> config = load(overrides=["rounds=5", "channel.codec=rice"])
>>> config.rounds, config.channel.codec
(5, 'rice')
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deltamask.errors import ConfigError, unknown_name

__all__ = ["PRESETS", "Config", "DataSettings", "Precision", "load", "read", "settings"]

Precision = Literal["float32", "bfloat16"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainSettings(_Section):
    """Local training."""

    epochs: int = Field(1, ge=1, description="local epochs E of a round")
    batch: int = Field(16, ge=1, description="images in a batch; the paper has 64")
    lr: float | None = Field(None, gt=0, description="Adam's learning rate on weights; none: the method's own")
    score_lr: float | None = Field(
        None, gt=0, description="the same on mask scores; none: the method's own, the paper has 0.1"
    )
    ste: Literal["identity", "expected"] = Field("identity", description="straight-through gradient (decision 11)")
    prefix_cache: bool = Field(True, description="compute the frozen blocks in front of the masks only once")
    precision: Precision = Field("float32", description="of matrix products while training; or bfloat16")
    threads: int = Field(0, ge=0, description="CPU threads of training; 0: what torch chooses")


class DataSettings(_Section):
    """Which images, and where they come from."""

    root: str | None = Field(None, description="a folder that has the data set, in place of the hub")
    train_images: int = Field(0, ge=0, description="take so many training images, drawn by the seed; 0: all")
    test_images: int = Field(0, ge=0, description="take so many test images, always the same; 0: all")
    image: str = Field("", description="the column of the images; none: found by its type")
    label: str = Field("", description="the column of the classes; none: found by its type or name")
    train_split: str = Field("", description="the split to train on; none: found by its name")
    test_split: str = Field("", description="the split to test on; none: found by its name, or a fifth of all")
    cache_dir: str | None = Field(None, description="where arrays are kept; none: DELTAMASK_CACHE, or ~/.cache")
    cache_gb: float = Field(20.0, ge=0, description="longest file of activations to keep; longer ones are not kept")


class UpdateSettings(_Section):
    """What becomes of a change of weights on the way up, in methods that send one."""

    bits: float = Field(1.0, gt=0, le=6, description="eden: bits a number, 1 to 6 or a share of one")
    bucket: int = Field(512, ge=1, description="qsgd: numbers that share a norm")
    levels: int = Field(1, ge=1, le=2**15, description="qsgd: levels beside zero")


class LoraSettings(_Section):
    """Low-rank adapters, in methods that train them."""

    rank: int = Field(4, ge=1, description="rank r of each adapter")
    alpha: float = Field(16.0, gt=0, description="an adapter counts alpha / rank times")
    targets: str = Field("q,v", description="query and value projections, or patterns of weight names")
    density_up: float = Field(0.25, gt=0, le=1, description="flasc: share of the changes that goes up")
    density_down: float = Field(0.25, gt=0, le=1, description="flasc: share of the numbers that goes down")


class FedMaskSettings(_Section):
    """Thresholded masks."""

    tau: float = Field(0.5, gt=0, lt=1, description="fedmask: a weight is kept from this probability on")


class CodebookSettings(_Section):
    """Weights as a few distinct numbers."""

    centres: int = Field(64, ge=2, le=256, description="fedcode: distinct numbers")
    up_every: int = Field(2, ge=1, description="fedcode: rounds from one upload of all weights to the next")
    down_every: int = Field(5, ge=1, description="fedcode: rounds from one download of all weights to the next")


class ZerothSettings(_Section):
    """Steps without gradients."""

    steps: int = Field(10, ge=1, le=10_000, description="decomfl: steps of a client in a round")
    directions: int = Field(1, ge=1, le=1000, description="decomfl: random directions of a step")
    mu: float = Field(1e-3, gt=0, description="decomfl: how far to both sides a slope is measured")


class KlmsSettings(_Section):
    """Blocks that all clients share."""

    layout: Literal["averaged", "fixed"] = Field("fixed", description="klms: blocks of equal divergence or length")
    drift: float = Field(1.5, gt=1, description="klms, averaged: new blocks at so many times block_bits, or less")


class EvaluationSettings(_Section):
    """When accuracy is measured: the headline after each round, every view after the last one."""

    all_views_every: int = Field(1, ge=1, description="rounds from one evaluation of all views to the next")
    precision: Precision = Field("float32", description="of matrix products while evaluating; or bfloat16")


class HeadSettings(_Section):
    """The classifier, made before the first round and then frozen."""

    kind: str = Field("probe", description="where the classifier comes from (deltamask list heads)")
    epochs: int = Field(50, ge=1, description="local epochs of the probing round")
    batch: int = Field(64, ge=1, description="images in a batch of the probing round")
    lr: float = Field(0.02, gt=0, description="Adam's learning rate of the probing round")


class ChannelSettings(_Section):
    """What becomes of a client's probabilities on the way up."""

    kind: Literal["delta", "mrc"] = Field("delta", description="delta: changed positions; mrc: numbers of candidates")
    codec: str = Field("context", description="the set codec (deltamask list codecs); bloom:10 has 10 bits a key")
    image: Literal["none", "png"] = Field("none", description="png: send the codec's bytes as a grayscale image")
    deflate_level: int = Field(9, ge=0, le=9, description="DEFLATE level of the image")
    huffman_only: bool = Field(False, description="DEFLATE without a search for repeats")
    sampling: Literal["coupled", "independent", "shared"] = Field("coupled", description="which keys draw the masks")
    selection: Literal["kl", "random"] = Field("kl", description="which changes come first")
    kappa: float = Field(1.0, ge=0, le=1, description="share of the changes that is sent")
    kappa_schedule: Literal["constant", "cosine"] = Field("constant", description="kappa over the rounds")
    kappa_end: float = Field(0.2, ge=0, le=1, description="kappa of the last round, for the cosine")
    budget_bytes: int = Field(0, ge=0, description="longest payload of a client and round; 0: no limit")
    candidates: int = Field(256, ge=2, le=4096, description="mrc: masks to choose from, a power of two")
    layout: Literal["adaptive", "fixed"] = Field("adaptive", description="mrc: blocks of equal divergence or length")
    block_bits: float = Field(5.0, gt=0, description="mrc, adaptive: bits of divergence in a block")
    block: int = Field(1024, ge=1, description="mrc, fixed: weights in a block")
    straight: bool = Field(True, description="mrc: make up for the lean of masks towards the server's probabilities")


class AggregationSettings(_Section):
    """How the server's probabilities follow from the masks."""

    rule: Literal["auto", "bayes", "control"] = Field(
        "auto", description="Beta posterior, or control variate; auto: control when all clients take part"
    )
    estimator: Literal["mode", "mean"] = Field("mode", description="of the Beta posterior")
    adds: Literal["sum", "mean"] = Field("sum", description="mean: the paper as printed, which collapses")
    prior: float = Field(1.0, gt=0, description="lambda_0")
    reset_every: int = Field(0, ge=0, description="rounds that the Beta prior gathers; 0: round(1 / participation)")
    clip: float = Field(0.01, ge=0, lt=0.5, description="probabilities stay within [clip, 1 - clip]")


class DownlinkSettings(_Section):
    """How the server's probabilities reach the clients."""

    kind: str = Field("float32", description="float32: probabilities; relay: payloads of the last round")


class Config(_Section):
    """A run. Every key can be given as ``--set key=value``."""

    rounds: int = Field(15, ge=0, description="federated rounds R")
    clients: int = Field(10, ge=1, description="clients N")
    participation: float = Field(1.0, gt=0, le=1, description="share rho of the clients in a round")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything that is random")
    method: str = Field("deltamask", description="deltamask list methods")
    model: str = Field("embedded", description="deltamask list models, a folder, a hub id or module:function")
    image_size: int = Field(0, ge=0, le=4096, description="side of the images in pixels; 0: the model's own")
    dataset: str = Field("digits", description="deltamask list datasets, a folder or a hub id")
    partition: str = Field("iid", description="iid, dirichlet:A, or column:NAME of the data set")
    min_images: int = Field(1, ge=1, description="least number of training images of a client")
    preset: Literal["exact", "paper"] = Field("exact", description="a set of defaults; other keys override it")
    blocks: str = Field("last:5", description="which weights carry masks: last:N, first:N, all or a name pattern")
    theta0: float = Field(0.8, gt=0, lt=1, description="first probability of every weight")
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps; auto: an accelerator where there is one")
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    head: HeadSettings = HeadSettings()
    channel: ChannelSettings = ChannelSettings()
    aggregation: AggregationSettings = AggregationSettings()
    downlink: DownlinkSettings = DownlinkSettings()
    update: UpdateSettings = UpdateSettings()
    lora: LoraSettings = LoraSettings()
    fedmask: FedMaskSettings = FedMaskSettings()
    codebook: CodebookSettings = CodebookSettings()
    zeroth: ZerothSettings = ZerothSettings()
    klms: KlmsSettings = KlmsSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    def digest(self) -> str:
        """Sixteen hex digits that change with any setting that can change a result."""
        settings = self.model_dump(exclude={"data": {"cache_dir", "cache_gb"}})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


PRESETS: dict[str, dict[str, Any]] = {
    "exact": {},
    "paper": {
        "train.score_lr": 0.1,
        "channel.codec": "bfuse8",
        "channel.image": "png",
        "channel.sampling": "independent",
        "channel.kappa": 0.8,
        "aggregation.rule": "bayes",
        "aggregation.estimator": "mode",
    },
}
"""exact: coupled sampling, an exact code. paper: its own reading, as far as that works."""


def settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted key, default, description) of every setting."""
    for name, info in model.model_fields.items():
        default = info.get_default()
        if isinstance(default, BaseModel):
            yield from settings(type(default), f"{prefix}{name}.")
        else:
            yield prefix + name, default, info.description or ""


def load(
    path: Path | str | None = None, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None
) -> Config:
    """A `Config` from its defaults, a preset, a TOML file, ``values`` (nested or dotted) and ``overrides``.

    Later ones win; a preset, wherever it is named, comes right after the defaults.
    """
    given: dict[str, Any] = {}
    if path is not None:
        given.update(read(path))
    given.update(_flatten(values or {}))
    for item in overrides:
        key, found, value = item.partition("=")
        if not found:
            raise ConfigError(f"--set {item!r}: expected key=value, for instance --set channel.codec=rice")
        given[key.strip()] = _parse(value.strip())
    known = [key for key, _, _ in settings()]
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1) or [k for k in known if k.endswith("." + key)][:1]
            hint = f" did you mean {near[0]!r}?" if near else ""
            if key.startswith("methods."):
                hint = " a table [methods.LABEL] is for `deltamask compare`;"
            raise ConfigError(f"unknown setting {key!r};{hint} `deltamask run --help` lists them all")
    preset = given.get("preset", "exact")
    if preset not in PRESETS:
        raise unknown_name("preset", str(preset), PRESETS)
    try:
        return Config.model_validate(_nest({**PRESETS[preset], **given}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where} is {first['input']!r}: {first['msg']}") from None


def read(path: Path | str) -> dict[str, Any]:
    """The settings in a TOML file, by dotted key."""
    return _flatten(_read_toml(Path(path)))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; `deltamask run` without one runs the embedded default") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def _parse(value: str) -> Any:
    """A TOML value where it is one, else the text itself, so that strings need no quotes."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
