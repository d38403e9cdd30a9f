"""The words of a command line: where `train`'s CONFIG stands, and the parser's complaints as one sentence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence


def split_config(arguments: Sequence[str], switches: Collection[str]) -> tuple[str | None, list[str]]:
    """Return the CONFIG of `train`, or None, and the other arguments; --resume alone becomes --resume=last.

    The CONFIG is needed before the flags can be parsed. It is the first word that is neither a flag nor the value of
    one; behind a list (`--runner.actor.hidden-dims 64 64 CartpoleBalance`), the first that names a configuration.

    Args:
        arguments: what follows `train`.
        switches: the flags that take no value, such as `--no-cache`.
    """
    from rlbotics_jax.config import find_config

    takes_value = re.compile(r"-[A-Za-z]|--[^=]+")  # the value of `-n8` and of `--seed=1` is in the same word
    rest, words, is_value = [], [], False
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="--"):
        is_flag, flag = argument.startswith("-") and not is_value, argument.replace("_", "-")
        if is_flag and flag in ("--resume", "--runner.logger.resume") and following.startswith("-"):
            argument = f"{argument}=last"
        elif not is_flag and not is_value:
            words.append(len(rest))
        is_value = is_flag and flag not in {*switches, "-h", "--help"} and bool(takes_value.fullmatch(argument))
        rest.append(argument)

    def is_config(index: int) -> bool:
        try:
            return find_config(rest[index]).exists()
        except (OSError, ValueError):
            return False

    if not words:
        return None, rest
    chosen = next(filter(is_config, words), words[0])
    return rest[chosen], rest[:chosen] + rest[chosen + 1 :]


def condense(complaint: str) -> str:
    """Return the parser's framed message as one line: what is wrong, and the flag that was probably meant."""
    lines = [line.strip("│╭╮╰╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", complaint).splitlines()]
    sections: list[list[str]] = [[]]
    for line in lines[1:]:  # after the title; rules part the sections, in ASCII where the terminal has no UTF-8
        if not line.strip("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    sections = [section for section in sections if section]
    sentence = " ".join(sections[0]) if sections else "the command cannot be read"
    for section in sections[1:]:
        if section[0].startswith("Available subcommands"):
            sentence += f"; {section[0][0].lower()}{' '.join(section)[1:]}"
        elif section[0].startswith("Perhaps you meant"):
            sentence += f"; perhaps you meant {' '.join(section[1:2])}"
    return sentence.rstrip(".")


def with_nearest(sentence: str, flags: Sequence[str]) -> str:
    """Return the sentence with the nearest of the flags, by the whole name or its last part, if it names none."""
    from rlbotics_jax.registry import nearest

    unknown = re.match(r"Unrecognized options: .*?(--[^ ,=]+)", sentence)
    if not unknown or "perhaps you meant" in sentence:
        return sentence
    parts = {f"--{flag.rpartition('.')[2]}": flag for flag in reversed(flags)} | {flag: flag for flag in flags}
    return f"{sentence}; perhaps you meant {parts[nearest(unknown[1], parts)]}"
