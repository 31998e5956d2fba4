"""One rank's place in a running model: its weights, its operators, its tokens of a step, the layers that it keeps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from target_engine.errors import EngineError
from target_engine.models.config import ModelConfig
from target_engine.models.inputs import StepInputs
from target_engine.ops.registry import specification
from target_engine.ops.settings import OperatorSettings
from target_engine.parallel.collectives import Build, Group, no_record
from target_engine.parallel.combining import Combine
from target_engine.parallel.cutting import shard_lengths, token_index
from target_engine.parallel.sharding import Sharding
from target_engine.parallel.topology import Topology, owner
from target_engine.parallel.weights import LocalWeights, axis_sizes
from target_engine.weights import Weights


class Followers(Protocol):
    """The ranks that do as this one says."""

    def begin(self, what: str, batch: Any) -> None:
        """Send a step to the other ranks."""
        ...

    def end(self) -> None:
        """Wait until they have computed it."""
        ...


@dataclass(frozen=True)
class StepCut:
    """How the running step is cut over context-parallel ranks.

    `tokens` and `logits` int64 [ranks, B]: tokens of each prefill, and those of them whose logits are wanted, on each
    rank. `decodes` rows of either kind come before these; every rank has them. The last is None without prefills.
    """

    decodes: int
    decode_logits: int
    tokens: Tensor | None
    logits: Tensor | None


class Rank:
    """One of tp x cp ranks. `followers` are the other ranks, on the rank that schedules."""

    def __init__(
        self, topology: Topology, tp: Group, cp: Group, model: ModelConfig, layer_split: bool,
        followers: Followers | None = None,
    ) -> None:  # fmt: skip
        self.topology, self.tp, self.cp = topology, tp, cp
        self.model, self.layer_split, self.followers = model, layer_split, followers
        self.cut = StepCut(0, 0, None, None)
        self._owners = WeakIdKeyDictionary()

    def weights(self, weights: Weights) -> Weights:
        """This rank's part of the weights, with this rank's sizes."""
        return LocalWeights(weights, self.topology)

    def make(
        self, operator: str, build: Build, settings: OperatorSettings, cut: str | None, constants: dict[str, Tensor]
    ) -> Callable[..., Any]:
        """An operator over this rank's constants, with whatever collective its cut needs around it.

        `cut` names the tensor-parallel sharding where the operator has several; without it such an operator is
        computed alike by every rank.
        """

        def tensor_parallel(operator: str, **constants: Tensor) -> Any:
            sharding = _tensor_sharding(operator, cut) if self.topology.tp > 1 else None
            if sharding is None:
                return build(operator, **constants)
            return Sharded(sharding, build, settings, constants, self.tp, self)

        sharding = self._context_sharding(operator) if self.topology.cp > 1 else None
        if sharding is None:
            return tensor_parallel(operator, **constants)
        return Sharded(sharding, tensor_parallel, settings, constants, self.cp, self)

    def _context_sharding(self, operator: str) -> Sharding | None:
        """How an operator is cut over tokens or layers, if it is."""
        found = {each.name: each for each in specification(operator).shardings if each.axis == "cp"}
        return (found.get("layers") if self.layer_split else None) or found.get("context")

    def blocks(self, layer: int, num_blocks: int) -> int:
        """KV blocks that this rank keeps of the attention layer number `layer`: none where another rank has them."""
        kept = not self.layer_split or owner(layer, self.topology.cp) == self.topology.cp_rank
        return num_blocks if kept else 0

    def own(self, k_cache: Tensor, layer: int) -> None:
        """Remember whose layer a cache belongs to."""
        self._owners[k_cache] = owner(layer, self.topology.cp)

    def announce(self, what: str, batch: Any) -> None:
        """On the rank that schedules: have the others compute this batch too."""
        if self.followers is not None:
            self.followers.begin(what, batch)

    def finish(self) -> None:
        """On the rank that schedules: wait for the others."""
        if self.followers is not None:
            self.followers.end()

    def local(self, step: StepInputs) -> StepInputs:
        """The step with this rank's tokens: all decodes, and its piece of every prefill.

        Where tokens lie (`slot_mapping`, `decode`, `prefill`, `state_slots`, `query_starts`) stays told of the whole
        step: the operators take what they need.
        """
        if self.topology.cp == 1:
            return step
        decodes, wanted = step.num_decodes, step.logit_rows.numpy()
        decode_logits = int((wanted < decodes).sum())
        if step.prefill is None:
            self.cut = StepCut(decodes, decode_logits, None, None)
            return step
        runs = np.diff(step.prefill.query_starts.numpy())
        lengths = shard_lengths(runs.tolist(), self.topology.cp)
        pieces = [token_index(lengths, rank) for rank in range(self.topology.cp)]
        places = [np.flatnonzero(np.isin(piece, wanted[decode_logits:] - decodes)) for piece in pieces]
        logits, ends = np.zeros_like(lengths), np.cumsum(runs)
        for rank, piece in enumerate(pieces):
            np.add.at(logits[rank], np.searchsorted(ends, piece[places[rank]], side="right"), 1)
        kept, mine = pieces[self.topology.cp_rank], places[self.topology.cp_rank]
        rows = torch.from_numpy(np.concatenate([np.arange(decodes), kept + decodes]))
        self.cut = StepCut(decodes, decode_logits, torch.from_numpy(lengths), torch.from_numpy(logits))
        return replace(
            step,
            token_ids=step.token_ids[rows],
            positions=step.positions[rows],
            logit_rows=torch.from_numpy(np.concatenate([wanted[:decode_logits], mine + decodes])),
        )

    def extras(self, sharding: Sharding, inputs: dict[str, Tensor], logits: bool) -> dict[str, Tensor]:
        """What the combining code must know of the cut besides its inputs."""
        if sharding.axis == "tp":
            sizes = axis_sizes(self.model, sharding.operator)
            found = sharding.extras(sizes, self.topology.tp, self.topology.tp_rank)
            return {name: torch.from_numpy(array) for name, array in found.items()}
        lengths = self.cut.logits if logits else self.cut.tokens
        extras = {} if lengths is None else {"shard_lengths": lengths}
        if sharding.owned:
            extras["owner"] = torch.tensor([self._owners[inputs["k_cache"]]])
        return extras


def _tensor_sharding(operator: str, cut: str | None) -> Sharding | None:
    """The tensor-parallel sharding that a model means."""
    found = {each.name: each for each in specification(operator).shardings if each.axis == "tp"}
    if cut is None:
        return next(iter(found.values())) if len(found) == 1 else None
    if cut not in found:
        raise EngineError(
            f"operators.{operator}: no tensor-parallel cut {cut!r}; there are: {', '.join(found) or 'none'}"
        )
    return found[cut]


class Sharded:
    """An operator as one rank runs it: `ops/<operator>/parallel.py` around the chosen implementation.

    Rows of a step's decodes, which every context-parallel rank has, go past the combining code where that code says
    (`ROWS`) that its rows begin with them.
    """

    def __init__(
        self, sharding: Sharding, build: Build, settings: OperatorSettings, constants: dict[str, Tensor], group: Group,
        rank: Rank,
    ) -> None:  # fmt: skip
        self.sharding, self.settings, self.group = sharding, settings, group
        self._extras, self._cut = rank.extras, lambda: rank.cut
        module = importlib.import_module(f"target_engine.ops.{sharding.operator}.parallel")
        self._combine: Combine = module.run
        self._rows: str = getattr(module, "ROWS", "")
        spec = specification(sharding.operator)
        self._given = [(each.name, str(each.shape[0])) for each in spec.named("runtime", "inout")]
        self._outputs = [each.name for each in spec.named("output")]
        self.inner = build(sharding.operator, **constants)
        self._built = {sharding.operator: self.inner}
        self._build_new = build
        # The implementation keeps its constants in its own layout; the combining code may ask for their shapes.
        self._constants = {name: tensor.to("meta") for name, tensor in constants.items()}

    def __call__(self, *arguments: Tensor) -> Any:
        if self.sharding.axis != "cp" or not self._rows:
            return self._run(arguments)
        cut = self._cut()
        decodes = cut.decode_logits if self._rows == "logits" else cut.decodes
        if cut.tokens is None:
            return self._alike(arguments)
        if not decodes:
            return self._run(arguments)
        first = self._alike(self._part(arguments, decodes, before=True))
        rest = self._run(self._part(arguments, decodes, before=False))
        return None if first is None else torch.cat([first, rest])

    def _alike(self, arguments: tuple[Tensor, ...]) -> Any:
        """What every rank does alike, or the owner alone where the others keep nothing to do it on."""
        if self.sharding.owned:
            given = {name: value for (name, _), value in zip(self._given, arguments, strict=True)}
            if int(self._extras(self.sharding, given, False)["owner"]) != self.group.rank:
                return None
        return self.inner(*arguments)

    def _part(self, arguments: tuple[Tensor, ...], decodes: int, before: bool) -> tuple[Tensor, ...]:
        """The rows of the decodes, or those after them, of every argument that has rows."""
        part = []
        for (_, letter), argument in zip(self._given, arguments, strict=True):
            if letter == "E":
                argument = argument[: decodes + 1] if before else argument[decodes:] - argument[decodes]
            elif letter in ("N", "B"):
                argument = argument[:decodes] if before else argument[decodes:]
            part.append(argument)
        return tuple(part)

    def _run(self, arguments: tuple[Tensor, ...]) -> Any:
        """The combining code on this rank's arguments."""
        inputs = self._constants | {name: value for (name, _), value in zip(self._given, arguments, strict=True)}
        inputs |= self._extras(self.sharding, inputs, self._rows == "logits")
        found = self._combine(self.sharding.name, self._build, self.settings, inputs, self.group, no_record)
        results = tuple(found[name] for name in self._outputs)
        return results if len(results) > 1 else results[0] if results else None

    def _build(self, operator: str, **constants: Tensor) -> Any:
        """An implementation, made once."""
        if operator not in self._built:
            self._built[operator] = self._build_new(operator, **constants)
        return self._built[operator]
