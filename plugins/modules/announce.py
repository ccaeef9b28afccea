# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `announce`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: announce
short_description: Print text for people as it is
version_added: 0.1.0
description:
  - Prints lines that can be read and copied, where a result would show them quoted, wrapped or as JSON.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  text:
    description: What to print.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: Prints and changes nothing.
  idempotent:
    support: full
    description: Prints and changes nothing.
author:
  - The sparkpair maintainers (@sparkpair)
"""

EXAMPLES = r"""
- name: Say where the pair serves
  sparkpair.serving.announce:
    text: |
      LIVE
      endpoint  http://192.0.2.1:8888/v1
"""

RETURN = r"""
text:
  description: What was printed.
  returned: success
  type: str
  sample: LIVE
"""
