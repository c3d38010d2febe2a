--- Help for the public names whose text stands nowhere else: functions and fields that the C bindings make, and the
-- few Lua ones that are made in a loop. Ops are described by their entries, Lua functions by their doc comments;
-- tools/docs.lua puts all three together, the prompt's ?name reads them in the same order.
--
-- Rows: name, signature, text, example. In names and signatures x is a tensor, Kind:name a method, Kind.name a
-- field. In signatures [brackets] may be left out, {a = 1} is the option table with its defaults, -> are results.
local help = { entries = {}, order = {} }

local function section(name, rows)
  for _, row in ipairs(rows) do
    local entry = { name = row[1], section = name, signature = row[2], text = row[3], example = row[4] }
    assert(not help.entries[entry.name], entry.name)
    help.entries[entry.name] = entry
    help.order[#help.order + 1] = entry
  end
end

-- ---- tensors ------------------------------------------------------------------------------------------------

section("tensors", {
  { "neap.tensor", "neap.tensor(values[, {dtype =, device =, requires_grad = false}]) -> tensor",
    "A tensor from a number, a boolean or nested lists. All integers make int64, any float the default float dtype "
    .. "(float32), booleans bool. Options stand in a table of their own.",
    [[neap.tensor({{1, 2}, {3, 4}}, {dtype = "float32", requires_grad = true})]] },
  { "neap.zeros", "neap.zeros(shape[, {dtype = \"float32\", device =, requires_grad = false}]) -> tensor",
    "Zeros. A shape is numbers, one list, or another tensor's shape.",
    [[neap.zeros(2, 3)
neap.zeros({2, 3}, {dtype = "int64"})]] },
  { "neap.ones", "neap.ones(shape[, {dtype = \"float32\", device =, requires_grad = false}]) -> tensor", "Ones.",
    [[neap.ones{2, 3}]] },
  { "neap.empty", "neap.empty(shape[, {dtype = \"float32\", device =, requires_grad = false}]) -> tensor",
    "A tensor whose elements are not set: write to all of them before reading.", [[neap.empty(3):fill_(7)]] },
  { "neap.full", "neap.full(shape, value[, {dtype =, device =, requires_grad = false}]) -> tensor",
    "The same value everywhere; the dtype follows the value.", [[neap.full({2, 3}, 7.0)]] },
  { "neap.arange", "neap.arange(first, last[, step][, {dtype =, device =, requires_grad = false}]) -> tensor",
    "first, first + step ... up to and including last, as in a for loop. Both ends are needed: arange(10) is refused.",
    [[neap.arange(1, 10)
neap.arange(0, 1, 0.25)]] },
  { "neap.linspace", "neap.linspace(first, last, n[, {dtype =, device =, requires_grad = false}]) -> tensor",
    "n evenly spaced values, both ends included.", [[neap.linspace(0, 1, 11)]] },
  { "neap.eye", "neap.eye(n[, m][, {dtype =, device =, requires_grad = false}]) -> tensor",
    "n rows and m (n) columns, ones on the diagonal.", [[neap.eye(3)]] },
  { "neap.is_tensor", "neap.is_tensor(value) -> boolean", "Is it a tensor?", [[assert(neap.is_tensor(neap.ones(2)))]] },
  { "neap.equal", "neap.equal(a, b) -> boolean",
    "Same shape and the same values? Either side may be a nested list or a number. A Lua boolean, safe in `if`; "
    .. "== tells whether two handles are the same tensor.", [[assert(neap.equal(neap.ones(2), {1, 1}))]] },
  { "neap.allclose", "neap.allclose(a, b[, {rtol = 1e-5, atol = 1e-8, equal_nan = false}]) -> boolean",
    "|a - b| <= atol + rtol |b| everywhere? Either side may be a nested list or a number.",
    [[assert(neap.allclose(neap.ones(2) / 3, {0.3333333, 0.3333333}))]] },
  { "neap.hash", "neap.hash(value) -> string",
    "A 64-bit hash, in hexadecimal, over dtype, shape and elements; of a table by sorted keys. Equal bits, equal hash.",
    [[assert(neap.hash(neap.ones(2)) == neap.hash(neap.ones(2)))]] },
  { "neap.set_print", "neap.set_print{threshold =, edge =, precision =, width =}",
    "How tensors are printed: above `threshold` elements only `edge` at each end, digits after the point, line width.",
    [[neap.set_print{precision = 4}]] },
  { "neap.dots", "x[{neap.dots, 1}]", "In an index: all the dimensions in between.",
    [[local x = neap.zeros(2, 3, 4)
assert(x[{neap.dots, 1}].shape == neap.zeros(2, 3).shape)]] },
  { "neap.newaxis", "x[{neap.newaxis, 1}]", "In an index: a new dimension of size 1.",
    [[local x = neap.zeros(3)
assert(x[{neap.newaxis}].ndim == 2)]] },
  { "neap.seed", "neap.seed(n)", "Seeds the default generators of all devices.", [[neap.seed(1)]] },
  { "neap.generator", "neap.generator(seed) -> generator",
    "A stream of random numbers of its own: {generator = g} in every op that draws.",
    [[local g = neap.generator(42)
neap.randn({2, 3}, {generator = g})]] },
  { "neap.default_generator", "neap.default_generator([device]) -> generator",
    "The generator that is used when none is given.", [[local state = neap.default_generator():state()]] },
  { "Generator:seed", "g:seed(n)", "Starts the stream anew.", [[neap.generator(1):seed(2)]] },
  { "Generator:state", "g:state() -> state", "Where the stream stands; plain data.",
    [[local g = neap.generator(1)
local before = g:state()]] },
  { "Generator:set_state", "g:set_state(state)", "Goes back to where state was asked.",
    [[local g = neap.generator(1)
local before = g:state()
local a = neap.rand({3}, {generator = g})
g:set_state(before)
assert(neap.equal(a, neap.rand({3}, {generator = g})))]] },
  { "Tensor.shape", "x.shape", "The sizes: a list that compares with ==, prints, counts from the end with negative "
    .. "positions and serves as an argument.", [[assert(neap.zeros(2, 3).shape[-1] == 3)]] },
  { "Tensor.dtype", "x.dtype", "Element type: float32 float64 float16 bfloat16 int64 int32 int8 uint8 bool.",
    [[assert(neap.ones(1).dtype == "float32")]] },
  { "Tensor.device", "x.device", "Where the elements are: \"cpu\".", [[assert(neap.ones(1).device == "cpu")]] },
  { "Tensor.ndim", "x.ndim", "Number of dimensions, 0 to 8.", [[assert(neap.zeros(2, 3).ndim == 2)]] },
  { "Tensor.name", "x.name", "A text of yours; parameters of modules are named by the module.",
    [[local x = neap.ones(1)
x.name = "bias"]] },
  { "Tensor:item", "x:item([i, ...]) -> number",
    "The number in a tensor of one element, or at the given positions.",
    [[assert(neap.tensor{{1, 2}, {3, 4}}:item(2, -1) == 4)]] },
  { "Tensor:totable", "x:totable() -> table", "All elements as nested lists.",
    [[assert(neap.tensor{1, 2}:totable()[2] == 2)]] },
  { "Tensor:size", "x:size([dim]) -> integer, ...", "All sizes as several results, or one of them.",
    [[local rows, columns = neap.zeros(2, 3):size()]] },
  { "Tensor:numel", "x:numel() -> integer", "Number of elements. #x is the size of the first dimension.",
    [[assert(neap.zeros(2, 3):numel() == 6)]] },
  { "Tensor:iter", "x:iter([dim]) -> iterator", "For loop over position and slice along dim (the first).",
    [[for i, row in neap.eye(3):iter() do assert(row:item(i) == 1) end]] },
  { "Tensor:equal", "x:equal(b) -> boolean", "neap.equal as a method.", [[assert(neap.ones(2):equal{1, 1})]] },
  { "Tensor:allclose", "x:allclose(b[, {rtol = 1e-5, atol = 1e-8, equal_nan = false}]) -> boolean",
    "neap.allclose as a method.", [[assert(neap.ones(1):allclose(1))]] },
  { "Tensor:tostring", "x:tostring([{threshold =, edge =, precision =, width =}]) -> string",
    "The text that print shows, with settings of its own.", [[neap.rand(2):tostring{precision = 2}]] },
  { "Tensor:is_floating_point", "x:is_floating_point() -> boolean", "Is the dtype a float?",
    [[assert(neap.ones(1):is_floating_point())]] },
  { "Tensor:is_contiguous", "x:is_contiguous() -> boolean", "Do the elements lie in row-major order?",
    [[assert(not neap.zeros(2, 3):t():is_contiguous())]] },
  { "Tensor:index_put_", "x:index_put_(positions, values[, {accumulate = false}]) -> x",
    "x[positions] = values as a method. With accumulate the values are added, once for each time a position stands.",
    [[local x = neap.zeros(3)
x:index_put_({neap.tensor{1, 3, 1}}, 2, {accumulate = true})
assert(neap.equal(x, {4, 0, 2}))]] },
  { "Tensor:version", "x:version() -> integer", "How often the memory was written to; views share it.",
    [[local x = neap.ones(1)
local before = x:version()
x:add_(1)
assert(x:version() > before)]] },
})

-- ---- autograd -----------------------------------------------------------------------------------------------

section("autograd", {
  { "Tensor:backward", "x:backward([grad][, {retain_graph = false, create_graph = false, inputs =}])",
    "Differentiates x (one element, or weighted by grad) and adds into .grad of the leaves, or of `inputs` only.",
    [[local w = neap.ones(2, {requires_grad = true})
local loss = (w * 3):sum()
loss:backward()
assert(neap.equal(w.grad, {3, 3}))]] },
  { "neap.backward", "neap.backward(x[, grad][, {retain_graph = false, create_graph = false, inputs =}])",
    "x:backward(...) as a function: adds into .grad of the leaves, or of `inputs` only. ?x:backward says more." },
  { "neap.grad", "neap.grad(outputs, inputs[, {grad_outputs =, retain_graph = false, create_graph = false, "
    .. "allow_unused = false}]) -> gradients",
    "Gradients in the form of inputs: a tensor for a tensor, a table with the same keys for a table. Leaves .grad "
    .. "alone.", [[local x = neap.tensor({2.0}, {requires_grad = true})
local d = neap.grad((x * x * x):sum(), x, {create_graph = true})
assert(neap.grad(d:sum(), x):item() == 12)]] },
  { "neap.detach", "neap.detach(x) -> tensor", "x:detach() as a function." },
  { "neap.detach_", "neap.detach_(x) -> x", "x:detach_() as a function." },
  { "Tensor:detach_", "x:detach_() -> x",
    "Takes x itself out of the graph: a leaf that requires no grad. Views are refused. A backward that kept x as an "
    .. "operand is an error then [E-DETACHED-INPLACE]; one that kept it as its op's result is not.",
    [[local state = neap.ones(1, {requires_grad = true}):exp()
assert(not state:detach_().requires_grad)]] },
  { "Tensor:detach", "x:detach() -> tensor", "The same memory outside the graph.",
    [[assert(not neap.ones(1, {requires_grad = true}):detach().requires_grad)]] },
  { "Tensor.requires_grad", "x.requires_grad", "Is its gradient wanted? May be set on leaves.",
    [[local w = neap.ones(2)
w.requires_grad = true]] },
  { "Tensor.grad", "x.grad", "The gradient that backward accumulated, or nil. Set it to nil to forget it.",
    [[local w = neap.ones(2, {requires_grad = true})
w:sum():backward()
w.grad = nil]] },
  { "Tensor.is_leaf", "x.is_leaf", "Was it made by you rather than by a recorded op?",
    [[assert(neap.ones(1).is_leaf)]] },
  { "Tensor.grad_fn", "x.grad_fn", "The node that computes its gradient; nil for leaves.",
    [[local w = neap.ones(2, {requires_grad = true})
assert(w:exp().grad_fn.name == "exp")]] },
  { "Tensor:requires_grad_", "x:requires_grad_([on]) -> x", "Sets requires_grad and returns x.",
    [[local w = neap.rand(2):requires_grad_()]] },
  { "Tensor:retain_grad", "x:retain_grad()", "Keeps the gradient of a tensor that is no leaf, too.",
    [[local y = neap.ones(2, {requires_grad = true}) * 2
y:retain_grad()
y:sum():backward()
assert(neap.equal(y.grad, {1, 1}))]] },
  { "Tensor:register_hook", "x:register_hook(fn) -> hook",
    "fn is given the gradient of x in every backward and may return another one.",
    [[local w = neap.ones(2, {requires_grad = true})
local hook = w:register_hook(function(g) return g * 2 end)]] },
  { "Hook:remove", "hook:remove()", "Removes the hook." },
  { "Node.name", "node.name", "The op's name." },
  { "Node.next", "node.next", "The nodes of the op's inputs, a list; false where there is none." },
  { "Node.saved", "node.saved", "The tensors that the node keeps for backward." },
  { "Node.meta", "node.meta", "A table of yours." },
  { "Node:register_hook", "node:register_hook(fn) -> hook",
    "fn is given two lists, the gradients of the op's inputs and of its outputs, and may return new ones of the "
    .. "inputs." },
  { "neap.Function", "neap.Function(name[, {forward =, backward =}]) -> class",
    "A differentiable function of your own. forward(ctx, ...) runs without recording; backward(ctx, g, ...) returns "
    .. "one gradient per argument of forward, in order; those of trailing non-tensors may be left out. For second "
    .. "derivatives save arguments and results only: what else forward computed is a constant there.",
    [[local Square = neap.Function "Square"
function Square.forward(ctx, x) ctx:save_for_backward(x); return x * x end
function Square.backward(ctx, g) return g * ctx:saved() * 2 end
local x = neap.tensor({3.0}, {dtype = "float64", requires_grad = true})
assert(neap.gradcheck(Square, {x}))]] },
  { "FunctionContext:save_for_backward", "ctx:save_for_backward(...)", "Keeps tensors for backward." },
  { "FunctionContext:saved", "ctx:saved() -> tensor, ...", "What save_for_backward got." },
  { "FunctionContext:mark_dirty", "ctx:mark_dirty(...)", "Says which arguments forward changed in place." },
  { "FunctionContext:mark_non_differentiable", "ctx:mark_non_differentiable(...)",
    "Says which results have no gradient." },
  { "FunctionContext.needs_input_grad", "ctx.needs_input_grad[i]", "Is a gradient of argument i wanted?" },
  { "neap.gradcheck", "neap.gradcheck(fn, inputs[, {eps = 1e-6, atol = 1e-5, rtol = 1e-3, order = 1}]) -> boolean",
    "Compares the gradients of fn (float64 inputs) with central differences. true, or an error that names input, "
    .. "element and both values. order = 2 checks second derivatives, too.",
    [[local x = neap.tensor({0.3}, {dtype = "float64", requires_grad = true})
neap.gradcheck(function(t) return t:sin() end, {x})]] },
})

-- ---- contexts -----------------------------------------------------------------------------------------------

section("contexts", {
  { "neap.no_grad", "neap.no_grad([fn, ...]) -> results | guard",
    "Nothing is recorded. With a function: runs fn(...) and returns its results. Without: in force until the guard "
    .. "is closed. All contexts have both forms.",
    [[neap.no_grad(function(x) return x * 2 end, neap.ones(2))
do
  local _ <close> = neap.no_grad()
  assert(not neap.is_grad_enabled())
end]] },
  { "neap.enable_grad", "neap.enable_grad([fn, ...]) -> results | guard", "Recording is on.",
    [[neap.no_grad(function() neap.enable_grad(function() assert(neap.is_grad_enabled()) end) end)]] },
  { "neap.set_grad_enabled", "neap.set_grad_enabled(on[, fn, ...]) -> results | guard", "Recording on or off.",
    [[neap.set_grad_enabled(false, function() assert(not neap.is_grad_enabled()) end)]] },
  { "neap.is_grad_enabled", "neap.is_grad_enabled() -> boolean", "Is recording on?",
    [[assert(neap.is_grad_enabled())]] },
  { "neap.in_recompute", "neap.in_recompute() -> boolean",
    "Is a checkpoint region being computed again? Effects that should happen once ask this, or use checkpoint.once.",
    [[assert(not neap.in_recompute())]] },
  { "neap.default_dtype", "neap.default_dtype([dtype][, fn, ...]) -> results | guard | string",
    "The float dtype of new tensors. Without an argument: which one is in force.",
    [[neap.default_dtype("float64", function() assert(neap.zeros(1).dtype == "float64") end)]] },
  { "neap.device", "neap.device(device[, fn, ...]) -> results | guard",
    "The device of new tensors, while fn runs or the guard is in force. NEAP_DEVICE names the one that is there "
    .. "without it. A device is given everywhere as a string, \"cpu\", \"cuda\" or \"cuda:0\"; it is no object.",
    [[neap.device("cpu", function() return neap.zeros(1) end)]] },
  { "neap.autocast", "neap.autocast(dtype[, {enabled = true}][, fn, ...]) -> results | guard",
    "Mixed precision: products (matmul, linear) run in dtype, float16 or bfloat16; losses, norms, softmax, exp, log, "
    .. "pow, sum, mean and their like in float32; other ops as their operands are. float64 takes no part. "
    .. "op:tagged \"cast_low\" and \"cast_float32\" tell. The casts are differentiated: a parameter's gradient has "
    .. "its dtype. Backward runs in the dtypes of its forward, in the scope or out of it. enabled = false: no casts "
    .. "inside.",
    [[local w = neap.randn(3, 3, {requires_grad = true})
local y = neap.autocast("bfloat16", function() return w:matmul(w) end)
assert(y.dtype == "bfloat16" and neap.grad(y:sum(), w).dtype == "float32")]] },
  { "neap.detect_anomaly", "neap.detect_anomaly([fn, ...]) -> results | guard",
    "Backward stops at the first gradient that holds a NaN and names the op whose formula gave it, the line that "
    .. "called the op, and op and line of the first NaN in the forward, if there was one [E-ANOMALY]. Ops that ran "
    .. "before it was on have no line. Every result is looked through: slow.",
    [[local x = neap.zeros({2}, {requires_grad = true})
local ok, err = pcall(neap.detect_anomaly, function() x:square():sqrt():sum():backward() end)
assert(neap.error_code(err) == "E-ANOMALY")]] },
  { "neap.saved_tensors_hooks", "neap.saved_tensors_hooks(pack, unpack[, fn, ...]) -> results | guard",
    "What pack(tensor) returns is kept for backward in the tensor's place; unpack gets it and returns a tensor.",
    [[local x = neap.ones(2, {requires_grad = true})
neap.saved_tensors_hooks(function(t) return t end, function(t) return t end,
  function() return x:exp():sum() end):backward()]] },
  { "neap.disable_saved_tensors_hooks", "neap.disable_saved_tensors_hooks(message[, fn, ...]) -> results | guard",
    "Saved-tensors hooks are an error with this message." },
  { "neap.save_on_cpu", "neap.save_on_cpu([{pin_memory = false}][, fn, ...]) -> results | guard",
    "What is saved for backward waits in host memory: of a device, as much as neap.memory_stats(device).moved tells. "
    .. "With pin_memory the device copies while it goes on computing, and what backward needs next is fetched ahead." },
  { "neap.op_mode", "neap.op_mode(handler[, fn, ...]) -> results | guard",
    "handler(op, call, ...) sees every op and returns its results; call(...) goes on. What it returns is "
    .. "differentiated. A checkpoint's recompute runs under the modes of its forward, and no others.",
    [[local names = {}
neap.op_mode(function(op, call, ...)
  names[#names + 1] = op.name
  return call(...)
end, function() return neap.ones(2):exp() end)
assert(names[#names] == "exp")]] },
  { "Guard:close", "guard:close()", "Ends the context. `local _ <close> = neap.no_grad()` does it at the end of the "
    .. "block.", [[local guard = neap.no_grad()
guard:close()]] },
})

-- ---- checkpoint ---------------------------------------------------------------------------------------------

local checkpoint_options = "{use_reentrant = false, preserve_rng_state = true, context_fn =, policy =, "
  .. "determinism_check = \"default\", debug = false, early_stop = true, respect_saved_tensors_hooks =, enabled = true}"

section("checkpoint", {
  { "checkpoint", "checkpoint(fn, " .. checkpoint_options .. ", ...) -> results",
    "Runs fn(...) and keeps only its inputs; what backward needs of the inside is computed again, with the same random "
    .. "numbers. The results are fn's. Or checkpoint{use_reentrant = false}(fn): a function, or a module for a module, "
    .. "to be called with the arguments. use_reentrant has no default; false is recommended (true: fn runs without a "
    .. "graph, and backward() runs it as a whole; it follows tensor arguments only, none in tables or captured). "
    .. "Tensors that fn captured live as long as they may be needed. determinism_check: how closely the recompute is "
    .. "held against the forward: \"none\"; \"default\", of each saved value shape and dtype, and how it was made: "
    .. "the ops, their numbers and the tensors that flowed into it; \"ops\", also all other ops; \"values\", also the "
    .. "bits. debug = true: a mismatch shows the ops of both runs with their "
    .. "lines. context_fn, asked once a call, returns a context around the forward and one around recomputes; a "
    .. "context is a function of run that calls run() once, or {enter = function(self) end, exit = function(self, err) "
    .. "end}, or nil. policy, a list of ops or a function(ctx, op, ...), says which results are kept; a function is "
    .. "asked after each op of the forward, with ctx.op_output, ctx.outputs, ctx.nth (number of this run of this op, "
    .. "from 1) and ctx.is_recompute (false), and answers true (keep), false, or a value of "
    .. "checkpoint.CheckpointPolicy. respect_saved_tensors_hooks = true packs what it keeps with the hooks in force. "
    .. "enabled = false: fn runs plainly.",
    [[local w = neap.randn(3, 3):requires_grad_()
local function block(x) return x:matmul(w):tanh() end
local y = checkpoint(block, {use_reentrant = false}, neap.randn(2, 3))
y:sum():backward()]] },
  { "checkpoint.checkpoint", "checkpoint.checkpoint(fn, " .. checkpoint_options .. ", ...) -> results",
    "The same function as checkpoint(...).",
    [[local w = neap.randn(3, 3):requires_grad_()
local function block(x) return x:matmul(w):tanh():matmul(w) end
local y = checkpoint.checkpoint(block, {use_reentrant = false, policy = {neap.ops.matmul}}, neap.randn(2, 3))
y:sum():backward()]] },
  { "checkpoint.set_checkpoint_early_stop", "checkpoint.set_checkpoint_early_stop(on[, fn, ...]) -> results | guard",
    "Early stop of recomputes (on unless switched off): a recompute ends as soon as it has what backward needs. A "
    .. "context; read when a region is made." },
  { "checkpoint.set_checkpoint_debug_enabled",
    "checkpoint.set_checkpoint_debug_enabled(on[, fn, ...]) -> results | guard",
    "Takes the place of every call's debug option, unless nil. A context; read when a region is made.",
    [[checkpoint.set_checkpoint_debug_enabled(true, function() end)]] },
  { "checkpoint.CheckpointPolicy", "checkpoint.CheckpointPolicy",
    "What a policy answers: MUST_SAVE, PREFER_SAVE, MUST_RECOMPUTE, PREFER_RECOMPUTE, MUST_CPU_OFFLOAD, "
    .. "PREFER_CPU_OFFLOAD. They are the strings \"must_save\" and so on; true is MUST_SAVE, false PREFER_RECOMPUTE.",
    [[assert(checkpoint.CheckpointPolicy.MUST_SAVE == "must_save")]] },
  { "checkpoint.GraphExecGroup", "checkpoint.GraphExecGroup() -> group",
    "Several backwards under one group compute a region again once: group(fn, ...) runs fn in it, group:enter() is a "
    .. "guard. What the group holds goes with group:close(), or with the group.",
    [[local x = neap.ones(2, {requires_grad = true})
local group = checkpoint.GraphExecGroup()
local function f(t) local y = t:exp() return y, y:sin() end
local y, z = checkpoint(f, {use_reentrant = false}, x)
local gy = group(neap.grad, z:sum(), y)
local gx = group(neap.grad, y, x, {grad_outputs = gy})]] },
  { "Group:enter", "group:enter() -> guard",
    "Enters the group until the guard is closed; entering again continues it." },
  { "Group:close", "group:close()", "Drops what the group holds. It may be entered again." },
})

-- ---- memory -------------------------------------------------------------------------------------------------

section("memory", {
  { "neap.scope", "neap.scope([fn, ...]) -> results | guard",
    "What is made inside is released at the end, except fn's results, what neap.keep took out, parameters, their "
    .. "gradients and optimizer state.",
    [[local y = neap.scope(function(x) return (x * 2):exp() end, neap.ones(3))
do
  local _ <close> = neap.scope()
  neap.ones(1000):exp()
end]] },
  { "neap.keep", "neap.keep(value) -> value", "Moves a tensor one scope out and returns it.",
    [[local last
do
  local _ <close> = neap.scope()
  last = neap.keep(neap.ones(2) * 2)
end
assert(last:sum():item() == 4)]] },
  { "Tensor:release", "x:release()",
    "Gives its memory back now (unless others hold it). Using x afterwards is an error that names both lines.",
    [[neap.ones(3):release()]] },
  { "neap.memory_stats", "neap.memory_stats([device]) -> table",
    "Of a device, by default that of new tensors, in bytes: live, peak, reserved, cached, limit, by = {param =, "
    .. "grad =, optimizer =, saved =, temp =, workspace =, "
    .. "staging =, user =}, peak_by, scratch (the most that kernels packed operands into since reset_peak: not in live "
    .. "or peak, as it depends on threads and OpenBLAS); counts: storages, handles, nodes, slots, regions, scopes, "
    .. "functions, and of checkpoint markers (values to recompute) and pass_entries (values recomputed and not yet "
    .. "fetched); moved = {to_host =, to_device =}, bytes of saved values that were offloaded; collections of Lua's "
    .. "garbage that Neap asked for, and collection_seconds. Tensors that no name holds any more "
    .. "are live until their scope ends or Lua collects them, which is no matter of shapes: for a comparison, call "
    .. "collectgarbage() before neap.reset_peak(), and x:release() what a long function is done with.",
    [[print(neap.memory_stats().live)]] },
  { "neap.reset_peak", "neap.reset_peak([device])",
    "The peak of a device, by default that of new tensors, starts anew at what is live.", [[neap.reset_peak()]] },
  { "neap.memory_limit", "neap.memory_limit(device, bytes[, fn, ...]) -> results | guard",
    "A limit of live bytes, a number or a text such as \"256 MiB\" (0: none). What would pass it is refused before it "
    .. "runs [E-LIMIT]; the old limit comes back at the end.",
    [[neap.memory_limit("cpu", "1 GiB", function() return neap.zeros(10) end)]] },
  { "neap.count_ops", "neap.count_ops(fn, ...) -> counts, results",
    "Runs fn(...) and counts the kernels that ran: counts.matmul is 0 if none did.",
    [[local counts = neap.count_ops(function() return neap.ones(2, 2):matmul(neap.ones(2, 2)) end)
assert(counts.matmul == 1 and counts.exp == 0)]] },
  { "neap.counters", "neap.counters([reset]) -> table",
    "Counts since the start: counters().matmul = {calls =, kernels =, replayed =, staged =}. staged: how often a "
    .. "device handed the call back to the CPU (nil: never). true starts them anew.",
    [[neap.counters(true)]] },
})

-- ---- modules ------------------------------------------------------------------------------------------------

section("modules", {
  { "nn.ReLU", "nn.ReLU() -> module", "max(x, 0).", [[nn.ReLU()(neap.randn(3))]] },
  { "nn.Tanh", "nn.Tanh() -> module", "The hyperbolic tangent.", [[nn.Tanh()(neap.randn(3))]] },
  { "nn.Sigmoid", "nn.Sigmoid() -> module", "1 / (1 + e^-x).", [[nn.Sigmoid()(neap.randn(3))]] },
  { "nn.Softplus", "nn.Softplus() -> module", "log(1 + e^x).", [[nn.Softplus()(neap.randn(3))]] },
  { "nn.SiLU", "nn.SiLU() -> module", "x sigmoid(x), also called swish.", [[nn.SiLU()(neap.randn(3))]] },
  { "nn.LogSigmoid", "nn.LogSigmoid() -> module", "log sigmoid(x), exact for large |x|." },
  { "nn.LeakyReLU", "nn.LeakyReLU([negative_slope]) -> module", "x above 0, else negative_slope * x (0.01).",
    [[nn.LeakyReLU(0.2)(neap.randn(3))]] },
  { "nn.ELU", "nn.ELU([alpha]) -> module", "x above 0, else alpha (e^x - 1) (1)." },
  { "nn.Hardtanh", "nn.Hardtanh([min_val][, max_val]) -> module", "x brought into [min_val, max_val] (-1, 1)." },
  { "nn.Softmax", "nn.Softmax([dim]) -> module", "e^x / sum e^x along dim (-1).", [[nn.Softmax()(neap.randn(3))]] },
  { "nn.LogSoftmax", "nn.LogSoftmax([dim]) -> module", "x - log sum e^x along dim (-1).",
    [[nn.LogSoftmax()(neap.randn(3))]] },
  { "nn.CrossEntropyLoss",
    "nn.CrossEntropyLoss([{ignore_index =, weight =, label_smoothing = 0, reduction = \"mean\", base = 1}]) -> module",
    "nn.cross_entropy as a module.", [[nn.CrossEntropyLoss()(neap.randn(2, 3), neap.tensor{1, 3})]] },
  { "nn.NLLLoss", "nn.NLLLoss([{ignore_index =, weight =, reduction = \"mean\", base = 1}]) -> module",
    "nn.nll_loss as a module." },
  { "nn.MSELoss", "nn.MSELoss([{reduction = \"mean\"}]) -> module", "nn.mse_loss as a module.",
    [[nn.MSELoss()(neap.zeros(2), neap.ones(2))]] },
  { "nn.L1Loss", "nn.L1Loss([{reduction = \"mean\"}]) -> module", "nn.l1_loss as a module." },
  { "nn.SmoothL1Loss", "nn.SmoothL1Loss([{beta = 1, reduction = \"mean\"}]) -> module",
    "nn.smooth_l1_loss as a module." },
  { "nn.HuberLoss", "nn.HuberLoss([{delta = 1, reduction = \"mean\"}]) -> module", "nn.huber_loss as a module." },
  { "nn.BCELoss", "nn.BCELoss([{weight =, reduction = \"mean\"}]) -> module", "nn.binary_cross_entropy as a module." },
  { "nn.BCEWithLogitsLoss", "nn.BCEWithLogitsLoss([{weight =, pos_weight =, reduction = \"mean\"}]) -> module",
    "nn.binary_cross_entropy_with_logits as a module." },
  { "nn.KLDivLoss", "nn.KLDivLoss([{log_target = false, reduction = \"mean\"}]) -> module", "nn.kl_div as a module." },
  { "nn.GaussianNLLLoss", "nn.GaussianNLLLoss([{full = false, eps = 1e-6, reduction = \"mean\"}]) -> module",
    "nn.gaussian_nll_loss as a module, called with (input, target, var)." },
  { "nn.Module", "nn.Module(name[, methods]) -> class",
    "A class of modules: write init(...) and forward(...), make instances by calling the class, call them like "
    .. "functions. Block:extend \"Wide\" inherits. One field per statement: Lua fills a, b = ... from the right.",
    [[local Block = nn.Module "Block"
function Block:init(dim) self.linear = nn.Linear(dim, dim) end
function Block:forward(x) return x + self.linear(x):relu() end
local y = Block(4)(neap.randn(2, 4))]] },
  { "Module.training", "m.training", "Is the module in training mode?", [[assert(nn.Linear(1, 1).training)]] },
  { "nn.init.zeros_", "nn.init.zeros_(t) -> t", "Zeros.", [[nn.init.zeros_(neap.empty(2))]] },
  { "nn.init.ones_", "nn.init.ones_(t) -> t", "Ones.", [[nn.init.ones_(neap.empty(2))]] },
})

section("optim", {
  { "Optimizer.lr", "opt.lr", "The learning rate of the first group's next step; setting it sets every group's.",
    [[local opt = optim.SGD({neap.ones(1, {requires_grad = true})}, {lr = 0.1})
opt.lr = opt.lr / 2]] },
  { "Optimizer.steps", "opt.steps", "Number of steps taken." },
  { "Optimizer.groups", "opt.groups", "The parameter groups with their settings." },
})

-- ---- data and files -----------------------------------------------------------------------------------------

section("data", {
  { "data.read_idx", "data.read_idx(path) -> tensor", "neap.read_idx." },
  { "Log:write", "log:write(record)", "Writes one record: a table of numbers, strings, booleans, tensors of one "
    .. "element. It is on disk when the call returns." },
  { "Log:close", "log:close()", "Closes the file." },
})

section("files", {
  { "neap.save", "neap.save(path, tensors[, {metadata =}])",
    "Writes a table of tensors as safetensors, names sorted, atomically. metadata: a table of strings.",
    [[local path = os.tmpname()
neap.save(path, {w = neap.ones(2)}, {metadata = {step = "3"}})
os.remove(path)]] },
  { "neap.load", "neap.load(path) -> tensors, metadata",
    "Reads a safetensors file. Its tensors are on the CPU; model:load_state_dict copies them to where the model is.",
    [[local path = os.tmpname()
neap.save(path, {w = neap.ones(2)})
assert(neap.equal(neap.load(path).w, {1, 1}))
os.remove(path)]] },
  { "neap.read_idx", "neap.read_idx(path) -> tensor",
    "Reads an idx file (the format of MNIST), plain or gzip; raw bytes, nothing shifted." },
  { "neap.load_npy", "neap.load_npy(path) -> tensor", "Reads one NumPy array, of any version and byte order.",
    [[local path = os.tmpname()
neap.save_npy(path, neap.ones(2))
assert(neap.equal(neap.load_npy(path), {1, 1}))
os.remove(path)]] },
  { "neap.save_npy", "neap.save_npy(path, x)", "Writes x as NumPy's .npy, atomically. bfloat16 has no name there." },
  { "neap.load_npz", "neap.load_npz(path) -> tensors by name",
    "Reads the arrays of a NumPy .npz file, packed or not; checksums are compared." },
})

-- ---- devices and process ------------------------------------------------------------------------------------

section("devices", {
  { "neap.version", "neap.version", "The version, a string.", [[print(neap.version)]] },
  { "neap.clock", "neap.clock() -> number", "Wall-clock seconds; os.clock adds up threads.",
    [[local start = neap.clock()]] },
  { "neap.set_num_threads", "neap.set_num_threads(n)", "Threads of kernels. Results do not depend on it.",
    [[neap.set_num_threads(1)]] },
  { "neap.get_num_threads", "neap.get_num_threads() -> integer", "How many there are.",
    [[assert(neap.get_num_threads() >= 1)]] },
  { "neap.on_log", "neap.on_log(fn)",
    "fn(level, text) is given what Neap has to say (level \"debug\", \"info\" or \"warning\"); nil: nobody.",
    [[neap.on_log(nil)]] },
  { "neap.error_code", "neap.error_code(err) -> string", "The code of an error of Neap, such as \"E-SHAPE\", or nil.",
    [[local ok, err = pcall(neap.matmul, neap.ones(2, 3), neap.ones(2, 3))
assert(not ok and neap.error_code(err) == "E-SHAPE")]] },
  { "neap.ops", "neap.ops", "All ops, by name and as a list.",
    [[for _, op in ipairs(neap.ops) do assert(neap.ops[op.name] == op) end]] },
  { "Op.name", "op.name", "Its name." },
  { "Op.schema", "op.schema", "Its arguments and results; the language is described in core/ops/op.h." },
  { "Op.tags", "op.tags", "A list of its tags." },
  { "Op.doc", "op.doc", "Its documentation." },
  { "Op:tagged", "op:tagged(tag) -> boolean", "Has it the tag? Unknown tags are an error.",
    [[assert(neap.ops.exp:tagged "pointwise")]] },
})

--- Names in the table that `require "neap"` returns which are not for scripts: what the C part and the Lua files say
-- to each other.
help.internal = {
  methods = "the methods of tensors", set_library_prefix = "whose frames errors skip",
  set_translate = "what PyTorch's names are called here", own = "module fields",
  owned = "a loader's batch", scope_begin = "module calls", scope_end = "module calls",
  checkpoint_run = "checkpoint.checkpoint", library_part = "tables without captured tensors",
  set_checkpoint_early_stop = "checkpoint.set_checkpoint_early_stop",
  set_checkpoint_debug_enabled = "checkpoint.set_checkpoint_debug_enabled",
  GraphExecGroup = "checkpoint.GraphExecGroup", selective_new = "policies", selective_begin = "policies",
  selective_settle = "policies", once_begin = "checkpoint.once", once_next = "checkpoint.once",
  simple_checkpoint = "checkpoint.checkpoint",
  adamw_step = "optim.AdamW", sgd_step = "optim.SGD", rmsprop_step = "optim.RMSprop", adagrad_step = "optim.Adagrad",
  read_csv = "data.csv", clip_grad_norm = "optim.clip_grad_norm_", clip_grad_value = "optim.clip_grad_value_",
  set_category = "accounting", set_data = "Module:to", isatty = "neap.progress",
  terminal_width = "neap.progress", dtypes = "Module:to",
  watch_begin = "neap.profile, neap.memory", watch_running = "neap.memory.report", memory_holders = "neap.memory",
  collect_all = "neap.detect_leaks", plugin_devices = "neap.cuda", device_facts = "neap.cuda",
  synchronize = "neap.cuda", cuda_stream = "neap.cuda.Stream", cuda_event = "neap.cuda.Event",
}

--- What to do about an error, by its code.
help.remedies = {
  ["E-ARG"] = "compare the call with ?name; functions take tensors and numbers by position, then one option table",
  ["E-SHAPE"] = "print(x.shape); x:t(), x:unsqueeze(dim), x:reshape(...) make shapes fit",
  ["E-DTYPE"] = 'convert with x:to("float32") or name the dtype when the tensor is made',
  ["E-DEVICE"] = "bring the tensors together with x:to(device)",
  ["E-DIMS"] = "dimensions count from 1, or from the end with negatives; x.ndim is their number",
  ["E-INDEX"] = "positions count from 1, or from the end with negatives; ids made elsewhere: {base = 0}",
  ["E-LABEL"] = "labels and ids count from 1; those of files that count from 0: {base = 0}",
  ["E-NOMEM"] = "release tensors, use neap.scope in loops, smaller batches or checkpoint",
  ["E-LIMIT"] = "raise neap.memory_limit, or save memory with checkpoint or smaller batches",
  ["E-UNKNOWN-OPTION"] = "the message names the nearest option; ?name lists all",
  ["E-NOKERNEL"] = 'run the op on the CPU: x:to("cpu")',
  ["E-VIEW"] = "x:reshape(...) copies where a view is not possible",
  ["E-OVERLAP"] = "write into x:clone() or x:contiguous()",
  ["E-NOGRAD"] = "set requires_grad on an input, and look for neap.no_grad or x:detach() on the way",
  ["E-UNUSED"] = "{allow_unused = true} gives nil for it",
  ["E-LEAF-INPLACE"] = "change it inside neap.no_grad, or work on a result of it",
  ["E-FREED"] = "{retain_graph = true} in the first backward, or compute the value again",
  ["E-INPLACE"] = "use the op without _ there, or change x:clone()",
  ["E-DETACHED-INPLACE"] = "make a new tensor with x:detach() instead of detaching x itself",
  ["E-GRADIENT"] = "backward returns one gradient per argument of forward, in its shape and dtype",
  ["E-ANOMALY"] = "look at the op that is named: a logarithm or root of 0, 0/0, inf - inf; clamp its argument",
  ["E-GRADCHECK"] = "the formula in backward is wrong where the message says, or the function has a kink there",
  ["E-HOOKS-DISABLED"] = "use the hooks outside of that context",
  ["E-PACK-INPLACE"] = "pack works on a copy: x:clone()",
  ["E-UNPACK-TYPE"] = "unpack returns a tensor of the shape and dtype that pack was given",
  ["E-UNPACK-TWICE"] = "read it once and keep the result in a local variable",
  ["E-COUNT"] = "fn must do the same when it runs again: no counters, clocks or math.random in its decisions "
    .. "(checkpoint.once remembers them)",
  ["E-META"] = "fn must do the same when it runs again; decisions go through checkpoint.once",
  ["E-MORE-SAVED"] = "fn must do the same when it runs again; decisions go through checkpoint.once",
  ["E-USE-REENTRANT"] = "checkpoint(fn, {use_reentrant = false}, ...): function, options, arguments",
  ["E-BADCHECK"] = 'determinism_check is "default", "none", "ops" or "values"',
  ["E-SUPPRESSED"] = "a context may look at an error, and lets it pass",
  ["E-CONTEXT-RUN"] = "call run() once, without conditions",
  ["E-CHECK-NESTED-DEPTH"] = "nest checkpoints less deeply; a loop over a list of regions needs no nesting",
  ["E-REENTRANT-KWARGS"] = "{use_reentrant = false}, or pass the tensor as an argument of its own",
  ["E-REENTRANT-OPTION"] = "leave the option out, or {use_reentrant = false}",
  ["E-REENTRANT-GRAD"] = "loss:backward(), or {use_reentrant = false}",
  ["E-REENTRANT-CAPTURED"] = "{use_reentrant = false}, or pass the tensor as an argument",
  ["E-REENTRANT-HIGHER"] = "{use_reentrant = false} supports every order",
  ["E-NONE-REQUIRE-GRAD"] =
    "the function's results are detached or made under no_grad; {use_reentrant = false} allows it",
  ["E-OPS"] = "the message says where: a changed number, branch, upvalue or tensor; "
    .. "checkpoint.once remembers decisions",
  ["E-VALUES"] = "something outside of the function changed: a captured tensor, a generator of your own, the clock",
  ["E-CONTEXT-REUSED"] = "call create_selective_checkpoint_contexts inside context_fn: one fresh pair a call",
  ["E-BADOP"] = "list values of neap.ops, such as {neap.ops.matmul}",
  ["E-BADPOLICY"] = "policy = function(ctx, op, ...) ... end, or policy = {neap.ops.matmul}",
  ["E-BADPOLICYVALUE"] = 'return true, false, or a value of checkpoint.CheckpointPolicy such as "must_save"',
  ["E-SAC-NOOP"] = "the function takes another branch in the recompute; checkpoint.once remembers decisions",
  ["E-SAC-INDEX"] = "the function runs an op more often in the recompute; checkpoint.once remembers decisions",
  ["E-SAC-AGAIN"] = "{keep_entries = true} allows further backwards",
  ["E-SAC-MUTATED"] = "use the out-of-place form, or {allow_cache_entry_mutation = true} if the change repeats itself",
  ["E-SAC-INPLACE"] = "save the op before it, or let the in-place op be recomputed",
  ["E-SAC-DRY"] = "let the policy answer false for that op: its value was not kept because nothing needed it",
  ["E-SEGMENTS"] = "between 1 and the number of parts",
  ["E-GROUP-NESTED"] = "close the group that is active first",
  ["E-RELEASED"] = "neap.keep it out of its scope, or return it; the message names where it was released",
  ["E-STATE"] = "the message says what has to happen first",
  ["E-CANCELLED"] = "someone pressed Ctrl-C, or the host's time was over",
  ["E-IO"] = "look at the path, its permissions and the space left",
  ["E-FORMAT"] = "the file is damaged or of another kind",
  ["E-MISSING"] = "install what the message names",
  ["E-USER"] = "see your function",
  ["E-STOP"] = "never seen by scripts",
  ["E-INTERNAL"] = "report it with the message and, if you can, the script",
}

-- ---- for the prompt -----------------------------------------------------------------------------------------

-- Everything that is described, also ops and Lua functions: what make docs wrote, or at least the rows above.
local all
local function everything()
  if all then return all end
  local ok, reference = pcall(require, "neap.reference")
  all = ok and reference or { items = help.order, sections = {}, codes = {} }
  all.named = {}
  for _, item in ipairs(all.items) do all.named[item.name] = item end
  return all
end

-- What a name such as "nn.init.zeros_" stands for now; nil for members of objects.
local function resolve(neap, name)
  local root, rest = name:match("^(%a+)[.:]?(.*)$")
  local value
  if root == "neap" then
    value = neap
  elseif root == "Tensor" then
    value = neap.methods
  elseif root == "Module" then
    value = neap.nn.Module
  elseif root:find("^%l") then
    value = package.loaded["neap." .. root]
  end
  for part in rest:gmatch("[^.]+") do
    if type(value) ~= "table" then return nil end
    value = rawget(value, part)
  end
  return value
end

local by_identity = { ["function"] = true, table = true, userdata = true }
local prefix = debug.getinfo(1, "S").source:match("^(.*)help%.lua$") or "=neap"

-- A function that is not the user's.
local function of_library(value)
  if type(value) ~= "function" then return false end
  local info = debug.getinfo(value, "S")
  return info.what == "C" or info.source:sub(1, #prefix) == prefix
end

--- The item for a value such as neap.zeros, or for a name such as "neap.zeros", "zeros", "x:item"; nil if none.
-- value: what the name stands for, if anything. kind: of which kind ("Tensor") the object before the last dot is.
-- A name is matched by its last part only when nothing of the user's stands behind it.
function help.find(neap, name, value, kind)
  local known = everything()
  local last = name:match("([%w_]+)$")
  if by_identity[type(value)] then
    for _, item in ipairs(known.items) do
      local method = item.method and neap.methods[item.name:match("[^.]+$")]
      if rawequal(resolve(neap, item.name), value) or method and rawequal(method, value) then return item end
    end
  end
  local member = kind and (known.named[kind .. ":" .. last] or known.named[kind .. "." .. last])
  if member then return member end
  local full = known.named[name] or known.named[name:gsub("^neap%.", "")]
  if full and (value == nil or name:find("[.:]")) then return full end
  if not last or value ~= nil and not of_library(value) then return nil end
  local found = not name:find(":", 1, true) and known.named["neap." .. last]
  if found then return found end
  for _, item in ipairs(known.items) do
    if item.name:match("([%w_]+)$") == last then
      if (item.name:find(":", 1, true) ~= nil) == (name:find(":", 1, true) ~= nil) then return item end
      found = found or item
    end
  end
  return found or nil
end

--- All items.
function help.items() return everything().items end

--- The last parts of all names, for "did you mean".
function help.names()
  local names = {}
  for _, item in ipairs(everything().items) do names[#names + 1] = item.name:match("[%w_]+$") end
  return names
end

local function wrapped(text)
  local lines, line = {}, ""
  for word in text:gmatch("%S+") do
    if #line + #word > 98 then
      lines[#lines + 1], line = line, ""
    end
    line = line == "" and word or line .. " " .. word
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

--- The text of an item: signature, description, example, what it saves.
function help.text(item)
  local lines = { wrapped(item.signature) }
  if item.method then lines[#lines + 1] = "x:" .. item.name:match("[%w_]+$") .. "(...)" end
  lines[#lines + 1] = wrapped(item.text)
  if item.example then lines[#lines + 1] = "  " .. item.example:gsub("\n", "\n  ") end
  if item.saves then lines[#lines + 1] = "Saves: " .. item.saves .. "." end
  return table.concat(lines, "\n")
end

local sections_of = { nn = "modules", optim = "optim", data = "data" }

local function listing(part, title)
  local names = {}
  for _, item in ipairs(everything().items) do
    if item.section == part[1] and not (part[1] == "ops" and item.name:find("_$")) then
      names[#names + 1] = item.name
    end
  end
  return ("%s%s: %s\n%s"):format(title and title .. ", " or "", part[2], part[3],
    "  " .. wrapped(table.concat(names, " ")):gsub("\n", "\n  "))
end

--- The text for an error code, for neap or a part of it, or for a section of the reference; nil for other names.
function help.topic(name)
  local known = everything()
  local code = known.codes[name:upper()]
  if code then return ("%s: %s\nWhat to do: %s"):format(name:upper(), code[1], wrapped(code[2])) end
  name = name:gsub("^neap%.", "")
  local texts = {}
  for _, part in ipairs(known.sections) do
    if name == "neap" then
      texts[#texts + 1] = listing(part)
    elseif part[1] == (sections_of[name] or name) then
      return listing(part, sections_of[name] and name)
    end
  end
  if name == "neap" then return table.concat(texts, "\n\n") end
end

return help
