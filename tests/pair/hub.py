# SPDX-License-Identifier: Apache-2.0
"""What the head has in its cache of weights: the pinned snapshots of TensorFold's adapter, as small as they can be.

Small, but for one file of some megabytes that no two disks have alike by chance: it is what is copied and compared.
"""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile

from tests.integration.docker.sparks import DRAFTER, MODEL
from tests.pair.machines import Machine

_TENSOR_BYTES = 8 << 20


def archive() -> bytes:
    """Return a tar archive of the cache's directory `hub`."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for repository, revision in (MODEL, DRAFTER):
            place = f"hub/models--{repository.replace('/', '--')}/snapshots/{revision}"
            for name, content in (("config.json", b"{}"), ("model.safetensors", _tensors(repository))):
                entry = tarfile.TarInfo(f"{place}/{name}")
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def give(machine: Machine) -> None:
    """Unpack them into the cache of the account on a machine."""
    place = "~/.cache/huggingface"
    machine.run(f"mkdir -p {place} && tar -x -C {place}", stdin=archive())


def _tensors(seed: str) -> bytes:
    header = json.dumps(
        {"weight": {"dtype": "U8", "shape": [_TENSOR_BYTES], "data_offsets": [0, _TENSOR_BYTES]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(_TENSOR_BYTES)
