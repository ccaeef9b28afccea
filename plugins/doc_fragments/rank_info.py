# SPDX-License-Identifier: Apache-2.0
"""What the modules that tell the state of a rank have in common, be it a process or a container."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of a look at a rank that can wait for an event."""

    DOCUMENTATION = r"""
options:
  wait:
    description:
      - Seconds to wait at most for one of O(wait_for) to happen to a running rank. With 0 the state is told at once.
    type: float
    default: 0
  wait_for:
    description:
      - What ends the wait early.
      - V(exit) is the end of the rank.
      - V(ready) is the first 200 that O(ready_url) answers.
      - V(anchor) is a new line of the log that RV(anchors) tells of.
      - V(log) is any growth of the log.
    type: list
    elements: str
    choices: [exit, ready, anchor, log]
    default: [exit, ready]
  ready_url:
    description: URL that answers 200 when the server is ready, and never before. Asked without a proxy.
    type: str
  api_key_file:
    description:
      - File of keys on the host, one a line as C(KEY) or C(LABEL:KEY), mode 0600. The first is sent to O(ready_url).
    type: path
    default: ""
  tail_lines:
    description: How many of the log's last lines to return.
    type: int
    default: 25
"""
