"""The same reading with keys that lie by columns and values that lie by lines: one layout does not serve both."""

import torch


class CrossReader:
    def __init__(self, sharpness):
        self.scale_of_scores = sharpness

    def forward(self, page_keys, page_values, begins, written, pages, question):
        answers = []
        for row in range(written.shape[0]):
            first, last, count = int(begins[row]), int(begins[row + 1]), int(written[row])
            known = page_keys[pages[row].long()].permute(0, 3, 1, 2).flatten(0, 1)[:count]
            noted = page_values[pages[row].long()].flatten(0, 1)[:count]
            scores = torch.einsum("ngc,tgc->gnt", question[first:last], known) * self.scale_of_scores
            seen = torch.ones(last - first, count, dtype=torch.bool).tril(count - (last - first))
            weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
            answers.append(torch.einsum("gnt,tgc->ngc", weights, noted))
        return torch.cat(answers)
