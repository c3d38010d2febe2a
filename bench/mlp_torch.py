"""The same work as bench/mlp.lua in PyTorch; prints the seconds of the best epoch."""
import os
import time

import torch
from torch import nn

N, BATCH, EPOCHS = 20000, 128, 3

torch.manual_seed(1)
torch.set_num_threads(int(os.environ.get("NEAP_THREADS", os.cpu_count() or 1)))
x, y = torch.rand(N, 784), torch.randint(0, 10, (N,))
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()

best = float("inf")
for _ in range(EPOCHS):
    start = time.perf_counter()
    for first in range(0, N, BATCH):
        opt.zero_grad()
        loss_fn(net(x[first:first + BATCH]), y[first:first + BATCH]).backward()
        opt.step()
    best = min(best, time.perf_counter() - start)
print("%.4f" % best)
