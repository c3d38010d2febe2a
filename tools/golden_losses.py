"""Writes tests/golden/losses.lua: values and gradients of the losses with every option, by PyTorch in float64.

Run with any Python that has PyTorch:  python3 tools/golden_losses.py > tests/golden/losses.lua
Classes in the file count from 1, as in Neap. The gradients belong to the sum of the outputs times 1, 2, 3 ...
"""
import torch
import torch.nn.functional as F

torch.manual_seed(3)


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def prob(*shape):
    return torch.rand(*shape, dtype=torch.float64) * 0.9 + 0.05


def log_prob(*shape):
    return real(*shape).log_softmax(1).detach()


W = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5], dtype=torch.float64)
Y = torch.tensor([0, 4, 2, 2])
Y2 = torch.tensor([[0, 4, 2], [1, 1, 3]])
DIST = real(4, 5).softmax(1).detach()
X, X2 = real(4, 5), real(2, 5, 3)
V = prob(4, 5)

# name, inputs, options as Neap spells them, options of PyTorch (None: the same)
CASES = []


def case(name, inputs, options=None, theirs=None):
    for how in ("mean", "sum", "none"):
        mine = dict(options or {}, reduction=how)
        CASES.append((name, inputs, mine, dict((options or {}) if theirs is None else theirs, reduction=how)))


case("cross_entropy", [X, Y])
case("cross_entropy", [X2, Y2])
case("cross_entropy", [X, Y], dict(weight=W))
case("cross_entropy", [X2, Y2], dict(weight=W, label_smoothing=0.2))
case("cross_entropy", [X, Y], dict(ignore_index=3, label_smoothing=0.1), dict(ignore_index=2, label_smoothing=0.1))
case("cross_entropy", [X, Y], dict(ignore_index=3, weight=W), dict(ignore_index=2, weight=W))
case("cross_entropy", [X[0], torch.tensor(2)], dict(label_smoothing=0.3))
case("cross_entropy", [X, DIST])
case("cross_entropy", [X, DIST], dict(weight=W, label_smoothing=0.25))
case("nll_loss", [log_prob(4, 5), Y])
case("nll_loss", [log_prob(2, 5, 3), Y2], dict(weight=W))
case("nll_loss", [log_prob(4, 5), Y], dict(weight=W, ignore_index=5), dict(weight=W, ignore_index=4))
case("mse_loss", [X, real(4, 5)])
case("l1_loss", [X, real(4, 5)])
case("smooth_l1_loss", [X, real(4, 5)])
case("smooth_l1_loss", [X, real(4, 5)], dict(beta=0.3))
case("huber_loss", [X, real(4, 5)])
case("huber_loss", [X, real(4, 5)], dict(delta=2.0))
case("binary_cross_entropy", [prob(4, 5), prob(4, 5)])
case("binary_cross_entropy", [prob(4, 5), (real(4, 5) > 0).double()], dict(weight=W))
case("binary_cross_entropy_with_logits", [X, prob(4, 5)])
case("binary_cross_entropy_with_logits", [X, prob(4, 5)], dict(weight=V, pos_weight=W))
case("kl_div", [log_prob(4, 5), DIST])
case("kl_div", [log_prob(4, 5), DIST.log()], dict(log_target=True))
CASES.append(("kl_div", [log_prob(4, 5), DIST], dict(reduction="batchmean"), dict(reduction="batchmean")))
case("gaussian_nll_loss", [X, real(4, 5), prob(4, 5) + 0.5])
case("gaussian_nll_loss", [X, real(4, 5), prob(4, 1) + 0.5], dict(full=True, eps=1e-2))


def lua(v):
    if isinstance(v, torch.Tensor):
        whole = not v.is_floating_point()
        data = (v + 1 if whole else v).reshape(-1).tolist()
        return '{ dtype = "%s", shape = { %s }, %s }' % (
            "int64" if whole else "float64", ", ".join(map(str, v.shape)),
            ", ".join(str(x) if whole else "%.17g" % x for x in data))
    return '"%s"' % v if isinstance(v, str) else "true" if v is True else "%.17g" % v if isinstance(v, float) else str(v)


print("-- By tools/golden_losses.py with PyTorch %s, float64." % torch.__version__)
print("return {")
for name, inputs, mine, theirs in CASES:
    args = [x.clone().requires_grad_(x.is_floating_point() and i != 1) for i, x in enumerate(inputs)]
    out = getattr(F, name)(*args, **theirs)
    (out.reshape(-1) * torch.arange(1, out.numel() + 1)).sum().backward()
    print('  { name = "%s", inputs = { %s },' % (name, ", ".join(map(lua, inputs))))
    print("    options = { %s }," % ", ".join("%s = %s" % (k, lua(v)) for k, v in mine.items()))
    print("    output = %s," % lua(out.detach()))
    print("    grads = { %s } }," % ", ".join("false" if x.grad is None else lua(x.grad) for x in args))
print("}")
