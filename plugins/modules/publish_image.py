#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Publishes the ranks' image under the tag that its content has, so that others can pull it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: publish_image
short_description: Publish an engine's image
version_added: 0.2.0
description:
  - Refuses an image that is not what this collection would make now, adds the labels that a registry shows in a layer
    of its own, and pushes it under its tag C(VERSION-HASH) and as C(latest).
  - The token goes to Docker's client on its standard input, into a configuration that is thrown away afterwards.
extends_documentation_fragment:
  - sparkpair.serving.docker
  - sparkpair.serving.looks.no_diff
options:
  name:
    description: Name of the image on this host.
    type: str
    required: true
  hash:
    description: What its label must say.
    type: str
    required: true
  version:
    description: The engine's version, which begins the tag.
    type: str
    required: true
  repository:
    description: Where it is published.
    type: str
    required: true
  labels:
    description: Labels to add.
    type: dict
    default: {}
  token_file:
    description: A file with the token for the registry. Empty logs in nowhere.
    type: path
    default: ""
  user:
    description: The account to which the token belongs.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what it would publish.
  idempotent:
    support: partial
    description: Pushing again sends nothing that is there, and is told as a change.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.engine_image
"""

EXAMPLES = r"""
- name: Publish the image
  sparkpair.serving.publish_image:
    name: tensorfold-glm53:v0.6.0
    hash: a1897d591f70
    version: v0.6.0
    repository: registry.example/tensorfold
"""

RETURN = r"""
reference:
  description: The tag under which it was published.
  returned: success
  type: str
  sample: registry.example/tensorfold:v0.6.0-a1897d591f70
digest:
  description: The digest to pin, empty in check mode.
  returned: success
  type: str
"""

import subprocess
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _image
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError


def publish(docker: Docker, params: dict[str, Any], reference: str) -> str:
    """Push the image under `reference` and as latest, and return its digest. Raises DockerError and OSError."""
    repository = params["repository"]
    with tempfile.TemporaryDirectory() as place:
        labels = [word for name, value in params["labels"].items() for word in ("--label", f"{name}={value}")]
        options = ("--force-rm", "--network", "none", *labels, "--tag", reference)
        _client(docker, "build", *options, "-", said=f"FROM {params['name']}\n")
        made = _image.described(docker.inspect(reference, kind="image"))
        if made["patches"] != params["hash"]:
            raise DockerError(f"the labelled image lost its label {_image.PATCHES_LABEL}, and was not published")
        if params["token_file"]:
            with open(params["token_file"], encoding="utf-8") as file:
                token = file.read().strip()
            registry = repository.split("/")[0]
            login = ("--config", place, "login", registry, "--username", params["user"], "--password-stdin")
            _client(docker, *login, said=token)
        latest = f"{repository}:latest"
        docker.run("tag", reference, latest)
        for one in (reference, latest):
            _client(docker, "--config", place, "push", "--quiet", one)
    digests = (docker.inspect(reference, kind="image") or {}).get("RepoDigests") or []
    return next((one.partition("@")[2] for one in digests if one.startswith(f"{repository}@")), "")


def _client(docker: Docker, *arguments: str, said: str = "") -> None:
    """Run Docker's client, however long it takes, with a text on its standard input. Raises DockerError."""
    done = subprocess.run(docker.command(*arguments), input=said, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        verb = next(word for word in arguments if word in ("build", "login", "push"))
        raise DockerError(f"`docker {verb}` failed: {(done.stderr.strip() or done.stdout.strip())[-400:]}")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "hash": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "repository": {"type": "str", "required": True},
            "labels": {"type": "dict", "default": {}},
            # The name of the file is no secret.
            "token_file": {"type": "path", "default": "", "no_log": False},
            "user": {"type": "str", "default": ""},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    params = module.params
    docker = Docker(params["docker_host"])
    reference = f"{params['repository']}:{params['version']}-{params['hash']}"
    try:
        found = _image.described(docker.inspect(params["name"], kind="image"))
        if found["patches"] != params["hash"]:
            state = f"carries {found['patches'] or 'no hash'}" if found["exists"] else "is not on this host"
            module.fail_json(
                msg=f"The image {params['name']} {state}, and {params['hash']} would be published. Nothing was: bring "
                "the image first, with site.yml or prepare.yml."
            )
        if params["token_file"] and not params["user"]:
            module.fail_json(msg="A token needs the account it belongs to: set sparkpair_publish_user.")
        if module.check_mode:
            module.exit_json(changed=True, reference=reference, digest="")
        module.exit_json(changed=True, reference=reference, digest=publish(docker, params, reference))
    except DockerError as error:
        module.fail_json(msg=f"{error}.")
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}.")


if __name__ == "__main__":
    main()
