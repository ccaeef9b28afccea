# SPDX-License-Identifier: Apache-2.0
"""The disks that virtual machines start from: Debian as a Spark has it, made once and kept by what it is made of.

A disk with the system, and one with what Docker has; both the same for all machines.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import ansible

from tests.debian import codename
from tests.pair import images, layout
from tests.pair.paths import CACHE, HERE

GUEST = HERE / "guest"
PACKAGES = (
    *("linux-image-amd64", "systemd-sysv", "udev", "dbus", "kmod", "libnss-myhostname", "openssh-server", "sudo"),
    *("python3", "python3-apt", "python3-requests", "docker.io", "nfs-kernel-server", "netplan.io"),
    *("iproute2", "iputils-ping"),
    *("rdma-core", "libibverbs1", "ibverbs-providers", "ibverbs-utils"),
)
_DRIVERS_LEFT_OUT = ("net/ethernet", "net/wireless", "usb", "iio", "hwmon")
# What no virtual machine has a use for, and an emulated one no time.
_LEFT_OUT = (
    *("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"),
    *(f"/lib/modules/*/kernel/{folder}/*" for folder in ("sound", "drivers/gpu", "drivers/media", "drivers/scsi")),
    *(f"/lib/modules/*/kernel/drivers/{folder}/*" for folder in _DRIVERS_LEFT_OUT),
)
SYSTEM_MIB = 6144
DOCKER_MIB = 6144


@dataclasses.dataclass(frozen=True)
class Disks:
    """What a machine starts from. `key` is the directory of the system's disk and of the keys."""

    key: Path
    root: Path
    kernel: Path
    initrd: Path
    docker: Path


def make() -> Disks:
    """Make what is not there yet, and remove what an earlier definition has left. Needs root."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        system, docker = places()
        missing = [one for one in ((system, _system), (docker, _docker)) if not one[0].exists()]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for made in [pool.submit(_fresh, *one) for one in missing]:
                made.result()
        for other in CACHE.iterdir():
            if other.is_dir() and other not in (system, docker):
                shutil.rmtree(other)
    return ready()


def ready() -> Disks:
    """Return the disks that `make` has made."""
    system, docker = places()
    return Disks(system, system / "root.img", system / "kernel", system / "initrd", docker / "docker.img")


def places() -> tuple[Path, Path]:
    """Return the directories of the system's disk and of Docker's, named by their content."""
    files = sorted(path for path in GUEST.rglob("*") if path.is_file())
    texts = [*(f"{path.relative_to(GUEST)} {path.stat().st_mode & 0o777}" for path in files), *map(_text, files)]
    core = importlib.metadata.version("ansible-core")
    system = [*texts, *layout.link_files().values(), *PACKAGES, *_LEFT_OUT, str(SYSTEM_MIB), codename(), core]
    return (
        CACHE / f"system-{_digest(system)}",
        CACHE / f"docker-{_digest([*images.definition(), str(DOCKER_MIB)])}",
    )


def file_system(source: Path, image: Path, mib: int) -> None:
    """Make a file that is an ext4 file system with what is in `source`."""
    options = ["-q", "-t", "ext4", "-E", "root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1"]
    program = shutil.which("mke2fs", path="/usr/sbin:/sbin") or "mke2fs"
    subprocess.run([program, *options, "-d", str(source), str(image), f"{mib}M"], check=True, stdin=subprocess.DEVNULL)


def _fresh(place: Path, build: Callable[[Path], None]) -> None:
    """Have `build` fill a directory that is there as a whole or not at all."""
    unfinished = place.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    build(unfinished)
    unfinished.rename(place)


def _system(place: Path) -> None:
    keys, root = place / "keys", place / "root"
    keys.mkdir()
    for name in ("id_ed25519", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(keys / name)], check=True)
    (keys / "authorized_keys").write_text((keys / "id_ed25519.pub").read_text())
    (keys / "known_hosts").write_text(f"* {' '.join((keys / 'host.pub').read_text().split()[:2])}\n")
    tree = place / "tree"
    shutil.copytree(GUEST / "tree", tree)
    for name, text in layout.link_files().items():
        (tree / "etc" / "systemd" / "network" / name).write_text(text)
    # What Ansible would bring with every task.
    theirs = tree / "usr" / "local" / "lib" / "pair" / "ansible"
    shutil.copytree(Path(ansible.__file__).with_name("module_utils"), theirs / "module_utils")
    (theirs / "__init__.py").touch()
    command = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory"),
        *("--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        # The initial ramdisk is made once, as small as it is to be.
        f"--essential-hook=copy-in {tree}/etc/initramfs-tools /etc",
        f'--customize-hook={GUEST / "customize.sh"} "$1" {tree} {keys}',
        f"--include={','.join(PACKAGES)}",
        *(codename(), str(root)),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    for kind in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{kind}-*")
        shutil.copy(found, place / {"vmlinuz": "kernel", "initrd.img": "initrd"}[kind])
    file_system(root, place / "root.img", SYSTEM_MIB)
    for folder in (root, tree):
        shutil.rmtree(folder)


def _docker(place: Path) -> None:
    images.make(place, lambda data, into: file_system(data, into / "docker.img", DOCKER_MIB))


def _text(path: Path) -> str:
    return path.read_text()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
