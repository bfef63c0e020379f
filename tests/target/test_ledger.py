"""The ledger sees what real loaders write, element for element, on real and on meta tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ggufmap.target.ledger import Ledger, Region, coverage

Write = Callable[[nn.Parameter], object]
DEVICES = pytest.mark.parametrize("device", ["cpu", "meta"])


def loaded(shape: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, device=device)


def written(write: Write, shape: tuple[int, ...] = (4, 6), device: str = "cpu") -> tuple[int, str | None]:
    """Elements written by `write` and the problem, for one parameter."""
    parameter = nn.Parameter(torch.ones(shape, device=device))
    with torch.no_grad(), Ledger({"p": parameter}) as ledger:
        write(parameter)
    found: tuple[int, str | None] = ledger.problem("p", parameter)
    return found


def rows(parameter: nn.Parameter, first: int, count: int) -> None:
    part = parameter.data.narrow(0, first, count)
    part.copy_(loaded(tuple(part.shape), parameter.device.type))


def columns(parameter: nn.Parameter, first: int, count: int) -> None:
    part = parameter.data.narrow(1, first, count)
    part.copy_(loaded(tuple(part.shape), parameter.device.type))


def whole(parameter: nn.Parameter) -> None:
    parameter.data.copy_(loaded(tuple(parameter.shape), parameter.device.type))


def everything(*steps: Write) -> Write:
    def run(parameter: nn.Parameter) -> None:
        for step in steps:
            step(parameter)

    return run


def setitem(parameter: nn.Parameter) -> None:
    parameter[:2] = loaded((2, 6), parameter.device.type)
    parameter[2:].data.copy_(loaded((2, 6), parameter.device.type))


def padded(parameter: nn.Parameter) -> None:
    """vLLM's vocabulary embedding: copy the rows that exist, fill the padding."""
    parameter[:3].data.copy_(loaded((3, 6), parameter.device.type))
    parameter[3:].data.fill_(0)


def zeroed_first(parameter: nn.Parameter) -> None:
    parameter.data.zero_()
    whole(parameter)


def by_flat_view(parameter: nn.Parameter) -> None:
    flat = parameter.data.view(-1)
    flat[:13].copy_(loaded((13,), parameter.device.type))
    flat[13:].copy_(loaded((11,), parameter.device.type))


def transposed(parameter: nn.Parameter) -> None:
    parameter.data.t().copy_(loaded((6, 4), parameter.device.type))


def one_value(parameter: nn.Parameter) -> None:
    parameter.data.copy_(loaded((1,), parameter.device.type))


COMPLETE: dict[str, Write] = {
    "at once": whole,
    "by rows": everything(lambda p: rows(p, 0, 1), lambda p: rows(p, 1, 3)),
    "by rows, last first": everything(lambda p: rows(p, 3, 1), lambda p: rows(p, 0, 3)),
    "by columns": everything(lambda p: columns(p, 0, 2), lambda p: columns(p, 2, 4)),
    "by assignment": setitem,
    "with padding": padded,
    "after zeroing": zeroed_first,
    "by flat view": by_flat_view,
    "transposed": transposed,
    "broadcast from one value": one_value,
}


@DEVICES
@pytest.mark.parametrize("name", COMPLETE)
def test_complete(name: str, device: str) -> None:
    assert written(COMPLETE[name], device=device) == (24, None)


INCOMPLETE: dict[str, tuple[Write, int, str]] = {
    "nothing": (lambda p: None, 0, "nothing is written"),
    "reading only": (lambda p: p.data.sum(), 0, "nothing is written"),
    "a row is missing": (lambda p: rows(p, 0, 3), 18, "6 of 24 elements are not written"),
    "a column is missing": (lambda p: columns(p, 1, 5), 20, "4 of 24 elements are not written"),
    "middle is missing": (everything(lambda p: rows(p, 0, 1), lambda p: rows(p, 2, 2)), 18, "6 of 24"),
    "filled only": (lambda p: p.data.zero_(), 0, "only filled with a constant"),
    "by index": (
        lambda p: p.data.index_copy_(0, torch.arange(4, device=p.device), loaded((4, 6), p.device.type)),
        0,
        "index_copy_, which does not say where",
    ),
    "twice": (everything(whole, whole), 24, "more than once"),
    "a row twice": (everything(whole, lambda p: rows(p, 1, 1)), 24, "more than once"),
    "rows overlap": (everything(lambda p: rows(p, 0, 3), lambda p: rows(p, 2, 2)), 24, "more than once"),
    "columns overlap": (everything(lambda p: columns(p, 0, 4), lambda p: columns(p, 3, 3)), 24, "more than once"),
    "rows and a column": (everything(lambda p: rows(p, 0, 4), lambda p: columns(p, 0, 1)), 24, "more than once"),
    "half the rows and half the columns": (
        everything(lambda p: rows(p, 0, 2), lambda p: columns(p, 0, 3)),
        18,
        "more than once",
    ),
}


@DEVICES
@pytest.mark.parametrize("name", INCOMPLETE)
def test_incomplete(name: str, device: str) -> None:
    write, count, message = INCOMPLETE[name]
    found, problem = written(write, device=device)
    assert problem is not None and message in problem
    assert found == count


def test_views_are_runs_of_consecutive_elements() -> None:
    assert Region(3, (2, 3), (3, 1), True).axes() == (6, [])
    assert Region(3, (2, 1, 3), (3, 99, 1), True).axes() == (6, [])  # an axis of size one may have any stride
    assert Region(3, (1,), (7,), True).axes() == (1, [])
    assert Region(3, (), (), True).axes() == (1, [])
    assert Region(3, (2, 3), (1, 2), True).axes() == (6, [])  # transposed: the same elements
    assert Region(3, (2, 3), (6, 1), True).axes() == (3, [(6, 2)])
    assert Region(0, (2, 3, 4), (60, 20, 5), True).axes() == (1, [(5, 4), (20, 3), (60, 2)])


@pytest.mark.parametrize("seed", range(30))
def test_coverage_counts_as_a_mask_does(seed: int) -> None:
    """Random views of a parameter, against the elements that torch really writes."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=generator))

    shape = (pick(3) + 1, pick(5) + 1, pick(7) + 1)
    counts = torch.zeros(shape, dtype=torch.int32)
    parameter = nn.Parameter(torch.zeros(shape))
    with torch.no_grad(), Ledger({"p": parameter}) as ledger:
        for _ in range(pick(4) + 1):
            cuts = tuple(slice(first := pick(size), first + 1 + pick(size), pick(2) + 1) for size in shape)
            counts[cuts] += 1
            view = parameter.data[cuts].transpose(0, pick(3))
            view.copy_(loaded(tuple(view.shape)))
    expected = (
        "some elements are written more than once"
        if (counts > 1).any()
        else (
            f"{int((counts == 0).sum())} of {counts.numel()} elements are not written" if (counts == 0).any() else None
        )
    )
    assert ledger.problem("p", parameter) == (int((counts > 0).sum()), expected)


def test_padding_never_counts_as_a_second_write_nor_twice() -> None:
    copied, padding = Region(0, (3, 6), (6, 1), True), Region(18, (1, 6), (6, 1), False)
    zeroed = Region(0, (4, 6), (6, 1), False)
    assert coverage([copied, padding, padding], 24) == (24, None)
    assert coverage([zeroed, copied, padding], 24) == (24, None)
    assert coverage([copied, Region(18, (5,), (1,), False)], 24) == (23, "1 of 24 elements are not written")


def test_more_pieces_than_can_be_told_apart_are_no_proof() -> None:
    every_other = Region(0, (1 << 24,), (2,), True)
    assert coverage([every_other], 1 << 25) == (0, "written in 16777216 pieces, too many to tell apart")


def test_expert_stacks_are_seen_slice_by_slice() -> None:
    def fill(experts: range) -> Write:
        def run(parameter: nn.Parameter) -> None:
            for expert in experts:
                for half in range(2):
                    parameter.data[expert].narrow(0, half * 2, 2).copy_(loaded((2, 6)))

        return run

    assert written(fill(range(5)), (5, 4, 6)) == (120, None)
    assert written(fill(range(4)), (5, 4, 6)) == (96, "24 of 120 elements are not written")
    assert (
        written(everything(fill(range(5)), fill(range(2, 3))), (5, 4, 6))[1]
        == "some elements are written more than once"
    )


class Model(nn.Module):
    """Fused, tied and plain parameters with the loaders that go with them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.qkv = nn.Linear(4, 8, bias=True)
        self.norm = nn.LayerNorm(4)


def test_every_parameter_has_its_own_account() -> None:
    model = Model()
    parameters = dict(model.named_parameters())
    assert "head.weight" not in parameters  # tied: one tensor, one account
    with torch.no_grad(), Ledger(parameters) as ledger:
        model.head.weight.copy_(torch.ones(5, 4))
        model.qkv.weight[:6].copy_(torch.ones(6, 4))
        model.qkv.bias.copy_(torch.ones(8))
        model.norm.load_state_dict({"weight": torch.ones(4), "bias": torch.zeros(4)})
    problems = {name: ledger.problem(name, tensor) for name, tensor in parameters.items()}
    assert problems == {
        "embed.weight": (20, None),
        "qkv.weight": (24, "8 of 32 elements are not written"),
        "qkv.bias": (8, None),
        "norm.weight": (4, None),
        "norm.bias": (4, None),
    }


@DEVICES
def test_sources_are_followed_through_what_loaders_do(device: str) -> None:
    model = Model().to(device)
    sources = {name: torch.ones(4, 4, device=device) for name in ("q", "k", "v", "unused")}
    with torch.no_grad(), Ledger(dict(model.named_parameters()), provenance=True) as ledger:
        for name, tensor in sources.items():
            ledger.source(name, tensor)
        model.qkv.weight[:4].copy_(sources["q"].narrow(0, 0, 4).float())
        model.qkv.weight[4:].copy_(sources["k"].t().contiguous() * 2)
        scratch = torch.empty(4, device=device)
        scratch.copy_(sources["v"][0])
        model.norm.weight.copy_(scratch)
        model.norm.bias.copy_(torch.cat([sources["v"][1, :2], sources["v"][2, :2]]))
        model.norm.bias.copy_(torch.zeros(4, device=device))
    assert dict(ledger.sources) == {
        "q": ["qkv.weight"],
        "k": ["qkv.weight"],
        "v": ["norm.weight", "norm.bias"],
    }
    assert ledger.origin(sources["unused"]) == "unused"
    assert ledger.origin(torch.ones(1)) is None
    assert ledger.origin("no tensor") is None


def test_values_are_written_as_without_a_ledger() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    with torch.no_grad(), Ledger({"p": parameter}, provenance=True) as ledger:
        source = torch.arange(6.0).reshape(2, 3)
        ledger.source("s", source)
        parameter.copy_(source)
    assert torch.equal(parameter, source)
    assert ledger.problem("p", parameter) == (6, None)


def test_writes_after_the_ledger_are_not_its_business() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    with Ledger({"p": parameter}) as ledger:
        pass
    with torch.no_grad():
        parameter.copy_(torch.ones(2, 3))
    assert ledger.problem("p", parameter) == (0, "nothing is written")


@DEVICES
def test_a_parameter_computed_over_is_still_written_once(device: str) -> None:
    """vLLM's composed_weight_loader: load, then the parameter's own values through a function, in place."""

    def composed(parameter: nn.Parameter) -> None:
        whole(parameter)
        parameter.data.copy_(-torch.exp(parameter.float()))

    def never_loaded(parameter: nn.Parameter) -> None:
        parameter.data.copy_(-torch.exp(parameter.float()))

    def mixed(parameter: nn.Parameter) -> None:
        whole(parameter)
        parameter.data.copy_(parameter + loaded((4, 6), device))

    assert written(composed, device=device) == (24, None)
    assert written(never_loaded, device=device) == (0, "nothing is written")
    assert written(mixed, device=device) == (24, "some elements are written more than once")


REPLACED: dict[str, tuple[Write, int, str | None]] = {
    "written, then replaced": (whole, 12, None),
    "replaced at once": (lambda p: None, 12, None),
    "half written, then replaced": (lambda p: rows(p, 0, 2), 12, "12 of 24 elements are not written"),
    "written twice, then replaced": (everything(whole, whole), 24, "some elements are written more than once"),
}


@DEVICES
@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_parameter_must_have_been_complete(name: str, device: str) -> None:
    """As vLLM's online quantisation does: load, then other memory, of another type, in the parameter's place."""
    write, count, problem = REPLACED[name]
    parameter = nn.Parameter(torch.ones((4, 6), device=device))
    with torch.no_grad(), Ledger({"p": parameter}) as ledger:
        write(parameter)
        other = nn.Parameter(torch.ones((4, 3), device=device))
    assert ledger.problem("p", other) == (count, problem)


def test_a_parameter_that_is_gone_must_have_been_complete_or_untouched() -> None:
    parameters = {name: nn.Parameter(torch.ones(4, 6)) for name in ("whole", "half", "untouched")}
    with torch.no_grad(), Ledger(parameters) as ledger:
        whole(parameters["whole"])
        rows(parameters["half"], 0, 2)
    assert ledger.problem("whole", None) == (24, None)
    assert ledger.problem("half", None) == (12, "12 of 24 elements are not written")
    assert ledger.problem("untouched", None) == (0, None)
