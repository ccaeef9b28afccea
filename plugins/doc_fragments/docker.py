# SPDX-License-Identifier: Apache-2.0
"""What modules that speak with Docker say of its daemon."""

from __future__ import annotations


class ModuleDocFragment:
    """The option that names the daemon."""

    DOCUMENTATION = r"""
options:
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: unix:///var/run/docker.sock
"""
