# SPDX-License-Identifier: Apache-2.0
"""The engines that the collection can deploy, by the value of the setting `sparkpair_engine`.

Each is a module with the names that `_engine_sparkpair.py` documents. `PROCESSES` are those whose ranks are plain
processes, started by a command on the host. Private to the collection, may change
at any time.
"""

from __future__ import annotations

from types import ModuleType

from ansible_collections.sparkpair.serving.plugins.module_utils import _engine_sparkpair, _engine_tensorfold

PROCESSES: dict[str, ModuleType] = {"sparkpair": _engine_sparkpair}
ADAPTERS: dict[str, ModuleType] = {**PROCESSES, "tensorfold": _engine_tensorfold}
