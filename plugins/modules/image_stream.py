#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Sends an image from this host straight to another one, unless it is there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_stream
short_description: Send an image straight from one Docker to another
version_added: 0.2.0
description:
  - Streams an image out of this host's Docker into another host's, over a command such as ssh, and checks that the same
    content arrived. Nothing passes through the controller.
  - An image that is there with the same content is not sent again, whatever its id.
  - Where both have Docker's classic image store, only the layers that the other one lacks are sent, and a run that was
    cut goes on from the layers that had arrived, which images with the label C(sparkpair.arriving) hold until then.
    Containerd's store takes only whole images. Docker before version 25 does not say which layer a file is until it has
    named those below, so that some of those that are there may be sent with the missing ones.
options:
  name:
    description: Name of the image, the same on both.
    type: str
    required: true
  docker_host:
    description: Address of this host's Docker daemon.
    type: str
    default: unix:///var/run/docker.sock
  to:
    description:
      - The command by which the other host is reached, as a list of words; empty for another daemon of this host.
    type: list
    elements: str
    default: []
  over:
    description:
      - The other host's address on the link, by which it is reached instead of the one that O(to) leads to. Its key,
        and what is configured for it, are those of the name in O(to) still.
    type: str
    default: ""
  to_docker_host:
    description: Address of the other Docker daemon, as that host sees it.
    type: str
    default: unix:///var/run/docker.sock
  progress:
    description: A file that tells every few seconds how much was sent.
    type: path
    required: true
attributes:
  check_mode:
    description: Compares and sends nothing.
    support: full
  diff_mode:
    description: An image has no text to compare.
    support: none
  idempotent:
    description: What has arrived is not sent again.
    support: full
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.image_identity
"""

EXAMPLES = r"""
- name: Send the image to the worker
  sparkpair.serving.image_stream:
    name: tensorfold-glm53:v0.6.0
    to: [ssh, -o, BatchMode=yes, 192.0.2.2]
    progress: /home/spark/.local/state/sparkpair/spark-head/image-stream.log
"""

RETURN = r"""
identity:
  description: The identity of the image on both hosts.
  returned: success
  type: str
sent:
  description: C(bytes), C(seconds) and C(mib_per_s), empty when nothing was sent.
  returned: success
  type: dict
  sample: {bytes: 26843545600, seconds: 24.1, mib_per_s: 1062.2}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _image_layers, _image_stream
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "to": {"type": "list", "elements": "str", "default": []},
            "over": {"type": "str", "default": ""},
            "to_docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "progress": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(params["docker_host"])
    way = _image_stream.over_link(params["to"], params["over"])
    remote = _image_stream.Remote([*way, "docker", "-H", params["to_docker_host"]])
    try:
        found = docker.inspect(params["name"], kind="image")
        if found is None:
            raise DockerError(f"this host has no image {params['name']} to send")
        wanted = _image.identity(found)
        if remote.identity(params["name"]) == wanted:
            module.exit_json(changed=False, identity=wanted, sent={})
        if module.check_mode:
            module.exit_json(changed=True, identity=wanted, sent={})
        os.makedirs(os.path.dirname(params["progress"]), exist_ok=True)
        sent = _image_stream.send(docker.command(), remote, params["name"], found, params["progress"])
        arrived = remote.identity(params["name"])
        if arrived != wanted:
            raise DockerError(
                f"the image {params['name']} was sent and is another one there ({arrived[:12] or 'absent'} instead of "
                f"{wanted[:12]}); run again, and look at the other host's disk if it stays so"
            )
        remote.clear(_image_layers.ARRIVING)
        module.exit_json(changed=True, identity=wanted, sent=sent)
    except DockerError as error:
        module.fail_json(msg=f"{error}.")
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['progress']}: {error.strerror}.")


if __name__ == "__main__":
    main()
