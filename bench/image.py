# SPDX-License-Identifier: Apache-2.0
"""An image sent from the head's Docker to the worker's beside its slowest stage alone (reading, the link, loading), and
beside the plain pipe from `docker save` to `docker load`.

    python bench/image.py [--mb M] [--rounds N] [--json FILE] [--markdown FILE]

Two daemons of this machine stand for the two hosts, each with its own data and a core of its own, and loopback for the
link. Every round makes an image of random bytes that neither has, so that nothing is skipped. The bound is what no
sender can pass that reads with `docker save` and loads with one `docker load`: nothing is there to load before the
first byte has been given, and loading takes its time even when all is at hand. Needs root, docker.io and mmdebstrap,
as the tests do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from report import add_outputs, publish

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.integration.docker.daemons import BASE, DOCKER, Daemon, missing, running  # noqa: E402

NAME = "sparkpair-bench-image:1"
LAYERS = 4
WANTED = 1.5


@dataclasses.dataclass
class Round:
    """Seconds of the stages alone and of the whole; `first` is when reading has given its first byte."""

    first: float
    save: float
    link: float
    load: float
    piped: float
    whole: float

    @property
    def wall(self) -> float:
        return max(self.save, self.link, self.load)

    @property
    def bound(self) -> float:
        return self.first + self.load


def seconds(work: Any) -> float:
    """How long a piece of work takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def core(host: int) -> int:
    """The core of this machine that stands for those of a host: two machines do not share theirs."""
    return sorted(os.sched_getaffinity(0))[host % len(os.sched_getaffinity(0))]


def at(host: int) -> list[str]:
    """What a program is started with to run there."""
    return ["taskset", "--cpu-list", str(core(host))]


def make(head: Daemon, place: Path, size: int) -> None:
    """Give the head an image of some layers of random bytes."""
    lines = [f"FROM {BASE}"]
    for number in range(LAYERS):
        (place / f"layer-{number}").write_bytes(os.urandom(size // LAYERS))
        lines.append(f"COPY layer-{number} /layer-{number}")
    (place / "Dockerfile").write_text("\n".join(lines) + "\n")
    head.run("build", "--network", "none", "--tag", NAME, str(place))


def over_loopback(size: int) -> None:
    """Send so many bytes from one socket to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            with socket.create_connection(server.getsockname()) as connection:
                left, data = size, bytes(1 << 20)
                while left > 0:
                    connection.sendall(data[: min(left, len(data))])
                    left -= len(data)

        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer = bytearray(1 << 20)
            while connection.recv_into(buffer):
                pass
        sender.join()


def send(head: Daemon, worker: Daemon, place: Path) -> None:
    """Send the image with the module, as the role does."""
    arguments = {
        "name": NAME,
        "docker_host": head.socket,
        "to": at(1),
        "to_docker_host": worker.socket,
        "progress": str(place / "progress"),
    }
    done = subprocess.run(
        [*at(0), sys.executable, "-m", "ansible_collections.sparkpair.serving.plugins.modules.image_stream"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections"), "PATH": f"{head.programs}:{os.environ['PATH']}"},
        cwd=ROOT / "collections",
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if result.get("failed") or not result["changed"]:
        raise SystemExit(f"the image was not sent: {result.get('msg', 'it was there')}")


def first_byte(saver: list[str]) -> float:
    """How long reading takes until there is anything to send."""
    begun = time.monotonic()
    with subprocess.Popen(saver, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        taken = time.monotonic() - begun
        process.kill()
    return taken


def pipe(saver: list[str], loader: list[str]) -> None:
    """Send the image as one would by hand."""
    with subprocess.Popen(saver, stdout=subprocess.PIPE) as source:
        subprocess.run(loader, stdin=source.stdout, stdout=subprocess.DEVNULL, check=True)


def measure(head: Daemon, worker: Daemon, place: Path, size: int) -> Round:
    """Each stage alone, then the whole, with an image that is new to the worker each time."""
    make(head, place, size)
    archive = place / "image.tar"
    saver = [*at(0), str(DOCKER), "-H", head.socket, "save", NAME]
    loader = [*at(1), str(DOCKER), "-H", worker.socket, "load", "--quiet"]
    with archive.open("wb") as file:
        subprocess.run(saver, stdout=file, check=True)
    save = seconds(lambda: subprocess.run(saver, stdout=subprocess.DEVNULL, check=True))
    first = first_byte(saver)
    link = seconds(lambda: over_loopback(archive.stat().st_size))
    with archive.open("rb") as file:
        load = seconds(lambda: subprocess.run(loader, stdin=file, stdout=subprocess.DEVNULL, check=True))
    archive.unlink()
    worker.run("image", "rm", "--force", NAME)
    piped = seconds(lambda: pipe(saver, loader))
    worker.run("image", "rm", "--force", NAME)
    whole = seconds(lambda: send(head, worker, place))
    worker.run("image", "rm", "--force", NAME)
    return Round(first, save, link, load, piped, whole)


def markdown(rounds: list[Round], size: int) -> str:
    """The figures as a table for people."""
    lines = [
        "| round | first byte, s | reading alone | link alone | loading alone | piped | sent "
        "| ratio, piped | ratio, sent | bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, one in enumerate(rounds, start=1):
        lines.append(
            f"| {number} | {one.first:.1f} | {one.save:.1f} | {one.link:.1f} | {one.load:.1f} | {one.piped:.1f} |"
            f" {one.whole:.1f} |"
            f" {one.piped / one.wall:.2f} | {one.whole / one.wall:.2f} |"
            f" {one.bound / one.wall:.2f} |"
        )
    ratios = [one.whole / one.wall for one in rounds]
    lines += [
        "",
        f"{size / 1e6:.0f} MB a round. Sent: median {statistics.median(ratios):.2f}, best {min(ratios):.2f}; ",
    ]
    lines[-1] += f"wanted at most {WANTED}."
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=800, help="size of the image (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions (default %(default)s)")
    add_outputs(parser)
    options = parser.parse_args()
    if packages := missing():
        raise SystemExit(f"this starts Docker daemons of its own: apt-get install {packages}")
    size = options.mb * 1_000_000
    with running(2) as (head, worker), tempfile.TemporaryDirectory(prefix="sparkpair-bench-") as place:
        for host, daemon in enumerate((head, worker)):
            # With every thread that it has; what it starts later stays there too.
            for thread in Path(f"/proc/{daemon.process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core(host)})
        rounds = [measure(head, worker, Path(place), size) for _ in range(options.rounds)]
    text = markdown(rounds, size)
    publish(options, text, {"rounds": [dataclasses.asdict(one) for one in rounds], "wanted": WANTED})
    return 0


if __name__ == "__main__":
    sys.exit(main())
