# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action `await_live`, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: await_live
short_description: Wait until all ranks of a serving engine are live, or tell which one was lost
version_added: 0.1.0
description:
  - Waits until the server of rank 0 answers while every rank runs, and shows what each rank is doing
    meanwhile, with the memory it uses and the memory it estimated.
  - When a rank ends first, the task fails at once on every host, with the exit codes and last lines of all
    ranks and, for the causes it knows, what to do.
  - Starts, stops and changes nothing. A world that is not live in time is left running.
  - Run it on all hosts of the world in one task, without C(run_once), C(loop) or C(retries), with the host
    of rank 0 first in the play. With fewer forks than hosts, the later hosts find what the earlier ones saw.
extends_documentation_fragment:
  - sparkpair.serving.looks.no_diff
author:
  - The sparkpair maintainers (@sparkpair)
options:
  rank:
    description:
      - Rank of this host.
    type: int
    required: true
  world_size:
    description:
      - Number of ranks.
    type: int
    required: true
  directory:
    description:
      - State directory of this host's rank, as given to M(sparkpair.serving.rank_process). One of O(directory) and
        O(container) is required.
    type: str
  container:
    description:
      - C(name), C(owner), C(docker_host) and C(engine) of this host's rank, as for
        M(sparkpair.serving.rank_container_info).
    type: dict
  transport:
    description:
      - V(ib) fails live ranks whose log says that NCCL talks TCP sockets after all. They are left running.
    type: str
    choices: [ib]
  retry:
    description:
      - Lets a start of TensorFold that failed end well with RV(decision) where its log names a remedy. C(settings) has
        C(release) and C(split), C(after) the decision that led to this start, if one did.
    type: dict
  ready_url:
    description:
      - URL that rank 0's own host asks. It must answer 200 only when all ranks are ready.
      - That the rank's log says that it serves is asked for as well, as the port could answer for another
        program.
      - Required for rank 0, of no effect for the others.
    type: str
  api_key_file:
    description:
      - File of keys on rank 0's host, whose first key is sent to O(ready_url). Empty sends none.
    type: str
    default: ""
  updates:
    description:
      - By host, what an update has changed there since the last good start, as found by
        M(sparkpair.serving.report_findings). A start that fails tells it first.
    type: dict
    default: {}
  timeout:
    description:
      - Seconds until the task gives up.
    type: float
    default: 600
  progress_interval:
    description:
      - Seconds between two lines of progress while nothing changes. What changes is shown at once.
    type: float
    default: 5
  tail_lines:
    description:
      - How many of each rank's last lines a failure shows.
    type: int
    default: 25
attributes:
  action:
    description: Runs on the controller and looks at each host through M(sparkpair.serving.rank_process_info).
    support: full
  async:
    description: Shows its progress itself.
    support: none
  check_mode:
    description: Waits for nothing and says that it was skipped, as check mode starts no rank.
    support: full
  idempotent:
    description: Nothing is changed.
    support: full
seealso:
  - module: sparkpair.serving.rank_process
  - module: sparkpair.serving.rank_process_info
  - module: sparkpair.serving.serving_smoke_test
"""

EXAMPLES = r"""
- name: Wait until the pair is live
  sparkpair.serving.await_live:
    rank: "{{ rank }}"
    world_size: "{{ groups['sparks'] | length }}"
    directory: ~/.local/state/sparkpair/{{ inventory_hostname }}/ranks/rank{{ rank }}
    ready_url: http://127.0.0.1:8888/v1/models
    timeout: 900
  vars:
    rank: "{{ groups['sparks'].index(inventory_hostname) }}"
"""

RETURN = r"""
verdict:
  description: Whether the ranks are C(live), one was C(lost), or the time was over (C(timed out)).
  type: str
  returned: when not skipped
  sample: live
elapsed_s:
  description: Seconds this task took.
  type: float
  returned: when not skipped
  sample: 41.3
decision:
  description:
    - What to do after a start that failed, for M(sparkpair.serving.rank_specs), with C(action) (C(refit), C(again) or
      C(without split)), C(words) and C(attempts).
  type: dict
  returned: when O(retry) is given and another start is worth it
fitting_window_tokens:
  description: The largest prompt-plus-reply window that fits, when a rank said that the planned one does not.
  type: int
  returned: failure
  sample: 524288
ranks:
  description: Every rank that was looked at, as it was seen last.
  type: list
  elements: dict
  returned: when not skipped
  contains:
    rank:
      description: The rank.
      type: int
    host:
      description: Its host.
      type: str
    doing:
      description: What it was doing, or how it ended.
      type: str
    exit_code:
      description: Exit code of an ended rank, else null.
      type: int
    exit_signal:
      description: Signal that ended it, else null.
      type: int
    anchors:
      description: What its log says, see M(sparkpair.serving.rank_process_info).
      type: dict
"""
