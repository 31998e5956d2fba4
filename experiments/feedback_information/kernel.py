"""A matrix product in 32 x 32 x 32 tiles, emulated block by block as a GPU would compute it, with one fault planted.

C [M, N] = A [M, K] B [K, N], float32. Matrices lie in flat memory, row after row, and behind each lies what an earlier
tensor left there, so that an index that runs too far reads or writes something. Blocks run one after the other, row by
row of the grid; a block loads its tiles into shared memory, waits for its warps, multiplies and accumulates, and stores
its part of C. Output memory that no block writes keeps what it held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

TILE = 32

#: A block's warps share the loading of a tile: so many, with equal parts of its rows.
WARPS = 4

#: Chance that a warp comes late with its part of one tile in one step. With a barrier the others wait for it. Assumed;
#: half and twice of it give the same conclusions.
LATE = 1 / 32


@dataclass(frozen=True)
class Shape:
    """A problem: `tidy` is in whole tiles, `edge` is in none of its sizes, `long` has a K of 128 tiles."""

    name: str
    m: int
    n: int
    k: int

    def words(self) -> str:
        """`100 x 70 x 90`."""
        return f"{self.m} x {self.n} x {self.k}"


SHAPES = (Shape("tidy", 128, 128, 128), Shape("edge", 100, 70, 90), Shape("long", 64, 64, 4096))


class Fault(StrEnum):
    """What is wrong with the kernel."""

    NONE = "none"
    K_TAIL = "k_tail_not_masked"
    K_SHORT = "k_loop_one_short"
    GRID = "grid_rounded_down"
    STORE = "store_overflow"
    SYNC = "missing_sync"
    HALF = "fp16_accumulation"
    TRANSPOSED = "b_index_transposed"


#: How each fault is mended.
REPAIR = {
    Fault.NONE: "nothing is to be mended",
    Fault.K_TAIL: "mask the loads of the last K tile with k < K",
    Fault.K_SHORT: "loop over ceil(K / 32) tiles",
    Fault.GRID: "round the grid up: ceil(M / 32) x ceil(N / 32)",
    Fault.STORE: "mask the store of C with n < N",
    Fault.SYNC: "wait for all warps between loading the tiles and reading them",
    Fault.HALF: "accumulate in float32",
    Fault.TRANSPOSED: "index B by k * N + n",
}


@dataclass(frozen=True)
class Memory:
    """A matrix of `size` elements in flat memory `data`, and what lies behind it."""

    data: np.ndarray
    size: int

    @classmethod
    def holding(cls, matrix: np.ndarray, behind: int, rng: np.random.Generator) -> Memory:
        """The matrix, and `behind` numbers of an earlier tensor after it."""
        old = rng.standard_normal(behind, np.float32)
        return cls(np.concatenate([matrix.reshape(-1).astype(np.float32), old]), matrix.size)


@dataclass(frozen=True)
class Inputs:
    """A problem with its matrices in memory. `expected` [M, N] is float64; `c` is what the output's memory held."""

    shape: Shape
    a: Memory
    b: Memory
    c: Memory
    expected: np.ndarray

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> Inputs:
        """Standard normal A and B."""
        return cls._of(shape, rng.standard_normal((shape.k, shape.n), np.float32), rng)

    @classmethod
    def identity(cls, shape: Shape, rng: np.random.Generator) -> Inputs:
        """Standard normal A, and the identity for B: C must be A. Needs K = N."""
        if shape.k != shape.n:
            raise ValueError(f"an identity is square, B is {shape.k} x {shape.n}")
        return cls._of(shape, np.eye(shape.k, dtype=np.float32), rng)

    @classmethod
    def _of(cls, shape: Shape, b: np.ndarray, rng: np.random.Generator) -> Inputs:
        a = rng.standard_normal((shape.m, shape.k), np.float32)
        held = rng.standard_normal((shape.m, shape.n), np.float32)
        # As far as the index of any of the faults can run.
        behind_b = (TILE + shape.n) * shape.n + TILE
        memories = [Memory.holding(x, more, rng) for x, more in ((a, TILE), (b, behind_b), (held, TILE))]
        return cls(shape, *memories, expected=a.astype(np.float64) @ b.astype(np.float64))


@dataclass
class Run:
    """What a run left: C [M, N] float32, and what a memory checker and a race checker saw of it."""

    c: np.ndarray
    read_outside: bool = False
    written_outside: bool = False
    race: bool = False


@dataclass
class Shared:
    """Shared memory: a tile of A and one of B, as written, and as seen by whoever does not wait. A block finds in it
    what the block before it left.
    """

    clock: np.random.Generator
    tiles: np.ndarray = field(default_factory=lambda: np.zeros((2, TILE, TILE), np.float32))
    waited: bool = True
    race: bool = False
    seen: np.ndarray = field(default_factory=lambda: np.zeros((2, TILE, TILE), np.float32))

    def write(self, a: np.ndarray, b: np.ndarray) -> None:
        """Begin to overwrite both tiles."""
        self.seen, self.tiles = self.tiles, self.seen
        self.tiles[0], self.tiles[1] = a, b
        self.waited = False

    def barrier(self) -> None:
        """Wait until every warp has written."""
        self.waited = True

    def read(self) -> np.ndarray:
        """Both tiles [2, 32, 32]. Who has not waited finds the old rows where a warp is late."""
        if self.waited:
            return self.tiles
        self.race = True
        late = np.repeat(self.clock.random((2, WARPS)) < LATE, TILE // WARPS, axis=1)
        return np.where(late[:, :, None], self.seen, self.tiles)


def run(inputs: Inputs, fault: Fault, clock: np.random.Generator) -> Run:
    """Compute C with the kernel as the fault has it. `clock` decides which warps are late, where that matters."""
    shape, out = inputs.shape, inputs.c.data.copy()
    blocks = [_blocks(size, down=fault is Fault.GRID) for size in (shape.m, shape.n)]
    steps = _blocks(shape.k) - (fault is Fault.K_SHORT)
    left = Run(out)
    strips_a = [_load_a(inputs, block, steps, fault, left) for block in range(blocks[0])]
    strips_b = [_load_b(inputs, block, steps, fault, left) for block in range(blocks[1])]
    kind = np.float16 if fault is Fault.HALF else np.float32
    shared = Shared(clock)
    for row, strip_a in enumerate(strips_a):
        for column, strip_b in enumerate(strips_b):
            total = np.zeros((TILE, TILE), kind)
            for k in range(0, steps * TILE, TILE):
                shared.write(strip_a[:, k : k + TILE], strip_b[k : k + TILE])
                if fault is not Fault.SYNC:
                    shared.barrier()
                a, b = shared.read()
                total += a @ b  # rounded to the accumulator's type in every step
            _store(inputs, out, row, column, total, fault, left)
    left.race = shared.race
    left.c = out[: inputs.c.size].reshape(shape.m, shape.n)
    return left


def _blocks(size: int, down: bool = False) -> int:
    return size // TILE if down else -(-size // TILE)


def _load_a(inputs: Inputs, block: int, steps: int, fault: Fault, left: Run) -> np.ndarray:
    """The rows of A that a row of blocks needs [32, steps * 32]: zero where masked."""
    shape = inputs.shape
    m = block * TILE + np.arange(TILE)[:, None]
    k = np.arange(steps * TILE)[None, :]
    mask = (m < shape.m) & ((k < shape.k) | (fault is Fault.K_TAIL))
    return _load(inputs.a, m * shape.k + k, mask, left)


def _load_b(inputs: Inputs, block: int, steps: int, fault: Fault, left: Run) -> np.ndarray:
    """The columns of B that a column of blocks needs [steps * 32, 32]: zero where masked."""
    shape = inputs.shape
    k = np.arange(steps * TILE)[:, None]
    n = block * TILE + np.arange(TILE)[None, :]
    mask = (n < shape.n) & ((k < shape.k) | (fault is Fault.K_TAIL))
    index = n * shape.n + k if fault is Fault.TRANSPOSED else k * shape.n + n
    return _load(inputs.b, index, mask, left)


def _load(memory: Memory, index: np.ndarray, mask: np.ndarray, left: Run) -> np.ndarray:
    index = np.where(mask, index, 0)
    left.read_outside |= bool(index.max(initial=0) >= memory.size)
    return np.where(mask, memory.data[index], np.float32(0))


def _store(inputs: Inputs, out: np.ndarray, row: int, column: int, total: np.ndarray, fault: Fault, left: Run) -> None:
    shape = inputs.shape
    m = row * TILE + np.arange(TILE)[:, None]
    n = column * TILE + np.arange(TILE)[None, :]
    mask = (m < shape.m) & ((n < shape.n) | (fault is Fault.STORE))
    index = (m * shape.n + n)[mask]
    left.written_outside |= bool(index.max() >= inputs.c.size)
    out[index] = total[mask].astype(np.float32)
