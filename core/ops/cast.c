/* cast.c - autocast: an op whose entry says so gets its floating operands in another dtype.
 *
 * The policy is two tags of an entry: NP_CAST_LOW (products) and NP_CAST_FLOAT32 (what overflows or cancels in half
 * precision); other ops, in-place forms among them, run in the dtypes they are given. float64 takes no part: an op
 * with such an operand is left alone. A cast is an ordinary `to` that no op mode sees: recorded, so that a gradient
 * comes back in the operand's own dtype. Nothing is cached: a weight used twice is cast twice, so what an op saves
 * never depends on what ran before it, and a region's recompute saves what its forward did. Gradient formulas run
 * with the cast off (engine.c). */
#include "autograd/autograd.h"

enum { MAX_OPERANDS = 8 };

uint64_t neap_autocast_begin(neap_ctx *c, neap_dtype low, int on)
{
    if (np_pending(c)) return 0;
    if (low != NEAP_FLOAT16 && low != NEAP_BFLOAT16) {
        np_fail(c, NEAP_E_DTYPE, "autocast: the dtype must be float16 or bfloat16, got %s",
                np_dtype_name(low));
        return 0;
    }
    return np_ambient_push(c, NP_AMB_CAST, on ? 1 + (int64_t)low : 0, NULL, "autocast", NULL);
}

static neap_dtype target(const np_frame *f, int64_t cast)
{
    return f->op->tags & NP_CAST_LOW ? (neap_dtype)(cast - 1) : NEAP_FLOAT32;
}

static bool castable(const neap_tensor *t) { return t && !t->number && np_is_float((neap_dtype)t->dtype); }

bool np_cast_wanted(const np_frame *f, int64_t cast)
{
    bool wanted = false;
    if (f->n_in > MAX_OPERANDS) return false;
    for (int i = 0; i < f->n_in; i++) {
        if (!castable(f->in[i])) continue;
        if (f->in[i]->dtype == NEAP_FLOAT64) return false;
        wanted = wanted || f->in[i]->dtype != target(f, cast);
    }
    return wanted;
}

static neap_tensor *cast_to(neap_ctx *c, neap_tensor *t, neap_dtype dtype)
{
    np_frame f = {.c = c, .op = np_ops[NP_OPX_to], .in = &t, .n_in = 1};
    f.attr[0] = (np_attr){.i = dtype, .has = 1};
    c->counts[NP_OPX_to].calls++;
    return np_dispatch_below(&f, 0) ? f.out[0] : NULL;
}

bool np_cast_call(np_frame *f, int64_t cast)
{
    neap_tensor *in[MAX_OPERANDS], *const *given = f->in;
    const neap_dtype dtype = target(f, cast);
    bool ok = true;
    for (int i = 0; i < f->n_in; i++) {
        bool own = ok && castable(given[i]) && given[i]->dtype != dtype;
        in[i] = own ? cast_to(f->c, given[i], dtype) : np_hold_ref(given[i]);
        ok = ok && (in[i] || !given[i]);
    }
    f->in = in;
    ok = ok && np_dispatch_below(f, 0);
    f->in = given;
    for (int i = 0; i < f->n_in; i++) np_drop(in[i]);
    return ok;
}
