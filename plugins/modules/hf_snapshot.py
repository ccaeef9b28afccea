#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a Hub repository in this host's cache: whole, verified, and downloaded where it is not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hf_snapshot
short_description: Keep a snapshot of a Hugging Face repository complete
version_added: 0.2.0
description:
  - Compares the snapshot in the cache with the file list of the revision, downloads what is missing or wrong with the
    Hub's own library, hashes what was never hashed, and leaves a complete snapshot alone without asking anybody.
  - The work is a job of its own on the host. It outlives a play that ends early, a later play finds it and waits for
    it, and a download that was interrupted goes on where it was, by whole files.
  - What is whole already is used when the Hub cannot be asked.
  - The library is looked for when something has to be downloaded, in O(command), in the Python that runs the module,
    behind a program C(hf), and at last in the engine's image, whose container then runs as the cache's owner.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.snapshots
  - sparkpair.serving.snapshots.one
  - sparkpair.serving.state
options:
  revision:
    description:
      - The commit. Empty takes the one that the cache knows as main, and without one what the Hub calls main now.
    type: str
    default: ""
  endpoint:
    description: The Hub, or a mirror of it.
    type: str
    default: https://huggingface.co
  token_file:
    description:
      - A file with the token, mode 0600. Empty takes C(HF_TOKEN) of the login, else the file C(token) of the cache. The
        token is never on a command line, in a log or in a result.
    type: path
    default: ""
  command:
    description: A Python that has the library huggingface_hub, as a list of words; empty looks for one.
    type: list
    elements: str
    default: []
  image:
    description: An image whose C(python3) has the library, for a host without one.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says whether something would be downloaded, and downloads nothing.
  diff_mode:
    support: full
    description: Shows the state and what was wrong.
  idempotent:
    support: full
    description: A complete snapshot is left alone.
requirements:
  - Linux
  - huggingface_hub in any Python of the host, or an image that has it, when something has to be downloaded
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.snapshot_manifest
  - module: sparkpair.serving.snapshot_pull
"""

EXAMPLES = r"""
- name: Keep the drafter complete
  sparkpair.serving.hf_snapshot:
    repo: incoai/GLM-5.3-Flash-DFlash2
    revision: bf582e4eacc1810f76656d1811693ff6c6737d2a
    state_dir: ~/.local/state/sparkpair/spark-head
    token_file: ~/hf-token
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
      C(path), C(size), C(blob) and C(hash)) and C(digest).
  returned: success
  type: dict
downloaded_bytes:
  description: How much was missing and was downloaded.
  returned: success
  type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _hub_ask,
    _hub_cache,
    _hub_download,
    _hub_token,
    _snapshot,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._job import JobError
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot


def resolve(module: AnsibleModule, token: str) -> tuple[Snapshot, dict[str, Any], list[dict[str, Any]]]:
    """Return the snapshot, how it is, and the files of its revision as the Hub tells them (none when they are known).

    Raises HubError where the Hub is needed and does not help.
    """
    params = module.params
    cache = _hub_cache.root(params["cache"])
    revision = params["revision"] or _hub_cache.main_revision(cache, params["repo"])
    commit, files = revision, []
    if not _hub_cache.is_commit(revision):
        commit, files = _hub_ask.revision(params["endpoint"], params["repo"], revision, token)
    snapshot = Snapshot(cache, params["state_dir"], params["repo"], commit)
    seen = _snapshot.look(snapshot, params["verify"], files)
    # What was compared with the Hub's list once stays as it is, and so does its list.
    if not files and (seen["state"] != _snapshot.COMPLETE or not _snapshot.is_known(snapshot)):
        try:
            _, files = _hub_ask.revision(params["endpoint"], params["repo"], commit, token)
            seen = _snapshot.look(snapshot, params["verify"], files)
        except _hub_ask.HubError as error:
            if seen["state"] in (_snapshot.ABSENT, _snapshot.DAMAGED):
                here = "; ".join([seen["state"], *seen["problems"][:5]])
                raise _hub_ask.HubError(error.kind, f"{error}. The snapshot in {seen['path']} is {here}") from error
            module.warn(f"{error}. The snapshot of {params['repo']} in {seen['path']} is whole, and used.")
            files = [{key: one[key] for key in ("path", "size", "blob")} for one in seen["files"]]
    return snapshot, seen, files


def done(module: AnsibleModule, snapshot: Snapshot) -> None:
    """Wait for the job and exit."""
    params = module.params
    job = snapshot.job
    if not job.wait(params["wait"]):
        named = {"revision": snapshot.revision}
        module.exit_json(changed=False, finished=False, progress=job.progress(), snapshot=named)
    result = job.result()
    if result["error"]:
        module.fail_json(msg=f"{params['repo']}: {result['error']}.", finished=True)
    seen = _snapshot.look(snapshot, params["verify"])
    downloaded = result.get("downloaded_bytes", 0)
    module.exit_json(changed=downloaded > 0, finished=True, snapshot=seen, downloaded_bytes=downloaded)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "cache": {"type": "path", "default": ""},
            "state_dir": {"type": "path", "required": True},
            "verify": {"type": "str", "choices": ["size", "content"], "default": "content"},
            "endpoint": {"type": "str", "default": _hub_ask.ENDPOINT},
            # The path of the token, which is no secret itself.
            "token_file": {"type": "path", "default": "", "no_log": False},
            "command": {"type": "list", "elements": "str", "default": []},
            "image": {"type": "str", "default": ""},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "wait": {"type": "float", "default": 5},
            "wait_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    cache = _hub_cache.root(params["cache"])
    if params["wait_only"]:
        done(module, Snapshot(cache, params["state_dir"], params["repo"], params["revision"]))
    try:
        token, _ = _hub_token.find(params["token_file"], cache)
        if token:
            module.no_log_values.add(token)
        snapshot, seen, files = resolve(module, token)
        if seen["state"] == _snapshot.COMPLETE and _snapshot.is_known(snapshot):
            module.exit_json(changed=False, finished=True, snapshot=seen, downloaded_bytes=0)
        before = "\n".join([f"{seen['path']}: {seen['state']}", *seen["problems"], ""])
        diff = {"before": before, "after": f"{seen['path']}: complete\n"}
        if module.check_mode:
            changes = seen["state"] in (_snapshot.ABSENT, _snapshot.DAMAGED)
            told = {"diff": diff} if changes else {}
            module.exit_json(changed=changes, finished=True, snapshot=seen, downloaded_bytes=0, **told)
        job = snapshot.job
        job.start(
            {"repo": snapshot.repo, "revision": snapshot.revision},
            lambda report: _hub_download.bring(
                snapshot,
                job,
                lambda: program(params, snapshot),
                params["endpoint"],
                token,
                files,
                params["verify"],
                report,
            ),
            snapshot.owner,
        )
        done(module, snapshot)
    except (_hub_token.TokenError, _hub_ask.HubError, JobError) as error:
        module.fail_json(msg=f"{params['repo']}: {error}.", finished=True)
    except OSError as error:
        module.fail_json(msg=f"{params['repo']}: {error.filename}: {error.strerror}.", finished=True)


def program(params: dict[str, Any], snapshot: Snapshot) -> list[str]:
    """Return the command that downloads. Raises JobError."""
    docker = ["docker", "-H", params["docker_host"]]
    return _hub_download.program(params["command"], docker, params["image"], snapshot.cache, snapshot.owner)


if __name__ == "__main__":
    main()
