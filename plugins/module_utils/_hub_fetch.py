# SPDX-License-Identifier: Apache-2.0
"""Downloads one snapshot with the Hub's own library. A program of its own, for whichever Python has that library.

Reads one JSON object from its standard input (`endpoint`, `token`, `repo`, `revision`, `cache`), so that the token is
on no command line and in no environment, and prints one: `error` (empty when the snapshot is whole), `kind` and
`version`. Nothing else of the collection is imported here. Private to the collection, may change at any time.
"""

import json
import os
import sys
import warnings


def main() -> int:
    """Download and say how it went. Returns the exit code."""
    request = json.load(sys.stdin)
    os.environ.update(
        HF_ENDPOINT=request["endpoint"],
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_OFFLINE="0",
        HF_HUB_DOWNLOAD_TIMEOUT="30",
        HF_HUB_ETAG_TIMEOUT="30",
        HF_HOME=request["cache"],
    )
    os.environ.pop("HF_TOKEN", None)
    warnings.simplefilter("ignore")
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        return say("library", f"{sys.executable} has no huggingface_hub ({error})")
    try:
        huggingface_hub.snapshot_download(
            request["repo"],
            revision=request["revision"],
            cache_dir=os.path.join(request["cache"], "hub"),
            token=request["token"] or False,
            max_workers=8,
        )
    except errors.GatedRepoError:
        return say("gated", "403")
    except errors.RevisionNotFoundError:
        return say("absent", "404")
    except errors.RepositoryNotFoundError:
        return say("token", "401")
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        return say("gated" if status == 403 else "token" if status == 401 else "unreachable", str(status))
    except OSError as error:
        # The library wraps errors of the disk and of the line in its own, whose cause has the number.
        cause = error
        while cause is not None and not getattr(cause, "errno", None):
            cause = cause.__cause__ or cause.__context__
        found = cause or error
        return say("disk" if getattr(found, "errno", None) in (28, 122, 13, 30) else "interrupted", describe(found))
    except Exception as error:
        return say("interrupted", describe(error))
    return say("", "", huggingface_hub.__version__)


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def say(kind: str, error: str, version: str = "") -> int:
    """Print the answer. Returns the exit code."""
    print(json.dumps({"kind": kind, "error": error, "version": version}))
    return 1 if kind else 0


if __name__ == "__main__":
    sys.exit(main())
