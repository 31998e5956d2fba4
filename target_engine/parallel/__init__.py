"""One model over several ranks: tensor parallel (tp) within layers, context parallel (cp) within prefills, Layer Split.

`sharding.py`, `cutting.py` and `strategy.py` say how operators are cut and what that must not change; they are free of
torch and judge. `collectives.py` and `distributed.py` move tensors between ranks, `rank.py` is one rank's place in a
running model. `ranks.py` runs ranks as processes, `threads.py` and `simulate.py` as threads. The code that combines the
ranks' pieces of one operator is `ops/<operator>/parallel.py`. Nothing here knows of requests or schedules.
"""
