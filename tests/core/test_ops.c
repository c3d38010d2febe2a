/* test_ops.c - values of every op in the registry: schema, dtypes, layouts, threads, CPU levels, devices.
 * Gradients are in test_ops_grad.c. NEAP_TEST_OP=name runs one op. */
#include "ops_harness.h"
#include "test_steps.h"

static const char *unless_in_place(const np_op *op) { return op->base ? "in place" : unless_no_samples(op); }

/* ---- schema and entry */

static void test_entry(const op_case *k)
{
    const np_op *op = impl(k->op);
    np_schema s;
    if (!np_schema_parse(op->args, &s)) fail_msg("%s: malformed schema '%s'", op->name, op->args);
    assert_ptr_equal(np_op_find(k->op->name), k->op);
    assert_ptr_equal(np_ops[k->op->index], k->op);
    const bool composite = op->tags & NP_COMPOSITE;
    if (composite != (op->parts != NULL) || composite == (op->infer != NULL) ||
        (composite && (op->grad || np_cpu_kernels[op->index][0])))
        fail_msg("%s: .parts goes with NP_COMPOSITE and is all that a composite has", op->name);
    assert_true(s.n_results >= 1 && s.n_results + s.n_aux <= NP_MAX_OUT);
    if (!(op->tags & NP_INTERNAL) && !*np_op_docs[k->op->index])
        fail_msg("%s has no doc comment", k->op->name);
    if (!(op->tags & NP_NODIFF) && !op->grad && !composite)
        fail_msg("%s has neither a gradient nor NP_NODIFF", op->name);
    if (!!(op->tags & NP_FUSED) != !!op->ref) fail_msg("%s: NP_FUSED and .ref go together", op->name);
    if (!op->sample) fail_msg("%s has no .sample", op->name);
    for (int i = 0; i < NP_MAX_SAVE && op->save[i].what != NP_SAVE_NONE; i++)
        if (op->save[i].what == NP_SAVE_IN && !s.list) assert_true(op->save[i].index < s.n_tensors);
}

/* ---- every float dtype, every layout */

/* The same inputs, dense and, where they are floating point, in float64. */
static bool widen(neap_ctx *c, const np_sampler *s, neap_tensor **wide)
{
    for (int i = 0; i < s->n_in; i++) {
        neap_tensor *t = s->in[i];
        wide[i] = NULL;
        if (!t) continue;
        bool keep = t->number || !np_is_float((neap_dtype)t->dtype);
        wide[i] = keep ? np_hold_ref(t) : np_tensor_new(c, t->st->dev, NEAP_FLOAT64, t->ndim, t->shape);
        if (!wide[i] || (!keep && !np_copy_into(c, wide[i], t))) return false;
    }
    return true;
}

static double tolerance(neap_dtype t)
{
    return t == NEAP_FLOAT64 ? 1e-10 : t == NEAP_FLOAT32 ? 3e-5 : t == NEAP_FLOAT16 ? 4e-3 : 3e-2;
}

/* Draws of another dtype are other numbers. */
static bool draws_numbers(const np_op *op)
{
    return (op->tags & NP_FACTORY) || (op->tags & NP_RANDOM && in_place(op));
}

static void check_dtype(neap_ctx *c, const op_case *k, neap_dtype t, np_size size)
{
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, t, size, i); i++) {
        neap_tensor *wide[NP_SAMPLE_MAX_IN] = {0};
        np_frame got = {0}, want = {0};
        if (usable(c, k, &s)) {
            assert_true(widen(c, &s, wide));
            neap_seed(c, 3);
            run_op(c, k->op, &s, s.in, &got);
            no_error(c, k, s.label, np_dtype_name(t));
            if (!draws_numbers(k->op)) {
                neap_seed(c, 3);
                run_op(c, impl(k->op), &s, wide, &want);
                no_error(c, k, s.label, "dense float64");
                for (int j = 0; j < n_seen(k->op, &got); j++) {
                    bool as_float = np_is_float((neap_dtype)got.out[j]->dtype);
                    assert_close(k, s.label, np_dtype_name(t), got.out[j], want.out[j],
                                 as_float ? tolerance((neap_dtype)got.out[j]->dtype) : 0);
                }
            }
            np_frame_drop(&got);
            np_frame_drop(&want);
            mark(k, COL_DTYPES, "ok");
        }
        free_all(wide, s.n_in);
        free_sample(&s);
    }
}

static void test_values(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    for (int t = NEAP_FLOAT32; t <= NEAP_BFLOAT16; t++)
        for (np_size size = NP_SMALL; size <= NP_WIDE; size++) check_dtype(c, k, (neap_dtype)t, size);
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}

/* ---- the number of threads changes no bit, of values and of gradients */

#define MAX_KEPT 64
typedef struct kept {
    neap_tensor *t[MAX_KEPT];
    int n;
} kept;

static void run_and_keep(neap_ctx *c, const op_case *k, np_size size, kept *out)
{
    np_sampler s;
    for (int i = 0; i < (size == NP_LARGE ? 1 : 8) && next_sample(c, &s, k, NEAP_FLOAT32, size, i); i++) {
        np_frame f = {0};
        neap_tensor *dx[NP_SAMPLE_MAX_IN] = {0};
        if (!usable(c, k, &s)) {
            free_sample(&s);
            continue;
        }
        neap_seed(c, 5);
        if (differentiable(k->op)) require_grads(c, &s);
        bool ok = run_op(c, k->op, &s, s.in, &f) && gradients(c, k->op, &f, &s, dx);
        no_error(c, k, s.label, "values and gradients");
        for (int j = 0; ok && j < n_seen(k->op, &f) && out->n < MAX_KEPT; j++)
            out->t[out->n++] = neap_detach(c, f.out[j]);
        for (int j = 0; j < s.n_in; j++)
            if (dx[j] && out->n < MAX_KEPT) out->t[out->n++] = np_hold_ref(dx[j]);
        np_frame_drop(&f);
        free_all(dx, s.n_in);
        free_sample(&s);
    }
}

/* Valgrind makes a call of each fused multiply-add. Under it the large samples run the baseline's kernels, which are the
 * same source and cut alike; those of the other levels run in the tests of values, and in test_products. */
static void test_threads(const op_case *k)
{
    const char *isa = getenv("NEAP_TEST_VALGRIND") ? "baseline" : "";
    neap_ctx *one = open_ctx(isa, 1), *two = open_ctx(isa, 2);
    kept a = {0}, b = {0};
    static const np_size sizes[] = {NP_SMALL, NP_LARGE};
    for (int i = 0; i < test_steps(2); i++) {
        run_and_keep(one, k, sizes[i], &a);
        run_and_keep(two, k, sizes[i], &b);
    }
    assert_int_equal(a.n, b.n);
    for (int i = 0; i < a.n; i++) assert_same_bits(k, "", "one and two threads", a.t[i], b.t[i]);
    if (a.n) mark(k, COL_THREADS, "ok");
    free_all(a.t, a.n);
    free_all(b.t, b.n);
    neap_ctx_free(one);
    neap_ctx_free(two);
}

/* ---- every CPU level gives nearly the values of the baseline */

/* The sample's floating inputs as another dtype, with values that fit into a byte. */
static void recast(neap_ctx *c, np_sampler *s, neap_dtype t)
{
    for (int i = 0; i < s->n_in; i++) {
        neap_tensor *x = s->in[i];
        if (!x || x->number || !np_is_float((neap_dtype)x->dtype)) continue;
        neap_tensor *y = np_tensor_new(c, x->st->dev, t, x->ndim, x->shape);
        assert_non_null(y);
        size_t n;
        char *p = bytes_of(c, x, &n);
        for (int64_t e = 0; e < y->numel; e++) {
            double v = trunc(20 * np_load_double((neap_dtype)x->dtype, p + (size_t)e * np_itemsize(x)));
            np_store_double(t, np_ptr(y) + (size_t)e * np_itemsize(y), t == NEAP_UINT8 ? fabs(v) : v);
        }
        free(p);
        neap_free(x);
        s->in[i] = y;
    }
}

/* Results for inputs of one dtype; NULL where the op refuses them. Internal ops refuse nothing: their callers see to
 * the dtypes. */
static void run_recast(neap_ctx *c, const op_case *k, neap_dtype t, kept *out)
{
    np_sampler s;
    for (int i = 0; i < 4 && next_sample(c, &s, k, NEAP_FLOAT32, NP_WIDE, i); i++) {
        np_frame f = {0};
        recast(c, &s, t);
        neap_seed(c, 5);
        bool ok = run_op(c, k->op, &s, s.in, &f);
        if (!ok) out->t[out->n++] = NULL;
        for (int j = 0; ok && j < n_seen(k->op, &f) && out->n < MAX_KEPT; j++)
            out->t[out->n++] = neap_detach(c, f.out[j]);
        neap_clear_error(c);
        np_frame_drop(&f);
        free_sample(&s);
    }
}

static void run_at_level(neap_ctx *c, const op_case *k, int set, kept *out)
{
    static const neap_dtype types[] = {NEAP_INT64, NEAP_INT32,   NEAP_INT8,    NEAP_UINT8,
                                       NEAP_BOOL,  NEAP_FLOAT64, NEAP_FLOAT16, NEAP_BFLOAT16};
    if (set < 2) run_and_keep(c, k, set == 0 ? NP_SMALL : NP_WIDE, out);
    else if (!(impl(k->op)->tags & NP_INTERNAL)) run_recast(c, k, types[set - 2], out);
}

static void compare_with(neap_ctx *base, neap_ctx *c, const op_case *k, int set)
{
    kept a = {0}, b = {0};
    run_at_level(base, k, set, &a);
    run_at_level(c, k, set, &b);
    assert_int_equal(a.n, b.n);
    for (int i = 0; i < a.n; i++) {
        bool exact = a.t[i] && !np_is_float((neap_dtype)a.t[i]->dtype);
        double tol = !a.t[i] || exact ? 0 : tolerance((neap_dtype)a.t[i]->dtype);
        assert_close(k, np_cpu_level_name(c->isa), "values of two CPU levels", b.t[i], a.t[i], tol);
    }
    free_all(a.t, a.n);
    free_all(b.t, b.n);
}

static void test_levels(const op_case *k)
{
    for (int level = 1; level <= np_cpu_best_level(); level++) {
        neap_ctx *base = open_ctx("baseline", 1), *c = open_ctx(np_cpu_level_name(level), 1);
        assert_int_equal(c->isa, level);
        for (int set = 0; set < 10; set++) compare_with(base, c, k, set);
        neap_ctx_free(c);
        neap_ctx_free(base);
    }
}

/* ---- integers: the values that float64 gives for them, or a clear refusal */

/* The same numbers in float64. */
static np_sampler as_float64(neap_ctx *c, const np_sampler *s)
{
    np_sampler r = *s;
    for (int i = 0; i < s->n_in; i++) {
        const neap_tensor *t = s->in[i];
        bool cast = t && !t->number && !(s->no_grad >> i & 1);
        if (t) r.in[i] = cast ? neap_to(c, s->in[i], NEAP_FLOAT64, -1) : np_hold_ref(s->in[i]);
        assert_true(!t || r.in[i]);
    }
    return r;
}

/* Sums of integers wrap around where float64 is no longer exact. */
static bool all_exact(neap_ctx *c, neap_tensor *t)
{
    size_t n;
    char *p = bytes_of(c, t, &n);
    bool exact = true;
    for (int64_t e = 0; e < t->numel && exact; e++)
        exact = fabs(np_load_double((neap_dtype)t->dtype, p + (size_t)e * np_itemsize(t))) < 0x1p53;
    free(p);
    return exact;
}

static void compare_integers(neap_ctx *c, const op_case *k, const np_sampler *s, const np_frame *got,
                             const np_frame *want)
{
    for (int j = 0; j < n_seen(k->op, got); j++) {
        const neap_dtype t = (neap_dtype)got->out[j]->dtype;
        if (np_is_float(t) || all_exact(c, want->out[j]))
            assert_close(k, s->label, "int64 and float64", got->out[j], want->out[j],
                         np_is_float(t) ? tolerance(t) : 0);
    }
}

static void test_integers(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT64, NP_SMALL, i); i++) {
        if (!usable(c, k, &s)) {
            free_sample(&s);
            continue;
        }
        recast(c, &s, NEAP_INT64);
        np_sampler wide = as_float64(c, &s);
        np_frame got = {0}, want = {0};
        neap_seed(c, 3);
        if (run_op(c, k->op, &s, s.in, &got)) {
            neap_seed(c, 3);
            if (run_op(c, impl(k->op), &wide, wide.in, &want)) compare_integers(c, k, &s, &got, &want);
            mark(k, COL_INT, "ok");
        } else {
            if (neap_error(c) != NEAP_E_DTYPE) no_error(c, k, s.label, "integers");
            mark(k, COL_INT, "E-DTYPE");
        }
        neap_clear_error(c);
        np_frame_drop(&got);
        np_frame_drop(&want);
        free_sample(&s);
        free_sample(&wide);
    }
    assert_int_equal(c->devices[0]->mem.live, 0);
    neap_ctx_free(c);
}
/* Internal ops do not check dtypes: their callers do. */
static const char *unless_floats_only(const np_op *op)
{
    const uint32_t tags = impl(op)->tags;
    return tags & NP_INTERNAL ? "internal" : draws_numbers(op) ? "random" : unless_no_samples(op);
}

/* ---- other devices: one without kernels, one that lacks only the fused ones */

static void *device_alloc(void *user, size_t bytes)
{
    (void)user;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}
static void device_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(p);
}

static np_device *add_device(neap_ctx *c, const char *name, const np_kernel_row *rows)
{
    neap_backend b = {
        .size = sizeof b, .name = name, .mem = {device_alloc, device_free, NULL, NULL}, .host_memory = true};
    b.kernels = rows;
    int d = neap_register_backend(c, &b);
    assert_true(d > 0);
    return c->devices[d];
}

static bool move_sample(neap_ctx *c, np_sampler *s, np_device *d)
{
    for (int i = 0; i < s->n_in; i++) {
        neap_tensor *t = s->in[i];
        if (!t || t->number) continue;
        neap_tensor *there = np_tensor_new(c, d, (neap_dtype)t->dtype, t->ndim, t->shape);
        if (!there || !np_copy_into(c, there, t)) return false;
        s->in[i] = there;
        neap_free(t);
    }
    return true;
}

/* Brings the sample to that device; false: nothing of it can be there. */
static bool put_on_device(neap_ctx *c, const np_op *op, np_sampler *s, np_device *d)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i] && !s->in[i]->number) return move_sample(c, s, d);
    const np_schema *schema = &np_facts(c, op)->schema;
    for (int i = 0; i < schema->n_args; i++) {
        if (schema->arg[i].type != NP_ARG_DEVICE) continue;
        s->attr[schema->arg[i].slot] = (np_attr){.i = d->index, .has = 1};
        return true;
    }
    return false;
}

static const char *how_it_ran(const np_op *op)
{
    return op->tags & NP_VIEW        ? "ok view"
           : op->tags & NP_ANYWHERE  ? "ok anywhere"
           : op->tags & NP_COMPOSITE ? "ok parts"
           : op->tags & NP_FUSED     ? "ok ref"
                                     : NULL;
}

/* An op without kernel and without .ref says so and leaves the context usable. */
static void check_bare_device(neap_ctx *c, const op_case *k)
{
    static const np_kernel_row none[] = {{NULL, NULL}};
    np_device *d = add_device(c, "bare:0", none);
    np_sampler s;
    for (int i = 0; next_sample(c, &s, k, NEAP_FLOAT32, NP_SMALL, i); i++) {
        np_frame f = {0};
        if (usable(c, k, &s) && put_on_device(c, impl(k->op), &s, d)) {
            bool ok = run_op(c, k->op, &s, s.in, &f);
            if (!ok) assert_int_equal(neap_error(c), NEAP_E_NOKERNEL);
            if (ok && !how_it_ran(impl(k->op))) fail_msg("%s ran without a kernel", k->op->name);
            mark(k, COL_DEVICE, ok ? how_it_ran(impl(k->op)) : "ok E-NOKERNEL");
            neap_clear_error(c);
            np_frame_drop(&f);
        }
        free_sample(&s);
    }
    assert_int_equal(d->mem.live, 0);
}

/* A fused op without kernel runs as its composition and gives what the kernel gives, gradients too. */
static void check_composition(neap_ctx *c, const op_case *k)
{
    np_kernel_row rows[NP_N_OPS + 1];
    int n = 0;
    for (int i = 0; i < NP_N_OPS; i++)
        if (np_cpu_kernels[i][c->isa] && !(impl(np_ops[i])->tags & NP_FUSED))
            rows[n++] = (np_kernel_row){np_ops[i]->name, np_cpu_kernels[i][c->isa]};
    rows[n] = (np_kernel_row){NULL, NULL};
    np_device *d = add_device(c, "parts:0", rows);
    np_sampler here, there;
    for (int i = 0; next_sample(c, &here, k, NEAP_FLOAT64, NP_SMALL, i); i++) {
        np_frame fh = {0}, ft = {0};
        neap_tensor *dh[NP_SAMPLE_MAX_IN] = {0}, *dt[NP_SAMPLE_MAX_IN] = {0};
        assert_true(next_sample(c, &there, k, NEAP_FLOAT64, NP_SMALL, i));
        assert_true(move_sample(c, &there, d));
        if (differentiable(k->op)) require_grads(c, &here), require_grads(c, &there);
        neap_seed(c, 3);
        bool ok = run_op(c, k->op, &here, here.in, &fh);
        neap_seed(c, 3);
        ok = ok && run_op(c, k->op, &there, there.in, &ft);
        no_error(c, k, here.label, "kernel and composition");
        for (int j = 0; ok && j < n_seen(k->op, &fh); j++)
            assert_close(k, here.label, "kernel and composition", fh.out[j], ft.out[j], 1e-9);
        ok = ok && gradients(c, k->op, &fh, &here, dh) && gradients(c, k->op, &ft, &there, dt);
        if (neap_error(c) !=
            NEAP_E_NOKERNEL) { /* the gradient may need a fused part that this device lacks */
            no_error(c, k, here.label, "gradients of kernel and composition");
            for (int j = 0; ok && j < here.n_in; j++)
                assert_close(k, here.label, "gradients of kernel and composition", dh[j], dt[j], 1e-8);
        }
        neap_clear_error(c);
        np_frame_drop(&fh);
        np_frame_drop(&ft);
        free_all(dh, here.n_in);
        free_all(dt, here.n_in);
        free_sample(&here);
        free_sample(&there);
        mark(k, COL_DEVICE, "ok ref");
    }
    assert_int_equal(d->mem.live, 0);
}

static void test_devices(const op_case *k)
{
    neap_ctx *c = open_ctx("", 1);
    if (k->op->ref) check_composition(c, k);
    check_bare_device(c, k);
    neap_ctx_free(c);
}

int main(int argc, char **argv)
{
    static const op_mode modes[] = {
        {"entry", test_entry, always, 0},
        {"values in all float dtypes and layouts", test_values, unless_no_samples, COL(DTYPES)},
        {"same bits with one and two threads", test_threads, unless_no_samples, COL(THREADS)},
        {"CPU levels agree", test_levels, unless_in_place, 0},
        {"integers give what floats give", test_integers, unless_floats_only, COL(INT)},
        {"devices without its kernel", test_devices, unless_no_samples, COL(DEVICE)},
    };
    return run_modes("ops", modes, sizeof modes / sizeof *modes, argc, argv);
}
