"""End-to-end speed on a real traffic shape: pinned workloads, interleaved A/B of live engines, verified outputs.

`ab` produces passes (`feedback.statistics` judges them), `openloop` drives arrivals, `metrics` speaks vLLM's names,
`verify` has the oracle score every timed output, `arms` holds the live engines, `probe` asks the question. No operator
is looked at here; that is `microbench`.
"""
