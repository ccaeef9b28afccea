# SPDX-License-Identifier: Apache-2.0
"""What a process prints, line by line as it comes, and waiting for a line of it."""

from __future__ import annotations

import subprocess
import threading


class Lines:
    """The lines of a process that was started with its output in a pipe, as text."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._source = process.stdout
        self.all: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._source:
            with self._news:
                self.all.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _found(self, text: str) -> str | None:
        return next((line for line in self.all if text in line), None)

    def within(self, text: str, seconds: float) -> str | None:
        """The first line that contains `text`; None when it has not come in that time, or the output has ended."""
        with self._news:
            self._news.wait_for(lambda: self._found(text) is not None or self._ended, seconds)
            return self._found(text)

    def expect(self, text: str, seconds: float) -> str:
        """The first line that contains `text`; fails when the output ends without it, or the time does."""
        line = self.within(text, seconds)
        assert line is not None, f"no line with {text!r} in:\n" + "\n".join(self.all)
        return line

    def end(self, seconds: float | None = None) -> None:
        """Wait until everything is read."""
        self._reader.join(seconds)
