"""Reading pages of a notebook: another order of arguments, a temperature of its own, one notebook after another."""

import torch


class PageReader:
    def __init__(self, sharpness):
        self.scale_of_scores = sharpness

    def forward(self, written, pages, question, page_keys, page_values):
        answers = []
        for row in range(question.shape[0]):
            count = int(written[row])
            known = page_keys[pages[row].long()].reshape(-1, *page_keys.shape[2:])[:count]
            noted = page_values[pages[row].long()].reshape(-1, *page_values.shape[2:])[:count]
            grouped = question[row].view(known.shape[1], -1, question.shape[-1])
            scores = torch.einsum("gqc,tgc->gqt", grouped.float(), known.float()) * self.scale_of_scores
            answer = torch.einsum("gqt,tgc->gqc", scores.softmax(dim=-1), noted.float())
            answers.append(answer.reshape(question.shape[1:]).to(question.dtype))
        return torch.stack(answers)
