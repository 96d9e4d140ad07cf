"""Goes on with a stream that was cut, at its next token, instead of starting it again or giving it up.

An answer is a list of token ids. Whoever has the ids of the prompt and those generated so far can hand both to
another replica as its prompt, and what comes next is what would have come, as long as the choice of each token
depends on the ids before it and on nothing else. That holds for greedy choice; it does not for a generator of
random numbers that starts again, nor for rules that count *output* tokens (penalties, a minimum length). So a call
is continued only where that is proven, and refused with a reason everywhere else. (Dynamo's request migration.)

:class:`policies.retry.Retry` does it, because there must be one owner of everything that repeats work; what is
here is what it needs to know, and the account of tokens for those who write a :class:`policies.call.Resumable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ResumeSettings:
    """``max_resumes`` is how often one answer may be continued, however well each continuation goes."""

    max_resumes: int = 8

    def __post_init__(self) -> None:
        if self.max_resumes < 1:
            raise ValueError(
                f"max_resumes is {self.max_resumes}: it must be at least 1; switch the policy off by its name"
            )


@dataclass(slots=True)
class Transcript:
    """The token ids of one answer, and how many more there may be.

    ``limit`` is the most output tokens that were asked for and ``context`` the longest sequence that the model
    takes; None where there is no such bound. ``finish_reason`` is set once the answer has told it.
    """

    prompt: Sequence[int]
    limit: int | None = None
    context: int | None = None
    output: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def ids(self) -> list[int]:
        """Return prompt and output so far: the prompt of the continuation."""
        return [*self.prompt, *self.output]

    @property
    def remaining(self) -> int | None:
        """Return how many tokens may still be generated; None where nothing bounds it."""
        bounds = []
        if self.limit is not None:
            bounds.append(self.limit - len(self.output))
        if self.context is not None:
            bounds.append(self.context - len(self.prompt) - len(self.output))
        return max(0, min(bounds)) if bounds else None

    @property
    def complete(self) -> bool:
        """Tell whether nothing is left to generate."""
        return self.finish_reason is not None or self.remaining == 0
