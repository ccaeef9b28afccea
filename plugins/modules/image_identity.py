#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What an image on a host is, by its content."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_identity
short_description: Tell an image by its content
version_added: 0.2.0
description:
  - Returns the identity of an image, a hash of its layers' content, environment, entry point, command and working
    directory. Unlike an id it is the same in both image stores of Docker, so that the images of two hosts can be
    compared.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.looks
options:
  name:
    description: Name of the image.
    type: str
    required: true
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.engine_image
  - module: sparkpair.serving.image_stream
"""

EXAMPLES = r"""
- name: See which image the host has
  sparkpair.serving.image_identity:
    name: tensorfold-glm53:v0.6.0
  register: __image
"""

RETURN = r"""
image:
  description: C(exists), C(identity), C(patches) (the label with the hash of its patches), C(digests), C(size_bytes).
  returned: success
  type: dict
  sample:
    exists: true
    identity: 3f0a7d1f6f0c4b4f2a0fb4d9c2d6a0f9e8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3
    patches: ae8d1c789b47
    digests: []
    size_bytes: 26843545600
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    try:
        found = Docker(module.params["docker_host"]).inspect(module.params["name"], kind="image")
    except DockerError as error:
        module.fail_json(msg=f"{error}.")
    module.exit_json(changed=False, image=_image.described(found))


if __name__ == "__main__":
    main()
