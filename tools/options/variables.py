"""The variables of the environment: STEPWELL_<OPTION> for options that are a word or yes or no, and a few more."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Sequence
from typing import Any

from .field import OptionError, Variable
from .options import DECLARED, option_types

log = logging.getLogger("stepwell")

_OPTION_VARIABLES = tuple(f"STEPWELL_{name.upper()}" for name in DECLARED)
VARIABLES = (*_OPTION_VARIABLES, "STEPWELL_CACHE_DIR", "STEPWELL_CACHE_URL", "STEPWELL_CPU", "STEPWELL_HOST", "STEPWELL_INTERPRET")
"""The variables of the environment that stepwell reads."""

_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def _allowed() -> dict[str, Sequence[str]]:
    """What the variables that are no options take."""
    from ...targets.cpu.features import TARGETS
    from ...targets.host.selftest import HOSTS

    return {"STEPWELL_CPU": TARGETS, "STEPWELL_HOST": HOSTS}


def sets(name: str) -> bool:
    """Whether an option can be set by a variable: those that are a word or yes or no."""
    return bool({str, bool} & set(option_types()[name])) and DECLARED[name].variable is not Variable.NONE


def from_environment() -> dict[str, Any]:
    """The options that variables of the environment set: STEPWELL_<OPTION> for those that are a word or yes or no. One with another value
    is said once and taken out of the environment, so that processes made later do not say it again. So is one whose name is nearly that of
    a variable, and one of an option that no variable sets."""
    found: dict[str, Any] = {}
    given = [name for name in os.environ if name.startswith("STEPWELL_")]
    for name in [name for name in given if name not in VARIABLES]:
        if near := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85):
            log.error("there is no variable %s; did you mean %s?", name, near[0])
            del os.environ[name]
    if {"STEPWELL_CPU", "STEPWELL_HOST"} & set(given):
        for name, words in _allowed().items():
            _accepted(name, words)
    for name, one in DECLARED.items():
        variable = f"STEPWELL_{name.upper()}"
        text = os.environ.get(variable)
        if not text or one.variable is Variable.READ_ELSEWHERE:
            continue
        if not sets(name):
            log.error("no variable sets the option %s: %s is ignored; give it to torch.compile(..., options=...)", name, variable)
            del os.environ[variable]
            continue
        truth = bool in option_types()[name]
        words = tuple(_WORDS) if truth else tuple(one.words()) if one.words else one.choices
        if _accepted(variable, words) and _checked(name, text):
            found[name] = _WORDS[text.lower()] if truth else text.lower() if one.choices else text
    return found


def _checked(name: str, text: str) -> bool:
    """Whether an option takes a text, as far as its check says; another one is said and taken away."""
    check = DECLARED[name].check
    if check is None or bool in option_types()[name]:
        return True
    try:
        check(name, text)
    except OptionError as error:
        log.error("the variable STEPWELL_%s: %s; the default is used", name.upper(), error)
        del os.environ[f"STEPWELL_{name.upper()}"]
        return False
    return True


def _accepted(variable: str, known: Sequence[str] | None) -> bool:
    """Whether a variable has a value, one of `known` where that is given; another one is said and taken away."""
    text = os.environ.get(variable)
    if not text or not known or text in known or (variable in _OPTION_VARIABLES and text.lower() in known):
        return bool(text)
    log.error("the variable %s is %r; it takes %s; the default is used", variable, text, ", ".join(known))
    del os.environ[variable]
    return False
