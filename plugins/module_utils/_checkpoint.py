# SPDX-License-Identifier: Apache-2.0
"""What state a checkpoint directory is in, without the engine and with the standard library only.

Two kinds: the miniature, which carries a manifest with the hash of every file, and a person's own
directory, of which configuration, index and shards are looked at and nothing is ever written. A trained
miniature has no seed; beside its files stands which engine it came with, as another may bring other weights.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any

MANIFEST = "manifest.json"
ORIGIN = "engine_digest.txt"
TEXTS = ("tokenizer.json", "chat_template.jinja")
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# A header of the safetensors format is smaller than this; a larger length is a damaged file.
LARGEST_HEADER = 100_000_000


def miniature_path(state_dir: str, seed: int | None) -> str:
    """Return the directory of the miniature with this seed, or of the trained one (None): each has its own."""
    name = "miniature-trained" if seed is None else f"miniature-seed{seed}"
    return os.path.join(state_dir, "checkpoints", name)


def miniature(path: str, seed: int | None, engine: str = "") -> dict[str, Any]:
    """Return the state of the miniature in the directory `path`, which has this seed or is trained (None). A
    trained one that came with an engine of another digest than `engine` is damaged; empty takes any.

    `state` is absent, damaged or complete, `problems` lists what is wrong with which file, and `digest` is
    the manifest's digest (empty unless complete). Every file's size and SHA-256 is compared with the
    manifest.
    """
    if not os.path.isdir(path):
        return _state(path, "absent", [])
    try:
        manifest = _read_json(os.path.join(path, MANIFEST))
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        digest = str(manifest["digest"])
        found_seed = None if manifest["seed"] is None else int(manifest["seed"])
    except OSError as error:
        return _state(path, "damaged", [f"{MANIFEST} cannot be read: {error.strerror}"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _state(path, "damaged", [f"{MANIFEST} is no manifest ({type(error).__name__}: {error})"])
    problems = [] if found_seed == seed else [f"{MANIFEST} speaks of seed {found_seed}, not of {seed}"]
    if seed is None and engine and engine != origin(path):
        problems.append("it came with another engine than the one that is there now")
    for name in sorted(files):
        problem = _against_manifest(path, name, *files[name])
        if problem:
            problems.append(problem)
    return _state(path, "damaged" if problems else "complete", problems, digest)


def origin(path: str) -> str:
    """Return the digest of the engine with which the trained miniature in `path` came, empty when it is not known."""
    try:
        with open(os.path.join(path, ORIGIN), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def given(path: str, serves: bool = False) -> dict[str, Any]:
    """Return the state of a person's own checkpoint directory, in the shape of `miniature`.

    A host that `serves` the API needs the files that turn text into tokens, which say nothing of the weights.

    The digest covers the configuration, the index, and names and sizes of the shards: a file that was
    exchanged for another of the same size is not seen. A shard is complete when it is as long as its own
    header says.
    """
    if not os.path.isdir(path):
        return _state(path, "absent", [])
    problems: list[str] = []
    identity = hashlib.sha256()
    try:
        with open(os.path.join(path, CONFIG), "rb") as file:
            config = file.read()
        json.loads(config)
        identity.update(config)
    except OSError as error:
        problems.append(f"{CONFIG} cannot be read: {error.strerror}")
    except ValueError as error:
        problems.append(f"{CONFIG} is not valid JSON ({error})")
    for shard in _shards(path, identity, problems):
        try:
            size = os.stat(os.path.join(path, shard)).st_size
            wanted = safetensors_size(os.path.join(path, shard))
        except OSError as error:
            problems.append(f"{shard} cannot be read: {error.strerror}")
        except ValueError as error:
            problems.append(f"{shard} {error}")
        else:
            identity.update(f"\0{shard}\0{size}".encode())
            if size != wanted:
                problems.append(f"{shard} has {size} bytes, and its header announces {wanted}")
    for name in TEXTS if serves else ():
        try:
            with open(os.path.join(path, name), "rb") as file:
                problems += [] if file.read(1) else [f"{name} is empty"]
        except OSError as error:
            problems.append(f"{name}, which the API needs, cannot be read: {error.strerror}")
    return _state(path, "damaged" if problems else "complete", problems, identity.hexdigest())


def safetensors_size(path: str) -> int:
    """Return how many bytes a safetensors file must have by its own header. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError("is shorter than the length of its header")
        length = struct.unpack("<Q", prefix)[0]
        if length > LARGEST_HEADER:
            raise ValueError("is no safetensors file (its header would be too long)")
        text = file.read(length)
    if len(text) < length:
        raise ValueError("ends inside its header")
    try:
        header = json.loads(text)
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("is no safetensors file (its header is not what the format asks for)") from error
    return 8 + int(length) + max(ends, default=0)


def _shards(path: str, identity: Any, problems: list[str]) -> list[str]:
    """Return the shard names that the index, or the single file's name, promises; adds the index to
    `identity`.
    """
    index_path = os.path.join(path, INDEX)
    if not os.path.exists(index_path):
        if os.path.lexists(os.path.join(path, SINGLE)):
            return [SINGLE]
        problems.append(f"neither {INDEX} nor {SINGLE} is there")
        return []
    try:
        with open(index_path, "rb") as file:
            index = file.read()
        names = {str(name) for name in json.loads(index)["weight_map"].values()}
    except OSError as error:
        problems.append(f"{INDEX} cannot be read: {error.strerror}")
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{INDEX} is no index of shards ({type(error).__name__}: {error})")
        return []
    identity.update(index)
    return sorted(names)


def _against_manifest(path: str, name: str, size: int, sha256: str) -> str:
    """Return what is wrong with one file, empty when it is what the manifest says."""
    full = os.path.join(path, name)
    try:
        found = os.stat(full).st_size
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
        digest = hashlib.sha256()
        with open(full, "rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return "" if digest.hexdigest() == sha256 else f"{name} has other content than its manifest says"


def _read_json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _state(path: str, state: str, problems: list[str], digest: str = "") -> dict[str, Any]:
    return {
        "path": path,
        "state": state,
        "problems": problems,
        "digest": digest if state == "complete" else "",
    }
