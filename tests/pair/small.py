# SPDX-License-Identifier: Apache-2.0
"""The miniature that the machines' ranks serve, put where the engine would write it: smaller, and made here. An
emulated processor needs minutes to write one, and seconds for each of its layers.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.pair.machines import Machine

SEED = 0
# One layer of each kind: both attentions, a dense feed-forward and experts; no drafts and no pictures to speak of.
_SMALLER: dict[str, Any] = {
    "text_config": {
        "num_hidden_layers": 4,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "n_routed_experts": 4,
        "hc_sinkhorn_iters": 4,
        "vocab_size": 1024,
    },
    "vision_config": {"depth": 1},
}


def archive() -> bytes:
    """Return a tar archive of the directory `miniature-seed0`."""
    from sparkpair.checkpoint.miniature import write_miniature

    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as home:
        name = f"miniature-seed{SEED}"
        write_miniature(Path(home, name), seed=SEED, overrides=_SMALLER)
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(Path(home, name), name, filter=_anybodys)
    return packed.getvalue()


def give(machines: dict[str, Machine]) -> None:
    """Unpack it on every machine, in the state directory of the pair's settings."""
    packed = archive()
    for name, machine in machines.items():
        place = f"~/.local/state/sparkpair/{name}/checkpoints"
        machine.run(f"mkdir -p {place} && tar -x -C {place}", stdin=packed)


def _anybodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 1000
    entry.uname = entry.gname = ""
    return entry
