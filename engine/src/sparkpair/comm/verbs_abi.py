# SPDX-License-Identifier: Apache-2.0
"""The part of libibverbs' binary interface that we use, as ctypes structures.

Why ctypes and no C: a compiled helper needs a compiler or a wheel for every processor, and what it would be compiled
from is this same interface. `ibv_post_send`, `ibv_poll_cq` and their like are inline functions of
`<infiniband/verbs.h>` which call through the table `ibv_context.ops`; every program ever linked with libibverbs.so.1
has the offsets of that table compiled in, so they cannot change without another soname. Offsets and sizes here are
compared in the tests with those that the header gives (tests/engine/comm/verbs_layout.c). They hold where pointers
have 64 bits; x86-64 and Arm are the same.

What C would give is a shorter loop: a poll of an empty queue costs about half a microsecond from here. That is small
beside one operation of torch, of which a gather needs several.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, Union, c_char_p, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

# enum values by the names of the header, without IBV_.
QPT_RC = 2
WR_RDMA_WRITE_WITH_IMM = 1
SEND_SIGNALED = 2
WC_SUCCESS = 0
WC_WR_FLUSH_ERR = 5
WC_OPCODE_RECV = 128
ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE = 1, 2
QPS_INIT, QPS_RTR, QPS_RTS = 1, 2, 3
QP_STATE, QP_ACCESS_FLAGS, QP_PKEY_INDEX, QP_PORT, QP_AV = 0x1, 0x8, 0x10, 0x20, 0x80
QP_PATH_MTU, QP_TIMEOUT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN = 0x100, 0x200, 0x400, 0x800, 0x1000
QP_MAX_QP_RD_ATOMIC, QP_MIN_RNR_TIMER, QP_SQ_PSN = 0x2000, 0x8000, 0x10000
QP_MAX_DEST_RD_ATOMIC, QP_DEST_QPN = 0x20000, 0x100000

# Indexes into ibv_context.ops, a table of function pointers.
OP_POLL_CQ, OP_REQ_NOTIFY_CQ, OP_POST_SEND, OP_POST_RECV = 11, 12, 25, 26


class Context(Structure):
    """ibv_context, as far as it is needed."""

    _fields_ = [("device", c_void_p), ("ops", c_void_p * 32), ("cmd_fd", c_int), ("async_fd", c_int)]


class Gid(Union):
    """ibv_gid: 16 bytes in network order."""

    _fields_ = [("raw", c_uint8 * 16), ("words", c_uint64 * 2)]


class PortAttr(Structure):
    """ibv_port_attr."""

    _fields_ = [
        ("state", c_int),
        ("max_mtu", c_int),
        ("active_mtu", c_int),
        ("gid_tbl_len", c_int),
        ("port_cap_flags", c_uint32),
        ("max_msg_sz", c_uint32),
        ("bad_pkey_cntr", c_uint32),
        ("qkey_viol_cntr", c_uint32),
        ("pkey_tbl_len", c_uint16),
        ("lid", c_uint16),
        ("sm_lid", c_uint16),
        ("lmc", c_uint8),
        ("max_vl_num", c_uint8),
        ("sm_sl", c_uint8),
        ("subnet_timeout", c_uint8),
        ("init_type_reply", c_uint8),
        ("active_width", c_uint8),
        ("active_speed", c_uint8),
        ("phys_state", c_uint8),
        ("link_layer", c_uint8),
        ("flags", c_uint8),
        ("port_cap_flags2", c_uint16),
    ]


class Region(Structure):
    """ibv_mr."""

    _fields_ = [
        ("context", c_void_p),
        ("pd", c_void_p),
        ("addr", c_void_p),
        ("length", c_size_t),
        ("handle", c_uint32),
        ("lkey", c_uint32),
        ("rkey", c_uint32),
    ]


class Channel(Structure):
    """ibv_comp_channel."""

    _fields_ = [("context", c_void_p), ("fd", c_int), ("refcnt", c_int)]


class QueuePair(Structure):
    """ibv_qp, as far as it is needed."""

    _fields_ = [
        ("context", c_void_p),
        ("qp_context", c_void_p),
        ("pd", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("handle", c_uint32),
        ("qp_num", c_uint32),
    ]


class QpCap(Structure):
    """ibv_qp_cap."""

    _fields_ = [
        ("max_send_wr", c_uint32),
        ("max_recv_wr", c_uint32),
        ("max_send_sge", c_uint32),
        ("max_recv_sge", c_uint32),
        ("max_inline_data", c_uint32),
    ]


class QpInitAttr(Structure):
    """ibv_qp_init_attr."""

    _fields_ = [
        ("qp_context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("cap", QpCap),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    ]


class GlobalRoute(Structure):
    """ibv_global_route."""

    _fields_ = [
        ("dgid", Gid),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
    ]


class AhAttr(Structure):
    """ibv_ah_attr."""

    _fields_ = [
        ("grh", GlobalRoute),
        ("dlid", c_uint16),
        ("sl", c_uint8),
        ("src_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port_num", c_uint8),
    ]


class QpAttr(Structure):
    """ibv_qp_attr."""

    _fields_ = [
        ("qp_state", c_int),
        ("cur_qp_state", c_int),
        ("path_mtu", c_int),
        ("path_mig_state", c_int),
        ("qkey", c_uint32),
        ("rq_psn", c_uint32),
        ("sq_psn", c_uint32),
        ("dest_qp_num", c_uint32),
        ("qp_access_flags", c_uint32),
        ("cap", QpCap),
        ("ah_attr", AhAttr),
        ("alt_ah_attr", AhAttr),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        ("en_sqd_async_notify", c_uint8),
        ("sq_draining", c_uint8),
        ("max_rd_atomic", c_uint8),
        ("max_dest_rd_atomic", c_uint8),
        ("min_rnr_timer", c_uint8),
        ("port_num", c_uint8),
        ("timeout", c_uint8),
        ("retry_cnt", c_uint8),
        ("rnr_retry", c_uint8),
        ("alt_port_num", c_uint8),
        ("alt_timeout", c_uint8),
        ("rate_limit", c_uint32),
    ]


class Sge(Structure):
    """ibv_sge."""

    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class SendWr(Structure):
    """ibv_send_wr, with the union `wr` as RDMA has it and the rest as space."""

    _fields_ = [
        ("wr_id", c_uint64),
        ("next", c_void_p),
        ("sg_list", POINTER(Sge)),
        ("num_sge", c_int),
        ("opcode", c_int),
        ("send_flags", c_int),
        ("imm_data", c_uint32),
        ("remote_addr", c_uint64),
        ("rkey", c_uint32),
        ("space", c_uint64 * 9),
    ]


class RecvWr(Structure):
    """ibv_recv_wr."""

    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", c_void_p), ("num_sge", c_int)]


class Wc(Structure):
    """ibv_wc."""

    _fields_ = [
        ("wr_id", c_uint64),
        ("status", c_int),
        ("opcode", c_int),
        ("vendor_err", c_uint32),
        ("byte_len", c_uint32),
        ("imm_data", c_uint32),
        ("qp_num", c_uint32),
        ("src_qp", c_uint32),
        ("wc_flags", c_int),
        ("pkey_index", c_uint16),
        ("slid", c_uint16),
        ("sl", c_uint8),
        ("dlid_path_bits", c_uint8),
    ]


# The exported functions: result, then arguments. Everything that is opened has a function that closes it, and the
# kernel closes all of it with the process, which is how long a rank needs them.
FUNCTIONS = {
    "ibv_get_device_list": (POINTER(c_void_p), [POINTER(c_int)]),
    "ibv_free_device_list": (None, [POINTER(c_void_p)]),
    "ibv_get_device_name": (c_char_p, [c_void_p]),
    "ibv_open_device": (POINTER(Context), [c_void_p]),
    "ibv_close_device": (c_int, [POINTER(Context)]),
    "ibv_query_port": (c_int, [POINTER(Context), c_uint8, POINTER(PortAttr)]),
    "ibv_alloc_pd": (c_void_p, [POINTER(Context)]),
    "ibv_dealloc_pd": (c_int, [c_void_p]),
    "ibv_reg_mr": (POINTER(Region), [c_void_p, c_void_p, c_size_t, c_int]),
    "ibv_dereg_mr": (c_int, [POINTER(Region)]),
    "ibv_create_comp_channel": (POINTER(Channel), [POINTER(Context)]),
    "ibv_destroy_comp_channel": (c_int, [POINTER(Channel)]),
    "ibv_create_cq": (c_void_p, [POINTER(Context), c_int, c_void_p, POINTER(Channel), c_int]),
    "ibv_destroy_cq": (c_int, [c_void_p]),
    "ibv_get_cq_event": (c_int, [POINTER(Channel), POINTER(c_void_p), POINTER(c_void_p)]),
    "ibv_ack_cq_events": (None, [c_void_p, ctypes.c_uint]),
    "ibv_create_qp": (POINTER(QueuePair), [c_void_p, POINTER(QpInitAttr)]),
    "ibv_modify_qp": (c_int, [POINTER(QueuePair), POINTER(QpAttr), c_int]),
    "ibv_destroy_qp": (c_int, [POINTER(QueuePair)]),
    "ibv_wc_status_str": (c_char_p, [c_int]),
}

# How the functions of ibv_context.ops are called.
POLL_CQ = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, POINTER(Wc))
REQ_NOTIFY_CQ = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
POST_SEND = ctypes.CFUNCTYPE(c_int, POINTER(QueuePair), POINTER(SendWr), POINTER(c_void_p))
POST_RECV = ctypes.CFUNCTYPE(c_int, POINTER(QueuePair), POINTER(RecvWr), POINTER(c_void_p))
