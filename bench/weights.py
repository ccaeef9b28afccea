# SPDX-License-Identifier: Apache-2.0
"""The copy of weights from the head beside the walls it can run into, raw TCP and the target's disk, in one run.

    python bench/weights.py [--gb G] [--shards N] [--target DIR] [--rounds N] [--json FILE] [--markdown FILE]

Both hosts are this machine, on two loopback addresses. The head's files are in memory (/dev/shm), because one disk
cannot be read and written as two can. Each round measures TCP (iperf3, one stream and eight), the disk (dd, written
through), and the copy with and without hashing; ratios are of the same round. Then finished weights of 120 sparse
shards are verified again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import add_outputs, publish

ROOT = Path(__file__).resolve().parent.parent
HEAD = "127.0.0.2"
REPO, COMMIT = "org/model", "0" * 40
SHARDS, SHARD_BYTES = 120, 1_463_500_000
TARGETS = {"copy": 0.7, "verify_s": 2.0}


@dataclasses.dataclass
class Round:
    """Rates in bytes a second; ratios over the slower of TCP and disk."""

    tcp_1: float
    tcp_8: float
    disk: float
    copy: float
    copy_unhashed: float

    @property
    def wall(self) -> float:
        return min(max(self.tcp_1, self.tcp_8), self.disk)


def module(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a module as Ansible does, and return what it returned."""
    run = subprocess.run(
        [sys.executable, "-m", f"ansible_collections.sparkpair.serving.plugins.modules.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        cwd=ROOT / "collections",
        capture_output=True,
        text=True,
        check=False,
    )
    result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    if result.get("failed"):
        raise SystemExit(f"{name}: {result['msg']}")
    return result


def make(cache: Path, count: int, size: int) -> list[dict[str, Any]]:
    """Put shards into a cache, and return their manifest. Those of the real size are sparse files."""
    repository = cache / "hub" / f"models--{REPO.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    manifest = []
    for number in range(count):
        # No hash but a plain name: what is measured is not whether random bytes have the right one.
        blob = f"shard-{number}"
        with (repository / "blobs" / blob).open("wb") as file:
            if size < SHARD_BYTES:
                file.write(os.urandom(size))
            else:
                file.truncate(size)
        path = f"model-{number + 1:05}-of-{count:05}.safetensors"
        (snapshot / path).symlink_to(f"../../blobs/{blob}")
        manifest.append({"path": path, "size": size, "blob": blob, "hash": ""})
    return manifest


def tcp(streams: int) -> float:
    """What TCP alone carries between the two addresses."""
    with socket.create_server((HEAD, 0)) as free:
        port = str(free.getsockname()[1])
    serve = ["iperf3", "--server", "--bind", HEAD, "--port", port, "--forceflush", "--one-off"]
    ask = ["iperf3", "--client", HEAD, "--port", port, "--json", "--time", "3", "--parallel", str(streams)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            if server.poll() is not None:
                raise SystemExit("iperf3 does not serve")
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
        server.stdout.read()
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8


def disk(target: Path, size: int) -> float:
    """What the target's disk takes alone, written past the page cache where it can be and to the end."""
    file = target / "written-by-dd"
    command = ["dd", "if=/dev/zero", f"of={file}", "bs=4M", f"count={max(1, size >> 22)}", "conv=fsync"]
    best = 0.0
    for more in (["oflag=direct"], []):
        begun = time.monotonic()
        done = subprocess.run([*command, *more], stderr=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            best = max(best, file.stat().st_size / (time.monotonic() - begun))
        file.unlink(missing_ok=True)
    return best


def copy(head: Path, target: Path, manifest: list[dict[str, Any]], verify: str) -> float:
    """What the copy carries, from the first byte to the verified snapshot."""
    own = {"cache": str(head), "state_dir": str(head / "state")}
    snapshots = [{"repo": REPO, "revision": COMMIT}]
    offer = module("snapshot_offer", address=HEAD, secret="bench", snapshots=snapshots, **own)
    worker = {"cache": str(target / "cache"), "state_dir": str(target / "state"), "repo": REPO, "revision": COMMIT}
    begun = time.monotonic()
    done = module(
        "snapshot_pull",
        **{**worker, "address": HEAD, "port": offer["port"], "secret": "bench"},
        **{"manifest": manifest, "verify": verify, "wait": 3600},
    )
    seconds = time.monotonic() - begun
    module("snapshot_offer", state="absent", address=HEAD, port=offer["port"], **own)
    shutil.rmtree(target / "cache")
    shutil.rmtree(target / "state")
    return float(done["copied_bytes"]) / seconds


def verify_again(place: Path) -> float:
    """Seconds to verify finished weights of the real count and size again."""
    cache, state = place / "finished", place / "finished-state"
    make(cache, SHARDS, SHARD_BYTES)
    sys.path.insert(0, str(ROOT / "collections"))
    from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_cache, _snapshot

    snapshot = _snapshot.Snapshot(str(cache), str(state), REPO, COMMIT)
    files = _hub_cache.files(snapshot.path)
    # As a verification by content leaves it.
    verified = {one["path"]: {"stamp": one["stamp"], "hash": "0" * 64} for one in files}
    snapshot.job.keep("verified", {"verified": verified, "expected": files})
    seconds = []
    for _ in range(3):
        begun = time.monotonic()
        found = module("snapshot_manifest", cache=str(cache), state_dir=str(state), repo=REPO, revision=COMMIT)
        seconds.append(time.monotonic() - begun)
        if found["snapshot"]["state"] != "complete":
            raise SystemExit(f"finished weights are {found['snapshot']['state']}")
    return statistics.median(seconds)


def markdown(rounds: list[Round], again: float, size: int) -> str:
    """The figures as a table for people."""
    lines = [
        "| round | TCP, 1 and 8 streams | disk | copy, hashed | copy, sizes only | ratio, hashed | ratio, sizes only |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, one in enumerate(rounds, start=1):
        rates = (one.tcp_1, one.tcp_8, one.disk, one.copy, one.copy_unhashed)
        tcp_1, tcp_8, written, hashed, unhashed = (f"{rate / 1e6:,.0f}" for rate in rates)
        lines.append(
            f"| {number} | {tcp_1}, {tcp_8} | {written} | {hashed} | {unhashed} | {one.copy / one.wall:.2f} |"
            f" {one.copy_unhashed / one.wall:.2f} |"
        )
    hashed_ratio = statistics.median(one.copy / one.wall for one in rounds)
    ratio = statistics.median(one.copy_unhashed / one.wall for one in rounds)
    lines += [
        "",
        f"MB/s; {size / 1e9:.1f} GB a round. Medians of the ratios: {hashed_ratio:.2f} hashed, {ratio:.2f} by sizes "
        f"only; wanted at least {TARGETS['copy']}.",
        f"{SHARDS} finished shards verified again: {again:.2f} s; wanted at most {TARGETS['verify_s']:.0f} s.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=3.0, help="how much is copied (default %(default)s)")
    parser.add_argument("--shards", type=int, default=12, help="in how many files (default %(default)s)")
    parser.add_argument("--target", type=Path, help="a directory on the disk to copy to (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions (default %(default)s)")
    add_outputs(parser)
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        raise SystemExit("this measures raw TCP with iperf3: apt-get install iperf3")
    size = int(options.gb * 1e9 / options.shards)
    with (
        tempfile.TemporaryDirectory(prefix="sparkpair-head-", dir="/dev/shm") as head,
        tempfile.TemporaryDirectory(prefix="sparkpair-bench-", dir=options.target) as target,
    ):
        manifest = make(Path(head), options.shards, size)
        rounds = []
        for _ in range(options.rounds):
            limits = (tcp(1), tcp(8), disk(Path(target), size * options.shards))
            copies = [copy(Path(head), Path(target), manifest, verify) for verify in ("content", "size")]
            rounds.append(Round(*limits, *copies))
        again = verify_again(Path(target))
    text = markdown(rounds, again, size * options.shards)
    figures = {"rounds": [dataclasses.asdict(one) for one in rounds], "verify_again_s": again, "wanted": TARGETS}
    publish(options, text, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
