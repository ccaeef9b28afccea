# SPDX-License-Identifier: Apache-2.0
"""Which settings the engine TensorFold understands: the recipe's name of each, what it becomes, and since when.

The one table behind a rank's environment, the refusal of settings that a release does not know, and the table of
names in docs/settings.md. Pure; private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_releases import FIRST, at_least

Render = Callable[[Any], str]


def number(value: Any) -> str:
    """Return a number the way a person writes it: 12.5, 0, 1048576."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def switch(value: Any) -> str:
    """Return 1 or 0 for a truth value."""
    return "1" if value else "0"


def or_empty(value: Any) -> str:
    """Return a number, or nothing where none was set."""
    return "" if value is None else number(value)


def _when_on(text: str) -> Render:
    return lambda value: text if value else "0"


@dataclass(frozen=True)
class Variable:
    """An environment variable of every rank.

    `exported` is the release since which a rank always carries it; before, and with None always, it is left out
    while its value is `engine_default`, which is what the engine does without it.
    """

    name: str
    render: Render = str
    exported: str | None = FIRST
    engine_default: Any = None


@dataclass(frozen=True)
class Row:
    """One setting: our name without the prefix, the recipe's, and the first release that understands it.

    It becomes environment `variables`, or else what `becomes` says in words (arguments, mounts).
    """

    setting: str
    recipe: str
    since: str = FIRST
    variables: tuple[Variable, ...] = ()
    becomes: str = ""

    def described(self) -> str:
        """Return what the setting becomes, for the table of names."""
        return ", ".join(f"`{variable.name}`" for variable in self.variables) or self.becomes


def _same(setting: str, variable: str, render: Render, since: str = FIRST) -> Row:
    """Return a row of an engine switch that the recipe passes on under its own name."""
    return Row(setting, variable, since, (Variable(variable, render, since),))


def _quiet(setting: str, variable: str, render: Render, engine_default: Any, since: str = FIRST) -> Row:
    """Return a row of an engine switch that a rank carries only when it is not what the engine does anyway."""
    return Row(setting, variable, since, (Variable(variable, render, None, engine_default),))


def _env(setting: str, recipe: str, variable: str, render: Render = str, since: str = FIRST) -> Row:
    """Return a row of a setting that becomes one variable which every rank carries."""
    return Row(setting, recipe, since, (Variable(variable, render, since),))


ROWS: tuple[Row, ...] = (
    # -- what is deployed
    Row("model_id", "MODEL_ID", becomes="the model's snapshot path"),
    Row("model_revision", "MODEL_REVISION", becomes="the model's snapshot path"),
    Row("drafter_id", "DFLASH2_ID", becomes="`--drafter`"),
    Row("drafter_revision", "DFLASH2_REVISION", becomes="`--drafter`"),
    Row("ablit", "ABLIT", "v1.7", becomes="the model's snapshot path"),
    Row("hf_token_file", "HF_TOKEN", becomes="downloads only, never a rank"),
    Row("hf_cache", "HF_CACHE, WORKER_HF_CACHE", becomes="mount `/root/.cache/huggingface`"),
    Row("hub_endpoint", "(HF_ENDPOINT)", becomes="downloads only"),
    Row("hub_command", "(`hf`, else the image)", becomes="the program that downloads"),
    Row("verify", "(always by size)", becomes="verification of the weights"),
    _env("hub_offline", "HF_HUB_OFFLINE", "HF_HUB_OFFLINE", switch),
    Row("worker_weights", "WORKER_WEIGHTS", becomes="mount `/root/.cache/huggingface` of the other ranks"),
    Row("nfs_path", "NFS_PATH", becomes="device of the worker's volume"),
    Row("nfs_server", "NFS_SERVER", becomes="address in the worker's volume"),
    Row("nfs_export", "(by hand)", becomes="`/etc/exports.d/sparkpair.exports` on the head"),
    Row("nfs_volume", "NFS_VOLUME", becomes="name of the worker's volume"),
    Row("kernel_cache", "KERNEL_CACHE", becomes="mount `/cache`"),
    Row("download_free_gb", "MIN_FREE_GB", becomes="disk check"),
    Row("image_free_gb", "IMAGE_FREE_GB", becomes="disk check"),
    Row("image", "IMAGE", becomes="image of the container"),
    Row("image_repository", "GHCR_IMAGE", becomes="where the image is pulled from"),
    Row("publish_token_file", "GHCR_TOKEN", becomes="the registry, never a command line"),
    Row("publish_user", "GHCR_USER", becomes="the registry"),
    Row("container_name", "CONTAINER_NAME", becomes="name of the container"),
    # -- link
    Row("fabric_address", "FABRIC_PEER, MASTER_ADDR", becomes="link detection"),
    Row("master_port", "MASTER_PORT", becomes="`--master-port`"),
    Row("tp", "TP", becomes="`--tp`"),
    Row("socket_netdev", "SOCKET_IFNAME", "v1.4", becomes="`NCCL_SOCKET_IFNAME`"),
    Row("link", "(found by the recipe)", becomes="link detection"),
    Row("rails", "NCCL_RAILS", becomes="length of `NCCL_IB_HCA`"),
    Row("nccl_channels", "NCCL_CHANNELS", becomes="`NCCL_MIN_NCHANNELS`, `NCCL_MAX_NCHANNELS`"),
    Row("nccl_debug", "NCCL_DEBUG", becomes="`NCCL_DEBUG`"),
    _env("comm", "COMM", "TF_GLM_COMM"),
    _same("roce_max_kb", "TF_ROCE_MAX_KB", number),
    Row("roce_wait_s", "TF_ROCE_WAIT_S", variables=(Variable("TF_ROCE_WAIT_S", number, "v1.6", 20),)),
    # -- API
    Row("served_name", "SERVED_NAME", becomes="`--name` (rank 0)"),
    Row("host", "HOST", becomes="`--host` (rank 0)"),
    Row("port", "PORT", becomes="`--port` (rank 0)"),
    Row("max_tokens", "MAX_TOKENS", becomes="`--max-tokens`"),
    Row("thinking", "THINKING", becomes="`--thinking` or `--no-thinking`"),
    Row("max_queued", "MAX_QUEUED", "v1.8", (Variable("TF_GLM_MAX_QUEUED", or_empty, "v1.8"),)),
    _env("stream_smooth", "STREAM_SMOOTH", "TF_GLM_STREAM_SMOOTH", switch, "v1.4"),
    _env("stream_smooth_ms", "STREAM_SMOOTH_MS", "TF_GLM_STREAM_SMOOTH_MS", number, "v1.4"),
    _same("clear_thinking", "TF_GLM_CLEAR_THINKING", switch, "v1.4"),
    _quiet("keep_reasoning", "TF_GLM_KEEP_REASONING", switch, True),
    _same("effort_tail", "TF_GLM_EFFORT_TAIL", switch, "v1.10"),
    _quiet("assistant_ends", "TF_GLM_ASSISTANT_ENDS", switch, True, "v1.6"),
    _quiet("loop_guard", "TF_GLM_LOOP_GUARD", switch, False, "v1.9"),
    # -- pictures and clips
    Row("vision", "VISION", becomes="`--vision`"),
    Row("vision_urls", "VISION_URLS", becomes="`--vision-urls`"),
    _quiet("image_tokens", "TENSORFOLD_GLM_IMAGE_TOKENS", number, 2048),
    _quiet("video_tokens", "TENSORFOLD_GLM_VIDEO_TOKENS", number, 16384),
    _quiet("video_frames", "TENSORFOLD_GLM_VIDEO_FRAMES", number, 128),
    _quiet("max_images", "TENSORFOLD_GLM_MAX_IMAGES", number, 50),
    _quiet("max_videos", "TENSORFOLD_GLM_MAX_VIDEOS", number, 4),
    _quiet("request_image_tokens", "TENSORFOLD_GLM_REQUEST_IMAGE_TOKENS", number, 16384),
    _quiet("request_video_tokens", "TENSORFOLD_GLM_REQUEST_VIDEO_TOKENS", number, 32768),
    _quiet("picture_cache", "TENSORFOLD_GLM_PICTURE_CACHE", switch, True, "v1.8"),
    _quiet("picture_cache_mb", "TENSORFOLD_GLM_PICTURE_CACHE_MB", number, 384, "v1.8"),
    _quiet("picture_canvases", "TENSORFOLD_GLM_PICTURE_CANVASES", number, 8, "v1.8"),
    # -- capacity
    Row("context", "CONTEXT", becomes="`--context`"),
    Row("parallel", "PARALLEL", becomes="`--parallel`"),
    _env("memory_reserve_gib", "MEMORY_RESERVE_GIB", "TENSORFOLD_MEMORY_RESERVE_GIB", number),
    _env("kv", "KV", "TF_GLM_KV"),
    _env("kv_pool_gib", "KV_POOL_GIB", "TF_GLM_CACHE_GIB", number),
    _same("cache_entries", "TF_GLM_CACHE_ENTRIES", number),
    _same("cache_share_pct", "TF_GLM_CACHE_SHARE_PCT", number, "v1.10"),
    _same("kept_bytes_gib", "TF_GLM_KEPT_BYTES_GIB", number, "v1.9"),
    _same("keep_per_chat", "TF_GLM_KEEP_PER_CHAT", number, "v1.9"),
    _same("multi_window", "TF_GLM_MULTI_WINDOW", number, "v1.5"),
    _env("display_kv_mib", "DISPLAY_KV_MIB", "TF_GLM_DISPLAY_KV_MIB", number, "v1.6"),
    _env("display_kv_backend", "DISPLAY_KV_BACKEND", "TF_GLM_DISPLAY_KV_BACKEND", str, "v1.9"),
    Row("dispram_socket_dir", "dispramd socket folder", "v1.9", becomes="mount `/run/dispram`"),
    Row("dispram_client_dir", "dispram client folder", "v1.9", becomes="mount `/opt/dispram`, `PYTHONPATH`"),
    Row("spill_gib", "SPILL_GIB", "v1.9", becomes="`--spill-gib`"),
    Row("spill_dir", "SPILL_DIR", "v1.9", becomes="mount `/spill`, `--snapshot-dir /spill`"),
    Row("spill_highwater", "SPILL_HIGHWATER", "v1.9", becomes="`--spill-highwater`"),
    Row("spill_min_tokens", "SPILL_MIN_TOKENS", "v1.9", becomes="`--spill-min-tokens`"),
    Row("spill_min_free_gib", "SPILL_MIN_FREE_GIB", "v1.9", becomes="`--spill-min-free-gib`"),
    Row("spill_flush_s", "SPILL_FLUSH_S", "v1.9", becomes="`TF_SPILL_FLUSH_S`, grace of a stop"),
    # -- speed
    _env("dense", "DENSE", "TF_GLM_DENSE"),
    Row("drafter", "DRAFTER", becomes="`--drafter`"),
    _env("draft_policy", "DRAFT_POLICY", "TF_GLM_DFLASH_POLICY"),
    _same("mtp", "TF_GLM_MTP", str),
    _env("copy_drafts", "COPY", "TF_GLM_COPY_DRAFTS", switch),
    _env("copy_max", "COPY_MAX", "TF_GLM_COPY_MAX", number),
    Row(
        "copy_code",
        "COPY_CODE",
        variables=(
            Variable("TF_GLM_WIDE_GRAPHS", _when_on("16")),
            Variable("TF_GLM_COPY_REPLY_MATCH", _when_on("16")),
        ),
    ),
    Row(
        "split",
        "SPLIT",
        variables=(Variable("TF_GLM_HC_SPLIT", switch), Variable("TF_GLM_PREFILL_OVERLAP", _when_on("2"))),
    ),
    _env("kda_chunked", "KDA_CHUNKED", "TF_GLM_KDA_CHUNKED", switch),
    _env("shared_prefix", "SHARED_PREFIX", "TF_GLM_SHARED_PREFIX", switch),
    _env("multi_prefill", "MULTI_PREFILL", "TF_GLM_MULTI_PREFILL", switch),
    _same("multi_lone", "TF_GLM_MULTI_LONE", switch),
    _env("fill_budget_ms", "FILL_BUDGET_MS", "TF_GLM_FILL_BUDGET_MS", number, "v1.4"),
    _env("fill_drafts", "FILL_DRAFTS", "TF_GLM_FILL_DRAFTS", switch, "v1.4"),
    Row(
        "nucleus_union",
        "NUCLEUS_UNION",
        variables=(Variable("TENSORFOLD_NUCLEUS_UNION", switch, "v1.9", False),),
    ),
    _same("l2_prefetch", "TF_GLM_L2PF", str),
    _same("expert_loads", "TF_GLM_EXL3_LOADS", str),
    _same("expert_order", "TF_GLM_EXL3_DEC_ORDER", number, "v1.9"),
    # -- operation
    Row("wait_timeout", "WAIT_TIMEOUT", becomes="wait for the API"),
    Row("stop_timeout", "STOP_TIMEOUT", becomes="grace of a stop"),
    Row("log_keep", "LOG_KEEP", becomes="saved logs"),
    Row("state_dir", "STATE_DIR, LOG_DIR", becomes="state and saved logs"),
    _quiet("watchdog_s", "TF_GLM_MULTI_WATCHDOG_S", number, 300, "v1.4"),
    _quiet("watchdog_exit", "TF_GLM_MULTI_WATCHDOG_EXIT", switch, False, "v1.4"),
    Row(
        "update_check",
        "TENSORFOLD_NO_UPDATE_CHECK",
        variables=(Variable("TENSORFOLD_NO_UPDATE_CHECK", lambda value: switch(not value)),),
    ),
    Row("extra_args", "extra command-line arguments", becomes="last arguments of every rank"),
    Row("extra_env", "exported variables", becomes="as given, on every rank"),
)
BY_SETTING = {row.setting: row for row in ROWS}
OWNED_VARIABLES = {variable.name: f"sparkpair_{row.setting}" for row in ROWS for variable in row.variables}


def understood(setting: str, release: str) -> bool:
    """Say whether the engine of `release` understands a setting; settings of the plan alone belong to all."""
    row = BY_SETTING.get(setting)
    return row is None or at_least(release, row.since)


def environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine's variables for effective settings, as `settings["release"]` wants them."""
    result = {}
    for row in ROWS:
        for variable in row.variables:
            value = settings[row.setting]
            always = variable.exported is not None and at_least(settings["release"], variable.exported)
            chosen = at_least(settings["release"], row.since) and value != variable.engine_default
            if always or chosen:
                result[variable.name] = variable.render(value)
    return result
