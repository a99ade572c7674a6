"""Models and data sets that lie on a hub: fetched once, then found in its cache; every refusal with its remedy."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deltamask.errors import DataError

__all__ = ["data_files", "explained", "needs", "reachable", "snapshot"]

_FILES = ["config.json", "preprocessor_config.json", "*.safetensors", "*.safetensors.index.json"]
_OLDER = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
_SECONDS = 5.0


def needs(package: str, what: str) -> DataError:
    """The error for an optional package that is not installed."""
    return DataError(f"{what} needs {package}, which is not installed: pip install 'deltamask[hub]'")


def reachable() -> bool:
    """Whether the hub can be asked at all: its clients would try for half a minute before they say no."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy knows the way, not this machine
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((host.hostname or "", host.port or 443), _SECONDS).close()
    except OSError:
        return False
    return True


def snapshot(name: str) -> Path:
    """The folder with a model's configuration and weights: ``name`` itself, or the hub's model of that name."""
    if Path(name).exists():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise DataError(
            f"no model {name!r}: expected a folder, a hub id like facebook/dinov2-small, or module:function"
        )
    folder = _fetched("model", name, _FILES)
    if not any(folder.glob("*.safetensors")):
        folder = _fetched("model", name, [*_FILES, *_OLDER])
    return folder


def data_files(name: str, patterns: list[str]) -> Path:
    """A folder with those files of the hub's data set that match: for sets that are no tables."""
    folder = _fetched("data set", name, patterns)
    if not any(p for pattern in patterns for p in folder.glob(pattern)):
        raise DataError(f"data set {name!r} has no files like {', '.join(patterns)}; a local folder works too")
    return folder


def _fetched(kind: str, name: str, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise needs("huggingface_hub", f"{kind} {name!r}") from None
    offline = not reachable()
    with explained(kind, name, offline):
        return Path(
            snapshot_download(
                name,
                repo_type="model" if kind == "model" else "dataset",
                allow_patterns=patterns,
                local_files_only=offline,
            )
        )


@contextmanager
def explained(kind: str, name: str, offline: bool) -> Iterator[None]:
    """Turns what a hub client raises into one line that says what to do."""
    from huggingface_hub import errors

    where = "a local folder works too"
    try:
        yield
    except errors.GatedRepoError:
        raise DataError(
            f"{kind} {name!r} is gated: accept its terms on its page, then log in with `hf auth login`; {where}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise DataError(f"{kind} {name!r} is not on the hub, or private: check the name or `hf auth login`") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError) as error:
        why = "the hub can't be reached and" if offline else f"the hub answered {error!s:.200}, and"
        raise DataError(f"{kind} {name!r}: {why} nothing is in its cache; {where}") from None
    except errors.HfHubHTTPError as error:
        raise DataError(f"{kind} {name!r}: the hub answered {error!s:.200}; try again later, or {where}") from None
