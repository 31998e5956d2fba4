"""A state of the target in a configuration that this machine can serve."""

from __future__ import annotations

from dataclasses import dataclass

from feedback.kernels.interpreted import unavailable
from feedback.oracle import Oracle
from feedback.probe import Tree
from feedback.workers.pool import WorkerPool


@dataclass(frozen=True)
class Served:
    """How this machine can serve what is built on a state: on one rank, without the operators in `missing`. `gaps` is
    what that leaves out, a phrase each.
    """

    missing: frozenset[str]
    gaps: tuple[str, ...]

    @classmethod
    def on(cls, base: Tree, pool: WorkerPool, oracle: Oracle) -> Served:
        """As the base says. Raises `Unsupported` where the target has no operator plan."""
        plan, gaps = oracle.plan(base.config), []
        if any(row.sharding for row in plan.rows):
            gaps.append("several ranks")
        with pool.open(base, role="base") as worker:
            missing = unavailable(worker, dict(plan.unsharded), sorted({row.operator for row in plan.rows}), oracle)
        if missing:
            gaps.append(f"{', '.join(missing)} as chosen, which did not run: {next(iter(missing.values()))}")
        return cls(frozenset(missing), tuple(gaps))

    def of(self, tree: Tree, oracle: Oracle) -> Tree:
        """A state with the configuration in which it is served."""
        config = dict(oracle.plan(tree.config).unsharded)
        if self.missing:
            chosen = config.get("operators", {})
            config["operators"] = {name: how for name, how in chosen.items() if name not in self.missing}
        return Tree(tree.root, tree.commit, config)
