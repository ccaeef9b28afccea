# SPDX-License-Identifier: Apache-2.0
"""What is said of a host that Ansible cannot reach, or whose Python runs nothing: which, what was found, what to do.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import re

# What ssh says, and what helps against it; the first that fits counts.
_REMEDIES = (
    (
        r"host key verification failed|remote host identification has changed",
        "connect once with `{command}` from this machine and accept the key of the host, if it is the one you expect",
    ),
    (
        r"permission denied|too many authentication failures",
        "put this account's key there (`ssh-copy-id {target}`), or set ansible_user or ansible_ssh_private_key_file",
    ),
    (
        r"could not resolve|name or service not known|nodename nor servname",
        "set ansible_host of {host} to an address, or see why this machine does not know the name",
    ),
    (
        r"connection refused",
        "start the ssh server there (`sudo systemctl enable --now ssh`), or correct ansible_host and ansible_port of "
        "{host}",
    ),
)
_OTHERWISE = (
    "see that {host} is on and that `{command}` works from this machine without a password; its address is "
    "ansible_host in the inventory"
)
_PREFIX = re.compile(r"(?is)^(?:.*?failed to connect to the host via ssh:|ssh: connect to host \S+ port \d+:)\s*")


def sentence(host: str, said: str, address: str, user: str = "", port: int | None = None) -> str:
    """Return the message for a host that could not be reached by ssh at `address`; `said` is the connection's error."""
    target = f"{user}@{address}" if user else address
    command = f"ssh -p {port} {target}" if port and port != 22 else f"ssh {target}"
    found = said
    while (shorter := _PREFIX.sub("", found)) != found:
        found = shorter
    # What a banner or a warning says comes before what went wrong.
    lines = [line.strip() for line in found.splitlines() if line.strip()]
    found = lines[-1].rstrip(".") if lines else "nothing was said"
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, said, re.I)), _OTHERWISE)
    place = f"{target} port {port}" if port and port != 22 else target
    return (
        f"{host} cannot be reached over ssh at {place}: {found}. Nothing was changed there. What to do: "
        f"{remedy.format(host=host, target=target, command=command)}."
    )


def without_python(host: str, interpreter: str, stderr: str) -> str:
    """Return the message for a host whose `interpreter` ran no module, empty when it did.

    `stderr` is what came instead of the module's answer. An error of the module's own is no matter of the interpreter.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines or any(line.startswith("Traceback ") for line in lines):
        return ""
    looked = f"{interpreter} was tried" if interpreter else "none was named"
    return (
        f"{host} has no Python that runs a module ({looked}): {lines[0].rstrip('.')}. Nothing was changed there. What "
        f"to do: set ansible_python_interpreter of {host} to a Python of 3.9 or newer, such as /usr/bin/python3."
    )
