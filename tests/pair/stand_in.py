# SPDX-License-Identifier: Apache-2.0
"""The image that the head alone has: TensorFold's stand-in, made there from the layer that both have already."""

from __future__ import annotations

from tests.integration.docker.daemons import BASE
from tests.integration.docker.sparks import IMAGE, PATCHES, PROGRAM
from tests.pair.machines import Machine


def make(machine: Machine) -> None:
    """Make it on a machine, labelled as the published one."""
    program = PROGRAM.read_text()
    lines = [f"FROM {BASE}", "COPY tensorfold /usr/local/bin/tensorfold", f"LABEL tf.patches={PATCHES}"]
    words = "mkdir -p stand-in && cat > stand-in/tensorfold && chmod +x stand-in/tensorfold"
    machine.run(words, stdin=program.encode())
    machine.run("cat > stand-in/Dockerfile", stdin=("\n".join(lines) + "\n").encode())
    machine.run(f"docker build --quiet --network none --tag {IMAGE} stand-in")
