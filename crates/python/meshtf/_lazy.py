"""Modules that are imported when they are first used: importing meshtf takes a few milliseconds, and numpy a hundred."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lazy:
    """A module of that name."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        from importlib import import_module

        value = getattr(import_module(self.__dict__["_name"]), attribute)
        # The next access finds it here.
        self.__dict__[attribute] = value
        return value


asyncio: Any = Lazy("asyncio")
base64: Any = Lazy("base64")
fnmatch: Any = Lazy("fnmatch")
html: Any = Lazy("html")
json: Any = Lazy("json")
math: Any = Lazy("math")
pictures: Any = Lazy("meshtf._pictures")
np: Any = Lazy("numpy")
tempfile: Any = Lazy("tempfile")
