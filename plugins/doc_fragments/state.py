# SPDX-License-Identifier: Apache-2.0
"""What modules that keep something on a host say of the place."""

from __future__ import annotations


class ModuleDocFragment:
    """The option that names the state directory."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description: The directory that holds what the pair keeps on this host.
    type: path
    required: true
"""
