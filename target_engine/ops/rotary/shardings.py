"""How the rotary tables are cut: under context parallelism by tokens."""

from target_engine.parallel.sharding import ALONE, rows

SHARDINGS = (rows("rotary", ("positions", "cos", "sin"), ALONE, replicated=("inv_freq",)),)
