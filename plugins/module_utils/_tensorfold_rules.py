# SPDX-License-Identifier: Apache-2.0
"""Rules between the settings of the engine TensorFold: what its releases, its drafters and its licences allow.

Pure. Each rule yields (setting, problem) pairs; `_rules.py` adds where a setting was set. Private to the collection,
may change at any time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._licences import DFLASH2
from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_releases import ABLIT_ID, at_least
from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_settings import BY_SETTING, understood

Problems = Iterator["tuple[str, str]"]

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")

# What only counts beside another setting: said, not refused, because people prepare settings and switch one.
_NEEDS = {
    "nfs_path": ("worker_weights", "nfs"),
    "nfs_server": ("worker_weights", "nfs"),
    "nfs_volume": ("worker_weights", "nfs"),
    "nfs_export": ("worker_weights", "nfs"),
    "drafter_id": ("drafter", "dflash2"),
    "drafter_revision": ("drafter", "dflash2"),
    "draft_policy": ("drafter", "dflash2"),
    "copy_max": ("copy_drafts", True),
    "copy_code": ("copy_drafts", True),
    "stream_smooth_ms": ("stream_smooth", True),
    "roce_max_kb": ("comm", "roce"),
    "roce_wait_s": ("comm", "roce"),
    "dispram_socket_dir": ("display_kv_backend", "dispram"),
    "dispram_client_dir": ("display_kv_backend", "dispram"),
}
# How long a release waits that tells late from lost.
_PATIENT_S = 300
_SPILL = ("spill_dir", "spill_highwater", "spill_min_tokens", "spill_min_free_gib", "spill_flush_s")


def check(settings: Mapping[str, Any], given: Collection[str], world_size: int) -> Problems:
    """Yield what is wrong with the settings of the whole pair; `given` are the short names somebody set."""
    yield from _release(settings, given, world_size)
    yield from _streams(settings)
    yield from _licence(settings)
    yield from _checkpoint(settings)
    yield from _pictures(settings)
    yield from _display(settings)
    yield from _paths(settings)
    yield from _link(settings, world_size)
    if settings["runtime"] != "container":
        yield "runtime", "process cannot run the engine tensorfold; allowed is container"


def differing(settings: Sequence[Mapping[str, Any]]) -> Problems:
    """Yield what hosts may set differently elsewhere and must not here: ranks compare it before they load."""
    reserves = sorted({one["memory_reserve_gib"] for one in settings})
    if len(reserves) > 1:
        found = " and ".join(f"{value:g}" for value in reserves)
        yield "memory_reserve_gib", f"ranks of tensorfold need the same value, but hosts have {found}"


def notes(settings: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """Return a sentence for every setting that was set and has no effect beside the others, and for every fault of the
    chosen release that ends both ranks and was mended in a later one.
    """
    needs = [(name, other, value) for name, (other, value) in _NEEDS.items() if settings[other] != value]
    result = [
        f"sparkpair_{name} has no effect while sparkpair_{other} is not {_word(value)}"
        for name, other, value in needs
        if name in given
    ]
    if not settings["spill_gib"]:
        result += [f"sparkpair_{name} has no effect while sparkpair_spill_gib is 0" for name in _SPILL if name in given]
    return result + _known_faults(settings)


def _known_faults(settings: Mapping[str, Any]) -> list[str]:
    release, wait = settings["release"], settings["roce_wait_s"]
    result = []
    if settings["comm"] == "roce" and not at_least(release, "v1.6") and wait < _PATIENT_S:
        result.append(
            f"release {release} takes a rank that is {wait} s late for lost, upon which both end; "
            f"sparkpair_roce_wait_s: {_PATIENT_S} is what releases from v1.6 on wait"
        )
    if not at_least(release, "v1.8"):
        result.append(
            f"release {release} copies all kept prompts before it drops one, so that a new conversation after a long "
            "one may take the memory of both machines; v1.8 has mended that, and before it only a larger "
            "sparkpair_memory_reserve_gib or fewer sparkpair_cache_entries help"
        )
    return result


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _release(settings: Mapping[str, Any], given: Collection[str], world_size: int) -> Problems:
    release = settings["release"]
    for name in given:
        if not understood(name, release):
            since = BY_SETTING[name].since
            yield name, f"release {release} does not know it; it came with {since} (sparkpair_release)"
    if settings["parallel"] > 4 and not at_least(release, "v1.5"):
        yield "parallel", f"release {release} decodes at most 4 requests at once; 8 came with v1.5 (sparkpair_release)"
    most = 3 if at_least(release, "v1.4") else 2
    if not 2 <= world_size <= most:
        allowed = "2 or 3" if most == 3 else "2; 3 came with v1.4 (sparkpair_release)"
        hosts = f"{world_size} host{'s' if world_size != 1 else ''}"
        yield "tp", f"release {release} cannot split the model over {hosts}; allowed is {allowed}"


def _streams(settings: Mapping[str, Any]) -> Problems:
    if settings["parallel"] > 1 and settings["drafter"] != "dflash2":
        found = f"{settings['parallel']} requests at once need the drafter dflash2, and sparkpair_drafter is mtp"
        yield "parallel", f"{found}; allowed with it is 1"


def _licence(settings: Mapping[str, Any]) -> Problems:
    if settings["purpose"] == "commercial" and settings["drafter"] == "dflash2":
        terms = f"DFlash2 is licensed {DFLASH2.licence}, for non-commercial use only"
        yield "drafter", f"{terms}, and sparkpair_purpose is commercial; use mtp, or get a licence ({DFLASH2.contact})"


def _checkpoint(settings: Mapping[str, Any]) -> Problems:
    if settings["ablit"] and settings["model_id"] != ABLIT_ID:
        yield "model_id", f"sparkpair_ablit asks for {ABLIT_ID}, and this is {settings['model_id']}; leave one out"
    if settings["model_id"] == ABLIT_ID and not settings["hf_token_file"]:
        name = "ablit" if settings["ablit"] else "model_id"
        yield name, "the gated weights need a token; name the file on the head that holds it in sparkpair_hf_token_file"
    for name in ("model_id", "drafter_id"):
        if not _REPOSITORY.fullmatch(settings[name]):
            yield name, f"{settings[name]} is no repository; write ORGANISATION/NAME"
    for name in ("model_revision", "drafter_revision"):
        if settings[name] and not _COMMIT.fullmatch(settings[name]):
            yield name, f"{settings[name]} is no commit of 40 hex digits; empty takes what the Hub calls main, once"


def _pictures(settings: Mapping[str, Any]) -> Problems:
    if settings["vision_urls"] and not settings["vision"]:
        yield "vision_urls", "pictures by URL need sparkpair_vision, which is off"
    for one, all_ in (("image_tokens", "request_image_tokens"), ("video_tokens", "request_video_tokens")):
        if settings[one] > settings[all_]:
            yield one, f"{settings[one]} is more than the {settings[all_]} of sparkpair_{all_}, which all of them share"


def _link(settings: Mapping[str, Any], world_size: int) -> Problems:
    if settings["comm"] == "roce" and settings["link"] in ("tcp", "loopback"):
        yield "comm", f"roce needs RDMA, and sparkpair_link is {settings['link']}; use nccl"
    if settings["socket_netdev"] and world_size == 2:
        yield "socket_netdev", "two hosts meet on their link; this is for three of them"


def _display(settings: Mapping[str, Any]) -> Problems:
    if settings["display_kv_mib"] and settings["parallel"] == 1:
        yield "display_kv_mib", "it joins the pool that several requests share, and sparkpair_parallel is 1"
    for name in ("dispram_socket_dir", "dispram_client_dir"):
        if settings["display_kv_mib"] and settings["display_kv_backend"] == "dispram" and not settings[name]:
            yield name, "it is empty, and sparkpair_display_kv_backend dispram needs the host's directory"


def _paths(settings: Mapping[str, Any]) -> Problems:
    for name in ("spill_dir", "hf_cache", "kernel_cache", "nfs_path", "dispram_socket_dir", "dispram_client_dir"):
        path = settings[name]
        if path and not path.startswith("/") and path != "~" and not path.startswith("~/"):
            yield name, f"{path} is relative; a mount needs an absolute path, or one that begins with ~/"
