"""The prefix cache: computed KV blocks that outlive their request, found again by the tokens they were computed from.

A trie whose edges are whole blocks of token ids. Its dictionaries find an edge by hash and then compare the tokens
themselves, so two prefixes with one hash can never share a block. Only full blocks are published: a block that is still
being written has one owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from target_engine.memory.blocks import BlockPool, Holder

CACHE = Holder("cache", "prefix")

Tokens = tuple[int, ...]


class _Node:
    """One cached block: the tokens in it, and the blocks that may follow. The root has no block."""

    __slots__ = ("block", "children", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: Tokens, block: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[Tokens, _Node] = {}


class PrefixCache:
    """Full blocks by token prefix, least recently used evicted first.

    Ownership: a block belongs to the cache from `publish` until `evict` (holder `CACHE`), beside the requests that hold
    it too. The cache alone holding it makes it evictable, so `evictable` blocks are as good as free ones.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.on_drop: Callable[[int], None] | None = None  # told of each block that the cache lets go of
        self._root = _Node(None, (), -1)
        # Least recently used first. A node is always older than its parent, so leaves come before what they hang from.
        self._recency: OrderedDict[int, _Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recency)

    def __contains__(self, block: int) -> bool:
        return block in self._recency

    @property
    def evictable(self) -> int:
        """Number of blocks that only the cache holds."""
        return self.pool.sole(CACHE)

    def match(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """The longest cached prefix of `token_ids` in whole blocks: (blocks, number of tokens in them).

        Mutates recency only. The caller must `pool.share` the blocks before anything may evict.
        """
        path = self._walk(token_ids, len(token_ids) // self.pool.block_size)
        self._touch(path)
        return [node.block for node in path], len(path) * self.pool.block_size

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int]) -> int:
        """Offer the computed `blocks` of the prefix `token_ids`; returns how many the cache took (shared with `CACHE`).

        `token_ids` fills `blocks` exactly, from the first token on. Where an equal prefix is cached already, the cached
        block stays and the caller keeps its own: block tables only ever grow.
        """
        size = self.pool.block_size
        if len(token_ids) != len(blocks) * size:
            raise ValueError(f"{len(blocks)} full blocks hold {len(blocks) * size} tokens, not {len(token_ids)}")
        path = self._walk(token_ids, len(blocks))
        known = len(path)
        node = path[-1] if path else self._root
        for index in range(known, len(blocks)):
            block = blocks[index]
            if block in self._recency:
                raise ValueError(f"block {block} is published already, for other tokens")
            self.pool.share(block, CACHE)
            child = _Node(node, tuple(token_ids[index * size : (index + 1) * size]), block)
            node.children[child.tokens] = child
            path.append(child)
            node = child
        self._touch(path)
        return len(blocks) - known

    def evict(self, count: int) -> int:
        """Free at least `count` blocks that only the cache holds, oldest first, or as many as there are; returns how
        many were freed.

        What hangs from an evicted block cannot be found any more, so the cache lets go of it too; requests that hold it
        keep it.
        """
        before = self.pool.free
        for block, node in list(self._recency.items()):
            if self.pool.free - before >= count:
                break
            if self._recency.get(block) is node and self.pool.holders(block) == (CACHE,):
                self._drop(node)
        return self.pool.free - before

    def depth(self, block: int) -> int:
        """Number of blocks in the prefix that ends with a cached block."""
        node, depth = self._recency[block], 1
        while node.parent is not None and node.parent is not self._root:
            node, depth = node.parent, depth + 1
        return depth

    def clear(self) -> None:
        """Let go of every block, for example when the weights change."""
        for child in list(self._root.children.values()):
            self._drop(child)

    def check(self) -> None:
        """Assert that the trie, the recency list and the pool agree."""
        seen: set[int] = set()
        stack = list(self._root.children.values())
        age = {block: position for position, block in enumerate(self._recency)}
        while stack:
            node = stack.pop()
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
            assert len(node.tokens) == self.pool.block_size
            assert node.block not in seen, f"block {node.block} hangs in two places"
            assert CACHE in self.pool.holders(node.block), f"block {node.block} is cached but not held by the cache"
            assert node.parent is self._root or age[node.block] < age[node.parent.block], (
                "a node is newer than its parent"
            )
            seen.add(node.block)
            stack.extend(node.children.values())
        assert seen == set(self._recency), "trie and recency list differ"
        held = {block for block in range(self.pool.num_blocks) if CACHE in self.pool.holders(block)}
        assert held == seen, f"the cache holds {held - seen} without knowing what they are"

    def _walk(self, token_ids: Sequence[int], blocks: int) -> list[_Node]:
        """The nodes of the longest cached path over the first `blocks` blocks of `token_ids`."""
        size = self.pool.block_size
        node, path = self._root, []
        for start in range(0, blocks * size, size):
            child = node.children.get(tuple(token_ids[start : start + size]))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _touch(self, path: list[_Node]) -> None:
        for node in reversed(path):  # the deepest first, so that parents stay newer than children
            self._recency[node.block] = node
            self._recency.move_to_end(node.block)

    def _drop(self, top: _Node) -> None:
        assert top.parent is not None
        del top.parent.children[top.tokens]
        stack = [top]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            del self._recency[node.block]
            if self.on_drop is not None:
                self.on_drop(node.block)
            self.pool.release(node.block, CACHE)
