# SPDX-License-Identifier: Apache-2.0
"""A process in which forms are tried: `python -m sparkpair.grammar.nursery CHECKPOINT SECONDS`, its input one end of a
socket.

What a client sends may make the compiler run for hours, take all memory or crash. So every trial is a child of this
process, which has everything loaded and does nothing but fork, and a child may take so many SECONDS of processor time,
so much memory, and no more. The system ends it otherwise, and nobody else notices.

Over its input it receives sockets, one a job; a child reads one JSON object to its end and answers with another. A
child that was ended answers nothing. This process ends when the other end of its input is closed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy

from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.grammar.form import FormRefused, Kind
from sparkpair.grammar.forms import Compiled, FormFailed, Forms
from sparkpair.grammar.schema import problem, review
from sparkpair.request import Logits

MOST_WALL_S = 90
MOST_MEMORY = 2 * 2**30
"""What a child may take besides: time by the clock, and bytes beyond what it begins with."""

WALKS = 3
WALK_TOKENS = 48
SLOWEST_TOKEN_S = 0.02
"""A compiled form is followed for a while at random; processor time a token beyond which it would hold everybody up."""


def main() -> int:
    """Fork a child for every socket that comes, until no more can come."""
    control = socket.socket(fileno=0)
    forms, most_cpu_s = Forms(CheckpointText.load(Path(sys.argv[1]))), int(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a child ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started this process ends it
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return 0
        if os.fork() == 0:
            _be_a_child(control, descriptors[0], forms, most_cpu_s)
        os.close(descriptors[0])


def _be_a_child(control: socket.socket, descriptor: int, forms: Forms, most_cpu_s: int) -> None:
    """Do one job and end, whatever happens."""
    try:
        control.close()
        _limit(most_cpu_s)
        with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as asked:
            connection.sendall(json.dumps(answer(json.load(asked), forms)).encode())
    finally:
        os._exit(0)


def _limit(most_cpu_s: int) -> None:
    status = Path("/proc/self/status").read_text()
    size = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, MOST_WALL_S)
    # The compiler's warnings are about what is dealt with here.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def answer(job: dict[str, Any], forms: Forms) -> dict[str, Any]:
    """What comes of a job: `schema` and `answer`: `problem`; `kind` and `text`: the `text` to compile and what of it is
    `unkept`, or why it is `refused`.
    """
    if "answer" in job:
        return {"problem": problem(job["schema"], job["answer"])}
    try:
        return try_form(job["kind"], job["text"], forms)
    except FormRefused as refusal:
        return {"refused": str(refusal)}
    except (MemoryError, RecursionError):
        return {}


def try_form(kind: Kind, text: str, forms: Forms) -> dict[str, Any]:
    """Compile a form and follow it for a while. Raises FormRefused."""
    unkept: tuple[str, ...] = ()
    if kind == "json_schema":
        reviewed = review(text)
        text, unkept = reviewed.text, reviewed.unkept
    compiled = forms.compile(kind, text)
    choose = random.Random(1)
    for _ in range(WALKS):
        _walk(compiled, forms.vocab_size, choose)
    return {"text": text, "unkept": unkept}


def _walk(compiled: Compiled, vocab_size: int, choose: random.Random) -> None:
    matcher = compiled.matcher()
    logits: Logits = numpy.zeros(vocab_size, numpy.float32)
    started = time.thread_time()
    try:
        for count in range(1, WALK_TOKENS + 1):
            allowed = numpy.flatnonzero(numpy.isfinite(matcher.mask(logits)))
            matcher.accept(int(allowed[choose.randrange(len(allowed))]))
            if time.thread_time() - started > count * SLOWEST_TOKEN_S + SLOWEST_TOKEN_S * 5:
                raise FormRefused("takes too long to follow; make it simpler")
            if len(allowed) == vocab_size:
                return
    except FormFailed as failure:
        raise FormRefused(str(failure)) from None


if __name__ == "__main__":
    sys.exit(main())
