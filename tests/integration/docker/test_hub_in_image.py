# SPDX-License-Identifier: Apache-2.0
"""A head without the Hub's library downloads in a container of the engine's image, as the cache's owner."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from pathlib import Path

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.hub.hosts import COLLECTIONS, REPO, Host, checkpoint
from tests.integration.hub.hub import Hub, serving

IMAGE = "sparkpair-test-hub:1"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
OWNER = 12345
# Hides the library from the Python that runs the module.
HIDDEN = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "huggingface_hub" else found(name, *rest)
"""


def with_library(daemon: Daemon, context: Path) -> None:
    """Make an image with the Hub's library, taken from the environment that runs the tests."""
    wanted: dict[str, importlib.metadata.Distribution] = {}
    waiting = ["huggingface_hub"]
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        # What another system or Python needs is not installed here.
        if name not in wanted and any(importlib.metadata.distributions(name=name)):
            wanted[name] = importlib.metadata.distribution(name)
            waiting += [need for need in wanted[name].requires or [] if "extra ==" not in need]
    for distribution in wanted.values():
        for file in distribution.files or []:
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                target = context / "packages" / str(file)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY packages /usr/lib/python3/dist-packages/\n")
    daemon.run("build", "--network", "none", "--tag", IMAGE, str(context))


def test_the_image_downloads_as_the_owner_and_no_inspection_shows_the_token(
    clean: list[Daemon], tmp_path: Path
) -> None:
    daemon = clean[0]
    (tmp_path / "image").mkdir()
    with_library(daemon, tmp_path / "image")
    # The account whose cache it is may talk to Docker, as on a Spark.
    os.chmod(daemon.socket.removeprefix("unix://"), 0o666)
    for place in (daemon.home, tmp_path, *tmp_path.parents):
        place.chmod(place.stat().st_mode | 0o011)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    head = Host(tmp_path / "head")
    head.cache.mkdir(parents=True)
    os.chown(head.cache, OWNER, OWNER)
    environment = {
        "HF_TOKEN": TOKEN,
        "PATH": f"{daemon.programs}:/usr/bin:/bin",
        "PYTHONPATH": f"{tmp_path / 'hidden'}:{COLLECTIONS}",
    }
    with serving(Hub({REPO: checkpoint()})) as hub:
        hub.repositories[REPO].token = TOKEN
        arguments = {"endpoint": hub.endpoint, "image": IMAGE, "docker_host": daemon.socket}
        hub.held_after = 1000
        hub.flowing.clear()
        begun = head.run("hf_snapshot", environment=environment, wait=0, **arguments)
        assert begun["finished"] is False, begun
        while not (names := daemon.names()):
            assert head.run("hf_snapshot", environment=environment, wait=0.5, **arguments)["finished"] is False
        seen = daemon.run("inspect", *names).stdout
        assert (TOKEN in seen, f"{OWNER}:{OWNER}" in seen) == (False, True)
        hub.flowing.set()
        done = head.run("hf_snapshot", environment=environment, wait=60, **arguments)
        assert done.get("snapshot", {}).get("state") == "complete", done["msg"]
        assert head.contents() == hub.repositories[REPO].files
    assert {path.lstat().st_uid for path in head.cache.rglob("*")} == {OWNER}
    assert daemon.names() == []
    daemon.run("image", "rm", "--force", IMAGE)
