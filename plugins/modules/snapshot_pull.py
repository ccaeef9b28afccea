#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Brings a snapshot from the host that offers it straight into this host's cache."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_pull
short_description: Copy a snapshot from the head over the link
version_added: 0.2.0
description:
  - Makes a snapshot of this host equal to the manifest of another one. What is there already stays as it is, down to
    the inode; what is missing or wrong comes from M(sparkpair.serving.snapshot_offer), several whole files at a time.
  - A file is hashed while it arrives, written past the page cache, and gets its name when it is whole and right. A
    copy that was interrupted goes on within the file where it was cut. A full disk is said, and loses nothing.
  - The work is a job of its own on the host, which outlives a play that ends early; a later play finds it and waits
    for it.
extends_documentation_fragment:
  - sparkpair.serving.snapshots
  - sparkpair.serving.snapshots.one
  - sparkpair.serving.state
options:
  revision:
    description: The commit.
    type: str
    required: true
  manifest:
    description: The files of the other host, as C(snapshot.files) of it.
    type: list
    elements: dict
    required: true
  address:
    description: Where the files are offered.
    type: str
    required: true
  port:
    description: The port there.
    type: int
    required: true
  secret:
    description: The secret of the run.
    type: str
    required: true
  streams:
    description: How many files come at a time.
    type: int
    default: 8
attributes:
  check_mode:
    support: full
    description: Says whether something would be copied, and copies nothing.
  diff_mode:
    support: full
    description: Shows the state and what was wrong.
  idempotent:
    support: full
    description: An equal snapshot is left alone.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.snapshot_offer
  - module: sparkpair.serving.snapshot_manifest
"""

EXAMPLES = r"""
- name: Copy the drafter from the head
  sparkpair.serving.snapshot_pull:
    repo: incoai/GLM-5.3-Flash-DFlash2
    revision: bf582e4eacc1810f76656d1811693ff6c6737d2a
    state_dir: ~/.local/state/sparkpair/spark-worker
    manifest: "{{ hostvars['spark-head'].__drafter.snapshot.files }}"
    address: 192.0.2.1
    port: 40213
    secret: "{{ __secret }}"
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
  description: The snapshot, as M(sparkpair.serving.snapshot_manifest) tells it.
  returned: success
  type: dict
copied_bytes:
  description: How much came over the link.
  returned: success
  type: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _copy_client, _hub_cache, _manifest, _snapshot
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot


def done(module: AnsibleModule, snapshot: Snapshot) -> None:
    """Wait for the job and exit."""
    params = module.params
    job = snapshot.job
    if not job.wait(params["wait"]):
        module.exit_json(
            changed=False, finished=False, progress=job.progress(), snapshot={"revision": snapshot.revision}
        )
    result = job.result()
    if result["error"]:
        module.fail_json(msg=f"{params['repo']}: {result['error']}.", finished=True)
    seen = _snapshot.look(snapshot, params["verify"], params["manifest"])
    if seen["state"] != _snapshot.COMPLETE:
        # The job was another one's, which only verified.
        module.fail_json(
            msg=f"{params['repo']}: the snapshot in {seen['path']} is {seen['state']} still: "
            f"{'; '.join(seen['problems'][:20]) or 'its contents are not verified'}. Run again.",
            finished=True,
        )
    module.exit_json(changed=True, finished=True, snapshot=seen, copied_bytes=result.get("copied_bytes", 0))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "cache": {"type": "path", "default": ""},
            "state_dir": {"type": "path", "required": True},
            "manifest": {"type": "list", "elements": "dict", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "secret": {"type": "str", "required": True, "no_log": True},
            "streams": {"type": "int", "default": 8},
            "verify": {"type": "str", "choices": ["size", "content"], "default": "content"},
            "wait": {"type": "float", "default": 5},
            "wait_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    snapshot = Snapshot(_hub_cache.root(params["cache"]), params["state_dir"], params["repo"], params["revision"])
    try:
        if params["wait_only"]:
            done(module, snapshot)
        seen = _snapshot.look(snapshot, params["verify"], params["manifest"])
        if seen["state"] == _snapshot.COMPLETE and seen["digest"] == _manifest.digest(params["manifest"]):
            module.exit_json(changed=False, finished=True, snapshot=seen, copied_bytes=0)
        told = "\n".join([f"{seen['path']}: {seen['state']}", *seen["problems"], ""])
        diff = {"before": told, "after": f"{seen['path']}: complete\n"}
        if module.check_mode:
            module.exit_json(changed=True, finished=True, snapshot=seen, copied_bytes=0, diff=diff)
        job = snapshot.job
        job.start(
            {"repo": snapshot.repo, "revision": snapshot.revision},
            lambda report: _copy_client.pull(
                snapshot,
                job,
                (params["address"], params["port"]),
                params["secret"],
                params["manifest"],
                params["streams"],
                params["verify"],
                report,
            ),
            snapshot.owner,
        )
        done(module, snapshot)
    except OSError as error:
        module.fail_json(msg=f"{params['repo']}: {error.filename}: {error.strerror}.", finished=True)


if __name__ == "__main__":
    main()
