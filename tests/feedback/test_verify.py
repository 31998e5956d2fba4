"""Verification of timed outputs: right ones pass, and a wrong one is named with its request and token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.load.metrics import RequestRecord
from feedback.load.verify import BATCH, Bounds, Verification, verify
from feedback.target import Request, Scored

VOCABULARY = 40
END = 0


class Oracle:
    """A bigram model: the logits of the next token depend on the last one. Ends after END."""

    def __init__(self, seed: int = 0) -> None:
        logits = np.random.default_rng(seed).standard_normal((VOCABULARY, VOCABULARY)) * 2
        logits[:, END] = -9.0
        self.logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        self.calls = 0

    def generate(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logprobs[tokens[-1]].argmax()))
        return tuple(tokens[len(prompt) :])

    def score(self, sequences: list[dict[str, Any]]) -> list[Scored]:
        self.calls += 1
        assert len(sequences) <= BATCH
        found = []
        for item in sequences:
            rows = self.logprobs[[item["prompt"][-1], *item["output"][:-1]]]
            given_one = rows[np.arange(len(rows)), item["output"]]
            best = rows.argmax(axis=1)
            top = rows.max(axis=1)
            found.append(Scored(logprob=tuple(given_one), best=tuple(map(int, best)), best_logprob=tuple(top)))
        return found

    def second_best(self, token: int) -> int:
        return int(self.logprobs[token].argsort()[-2])


ORACLE = Oracle()


def request(id: str, max_tokens: int, **more: Any) -> Request:
    token = 1 + sum(id.encode()) % (VOCABULARY - 1)
    return Request(id=id, prompt_token_ids=(3, token), max_tokens=max_tokens, **more)


def answer(asked: Request, tokens: tuple[int, ...], reason: str = "length") -> RequestRecord:
    times = tuple(0.1 * (index + 1) for index in range(len(tokens)))
    return RequestRecord(asked.id, len(asked.prompt_token_ids or ()), tokens, times, 0.0, reason)


def right(asked: Request) -> RequestRecord:
    return answer(asked, ORACLE.generate(asked.prompt_token_ids or (), asked.max_tokens))


def check(records: list[RequestRecord], requests: list[Request], bounds: Bounds, **more: Any) -> Verification:
    return verify(records, requests, Oracle().score, bounds, **more)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_right_outputs_pass_exactly_and_every_token_is_counted(lengths: list[int]) -> None:
    asked = [request(f"r{index}", length) for index, length in enumerate(lengths)]
    found = check([right(item) for item in asked], asked, Bounds())
    assert found.wrong == ()
    assert (found.requests, found.tokens) == (len(lengths), sum(lengths))
    assert (found.mean_regret, found.agreement) == (0.0, 1.0)


@given(st.integers(1, 12), st.data())
def test_one_wrong_token_is_named(length: int, data: st.DataObject) -> None:
    asked = [request(f"r{index}", length) for index in range(3)]
    place = data.draw(st.integers(0, length - 1))
    tokens = list(right(asked[1]).token_ids)
    before = tokens[place - 1] if place else (asked[1].prompt_token_ids or ())[-1]
    tokens[place] = ORACLE.second_best(before)
    # The engine goes on greedily from its own token, as a real one would: only one token is to blame.
    tokens[place + 1 :] = ORACLE.generate((tokens[place],), length - place - 1)
    found = check([right(asked[0]), answer(asked[1], tuple(tokens)), right(asked[2])], asked, Bounds())
    assert [(item.request, item.position) for item in found.wrong] == [("r1", place)]
    assert f"request r1 token {place}: token id {tokens[place]} where the oracle takes" in found.wrong[0].line()
    assert f"(1 of {length} tokens differ)" in found.wrong[0].what


def test_an_id_that_is_no_token_is_named_and_not_scored() -> None:
    asked = [request("r0", 3), request("r1", 3)]
    good = right(asked[0]).token_ids
    records = [right(asked[0]), answer(asked[1], (good[0], VOCABULARY, 1))]
    found = check(records, asked, Bounds(), vocabulary=VOCABULARY)
    assert [item.line() for item in found.wrong] == ["request r1 token 1: token id 40 is not in the vocabulary of 40"]


def test_a_tie_may_fall_either_way() -> None:
    asked = request("r0", 1)
    row = ORACLE.logprobs[(asked.prompt_token_ids or ())[-1]]
    best, second = int(row.argmax()), int(row.argsort()[-2])

    def nearly_tied(_: list[dict[str, Any]]) -> list[Scored]:
        return [Scored(logprob=(-1.00005,), best=(best,), best_logprob=(-1.0,))]

    assert verify([answer(asked, (second,))], [asked], nearly_tied, Bounds()).wrong == ()
    assert verify([answer(asked, (second,))], [asked], nearly_tied, Bounds(tie=1e-5)).wrong != ()


class TestTypeChange:
    """Bounds on the regret instead of equality."""

    def outputs(self, wrong_share: float, seed: int) -> tuple[list[RequestRecord], list[Request]]:
        rng = np.random.default_rng(seed)
        asked = [request(f"r{index}", 50) for index in range(20)]
        records = []
        for item in asked:
            tokens = list(item.prompt_token_ids or ())
            for _ in range(50):
                slip = rng.random() < wrong_share
                tokens.append(int(rng.integers(1, VOCABULARY)) if slip else int(ORACLE.logprobs[tokens[-1]].argmax()))
            records.append(answer(item, tuple(tokens[2:])))
        return records, asked

    def test_near_misses_pass(self) -> None:
        records, asked = self.outputs(0.0, 0)
        assert check(records, asked, Bounds(exact=False)).wrong == ()

    def test_random_slips_do_not(self) -> None:
        records, asked = self.outputs(0.03, 0)
        found = check(records, asked, Bounds(exact=False, mean_request=10.0))
        assert len(found.wrong) == 1
        assert "regret over all outputs: mean" in found.wrong[0].what
        assert found.wrong[0].position is not None

    def test_one_broken_request_cannot_hide_among_good_ones(self) -> None:
        records, asked = self.outputs(0.0, 0)
        noise = np.random.default_rng(1).integers(1, VOCABULARY, 50)
        records[7] = answer(asked[7], tuple(int(token) for token in noise))
        found = check(records, asked, Bounds(exact=False, mean=1.0, p99=100.0))
        assert [item.request for item in found.wrong] == ["r7"]


class TestEnds:
    def ends_after(self, prompts: Any) -> list[bool]:
        return [prompt[-1] == 8 for prompt in prompts]

    def early(self, tokens: tuple[int, ...], **more: Any) -> Verification:
        asked = request("r0", 10, **more)
        return check([answer(asked, tokens, "stop")], [asked], Bounds(exact=False, mean=99, p99=99, mean_request=99),
                     ends_after=self.ends_after)  # fmt: skip

    def test_an_end_where_the_model_ends_is_right_whether_or_not_the_end_token_is_shown(self) -> None:
        assert self.early((5, 8)).wrong == ()
        assert self.early((5, 8, END)).wrong == ()

    def test_stopping_to_save_work_is_wrong(self) -> None:
        assert (
            self.early((5, 6)).wrong[0].line()
            == "request r0 token 2: ended after 2 of 10 tokens where the oracle goes on"
        )
        assert self.early(()).wrong[0].position == 0

    def test_what_cannot_be_asked_is_a_gap(self) -> None:
        found = self.early((5, 6), stop=("x",))
        assert found.wrong == ()
        assert "stop strings" in found.gaps[0]
        asked = request("r0", 10)
        found = check([answer(asked, (5,), "stop")], [asked], Bounds(exact=False, mean=99, p99=99, mean_request=99))
        assert found.gaps == ("early ends are not checked",)


class TestSampling:
    def test_samples_of_the_model_are_plausible_and_noise_is_not(self) -> None:
        asked = request("r0", 3, temperature=0.8)
        assert check([right(asked)], [asked], Bounds()).wrong == ()
        assert any("plausibility" in gap for gap in check([right(asked)], [asked], Bounds()).gaps)

        def never(_: list[dict[str, Any]]) -> list[Scored]:
            return [Scored(logprob=(-15.0, -18.0, -math.inf), best=(1, 1, 1), best_logprob=(-1.0, -1.0, -1.0))]

        found = verify([right(asked)], [asked], never, Bounds())
        assert found.wrong[0].position == 2


class TestOracleTrouble:
    """A broken oracle is an error of the judge, never the candidate's fault and never a pass."""

    def test_missing_outputs(self) -> None:
        with pytest.raises(ValueError, match="1 outputs for 2 requests"):
            check([right(request("r0", 2))], [request("r0", 2), request("r1", 2)], Bounds())

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_scores_that_are_no_numbers(self, bad: float) -> None:
        asked = request("r0", 1)

        def broken(_: list[dict[str, Any]]) -> list[Scored]:
            return [Scored(logprob=(-1.0,), best=(1,), best_logprob=(bad,))]

        with pytest.raises(ValueError, match="not numbers"):
            verify([right(asked)], [asked], broken, Bounds())

    def test_scores_of_another_length(self) -> None:
        asked = request("r0", 2)

        def short(_: list[dict[str, Any]]) -> list[Scored]:
            return [Scored(logprob=(-1.0,), best=(1,), best_logprob=(-1.0,))]

        with pytest.raises(ValueError, match="scored 1 of 2"):
            verify([right(asked)], [asked], short, Bounds())
