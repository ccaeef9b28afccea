# SPDX-License-Identifier: Apache-2.0
"""How rows are stored in the pool: `fp32` and `bf16` as numbers, `fp8` as codes with a scale for each row."""

from __future__ import annotations

from typing import Literal

RowForm = Literal["fp32", "bf16", "fp8"]
