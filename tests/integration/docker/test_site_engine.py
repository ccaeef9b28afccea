# SPDX-License-Identifier: Apache-2.0
"""The engine of this repository in containers: the real one, on two Docker daemons, with a miniature that it wrote."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.docker.sparks import Sparks
from tests.integration.plays import play
from tests.integration.site import WORKER

IMAGE = "sparkpair-test-engine:1"
# Of what PyTorch needs the base image lacks this; the installed packages themselves are lent by the tests' runtime.
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")


@pytest.fixture(scope="module")
def pair(daemons: list[Daemon], miniature: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparks]:
    """A pair of which only the head has the image, and only the worker a checkpoint."""
    home = tmp_path_factory.mktemp("engine")
    if not LIBRARY.exists():
        pytest.skip(f"the image is made with {LIBRARY}: apt-get install libstdc++6")
    (home / "image").mkdir()
    shutil.copy(LIBRARY, home / "image" / "libstdc++.so.6")
    program = home / "image" / "sparkpair"
    program.write_text('#!/bin/sh\nexec python3 -m sparkpair "$@"\n')
    program.chmod(0o755)
    (home / "image" / "Dockerfile").write_text(
        f"FROM {BASE}\nCOPY libstdc++.so.6 {LIBRARY}\nCOPY sparkpair /usr/local/bin/sparkpair\n"
        "ENV PYTHONPATH=/lent/engine:/lent/packages\n"
    )
    daemons[0].run("build", "--network", "none", "--tag", IMAGE, str(home / "image"))
    sparks = Sparks(home / "pair", daemons, engine="sparkpair", runtime="container", image=IMAGE, context=4096)
    shutil.copytree(miniature, sparks.state_dir(WORKER) / "checkpoints" / "miniature-seed0")
    yield sparks
    for daemon in daemons:
        daemon.remove_containers()
        daemon.run("image", "rm", "--force", IMAGE, check=False)


def test_the_real_engine_serves_from_containers_and_shows_what_random_weights_can(pair: Sparks, tmp_path: Path) -> None:
    live = pair.converge()
    told = live.told("Say how the pair serves")
    assert "engine    sparkpair" in told
    assert "through   rank 0 at step" in told
    for host, daemon in pair.daemons.items():
        seen = daemon.inspect("sparkpair")
        assert seen["Config"]["User"] == "0:0"
        mounts = {mount["Destination"]: mount["RW"] for mount in seen["Mounts"]}
        state = str(pair.state_dir(host))
        assert mounts == {f"{state}/checkpoints/miniature-seed0": False, f"{state}/cache": True}
    assert pair.run("site").changed == 0
    # Of the checks of a live pair those that ask this engine for something of its own and need no trained weights; that
    # the verb asks all of them is shown with the other engine.
    options = {"url": f"http://127.0.0.1:{pair.port}", "model": "GLM-5.3-Flash-miniature", "trained": False}
    options["only"] = ["structured output", "prompt reuse"]
    asked = play(tmp_path, [{"sparkpair.serving.serving_check": options}])
    assert {one["name"]: one["verdict"] for one in asked.one()["checks"]} == {
        "structured output": "passed",
        "prompt reuse": "passed",
    }
    down = pair.run("teardown")
    assert down.returncode == 0, down.output
    assert [daemon.names() for daemon in pair.daemons.values()] == [[], []]
    # A clean end: rank 0 had told the other.
    assert "ended with exit code 0" in pair.saved(WORKER)[-1].splitlines()[0]


def test_an_image_that_is_nowhere_is_refused_by_name(pair: Sparks) -> None:
    refused = pair.run("site", image="nowhere:1")
    assert "there is no image nowhere:1 in Docker at unix://" in refused.failure()
