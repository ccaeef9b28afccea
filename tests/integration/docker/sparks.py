# SPDX-License-Identifier: Apache-2.0
"""Two Sparks as far as one machine can be them: two Docker daemons, two caches of weights, one loopback address."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.site import HEAD, WORKER, Run, Site

NAME = "glm53-flash-tf"
IMAGE = "tensorfold-glm53:v0.6.0"
PATCHES = "a1897d591f70"
MODEL = ("Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold", "078455ffe6472f9a52fbc1139f58b9db2881b25c")
DRAFTER = ("incoai/GLM-5.3-Flash-DFlash2", "bf582e4eacc1810f76656d1811693ff6c6737d2a")
PROGRAM = Path(__file__).with_name("tensorfold_stand_in.py")


def make_image(daemon: Daemon, context: Path, name: str = IMAGE, patches: str = PATCHES, more: str = "") -> None:
    """Make an image whose program tensorfold is the stand-in, as the published one is labelled."""
    context.mkdir(exist_ok=True)
    (context / "tensorfold").write_text(PROGRAM.read_text())
    (context / "tensorfold").chmod(0o755)
    lines = [f"FROM {BASE}", "COPY tensorfold /usr/local/bin/tensorfold", more, f"LABEL tf.patches={patches}"]
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    daemon.run("build", "--network", "none", "--tag", name, str(context))


class Sparks(Site):
    """A head and a worker that run TensorFold's stand-in in containers."""

    def __init__(self, home: Path, daemons: list[Daemon], **of_the_engine: Any) -> None:
        super().__init__(home, programs=[daemons[0].programs])
        home.mkdir(exist_ok=True)
        self.daemons = dict(zip((HEAD, WORKER), daemons, strict=True))
        self.settings: dict[str, Any] = {}
        local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        hosts = {host: {"sparkpair_docker_host": daemon.socket} for host, daemon in self.daemons.items()}
        tensorfold = {
            "engine": "tensorfold",
            "hf_cache": f"{home}/{{{{ inventory_hostname }}}}-cache",
            "kernel_cache": f"{home}/{{{{ inventory_hostname }}}}-kernels",
            # No Hub: what is in the caches has to do.
            "hub_endpoint": "http://127.0.0.1:9",
        }
        common = {
            "fabric_address": "127.0.0.1",
            "host": "127.0.0.1",
            "memory_reserve_gib": 1,
            "stop_timeout": 5,
            "wait_timeout": 90,
        }
        of_the_engine = of_the_engine or tensorfold
        settings = {f"sparkpair_{name}": value for name, value in {**common, **of_the_engine}.items()}
        children = {"head": {"hosts": {HEAD: hosts[HEAD]}}, "workers": {"hosts": {WORKER: hosts[WORKER]}}}
        self.inventory = home / "inventory.json"
        self.inventory.write_text(json.dumps({"sparks": {"vars": {**local, **settings}, "children": children}}))

    def run(self, playbook: str, *arguments: str, **settings: Any) -> Run:
        return super().run(playbook, "-i", str(self.inventory), *arguments, **{**self.settings, **settings})

    def give_weights(self) -> None:
        """Put the pinned snapshots into both caches, as small as they can be."""
        for host in self.daemons:
            for repository, revision in (MODEL, DRAFTER):
                place = self.home / f"{host}-cache" / "hub" / f"models--{repository.replace('/', '--')}"
                snapshot = place / "snapshots" / revision
                snapshot.mkdir(parents=True, exist_ok=True)
                (snapshot / "config.json").write_text("{}")
                (snapshot / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")

    def containers(self) -> dict[str, dict[str, Any]]:
        """What each host's daemon knows of its rank."""
        return {host: daemon.inspect(NAME) for host, daemon in self.daemons.items()}

    def ids(self) -> list[str]:
        """The ids of both containers, which change when a rank is replaced."""
        return [found["Id"] for found in self.containers().values()]

    def saved(self, host: str) -> list[str]:
        """The saved logs of a host, the oldest first."""
        return [gzip.decompress(path.read_bytes()).decode() for path in self.logs(host)]
