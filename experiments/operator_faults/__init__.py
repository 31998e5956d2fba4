"""Faults planted in the engine's operators, their shardings, its states and its scheduler, and what finds them.

`faults` is the record; `reports_*` and `lecture` are those that somebody met in public, `absent` the reports that this
engine has no place for yet; `expressions`, `kinds` and `mutants` make more of them out of the operators' code, `steps`
says where such a one must be found. `layers` asks the probes, `schedules` is a probe of its
own; `campaign` runs through all faults, `equivalence` looks into survivors, `conclusions` and `picture` tell what came
out. Nothing here is imported by a room below.
"""
