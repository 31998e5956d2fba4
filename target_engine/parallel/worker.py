"""A rank's process: `python -m target_engine.parallel.worker FD`, started by `processes.py` with a pipe at FD.

It takes its place from the pipe, then one step after another, and says when each is done. It ends when the pipe closes,
when its parent is gone, or with its reason as last words.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from target_engine.errors import EngineError, RankFailure
from target_engine.parallel.processes import Failed, Progress, Ready, Start


def main() -> None:
    """Serve until the pipe closes."""
    link = Connection(int(sys.argv[1]))
    try:
        start: Start = link.recv()
    except EOFError:
        os._exit(0)  # rank 0 was gone before it could say anything
    threading.Thread(target=_end_with_parent, args=(os.getppid(), start.folder), daemon=True).start()
    try:
        serve(link, start)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Rank 0 has closed the pipe: there is nobody to work for, or to tell. If it was killed, nobody else tidies up.
        shutil.rmtree(start.folder, ignore_errors=True)
    except BaseException as error:
        try:
            link.send(failed(error))
        except OSError:  # rank 0 was killed in the middle of a step, which is why this one failed
            shutil.rmtree(start.folder, ignore_errors=True)
        os._exit(1)  # not through destructors of groups whose other ranks are gone
    os._exit(0)


def failed(error: BaseException) -> Failed:
    """What an error says of itself, and where in this package it came from."""
    if isinstance(error, RankFailure):
        return Failed(str(error), victim=True)
    if isinstance(error, EngineError):
        return Failed(str(error), victim=False)
    package = Path(__file__).parents[1]
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [f"{path.relative_to(package.parent)}:{line}" for path, line in frames if path.is_relative_to(package)]
    where = f" in {inside[-1]}" if inside else ""
    return Failed(
        f"{type(error).__name__}{where}: {error}: run it with tp 1 and cp 1 to see the whole error", victim=False
    )


def serve(link: Connection, start: Start) -> None:
    """Join the other ranks, load this rank's weights, and compute the steps that rank 0 sends."""
    import torch

    from target_engine.execution.host import keep_freed_memory
    from target_engine.execution.runner import Runner
    from target_engine.parallel.ranks import place
    from target_engine.spans import SpanLog
    from target_engine.weights import Weights

    torch.set_num_threads(start.threads)
    keep_freed_memory()
    link.send(True)
    config, checkpoint = start.config, start.checkpoint
    progress = Progress(start.folder, config.tp * config.cp, start.rank)
    rank = place(config, checkpoint.config, start.rank, start.folder, progress)
    with torch.inference_mode():
        with Weights(checkpoint.folder, checkpoint.config, Runner.dtype_of(config)) as weights:
            runner = Runner(config, weights, SpanLog(), rank)
        link.send(Ready(runner.weight_bytes(), runner.kv_bytes(), runner.state_bytes()))
        while True:
            _, batch = pickle.loads(link.recv_bytes())
            runner.run(batch)
            link.send(True)


def _end_with_parent(parent: int, folder: str) -> None:
    """End this process when its parent has gone, also while it waits in a collective."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
