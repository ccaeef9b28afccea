# SPDX-License-Identifier: Apache-2.0
"""The image that the machines have in their Docker from the start: this repository's engine.

It is made by a Docker daemon of this machine's own, started for it, whose directory becomes the machines' disk: an
emulated machine would need a quarter of an hour to get it from another one. What is sent for real is a smaller one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from tests.integration.docker import daemons
from tests.pair.paths import ROOT

ENGINE = "sparkpair-pair-engine:1"
_SOURCES = ROOT / "engine" / "src" / "sparkpair"
# What PyTorch needs and the base image lacks.
_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
# Required by what the engine requires, and never loaded by it on a CPU, or only for answers with a form.
_LEFT_OUT = {"triton", "transformers", "sympy", "mpmath", "networkx", "fsspec", "xgrammar", "apache-tvm-ffi"}
# A third of what PyTorch does when it is imported is for computing without numbers and for distributions. Neither is
# used here; what another part of PyTorch wants of the first one is left.
_LEFT_EMPTY = {
    "torch/_meta_registrations.py": "import torch._prims.rng_prims\n",
    "torch/distributions/__init__.py": "",
}
_FILES_LEFT_OUT = re.compile(r"\.\./|torch/(test/|include/|share/|bin/(?!torch_shm_manager))|.*\.a$")
_PROGRAM = '#!/bin/sh\nexec python3 -m sparkpair "$@"\n'


def definition() -> list[str]:
    """Return what the image is made of, as text that changes when it would."""
    sources = [path for path in sorted(_SOURCES.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    own = [path.read_bytes() for path in (*sources, Path(__file__))]
    packages = [f"{name} {importlib.metadata.version(name)}" for name in sorted(_packages())]
    return [*packages, *(hashlib.sha256(one).hexdigest() for one in own)]


def make(place: Path, into: Callable[[Path, Path], None]) -> None:
    """Make the disk: `into` turns the daemon's directory into the file in `place`. Needs root and docker.io."""
    if missing := daemons.missing():
        raise SystemExit(f"the virtual pair's images are made by a Docker daemon: apt-get install {missing}")
    context = place / "context"
    _copy_packages(context / "packages")
    shutil.copytree(_SOURCES, context / "engine" / "sparkpair", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_LIBRARY, context / "libstdc++.so.6")
    (context / "program").write_text(_PROGRAM)
    (context / "program").chmod(0o755)
    (context / "Dockerfile").write_text(
        f"FROM {daemons.BASE}\n"
        f"COPY libstdc++.so.6 {_LIBRARY}\nCOPY program /usr/local/bin/sparkpair\nCOPY packages /opt/packages\n"
        "COPY engine /opt/engine\nENV PYTHONPATH=/opt/engine:/opt/packages PYTHONDONTWRITEBYTECODE=1\n"
    )
    # Nobody who runs in a container may write there what Python compiles, and an emulated machine is long about it.
    # Some packages have templates that are no Python; they stay as they are.
    words = ["python3", "-m", "compileall", "-qq", "-j", str(os.cpu_count())]
    places = [str(context / "packages"), str(context / "engine")]
    subprocess.run([*words, *places], check=False, stdin=subprocess.DEVNULL)
    with daemons.running(1) as (daemon,):
        driver = daemon.run("info", "--format", "{{.Driver}}").stdout.strip()
        if driver != "overlay2":
            raise SystemExit(f"Docker's storage here is {driver}, and the virtual machines need overlay2")
        daemon.run("build", "--network", "none", "--tag", ENGINE, str(context))
        daemon.ask_to_stop()
        daemon.process.wait(60)
        into(daemon.home / "data", place)
    shutil.rmtree(context)


def _packages() -> set[str]:
    """Return the names of the installed distributions that the engine needs to serve."""
    found: set[str] = set()
    waiting = ["sparkpair"]
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or ():
            needed = Requirement(text)
            name = re.sub(r"[-_.]+", "-", needed.name).lower()
            wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if wanted and name not in found | _LEFT_OUT:
                found.add(name)
                waiting.append(name)
    return found


def _copy_packages(place: Path) -> None:
    for name in sorted(_packages()):
        for path in _files(name):
            target = place / str(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.locate(), target)
    for name, text in _LEFT_EMPTY.items():
        (place / name).write_text(text)


def _files(name: str) -> Iterator[importlib.metadata.PackagePath]:
    for path in importlib.metadata.files(name) or ():
        if not _FILES_LEFT_OUT.match(str(path)) and Path(str(path.locate())).is_file():
            yield path
