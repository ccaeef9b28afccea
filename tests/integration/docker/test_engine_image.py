# SPDX-License-Identifier: Apache-2.0
"""The engine's image: built from a real repository with real patches, pulled, told by content, sent between daemons."""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _image_build

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.plays import Played, play
from tests.integration.site import HEAD, WORKER, free_ports
from tests.waiting import until

NAME = "toy-engine:1"
BASE_WITH_PIP = "sparkpair-test-pip:1"
REGISTRY = shutil.which("docker-registry")
# A build backend inside the repository, so that nothing has to be fetched to install it.
BACKEND = """
import os, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "toy_engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for path in ("toy_engine/__init__.py", "toy_engine/words.py"):
            wheel.write(path, path)
        meta = "toy_engine-1.0.dist-info/"
        wheel.writestr(meta + "METADATA", "Metadata-Version: 2.1\\nName: toy-engine\\nVersion: 1.0\\n")
        wheel.writestr(meta + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(meta + "RECORD", "")
    return name
"""
WORDS = "".join(
    f"{word} = {at}\n" for at, word in enumerate(("ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN"), 1)
)


def diff(old: str, new: str, prefixes: tuple[str, str]) -> str:
    """A unified diff of words.py with its paths as git (a/, b/) or a recipe (none) writes them."""
    before, after = WORDS.splitlines(keepends=True), WORDS.replace(old, new).splitlines(keepends=True)
    paths = (f"{prefix}toy_engine/words.py" for prefix in prefixes)
    return "".join(difflib.unified_diff(before, after, *paths))


def commit(repository: Path, tag: str) -> None:
    """Put everything below a directory into a repository there, and tag it."""
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", tag],
        ["tag", tag],
    ):
        subprocess.run(["git", "-C", str(repository), *command], check=True)


class Recipe:
    """A repository that stands for the engine's, and a series of patches for its tag."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.repository = home / "engine"
        self.patches = home / "patches"
        self.release = ""
        (self.repository / "toy_engine").mkdir(parents=True)
        self.patches.mkdir()
        (self.repository / "toy_engine" / "__init__.py").touch()
        (self.repository / "toy_engine" / "words.py").write_text(WORDS)
        (self.repository / "backend.py").write_text(BACKEND)
        (self.repository / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        commit(self.repository, "v1.0")
        self.series: dict[str, Any] = {
            "engine": "toy",
            "version": "v1.0",
            "base": BASE_WITH_PIP,
            "source": {"repository": f"file://{self.repository}", "ref": "v1.0"},
            "package": "toy_engine",
            "extras": "",
            "pip": ["--no-index", "--break-system-packages"],
            "environment": {"TOY": "with blanks"},
            "workdir": "/workspace",
            "hashed": ["extras", "source", "version", "base"],
            "patches": [],
        }
        self.add("0001-second.patch", diff("TWO = 2", "TWO = 22", ("a/", "b/")), strip=1)
        self.add("0002-seventh.patch", diff("SEVEN = 7", "SEVEN = 77", ("", "")), strip=0)

    def add(self, name: str, text: str, strip: int) -> None:
        (self.patches / name).write_text(text)
        self.series["patches"].append({"file": name, "strip": strip})
        (self.patches / "series.yml").write_text(yaml.safe_dump(self.series))

    def take(self, name: str) -> None:
        (self.patches / name).unlink()
        self.series["patches"] = [patch for patch in self.series["patches"] if patch["file"] != name]
        (self.patches / "series.yml").write_text(yaml.safe_dump(self.series))

    def hash(self) -> str:
        """What the controller has computed, unless the series is not fit for it."""
        try:
            return _image_build.wanted_hash(self.series, str(self.patches), self.release)
        except _image_build.BuildError:
            return "unknown"

    def play(self, daemons: list[Daemon], *arguments: str, **wanted: str) -> Played:
        """Play the role on a head and a worker that are this machine, each with its own daemon."""
        hosts = {}
        for host, daemon in zip((HEAD, WORKER), daemons, strict=True):
            worker = {"host": WORKER, "command": [], "docker_host": daemons[1].socket}
            common = {"name": NAME, "docker_host": daemon.socket, "series": str(self.patches), "workers": [worker]}
            place = {"directory": str(self.home / host), "repository": "", "digest": "", "network": "none"}
            common.update(hash=self.hash(), release=self.release)
            probe = {"probe": {"state_dir": str(self.home / host)}}
            hosts[host] = {"__engine_image_wanted": {**common, **place, **wanted}, "__preflight_probe": probe}
        groups = {"head": [HEAD], "workers": [WORKER]}
        task = {"import_role": {"name": "sparkpair.serving.engine_image"}}
        return play(self.home, [task], *arguments, hosts=hosts, groups=groups, forgiving=False)


@pytest.fixture(scope="module")
def with_pip(daemons: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> list[Daemon]:
    """The daemons with a base image that has pip, taken from the environment that runs the tests."""
    context = tmp_path_factory.mktemp("pip")
    files = importlib.metadata.distribution("pip").locate_file("pip")
    shutil.copytree(str(files), context / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY pip /usr/lib/python3/dist-packages/pip\n")
    for daemon in daemons:
        daemon.run("build", "--network", "none", "--tag", BASE_WITH_PIP, str(context))
    return daemons


@pytest.fixture
def recipe(with_pip: list[Daemon], tmp_path: Path) -> Recipe:
    """A recipe of which no host has the image."""
    for daemon in with_pip:
        daemon.run("image", "rm", "--force", NAME, check=False)
    return Recipe(tmp_path)


@pytest.fixture(scope="module")
def built(with_pip: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recipe, Played]]:
    """A recipe whose image was built on the head and sent to the worker, and the run that did it."""
    recipe = Recipe(tmp_path_factory.mktemp("built"))
    checked = recipe.play(with_pip, "--check")
    assert (checked.returncode, of(checked, "how")) == (0, "missing"), checked.output
    assert not (recipe.home / HEAD / "image").exists()
    yield recipe, recipe.play(with_pip)
    for daemon in with_pip:
        daemon.run("image", "rm", "--force", NAME, check=False)


def of(played: Played, key: str, host: str = HEAD) -> Any:
    """A value that one of the tasks returned on a host."""
    return next(task[host][key] for task in played.results if key in task.get(host, {}))


def failure(played: Played) -> str:
    return next(str(task[HEAD]["msg"]) for task in played.results if task.get(HEAD, {}).get("failed"))


def test_an_image_is_built_from_source_and_patches_sent_once_and_then_left_alone(
    built: tuple[Recipe, Played], with_pip: list[Daemon]
) -> None:
    head, worker = with_pip
    recipe, run = built
    assert (run.returncode, of(run, "how")) == (0, "built"), run.output
    program = "import os, toy_engine.words as w; print(w.TWO, w.FOUR, w.SEVEN, os.environ['TOY'], os.getcwd())"
    for daemon in with_pip:
        said = daemon.run("run", "--rm", "--network", "none", NAME, "python3", "-c", program).stdout
        assert said == "22 4 77 with blanks /workspace\n"
    seen = [_image.described(daemon.inspect(NAME)) for daemon in with_pip]
    assert seen[0]["identity"] == seen[1]["identity"]
    assert seen[0]["patches"] == of(run, "hash")
    progress = (recipe.home / HEAD / f"image-to-{WORKER}.log").read_text()
    assert progress.startswith(f"{NAME}: ")
    assert "MiB/s" in progress

    again = recipe.play(with_pip)
    assert of(again, "how") == "present"
    assert not any(result.get("changed") for task in again.results for result in task.values())

    # S01: a name that leads to another content on one host is told by that content, and put right.
    worker.run("tag", BASE, NAME)
    repaired = recipe.play(with_pip)
    assert repaired.returncode == 0, repaired.output
    assert _image.identity(worker.inspect(NAME)) == _image.identity(head.inspect(NAME))


@contextlib.contextmanager
def registry(home: Path) -> Iterator[str]:
    """A registry of images on this machine."""
    if REGISTRY is None:
        pytest.skip("this test runs a registry of its own: apt-get install docker-registry")
    (port,) = free_ports(1)
    document = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(home / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (home / "registry.yml").write_text(json.dumps(document))
    with subprocess.Popen(
        [REGISTRY, "serve", str(home / "registry.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/v2/"))
            yield f"127.0.0.1:{port}/toy"
        finally:
            process.terminate()


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def test_a_published_image_is_pulled_by_digest_or_tag_and_accepted_by_its_label_only(
    built: tuple[Recipe, Played], with_pip: list[Daemon]
) -> None:
    head = with_pip[0]
    recipe, run = built
    wanted, identity = of(run, "hash"), _image.identity(head.inspect(NAME))
    with registry(recipe.home) as repository:
        published = f"{repository}:v1.0-{wanted}"
        head.run("tag", NAME, published)
        head.run("push", published)
        digest = head.inspect(published)["RepoDigests"][0].partition("@")[2]
        for options in ({}, {"digest": digest}):
            for name in (NAME, published):
                head.run("image", "rm", "--force", name)
            pulled = recipe.play(with_pip, repository=repository, **options)
            assert of(pulled, "how") == "pulled", pulled.output
            assert _image.identity(head.inspect(NAME)) == identity
            published = f"{repository}@{digest}" if options else published
        # The tag was moved to something else: it is not taken for what it is not.
        head.run("image", "rm", "--force", NAME)
        moved = f"{repository}:v1.0-{wanted}"
        head.run("tag", BASE, moved)
        head.run("push", moved)
        assert of(recipe.play(with_pip, repository=repository), "how") == "built"
        # What is published is what this collection would make, and it is pulled again under its tag and as latest.
        options = {"name": NAME, "hash": wanted, "version": "v1.0", "repository": repository}
        options.update(docker_host=head.socket, labels={"org.opencontainers.image.licenses": "Apache-2.0"})
        (sent,) = play(recipe.home, [{"sparkpair.serving.publish_image": options}]).results
        assert sent["head"]["reference"] == moved
        for name in (moved, f"{repository}:latest"):
            head.run("image", "rm", "--force", name)
            head.run("pull", name)
        seen = head.inspect(moved)
        assert _image.described(seen)["patches"] == wanted
        assert seen["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert sent["head"]["digest"] in seen["RepoDigests"][0]
        (refused,) = play(recipe.home, [{"sparkpair.serving.publish_image": {**options, "hash": "0" * 12}}]).results
        assert f"carries {wanted}, and 000000000000 would be published. Nothing was" in refused["head"]["msg"]


def test_s09_patches_that_are_stale_or_in_already_stop_the_build_and_are_all_listed(
    recipe: Recipe, with_pip: list[Daemon]
) -> None:
    before = of(recipe.play(with_pip, "--check"), "hash")
    recipe.add("0003-in-already.patch", (recipe.patches / "0001-second.patch").read_text(), strip=1)
    recipe.add("0004-stale.patch", diff("SIX = 6", "SIX = 66", ("", "")).replace("FIVE", "FIFTH"), strip=0)
    refused = recipe.play(with_pip)
    message = failure(refused)
    assert "2 of the patches do not fit toy v1.0, and nothing was made" in message
    assert "0003-in-already.patch is in this version already" in message
    assert "0004-stale.patch does not apply to this version any more" in message
    for daemon in with_pip:
        assert daemon.run("image", "inspect", NAME, check=False).returncode != 0
    assert with_pip[0].names() == [], "the container of the step that failed was left behind"
    assert of(recipe.play(with_pip, "--check"), "hash") != before


def test_a_series_and_its_files_must_agree(recipe: Recipe, with_pip: list[Daemon]) -> None:
    (recipe.patches / "0009-forgotten.patch").write_text("")
    assert "0009-forgotten.patch is there and not listed" in failure(recipe.play(with_pip))


def test_patches_from_upstream_are_taken_only_as_they_were_published_and_ones_own_come_after(
    recipe: Recipe, with_pip: list[Daemon]
) -> None:
    upstream = recipe.home / "upstream"
    (upstream / "patches").mkdir(parents=True)
    moved = recipe.patches / "0001-second.patch"
    (upstream / "patches" / moved.name).write_text(diff("TWO = 2", "TWO = 22", ("", "")))
    commit(upstream, "r1")
    recipe.series["hashed"] = ["extras"]
    published = _image.inputs_hash([(upstream / "patches" / moved.name).read_bytes()], "")
    releases = {"r1": {"ref": "r1", "hash": published}, "r2": {"ref": "r1", "hash": "0" * 12}}
    releases["r3"] = {"ref": "v3", "hash": published}
    source = {"repository": f"file://{upstream}", "directory": "patches", "strip": 0, "releases": releases}
    recipe.series["upstream"] = source
    recipe.take(moved.name)
    recipe.release = "r2"
    message = failure(recipe.play(with_pip))
    assert f"hash to {published}, and release r2 was published with 000000000000: they are not taken" in message
    recipe.release = "r3"
    message = failure(recipe.play(with_pip))
    assert f"the patches of release r3 are looked for at v3, and v3 of file://{upstream} cannot be fetched: " in message
    assert "Correct its ref in series.yml" in message
    recipe.release = "r1"
    built = recipe.play(with_pip)
    assert built.returncode == 0, built.output
    program = "import toy_engine.words as w; print(w.TWO, w.SEVEN)"
    assert with_pip[1].run("run", "--rm", "--network", "none", NAME, "python3", "-c", program).stdout == "22 77\n"
    # With a patch of one's own it is another image than the published one.
    assert recipe.hash() != published
    recipe.take("0002-seventh.patch")
    assert recipe.hash() == published


def test_a_source_that_cannot_be_fetched_is_named(recipe: Recipe, with_pip: list[Daemon]) -> None:
    recipe.series["source"]["ref"] = "v9"
    recipe.take("0002-seventh.patch")
    assert f"v9 of file://{recipe.repository} cannot be fetched: " in failure(recipe.play(with_pip))
