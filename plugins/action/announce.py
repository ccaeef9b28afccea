# SPDX-License-Identifier: Apache-2.0
"""Prints text for people as it is, whatever format results are shown in.

Runs on the controller. The documentation is in `plugins/modules/announce.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """The action `sparkpair.serving.announce`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print the text and return it."""
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec({"text": {"type": "str", "required": True}})
        text = str(arguments["text"]).rstrip("\n")
        self._display.display(text)
        return {"changed": False, "text": text}
