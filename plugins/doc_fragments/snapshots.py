# SPDX-License-Identifier: Apache-2.0
"""What modules that read or bring snapshots of the Hub have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Options about the cache, and about one snapshot of it."""

    DOCUMENTATION = r"""
options:
  cache:
    description: The cache directory. Empty takes C(HF_HOME) of the login, else C(~/.cache/huggingface).
    type: path
    default: ""
"""

    ONE = r"""
options:
  repo:
    description: The repository, ORGANISATION/NAME.
    type: str
    required: true
  verify:
    description: Whether names and sizes are enough, or contents are hashed, once until they change.
    type: str
    choices: [size, content]
    default: content
  wait:
    description:
      - Seconds to wait for work that takes longer. The action waits in turns of this length and shows progress.
    type: float
    default: 5
  wait_only:
    description: Look at nothing, start nothing, and only wait for the job that an earlier call has started.
    type: bool
    default: false
"""
