"""Writes tests/golden/layers.lua: outputs and gradients of the layers, with their parameters, by PyTorch in float64.

Run with any Python that has PyTorch:  python3 tools/golden_layers.py > tests/golden/layers.lua
Parameters have PyTorch's names, which are Neap's, too. Ids in the file count from 1. The gradients belong to the sum of
the outputs times 1, 2, 3 ...
"""
import torch
from torch import nn

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)


def norm(layer):
    """A layer whose scale and shift are not 1 and 0."""
    for p in layer.parameters():
        nn.init.uniform_(p, 0.5, 1.5)
    return layer


X = torch.randn(3, 4)
X3 = torch.randn(2, 3, 4)
IDS = torch.tensor([[0, 4, 2], [2, 2, 1]])

# how Neap makes it, the PyTorch layer, the input
CASES = [
    ("nn.Linear(4, 5)", nn.Linear(4, 5), X),
    ("nn.Linear(4, 5)", nn.Linear(4, 5), X3),
    ("nn.Linear(4, 2, { bias = false })", nn.Linear(4, 2, bias=False), X),
    ("nn.Embedding(5, 3)", nn.Embedding(5, 3), IDS),
    ("nn.Embedding(5, 3, { padding_idx = 3 })", nn.Embedding(5, 3, padding_idx=2), IDS),
    ("nn.LayerNorm(4)", norm(nn.LayerNorm(4)), X3),
    ("nn.LayerNorm(4, { eps = 1e-2, bias = false })", norm(nn.LayerNorm(4, eps=1e-2, bias=False)), X),
    ("nn.LayerNorm(4, { affine = false })", nn.LayerNorm(4, elementwise_affine=False), X),
    ("nn.RMSNorm(4, { eps = 1e-6 })", norm(nn.RMSNorm(4, eps=1e-6)), X3),
    ("nn.RMSNorm(4, { eps = 1e-3, affine = false })", nn.RMSNorm(4, eps=1e-3, elementwise_affine=False), X),
    ("nn.ReLU()", nn.ReLU(), X), ("nn.Tanh()", nn.Tanh(), X), ("nn.Sigmoid()", nn.Sigmoid(), X),
    ("nn.GELU()", nn.GELU(), X), ('nn.GELU({ approximate = "tanh" })', nn.GELU(approximate="tanh"), X),
    ("nn.SiLU()", nn.SiLU(), X), ("nn.LogSigmoid()", nn.LogSigmoid(), X), ("nn.Softplus()", nn.Softplus(), X),
    ("nn.LeakyReLU()", nn.LeakyReLU(), X), ("nn.LeakyReLU(0.3)", nn.LeakyReLU(0.3), X),
    ("nn.ELU()", nn.ELU(), X), ("nn.ELU(1.5)", nn.ELU(1.5), X),
    ("nn.Hardtanh()", nn.Hardtanh(), X), ("nn.Hardtanh(-0.5, 0.75)", nn.Hardtanh(-0.5, 0.75), X),
    ("nn.Softmax()", nn.Softmax(-1), X), ("nn.Softmax(2)", nn.Softmax(1), X3),
    ("nn.LogSoftmax()", nn.LogSoftmax(-1), X), ("nn.LogSoftmax(1)", nn.LogSoftmax(0), X3),
    ("nn.Flatten()", nn.Flatten(), X3), ("nn.Identity()", nn.Identity(), X),
    ("nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)))",
     nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Sequential(norm(nn.LayerNorm(6)), nn.Linear(6, 2))), X),
]


def lua(v):
    whole = not v.is_floating_point()
    data = (v + 1 if whole else v).reshape(-1).tolist()
    return '{ dtype = "%s", shape = { %s }, %s }' % (
        "int64" if whole else "float64", ", ".join(map(str, v.shape)),
        ", ".join(str(x) if whole else "%.17g" % x for x in data))


print("-- By tools/golden_layers.py with PyTorch %s, float64." % torch.__version__)
print("return {")
for text, layer, x in CASES:
    x = x.clone().requires_grad_(x.is_floating_point())
    out = layer(x)
    (out.reshape(-1) * torch.arange(1, out.numel() + 1)).sum().backward()
    print("  { make = [=[%s]=], input = %s," % (text, lua(x.detach())))
    print("    output = %s," % lua(out.detach()))
    if x.grad is not None:
        print("    grad = %s," % lua(x.grad))
    print("    parameters = {")
    for name, p in layer.named_parameters():
        print('      { name = "%s", value = %s, grad = %s },' % (name, lua(p.detach()), lua(p.grad)))
    print("    } },")
print("}")
