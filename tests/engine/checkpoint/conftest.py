# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint tests share."""

from __future__ import annotations

import torch

# One thread: the tensors are tiny, and waking a second thread costs more than it computes.
torch.set_num_threads(1)
