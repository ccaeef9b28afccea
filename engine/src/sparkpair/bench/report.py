# SPDX-License-Identifier: Apache-2.0
"""Runs the chosen measurements and writes them down: JSON with everything, Markdown with tables."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import platform
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from sparkpair.bench import measures
from sparkpair.bench.client import Client
from sparkpair.bench.measures import Row
from sparkpair.bench.plan import MODES, Plan
from sparkpair.errors import UserError


def run(client: Client, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure; the document with what was measured, where, and how the server was before and after."""
    before = client.get("/health")
    document: dict[str, Any] = {
        "url": client.url,
        "model": client.model,
        "server": {name: before[name] for name in ("backend", "version", "world_size") if name in before},
        "client": platform.platform(),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "plan": dataclasses.asdict(plan),
    }
    for mode in plan.modes:
        say(f"measuring {mode}")
        document[mode] = _MEASURES[mode](client, plan)
    document["health_before"], document["health_after"] = before, client.get("/health")
    return document


def _decode(client: Client, plan: Plan) -> list[Row]:
    rows = []
    for kind in plan.kinds:
        for streams in plan.streams:
            waves = [measures.decode(client, kind, streams, plan.tokens) for _ in range(plan.repeats)]
            rates = [wave["aggregate_tok_s"] for wave in waves]
            middle = min(waves, key=lambda wave: abs(wave["aggregate_tok_s"] - statistics.median(rates)))
            rows.append(middle | {"slowest_tok_s": min(rates), "fastest_tok_s": max(rates)})
    return rows


def _fill(client: Client, plan: Plan) -> list[Row]:
    return [measures.fill(client, max(plan.words), min(3, max(plan.streams)), plan.tokens)]


_MEASURES: dict[str, Callable[[Client, Plan], list[Row]]] = {
    "decode": _decode,
    "prefill": lambda client, plan: measures.prefill(client, plan.words),
    "reuse": lambda client, plan: measures.reuse(client, max(plan.words)),
    "fill": _fill,
}


def markdown(document: dict[str, Any]) -> str:
    """The document as tables."""
    server = " ".join(str(value) for value in document["server"].values())
    parts = [f"Model {document['model']} at {document['url']} ({server or 'unknown server'}), {document['at']}."]
    parts += [f"### {mode.capitalize()}\n\n{table(document[mode])}" for mode in MODES if mode in document]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; lists are left to the JSON."""
    names = [name for name, value in rows[0].items() if not isinstance(value, list)]
    lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "| " + "--- | " * len(names)]
    lines += ["| " + " | ".join(_shown(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)


def write(path: pathlib.Path | None, text: str, flag: str) -> None:
    """Write a file that was asked for. Raises UserError."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{flag} {path} cannot be written: {error.strerror}") from None


def write_both(document: dict[str, Any], json_path: pathlib.Path | None, markdown_path: pathlib.Path | None) -> None:
    """Write the files that were asked for."""
    write(json_path, json.dumps(document, indent=2) + "\n", "--json")
    write(markdown_path, markdown(document), "--markdown")
