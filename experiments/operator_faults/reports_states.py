"""Public reports about recurrent state and the prefix cache, each as an edit of this engine's own part of that kind.

Several of these the engine asserts against. Then the edit takes the assertion away too where the reported engine had
none, since the question is what feedback sees; where it stays, the fault shows as an error instead of wrong tokens.
"""

from __future__ import annotations

from experiments.operator_faults.faults import Edit, Record

PACKAGE = "target_engine"
RECURRENT, SCHEDULER = f"{PACKAGE}/scheduling/recurrent.py", f"{PACKAGE}/scheduling/scheduler.py"
RUNNER, CACHES = f"{PACKAGE}/execution/runner.py", f"{PACKAGE}/execution/caches.py"
PREFIX = f"{PACKAGE}/memory/prefix.py"

STATES = (
    Record(
        "a state published before its tokens",
        "vllm-project/vllm#51113",
        "hybrid state",
        "a snapshot is copied before the step, and published as the state after it",
        (
            Edit(
                RUNNER,
                "            logits = self.model.forward(step, caches.layers)\n            caches.copy(batch.kept)\n",
                "            caches.copy(batch.kept)\n            logits = self.model.forward(step, caches.layers)\n",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
    Record(
        "a state published under a block that it is past",
        "vllm-project/vllm#51113",
        "hybrid state",
        "a state is found under the last full block, and has absorbed more than that; positions are not compared",
        (
            Edit(
                RECURRENT,
                "        if self.snapshots is None:\n            return count\n        start, end =",
                "        if self.snapshots is None or count:\n            return count\n        start, end =",
            ),
            Edit(
                RECURRENT,
                "if self.snapshots is not None and end % self.snapshots.block_size == 0:",
                "if self.snapshots is not None and end >= self.snapshots.block_size:",
            ),
            Edit(
                RECURRENT,
                "        self.pool.copy(slot, kept)\n        blocks, _ =",
                "        self.pool.copy(slot, kept)\n        end -= end % self.snapshots.block_size\n"
                "        self.pool._positions[kept] = end\n        blocks, _ =",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
    Record(
        "slots are not zeroed on reuse",
        "vllm-project/vllm#56524",
        "hybrid state",
        "a request starts from what the last owner of its slot left",
        (Edit(RUNNER, "            caches.zero(batch.zeroed)\n", ""),),
        ("slot reuse",),
        ("slot reuse",),
        "schedules",
    ),
    Record(
        "the convolution's slots are not zeroed",
        "vllm-project/vllm#56524",
        "hybrid state",
        "the recurrent state is zeroed, the convolutions' last inputs are not",
        (
            Edit(
                CACHES,
                "            for tensor in self.states:\n                tensor.index_fill_(1, index, 0.0)",
                "            for tensor in self.states[3:]:\n                tensor.index_fill_(1, index, 0.0)",
            ),
        ),
        ("slot reuse",),
        ("slot reuse",),
        "schedules",
    ),
    Record(
        "a prefix runs on in its snapshot",
        "vllm-project/vllm#56196",
        "hybrid state",
        "a resumed request writes into the shared snapshot, which the next one resumes from",
        (
            Edit(
                RUNNER,
                "            caches.copy(batch.kept)\n",
                "            caches.copy([(slot, source) for source, slot in batch.restored])\n"
                "            caches.copy(batch.kept)\n",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
    Record(
        "a slot leaks when a request does not fit",
        "sgl-project/sglang#16067",
        "hybrid state",
        "a state slot is taken before the blocks, and kept when these do not fit",
        (
            Edit(
                SCHEDULER,
                "        request.block_ids = list(matched)\n        try:",
                "        request.block_ids = list(matched)\n        if self.recurrent is not None:\n"
                "            self.recurrent.begin(request, snapshot, known)\n        try:",
            ),
            Edit(
                SCHEDULER,
                "        except OutOfBlocks:\n            self._release(request)\n            return False\n"
                "        if self.recurrent is not None:\n            self.recurrent.begin(request, snapshot, known)\n",
                "        except OutOfBlocks:\n            self.pool.release(request.block_ids, holder)\n"
                "            request.block_ids = []\n            return False\n",
            ),
        ),
        ("preemption", "eviction"),
        ("preemption", "eviction"),
        "schedules",
    ),
    Record(
        "slots of preempted requests leak",
        "sgl-project/sglang#16067",
        "hybrid state",
        "a request that loses its blocks keeps its state slot",
        (
            Edit(
                SCHEDULER,
                "        self._release(request)\n        request.state = State.WAITING\n",
                "        kept, self.recurrent = self.recurrent, None\n        self._release(request)\n"
                "        self.recurrent = kept\n        request.state = State.WAITING\n",
            ),
        ),
        ("preemption",),
        ("preemption",),
        "schedules",
    ),
    Record(
        "slots of aborted requests leak",
        "sgl-project/sglang#20182",
        "hybrid state",
        "an abort gives back the blocks and not the state slot",
        (
            Edit(
                SCHEDULER,
                "return None if request is None else self._finish(request, FinishReason.ABORT)",
                "if request is None:\n            return None\n        kept, self.recurrent = self.recurrent, None\n"
                "        done = self._finish(request, FinishReason.ABORT)\n        self.recurrent = kept\n"
                "        return done",
            ),
        ),
        ("abort",),
        ("abort",),
        "schedules",
    ),
)

PREFIXES = (
    Record(
        "tokens hashed in 8 bits",
        "vllm-project/vllm#15297",
        "prefix cache",
        "blocks are found by the low 8 bits of their tokens, and the tokens are not compared",
        (
            Edit(
                PREFIX,
                "child = _Node(node, tuple(token_ids[index * size : (index + 1) * size]), block)",
                "child = _Node(node, tuple(t & 255 for t in token_ids[index * size : (index + 1) * size]), block)",
            ),
            Edit(
                PREFIX,
                "child = node.children.get(tuple(token_ids[start : start + size]))",
                "child = node.children.get(tuple(t & 255 for t in token_ids[start : start + size]))",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
    Record(
        "a hash that collides",
        "vllm-project/vllm#15297",
        "prefix cache",
        "blocks are found by a sum of their tokens, which order does not change",
        (
            Edit(
                PREFIX,
                "child = _Node(node, tuple(token_ids[index * size : (index + 1) * size]), block)",
                "child = _Node(node, tuple(sorted(token_ids[index * size : (index + 1) * size])), block)",
            ),
            Edit(
                PREFIX,
                "child = node.children.get(tuple(token_ids[start : start + size]))",
                "child = node.children.get(tuple(sorted(token_ids[start : start + size])))",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
    Record(
        "a block found without what is before it",
        "openvinotoolkit/openvino.genai#3722",
        "prefix cache",
        "a block's key is its own tokens: the same ones behind another beginning are taken for it",
        (
            Edit(
                PREFIX,
                "            child = node.children.get(tuple(token_ids[start : start + size]))\n",
                "            part = tuple(token_ids[start : start + size])\n"
                "            child = node.children.get(part)\n            if child is None and start:\n"
                "                child = next((n for n in self._recency.values() if n.tokens == part), None)\n",
            ),
        ),
        ("prefix cache", "eviction"),
        ("prefix cache", "eviction"),
        "schedules",
    ),
    Record(
        "a block that is still being written is published",
        "vllm-project/vllm#5188",
        "prefix cache",
        "the last block of a prompt is offered as if it were full",
        (
            Edit(
                SCHEDULER,
                "full = request.computed // self.pool.block_size",
                "full = -(-request.computed // self.pool.block_size)",
            ),
        ),
        ("prefix cache",),
        ("prefix cache",),
        "schedules",
    ),
)
