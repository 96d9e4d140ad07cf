"""Runs commands: bounded, interrupted once and waited for; with their progress shown, or their output returned."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.substrate import ConfigurationError, Ended, SubstrateError

EXIT_USAGE = 4
CLEAN_UP_S = 60.0
"""How long an interrupted command may take to undo what it did."""


async def run_command(
    command: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> None:
    """Run ``command`` with both outputs on this process's standard error.

    It has a session of its own, so that Ctrl-C reaches it once, from here, and not from the terminal as well.

    Raises:
        ConfigurationError: it is one of ours and says that its settings are wrong.
        SubstrateError: it did not end in time, or not well.
    """
    said = " ".join(command)
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.__stderr__.fileno() if sys.__stderr__ else None,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        raise SubstrateError(f"'{said}' did not end within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEAN_UP_S):
                    await process.wait()
    if code == EXIT_USAGE and command[0] == sys.executable:  # our own programs
        raise ConfigurationError("the configuration cannot be used; see above")
    if code != 0:
        raise SubstrateError(f"'{said}' ended with exit code {code}; see what it said above")


async def ask_command(command: Sequence[str], timeout_s: float, *, env: Mapping[str, str]) -> Ended:
    """Run ``command`` and return how it ended and what it wrote.

    Raises:
        SubstrateError: it did not end in time.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        raise SubstrateError(f"'{' '.join(command)}' did not end within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))
