# SPDX-License-Identifier: Apache-2.0
"""From what people wrote to effective settings: declarations, types, choices, ranges, unknown names.

Pure: the caller reads files and variables. Rules that concern more than one setting are in `_rules.py`.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _types
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Given, Mistake
from ansible_collections.sparkpair.serving.plugins.module_utils._types import Refused, shown

PREFIX = "sparkpair_"

_TYPES: dict[str, Callable[[Any], Any]] = {
    "int": _types.to_int,
    "float": _types.to_float,
    "bool": _types.to_bool,
    "str": _types.to_str,
    "path": _types.to_str,
    "dict": _types.to_dict,
    "list": lambda value: _types.to_list(value, _types.to_str),
}
_FORMATS: dict[str, Callable[[Any], Any]] = {
    "ipv4": _types.check_ipv4,
    "networks": _types.check_networks,
    "word": _types.check_word,
    "environment": _types.check_environment,
    "container": _types.check_container,
    "draft_policy": _types.check_draft_policy,
}
_LIMIT_KEYS = {"min", "max", "step", "format", "not_blank", "per_host", "engine", "derived"}


@dataclass(frozen=True)
class Declaration:
    """One setting: its full name, type, default, and what limits it. See `roles/settings/meta`.

    A default of None is derived from other settings, by the functions of the engine.
    """

    name: str
    type: str
    default: Any
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    step: int = 1
    format: str = ""
    not_blank: bool = False
    per_host: bool = False
    engine: str = ""

    @property
    def short(self) -> str:
        """The name without the prefix, as the plan and the roles use it."""
        return self.name[len(PREFIX) :]


def declarations(argument_specs: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Declaration]:
    """Return the declarations by setting name, from the two parsed files of `roles/settings/meta`.

    Raises ValueError when the files contradict each other; that is a mistake of the collection, not of its
    user.
    """
    options = {
        name: option
        for name, option in argument_specs["argument_specs"]["main"]["options"].items()
        if name.startswith(PREFIX)
    }
    strangers = sorted(set(limits) - set(options))
    if strangers:
        raise ValueError(f"limits.yml speaks of settings that argument_specs.yml does not declare: {strangers}")
    for name, limit in limits.items():
        if set(limit) - _LIMIT_KEYS:
            raise ValueError(f"limits.yml, {name}: unknown keys {sorted(set(limit) - _LIMIT_KEYS)}")
    result = {}
    for name, option in options.items():
        limit = limits.get(name) or {}
        if (option["default"] is None) != ("derived" in limit):
            raise ValueError(f"{name}: a default of null is one that limits.yml describes as derived, and the reverse")
        result[name] = Declaration(
            name=name,
            type=option["type"],
            default=option["default"],
            choices=tuple(option.get("choices") or ()),
            minimum=limit.get("min"),
            maximum=limit.get("max"),
            step=limit.get("step", 1),
            format=limit.get("format", ""),
            not_blank=limit.get("not_blank", False),
            per_host=limit.get("per_host", False),
            engine=limit.get("engine", ""),
        )
    return result


def resolve(
    declared: Mapping[str, Declaration], given: Mapping[str, Mapping[str, Given]]
) -> tuple[dict[str, dict[str, Any]], list[Mistake]]:
    """Return the effective settings of every host, by short name, and every mistake of every host.

    `given` holds, by host and full variable name, what somebody set. A setting with a mistake gets its
    default, so that the rules between settings can still look at the others.
    """
    settings: dict[str, dict[str, Any]] = {}
    mistakes: list[Mistake] = []
    for host, values in given.items():
        mistakes += [_unknown(name, declared, values[name], host) for name in values if name not in declared]
        settings[host] = {}
        for name, declaration in declared.items():
            effective = default_for(declaration, host)
            if name in values:
                try:
                    effective = convert(declaration, values[name])
                except Refused as refusal:
                    mistakes.append(Mistake(name, str(refusal), values[name].origin, host))
            settings[host][declaration.short] = effective
    wrong = {mistake.subject for mistake in mistakes}
    sound = [declaration for declaration in declared.values() if declaration.name not in wrong]
    return settings, mistakes + _disagreements(sound, given, settings)


def answered(declared: Mapping[str, Declaration], given: Mapping[str, Given]) -> dict[str, Given]:
    """Return what was given, without fields of a form that were left empty: no number, switch or choice is empty."""

    def is_answer(name: str, value: Any) -> bool:
        one = declared.get(name)
        return value != "" or one is None or not (one.type in ("int", "float", "bool") or one.choices)

    return {name: one for name, one in given.items() if is_answer(name, one.value)}


def default_for(declaration: Declaration, host: str) -> Any:
    """Return the declared default for `host`; the host's name is the only thing a default may depend on."""
    if isinstance(declaration.default, str):
        return declaration.default.replace("{{ inventory_hostname }}", host)
    return _types.plain(declaration.default)


def convert(declaration: Declaration, given: Given) -> Any:
    """Return the value in the declared type, within its limits. Raises Refused."""
    if given.failure:
        raise Refused(f"its template cannot be rendered: {given.failure}")
    if given.value is None:
        default = "one that is derived" if declaration.default is None else shown(declaration.default)
        raise Refused(f"it has no value; remove it to get the default, {default}")
    allowed = describe_allowed(declaration)
    try:
        value = _TYPES[declaration.type](given.value)
    except Refused as refusal:
        raise Refused(
            f"{refusal}; allowed is {allowed}" if declaration.minimum is not None else str(refusal)
        ) from refusal
    if value in ("", [], {}):
        if declaration.not_blank:
            raise Refused("it is empty, and this setting needs a value")
        return value
    if declaration.choices and value not in declaration.choices:
        raise Refused(f"{shown(value)} is not among the choices; allowed is {allowed}")
    if declaration.minimum is not None and value < declaration.minimum:
        raise Refused(f"{shown(value)} is too small; allowed is {allowed}")
    if declaration.maximum is not None and value > declaration.maximum:
        raise Refused(f"{shown(value)} is too large; allowed is {allowed}")
    if declaration.step > 1 and value % declaration.step:
        raise Refused(f"{shown(value)} is no multiple of {declaration.step}; allowed is {allowed}")
    return _FORMATS[declaration.format](value) if declaration.format else value


def describe_allowed(declaration: Declaration) -> str:
    """Return the range or the choices in words, empty when the type says it all."""
    if declaration.choices:
        return " or ".join(declaration.choices)
    if declaration.minimum is None or declaration.maximum is None:
        return ""
    kind = "a whole number" if declaration.type == "int" else "a number"
    if declaration.minimum == declaration.maximum:
        return f"{declaration.minimum} only, in this version"
    steps = f" in steps of {declaration.step}" if declaration.step > 1 else ""
    return f"{kind} from {declaration.minimum} to {declaration.maximum}{steps}"


def of_another_engine(
    declared: Mapping[str, Declaration], given: Mapping[str, Mapping[str, Given]], engine: str
) -> list[Mistake]:
    """Return a mistake for every setting that somebody set and that only another engine than `engine` understands."""
    mistakes = []
    for host, values in given.items():
        for name, value in values.items():
            own = declared[name].engine if name in declared else ""
            if own and own != engine:
                problem = f"only the engine {own} understands it, and sparkpair_engine is {engine}"
                mistakes.append(Mistake(name, problem, value.origin, host))
    return mistakes


def _unknown(name: str, declared: Mapping[str, Declaration], given: Given, host: str) -> Mistake:
    # Without the common prefix, which would make every name look near.
    shorts = [declaration.short for declaration in declared.values()]
    near = difflib.get_close_matches(name[len(PREFIX) :], shorts, n=1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "docs/settings.md lists all settings"
    return Mistake(name, f"there is no such setting ({hint})", given.origin, host)


def _disagreements(
    declared: Iterable[Declaration],
    given: Mapping[str, Mapping[str, Given]],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Mistake]:
    """Return a mistake for every setting of the whole pair that hosts were given with different values."""
    mistakes = []
    hosts = list(settings)
    for declaration in declared:
        if declaration.per_host:
            continue
        first = settings[hosts[0]][declaration.short] if hosts else None
        for host in hosts[1:]:
            other = settings[host][declaration.short]
            if other != first:
                found = f"{hosts[0]} has {shown(first)} and {host} has {shown(other)}"
                problem = f"all hosts need the same value, but {found}"
                source = given[host].get(declaration.name) or given[hosts[0]].get(declaration.name)
                mistakes.append(Mistake(declaration.name, problem, source.origin if source else ""))
                break
    return mistakes
