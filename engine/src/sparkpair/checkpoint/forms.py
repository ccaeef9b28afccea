# SPDX-License-Identifier: Apache-2.0
"""In which form each linear map is held, by its name and by what the operator chose.

`bf16` keeps dense weights as stored (in the compute dtype), `fp8` and `q4` quantise them while loading. The output head
is never coarser than fp8. What feeds a discrete choice (router, indexer) or is used as a matrix of its own (`kv_b`,
embedding, the narrow gate projections) stays as stored: it is small, and errors there would be worst.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

DenseForm = Literal["bf16", "fp8", "q4"]
ExpertForm = Literal["decoded", "packed"]

DENSE_FORMS: tuple[DenseForm, ...] = ("bf16", "fp8", "q4")

_DENSE = re.compile(
    r"\.layers\.\d+\.("
    r"self_attn\.(q_proj|k_proj|v_proj|o_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa)"
    r"|mlp\.(shared_experts\.)?(gate_proj|up_proj|down_proj)"
    r"|eh_proj)\.weight$"
)


@dataclasses.dataclass(frozen=True, slots=True)
class WeightForms:
    """The operator's choice: the form of dense weights, and of EXL3 experts.

    `decoded` experts become plain matrices while loading: eight times the memory at 4 bits and fp32, no decoding later.
    `packed` experts stay as stored and are decoded at every use.
    """

    dense: DenseForm = "bf16"
    experts: ExpertForm = "decoded"

    def of(self, name: str) -> DenseForm:
        """The form of the linear map whose stored matrix is called `name`."""
        if name == "lm_head.weight":
            return "bf16" if self.dense == "bf16" else "fp8"
        return self.dense if _DENSE.search(name) else "bf16"
