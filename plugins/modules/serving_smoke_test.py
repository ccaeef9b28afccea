# SPDX-License-Identifier: Apache-2.0
"""One question to a serving engine; only a sane answer that came through every rank passes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_smoke_test
short_description: Ask a serving engine one question and judge the answer
version_added: 0.1.0
description:
  - Asks an OpenAI-compatible server for one short chat completion, streamed, and fails unless the answer is
    sane.
  - Sane is an answer that is not blank, not one character or one short unit over and over as a collapsed
    model gives it, with a finish reason and a usage that fit the request, through all ranks at the same
    step.
  - Whether the answer is right is not judged.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
author:
  - The sparkpair maintainers (@sparkpair)
options:
  url:
    description:
      - Address of the server. Asked without a proxy.
    type: str
    required: true
  model:
    description:
      - Model id to ask for. By default the first that the server names in C(/v1/models).
    type: str
  prompt:
    description:
      - What to ask.
    type: str
    default: Say in one short sentence that you are ready.
  max_tokens:
    description:
      - Length of the answer at most, in tokens.
    type: int
    default: 32
  temperature:
    description:
      - Sampling temperature. 0 always takes the likeliest token. A model with random weights repeats itself
        at 0.
    type: float
    default: 0
  seed:
    description:
      - Seed of the sampling, so that the same question gets the same answer.
    type: int
  thinking:
    description:
      - Whether the model may reason before it answers. A short answer leaves no room for that.
    type: bool
    default: false
  timeout:
    description:
      - Seconds for everything.
    type: float
    default: 180
  expected_ranks:
    description:
      - Number of ranks that must have reported the same step on the reply (its key C(sparkpair.ranks)). Left
        out for an engine that does not report them.
    type: int
  api_key:
    description:
      - Key of the server, if it wants one. Prefer O(api_key_file), which keeps the key out of the playbook.
    type: str
  api_key_file:
    description:
      - File on the host with keys of the server, one a line as C(KEY) or C(LABEL:KEY), mode 0600. The first is sent.
    type: path
    default: ""
attributes:
  check_mode:
    description: Asks nothing and says that it was skipped, as in check mode no server may have been started.
    support: full
  idempotent:
    description: Nothing is changed.
    support: full
seealso:
  - module: sparkpair.serving.await_live
"""

EXAMPLES = r"""
- name: The pair answers through both ranks
  sparkpair.serving.serving_smoke_test:
    url: http://127.0.0.1:8888
    expected_ranks: 2
  register: smoke
"""

RETURN = r"""
model:
  description: Model id that was asked for.
  type: str
  returned: success
  sample: GLM-5.3-Flash-EXL3
answer:
  description: The answer.
  type: str
  returned: when there was a reply
  sample: I am ready.
finish_reason:
  description: Why the answer ended.
  type: str
  returned: when there was a reply
  sample: stop
prompt_tokens:
  description: Tokens of the prompt.
  type: int
  returned: success
  sample: 17
completion_tokens:
  description: Tokens of the answer.
  type: int
  returned: success
  sample: 5
time_to_first_token_s:
  description: Seconds from the request to the first text.
  type: float
  returned: success
  sample: 0.213
decode_tokens_per_s:
  description: Tokens a second after the first, null for an answer that came at once.
  type: float
  returned: success
  sample: 34.5
ranks:
  description: The ranks and their steps, as the server reported them; null when it reports none.
  type: list
  elements: dict
  returned: when there was a reply
  sample: [{rank: 0, step: 57}, {rank: 1, step: 57}]
health:
  description: What the server says of itself at C(/health), after the answer; null when it says nothing there.
  type: dict
  returned: when there was a reply
  sample: {ok: true, model: GLM-5.3-Flash-EXL3, context_length: 1048576}
objections:
  description: What was wrong with the answer.
  type: list
  elements: str
  returned: when there was a reply
  sample: ["The answer is blank: ''."]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils._completion import CompletionError, Server
from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import KeyFileError, first_key
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import is_http_url
from ansible_collections.sparkpair.serving.plugins.module_utils._smoke import decode_rate, objections


def _body(params: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the request."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": params["prompt"]}],
        "max_tokens": params["max_tokens"],
        "temperature": params["temperature"],
        **({"seed": params["seed"]} if params["seed"] is not None else {}),
        "chat_template_kwargs": {"enable_thinking": params["thinking"]},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str"},
            "prompt": {"type": "str", "default": "Say in one short sentence that you are ready."},
            "max_tokens": {"type": "int", "default": 32, "no_log": False},
            "temperature": {"type": "float", "default": 0},
            "seed": {"type": "int"},
            "thinking": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 180},
            "expected_ranks": {"type": "int"},
            "api_key": {"type": "str", "no_log": True},
            "api_key_file": {"type": "path", "default": ""},
        },
        mutually_exclusive=[("api_key", "api_key_file")],
        supports_check_mode=True,
    )
    params = module.params
    url = params["url"].rstrip("/")
    if not is_http_url(url):
        module.fail_json(msg=f"The option url is {params['url']!r}, but must be like http://127.0.0.1:8888.")
    if params["max_tokens"] < 1:
        module.fail_json(msg=f"The option max_tokens is {params['max_tokens']}, but must be 1 or more.")
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="Check mode starts no server, so none was asked.")
    try:
        key = params["api_key"] or first_key(params["api_key_file"])
        if key:
            module.no_log_values.add(key)
        server = Server(url, key, params["timeout"])
        model = params["model"] or server.served_model()
        reply = server.complete(_body(params, model))
        health = server.health()
    except KeyFileError as exc:
        module.fail_json(msg=f"The smoke test asked nothing: {exc}.")
    except CompletionError as exc:
        module.fail_json(msg=f"The smoke test got no answer. {exc}")
    wrong = objections(reply, params["max_tokens"], params["expected_ranks"])
    told = {
        "model": model,
        "answer": reply.content,
        "finish_reason": reply.finish_reason,
        "ranks": reply.ranks,
        "objections": wrong,
        "health": health,
    }
    if wrong:
        module.fail_json(
            msg=f"The server at {url} answers, but not sanely. {' '.join(wrong)} The ranks were left running: their "
            "logs may say more.",
            **told,
        )
    module.exit_json(
        changed=False,
        **told,
        prompt_tokens=reply.usage["prompt_tokens"],
        completion_tokens=reply.usage["completion_tokens"],
        time_to_first_token_s=round(reply.first_s, 3),
        decode_tokens_per_s=decode_rate(reply),
    )


if __name__ == "__main__":
    main()
