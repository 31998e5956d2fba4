"""What is wrong, how sure are we, and what should be asked next: information in bits, and bits per second.

`bits` is the arithmetic, `outcomes` what was counted when each cause was planted, `belief` the distribution over
causes and its update, `choice` what a probe is worth and which one to ask, `diagnosis` the loop until the cause is
known or the budget is spent, `scores` how ways of choosing fare over many of them. Nothing here runs a probe or knows
what one does: a probe is a name, its outcomes, and its seconds.
"""
