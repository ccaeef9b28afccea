# SPDX-License-Identifier: Apache-2.0
"""Says once, in the log, what clients send that has no effect here."""

from __future__ import annotations

import logging
from itertools import islice

from sparkpair.api.fields import Fields
from sparkpair.api.params import HARMLESS

logger = logging.getLogger(__name__)

_MOST = 256


class Notices:
    """Remembers what has been said. Bounded: clients choose the names, so neither memory nor log may grow
    with them.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def unknown(self, route: str, fields: Fields) -> None:
        """Say so of the fields that a route was sent and did not ask for; of very many, of the first."""
        for name in islice(fields.unknown(), _MOST):
            if name not in HARMLESS:
                self.ignored(route, name)

    def ignored(self, route: str, field: str) -> None:
        """Log once that a field of a route is accepted and ignored."""
        text = f"{route}: {field[:64]!r}"
        if text not in self._said and len(self._said) < _MOST:
            self._said.add(text)
            logger.warning("%s is accepted and ignored; this is said once", text)
