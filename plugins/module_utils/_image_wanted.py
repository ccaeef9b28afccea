# SPDX-License-Identifier: Apache-2.0
"""Which image the ranks of a pair are to run: its name, the hash it must carry, and where it is published.

Runs on the controller, where the series of patches is. Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import _engine_tensorfold, _image_build

ByHost = Mapping[str, Mapping[str, Any]]

# The head reaches a worker by key, and never waits for somebody to type.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
PATCHES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "patches")


def bring(plan: Mapping[str, Any], settings: ByHost, probes: ByHost) -> dict[str, Any]:
    """Return what the role engine_image is to do: `wanted` of the plan, the head's place for it, and the workers.

    `settings` and `probes` are in rank order. `settled` says that every host has the image already: with the right hash
    in its label, where there is one, and with the head's content.
    """
    hosts = list(settings)
    head = hosts[0]
    images = [(probes[host].get("container") or {}).get("image") or {} for host in hosts]
    right = all(image.get("exists") and image["patches"] == plan["image"]["hash"] for image in images)
    if not plan["image"]["hash"]:
        right = all(image.get("exists") for image in images)
    return {
        **plan["image"],
        "docker_host": settings[head]["docker_host"],
        "directory": probes[head]["state_dir"],
        "network": "host",
        "workers": [
            {
                "host": entry["host"],
                "command": [] if plan["one_machine"] else [*SSH, entry["login"]],
                "docker_host": settings[entry["host"]]["docker_host"],
            }
            for entry in plan["ranks"][1:]
        ],
        "settled": right and len({image["identity"] for image in images}) == 1,
    }


def wanted(settings: Mapping[str, Any], patches: str = PATCHES) -> dict[str, Any]:
    """Return the image of effective settings.

    `name`, `hash` (what its label must say, empty for an image that nobody here makes), `series` (the directory of its
    patches, empty as well), `repository` and `digest` (where it is published, if it is), `release`, which series it
    carries, and the engine's `version`. Raises BuildError and OSError.
    """
    if settings["engine"] != "tensorfold":
        nothing = dict.fromkeys(("hash", "series", "repository", "digest", "release", "version"), "")
        return {"name": settings["image"], **nothing}
    release = _engine_tensorfold.release(settings)
    series = os.path.normpath(os.path.join(patches, "tensorfold", _engine_tensorfold.ENGINE_VERSION))
    with open(os.path.join(series, "series.yml"), encoding="utf-8") as file:
        content = yaml.safe_load(file)
    hash_ = _image_build.wanted_hash(content, series, release.name)
    return {
        "name": _engine_tensorfold.image_name(settings),
        "hash": hash_,
        "series": series,
        "repository": settings["image_repository"],
        # The digest is of the release alone; with patches of one's own the image is another one.
        "digest": release.digest if hash_ == release.patches else "",
        "release": release.name,
        "version": _engine_tensorfold.ENGINE_VERSION,
    }
