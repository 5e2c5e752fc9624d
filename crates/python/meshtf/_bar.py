"""A bar of steps for terminals and notebooks, where the package tqdm is not installed: it has tqdm's methods that are used."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds between two pictures of the bar, and between two lines where a line cannot be written over.
_OFTEN, _SELDOM = 0.1, 10.0
_WIDTH = 20


class Bar:
    """The steps that are done, of how many, their rate, the time left, and the last values."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done, self._values = total, 0, ""
        self._began = self._shown = time.monotonic()
        # A notebook shows the last line that ends in a carriage return, too.
        self._over = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._width = 0

    def update(self, count: int) -> None:
        """Adds steps, and shows the bar if it is time."""
        self._done += count
        if time.monotonic() - self._shown >= (_OFTEN if self._over else _SELDOM):
            self._show()

    def set_postfix(self, values: Mapping[str, float], refresh: bool = True) -> None:
        """Shows values after the bar, with the next picture of it."""
        self._values = "".join(f"  {name} {value:.5g}" for name, value in values.items())

    def close(self) -> None:
        """Shows the bar for the last time."""
        self._show()
        if self._over:
            print(file=sys.stderr)

    def _show(self) -> None:
        self._shown = time.monotonic()
        line = self.line(self._shown - self._began)
        self._width = max(self._width, len(line))
        print(f"\r{line:<{self._width}}" if self._over else line, end="" if self._over else "\n", file=sys.stderr, flush=True)

    def line(self, seconds: float) -> str:
        """The bar after so many seconds."""
        rate = self._done / seconds if seconds > 0 else 0.0
        if self._total is None:
            return f"{self._done} steps, {rate:.4g} steps/s{self._values}"
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        bar = "#" * int(share * _WIDTH)
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate and self._done < self._total else ""
        return f"{bar:.<{_WIDTH}} {self._done}/{self._total} steps, {rate:.4g} steps/s{left}{self._values}"
