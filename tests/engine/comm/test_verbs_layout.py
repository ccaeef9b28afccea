# SPDX-License-Identifier: Apache-2.0
"""What verbs_abi.py says about libibverbs is what its header says; verbs_layout.json was printed by verbs_layout.c."""

from __future__ import annotations

import ctypes
import json
import pathlib

import pytest
from sparkpair.comm import verbs_abi as abi

LAYOUT: dict[str, int] = json.loads((pathlib.Path(__file__).parent / "verbs_layout.json").read_text())
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "ibv_context": abi.Context,
    "ibv_port_attr": abi.PortAttr,
    "ibv_mr": abi.Region,
    "ibv_comp_channel": abi.Channel,
    "ibv_qp": abi.QueuePair,
    "ibv_qp_cap": abi.QpCap,
    "ibv_qp_init_attr": abi.QpInitAttr,
    "ibv_global_route": abi.GlobalRoute,
    "ibv_ah_attr": abi.AhAttr,
    "ibv_qp_attr": abi.QpAttr,
    "ibv_sge": abi.Sge,
    "ibv_send_wr": abi.SendWr,
    "ibv_recv_wr": abi.RecvWr,
    "ibv_wc": abi.Wc,
}
OPS = {
    "poll_cq": abi.OP_POLL_CQ,
    "req_notify_cq": abi.OP_REQ_NOTIFY_CQ,
    "post_send": abi.OP_POST_SEND,
    "post_recv": abi.OP_POST_RECV,
}


def ours(name: str) -> int:
    """What verbs_abi.py has for an entry of the table."""
    structure, _, field = name.partition(".")
    if name == "pointer":
        return ctypes.sizeof(ctypes.c_void_p)
    if structure == "ibv_context_ops":
        return OPS[field] * ctypes.sizeof(ctypes.c_void_p)
    if structure in STRUCTURES:
        found = STRUCTURES[structure]
        return int(getattr(found, field).offset) if field else ctypes.sizeof(found)
    return int(abi.WC_OPCODE_RECV if name == "IBV_WC_RECV" else getattr(abi, name.removeprefix("IBV_")))


@pytest.mark.parametrize("name", LAYOUT)
def test_structures_and_values_are_those_of_the_header(name: str) -> None:
    assert ours(name) == LAYOUT[name]
