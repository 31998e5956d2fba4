"""The accuracy layer: how far a candidate's distributions are from the trusted fp32 model's.

Token equality cannot judge a type change (a bf16 engine follows fp32 for a few dozen tokens, then takes another equally
good path), so KL and NLL do. A goal bounds them; where arithmetic is meant to stay what it was, tokens must be equal
too.
"""
