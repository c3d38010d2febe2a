"""Writes tests/golden/ops.lua: values and gradients of the common ops, computed by PyTorch in float64.

Run with any Python that has PyTorch:  python3 tools/golden_torch.py > tests/golden/ops.lua
Inputs are multiples of 1/64, so they are the same numbers in float32. Positions in the file (labels, ids:
int64) count from 1, as in Neap; other integers are int32. The gradients belong to sum(output * grad_output).
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


def plain(rows):
    """Integers that are no positions."""
    return torch.tensor(rows, dtype=torch.int32)


a23, b3, b23 = values(2, 3), values(3), values(2, 3)
p23, p3 = positive(2, 3), positive(3)
x234 = values(2, 3, 4)
ties = torch.tensor([[2.0, -1, 2, 0, -1], [0, 0, 2, -1, 5]], dtype=torch.float64)
nans = torch.tensor([1.0, float("nan"), -2, float("inf"), float("nan"), -float("inf"), 0], dtype=torch.float64)
mask = torch.tensor([[True, False, True], [False, True, False]])

unit = values(2, 3, low=-0.95, high=0.95)
above = values(2, 3, low=1.1, high=4.0, away=0)
steep = values(2, 3, low=-6.0, high=6.0)
weight = values(2, 1, low=-0.5, high=1.5)
low3, high23 = values(3, low=-1.5, high=-0.25), values(2, 3, low=0.25, high=1.5)
zeros24 = values(2, 4)
zeros24[0, 1] = zeros24[1, 0] = zeros24[1, 3] = 0
b25 = ties.flip(0).roll(1, 1)
halves = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.0], dtype=torch.float64)
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
    # matrices
    ("mm", [values(3, 4), values(4, 2)], torch.mm),
    ("mv", [values(3, 4), values(4)], torch.mv),
    ("dot", [values(5), values(5)], torch.dot),
    ("bmm", [values(2, 3, 4), values(2, 4, 2)], torch.bmm),
    ("addmm", [values(2), values(3, 4), values(4, 2)], torch.addmm),
    ("addmm_scaled", [values(3, 2), values(3, 4), values(4, 2)],
     lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=-1.5)),
    ("baddbmm", [values(2, 3, 2), values(2, 3, 4), values(2, 4, 2)],
     lambda x, a, b: torch.baddbmm(x, a, b, beta=-0.25, alpha=2)),
    ("outer", [values(3), values(4)], torch.outer),
    ("kron", [values(2, 3), values(3, 2)], torch.kron),
    ("kron_ranks", [values(2), values(2, 2)], torch.kron),
    ("cross", [values(2, 3), values(2, 3)], lambda a, b: torch.linalg.cross(a, b)),
    ("cross_dim", [values(3, 2), values(3, 1)], lambda a, b: torch.linalg.cross(a, b, dim=0)),
    ("tril", [values(2, 3, 4)], torch.tril),
    ("tril_above", [values(3, 4)], lambda x: x.tril(1)),
    ("triu", [values(3, 4)], torch.triu),
    ("triu_below", [values(4, 3)], lambda x: x.triu(-1)),
    ("diagonal", [x234], lambda x: x.diagonal(1, 0, 2)),
    ("diag_vector", [values(3)], lambda x: x.diag(-1)),
    ("diag_matrix", [values(3, 4)], lambda x: x.diag(1)),
    ("trace", [values(3, 4)], torch.trace),
    ("einsum_product", [values(3, 4), values(4, 2)], lambda a, b: torch.einsum("ij,jk->ik", a, b)),
    ("einsum_batch", [values(2, 3, 4), values(2, 5, 4)], lambda a, b: torch.einsum("bij,bkj->bki", a, b)),
    ("einsum_implicit", [values(3, 4), values(4, 2)], lambda a, b: torch.einsum("zj,ja", a, b)),
    ("einsum_diagonal", [values(3, 3)], lambda a: torch.einsum("ii->i", a)),
    ("einsum_trace", [values(3, 3)], lambda a: torch.einsum("ii", a)),
    ("einsum_ellipsis", [values(2, 3, 4), values(5, 4)], lambda a, b: torch.einsum("...i,ji->...j", a, b)),
    ("einsum_ellipsis_broadcast", [values(2, 1, 3), values(4, 3)], lambda a, b: torch.einsum("...i,...i->...", a, b)),
    ("einsum_outer", [values(2), values(3)], lambda a, b: torch.einsum("i,j->ji", a, b)),
    ("einsum_broadcast", [values(3, 1), values(4, 2)], lambda a, b: torch.einsum("ij,jk->ik", a, b)),
    ("einsum_three", [values(2, 2, 3), values(3, 4), values(4)], lambda a, b, c: torch.einsum("iij,jk,k->ik", a, b, c)),
    # arranging
    ("tile", [a23], lambda x: x.tile(2, 1, 2)),
    ("tile_few", [a23], lambda x: x.tile(2)),
    ("roll", [x234], lambda x: x.roll((1, -2), (0, 2))),
    ("roll_row", [a23], lambda x: x.roll(4)),
    ("pad_constant", [a23], lambda x: F.pad(x, (1, 2, 0, 1), value=-1.5)),
    ("pad_cut", [x234], lambda x: F.pad(x, (-1, 2))),
    ("pad_reflect", [x234], lambda x: F.pad(x, (2, 3), mode="reflect")),
    ("pad_reflect_two", [values(1, 3, 4)], lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect")),
    ("pad_replicate", [values(1, 3, 4)], lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate")),
    ("pad_circular", [values(1, 1, 3, 4)], lambda x: F.pad(x, (2, 1, 0, 3), mode="circular")),
    ("movedim", [x234], lambda x: x.movedim((0, 2), (-1, 0))),
    ("unflatten", [values(2, 6)], lambda x: x.unflatten(1, (3, -1))),
    ("repeat_interleave", [a23], lambda x: x.repeat_interleave(2)),
    ("repeat_interleave_dim", [x234], lambda x: x.repeat_interleave(3, 1)),
    ("repeat_interleave_each", [a23, plain([0, 3, 1])], lambda x, n: x.repeat_interleave(n, 1)),
    ("broadcast_to", [values(3, 1)], lambda x: x.broadcast_to(2, 3, 4)),
    ("expand_as", [values(3, 1), values(2, 3, 4)], lambda x, y: x.expand_as(y)),
    ("unfold", [values(3, 7)], lambda x: x.unfold(1, 3, 2)),
    ("unfold_first", [values(4, 2)], lambda x: x.unfold(0, 3, 1)),
    ("meshgrid", [values(2), values(3)], lambda a, b: torch.meshgrid(a, b, indexing="ij")[1] * a.unsqueeze(1)),
    # positions
    ("scatter", [a23, ids([0, 2], [1, 0]), values(2, 2)], lambda x, i, v: x.scatter(1, i, v)),
    ("scatter_value", [a23, ids([0, 2], [1, 0])], lambda x, i: x.scatter(1, i, 0.5)),
    ("scatter_first", [values(4, 3), ids([3, 0, 2]), values(1, 3)], lambda x, i, v: x.scatter(0, i.reshape(1, 3), v)),
    ("take", [x234, ids([0, 23], [5, 5])], torch.take),
    ("take_along_dim", [x234, ids([2, 0])], lambda x, i: x.take_along_dim(i.reshape(1, 2, 1), 1)),
    ("index_two", [x234, ids([0, 1, 1]), ids([2, 0, 0])], lambda x, i, j: x[i, j]),
    ("index_apart", [x234, ids([0, 1, 1]), ids([3, 0, 0])], lambda x, i, j: x[i, :, j]),
    ("index_broadcast", [x234, ids([0, 2]), ids([3, 0, 1])], lambda x, i, j: x[:, i.unsqueeze(1), j]),
    ("index_range", [x234, ids([0, 2]), ids([1, 0])], lambda x, i, j: x[:, i, 1:3][:, :, j]),
    ("index_mask_middle", [x234, torch.tensor([True, False, True])], lambda x, m: x[:, m]),
    ("index_mask_and_ids", [x234, torch.tensor([True, False, True]), ids([3, 1])], lambda x, m, j: x[1, m, j]),
    ("index_put", [x234, ids([0, 1]), ids([2, 0]), values(2, 4)],
     lambda x, i, j, v: x.index_put((i, j), v)),
    ("index_put_apart", [x234, ids([0, 1]), ids([2, 0]), values(2, 1)],
     lambda x, i, j, v: x.clone().transpose(1, 2).index_put((i, j), v).transpose(1, 2)),
    ("index_put_accumulate", [x234, ids([0, 1, 0]), ids([2, 0, 2]), values(3, 4)],
     lambda x, i, j, v: x.index_put((i, j), v, accumulate=True)),
    ("nonzero", [torch.tensor([[True, False, True], [False, True, False]])], torch.nonzero),
    ("one_hot", [ids([2, 0, 1])], lambda i: F.one_hot(i, 4).int()),
    # order
    ("sort", [values(3, 5)], torch.sort),
    ("sort_first_descending", [values(4, 3)], lambda x: x.sort(0, descending=True)),
    ("sort_ties", [ties], lambda x: x.sort(stable=True)),
    ("sort_ties_descending", [ties], lambda x: x.sort(stable=True, descending=True)),
    ("sort_nan", [nans], lambda x: x.sort(stable=True)),
    ("sort_nan_descending", [nans], lambda x: x.sort(stable=True, descending=True)),
    ("argsort", [values(3, 5)], lambda x: x.argsort(1)),
    ("topk", [values(3, 5)], lambda x: x.topk(2)),
    ("topk_smallest_first", [values(4, 3)], lambda x: x.topk(3, 0, largest=False)),
    ("topk_nan", [nans], lambda x: x.topk(3).values),
    ("unique", [ties], lambda x: (lambda v, i, n: (v.detach(), i, n.int()))(
        *torch.unique(x.detach(), return_inverse=True, return_counts=True))),
    ("unique_nan", [nans], lambda x: (lambda v, n: (v, n.int()))(*torch.unique(x.detach(), return_counts=True))),
    ("bincount", [ids([0, 3, 3, 1])], lambda i: i.bincount(minlength=6).int()),
    ("searchsorted", [values(6).sort().values, values(2, 3)], lambda s, v: torch.searchsorted(s.detach(), v.detach())),
    ("searchsorted_right", [torch.tensor([1.0, 2.0, 2.0, 3.0], dtype=torch.float64),
                            torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)],
     lambda s, v: torch.searchsorted(s.detach(), v.detach(), right=True)),
    # extremes
    ("min", [x234], torch.min),
    ("min_dim", [x234], lambda x: x.min(1).values),
    ("argmax", [x234], lambda x: x.argmax(1)),
    ("argmin", [x234], lambda x: x.argmin(-1, keepdim=True)),
    ("argmax_ties", [nans[2:4]], lambda x: x.argmax(0)),
    # comparisons and tests of elements: each pair of (less, equal, more) occurs
    *[(name, [ties, ties.flip(1)], getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")],
    ("eq_nan", [nans, nans], torch.eq),
    ("isclose", [ties, ties.flip(1) * (1 + 2.0 ** -20)], torch.isclose),
    ("isclose_wide", [a23, a23 + 0.25], lambda a, b: torch.isclose(a, b, rtol=0.25, atol=0.125)),
    ("isclose_nan", [nans, nans], lambda a, b: torch.isclose(a, b, equal_nan=True)),
    ("isnan", [nans], torch.isnan),
    ("isinf", [nans], torch.isinf),
    ("isfinite", [nans], torch.isfinite),
    *[(name, [ties, b25], getattr(torch, name)) for name in ("logical_and", "logical_or", "logical_xor")],
    ("logical_not", [ties], torch.logical_not),
    ("any", [ties > 0], lambda x: x.any(0)),
    ("all", [ties >= 0], lambda x: x.all(0, keepdim=True)),
    ("count_nonzero", [ties], lambda x: x.count_nonzero(1).int()),
    # steps; PyTorch's gradient is 0, Neap's results take none
    *[(name, [torch.cat([a23.reshape(-1), halves])], lambda x, f=getattr(torch, name): f(x.detach()))
      for name in ("sign", "floor", "ceil", "round", "trunc")],
    ("floor_divide", [a23, b3], lambda a, b: torch.floor_divide(a.detach(), b.detach())),
    ("floor_divide_int", [plain([[7, -7, 8], [-8, 0, 5]]), plain([2, 3, -3])], torch.floor_divide),
    # bits
    *[("bitwise_" + name, [plain([[12, -7, 255], [0, -1, 1 << 20]]), plain([10, 3, -256])],
       getattr(torch, "bitwise_" + name)) for name in ("and", "or", "xor")],
    ("bitwise_and_bool", [mask, mask.flip(0)], torch.bitwise_and),
    ("bitwise_not", [plain([0, -1, 77, 1 << 30])], torch.bitwise_not),
    ("bitwise_left_shift", [plain([[1, -3, 77], [5, 0, -1]]), plain([3, 1, 20])], torch.bitwise_left_shift),
    ("bitwise_right_shift", [plain([[9, -3, 1 << 20], [-64, 0, -1]]), plain([3, 1, 20])], torch.bitwise_right_shift),
    # copies and fills
    ("clone", [x234], torch.clone),
    ("contiguous", [x234], lambda x: x.transpose(0, 2).contiguous()),
    ("to", [x234], lambda x: x.detach().to(torch.int32)),
    ("zeros_like", [a23], lambda x: torch.zeros_like(x)),
    ("ones_like", [a23], lambda x: torch.ones_like(x)),
    ("full_like", [a23], lambda x: torch.full_like(x, -1.75)),
    ("fill_", [a23], lambda x: (x * 2).fill_(0.625) * x),
    ("zero_", [a23], lambda x: (x * 2).zero_() + x),
    ("copy_", [a23, b3], lambda x, src: (x * 2).copy_(src)),
    ("stack", [a23, b23], lambda a, b: torch.stack([a, b], 1)),
    # views and shapes
    ("flip", [x234], lambda x: x.flip(0, 2)),
    ("select", [x234], lambda x: x.select(1, 2)),
    ("narrow", [x234], lambda x: x.narrow(2, 1, 2)),
    ("expand", [values(3, 1)], lambda x: x.expand(2, 3, 4)),
    ("permute", [x234], lambda x: x.permute(2, 0, 1)),
    ("transpose", [x234], lambda x: x.transpose(0, 2)),
    ("t", [a23], torch.t),
    ("view", [x234], lambda x: x.view(4, -1)),
    ("reshape", [x234], lambda x: x.transpose(0, 1).reshape(3, 8)),
    ("flatten", [x234], torch.flatten),
    ("flatten_last", [x234], lambda x: x.flatten(1, 2)),
    ("squeeze", [values(2, 1, 3, 1)], torch.squeeze),
    ("squeeze_dim", [values(2, 1, 3, 1)], lambda x: x.squeeze(1)),
    ("unsqueeze", [a23], lambda x: x.unsqueeze(1)),
    # writing at positions and where a mask is true
    ("index_add", [x234, ids([2, 0, 2]), values(2, 3, 4)], lambda x, i, v: x.index_add(1, i, v)),
    ("index_copy", [x234, ids([2, 0]), values(2, 2, 4)], lambda x, i, v: x.index_copy(1, i, v)),
    ("scatter_add", [a23, ids([0, 2], [1, 1]), values(2, 2)], lambda x, i, v: x.scatter_add(1, i, v)),
    ("masked_fill", [x234, mask.T[:, :1]], lambda x, m: x.masked_fill(m, -0.75)),
    ("masked_select", [a23, mask], torch.masked_select),
    ("masked_assign", [a23, mask, values(3)], lambda x, m, v: x.masked_scatter(m, v)),
    ("masked_assign_number", [a23, mask], lambda x, m: x.masked_fill(m, 0.5)),
    # normalising
    ("rms_norm", [values(3, 6), positive(6)], lambda x, w: F.rms_norm(x, (6,), w, 1e-6)),
    ("rms_norm_two", [x234], lambda x: F.rms_norm(x, (3, 4), eps=0.125)),
]


def lua_number(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if v != v or v in (float("inf"), -float("inf")):
        return "0 / 0" if v != v else "1 / 0" if v > 0 else "-1 / 0"
    return str(v) if isinstance(v, int) else "%.17g" % v


def lua_tensor(t, shift=0):
    """A flat list with the shape; integers are positions, shifted to count from 1."""
    dtype = str(t.dtype).replace("torch.", "")
    flat = ", ".join(lua_number(v + shift if shift else v) for v in t.detach().reshape(-1).tolist())
    return '{dtype = "%s", shape = {%s}, %s}' % (dtype, ", ".join(map(str, t.shape)), flat)


def lua_result(t):
    return lua_tensor(t, 1 if t.dtype == torch.int64 else 0)


def write(name, inputs, fn):
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    out = fn(*leaves)
    more = list(out[1:]) if isinstance(out, tuple) else []
    out = out[0] if isinstance(out, tuple) else out
    seed = None
    if out.requires_grad:
        seed = values(*out.shape) if out.dim() else torch.tensor(1.5, dtype=torch.float64)
        (out * seed).sum().backward()
    print('  {name = "%s",' % name)
    print("    inputs = {")
    for t in inputs:
        print("      %s," % lua_result(t))
    print("    },")
    print("    output = %s," % lua_result(out))
    if more:
        print("    more = {")
        for t in more:
            print("      %s," % lua_result(t))
        print("    },")
    if seed is not None:
        print("    grad_output = %s," % lua_tensor(seed))
    print("    grads = {")
    for t in leaves:
        print("      %s," % (lua_tensor(t.grad) if t.is_floating_point() and t.grad is not None else "false"))
    print("    }},")


print("-- Written by tools/golden_torch.py with PyTorch %s (float64). Do not edit." % torch.__version__.split("+")[0])
print("return {")
for case in CASES:
    write(*case)
print("}")
