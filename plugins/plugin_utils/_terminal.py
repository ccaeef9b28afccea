# SPDX-License-Identifier: Apache-2.0
"""What a failed task tells beside its message: data for programs, which on a terminal would only say everything again.

Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible import constants
from ansible.utils.display import Display

_FOR_PEOPLE = ("default", "ansible.builtin.default", "ansible.legacy.default")


def beside(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data, unless the result is printed for people, who have not asked for more with -v."""
    for_people = constants.DEFAULT_STDOUT_CALLBACK in _FOR_PEOPLE and not Display().verbosity
    return {} if for_people else dict(data)
