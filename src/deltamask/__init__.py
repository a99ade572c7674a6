"""DeltaMask: federated fine-tuning of foundation models over thin uplinks.

>>> import deltamask, torch
>>> from deltamask import codecs
>>> model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
>>> deltamask.mask_model(model, blocks="last:5").num_masked
1280
>>> codec = codecs.get("bfuse8")
>>> positions = codec.decode(codec.encode([3, 14, 15, 92], size=1000))
>>> bool(set([3, 14, 15, 92]) <= set(positions.tolist()))
True
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltamask import codecs
from deltamask.config import Config
from deltamask.errors import DeltaMaskError, WireError

if TYPE_CHECKING:
    from deltamask.adapter import Adapter
    from deltamask.masking import MaskedModel, mask_model
    from deltamask.simulate import Result

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Config",
    "DeltaMaskError",
    "MaskedModel",
    "Result",
    "WireError",
    "__version__",
    "codecs",
    "mask_model",
    "run",
]

_LATER = {
    "Adapter": "deltamask.adapter",
    "MaskedModel": "deltamask.masking",
    "Result": "deltamask.simulate",
    "mask_model": "deltamask.masking",
}
"""Names whose modules need torch, which takes seconds to import: loaded when first used."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'deltamask' has no attribute {name!r}")


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Runs a federated fine-tuning and returns its `Result`.

    ``config`` is a `Config`, a mapping of settings (nested or dotted), the path of a TOML file, or nothing for the
    embedded default. With ``out`` the run is saved after every round and can be resumed.

    >>> result = run({"rounds": 1, "clients": 2, "head.epochs": 1})
    >>> result.record["uplink_bpp"] < 1
    True
    """
    from deltamask.config import load
    from deltamask.simulate import run as simulate

    if isinstance(config, str | Path):
        config = load(config)
    elif not isinstance(config, Config):
        config = load(values=config or {})
    return simulate(config, Path(out) if out is not None else None, resume=resume)
