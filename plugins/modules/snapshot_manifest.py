#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Whether a snapshot on this host is what it should be, file by file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_manifest
short_description: Verify a snapshot of the Hugging Face cache file by file
version_added: 0.2.0
description:
  - Compares paths, sizes and, with O(verify=content), the content of every file with what is expected, and names what
    is missing, cut off, too long, of other content, or does not belong there. Files are in byte order on every host.
  - A blob of the cache is named by its hash, which its content is compared with. Contents are hashed in parallel and
    past the page cache, and what was verified is remembered with each file's size, times and inode, so that looking
    again at finished weights takes a moment. Changes no weights.
extends_documentation_fragment:
  - sparkpair.serving.snapshots
  - sparkpair.serving.snapshots.one
  - sparkpair.serving.state
  - sparkpair.serving.looks.no_diff
options:
  revision:
    description: The commit. Empty takes the one that the cache knows as main.
    type: str
    default: ""
  expected:
    description:
      - The files that must be there, as C(snapshot.files) of another host. Without them, those of the last
        verification, and without one the checkpoint's own index.
    type: list
    elements: dict
    default: []
  required:
    description: Whether to fail with everything that is wrong.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: Compares names and sizes, and hashes nothing.
  idempotent:
    support: full
    description: Changes no weights.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.hf_snapshot
"""

EXAMPLES = r"""
- name: Verify the drafter by content
  sparkpair.serving.snapshot_manifest:
    repo: incoai/GLM-5.3-Flash-DFlash2
    state_dir: ~/.local/state/sparkpair/spark-worker
"""

RETURN = r"""
finished:
  description: Whether the work has ended; the action returns when it has.
  returned: always
  type: bool
progress:
  description: C(doing), C(done) and C(total) in bytes, of work that goes on.
  returned: success
  type: dict
snapshot:
  description:
    - C(repo), C(revision), C(path), C(state) (absent, damaged, unverified or complete), C(problems), C(files) (each
      C(path), C(size), C(blob) and C(hash)) and C(digest), which is the same on hosts with the same files.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_cache, _snapshot
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot

_MOST_NAMED = 20


def judge(module: AnsibleModule, snapshot: Snapshot) -> None:
    """Exit with how the snapshot is."""
    params = module.params
    seen = _snapshot.look(snapshot, params["verify"], params["expected"])
    if params["required"] and seen["state"] in (_snapshot.ABSENT, _snapshot.DAMAGED):
        problems = seen["problems"] or ["there is none of its files"]
        more = f" and {len(problems) - _MOST_NAMED} more" if len(problems) > _MOST_NAMED else ""
        module.fail_json(
            msg=f"The snapshot {seen['path']} is not what it should be: {'; '.join(problems[:_MOST_NAMED])}{more}. "
            "Run playbooks/weights.yml, which brings what is missing or wrong and leaves the rest.",
            finished=True,
            snapshot=seen,
        )
    module.exit_json(changed=False, finished=True, snapshot=seen)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "cache": {"type": "path", "default": ""},
            "state_dir": {"type": "path", "required": True},
            "verify": {"type": "str", "choices": ["size", "content"], "default": "content"},
            "expected": {"type": "list", "elements": "dict", "default": []},
            "required": {"type": "bool", "default": True},
            "wait": {"type": "float", "default": 5},
            "wait_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    cache = _hub_cache.root(params["cache"])
    revision = params["revision"] or _hub_cache.main_revision(cache, params["repo"])
    snapshot = Snapshot(cache, params["state_dir"], params["repo"], revision)
    job = snapshot.job
    try:
        if not params["wait_only"] and not module.check_mode:
            seen = _snapshot.look(snapshot, params["verify"], params["expected"])
            if seen["state"] == _snapshot.UNVERIFIED:
                expected = params["expected"] or _snapshot.known_files(snapshot, seen)
                job.start(
                    {"repo": snapshot.repo, "revision": revision},
                    lambda report: {"problems": _snapshot.verify(snapshot, job, params["verify"], expected, report)},
                    snapshot.owner,
                )
        if not job.wait(params["wait"]):
            module.exit_json(changed=False, finished=False, progress=job.progress(), snapshot={"revision": revision})
        if params["wait_only"] and job.result()["error"]:
            module.fail_json(msg=f"{params['repo']}: {job.result()['error']}.", finished=True)
        judge(module, snapshot)
    except OSError as error:
        module.fail_json(msg=f"{params['repo']}: {error.filename}: {error.strerror}.", finished=True)


if __name__ == "__main__":
    main()
