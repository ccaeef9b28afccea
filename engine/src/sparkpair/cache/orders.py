# SPDX-License-Identifier: Apache-2.0
"""What rank 0 tells every rank about sequences and the pool before a step: orders, to be carried out one by one.

| Kind | What happens |
| --- | --- |
| `place` | extent `name` stands at `base` with room for `size` tokens, or has this room from now on |
| `move` | the first `rows` rows of extent `name` go to `base` |
| `copy` | the first `rows` rows of extent `source` are written to extent `name` too |
| `free` | extent `name` is forgotten |
| `start` | sequence `name` begins, empty, in extent `source` |
| `resume` | sequence `name` begins as the kept state `kept`, in extent `source`, where that state's whole blocks are |
| `release` | sequence `name` is forgotten |
| `drop` | the kept state `name` is forgotten |
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["place", "move", "copy", "free", "start", "resume", "release", "drop"]


class Order(NamedTuple):
    """One order; see the module's table. A list of the fields in a control message."""

    kind: Kind
    name: int
    base: int = 0
    size: int = 0
    rows: int = 0
    source: int = 0
    kept: int = 0
