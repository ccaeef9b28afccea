#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Brings the engine's image to a host: as it is there, as it is published, or built."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_image
short_description: Bring an engine's image to this host
version_added: 0.2.0
description:
  - Leaves an image alone that carries O(hash), the hash of everything it is made of, in its label.
  - Otherwise pulls the published image, by O(digest) where one is given, else by the tag C(VERSION-HASH), and accepts
    it only with the right label; and otherwise builds it from the base, the pinned source and the patches.
  - A patch that no longer applies, or that is in the version already, stops the build, and all of them are listed.
extends_documentation_fragment:
  - sparkpair.serving.docker
options:
  name:
    description: Name that the image gets on this host.
    type: str
    required: true
  series:
    description: The parsed series.yml.
    type: dict
    required: true
  hash:
    description: The hash of the patches and what the series counts beside them.
    type: str
    required: true
  directory:
    description: The directory on this host with the patches of the series.
    type: path
    required: true
  context:
    description: A directory on this host for the build, which is made anew.
    type: path
    required: true
  release:
    description: The release whose patches are fetched, for a series that has them from elsewhere.
    type: str
    default: ""
  repository:
    description: Where the image is published. Empty pulls nothing.
    type: str
    default: ""
  digest:
    description: The digest of the published image, when it is the one that is wanted.
    type: str
    default: ""
  network:
    description: The network that the build may use.
    type: str
    choices: [host, none]
    default: host
attributes:
  check_mode:
    description: Says whether the image would be brought, and brings none.
    support: full
  diff_mode:
    description: An image has no text to compare.
    support: none
  idempotent:
    description: An image with the right label is left alone.
    support: full
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.image_identity
  - module: sparkpair.serving.image_stream
"""

EXAMPLES = r"""
- name: Bring the image
  sparkpair.serving.engine_image:
    name: tensorfold-glm53:v0.6.0
    series: "{{ lookup('ansible.builtin.file', 'series.yml') | from_yaml }}"
    hash: a1897d591f70
    directory: /home/spark/.local/state/sparkpair/spark-head/patches
    context: /home/spark/.local/state/sparkpair/spark-head/image
"""

RETURN = r"""
hash:
  description: The hash of everything the image is made of.
  returned: success
  type: str
  sample: ae8d1c789b47
how:
  description: V(present), V(pulled) or V(built); in check mode V(missing) for an image that would be brought.
  returned: success
  type: str
  sample: built
image:
  description: The image, as M(sparkpair.serving.image_identity) tells it.
  returned: success
  type: dict
"""

import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _image_build
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def bring(docker: Docker, params: dict[str, Any], wanted: str) -> str:
    """Pull or build the image and return which of them it was. Raises BuildError, DockerError and OSError."""
    series = params["series"]
    repository = params["repository"]
    if repository:
        named = f"@{params['digest']}" if params["digest"] else f":{series['version']}-{wanted}"
        reference = f"{repository}{named}"
        if _docker(docker, "pull", "--quiet", reference).returncode == 0:
            pulled = _image.described(docker.inspect(reference, kind="image"))
            # A tag can be moved; the label says what is inside.
            if pulled["patches"] == wanted:
                _docker(docker, "tag", reference, params["name"]).check_returncode()
                return "pulled"
    _image_build.prepare(series, params["directory"], params["context"], wanted, params["release"])
    # A step that fails would leave its container behind, under a name that nobody knows.
    options = ("--force-rm", "--network", params["network"], "--tag", params["name"])
    done = _docker(docker, "build", *options, params["context"])
    if done.returncode != 0:
        raise _image_build.BuildError(_image_build.failure_of(done.stdout, f"{series['engine']} {series['version']}"))
    return "built"


def _docker(docker: Docker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        docker.command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "series": {"type": "dict", "required": True},
            "hash": {"type": "str", "required": True},
            "directory": {"type": "path", "required": True},
            "context": {"type": "path", "required": True},
            "release": {"type": "str", "default": ""},
            "repository": {"type": "str", "default": ""},
            "digest": {"type": "str", "default": ""},
            "network": {"type": "str", "choices": ["host", "none"], "default": "host"},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(params["docker_host"])
    try:
        wanted = params["hash"]
        found = _image.described(docker.inspect(params["name"], kind="image"))
        if found["patches"] == wanted:
            module.exit_json(changed=False, hash=wanted, how="present", image=found)
        if module.check_mode:
            module.exit_json(changed=True, hash=wanted, how="missing", image=found)
        how = bring(docker, params, wanted)
        made = _image.described(docker.inspect(params["name"], kind="image"))
        module.exit_json(changed=True, hash=wanted, how=how, image=made)
    except (DockerError, _image_build.BuildError) as error:
        module.fail_json(msg=f"{params['name']}: {error}.")
    except OSError as error:
        module.fail_json(msg=f"{params['name']}: {error.filename}: {error.strerror}.")


if __name__ == "__main__":
    main()
