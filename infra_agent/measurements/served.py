"""A state of the target in a configuration that this machine can serve."""

from __future__ import annotations

from feedback.kernels.interpreted import unavailable
from feedback.oracle import Oracle
from feedback.probe import Tree
from feedback.workers.pool import WorkerPool


def servable(base: Tree, tree: Tree, pool: WorkerPool, oracle: Oracle) -> tuple[Tree, tuple[str, ...]]:
    """`tree` on one rank, without the implementations that `base` cannot run here; and what that leaves out, a phrase
    each. Raises `Unsupported` where the target has no operator plan.
    """
    plan, gaps = oracle.plan(base.config), []
    config = dict(oracle.plan(tree.config).unsharded)
    if any(row.sharding for row in plan.rows):
        gaps.append("several ranks")
    with pool.open(base, role="base") as worker:
        missing = unavailable(worker, dict(plan.unsharded), sorted({row.operator for row in plan.rows}), oracle)
    if missing:
        chosen = config.get("operators", {})
        config["operators"] = {name: how for name, how in chosen.items() if name not in missing}
        gaps.append(f"{', '.join(missing)} as chosen, which did not run: {next(iter(missing.values()))}")
    return Tree(tree.root, tree.commit, config), tuple(gaps)
