"""A progress bar on the terminal, with a line of text below it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


class ProgressBar(Progress):
    """One task of length 1 on stderr, of which ``begun`` was done; it is erased at its end."""

    def __init__(self, title: str, begun: float = 0.0) -> None:
        self._below = ""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self.add_task(title, total=1.0)
        self.update(self._task, completed=begun)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and the text below it."""
        yield from super().get_renderables()
        if self._below:
            yield Text(self._below)

    def show(self, fraction: float, text: str) -> None:
        """Show a fraction of the work and a text."""
        self._below = text
        self.update(self._task, completed=fraction)
