"""All methods with their learning rates: what is tried for each, and what the results say is best."""

from __future__ import annotations

from tablekit import records

__all__ = ["RATES", "chosen", "sweep"]

SCORES = "train.score_lr"
WEIGHTS = "train.lr"

# label: (settings of the method, which rate, rates tried on the embedded task, on the real pair)
RATES: dict[str, tuple[list[str], str, tuple[str, ...], tuple[str, ...]]] = {
    "deltamask": ([], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.05", "0.1", "0.2")),
    "deltamask:paper": (["preset=paper"], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.1", "0.2")),
    "fedpm": (["method=fedpm"], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.1", "0.2")),
    "deepreduce": (["method=deepreduce"], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.1", "0.2")),
    "klms": (["method=klms"], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.1", "0.2")),
    "mrc": (["channel.kind=mrc"], SCORES, ("0.1", "0.2", "0.4", "0.8"), ("0.1", "0.2")),
    # Scores start from averaged masks, +-4.6, and have to cross zero within an epoch of ten steps or so.
    "fedmask": (["method=fedmask"], SCORES, ("0.2", "0.4", "0.8", "1.6"), ("0.3", "0.6", "1.2")),
    "finetune": (["method=finetune"], WEIGHTS, ("1e-3", "2e-3", "4e-3", "8e-3"), ("3e-5", "6e-5", "1e-4")),
    "eden": (["method=eden"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), ("3e-5", "6e-5", "1e-4")),
    "eden, .7 bits": (["method=eden", "update.bits=0.7"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), ("3e-5", "6e-5")),
    "drive": (["method=drive"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), ("3e-5", "6e-5", "1e-4")),
    "qsgd": (["method=qsgd"], WEIGHTS, ("3e-4", "1e-3", "2e-3"), ("1e-5", "3e-5", "6e-5")),
    "fedcode": (["method=fedcode"], WEIGHTS, ("1e-3", "2e-3", "4e-3"), ("3e-5", "6e-5", "1e-4")),
    "lora": (["method=lora"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3", "1e-2")),
    "lora, r 8": (["method=lora", "lora.rank=8"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3")),
    "lora, r 16": (["method=lora", "lora.rank=16"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3")),
    "ffa-lora": (["method=ffa-lora"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("3e-3", "1e-2")),
    "lora-eden": (["method=lora-eden"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3", "1e-2")),
    "flasc": (["method=flasc"], WEIGHTS, ("1e-2", "2e-2", "4e-2"), ("1e-3", "3e-3", "1e-2")),
    # Differences of losses a thousandth of a step apart drown in bfloat16.
    "decomfl": (
        ["method=decomfl", "train.precision=float32"],
        WEIGHTS,
        ("1e-5", "1e-4", "1e-3"),
        ("1e-6", "1e-5", "1e-4"),
    ),
    "linear-probe": (["method=linear-probe"], WEIGHTS, ("0.003", "0.01", "0.03", "0.1"), ("0.003", "0.01")),
}


def sweep(real: bool) -> dict[str, list[str]]:
    """A run for each label and rate."""
    runs = {}
    for label, (settings, key, *rates) in RATES.items():
        runs.update({f"{label}, {rate}": [*settings, f"{key}={rate}"] for rate in rates[real]})
    return runs


def chosen(task: str) -> dict[str, list[str]]:
    """A run for each label that the sweep of ``task`` has: at the rate with the best last accuracy, at seed 0."""
    best: dict[str, tuple[float, str]] = {}
    for tried, runs in records(f"{task}/tune-methods").items():
        label, _, rate = tried.rpartition(", ")
        best[label] = max(best.get(label, (0.0, "")), (runs[0]["accuracy"], rate))
    return {
        label: [*settings, f"{key}={best[label][1]}"] for label, (settings, key, *_) in RATES.items() if label in best
    }
