"""Every error that DeltaMask raises on purpose. Each says where, what it got and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "BudgetError",
    "ChecksumError",
    "ConfigError",
    "ConstructionError",
    "DataError",
    "DeltaMaskError",
    "LimitError",
    "MalformedError",
    "MismatchError",
    "TruncatedError",
    "WireError",
    "unknown_name",
]


class DeltaMaskError(Exception):
    """The base of everything below; the command line turns it into one line and exit code 2."""


class ConfigError(DeltaMaskError, ValueError):
    """A setting, an argument or a name that does not fit."""


class DataError(DeltaMaskError, ValueError):
    """A data set, a checkpoint or a folder that is missing or not what it should be."""


class BudgetError(DeltaMaskError, ValueError):
    """A byte budget too small for even the emptiest payload."""


class ConstructionError(DeltaMaskError, RuntimeError):
    """A filter could not be built within its capped number of attempts."""


class WireError(DeltaMaskError, ValueError):
    """Bytes from a wire or a file that cannot be what they claim to be."""


class TruncatedError(WireError):
    """The bytes end before what they announce."""


class MalformedError(WireError):
    """A field has a value that no encoder writes."""


class LimitError(WireError):
    """A size exceeds what the receiver agreed to hold."""


class ChecksumError(WireError):
    """The bytes were changed on the way."""


class MismatchError(WireError):
    """Sound bytes for something else: another model, round, client, seed or format."""


def unknown_name(kind: str, name: str, have: Iterable[str]) -> ConfigError:
    """The error for a name that is not in a registry, with the nearest names that are."""
    names = sorted(have)
    near = get_close_matches(name, names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"{kind} {name!r} not found;{hint} have: {', '.join(names)}")
