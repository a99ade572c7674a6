"""Set codecs: a set of positions in ``range(size)`` <-> bytes. One file each; the folder is the registry.

>>> import numpy as np
>>> from deltamask import codecs
>>> payload = codecs.get("rice").encode(np.array([3, 14, 15, 92]), size=1000)
>>> codecs.get("rice").decode(payload)
array([ 3, 14, 15, 92], dtype=uint32)

A new codec is one new file in this folder that defines a ``Codec`` subclass and lists its named variants in
a module-level tuple ``CODECS``; the command line, the conformance tests and the benchmarks pick it up.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from deltamask.codecs.base import Codec
from deltamask.errors import MalformedError, TruncatedError, unknown_name

__all__ = ["Codec", "for_payload", "get", "names"]


@cache
def _registry() -> dict[str, Codec]:
    found: dict[str, Codec] = {}
    by_id: dict[int, str] = {}
    for module in sorted(m.name for m in iter_modules(__path__)):
        for codec in getattr(import_module(f"{__name__}.{module}"), "CODECS", ()):
            if codec.name in found or codec.format_id in by_id:
                raise RuntimeError(f"{module}: the name {codec.name!r} or format id {codec.format_id} is taken")
            found[codec.name] = codec
            by_id[codec.format_id] = codec.name
    return found


def names() -> list[str]:
    """The names of all codecs, sorted."""
    return sorted(_registry())


def get(name: str) -> Codec:
    """The codec of that name; a wrong name raises `ConfigError` with the nearest right one.

    ``bloom:9.5`` is the codec ``bloom`` with its parameter, bits for each key, set to 9.5.
    """
    plain, colon, value = name.partition(":")
    try:
        codec = _registry()[plain]
    except KeyError:
        raise unknown_name("codec", plain, _registry()) from None
    return codec.tuned(value) if colon else codec


def for_payload(data: bytes) -> Codec:
    """The codec that wrote ``data``, by its first byte."""
    if not data:
        raise TruncatedError("codec payload: 0 bytes, expected at least a format id")
    for codec in _registry().values():
        if codec.format_id == data[0]:
            return codec
    raise MalformedError(f"codec payload: unknown format id {data[0]}; this version knows {', '.join(names())}")
