# SPDX-License-Identifier: Apache-2.0
"""The forms that are in use: tried apart from this process, then compiled here off the event loop, and kept.

What was refused is remembered too, so that asking for it again costs nothing. A form that many ask for at once is
compiled once. The compiler's library and the process for trials are loaded with the first form that needs them, or
before it by `warm_up`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.grammar.form import Form, FormRefused, FormsBusy, FormsUnavailable
from sparkpair.request import Constraint

if TYPE_CHECKING:
    from sparkpair.grammar.forms import Compiled, Forms

MOST_AT_ONCE = 4
MOST_WAITING = 32
KEPT_BYTES = 256 * 2**20
KEPT_REFUSALS = 256
LONGEST_WAIT_S = 120.0
NICE = 10

TOO_MUCH = "cannot be compiled with the time and memory that there is for it; make it simpler"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A form that can be followed. `unkept` is what only a finished answer can be checked for."""

    form: Form
    compiled: Compiled
    unkept: tuple[str, ...] = ()

    @property
    def constraint(self) -> Constraint:
        """What the engine follows."""
        return self.compiled

    def ending_with(self, ends: Sequence[int]) -> Constraint:
        """The same with other ids behind it, after which the reply is free."""
        return self.compiled.ending_with(ends)


class FormLibrary:
    """The forms of one server. Used from its event loop alone."""

    def __init__(self, directory: Path, checkpoint: CheckpointText, most_cpu_s: int) -> None:
        """A trial may take `most_cpu_s` seconds of processor time."""
        self._directory = directory
        self._checkpoint = checkpoint
        self._most_cpu_s = most_cpu_s
        self._closed = False
        self._forms: asyncio.Task[Forms] | None = None
        self._nursery: _Nursery | None = None
        self._kept: collections.OrderedDict[Form, Found] = collections.OrderedDict()
        self._refused: collections.OrderedDict[Form, str] = collections.OrderedDict()
        self._underway: dict[Form, asyncio.Task[Found]] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def find(self, form: Form) -> Found:
        """The form, compiled. Raises FormRefused, FormsBusy or FormsUnavailable."""
        if found := self._kept.get(form):
            self._kept.move_to_end(form)
            return found
        if form in self._refused:
            raise FormRefused(self._refused[form])
        task = self._underway.get(form)
        if task is None:
            if len(self._underway) >= MOST_AT_ONCE + MOST_WAITING:
                raise FormsBusy
            task = self._underway[form] = asyncio.create_task(self._compile(form))
            task.add_done_callback(lambda done: self._done(form, done))
        # A client that leaves must not take the form from the others that wait for it.
        return await asyncio.shield(task)

    async def problem(self, form: Form, answer: str) -> str | None:
        """What is wrong with a finished answer; None when nothing is. Raises FormsUnavailable."""
        found = await self._ask({"schema": form.text, "answer": answer})
        return str(found["problem"]) if found.get("problem") else None if found else "it takes too long to check"

    def warm_up(self) -> None:
        """Have the compiler's library and the process for trials loaded before the first form needs them."""
        if not self._closed and _installed():
            self._load()
            with contextlib.suppress(OSError):
                self._ready_nursery()

    def close(self) -> None:
        """End the process for trials, and with it what is underway there."""
        self._closed = True
        self._end_nursery()

    def _end_nursery(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _load(self) -> asyncio.Task[Forms]:
        if self._forms is None:
            self._forms = asyncio.create_task(asyncio.to_thread(_load, self._checkpoint))
        return self._forms

    def _ready_nursery(self) -> _Nursery:
        """Raises OSError when no process can be started."""
        if self._nursery is None or self._nursery.ended:
            self._end_nursery()
            self._nursery = _Nursery(self._directory, self._most_cpu_s)
        return self._nursery

    async def _compile(self, form: Form) -> Found:
        if not _installed():
            raise FormsUnavailable("the package xgrammar is not installed beside the engine, and forms need it")
        loading = self._load()
        async with self._room:
            text, unkept = form.text, ()
            if not form.harmless:
                tried = await self._ask({"kind": form.kind, "text": form.text})
                if "text" not in tried:
                    raise FormRefused(tried.get("refused", TOO_MUCH))
                text, unkept = tried["text"], tuple(tried["unkept"])
            forms = await asyncio.shield(loading)
            return Found(form, await asyncio.to_thread(forms.compile, form.kind, text), unkept)

    def _done(self, form: Form, task: asyncio.Task[Found]) -> None:
        del self._underway[form]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._kept[form] = task.result()
            while sum(found.compiled.size for found in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        elif isinstance(error, FormRefused):
            self._refused[form] = str(error)
            if len(self._refused) > KEPT_REFUSALS:
                self._refused.popitem(last=False)

    async def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """What a trial answers; nothing when it was ended."""
        if self._closed:
            raise FormsUnavailable("the server is stopping")
        try:
            nursery = self._ready_nursery()
            async with asyncio.timeout(LONGEST_WAIT_S):
                answer = await nursery.ask(json.dumps(job).encode())
        except (OSError, TimeoutError) as error:
            raise FormsUnavailable("the process that tries forms does not answer") from error
        if not answer and nursery.ended:
            raise FormsUnavailable("the process that tries forms has ended")
        found: dict[str, Any] = json.loads(answer) if answer else {}
        return found


def _installed() -> bool:
    """Say whether the compiler's library is there; an engine in an image of somebody's own may be without it."""
    return importlib.util.find_spec("xgrammar") is not None


def _load(checkpoint: CheckpointText) -> Forms:
    """Loaded late, because it takes a second for which no server should wait."""
    from sparkpair.grammar.forms import Forms

    return Forms(checkpoint)


class _Nursery:
    """The process for trials; see nursery.py."""

    def __init__(self, directory: Path, most_cpu_s: int) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "sparkpair.grammar.nursery", str(directory), str(most_cpu_s)]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        # From its first moment, as requests come while it loads.
        os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    async def ask(self, job: bytes) -> bytes:
        """The answer of a child. Raises OSError when there is no process to have one."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"j"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(job)
            writer.write_eof()
            return await reader.read()
        finally:
            writer.close()

    def close(self) -> None:
        """End it; it has nothing to lose."""
        self._control.close()
        self._process.kill()
        self._process.wait()
