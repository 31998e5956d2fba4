"""Is judged: a small, real inference engine that runs alone and knows nothing of the rooms above it.

`python -m target_engine` or `target-engine` is its own product; `target_engine.adapter` shows it to `feedback`.
"""
