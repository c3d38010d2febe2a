"""Writes tests/golden/optim.lua: parameters after 1, 10 and 100 steps of every optimizer with every option, by PyTorch.

Run with any Python that has PyTorch:  python3 tools/golden_optim.py > tests/golden/optim.lua
The problem is smooth and has several minima: sum((a^2 - c)^2) + sum(exp(b) - 2 b) + (sum(a) sum(b))^2 / 100 in float64,
with a of shape (3), b of shape (2, 2); tests/lua/optim_golden_spec.lua spells it in Lua.
"""
import torch

A, B, C = [0.5, -1.25, 2.0], [[0.25, -0.5], [1.0, 1.5]], [1.0, 0.5, 2.25]
STEPS = (1, 10, 100)

# name of the optimizer, its options as Neap spells them, the PyTorch optimizer
CASES = [
    ("SGD", dict(lr=0.01), lambda p: torch.optim.SGD(p, lr=0.01)),
    ("SGD", dict(lr=0.01, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1)),
    ("SGD", dict(lr=0.01, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    ("SGD", dict(lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.05),
     lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.05)),
    ("SGD", dict(lr=0.01, momentum=0.8, nesterov=True, weight_decay=0.05),
     lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.8, nesterov=True, weight_decay=0.05)),
    ("Adam", dict(lr=0.02), lambda p: torch.optim.Adam(p, lr=0.02)),
    ("Adam", dict(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
     lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    ("Adam", dict(lr=0.05, beta2=0.9, amsgrad=True),
     lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.9), amsgrad=True)),
    ("AdamW", dict(lr=0.02), lambda p: torch.optim.AdamW(p, lr=0.02)),
    ("AdamW", dict(lr=0.02, weight_decay=0.2, beta1=0.7, eps=1e-4),
     lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.7, 0.999), eps=1e-4, weight_decay=0.2)),
    ("AdamW", dict(lr=0.05, beta2=0.9, amsgrad=True, weight_decay=0.1),
     lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.9, 0.9), amsgrad=True, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)),
    ("RMSprop", dict(lr=0.01, alpha=0.9, eps=1e-4, weight_decay=0.1),
     lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-4, weight_decay=0.1)),
    ("RMSprop", dict(lr=0.005, momentum=0.8), lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.8)),
    ("RMSprop", dict(lr=0.005, centered=True), lambda p: torch.optim.RMSprop(p, lr=0.005, centered=True)),
    ("RMSprop", dict(lr=0.005, centered=True, momentum=0.5, weight_decay=0.01, eps=1e-2),
     lambda p: torch.optim.RMSprop(p, lr=0.005, centered=True, momentum=0.5, weight_decay=0.01, eps=1e-2)),
    ("Adagrad", dict(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    ("Adagrad", dict(lr=0.1, lr_decay=0.02, weight_decay=0.1, eps=1e-3),
     lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.02, weight_decay=0.1, eps=1e-3)),
    ("LBFGS", dict(lr=0.2, max_iter=4), lambda p: torch.optim.LBFGS(p, lr=0.2, max_iter=4)),
    ("LBFGS", dict(lr=0.5, max_iter=3, history=2), lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3, history_size=2)),
]


def loss_of(a, b):
    c = torch.tensor(C, dtype=torch.float64)
    return ((a * a - c) ** 2).sum() + (b.exp() - 2 * b).sum() + (a.sum() * b.sum()) ** 2 / 100


def run(make, n):
    a = torch.tensor(A, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(B, dtype=torch.float64, requires_grad=True)
    opt = make([a, b])

    def closure():
        opt.zero_grad()
        loss = loss_of(a, b)
        loss.backward()
        return loss

    for _ in range(n):
        if isinstance(opt, torch.optim.LBFGS):
            opt.step(closure)
        else:
            closure()
            opt.step()
    return a.detach().tolist() + b.detach().reshape(-1).tolist()


def lua(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    return "%.17g" % v if isinstance(v, float) else str(v)


print("-- By tools/golden_optim.py with PyTorch %s, float64: the parameters after so many steps." % torch.__version__)
print("return {")
for name, options, make in CASES:
    print('  { name = "%s", options = { %s },' % (name, ", ".join("%s = %s" % (k, lua(v)) for k, v in options.items())))
    for n in STEPS:
        print("    [%d] = { %s }," % (n, ", ".join("%.17g" % v for v in run(make, n))))
    print("  },")
print("}")
