"""Writes tests/golden/ops.lua: values and gradients of the common ops, computed by PyTorch in float64.

Run with any Python that has PyTorch:  python3 tools/golden_torch.py > tests/golden/ops.lua
Inputs are multiples of 1/64, so they are the same numbers in float32. Positions in the file (labels, ids) count
from 1, as in Neap. The gradients belong to sum(output * grad_output).
"""
import torch
import torch.nn.functional as F

torch.manual_seed(20240501)


def values(*shape, low=-2.0, high=2.0, away=0.05):
    """Uniform multiples of 1/64, all different in size and not within `away` of 0."""
    n = 1
    for s in shape:
        n *= s
    grid = torch.arange(int(low * 64), int(high * 64) + 1, dtype=torch.float64) / 64
    grid = grid[grid.abs() > away]
    return grid[torch.randperm(len(grid))[:n]].reshape(shape)


def positive(*shape):
    return values(*shape, low=0.25, high=3.0)


def ids(*rows):
    return torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.int64)


a23, b3, b23 = values(2, 3), values(3), values(2, 3)
p23, p3 = positive(2, 3), positive(3)
x234 = values(2, 3, 4)
mask = torch.tensor([[True, False, True], [False, True, False]])

unit = values(2, 3, low=-0.95, high=0.95)
above = values(2, 3, low=1.1, high=4.0, away=0)
steep = values(2, 3, low=-6.0, high=6.0)
weight = values(2, 1, low=-0.5, high=1.5)
low3, high23 = values(3, low=-1.5, high=-0.25), values(2, 3, low=0.25, high=1.5)
zeros24 = values(2, 4)
zeros24[0, 1] = zeros24[1, 0] = zeros24[1, 3] = 0
sizes = {"all": {}, "first": {"dim": 0}, "two_kept": {"dim": (0, 2), "keepdim": True}}

# name, inputs, function of the inputs
CASES = [
    ("add", [a23, b3], lambda a, b: a + b),
    ("sub", [a23, b3], lambda a, b: a - b),
    ("mul", [a23, b3], lambda a, b: a * b),
    ("div", [a23, p3], lambda a, b: a / b),
    ("exp", [a23], torch.exp),
    ("log", [p23], torch.log),
    ("sqrt", [p23], torch.sqrt),
    ("tanh", [a23], torch.tanh),
    ("sigmoid", [a23], torch.sigmoid),
    ("relu", [a23], torch.relu),
    ("gelu", [a23], F.gelu),
    ("sin", [a23], torch.sin),
    ("cos", [a23], torch.cos),
    ("square", [a23], torch.square),
    ("sum", [x234], torch.sum),
    ("sum_dim", [x234], lambda x: x.sum(1)),
    ("sum_dims_keepdim", [x234], lambda x: x.sum((0, 2), keepdim=True)),
    ("mean", [x234], torch.mean),
    ("mean_dim", [x234], lambda x: x.mean(-1)),
    ("max", [x234], torch.max),
    ("max_dim", [x234], lambda x: x.max(1).values),
    ("softmax", [a23], lambda x: x.softmax(-1)),
    ("softmax_first", [x234], lambda x: x.softmax(0)),
    ("log_softmax", [a23], lambda x: x.log_softmax(-1)),
    ("cross_entropy", [values(4, 5), ids([0, 4, 2, 2])], F.cross_entropy),
    ("layer_norm", [values(3, 6), positive(6), values(6)], lambda x, w, b: F.layer_norm(x, (6,), w, b, 1e-5)),
    ("matmul", [values(3, 4), values(4, 2)], torch.matmul),
    ("matmul_batched", [values(2, 3, 4), values(4, 5)], torch.matmul),
    ("matmul_vector", [values(3, 4), values(4)], torch.matmul),
    ("linear", [values(3, 4), values(2, 4), values(2)], F.linear),
    ("gather", [a23, ids([0, 0, 2], [1, 0, 1])], lambda x, i: x.gather(1, i)),
    ("index_select", [x234, ids([2, 0, 2])], lambda x, i: x.index_select(1, i)),
    ("embedding", [values(5, 3), ids([4, 0], [0, 1])], lambda w, i: F.embedding(i, w)),
    ("where", [mask, a23, b23], torch.where),
    ("clamp", [a23], lambda x: x.clamp(-0.75, 0.8125)),
    ("cat", [values(2, 3), values(2, 2)], lambda a, b: torch.cat([a, b], 1)),
    ("neg", [a23], torch.neg),
    ("abs", [a23], torch.abs),
    ("frac", [a23], torch.frac),
    ("nan_to_num", [a23], torch.nan_to_num),
    ("expm1", [a23], torch.expm1),
    ("exp2", [a23], torch.exp2),
    ("log1p", [p23], torch.log1p),
    ("log2", [p23], torch.log2),
    ("log10", [p23], torch.log10),
    ("rsqrt", [p23], torch.rsqrt),
    ("reciprocal", [p23], torch.reciprocal),
    ("tan", [unit], torch.tan),
    ("asin", [unit], torch.asin),
    ("acos", [unit], torch.acos),
    ("atan", [a23], torch.atan),
    ("sinh", [a23], torch.sinh),
    ("cosh", [a23], torch.cosh),
    ("asinh", [a23], torch.asinh),
    ("acosh", [above], torch.acosh),
    ("atanh", [unit], torch.atanh),
    ("erf", [a23], torch.erf),
    ("silu", [steep], F.silu),
    ("logsigmoid", [steep], F.logsigmoid),
    ("leaky_relu", [a23], F.leaky_relu),
    ("leaky_relu_slope", [a23], lambda x: F.leaky_relu(x, 0.25)),
    ("elu", [steep], F.elu),
    ("elu_alpha", [steep], lambda x: F.elu(x, 1.5)),
    ("hardtanh", [steep], F.hardtanh),
    ("hardtanh_six", [steep], lambda x: F.hardtanh(x, 0, 4)),
    ("gelu_tanh", [steep], lambda x: F.gelu(x, approximate="tanh")),
    ("softplus", [steep], F.softplus),
    ("atan2", [a23, b3], torch.atan2),
    ("fmod", [a23, p3], torch.fmod),
    ("remainder", [a23, p3], torch.remainder),
    ("hypot", [a23, b3], torch.hypot),
    ("copysign", [a23, b3], torch.copysign),
    ("logaddexp", [steep, b3], torch.logaddexp),
    ("xlogy", [a23, p3], torch.xlogy),
    ("maximum", [a23, b3], torch.maximum),
    ("minimum", [a23, b3], torch.minimum),
    ("pow", [p23, b3], torch.pow),
    ("pow_number", [p23], lambda x: x ** 1.7),
    ("number_pow", [a23], lambda x: 1.7 ** x),
    ("lerp", [a23, b3, weight], torch.lerp),
    ("lerp_number", [a23, b3], lambda a, b: torch.lerp(a, b, 0.75)),
    ("addcmul", [a23, b3, b23], lambda x, a, b: torch.addcmul(x, a, b, value=0.75)),
    ("addcdiv", [a23, b3, p23], lambda x, a, b: torch.addcdiv(x, a, b, value=0.75)),
    ("clamp_tensors", [steep, low3, high23], torch.clamp),
    ("clamp_min", [steep, low3], lambda x, low: torch.clamp(x, min=low)),
    ("clamp_max", [steep, low3], lambda x, high: torch.clamp(x, max=high)),
    ("prod", [x234], torch.prod),
    ("prod_zeros", [zeros24], lambda x: x.prod(1)),
    ("cumsum", [x234], lambda x: x.cumsum(1)),
    ("cumprod", [x234], lambda x: x.cumprod(-1)),
    ("cumprod_zeros", [zeros24], lambda x: x.cumprod(1)),
    ("logsumexp", [x234], lambda x: x.logsumexp((0, 2))),
    ("median", [x234], torch.median),
    ("median_dim", [x234], lambda x: x.median(2).values),
    ("var_mean_both", [x234], lambda x: torch.stack(torch.var_mean(x, 1))),
    *[("amax_" + k, [x234], lambda x, o=o: x.amax(**o)) for k, o in sizes.items()],
    *[("amin_" + k, [x234], lambda x, o=o: x.amin(**o)) for k, o in sizes.items()],
    *[("var_" + k, [x234], lambda x, o=o: x.var(**o)) for k, o in sizes.items()],
    *[("std_" + k, [x234], lambda x, o=o: x.std(**o)) for k, o in sizes.items()],
    ("var_correction", [x234], lambda x: x.var(1, correction=0)),
    ("std_correction", [x234], lambda x: x.std(1, correction=2)),
    *[("norm_%s_%s" % (p, k), [x234], lambda x, o=o, p=p: torch.linalg.vector_norm(x, float(p), **o))
      for p in ("1", "2", "3", "0.5", "-1", "inf", "-inf") for k, o in sizes.items()],
]


def lua_number(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    return str(v) if isinstance(v, int) else "%.17g" % v


def lua_tensor(t, shift=0):
    """A flat list with the shape; integers are positions, shifted to count from 1."""
    dtype = str(t.dtype).replace("torch.", "")
    flat = ", ".join(lua_number(v + shift if shift else v) for v in t.detach().reshape(-1).tolist())
    return '{dtype = "%s", shape = {%s}, %s}' % (dtype, ", ".join(map(str, t.shape)), flat)


def write(name, inputs, fn):
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    out = fn(*leaves)
    seed = values(*out.shape) if out.dim() else torch.tensor(1.5, dtype=torch.float64)
    (out * seed).sum().backward()
    print('  {name = "%s",' % name)
    print("    inputs = {")
    for t in inputs:
        print("      %s," % lua_tensor(t, 1 if t.dtype == torch.int64 else 0))
    print("    },")
    print("    output = %s," % lua_tensor(out))
    print("    grad_output = %s," % lua_tensor(seed))
    print("    grads = {")
    for t in leaves:
        print("      %s," % (lua_tensor(t.grad) if t.is_floating_point() else "false"))
    print("    }},")


print("-- Written by tools/golden_torch.py with PyTorch %s (float64). Do not edit." % torch.__version__.split("+")[0])
print("return {")
for case in CASES:
    write(*case)
print("}")
