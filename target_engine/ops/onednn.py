"""Where oneDNN's products with prepacked weights can run."""

import torch


def unavailable(dtype: str = "float32") -> str | None:
    """Why implementations on oneDNN cannot compute in this type on this machine, or None.

    What an implementation's `unavailable` returns.
    """
    if not torch.backends.mkldnn.is_available():
        return "this torch has no oneDNN"
    if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "oneDNN has no bfloat16 product for this processor"
    return None
