# SPDX-License-Identifier: Apache-2.0
"""The state of a rank, read without changing anything, at once or as soon as something happens to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_process_info
short_description: Tell the state of one rank of a serving engine
version_added: 0.1.0
description:
  - Tells whether a rank started by M(sparkpair.serving.rank_process) runs, how it ended, what it uses of the
    memory and what its log says.
  - Changes nothing, and asks nothing of the rank but O(ready_url).
  - Can wait for the next event instead of being asked again and again.
extends_documentation_fragment:
  - sparkpair.serving.rank_info
  - sparkpair.serving.looks
author:
  - The sparkpair maintainers (@sparkpair)
options:
  directory:
    description:
      - State directory of the rank. When it is missing or empty, the rank does not exist.
    type: path
    required: true
attributes:
  platform:
    description: Needs a Linux kernel for its process table in C(/proc).
    platforms: linux
    support: full
seealso:
  - module: sparkpair.serving.rank_process
  - module: sparkpair.serving.await_live
"""

EXAMPLES = r"""
- name: Look at rank 0
  sparkpair.serving.rank_process_info:
    directory: ~/.local/state/sparkpair/head/ranks/rank0
  register: rank0

- name: Wait at most a minute until rank 0 serves or ends
  sparkpair.serving.rank_process_info:
    directory: ~/.local/state/sparkpair/head/ranks/rank0
    ready_url: http://127.0.0.1:8888/v1/models
    wait: 60
  register: rank0
"""

RETURN = r"""
exists:
  description: Whether the directory tells of a rank.
  type: bool
  returned: success
  sample: true
name:
  description: Name of the rank.
  type: str
  returned: success
  sample: rank0
state:
  description: The state in words.
  type: str
  returned: success
  sample: ended with exit code 7
running:
  description: Whether the rank runs.
  type: bool
  returned: success
  sample: true
ready:
  description: Whether O(ready_url) answered 200. Null without O(ready_url).
  type: bool
  returned: success
  sample: true
pid:
  description: Process id, null when the rank does not run.
  type: int
  returned: success
  sample: 4711
spec_hash:
  description: Hash of the document the rank was started with.
  type: str
  returned: success
  sample: 3f0a7d1f6f0c4b4f2a0fb4d9c2d6a0f9e8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3
exit_code:
  description: Exit code of an ended rank, else null.
  type: int
  returned: success
  sample: 7
exit_signal:
  description: Number of the signal that ended the rank, else null.
  type: int
  returned: success
  sample: 9
started_at:
  description: When the rank was started, in UTC.
  type: str
  returned: success
  sample: "2026-11-29T21:30:00Z"
ended_at:
  description: When the rank ended, in UTC. Null while it runs, or when that was not recorded.
  type: str
  returned: success
  sample: "2026-11-29T21:35:00Z"
uptime_s:
  description: For how many seconds the rank has run, null when it does not.
  type: float
  returned: success
  sample: 61.2
rss_bytes:
  description: Resident memory of the rank and the processes it started, shared pages counted for each.
  type: int
  returned: success
  sample: 734003200
mem_available_bytes:
  description: Memory of the machine that could still be given out without swapping.
  type: int
  returned: success
  sample: 21474836480
log:
  description: Path of the log.
  type: str
  returned: success
  sample: /home/me/.local/state/sparkpair/head/ranks/rank0/rank.log
last_lines:
  description: Last lines of this run in the log, without control characters, at most 500 characters each.
  type: list
  elements: str
  returned: success
  sample: [serving GLM-5.3-Flash-EXL3 at http://127.0.0.1:8888]
anchors:
  description: What the log says, each null or empty until it is said.
  type: dict
  returned: success
  contains:
    estimate_gib:
      description: Memory the rank expects to need, in GiB.
      type: float
    budget_gib:
      description: Memory the rank may use, in GiB.
      type: float
    window_tokens:
      description: Planned prompt-plus-reply window in tokens.
      type: int
    parallel:
      description: Planned number of requests at once.
      type: int
    fitting_window_tokens:
      description: Largest window that fits, said when the planned one does not.
      type: int
    loading:
      description: Last line about the loading of weights.
      type: str
    ready_s:
      description: Seconds the rank took to become ready.
      type: float
    served_name:
      description: Model id under which the server answers.
      type: str
    serving_url:
      description: Address of the server.
      type: str
    transport:
      description: V(ib) or V(socket), as NCCL says that it chose.
      type: str
    errors:
      description: Lines that begin with C(error:).
      type: list
      elements: str
    fatals:
      description: Lines that begin with C(fatal:), a rank's end for a peer's sake.
      type: list
      elements: str
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors
from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import KeyFileError, first_key
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import (
    group_rss_bytes,
    mem_available_bytes,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import read_lines
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import (
    RankError,
    explain,
    observe,
    path_of,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_wait import wait_for
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import is_http_url, is_ready
from ansible_collections.sparkpair.serving.plugins.module_utils._spec_diff import last_spec, secret_values


def _look(directory: str, params: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return the state of the rank, after waiting as asked. Raises RankError and OSError."""
    state = observe(directory)
    if params["wait"] > 0:
        wait_for(state, params["wait_for"], params["ready_url"], params["wait"], key)
        state = observe(directory)
    lines = read_lines(state.log, state.log_offset) if state.log else []
    ready = None
    if params["ready_url"]:
        ready = state.running and is_ready(params["ready_url"], key)
    rank = state.rank if state.running else None
    return {
        "exists": state.exists,
        "name": state.name,
        "state": state.in_words(),
        "running": state.running,
        "ready": ready,
        "pid": rank.pid if rank else None,
        "spec_hash": state.spec_hash or None,
        "exit_code": state.exit_code,
        "exit_signal": state.exit_signal,
        "started_at": state.started_at or None,
        "ended_at": state.ended_at,
        "uptime_s": round(rank.uptime_s(), 1) if rank else None,
        "rss_bytes": group_rss_bytes(rank.pid) if rank else 0,
        "mem_available_bytes": mem_available_bytes(),
        "log": state.log or path_of(directory, "rank.log"),
        "last_lines": lines[-params["tail_lines"] :] if params["tail_lines"] > 0 else [],
        "anchors": parse_anchors(lines),
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "wait": {"type": "float", "default": 0},
            "wait_for": {
                "type": "list",
                "elements": "str",
                "choices": ["exit", "ready", "anchor", "log"],
                "default": ["exit", "ready"],
            },
            "ready_url": {"type": "str"},
            "api_key_file": {"type": "path", "default": ""},
            "tail_lines": {"type": "int", "default": 25},
        },
        supports_check_mode=True,
    )
    directory = os.path.abspath(module.params["directory"])
    module.no_log_values.update(secret_values(last_spec(directory), ()))
    url = module.params["ready_url"]
    if url and not is_http_url(url):
        module.fail_json(msg=f"The option ready_url is {url!r}, but must be like http://127.0.0.1:8888/v1/models.")
    try:
        key = first_key(module.params["api_key_file"])
        if key:
            module.no_log_values.add(key)
        result = _look(directory, module.params, key)
    except (RankError, KeyFileError) as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg=str(explain(exc, "read the state of the rank", directory)))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
