# SPDX-License-Identifier: Apache-2.0
"""Building an engine's image from a base, a pinned source and a series of patches: everything but running Docker.

A series (patches/ENGINE/VERSION/series.yml) has `engine`, `version`, `base` (image), `source` (`repository` and `ref`,
or `wheel`, a file beside series.yml), `package` (the installed package that is patched), `extras` (one text of pip
requirements), `pip` (further arguments of pip install), `imports` (what must be importable then), `environment`,
`workdir`, `hashed` (what counts beside the patches: extras, source, version, base) and `patches`, a list of `file`,
`strip`, `name`, `area`, `why`, `switch`, `source` and `licence`.

It may have `upstream`, patches that are fetched when the image is built and applied first: `repository`, `directory`,
`strip` and `releases`, by name the `ref` and the `hash` that the patches there must have. Private to
the collection, may change at any time.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _apply_patches, _image

PLACE = "/opt/sparkpair-build"
_PROBLEM = re.compile(r"PATCH-PROBLEM (\{.*\})")
_GIT_LIMIT_S = 1800
_REASONS = {
    "in": "is in this version already",
    "stale": "does not apply to this version any more",
    "package": "cannot be applied",
}


class BuildError(Exception):
    """The image cannot be built. The text says what was wrong and what to do."""


def patch_files(series: Mapping[str, Any], directory: str) -> list[str]:
    """Return the paths of the patches in order. Raises BuildError, naming those that are missing or not listed."""
    listed = [patch["file"] for patch in series["patches"]]
    there = sorted(name for name in os.listdir(directory) if name.endswith(".patch"))
    missing = [name for name in listed if name not in there]
    stray = [name for name in there if name not in listed]
    if missing or stray:
        said = [f"{', '.join(missing)} is listed and not there"] if missing else []
        said += [f"{', '.join(stray)} is there and not listed"] if stray else []
        raise BuildError(f"{directory}/series.yml and the files beside it do not agree: {'; '.join(said)}")
    return [os.path.join(directory, name) for name in listed]


def wanted_hash(series: Mapping[str, Any], directory: str, release: str = "") -> str:
    """Return the hash of everything the image is made of. Raises BuildError and OSError.

    `release` names the one of a series with patches from upstream, whose published hash stands for them.
    """
    contents = [_read(path) for path in patch_files(series, directory)]
    if "upstream" in series:
        published = str(_release(series, release)["hash"])
        if not contents:
            return published
        contents.insert(0, f"{published}\n".encode())
    return _hash_of(series, contents)


def _hash_of(series: Mapping[str, Any], contents: Sequence[bytes]) -> str:
    values = {"extras": series["extras"], "version": series["version"], "base": series["base"]}
    values["source"] = _source_text(series["source"])
    return _image.inputs_hash(contents, "\n".join(values[name] for name in series["hashed"]))


def _release(series: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a release of the patches from upstream. Raises BuildError."""
    known = series["upstream"]["releases"]
    if name not in known:
        raise BuildError(f"series.yml knows no release {name!r}; it has {', '.join(known)}")
    return dict(known[name])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def fetch_upstream(series: Mapping[str, Any], release: str, target: str) -> list[str]:
    """Fetch the patches of a release into the directory `target` and return their names in order.

    Raises BuildError when they are not those that the release was published with.
    """
    upstream, wanted = series["upstream"], _release(series, release)
    checkout = f"{target}.git"
    try:
        fetch(upstream["repository"], wanted["ref"], checkout)
    except BuildError as error:
        raise BuildError(
            f"the patches of release {release} are looked for at {wanted['ref']}, and {error}. Correct its ref in "
            "series.yml if they are elsewhere; the published image can still be pulled by its digest"
        ) from error
    place = os.path.join(checkout, upstream["directory"])
    names = sorted((name for name in _listed(place) if name.endswith(".patch")), key=os.fsencode)
    found = _hash_of(series, [_read(os.path.join(place, name)) for name in names])
    if found != wanted["hash"]:
        raise BuildError(
            f"the {len(names)} patches at {wanted['ref']} of {upstream['repository']} hash to {found}, and release "
            f"{release} was published with {wanted['hash']}: they are not taken. Somebody has changed them, or this "
            "collection has the wrong hash; the published image can still be pulled by its digest"
        )
    os.makedirs(target)
    for name in names:
        shutil.copy(os.path.join(place, name), target)
    shutil.rmtree(checkout)
    return names


def _listed(place: str) -> list[str]:
    return os.listdir(place) if os.path.isdir(place) else []


def prepare(series: Mapping[str, Any], directory: str, context: str, label: str, release: str = "") -> None:
    """Write the build context into the directory `context`, which is made anew. Raises BuildError and OSError."""
    shutil.rmtree(context, ignore_errors=True)
    os.makedirs(os.path.join(context, "patches"))
    listed = []
    if "upstream" in series:
        names = fetch_upstream(series, release, os.path.join(context, "patches", "upstream"))
        listed = [{"file": f"upstream/{name}", "strip": series["upstream"]["strip"]} for name in names]
    for path in patch_files(series, directory):
        shutil.copy(path, os.path.join(context, "patches"))
    listed += [{"file": patch["file"], "strip": patch["strip"]} for patch in series["patches"]]
    with open(os.path.join(context, "patches", "series.json"), "w", encoding="utf-8") as file:
        json.dump(listed, file)
    with open(os.path.join(context, "apply_patches.py"), "w", encoding="utf-8") as file:
        file.write(inspect.getsource(_apply_patches))
    os.makedirs(os.path.join(context, "source"))
    if "wheel" in series["source"]:
        shutil.copy(os.path.join(directory, series["source"]["wheel"]), os.path.join(context, "source"))
    else:
        fetch(series["source"]["repository"], series["source"]["ref"], os.path.join(context, "source"))
    with open(os.path.join(context, "Dockerfile"), "w", encoding="utf-8") as file:
        file.write(dockerfile(series, label))


def fetch(repository: str, ref: str, target: str) -> None:
    """Check out one tag or commit of a repository, without its history. Raises BuildError."""
    if shutil.which("git") is None:
        raise BuildError("there is no program git on this host, with which the engine's source is fetched: install git")
    steps = (
        ["init", "--quiet", target],
        ["-C", target, "fetch", "--quiet", "--depth", "1", repository, ref],
        ["-C", target, "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    )
    for step in steps:
        command = ["git", *step]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(
                f"{ref} of {repository} was not fetched within {_GIT_LIMIT_S} s: see this host's way there, and run "
                "again"
            ) from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
            raise BuildError(f"{ref} of {repository} cannot be fetched: {said}")
    shutil.rmtree(os.path.join(target, ".git"))


def dockerfile(series: Mapping[str, Any], label: str) -> str:
    """Return the Dockerfile. The engine's installation comes first, so that another patch costs no new one."""
    wheel = series["source"].get("wheel")
    source = f"{PLACE}/source/{wheel}" if wheel else f"{PLACE}/source"
    install = ["python3", "-m", "pip", "install", "--no-cache-dir", *series.get("pip", ()), source]
    package = series["package"]
    lines = [
        f"FROM {series['base']}",
        f"COPY source {PLACE}/source",
        f"RUN {shlex.join([*install, *shlex.split(series['extras'])])}",
        f"COPY patches {PLACE}/patches",
        f"COPY apply_patches.py {PLACE}/",
        f"RUN python3 {PLACE}/apply_patches.py {PLACE}/patches/series.json {package}",
        f"RUN python3 -c {shlex.quote('import ' + ', '.join(series.get('imports', [package])))}",
        *(f"ENV {name}={json.dumps(str(value))}" for name, value in series.get("environment", {}).items()),
        *([f"WORKDIR {series['workdir']}"] if series.get("workdir") else []),
        f"LABEL {_image.PATCHES_LABEL}={label}",
    ]
    return "\n".join(lines) + "\n"


def problems_in(output: str) -> list[str]:
    """Return a sentence for every patch that a build's output says did not apply."""
    found = [json.loads(match[1]) for match in _PROBLEM.finditer(output)]
    return [f"{one['patch']} {_REASONS[one['reason']]} ({one['said']})".strip() for one in found]


def failure_of(output: str, version: str) -> str:
    """Return why a build failed, from its output: the patches that do not apply, or else its last lines."""
    problems = problems_in(output)
    if problems:
        return (
            f"{len(problems)} of the patches do not fit {version}, and nothing was made: {'; '.join(problems)}. Take "
            "out what is in already, and bring the others up to this version"
        )
    return "the build failed: " + " | ".join(_last(output.splitlines(), 5))


def _last(lines: Sequence[str], count: int) -> list[str]:
    return [line.strip() for line in lines if line.strip()][-count:]


def _source_text(source: Mapping[str, Any]) -> str:
    return str(source["wheel"]) if "wheel" in source else f"{source['repository']}@{source['ref']}"
