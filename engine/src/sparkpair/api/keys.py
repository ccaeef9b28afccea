# SPDX-License-Identifier: Apache-2.0
"""API keys: where they come from, and which one a request carries. Only their digests are kept.

A key has a label, which is what logs and metrics may name. The key file is read again when it changes; while what it
holds is unusable no key is accepted at all, so that a slip in a rotation never leaves a withdrawn key working.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sparkpair.errors import UserError

logger = logging.getLogger(__name__)

ENVIRONMENT = "SPARKPAIR_API_KEY"

RECHECK_S = 1.0
"""How often the key file is looked at, at most."""

MOST_BYTES = 2**20
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]{1,512}")

Digests = dict[str, bytes]
"""SHA-256 digests of keys by label."""

Stamp = tuple[int, int, int, int]


class KeysUnavailable(Exception):
    """The key file cannot be used at the moment."""


class KeyRing:
    """The keys that are accepted. Without any source everything is open."""

    def __init__(
        self,
        given: Sequence[str] = (),
        environment: str = "",
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`given` come from the command line, `environment` is a comma-separated list. Raises UserError, which never
        quotes a key.
        """
        listed = [key.strip() for key in environment.split(",") if key.strip()]
        self._fixed = {
            **_digests(given, "cli", "--api-key"),
            **_digests(listed, "env", ENVIRONMENT),
        }
        self._file = file
        self._clock = clock
        self._from_file: Digests | None = {}
        self._stamp: Stamp | None = None
        self._checked = clock()
        if file is not None:
            try:
                self._stamp, self._from_file = read_key_file(file)
            except ValueError as error:
                raise UserError(f"--api-key-file {file}: {error}") from None
        self.required = bool(self._fixed) or file is not None

    def label_of(self, candidates: Iterable[bytes]) -> str | None:
        """The label of the first candidate that is a key, None if none is. Raises KeysUnavailable.

        Every candidate is compared with every digest, in a time that does not depend on either.
        """
        self._reread()
        if self._from_file is None:
            raise KeysUnavailable
        found = None
        for candidate in candidates:
            digest = hashlib.sha256(candidate).digest()
            for label, known in (*self._fixed.items(), *self._from_file.items()):
                if hmac.compare_digest(digest, known) and found is None:
                    found = label
        return found

    def _reread(self) -> None:
        now = self._clock()
        if self._file is None or now - self._checked < RECHECK_S:
            return
        self._checked = now
        if self._from_file is not None and _stamp_of(self._file) == self._stamp:
            return
        was_usable = self._from_file is not None
        try:
            self._stamp, self._from_file = read_key_file(self._file)
            logger.warning("%s: read again, %d key(s)", self._file, len(self._from_file))
        except ValueError as error:
            self._from_file = None
            if was_usable:
                logger.error("%s: %s; no key is accepted until it is a valid key file again", self._file, error)


def _digests(keys: Sequence[str], source: str, flag: str) -> Digests:
    digests = {}
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):
            raise UserError(f"{flag}: key {number} must be 1 to 512 visible ASCII characters without blanks")
        digests[f"{source}-{number}"] = hashlib.sha256(key.encode()).digest()
    return digests


def _stamp_of(path: Path) -> Stamp | None:
    """What changes when a file is written or replaced; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe in the file's place must not hold the server."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_key_file(path: Path) -> tuple[Stamp, Digests]:
    """A key file's stamp and keys. Raises ValueError saying what is wrong and what to do, without quoting the file."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("is not a regular file")
            if found.st_mode & FOR_OTHERS:
                raise ValueError(f"has mode {stat.S_IMODE(found.st_mode):04o}, open to others; run `chmod 600` on it")
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror}); it must be a file of the engine's user") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES} bytes; keep one key a line")
    stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
    return stamp, parse_keys(content)


def parse_keys(content: bytes) -> Digests:
    """Keys of a file: one a line, as `KEY` or `LABEL: KEY`; empty lines and lines from `#` are left out.

    A key without a label is called `file-N` after its place. Raises ValueError naming the line.
    """
    digests: Digests = {}
    number = 0
    for line, raw in enumerate(content.splitlines(), 1):
        text = raw.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        number += 1
        label, colon, key = (part.strip() for part in text.partition(":"))
        if not colon:
            label, key = f"file-{number}", text
        if not _LABEL.fullmatch(label):
            raise ValueError(f"line {line}: a label is 1 to 64 letters, digits, dots, dashes and underscores")
        if not _KEY.fullmatch(key):
            raise ValueError(f"line {line}: a key is 1 to 512 visible ASCII characters without blanks")
        if label in digests:
            raise ValueError(f"line {line}: a second key with the label {label}")
        digests[label] = hashlib.sha256(key.encode()).digest()
    if not digests:
        raise ValueError("has no key; write one a line, as KEY or LABEL: KEY")
    return digests
