"""New lines of several notebooks are read against all that was written before them, one notebook after another."""

import torch


class LineReader:
    def __init__(self, sharpness):
        self.scale_of_scores = sharpness

    def forward(self, page_keys, page_values, begins, written, pages, question):
        answers = []
        for row in range(written.shape[0]):
            first, last, count = int(begins[row]), int(begins[row + 1]), int(written[row])
            known = page_keys[pages[row].long()].reshape(-1, *page_keys.shape[2:])[:count]
            noted = page_values[pages[row].long()].reshape(-1, *page_values.shape[2:])[:count]
            asked = question[first:last].view(last - first, known.shape[1], -1, question.shape[-1])
            scores = torch.einsum("ngqc,tgc->gqnt", asked.float(), known.float()) * self.scale_of_scores
            seen = torch.ones(last - first, count, dtype=torch.bool).tril(count - (last - first))
            weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
            answer = torch.einsum("gqnt,tgc->ngqc", weights, noted.float())
            answers.append(answer.reshape(last - first, *question.shape[1:]).to(question.dtype))
        return torch.cat(answers)
