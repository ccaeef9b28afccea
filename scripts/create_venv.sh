#!/usr/bin/env bash
# Creates the virtual environment that every make target uses: create_venv.sh PYTHON DIRECTORY. Debian ships Python
# without its venv module; run as root this installs it, else it says what to install.
set -euo pipefail

python=$1
directory=$2

if ! command -v "$python" >/dev/null; then
    echo "error: there is no $python on this machine. Install Python 3.11 or newer, or name it: make PYTHON=..." >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $("$python" --version) is too old: Python 3.11 or newer is needed. Name another: make PYTHON=..." >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet python3-venv
    else
        echo "error: $python has no venv module. Install it: sudo apt-get install python3-venv" >&2
        exit 2
    fi
fi
"$python" -m venv "$directory"
"$directory/bin/pip" install --quiet --upgrade pip
