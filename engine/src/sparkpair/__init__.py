# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel serving engine for the `glm5_next` architecture."""

from __future__ import annotations

__version__ = "0.1.0"
