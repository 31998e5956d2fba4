"""How RMS normalisation is cut: under context parallelism by tokens. Tensor-parallel ranks all have whole rows."""

from target_engine.parallel.sharding import ALONE, rows

SHARDINGS = (rows("rms_norm", ("x", "y"), ALONE, replicated=("weight",)),)
