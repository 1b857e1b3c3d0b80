"""The library's sentences in the words of a command: ``detection=0.1`` is ``--detection 0.1``."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["in_options", "usage_sentence"]

#: What a programmer is told, what one types instead, and the parameter that a command must have for it.
_SAID = (
    (r"\bPoisson rate\b", "--rate", "rate"),
    (r"\bFixedSize size\b", "--fixed-size", "fixed_size"),
    (r"\bEveryone\(\)", "neither --rate nor --fixed-size", "rate"),
    (r"\bGaussian\(\)", "--mechanism gaussian", "mechanism"),
    (r"\bNoNoise\(\)", "--epsilon inf", "epsilon"),
    (r"\bn_tasks\b", "--tasks", "tasks"),
    (r"\bdefault_delta\(\d+\) = ", "--delta ", "delta"),
)
#: How the parser of options speaks of what was typed; typer before 0.21 has words of its own.
_PARSED = (
    (r"^Value error, ", ""),
    (r"^Input should be a valid number\b.*", "must be a number"),
    (r"^Input should be a valid integer\b.*", "must be a whole number"),
    (r"^Input should be greater than or equal to ", "must be at least "),
    (r"^Input should be less than or equal to ", "must be at most "),
    (r"^Input should be ", "must be "),
    (r"^.* is not a valid float\b.*", "must be a number"),
    (r"^.* is not a valid integer\b.*", "must be a whole number"),
    (r"^.* is not in the range x>=([^<>]+)\.$", r"must be at least \1"),
    (r"^.* is not in the range x<=([^<>]+)\.$", r"must be at most \1"),
    (r"^.* is not in the range (.+)<=x<=(.+)\.$", r"must be from \1 to \2"),
)


def in_options(sentence: str, options: Mapping[str, str]) -> str:
    """Return an error of the library as a command says it, which has these options for parameters.

    Examples
    --------
    >>> options = {"detection": "--detection", "false_alarms": "--false-alarms", "force": "--force"}
    >>> in_options("detection must be above false_alarms. Use detection=0.1, or force=True.", options)
    '--detection must be above --false-alarms. Use --detection 0.1, or --force.'
    """
    for pattern, words, parameter in _SAID:
        if parameter in options:
            sentence = re.sub(pattern, words, sentence)
    for name, option in options.items():
        sentence = re.sub(rf"(?<![\w-]){name}=True\b", option, sentence)
        sentence = re.sub(rf"(?<![\w-])(?<!--set ){name}=(?=\w)", f"{option} ", sentence)
        named = rf"(?<![\w-]){name}\b" if "_" in name else rf"^{name}(?= must\b)"
        sentence = re.sub(named, option, sentence)
    return sentence


def usage_sentence(message: str, option: str | None) -> str:
    """Return what is wrong with an option, or with several together, as one sentence.

    Examples
    --------
    >>> usage_sentence("Input should be a valid number, unable to parse string as a number", "--epsilon")
    '--epsilon must be a number.'
    >>> usage_sentence("Value error, 'add' is not one of 'replace', 'zero_out'.", "--relation")
    "--relation: 'add' is not one of 'replace', 'zero_out'."
    >>> usage_sentence("10 is not in the range x>=1000.", "--draws")
    '--draws must be at least 1000.'
    """
    for pattern, words in _PARSED:
        message = re.sub(pattern, words, message)
    sentence = message.rstrip(".") + "."
    if option is None:
        return sentence
    return f"{option} {sentence}" if sentence.startswith("must") else f"{option}: {sentence}"
