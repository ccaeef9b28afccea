#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Everything the roles decide on, of one host, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pair_probe
short_description: Report everything about a host that decides what the pair needs
version_added: 0.1.0
description:
  - Looks at one host and returns what the other roles decide on, so that a converged pair costs one task a
    host. It judges nothing and changes nothing.
  - Reports the state directory and its disk, memory, processors, the ranks kept there with their processes,
    who listens on which port, the engine's version and code, the checkpoint, the host's own name, and the
    endpoint where this host has one.
extends_documentation_fragment:
  - sparkpair.serving.state
  - sparkpair.serving.looks
options:
  engine:
    description: The serving engine.
    type: str
    choices: [sparkpair, tensorfold]
    default: sparkpair
  engine_command:
    description: The engine's program as a list of words, for an engine that is asked for its version.
    type: list
    elements: str
    default: []
  environment:
    description: Environment variables that a rank gets beside its account's own.
    type: dict
    default: {}
  model:
    description: The checkpoint directory; empty for the miniature in the state directory.
    type: path
    default: ""
  miniature:
    description: Which miniature is looked at.
    type: str
    choices: [random, trained]
    default: random
  miniature_seed:
    description: The seed of the random miniature.
    type: int
    default: 0
  address:
    description: The address by which the other ranks reach this host.
    type: str
    required: true
  api_host:
    description:
      - The address on which the API of this host listens. Empty on a host without an API.
    type: str
    default: ""
  api_port:
    description: The port of the API, V(0) for the one that an earlier run chose.
    type: int
    default: 0
  api_key_file:
    description:
      - The file of keys that the API of this host wants, empty without keys. Its first key is used to ask the API.
    type: path
    default: ""
  container:
    description: Where ranks are containers; without it Docker is not asked for them.
    type: dict
    suboptions:
      docker_host:
        description: Address of the Docker daemon.
        type: str
        required: true
      image:
        description: The name of the image that ranks run.
        type: str
        required: true
      volume:
        description: The volume by which the head's weights are read over NFS, empty without one.
        type: str
        default: ""
  hf_cache:
    description: The Hugging Face cache, empty for the account's own.
    type: path
    default: ""
  snapshots:
    description: Snapshots to look for in the cache, each a C(repository) and a C(revision), which may be empty.
    type: list
    elements: dict
    default: []
  verify:
    description: Whether a snapshot counts as complete by names and sizes, or with every content verified.
    type: str
    choices: [size, content]
    default: content
  hub:
    description: The Hub, to be asked about snapshots that are not complete here; without it nobody is asked.
    type: dict
    suboptions:
      endpoint:
        description: The Hub, or a mirror of it.
        type: str
        required: true
      token_file:
        description: A file with the token.
        type: path
        default: ""
  machine:
    description: What ranks in containers need to be looked at as well; without it the machine itself is not.
    type: dict
    suboptions:
      docker_host:
        description: Address of the Docker daemon.
        type: str
        default: unix:///var/run/docker.sock
      ssh_to:
        description: Who must be reachable by ssh with a key.
        type: list
        elements: str
        default: []
      kernel_log:
        description: Count in the kernel's log how often the driver had no memory to give, which takes a moment.
        type: bool
        default: false
requirements:
  - Linux
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.report_findings
  - module: sparkpair.serving.rank_process_info
"""

EXAMPLES = r"""
- name: Look at this host
  sparkpair.serving.pair_probe:
    state_dir: ~/.local/state/sparkpair/spark-head
    engine_command: [sparkpair]
    address: 192.0.2.1
    api_host: 0.0.0.0
    api_port: 8888
  register: __probe
"""

RETURN = r"""
probe:
  description: What was found.
  returned: success
  type: dict
  contains:
    hostname:
      description: The host's own name.
      type: str
      sample: spark-1
    system:
      description: What two hosts have in common only when they are one machine.
      type: str
    own_addresses:
      description: What the hosts file gives the host's own name.
      type: list
      elements: str
      sample: [127.0.1.1]
    python:
      description: The version of the Python that runs the modules.
      type: str
      sample: 3.12.3
    user:
      description: The account the modules and ranks run as.
      type: str
      sample: spark
    cpus:
      description: Processors that this account may use.
      type: int
      sample: 20
    memory:
      description: C(total_bytes) and C(available_bytes).
      type: dict
    state_dir:
      description: The state directory, absolute.
      type: str
      sample: /home/spark/.local/state/sparkpair/spark-head
    directory:
      description: Whether it exists and can be written to or created, where, and the free space there.
      type: dict
    address_is_local:
      description: Whether O(address) belongs to this host.
      type: bool
    home:
      description: The account's home directory.
      type: str
    hf_home:
      description: C(HF_HOME) of the account, empty where it is not set.
      type: str
    ids:
      description: The numbers of the account, C(uid) and C(gid).
      type: dict
    engine:
      description: >-
        C(version) and C(code_digest), or C(error). For an engine in an image these are its name and the identity of its
        content, empty while it is not there.
      type: dict
    engine_command:
      description: The command that runs the engine's program here, in a throw-away container where it is in an image.
      type: list
      elements: str
    container:
      description: C(docker_host), C(image), C(volume) (what was compared in it), C(error); null without O(container).
      type: dict
    hf_cache:
      description: The Hugging Face cache, absolute.
      type: str
    snapshots:
      description:
        - What was found of O(snapshots), each C(repository), C(revision), C(path), C(present), C(state), C(problems),
          C(digest), C(known), C(blobs), C(files) and C(refused), which says why the Hub does not give it.
      type: list
      elements: dict
    checkpoint:
      description: C(path), C(state) (absent, damaged or complete), C(problems) and C(digest).
      type: dict
    ranks:
      description: The ranks of the state directory, running or not, each with its state and memory.
      type: list
      elements: dict
    listening:
      description: Listening TCP sockets, each with C(address), C(port), C(pid), C(command), C(rank).
      type: list
      elements: dict
    remembered_ports:
      description: The ports that an earlier run chose.
      type: dict
    api_key_file:
      description: C(path), absolute, and C(problem), which is empty when the file can be used or none is named.
      type: dict
    machine:
      description:
        - C(kernel), C(page_size), C(memory), C(crash_kernel_bytes), C(board_firmware), C(oom_killers), C(rdma), C(gpu),
          C(docker), C(container_toolkit), C(cache), C(ssh), C(requests) and C(refused_memory), which is null where it
          was not or could not be counted; or null without O(machine).
      type: dict
    versions:
      description: What an update of the system changes, such as C(kernel) and C(driver), as far as it is looked at.
      type: dict
    last_start:
      description: C(at) and C(versions) of the last start that ended well, null when none was kept.
      type: dict
    updates:
      description: What of C(versions) has changed since the last start, each C(name), C(before) and C(now).
      type: list
      elements: dict
    autostart:
      description:
        - C(systemd), whether systemd runs here, and C(supervisor), null where none is installed, else its C(unit),
          C(role), C(runs), C(words) and C(strikes).
      type: dict
    endpoint:
      description: C(url), C(ready), C(health) and C(error). Empty while no rank with an API runs here.
      type: dict
"""

import contextlib

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _key_file, _pair_look
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS

ARGUMENTS = {
    "state_dir": {"type": "path", "required": True},
    "engine": {"type": "str", "choices": sorted(ADAPTERS), "default": "sparkpair"},
    "engine_command": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "model": {"type": "path", "default": ""},
    "miniature": {"type": "str", "choices": ["random", "trained"], "default": "random"},
    "miniature_seed": {"type": "int", "default": 0},
    "address": {"type": "str", "required": True},
    "api_host": {"type": "str", "default": ""},
    "api_port": {"type": "int", "default": 0},
    "api_key_file": {"type": "path", "default": ""},
    "container": {
        "type": "dict",
        "options": {
            **{name: {"type": "str", "required": True} for name in ("docker_host", "image")},
            "volume": {"type": "str", "default": ""},
        },
    },
    "hf_cache": {"type": "path", "default": ""},
    "snapshots": {"type": "list", "elements": "dict", "default": []},
    "verify": {"type": "str", "choices": ["size", "content"], "default": "content"},
    "hub": {
        "type": "dict",
        "options": {
            "endpoint": {"type": "str", "required": True},
            # The path of the token, which is no secret itself.
            "token_file": {"type": "path", "default": "", "no_log": False},
        },
    },
    "machine": {
        "type": "dict",
        "options": {
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "ssh_to": {"type": "list", "elements": "str", "default": []},
            "kernel_log": {"type": "bool", "default": False},
        },
    },
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    key = None
    # What is wrong with the file is a finding like any other, told with all of them.
    with contextlib.suppress(_key_file.KeyFileError):
        key = _key_file.first_key(module.params["api_key_file"])
    if key:
        module.no_log_values.add(key)
    module.exit_json(changed=False, probe=_pair_look.probe(module.params, key))


if __name__ == "__main__":
    main()
