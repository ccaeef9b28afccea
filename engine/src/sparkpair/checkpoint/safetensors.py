# SPDX-License-Identifier: Apache-2.0
"""A checkpoint directory of .safetensors files: headers checked up front, tensors and slices read lazily.

Every file is checked against its own header and against the index before anything is loaded, so that a missing or
truncated file is named in the first second and not after minutes of loading.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from sparkpair.errors import UserError

if TYPE_CHECKING:
    import torch

INDEX_NAME = "model.safetensors.index.json"

# Sizes of one element, by the format's own dtype words.
_ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

# Up to this many bytes of weights are hashed whole; larger checkpoints by header, size and both ends of each file.
_WHOLE_HASH_LIMIT = 256 * 2**20
_END_BYTES = 2**20
_HEADER_LIMIT = 100 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: its file, its dtype word and its shape."""

    path: pathlib.Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def element_bytes(self) -> int:
        """Stored size of one element in bytes."""
        return _ELEMENT_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Stored size in bytes."""
        return math.prod(self.shape) * self.element_bytes


class Checkpoint:
    """The tensors of a checkpoint directory by name.

    Raises UserError when a file is missing, truncated or not a safetensors file, or when the index names a tensor that
    its file does not hold.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.entries: dict[str, TensorEntry] = {}
        files = self._files()
        for path in files:
            for name, entry in _read_header(path).items():
                if name in self.entries:
                    raise UserError(f"{path}: tensor {name} is also in {self.entries[name].path.name}")
                self.entries[name] = entry
        self.files = files
        self._check_index()

    def _index(self) -> dict[str, str] | None:
        path = self.directory / INDEX_NAME
        if not path.exists():
            return None
        try:
            mapping = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): str(file) for name, file in mapping.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a checkpoint index: {error!r}. Download it again.") from None

    def _files(self) -> list[pathlib.Path]:
        mapping = self._index()
        if mapping is None:
            files = sorted(self.directory.glob("*.safetensors"))
            if not files:
                raise UserError(f"{self.directory} holds no .safetensors file. Download the checkpoint again.")
            return files
        files = [self.directory / name for name in sorted(set(mapping.values()))]
        missing = [path.name for path in files if not path.exists()]
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise UserError(
                f"{self.directory}: {len(missing)} of {len(files)} weight files are missing: {shown}. "
                "Download or copy them again; what is there is kept."
            )
        return files

    def _check_index(self) -> None:
        for name, file in (self._index() or {}).items():
            entry = self.entries.get(name)
            if entry is None or entry.path.name != file:
                raise UserError(f"{self.directory / file} does not hold {name}, which {INDEX_NAME} places there")

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str) -> TensorEntry:
        """The entry of a tensor. Raises UserError when the checkpoint lacks it."""
        try:
            return self.entries[name]
        except KeyError:
            raise UserError(
                f"{self.directory}: tensor {name} is missing. The checkpoint does not match its config.json."
            ) from None

    def read(self, name: str, parts: Sequence[slice] | None = None) -> torch.Tensor:
        """A tensor, or the part of it that `parts` (a slice an axis) names; only that is read. CPU, stored dtype."""
        entry = self.entry(name)
        handle = _open(entry.path)
        if parts is None or all(part == slice(0, width) for part, width in zip(parts, entry.shape, strict=True)):
            tensor: torch.Tensor = handle.get_tensor(name)
            return tensor
        sliced: torch.Tensor = handle.get_slice(name)[tuple(parts)]
        return sliced

    def digest(self) -> str:
        """SHA-256 (hex) that two ranks compare: configuration, headers and sizes, and contents as far as affordable."""
        digest = hashlib.sha256((self.directory / "config.json").read_bytes())
        whole = sum(path.stat().st_size for path in self.files) <= _WHOLE_HASH_LIMIT
        for path in self.files:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                if whole:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                    continue
                header = int.from_bytes(file.read(8), "little")
                digest.update(file.read(header + _END_BYTES))
                file.seek(max(0, size - _END_BYTES))
                digest.update(file.read())
        return digest.hexdigest()


@functools.lru_cache(maxsize=256)
def _open(path: pathlib.Path) -> Any:
    """An open, memory-mapped file; one per path for the life of the process."""
    return safe_open(str(path), framework="pt", device="cpu")


def _read_header(path: pathlib.Path) -> dict[str, TensorEntry]:
    """Entries of one file, after checking that the file is as long as its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise UserError(
                    f"{path} is truncated or not a safetensors file: {size} bytes, header of {length} bytes. "
                    "Download or copy this file again."
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path} has a damaged header. Download or copy this file again.") from None
    entries: dict[str, TensorEntry] = {}
    end = 0
    try:
        for name, fields in header.items():
            if name == "__metadata__":
                continue
            entry = TensorEntry(path, str(fields["dtype"]), tuple(int(width) for width in fields["shape"]))
            start, stop = fields["data_offsets"]
            if stop - start != entry.nbytes:
                raise ValueError
            entries[name] = entry
            end = max(end, stop)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path} has a damaged header. Download or copy this file again.") from None
    if size != 8 + length + end:
        raise UserError(
            f"{path} is {size} bytes long, its header says {8 + length + end}: the file is "
            f"{'truncated' if size < 8 + length + end else 'too long'}. Download or copy this file again."
        )
    return entries
