# SPDX-License-Identifier: Apache-2.0
"""What is refused before a device is opened; the sysfs read here is laid out as Soft-RoCE devices have it."""

from __future__ import annotations

import ipaddress
import pathlib
import subprocess
import sys

import pytest
from sparkpair.cli import build_parser, serve_settings
from sparkpair.comm import roce, verbs
from sparkpair.comm.rails import RailName, look_at_rails, parse_rails, port_state
from sparkpair.errors import UserError

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def device(root: pathlib.Path, name: str, state: str, gids: list[tuple[str, str]], netdev: str) -> None:
    """One device with a port; `gids` have address and type, and an entry that is empty has no type to read."""
    port = root / "class" / "infiniband" / name / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    for index, (gid, kind) in enumerate(gids):
        (port / "gids" / str(index)).write_text(f"{gid}\n")
        if kind:
            (port / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
            (port / "gid_attrs" / "ndevs" / str(index)).write_text(f"{netdev}\n")


@pytest.fixture
def sysfs(tmp_path: pathlib.Path) -> pathlib.Path:
    local = "fe80:0000:0000:0000:187c:c7ff:fe28:3870"
    mapped = "0000:0000:0000:0000:0000:ffff:c0a8:640a"
    good = [(local, "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2"), (EMPTY, "")]
    device(tmp_path, "rocep1s0f0", "4: ACTIVE", good, "enp1s0f0np0")
    device(tmp_path, "roceP2p1s0f0", "1: DOWN", good, "enP2p1s0f0np0")
    device(tmp_path, "mlx5_9", "4: ACTIVE", [(EMPTY, "")], "eth9")
    return tmp_path


def test_a_good_rail_is_found_with_its_address_and_netdev(sysfs: pathlib.Path) -> None:
    (rail,) = look_at_rails(parse_rails("rocep1s0f0:2"), sysfs)
    assert rail.gid == ipaddress.IPv6Address("::ffff:192.168.100.10").packed
    assert str(rail) == "rocep1s0f0 (enp1s0f0np0, 192.168.100.10)"
    assert port_state(rail.name, sysfs) == "ACTIVE"


@pytest.mark.parametrize(
    ("rails", "found"),
    [
        ("rocep9s0f0:3", r"no RDMA device rocep9s0f0; it has mlx5_9, roceP2p1s0f0, rocep1s0f0"),
        ("rocep1s0f0:2,roceP2p1s0f0:2", r"roceP2p1s0f0:2: the port of roceP2p1s0f0 is DOWN, not ACTIVE"),
        ("rocep1s0f0:1", r"index 1 is of type IB/RoCE v1\. RoCE v2 GIDs of rocep1s0f0: 0 \(fe80::.*\), 2 \(192\.168"),
        ("rocep1s0f0:3", r"the GID at index 3 is empty\. RoCE v2 GIDs"),
        ("rocep1s0f0:77", r"the GID at index 77 is empty"),
        ("mlx5_9:0", r"mlx5_9 has no RoCE v2 GID at all"),
    ],
)
def test_a_rail_that_cannot_be_used_is_refused_with_what_there_is(sysfs: pathlib.Path, rails: str, found: str) -> None:
    with pytest.raises(UserError, match=found):
        look_at_rails(parse_rails(rails), sysfs)


def test_a_machine_without_rdma_is_told_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="this machine has no RDMA device"):
        look_at_rails((RailName("rocep1s0f0", 3),), tmp_path)


def test_a_missing_library_is_refused_with_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "SONAME", "libibverbs-that-nobody-has.so.1")
    with pytest.raises(UserError, match=r"cannot be loaded .*Install libibverbs1 and ibverbs-providers"):
        roce.find_library()


def settings(*arguments: str) -> None:
    serve_settings(build_parser().parse_args(["serve", "model", "--master", "127.0.0.1", *arguments]))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--comm", "roce"], "--comm roce needs --roce-rails"),
        (["--roce-rails", "a:1"], "no effect without --comm roce"),
        (["--comm", "roce", "--roce-rails", "a"], "'a' is not DEVICE:GID_INDEX"),
        (["--comm", "roce", "--roce-rails", "a:1,a:2"], "a device is named twice"),
        (["--comm", "roce", "--roce-rails", "a:1,b:1,c:1,d:1,e:1"], "4 are the most"),
        (["--comm", "roce", "--roce-rails", "a:1", "--tp", "1"], "one rank alone exchanges nothing"),
        (["--comm", "roce", "--roce-rails", "a:1", "--roce-max-kb", "0"], "--roce-max-kb 0: between 1 and"),
        (["--comm", "roce", "--roce-rails", "a:1", "--roce-wait", "0.5"], "--roce-wait 0.5: between 1 and 3600"),
        (["--comm", "roce", "--roce-rails", "a:1", "--roce-wait", "60"], "--stuck-after 60: less than --roce-wait"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: list[str], found: str) -> None:
    with pytest.raises(UserError, match=found):
        settings("--tp", "2", *arguments)


@pytest.mark.skipif(pathlib.Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices")
def test_a_rank_without_a_device_ends_with_code_2_and_one_line(tmp_path: pathlib.Path) -> None:
    words = [sys.executable, "-m", "sparkpair", "serve", str(tmp_path), "--tp", "2", "--rank", "1"]
    words += ["--master", "127.0.0.1", "--comm", "roce", "--roce-rails", "rocep1s0f0:3", "--check-args"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert [line.startswith("error: ") for line in done.stderr.splitlines()] == [True]
