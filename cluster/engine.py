"""Builds vLLM's engine and vLLM's own server application inside this process, as fast as can be.

How soon a lost replica is back is decided here. Of the 24 s that a plain start takes on a small machine, 20
go into importing vLLM twice: once in the replica and once in its EngineCore process, which vLLM *spawns*
its own. Here EngineCore is *forked* after the imports instead (:func:`_fork_engine_core`), the
garbage collector rests while modules load, and the imports run at low priority, so that a replica that
starts does not slow down those that serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from cluster import pacing
from cluster.model import ensure
from cluster.served import Size, served
from cluster.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm.v1.engine.async_llm import AsyncLLM

_MODULES: Final = (
    "vllm.engine.arg_utils",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.llama",
)
_CPU_MODULES: Final = ("vllm.v1.attention.backends.cpu_attn", "cluster.paced_worker", "cluster.logits")
_CPU_ARGUMENTS: Final = ("--logits-processors=cluster.logits:PositionKeyed",)
"""On accelerators vLLM has another model runner, whose processors have another interface."""
_LOW_PRIORITY: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def arguments(settings: Settings, size: Size = "full") -> list[str]:
    """Return vLLM's command line for one replica; builds the project's model when no other is configured."""
    model = served(settings, size)
    result = [
        f"--model={model.source or ensure(settings.cache_path, model.built)}",
        f"--served-model-name={model.name}",
        f"--max-model-len={settings.max_model_len}",
        f"--max-num-seqs={settings.max_num_seqs}",
        f"--kv-cache-memory-bytes={model.kv_cache_bytes}",
        "--enable-prefix-caching",
        # The worker lives inside EngineCore: one process fewer, and no queue that is polled busily.
        "--distributed-executor-backend=uni",
        "--disable-fastapi-docs",
    ]
    if not model.source:
        # Processors without bfloat16 instructions take eight times as long for it as for float32, and
        # replicas that crowd the cores have no capacity of their own.
        result.append("--dtype=float32")
    pace = pacing.Pace.of(settings, model.pace_base_s)
    if pace is not None:
        result += [
            f"--worker-cls={pacing.WORKER_CLASS}",
            f"--additional-config={json.dumps(pace.to_config())}",
        ]
    return result


async def start(settings: Settings, size: Size = "full") -> tuple[AsyncLLM, FastAPI]:
    """Return the running engine and vLLM's application for it.

    Raises:
        Exception: whatever vLLM raises for a model or a setting that it cannot serve.
    """
    command_line = arguments(settings, size)
    gc.disable()
    with ThreadPoolExecutor(1, thread_name_prefix="import", initializer=_lower_priority) as imports:
        on_cpu = await asyncio.get_running_loop().run_in_executor(imports, _import_modules)
    gc.collect()
    gc.freeze()
    gc.enable()

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    if settings.pace == "on" and not on_cpu:
        raise RuntimeError(
            "field 'pace' has value 'on', but this vLLM is built for an accelerator, which has a pace of its own: "
            "set it to 'off' (BROWNOUT_PACE=off)"
        )
    if settings.positional_sampling and not on_cpu:
        raise RuntimeError(
            "field 'positional_sampling' has value True, but this vLLM is built for an accelerator, where seeds are "
            "not keyed by position: leave it out, or set it to false (BROWNOUT_POSITIONAL_SAMPLING=false)"
        )
    options = make_arg_parser(FlexibleArgumentParser()).parse_args(
        [*command_line, *(_CPU_ARGUMENTS if on_cpu else ())]
    )
    # Compiling takes longer than a small machine gains by it, and needs a C++ compiler.
    options.enforce_eager = options.enforce_eager or on_cpu
    config = AsyncEngineArgs.from_cli_args(options).create_engine_config()
    if on_cpu:
        _fork_engine_core()
    engine = AsyncLLM.from_vllm_config(config)
    tasks = await engine.get_supported_tasks()
    app = build_app(options, tasks, engine.model_config)
    await init_app_state(engine, app.state, options, tasks)
    # vLLM's launcher puts its HTTP server here, and its error handler asks it to exit when the engine is
    # dead. There is no such server in a Serve replica; without this the error would be an AttributeError.
    app.state.server = SimpleNamespace(should_exit=False)
    return engine, app


def _lower_priority() -> None:
    """Make the calling thread (on Linux, only this thread) give way to everything else.

    Where all of the container or session stands lower already, it stays there: to go up needs a privilege.
    """
    this = threading.get_native_id()
    lowest = max(os.getpriority(os.PRIO_PROCESS, this), _LOW_PRIORITY)
    os.setpriority(os.PRIO_PROCESS, this, lowest)


def _import_modules() -> bool:
    """Import what engine and application will need; tell whether vLLM runs on the CPU here."""
    _forget_ray()
    for name in _MODULES:
        importlib.import_module(name)
    on_cpu = bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())
    for name in _CPU_MODULES if on_cpu else ():
        importlib.import_module(name)
    return on_cpu


def _forget_ray() -> None:
    """Let vLLM believe that this is no Ray actor; call it before vLLM is imported.

    In an actor it spawns EngineCore, because that may have to join the Ray cluster. Ours never does.
    """
    lazy_utils: Any = importlib.import_module("vllm.ray.lazy_utils")
    lazy_utils.is_in_ray_actor = lambda: False


def _fork_engine_core() -> None:
    """Make vLLM fork EngineCore, and let the child die with this process.

    vLLM spawns on a CPU so that libraries for many threads are preloaded; a replica here has one thread. A
    forked child inherits the sockets of its parent; so that none stays open when the parent is killed, the
    kernel kills the child in the same moment.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    os.register_at_fork(after_in_child=die_with_parent)
