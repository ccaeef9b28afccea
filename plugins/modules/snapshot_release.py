#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Takes the files of snapshots out of this host's page cache."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_release
short_description: Let go of weights in the page cache
version_added: 0.2.0
description:
  - On unified memory the GPU counts cached files as used, and weights that were just downloaded, copied or read may
    fill the memory that loading them needs. Takes their files out of the page cache; nothing on the disk changes, and
    no root is needed, as it would be for the cache of everything.
extends_documentation_fragment:
  - sparkpair.serving.snapshots
  - sparkpair.serving.looks.no_diff
options:
  snapshots:
    description: The snapshots, each with C(repository) and C(revision), which may be empty for the cache's main.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Says what is free and lets go of nothing.
  idempotent:
    support: full
    description: Changes nothing that is kept.
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.hf_snapshot
"""

EXAMPLES = r"""
- name: Let go of the drafter's files
  sparkpair.serving.snapshot_release:
    snapshots:
      - repository: incoai/GLM-5.3-Flash-DFlash2
        revision: bf582e4eacc1810f76656d1811693ff6c6737d2a
"""

RETURN = r"""
free_bytes:
  description: C(before) and C(after), the memory that nothing uses.
  returned: success
  type: dict
  sample: {before: 6442450944, after: 103079215104}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _copy_server, _hub_cache, _machine_text


def free() -> int:
    """Return how many bytes of memory nothing uses."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        return int(_machine_text.meminfo(file.read())["MemFree"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "cache": {"type": "path", "default": ""},
            "snapshots": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    cache = _hub_cache.root(module.params["cache"])
    before = free()
    for one in module.params["snapshots"] if not module.check_mode else ():
        revision = one["revision"] or _hub_cache.main_revision(cache, one["repository"])
        place = _hub_cache.snapshot(cache, one["repository"], revision)
        for file in _hub_cache.files(place):
            _copy_server.let_go(f"{place}/{file['path']}")
    module.exit_json(changed=False, free_bytes={"before": before, "after": free()})


if __name__ == "__main__":
    main()
