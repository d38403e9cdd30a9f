"""The packages that come with an extra, and the sentence that a missing one ends in."""

from __future__ import annotations


def missing_package(purpose: str, error: ImportError, extra: str) -> ImportError:
    """Returns the error to raise: what needs the package that could not be imported, and the pip command."""
    package = (error.name or "").partition(".")[0]
    return ImportError(f"{purpose} needs the package '{package}'; install it with: pip install 'rlbotics-jax[{extra}]'")
