# SPDX-License-Identifier: Apache-2.0
"""The playbooks of the collection on the virtual machines, as a user runs them: with inventories/pair and settings."""

from __future__ import annotations

import datetime
import json
from typing import Any

from tests.integration.site import Run, play

# A start on emulated processors takes minutes.
LIMIT_S = 1200


def run(playbook: str, *arguments: str, inventory: str = "pair", **settings: Any) -> Run:
    """Run a playbook with settings that win over those of one of this repository's inventories."""
    ours = json.dumps({f"sparkpair_{name}": value for name, value in settings.items()})
    words = ["-i", f"inventories/{inventory}", f"playbooks/{playbook}.yml", "-e", ours, *arguments]
    done = play(*words, limit_s=LIMIT_S)
    print(f"{' '.join(words)}: exit code {done.returncode}, {done.changed} changed; {slowest(done)}")
    return done


def live(inventory: str = "pair", **settings: Any) -> Run:
    """Run the site playbook, which must end LIVE."""
    found = run("site", inventory=inventory, **settings)
    assert found.returncode == 0, complaints(found)
    assert found.told("Say how the pair serves").startswith("LIVE")
    return found


def complaints(run: Run) -> str:
    """What the failed tasks of a run say, and what changed something; everything it printed would fill pages."""
    said = []
    for task in run.tasks:
        for host, result in task["hosts"].items():
            if result.get("failed") or result.get("unreachable"):
                failed = [one for one in result.get("results", ()) if one.get("failed")] or [result]
                said += [f"{host}: {task['task']['name']}: {one.get('msg') or one}" for one in failed]
            elif result.get("changed"):
                said.append(f"{host}: {task['task']['name']}: changed")
    return "\n".join(said) or run.output[-4000:]


def slowest(run: Run, least_s: float = 5) -> str:
    """The tasks that took long, in seconds."""
    # A task that no host has finished has no end.
    ended = [task["task"] for task in run.tasks if "end" in task["task"]["duration"]]
    took = [(task["name"].split(" : ")[-1], _seconds(task["duration"])) for task in ended]
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took if seconds >= least_s)


def _seconds(duration: dict[str, str]) -> float:
    begin, end = (datetime.datetime.fromisoformat(duration[key]) for key in ("start", "end"))
    return (end - begin).total_seconds()
