# SPDX-License-Identifier: Apache-2.0
"""A thin layer on libibverbs: an opened device, registered memory, reliable queue pairs that write with an immediate.

Knows nothing of ranks or gathers and needs no torch. Failures are VerbsError with what was tried and the system's
reason; who knows the settings makes a sentence for people of it. What is opened lives as long as the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import socket
from typing import Any, NamedTuple

from sparkpair.comm import verbs_abi as abi

SONAME = "libibverbs.so.1"
PORT_NUMBER = 1

# A write that is not acknowledged is sent again after 4.096 us * 2^18, which is 1.07 s, and seven times at most: a
# cable may be out for some seconds, and a machine may stand still as long, before a queue pair gives up.
ACK_TIMEOUT, RETRIES = 18, 7
# A write that finds no posted receive is an error at once: credits make that impossible.
RNR_RETRIES = 0
HOP_LIMIT = 64

# Completions taken with one call.
_BATCH = 16


class VerbsError(Exception):
    """A call of libibverbs failed; `number` is its errno, 0 where it has none."""

    def __init__(self, what: str, number: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)}" if number else what)
        self.number = number


class Completion(NamedTuple):
    """What happened on a queue pair: a write of the peer arrived (`immediate`), or one of ours is acknowledged.

    `failure` is empty when all is well; `flushed` says that the cause is another completion's.
    """

    pair: int
    received: bool
    tag: int
    immediate: int
    failure: str
    flushed: bool


def load_library() -> Any:
    """libibverbs with its functions declared. Raises VerbsError when it is not there."""
    try:
        library = ctypes.CDLL(SONAME, use_errno=True)
    except OSError as error:
        raise VerbsError(str(error)) from None
    for name, (result, arguments) in abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Memory:
    """Anonymous memory that devices may read and peers may write; a child process does not get it."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        # A copy for a child made by fork would take the pages away under the device.
        self._map.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size


class Device:
    """An opened device with one completion queue. Raises VerbsError."""

    def __init__(self, library: Any, name: str, completions: int) -> None:
        self._library = library
        self.name = name
        self._context = self._open(name)
        self._pd = self._need("ibv_alloc_pd", self._context)
        self._channel = self._need("ibv_create_comp_channel", self._context)
        self.fd = int(self._channel.contents.fd)
        self._cq = self._need("ibv_create_cq", self._context, completions, None, self._channel, 0)
        ops = self._context.contents.ops
        self._poll = abi.POLL_CQ(ops[abi.OP_POLL_CQ])
        self._notify = abi.REQ_NOTIFY_CQ(ops[abi.OP_REQ_NOTIFY_CQ])
        self._post_send = abi.POST_SEND(ops[abi.OP_POST_SEND])
        self._post_recv = abi.POST_RECV(ops[abi.OP_POST_RECV])
        self._found = (abi.Wc * _BATCH)()
        attributes = abi.PortAttr()
        self._check("ibv_query_port", self._context, PORT_NUMBER, ctypes.byref(attributes))
        # As the interface has it: 1 is 256 bytes, 3 is 1024, 5 is 4096.
        self.mtu = int(attributes.active_mtu)

    def _open(self, name: str) -> Any:
        count = ctypes.c_int()
        devices = self._library.ibv_get_device_list(ctypes.byref(count))
        if not devices:
            raise VerbsError("ibv_get_device_list", ctypes.get_errno())
        try:
            for index in range(count.value):
                if self._library.ibv_get_device_name(devices[index]) == name.encode():
                    return self._need("ibv_open_device", devices[index])
        finally:
            self._library.ibv_free_device_list(devices)
        raise VerbsError("libibverbs has no driver for it")

    def _need(self, function: str, *arguments: Any) -> Any:
        ctypes.set_errno(0)
        result = getattr(self._library, function)(*arguments)
        if not result:
            raise VerbsError(function, ctypes.get_errno())
        return result

    def _check(self, function: str, *arguments: Any) -> None:
        # These return the errno and do not set it.
        number = getattr(self._library, function)(*arguments)
        if number:
            raise VerbsError(function, abs(number))

    def register(self, memory: Memory) -> tuple[int, int]:
        """Make the memory known to the device: its local and its remote key."""
        access = abi.ACCESS_LOCAL_WRITE | abi.ACCESS_REMOTE_WRITE
        region = self._need("ibv_reg_mr", self._pd, memory.address, memory.size, access)
        return int(region.contents.lkey), int(region.contents.rkey)

    def create_pair(self, sends: int, receives: int) -> QueuePair:
        """A new reliable queue pair, not connected yet."""
        wanted = abi.QpInitAttr(
            send_cq=self._cq, recv_cq=self._cq, qp_type=abi.QPT_RC, sq_sig_all=0, cap=abi.QpCap(sends, receives, 1, 1)
        )
        return QueuePair(self, self._need("ibv_create_qp", self._pd, ctypes.byref(wanted)), receives)

    def poll(self) -> list[Completion]:
        """What has happened since; never waits."""
        count = self._poll(self._cq, _BATCH, self._found)
        if count < 0:
            raise VerbsError("ibv_poll_cq", -count)
        return [self._completion(self._found[index]) for index in range(count)] if count else []

    def _completion(self, found: Any) -> Completion:
        failure = ""
        if found.status != abi.WC_SUCCESS:
            reason = self._library.ibv_wc_status_str(found.status).decode()
            failure = f"{reason} (vendor error {found.vendor_err:#x})"
        # The opcode is not told of a failed one.
        received = not failure and bool(found.opcode & abi.WC_OPCODE_RECV)
        immediate = socket.ntohl(found.imm_data) if received else 0
        flushed = found.status == abi.WC_WR_FLUSH_ERR
        return Completion(int(found.qp_num), received, int(found.wr_id), immediate, failure, flushed)

    def arm(self) -> None:
        """Have the next completion make `fd` readable. What came before does not: poll once more after this."""
        number = self._notify(self._cq, 0)
        if number:
            raise VerbsError("ibv_req_notify_cq", number)

    def take_event(self) -> None:
        """Take the notice that made `fd` readable."""
        queue, context = ctypes.c_void_p(), ctypes.c_void_p()
        if self._library.ibv_get_cq_event(self._channel, ctypes.byref(queue), ctypes.byref(context)):
            raise VerbsError("ibv_get_cq_event", ctypes.get_errno())
        self._library.ibv_ack_cq_events(self._cq, 1)

    def modify(self, pair: Any, mask: int, **fields: Any) -> None:
        """Change the fields of a queue pair that `mask` names."""
        self._check("ibv_modify_qp", pair, ctypes.byref(abi.QpAttr(**fields)), mask)


class QueuePair:
    """One end of a reliable connection; `number` and `first` (its first packet's number) are what the peer needs."""

    def __init__(self, device: Device, pair: Any, receives: int) -> None:
        self._device = device
        self._pair = pair
        self._receives = receives
        self.number = int(pair.contents.qp_num)
        self.first = secrets.randbits(24)
        self._piece = abi.Sge()
        self._send = abi.SendWr(
            sg_list=ctypes.pointer(self._piece),
            num_sge=1,
            opcode=abi.WR_RDMA_WRITE_WITH_IMM,
            send_flags=abi.SEND_SIGNALED,
        )
        # What is received is written where the peer says; the receive itself only carries the notice.
        self._receive = abi.RecvWr()
        self._refused = ctypes.c_void_p()

    def connect(self, gid_index: int, mtu: int, peer_gid: bytes, peer_number: int, peer_first: int) -> None:
        """Connect to a peer's end; from then on it may write. Raises VerbsError."""
        modify, pair = self._device.modify, self._pair
        modify(
            pair,
            abi.QP_STATE | abi.QP_PKEY_INDEX | abi.QP_PORT | abi.QP_ACCESS_FLAGS,
            qp_state=abi.QPS_INIT,
            port_num=PORT_NUMBER,
            qp_access_flags=abi.ACCESS_LOCAL_WRITE | abi.ACCESS_REMOTE_WRITE,
        )
        for _ in range(self._receives):
            self.post_receive()
        route = abi.GlobalRoute(sgid_index=gid_index, hop_limit=HOP_LIMIT)
        route.dgid.raw[:] = peer_gid
        modify(
            pair,
            abi.QP_STATE | abi.QP_AV | abi.QP_PATH_MTU | abi.QP_DEST_QPN | abi.QP_RQ_PSN | abi.QP_MAX_DEST_RD_ATOMIC
            | abi.QP_MIN_RNR_TIMER,
            qp_state=abi.QPS_RTR,
            path_mtu=mtu,
            dest_qp_num=peer_number,
            rq_psn=peer_first,
            ah_attr=abi.AhAttr(grh=route, is_global=1, port_num=PORT_NUMBER),
        )  # fmt: skip
        modify(
            pair,
            abi.QP_STATE | abi.QP_TIMEOUT | abi.QP_RETRY_CNT | abi.QP_RNR_RETRY | abi.QP_SQ_PSN
            | abi.QP_MAX_QP_RD_ATOMIC,
            qp_state=abi.QPS_RTS,
            timeout=ACK_TIMEOUT,
            retry_cnt=RETRIES,
            rnr_retry=RNR_RETRIES,
            sq_psn=self.first,
        )  # fmt: skip

    def post_receive(self) -> None:
        """Be ready for one more write of the peer."""
        number = self._device._post_recv(self._pair, self._receive, self._refused)
        if number:
            raise VerbsError("ibv_post_recv", abs(number))

    def write(self, local: int, lkey: int, length: int, remote: int, rkey: int, immediate: int, tag: int) -> None:
        """Write `length` bytes at the address `local` to the peer's address `remote`, and tell it `immediate`.

        The bytes must stay as they are until a completion brings `tag` back.
        """
        piece, send = self._piece, self._send
        piece.addr, piece.length, piece.lkey = local, length, lkey
        send.wr_id, send.imm_data, send.remote_addr, send.rkey = tag, socket.htonl(immediate), remote, rkey
        number = self._device._post_send(self._pair, send, self._refused)
        if number:
            raise VerbsError("ibv_post_send", abs(number))
