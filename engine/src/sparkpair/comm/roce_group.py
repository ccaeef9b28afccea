# SPDX-License-Identifier: Apache-2.0
"""A tensor group that sends small tensors as one-shot RDMA writes and the others as torch does.

Both ways every rank has every rank's part and adds in rank order, so that results are the same bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparkpair.comm.group import TensorGroup
from sparkpair.comm.rails import look_at_rails
from sparkpair.comm.roce import OneShotGather
from sparkpair.comm.roce_settings import RoceSettings

if TYPE_CHECKING:
    from sparkpair.settings import ServeSettings


def open_rails(settings: RoceSettings | None, rank: int, world: int) -> OneShotGather | None:
    """Open the devices and register memory, before the ranks join. Raises UserError naming what is missing here."""
    if settings is None:
        return None
    return OneShotGather(
        rank,
        world,
        look_at_rails(settings.rails),
        settings.max_kb * 1024,
        settings.wait_s,
        lambda line: print(line, file=sys.stderr, flush=True),
    )


def open_group(
    settings: ServeSettings, gather: OneShotGather | None, gone: Callable[[float], bool], store: Any, address: str
) -> TensorGroup:
    """The group of all ranks, over opened rails where there are any. Raises UserError when one carries nothing.

    `gone` waits so many seconds for a peer's control channel to close, and says whether one has. For `address` see
    TensorGroup.
    """
    rank, world, timeout_s, device = settings.rank, settings.tp, settings.peer_timeout, torch.device(settings.device)
    if gather is None:
        return TensorGroup(store, rank, world, address=address, timeout_s=timeout_s, device=device)
    gather.gone = gone
    return RoceGroup(gather, store, rank, world, address=address, timeout_s=timeout_s, device=device)


class RoceGroup(TensorGroup):
    """See TensorGroup. Parts of up to `gather.payload` bytes go over the rails.

    Larger ones are few, those of prompts, and bound by the link's speed rather than by its latency; every byte of the
    limit costs locked memory twice a rank. Operations raise PeerLost when a peer is lost on the rails.
    """

    def __init__(
        self,
        gather: OneShotGather,
        store: Any,
        rank: int,
        world: int,
        *,
        address: str,
        timeout_s: float,
        device: torch.device,
    ) -> None:
        super().__init__(store, rank, world, address=address, timeout_s=timeout_s, device=device)
        self._one_shot = gather
        self._table = torch.frombuffer(gather.table, dtype=torch.uint8)
        self._settled = False
        gather.connect(self._exchange(gather.endpoint))
        # Nobody may write before everybody is ready to be written to.
        self._meet()
        gather.try_rails()

    def _exchange(self, endpoint: dict[str, Any]) -> list[dict[str, Any]]:
        """Every rank's endpoint, in rank order."""
        text = json.dumps(endpoint).encode()
        lengths = super()._gather(torch.tensor([len(text)], device=self._device))
        longest = max(int(length) for length in lengths)
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8).to(self._device)
        return [json.loads(part.cpu().numpy().tobytes()) for part in super()._gather(padded)]

    def _meet(self) -> None:
        super()._gather(torch.zeros(1, device=self._device))

    def settle(self) -> None:
        """See Group."""
        self._settled = True

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's `tensor`; those on CPUs lie in the table, and are there until the next call."""
        if not self._goes_over_rails(tensor.nbytes):
            return super()._gather(tensor)
        if not self._settled:
            # A rank that still compiles is not late, and is waited for as long as torch's limit says.
            self._meet()
        begin = self._one_shot.begin(tensor.nbytes)
        self._at(begin, tensor).copy_(tensor)
        self.waiting = True
        places = self._one_shot.finish()
        self.waiting = False
        return [self._at(place, tensor).to(self._device) for place in places]

    def _goes_over_rails(self, nbytes: int) -> bool:
        """The one place that decides which way a tensor takes; the same on all ranks, whose parts are alike."""
        return 0 < nbytes <= self._one_shot.payload

    def _at(self, place: int, like: Tensor) -> Tensor:
        return self._table[place : place + like.nbytes].view(like.dtype).view(like.shape)
