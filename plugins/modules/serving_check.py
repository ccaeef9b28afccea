#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Has a live endpoint show what it is for, one verdict a check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_check
short_description: Check what a live endpoint can do
version_added: 0.2.0
description:
  - Asks an OpenAI-compatible server for a passphrase in a long text, a function call, a structured reply, the colour of
    a picture, a second turn that reuses the first, and the same requests alone and together.
  - Returns a verdict for each. It fails when one of them fails.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
options:
  url:
    description: Address of the server. Asked without a proxy.
    type: str
    required: true
  model:
    description: Model id to ask for.
    type: str
    required: true
  api_key_file:
    description: File on the host with keys of the server, one a line as C(KEY) or C(LABEL:KEY). The first is sent.
    type: path
    default: ""
  trained:
    description: Whether the model knows anything. Of random weights only what the server sees to is asked.
    type: bool
    default: true
  pictures:
    description: Whether the server takes pictures.
    type: bool
    default: true
  haystack_words:
    description: Length of the text in which the passphrase is hidden, in words.
    type: int
    default: 12000
  only:
    description: The checks to do, instead of all.
    type: list
    elements: str
    choices: [needle, function call, structured output, picture, prompt reuse, alone and together]
  timeout:
    description: Seconds for each request.
    type: float
    default: 600
attributes:
  check_mode:
    support: full
    description: Asks the same, as it changes nothing.
  idempotent:
    support: full
    description: Nothing is changed.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.serving_smoke_test
"""

EXAMPLES = r"""
- name: Check the endpoint
  sparkpair.serving.serving_check:
    url: http://127.0.0.1:8888
    model: GLM-5.3-Flash-EXL3
  register: __check
"""

RETURN = r"""
checks:
  description: Every check, C(name), C(verdict) (C(passed), C(failed) or C(skipped)) and C(words).
  returned: always
  type: list
  elements: dict
  sample: [{name: needle, verdict: passed, words: found in 12000 words}]
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _checks
from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import KeyFileError, authorization, first_key
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import is_http_url


def asker(url: str, model: str, key: str | None, timeout_s: float) -> _checks.Ask:
    """Return what sends a chat completion to the server; it raises NoAnswer and NotOffered."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    place = f"{url.rstrip('/')}/v1/chat/completions"

    def ask(body: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps({**body, "model": model}).encode()
        headers = {"Content-Type": "application/json", **authorization(key)}
        try:
            with opener.open(urllib.request.Request(place, data, headers), timeout=timeout_s) as reply:
                return dict(json.load(reply))
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            if error.code == 400 and "supported by this engine" in said:
                raise _checks.NotOffered(said) from error
            raise _checks.NoAnswer(f"status {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _checks.NoAnswer(f"no answer from {place}: {error}") from error

    return ask


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "api_key_file": {"type": "path", "default": ""},
            "trained": {"type": "bool", "default": True},
            "pictures": {"type": "bool", "default": True},
            "haystack_words": {"type": "int", "default": 12000},
            "only": {"type": "list", "elements": "str", "choices": list(_checks.NAMES)},
            "timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not is_http_url(params["url"]):
        module.fail_json(msg=f"url is {params['url']!r}, which is no http or https URL.", checks=[])
    try:
        key = first_key(params["api_key_file"])
    except KeyFileError as error:
        module.fail_json(msg=f"Nothing was asked: {error}.", checks=[])
    if key:
        module.no_log_values.add(key)
    verdicts = _checks.run(
        asker(params["url"], params["model"], key, params["timeout"]),
        trained=params["trained"],
        pictures=params["pictures"],
        haystack_words=params["haystack_words"],
        only=params["only"] or _checks.NAMES,
    )
    checks = [verdict.as_data() for verdict in verdicts]
    failed = [f"{one.name}: {one.words}" for one in verdicts if one.verdict == _checks.FAILED]
    if failed:
        module.fail_json(msg=f"{len(failed)} of {len(checks)} checks failed. {'; '.join(failed)}.", checks=checks)
    module.exit_json(changed=False, checks=checks)


if __name__ == "__main__":
    main()
