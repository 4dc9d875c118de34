# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA graphs against the same work done eagerly (contract 9).

torch_graphs.py: torch.cuda.graph with static buffers, and make_graphed_callables in a training loop.
PYTORCH_NO_CUDA_MEMORY_CACHING=1 in the environment turns PyTorch's cache off. Prints PASS and FAIL
lines, exits 0 or 1.
"""
import sys

import torch
from torch import nn

FAILED = []


def verdict(right, name, details=""):
    print(f"{'PASS' if right else 'FAIL'} {name}: {details}", flush=True)
    if not right:
        FAILED.append(name)


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(),
                         nn.Linear(1024, 64)).cuda()


def batches(count):
    generator = torch.Generator().manual_seed(9)
    return [torch.randn(256, 512, generator=generator).cuda() for _ in range(count)]


def inference():
    model, inputs = network(), batches(30)
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        static = inputs[0].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(static)
        worst = 0.0
        for x, reference in zip(inputs, expected):
            static.copy_(x)
            graph.replay()
            # Allocations and frees between launches, which must not meet the graph's memory.
            noise = [torch.full((1 << k,), 1e9, device="cuda") for k in range(8, 21, 2)]
            worst = max(worst, (output - reference).abs().max().item())
            del noise
    verdict(worst < 1e-3, "torch.cuda.graph", f"largest difference {worst:.2e}")


def training():
    losses = []
    for graphed in (False, True):
        model, inputs = network(), batches(20)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        step = model
        if graphed:
            step = torch.cuda.make_graphed_callables(model, (inputs[0].clone(),))
        values = []
        for x in inputs:
            optimizer.zero_grad(set_to_none=True)
            loss = step(x).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.detach().clone())
        losses.append(torch.stack(values).cpu())
    difference = (losses[0] - losses[1]).abs().max().item()
    verdict(difference < 1e-3, "make_graphed_callables", f"largest difference {difference:.2e}")


def main():
    for part in (inference, training):
        try:
            part()
        except Exception as error:  # the other part is judged all the same
            verdict(False, {"inference": "torch.cuda.graph",
                            "training": "make_graphed_callables"}[part.__name__],
                    f"{type(error).__name__} {str(error).splitlines()[0][:200]}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
