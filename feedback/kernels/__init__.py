"""The kernel layer: what a Triton kernel computes with the rounding of the hardware, and what GPU compilers make of it.

Parent side: `probe` (the engine's operators) and `byhand` (a kernel in a file), with `cases`, `arguments`, `trees`,
`session`, `trial`, `conclude` and `golden`. Worker side, copied beside the code under test: `bench`, `interpret`,
`builder`, `observed`, `compile`, `disassembly`, `devices`, `expressions`, `capability`, `golden_kernels` and
`golden_cases`. Both: `rounding`. Worker-side files import the standard library, numpy, Triton and each other alone
(torch in `bench`, `golden_kernels` and `hardware`), by relative names, so that they work inside another package.

What is modelled is the rounding of operands and results; what is not, every verdict names (`observed.NOT_MODELLED`).
"""
