"""PyTorch's side of bench/compare.lua: the same names and the same work as bench/work.lua.

    python3 bench/work.py [cuda]

Reads lines `threads N`, `make NAME ARGUMENTS`, `run N`, `bytes NAME ARGUMENTS`; answers each with one line:
`ok`, the seconds of one repetition, the bytes, or `no` and the reason.
"""
import sys
import time

import torch
import torch.nn.functional as F

WORK = {}


def work(make):
    WORK[make.__name__] = make
    return make


def steps(step):
    def run(n):
        for _ in range(n):
            step()
    return run


def uniform(low, high, *shape, grad=False):
    return (torch.rand(*shape) * (high - low) + low).requires_grad_(bool(grad))


def function(op):
    return getattr(torch, op, None) or getattr(F, op)


# ---- overhead

@work
def add():
    a, b = torch.ones(4), torch.ones(4)

    def run(n):
        for _ in range(n):
            a + b
    return run


@work
def add_recorded():
    a, w = torch.ones(4), torch.ones(4, requires_grad=True)

    def run(n):
        for _ in range(n):
            a + w
    return run


@work
def chain():
    b, w = torch.ones(4), torch.ones(4, requires_grad=True)

    def run(n):
        for _ in range(n):
            y = w
            for _ in range(5):
                y = (y * b).tanh()
            torch.autograd.grad(y.sum(), w)
    return run


@work
def checkpoint():
    from torch.utils.checkpoint import checkpoint as region
    w = torch.ones(4, requires_grad=True)

    def nothing(x):
        return x

    def run(n):
        for _ in range(n):
            region(nothing, w, use_reentrant=False)
    return run


@work
def small(op):
    a, b = uniform(0.1, 0.9, 8, 8), uniform(0.1, 0.9, 8, 8)
    f = function(op)
    arguments = {"sum": (a,), "relu": (a,), "softmax": (a, -1)}.get(op, (a, b))

    def run(n):
        for _ in range(n):
            f(*arguments)
    return run


# ---- ops

def elementwise(operands, op, low, high, n, back):
    f, g = function(op), uniform(0, 1, n)
    x = [uniform(low, high, n, grad=back) for _ in range(operands)]
    if not back:
        return steps(lambda: f(*x))
    return steps(lambda: torch.autograd.grad(f(*x), x, g))


@work
def unary(*arguments):
    return elementwise(1, *arguments)


@work
def binary(*arguments):
    return elementwise(2, *arguments)


@work
def rows(op, n, m, back):
    f, x = function(op), uniform(-1, 1, n, m, grad=back)
    if not back:
        return steps(lambda: f(x, -1))
    g = uniform(0, 1, *f(x, -1).shape)
    return steps(lambda: torch.autograd.grad(f(x, -1), x, g))


@work
def sum(n, m, dim):
    x = uniform(-1, 1, n, m)
    return steps(lambda: x.sum(dim - 1))


@work
def copy(n):
    x, y = uniform(-1, 1, n), uniform(-1, 1, n)
    return steps(lambda: y.copy_(x))


@work
def matmul(m, k, n, dtype="float32"):
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    dtype = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b = uniform(-1, 1, m, k).to(dtype), uniform(-1, 1, k, n).to(dtype)
    return steps(lambda: a @ b)


@work
def mv(n):
    a, v = uniform(-1, 1, n, n), uniform(-1, 1, n)
    return steps(lambda: a @ v)


@work
def transpose(n):
    x = uniform(-1, 1, n, n)
    return steps(lambda: x.t().contiguous())


@work
def layer_norm(n, m, back):
    x, w, b = uniform(-1, 1, n, m, grad=back), torch.ones(m), torch.zeros(m)
    if not back:
        return steps(lambda: F.layer_norm(x, (m,), w, b))
    g = uniform(0, 1, n, m)
    every = (x, w.requires_grad_(), b.requires_grad_())
    return steps(lambda: torch.autograd.grad(F.layer_norm(x, (m,), w, b), every, g))


@work
def rms_norm(n, m, back):
    x, w = uniform(-1, 1, n, m, grad=back), torch.ones(m)
    if not back:
        return steps(lambda: F.rms_norm(x, (m,), w, 1e-6))
    g = uniform(0, 1, n, m)
    every = (x, w.requires_grad_())
    return steps(lambda: torch.autograd.grad(F.rms_norm(x, (m,), w, 1e-6), every, g))


@work
def dropout(n):
    x = uniform(-1, 1, n)
    return steps(lambda: F.dropout(x, 0.5))


@work
def cross_entropy(n, classes):
    x, y = uniform(-1, 1, n, classes, grad=True), torch.randint(0, classes, (n,))
    return steps(lambda: torch.autograd.grad(F.cross_entropy(x, y), x))


@work
def embedding(n, m, ids):
    w, i = uniform(-1, 1, n, m, grad=True), torch.randint(0, n, (ids,))
    g = uniform(-1, 1, ids, m)
    return steps(lambda: torch.autograd.grad(F.embedding(i, w), w, g))


@work
def adamw(tensors, n):
    params = [uniform(-1, 1, n, grad=True) for _ in range(tensors)]
    for p in params:
        p.grad = uniform(-1, 1, n)
    return steps(torch.optim.AdamW(params, lr=1e-3).step)


# ---- training

def perceptron(sizes, batch):
    layers = []
    for i in range(len(sizes) - 1):
        if i:
            layers.append(torch.nn.ReLU())
        layers.append(torch.nn.Linear(sizes[i], sizes[i + 1]))
    net = torch.nn.Sequential(*layers)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x, y = torch.rand(batch, sizes[0]), torch.randint(0, sizes[-1], (batch,))

    def step():
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()

    return step


@work
def train_mlp(batch, *sizes):
    return steps(perceptron(sizes, batch))


def peak(batch, *sizes):
    """The highest sum of the CPU allocator's bytes, by the profiler, over the making of a network and a few steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as p:
        step = perceptron(sizes, batch)
        for _ in range(4):
            step()
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        most = max(most, now)
    return most


def regions(way, layers, width, batch):
    """Forward and backward of a deep network, with a way of checkpointing around each fourth of its layers."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    parts = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(layers)]
    quarters = [torch.nn.Sequential(*parts[i::4]) for i in range(4)]
    x = uniform(-1, 1, batch, width, grad=True)

    def products():
        return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    through = {
        "plain": lambda f, h: f(h),
        "reentrant": lambda f, h: checkpoint(f, h, use_reentrant=True),
        "non-reentrant": lambda f, h: checkpoint(f, h, use_reentrant=False),
        "selective": lambda f, h: checkpoint(f, h, use_reentrant=False, context_fn=products),
        "save_on_cpu": lambda f, h: f(h),
    }[way]

    def forward():
        h = x
        for f in quarters:
            h = through(f, h)
        return h.square().mean()

    def step():
        for p in quarters:
            p.zero_grad()
        x.grad = None
        if way == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = forward()
        else:
            loss = forward()
        loss.backward()

    return step


@work
def checkpointed(*arguments):
    return steps(regions(*arguments))


def peak_checkpointed(*arguments):
    """Bytes that a step adds at its height to what the network and its gradients take."""
    step = regions(*arguments)
    step()
    if DEVICE != "cuda":
        raise ValueError("known on a GPU alone")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before


# ---- the pipe

def value(text):
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def answer(order, *arguments):
    global run
    if order == "threads":
        torch.set_num_threads(arguments[0])
    elif order == "make":
        run = WORK[arguments[0]](*arguments[1:])
        run(2)
    elif order == "run":
        clock = time.process_time if torch.get_num_threads() == 1 and DEVICE == "cpu" else time.perf_counter
        wait()
        start = clock()
        run(arguments[0])
        wait()
        return "%.9g" % ((clock() - start) / arguments[0])
    elif order == "bytes":
        return {"peak": peak, "peak_checkpointed": peak_checkpointed}[arguments[0]](*arguments[1:])
    return "ok"


DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
torch.zeros(1, device=DEVICE)  # ends here where there is no such device
torch.set_default_device(DEVICE)
run = None
print(torch.__version__, flush=True)
for line in sys.stdin:
    try:
        print(answer(*map(value, line.split())), flush=True)
    except Exception as e:  # an op that this PyTorch does not have is a row without a ratio
        print("no", str(e).split("\n")[0], flush=True)
