# SPDX-License-Identifier: Apache-2.0
"""Waits for the module `snapshot_pull` and shows how far it is.

The documentation is in `plugins/modules/snapshot_pull.py`, the waiting in `plugins/module_utils/_watched.py`.
"""

from __future__ import annotations

from ansible_collections.sparkpair.serving.plugins.module_utils._watched import Watched


class ActionModule(Watched):
    """The action `sparkpair.serving.snapshot_pull`."""

    module = "snapshot_pull"
