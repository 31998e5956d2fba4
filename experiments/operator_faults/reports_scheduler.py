"""Public reports about the life of blocks and slots, and about the scheduler, each as an edit of this engine's own part
of that kind. As in `reports_states`, an assertion that the reported engine did not have goes with the edit.
"""

from __future__ import annotations

from experiments.operator_faults.faults import Edit, Record

SCHEDULER, BLOCKS = "target_engine/scheduling/scheduler.py", "target_engine/memory/blocks.py"

LIFETIME = (
    Record(
        "blocks are given back twice",
        "sgl-project/sglang-omni#1607",
        "kv lifetime",
        "a finished request's blocks go to the free list once more, and two requests get the same ones",
        (
            Edit(
                BLOCKS,
                '            if holder not in holders:\n                raise ValueError(f"{holder.kind} {holder.id} '
                'releases block {block}, which it does not hold")\n            holders.remove(holder)\n',
                "            if holder in holders:\n                holders.remove(holder)\n",
            ),
            Edit(
                SCHEDULER,
                "        request.block_ids = []\n        request.published = request.cached = 0\n",
                "        self.pool.release(request.block_ids[-1:], self._holder(request))\n"
                "        request.block_ids = []\n        request.published = request.cached = 0\n",
            ),
        ),
        ("slot reuse", "batch", "chunks", "preemption"),
        ("slot reuse", "batch", "chunks", "preemption"),
        "schedules",
    ),
    Record(
        "pages are reused under a write in flight",
        "sgl-project/sglang#24527",
        "kv lifetime",
        "the oldest request, whose row is planned already, gives its blocks to another row of the same step",
        (
            Edit(
                SCHEDULER,
                "            victim = self.running.pop()\n            self._preempt(victim)",
                "            victim = self.running.pop(0)\n            self._preempt(victim)",
            ),
        ),
        ("preemption",),
        ("preemption",),
        "schedules",
    ),
    Record(
        "cached blocks are freed under their readers",
        "sgl-project/sglang#24527",
        "kv lifetime",
        "a matched prefix is not held by the request that reads it",
        (
            Edit(SCHEDULER, "        for block in matched:\n            self.pool.share(block, holder)\n", ""),
            Edit(
                SCHEDULER,
                "self.pool.release(reversed(request.block_ids), self._holder(request))",
                "self.pool.release([b for b in reversed(request.block_ids) if self._holder(request) in "
                "self.pool.holders(b)], self._holder(request))",
            ),
        ),
        ("eviction",),
        ("eviction",),
        "schedules",
    ),
    Record(
        "blocks of finished requests leak",
        "sgl-project/sglang#20182",
        "kv lifetime",
        "the last block of a request is never given back",
        (
            Edit(
                SCHEDULER,
                "self.pool.release(reversed(request.block_ids), self._holder(request))",
                "self.pool.release(reversed(request.block_ids[:-1]), self._holder(request))",
            ),
        ),
        ("slot reuse",),
        ("slot reuse",),
        "schedules",
    ),
)

SCHEDULING = (
    Record(
        "never admitted",
        "vllm-project/vllm#53130",
        "scheduler",
        "admission asks for more blocks than the request will ever need: a long one never fits",
        (
            Edit(
                SCHEDULER,
                "self._take(request, self.pool.blocks_for(len(request.tokens)) - len(matched))",
                "self._take(request, self.pool.blocks_for(len(request.tokens) + request.sampling.max_tokens * 2))",
            ),
        ),
        ("full memory",),
        ("full memory",),
        "schedules",
    ),
    Record(
        "one slot is never used",
        "vllm-project/vllm#53130",
        "scheduler",
        "admission stops one short of the limit: an engine of one slot serves nobody",
        (
            Edit(
                SCHEDULER,
                "while self.waiting and len(self.running) < self.max_batch and budget and not preempted:",
                "while self.waiting and len(self.running) + 1 < self.max_batch and budget and not preempted:",
            ),
        ),
        ("alone",),
        ("alone",),
        "schedules",
    ),
    Record(
        "preempted requests go to the end",
        "vllm-project/vllm#41951",
        "scheduler",
        "a request that lost its blocks waits behind all that came after it",
        (Edit(SCHEDULER, "        self.waiting.appendleft(request)\n", "        self.waiting.append(request)\n"),),
        ("order",),
        ("order",),
        "schedules",
    ),
    Record(
        "a recomputed request is short",
        "vllm-project/vllm#16832",
        "scheduler",
        "what a preempted request had put out counts twice against its limit",
        (
            Edit(
                SCHEDULER,
                "elif request.output_length >= request.sampling.max_tokens or",
                "elif request.output_length + request.preemptions >= request.sampling.max_tokens or",
            ),
        ),
        ("preemption",),
        ("preemption",),
        "schedules",
    ),
    Record(
        "a recomputed request forgets its output",
        "vllm-project/vllm#16832",
        "scheduler",
        "only the prompt of a preempted request is computed again, its output counts as computed",
        (
            Edit(
                SCHEDULER,
                "        request.computed = request.cached = cached\n",
                "        request.computed = request.cached = cached\n        if request.preemptions and not cached:\n"
                "            del request.tokens[request.prompt_length : -1]\n",
            ),
        ),
        ("preemption",),
        ("preemption",),
        "schedules",
    ),
)
