# SPDX-License-Identifier: Apache-2.0
"""What modules that change nothing say of their modes."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of a module that only looks, and of one that has nothing to show as a difference."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Does the same in check mode, as it changes nothing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: Nothing is changed.
    support: full
"""

    NO_DIFF = r"""
attributes:
  diff_mode:
    description: There is nothing to compare.
    support: none
"""
