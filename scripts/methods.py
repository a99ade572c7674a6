"""All methods with their learning rates: what is tried for each, and what the results say is best."""

from __future__ import annotations

import statistics
from functools import partial

from tablekit import records

__all__ = ["LABELS", "best_rates", "chosen", "sweep", "swept", "thresholds"]

SCORES = "train.score_lr"
WEIGHTS = "train.lr"

Tried = tuple[str, ...] | str
"""Rates; or the label whose rate is taken; or a study of its own, with what stands before the rate in its labels."""

# label: (settings of the method, which rate, rates tried on the embedded task, on the real pair)
LABELS: dict[str, tuple[list[str], str, Tried, Tried]] = {
    "deltamask": (["aggregation.rule=control"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "tune-masks: theta0 0.95, lr "),
    "deltamask, bayes": (["aggregation.rule=bayes"], SCORES, "deltamask", "deltamask"),
    # On the real pair these train as deltamask does: what differs is how a mask travels, and what is added up.
    "deltamask:paper": (["preset=paper"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "deltamask"),
    "fedpm": (["method=fedpm"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "deltamask"),
    "deepreduce": (["method=deepreduce"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "deltamask"),
    "klms": (["method=klms"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "deltamask"),
    # Other blocks, and another downlink: training is klms's.
    "klms, averaged": (["method=klms", "klms.layout=averaged", "channel.block_bits=32"], SCORES, "klms", "klms"),
    "bicompfl": (["method=bicompfl"], SCORES, "klms", "klms"),
    "mrc": (["channel.kind=mrc"], SCORES, ("0.1", "0.2", "0.4", "0.8"), "deltamask"),
    # Scores start from averaged masks, +-4.6, and have to cross zero within an epoch of ten steps or so.
    "fedmask": (["method=fedmask"], SCORES, ("0.2", "0.4", "0.8", "1.6"), ("0.3", "0.6", "1.2")),
    # What the others are held against: three seeds on the embedded task, ten rounds on the real pair.
    "finetune": (["method=finetune"], WEIGHTS, "finetune-lr: ", "tune-finetune: lr "),
    "eden": (["method=eden"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), "finetune"),
    "eden, .7 bits": (["method=eden", "update.bits=0.7"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), "finetune"),
    "drive": (["method=drive"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), "finetune"),
    "qsgd": (["method=qsgd"], WEIGHTS, ("3e-4", "1e-3", "2e-3", "4e-3"), "finetune"),
    "fedcode": (["method=fedcode"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), "finetune"),
    "lora": (["method=lora"], WEIGHTS, ("5e-3", "1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3", "1e-2")),
    "lora, r 8": (["method=lora", "lora.rank=8"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), "lora"),
    "lora, r 16": (["method=lora", "lora.rank=16"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), "lora"),
    "ffa-lora": (["method=ffa-lora"], WEIGHTS, ("1e-2", "2e-2", "4e-2", "8e-2"), ("3e-3", "1e-2")),
    "lora-eden": (["method=lora-eden"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), "lora"),
    "flasc": (["method=flasc"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("3e-3", "6e-3", "1e-2", "2e-2")),
    # Differences of losses a thousandth of a step apart drown in bfloat16.
    "decomfl": (
        ["method=decomfl", "train.precision=float32"],
        WEIGHTS,
        ("1e-5", "1e-4", "1e-3"),
        ("1e-7", "1e-6", "1e-5", "1e-4"),
    ),
    "linear-probe": (["method=linear-probe"], WEIGHTS, ("0.003", "0.01", "0.03", "0.1"), ("0.003", "0.01", "0.03")),
}

# The paper has .4 to .6 for clients alike; for others its range is malformed, and begins or ends at .2.
TAUS = {"iid": ("0.4", "0.5", "0.6"), "dirichlet:0.1": ("0.05", "0.1", "0.2", "0.4", "0.5", "0.6")}

VARIANTS = ("eden, .7 bits", "lora, r 8", "lora, r 16")
"""What is run with clients alike alone."""


def sweep(real: bool) -> dict[str, list[str]]:
    """A run for each label and rate."""
    runs = {}
    for label, (settings, key, *tried) in LABELS.items():
        rates = tried[real]
        if not isinstance(rates, str):
            runs.update({f"{label}, {rate}": [*settings, f"{key}={rate}"] for rate in rates})
    return runs


def thresholds() -> dict[str, list[str]]:
    """FedMask at its best rate, with several thresholds under each split."""
    rate = best_rates("embedded").get("fedmask")
    return {
        f"{split}, {tau}": ["method=fedmask", f"{SCORES}={rate}", f"fedmask.tau={tau}", f"partition={split}"]
        for split, taus in TAUS.items()
        for tau in taus
        if rate is not None
    }


def best_rates(task: str) -> dict[str, str]:
    """The rate with the best last accuracy, for each label; of the same accuracies the lower rate."""
    rates = {label: max(found, key=partial(_merit, found)) for label, found in swept(task).items()}
    for label, source in _sources(task).items():
        if isinstance(source, str) and source in rates:
            rates[label] = rates[source]
    return rates


def swept(task: str) -> dict[str, dict[str, list[dict]]]:
    """label -> rate -> results, where a label has rates of its own."""
    out: dict[str, dict[str, list[dict]]] = {}
    for name, runs in records(f"{task}/tune-methods").items():
        label, _, rate = name.rpartition(", ")
        out.setdefault(label, {})[rate] = runs
    for label, source in _sources(task).items():
        if isinstance(source, str) and ": " in source:
            study, _, start = source.partition(": ")
            found = records(f"{task}/{study}")
            out[label] = {name.removeprefix(start): runs for name, runs in found.items() if name.startswith(start)}
    return out


def _sources(task: str) -> dict[str, Tried]:
    return {label: real if task == "real" else embedded for label, (*_, embedded, real) in LABELS.items()}


def _merit(tried: dict[str, list[dict]], rate: str) -> tuple[float, float]:
    return statistics.mean(r["accuracy"] for r in tried[rate]), -float(rate)


def chosen(task: str, split: str = "iid") -> dict[str, list[str]]:
    """A run for each label that has been swept, at its best rate; FedMask with its best threshold for ``split``."""
    rates = best_rates(task)
    runs = {
        label: [*settings, f"{key}={rates[label]}"]
        for label, (settings, key, *_) in LABELS.items()
        if label in rates and (split == "iid" or label not in VARIANTS)
    }
    found = {
        tau: tried[0]["accuracy"]
        for name, tried in records("embedded/tune-fedmask").items()
        for tau in [name.rpartition(", ")[2]]
        if name.startswith(f"{split}, ")
    }
    if found and "fedmask" in runs:
        runs["fedmask"].append(f"fedmask.tau={max(found, key=lambda tau: found[tau])}")
    return runs
