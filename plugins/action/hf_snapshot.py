# SPDX-License-Identifier: Apache-2.0
"""Waits for the module `hf_snapshot` and shows how far it is.

The documentation is in `plugins/modules/hf_snapshot.py`, the waiting in `plugins/module_utils/_watched.py`.
"""

from __future__ import annotations

from ansible_collections.sparkpair.serving.plugins.module_utils._watched import Watched


class ActionModule(Watched):
    """The action `sparkpair.serving.hf_snapshot`."""

    module = "hf_snapshot"
