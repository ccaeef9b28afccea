# SPDX-License-Identifier: Apache-2.0
"""The position grid: absolute positions at which everything that computes or keeps a prompt may cut it.

Prompt rows attend and recur in blocks that end on the grid, prompts are read in whole blocks, states are kept there.
All have to mean the same positions, or a resumed prompt would not have the bits of a fresh one.
"""

from __future__ import annotations

# Tokens of one block.
GRID = 64
