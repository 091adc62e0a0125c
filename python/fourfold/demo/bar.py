"""The demo's progress bar: tqdm's, on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class Silent:
    """Without a terminal, or without tqdm."""

    def update(self, steps: int) -> None: ...

    def write(self, line: str) -> None:
        print(line, flush=True)


class Mute(Silent):
    """For processes other than the first, which prints for all."""

    def write(self, line: str) -> None: ...


class Bar(Silent):
    def __init__(self, bar) -> None:
        self.update, self.bar = bar.update, bar

    def write(self, line: str) -> None:
        with self.bar.external_write_mode(file=sys.stdout):  # above the bar
            super().write(line)


@contextmanager
def progress(steps: int, shown: bool = True) -> Iterator[Silent]:
    """Counts finished steps and prints lines; removes the bar at the end."""
    if not shown:
        yield Mute()
        return
    if not sys.stderr.isatty() or find_spec("tqdm") is None:
        yield Silent()
        return
    from tqdm import tqdm

    with tqdm(total=steps, unit=" steps", leave=False, dynamic_ncols=True) as bar:
        yield Bar(bar)
