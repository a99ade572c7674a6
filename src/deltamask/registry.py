"""The folder is the registry: a stage's members are the modules of its package."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from deltamask.errors import unknown_name

__all__ = ["member", "members"]


@cache
def members(package: str, attribute: str) -> dict[str, Any]:
    """Each name with ``module.attribute`` for every module of ``package`` that has one, in alphabetical order."""
    folder: ModuleType = import_module(package)
    found = {}
    for name in sorted(m.name for m in iter_modules(folder.__path__)):
        module = import_module(f"{package}.{name}")
        if hasattr(module, attribute):
            found[name.replace("_", "-")] = getattr(module, attribute)
    return found


def member(kind: str, package: str, attribute: str, name: str) -> Any:
    """One member by name; a wrong name raises `ConfigError` with the nearest right one."""
    have = members(package, attribute)
    if name not in have:
        raise unknown_name(kind, name, have)
    return have[name]
