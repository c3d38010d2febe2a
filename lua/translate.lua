--- PyTorch's names that Neap does not have, and what to write instead: error texts and the prompt's ?name end with
-- it. A name stands here only while Neap has nothing of that name; these are hints, not aliases.
local translate = {}

--- Dtypes: names that are methods, fields and dtypes in PyTorch.
translate.dtypes = {
  float = "float32", double = "float64", half = "float16", long = "int64", int = "int32",
  byte = "uint8",
}

--- Functions, methods, fields, classes.
translate.names = {
  -- tensors
  Tensor = "neap.tensor(list)", FloatTensor = "neap.tensor(list)", DoubleTensor = "neap.tensor(list)",
  LongTensor = "neap.tensor(list)", as_tensor = "neap.tensor(list)", from_numpy = "neap.tensor(list)",
  empty_like = "neap.empty(x.shape)", rand_like = "neap.rand(x.shape)", randn_like = "neap.randn(x.shape)",
  randint_like = "neap.randint(low, high, x.shape)", random_ = "neap.randint(low, high, shape)",
  manual_seed = "neap.seed(n)", inf = "math.huge", nan = "0/0", pi = "math.pi",
  cuda = 'x:to("cuda")', bool = 'x:to("bool")', cpu = 'x:to("cpu")', type = "x.dtype", dim = "x.ndim",
  nelement = "x:numel()", tolist = "x:totable()", numpy = "x:totable()", T = "x:t()", mT = "x:transpose(-2, -1)",
  swapaxes = "x:transpose(a, b)", swapdims = "x:transpose(a, b)", ravel = "x:flatten()", view_as = "x:view(y.shape)",
  reshape_as = "x:reshape(y.shape)", ["repeat"] = "x:tile(...)", concat = "neap.cat(list, dim)",
  concatenate = "neap.cat(list, dim)", vstack = "neap.cat(list, 1)", hstack = "neap.cat(list, 2)",
  -- ops
  absolute = "x:abs()", negative = "x:neg()", multiply = "x:mul(y)", subtract = "x:sub(y)", divide = "x:div(y)",
  true_divide = "x:div(y)", greater = "x:gt(y)", greater_equal = "x:ge(y)", less = "x:lt(y)", less_equal = "x:le(y)",
  not_equal = "x:ne(y)", ger = "neap.outer(a, b)", clip = "x:clamp{min = a, max = b}", clamp_min = "x:clamp{min = a}",
  clamp_max = "x:clamp{max = b}", index_fill = "x[ids] = value", vector_norm = "x:norm(dims, {p = 2})",
  -- memory, gradients, parts
  reset_peak_memory_stats = "neap.reset_peak(device)", max_memory_allocated = "neap.memory_stats(device).peak",
  memory_allocated = "neap.memory_stats(device).live", memory_reserved = "neap.memory_stats(device).reserved",
  max_memory_reserved = "neap.memory_stats(device).reserved", memory_summary = "neap.memory.report(device)",
  mem_get_info = "neap.cuda.properties(device).memory_free", get_device_name = "neap.cuda.properties(device).name",
  get_device_properties = "neap.cuda.properties(device)",
  get_device_capability = "neap.cuda.properties(device).capability",
  set_per_process_memory_fraction = "neap.memory_limit(device, bytes)",
  set_default_device = "neap.device(device[, fn]), or NEAP_DEVICE", set_device = "neap.device(device[, fn])",
  get_default_device = "neap.zeros(0).device", current_device = "neap.zeros(0).device",
  is_cuda = 'x.device, "cpu" or "cuda:0"', empty_cache = "nothing: what is cached goes back when memory is short",
  pin_memory = "nothing: x:to(device); neap.save_on_cpu has an option of that name",
  record_stream = "nothing: a tensor knows which streams use it",
  current_stream = "nothing: neap.cuda.Stream(device) makes one, stream(fn, ...) runs fn on it",
  get_rng_state = "neap.default_generator():state()", set_rng_state = "neap.default_generator():set_state(state)",
  amp = "neap.autocast(dtype, fn)", autograd = "neap.grad, neap.backward and neap.Function",
  inference_mode = "neap.no_grad(fn)",
  functional = "x:relu() or neap.relu(x) for ops, nn.mse_loss and the like for losses",
  utils = "optim.clip_grad_norm_ for gradients, data.loader for batches",
  -- modules
  ModuleList = "a list of modules in a field", ModuleDict = "a list of modules in a field, or a field for each",
  ParameterList = "a list of nn.Parameter in a field",
  Conv1d = "a module of your own, of x:unfold(...) and x:matmul(w)",
  Conv2d = "a module of your own, of x:unfold(...) and x:matmul(w)",
  MaxPool2d = "x:unfold(...) and x:amax(dims)", AvgPool2d = "x:unfold(...) and x:mean(dims)",
  BatchNorm1d = "a module of your own, of x:var_mean(1) and buffers",
  BatchNorm2d = "a module of your own, of x:var_mean({1, 3, 4}) and buffers",
  RNN = "a loop in a module of your own", LSTM = "a loop in a module of your own",
  GRU = "a loop in a module of your own",
  MultiheadAttention = "a module of your own, of x:matmul(y) and x:softmax(dim)",
  -- training
  lr_scheduler = "lr = optim.schedule.cosine{...} in the optimizer's options",
  DataLoader = "data.loader(dataset, options)", TensorDataset = "data.tensors(x, y)",
  random_split = "ids = neap.randperm(n), then data.tensors(x[ids:narrow(1, 1, k)], ...) for each part",
}
for name, dtype in pairs(translate.dtypes) do
  if not translate.names[name] then translate.names[name] = ("x:to(%q)"):format(dtype) end
end
for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8" } do
  translate.names[dtype] = ("the string %q"):format(dtype)
end

--- Methods of modules.
translate.modules = {
  cuda = 'module:to("cuda")', cpu = 'module:to("cpu")', double = 'module:to("float64")', half = 'module:to("float16")',
  named_children = "module:named_modules()", register_buffer = "self.name = nn.Buffer(t)",
  register_parameter = "self.name = nn.Parameter(t)", add_module = "self.name = module",
  register_forward_hook = "a forward of your own that calls the module",
}

--- Methods and fields of neap.cuda.Stream and neap.cuda.Event.
translate.streams = {
  wait_stream = "stream:wait(other)",
  wait_event = "stream:wait(other), of the stream that the event was recorded on; tensors wait by themselves",
  record_event = "stream(event.record, event)", with = "stream(fn, ...) or local _ <close> = stream:enter()",
}

--- Fields of a neap.Function and of its ctx.
translate.functions = { apply = "a call of the class: Name(x)", saved_tensors = "ctx:saved()" }

--- Fields of optimizers.
translate.optimizers = { param_groups = "opt.groups", state = "opt:state_dict()" }

--- Options.
translate.options = {
  unbiased = "correction = 0 for unbiased = False", alpha = "x + y * alpha", axis = "dim, by position",
  rounding_mode = "a // b for floor, (a / b):trunc() for trunc", decimals = "(x * 100):round() / 100",
  betas = "beta1 and beta2", line_search_fn = "line_search", num_classes = "classes, by position",
  eta_min = "min", T_max = "total", total_iters = "total", step_size = "every", gamma = "factor", milestones = "at",
  non_blocking = "nothing: x:to(device)", pin_memory = "nothing: a map or the loop moves the batch with x:to(device)",
  collate_fn = "map, a function of the batch", out = "y:copy_(result)",
}

--- "; here PyTorch's 'long' is x:to("int64")", or nil.
-- @param kind the table to look in: "names", "modules", "streams", "functions", "optimizers", "options" or "dtypes"
function translate.text(kind, name)
  local found = translate[kind][name]
  return found and ("; here PyTorch's '%s' is %s"):format(name, kind == "dtypes" and ("%q"):format(found) or found)
end

return translate
