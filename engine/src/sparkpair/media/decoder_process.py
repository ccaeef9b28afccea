# SPDX-License-Identifier: Apache-2.0
"""The process that decodes: one file after the other from standard input, patches to standard output.

Decoders read hostile files, so they have a process of their own: with a limit on its memory, and one that its parent
can end when it takes too long. It says once that it is ready. A question is a line of JSON and the source's bytes; an
answer is a line of JSON and the patches' bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import av.logging

from sparkpair.media.data_url import decoded, from_base64
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import DECODER_BYTES, MediaLimits
from sparkpair.media.prepared import Prepared, prepare

_PR_SET_PDEATHSIG = 1

_READ: dict[str, Callable[[bytes], bytes]] = {"file": bytes, "url": decoded, "base64": from_base64}


def main() -> None:
    """Answer until there are no more questions."""
    _end_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (DECODER_BYTES, DECODER_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    av.logging.set_level(av.logging.PANIC)
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not get between the answers.
    os.dup2(2, 1)
    answers.write(b"{}\n")
    answers.flush()
    while line := questions.readline():
        _answer(answers, json.loads(line), questions)


def _end_with_parent() -> None:
    """Ask to be killed when the parent ends, however it ends; Ctrl-C is its business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit()


def _answer(answers: BinaryIO, question: dict[str, Any], questions: BinaryIO) -> None:
    try:
        found = _prepared(question, questions.read(question["size"]))
    except MediaError as error:
        fields: dict[str, Any] = {"error": str(error)}
        patches: memoryview | bytes = b""
    else:
        fields = {
            "grid": found.grid,
            "seconds": found.seconds,
            "digest": found.digest.hex(),
            "shape": found.patches.shape,
        }
        patches = found.patches.data
    answers.write(json.dumps(fields).encode() + b"\n")
    answers.write(patches)
    answers.flush()


def _prepared(question: dict[str, Any], source: bytes) -> Prepared:
    """Raises MediaError for whatever goes wrong, as it is the file that made it go wrong. A text is given up as soon as
    it has been read: it is longer than the file, and both together leave too little memory for the decoder.
    """
    name = question["kind"]
    try:
        data = _READ[question["form"]](source)
        del source
        return prepare(name, data, MediaLimits(**question["limits"]))
    except MemoryError:
        raise MediaError(f"the {name} takes too much memory to decode") from None
    except MediaError:
        raise
    except Exception as error:
        raise MediaError(f"the {name} cannot be decoded ({type(error).__name__})") from None


if __name__ == "__main__":
    main()
