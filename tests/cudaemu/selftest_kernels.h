/* selftest_kernels.h - kernels that are right, each with the mistakes that people make in it.
 *
 * `bug` is a template parameter: 0 is the right kernel, other values leave out or change the one thing their name
 * says. check_detectors.sh expects every mistake to be found by the detector it names, and the right kernels to be
 * found right by all of them, under nvcc's compiler, too. */
#ifndef NP_SELFTEST_KERNELS_H
#define NP_SELFTEST_KERNELS_H

#include "cuda/walk.h"

enum Bug {
    none,
    no_barrier,
    no_trailing_barrier,
    not_atomic,
    overrun,
    misaligned,
    divergent,
    early_exit,
    wrong_mask,
    own_mask,
    ended_lane,
    bad_source,
    uninitialised,
    write_past,
    read_past,
    static_limit
};

/* ---- y[block] = sum of the block's 256 elements of x (n); by a tree in shared memory */
template <Bug bug> __global__ void block_sum(float *y, const float *x, int n)
{
    NP_SHARED(float, s, [256]);
    const int t = (int)threadIdx.x, i = (int)(blockIdx.x * blockDim.x) + t;
    if (bug == early_exit && i >= n) return;
    if (bug != uninitialised || t % 2 == 0) s[bug == overrun ? t + 1 : t] = i < n ? x[i] : 0.0f;
    if (bug == divergent && t < 128) __syncthreads();
    else __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) s[t] += s[t + half];
        if (bug != no_barrier) __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = s[0];
}

/* ---- the same by shuffles: one value a warp, 32 lanes */
template <Bug bug> NP_DEVICE float warp_sum(float v)
{
    const unsigned lane = threadIdx.x % 32;
    const unsigned all = bug == own_mask                  ? 0x0000ffffu
                         : bug == wrong_mask && lane == 5 ? 0xfffffff0u
                                                          : 0xffffffffu;
    if (bug == ended_lane && lane == 31) return v;
    for (int d = bug == own_mask ? 8 : 16; d > 0; d /= 2) v += __shfl_xor_sync(all, v, d);
    if (bug == bad_source) {
        if (lane < 16) v = __shfl_sync(0x0000ffffu, v, 20);
        __syncwarp();
    }
    return v;
}
template <Bug bug> __global__ void warp_sums(float *y, const float *x)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = warp_sum<bug>(x[i]);
    if (threadIdx.x % 32 == 0) y[i / 32] = v;
}

/* ---- neighbours in a warp exchange through shared memory, ordered by __syncwarp alone */
template <Bug bug> __global__ void warp_reverse(float *y, const float *x)
{
    NP_SHARED(float, s, [128]);
    const unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = x[i];
    if (bug != no_barrier) __syncwarp();
    y[i] = s[t ^ 31];
}

/* ---- y (n,m) = x (m,n) transposed, by tiles of 32 x 32, 8 rows of lanes */
template <Bug bug> __global__ void transpose(float *y, const float *x, int m, int n)
{
    NP_SHARED(float, tile, [32][33]);
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y, bx = (int)blockIdx.x * 32,
              by = (int)blockIdx.y * 32;
    for (int r = ty; r < 32; r += 8)
        if (by + r < m && bx + tx < n) tile[r][tx] = x[(by + r) * n + bx + tx];
    if (bug != no_barrier) __syncthreads();
    for (int r = ty; r < 32; r += 8)
        if (bx + r < n && by + tx < m) y[(bx + r) * m + by + tx] = tile[tx][r];
}

/* ---- softmax over rows of d, 128 lanes a row; one shared buffer serves both reductions */
template <Bug bug> NP_DEVICE float block_reduce(float v, bool largest, float *s)
{
    for (int d = 16; d > 0; d /= 2) {
        float o = __shfl_xor_sync(0xffffffffu, v, d);
        v = largest ? fmaxf(v, o) : v + o;
    }
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    if (bug != no_barrier) __syncthreads();
    v = s[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) v = largest ? fmaxf(v, s[w]) : v + s[w];
    if (bug != no_trailing_barrier) __syncthreads(); /* s is used again */
    return v;
}
template <Bug bug> __global__ void softmax_rows(float *y, const float *x, int d)
{
    NP_SHARED(float, s, [4]);
    const float *row = x + (size_t)blockIdx.x * d;
    float *out = y + (size_t)blockIdx.x * d, high = -INFINITY, sum = 0;
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) high = fmaxf(high, row[i]);
    high = block_reduce<bug>(high, true, s);
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) sum += expf(row[i] - high);
    sum = block_reduce<bug>(sum, false, s);
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) out[i] = expf(row[i] - high) / sum;
}

/* ---- y[ids[i]] += x[i] */
template <Bug bug> __global__ void scatter_add(float *y, const int *ids, const float *x, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    if (bug == not_atomic) y[ids[i]] += x[i];
    else atomicAdd(&y[ids[i]], x[i]);
}

/* ---- y[0] = sum of x (n): the block that comes last adds the partial sums */
template <Bug bug> __global__ void total(float *y, float *partial, unsigned *n_done, const float *x, int n)
{
    NP_SHARED(float, s, [4]);
    NP_SHARED(unsigned, ticket, [1]);
    float v = 0;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x))
        v += x[i];
    v = block_reduce<none>(v, false, s);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
        __threadfence();
        if (bug == not_atomic) ticket[0] = (*n_done)++;
        else ticket[0] = atomicAdd(n_done, 1u);
    }
    __syncthreads();
    if (ticket[0] != gridDim.x - 1) return;
    v = threadIdx.x < gridDim.x ? *(volatile float *)&partial[threadIdx.x] : 0.0f;
    v = block_reduce<none>(v, false, s);
    if (threadIdx.x == 0) y[0] = v;
}

/* ---- the words of a Philox range */
static __global__ void philox_words(uint32_t *y, np_rng_range range, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = np_rng_bits(range, (uint64_t)i);
}

/* ---- c (n,n) = a (n,n) b (n,n) by tiles of 16 in dynamic shared memory; n is a multiple of 16 */
template <Bug bug> __global__ void matmul_tiles(float *c, const float *a, const float *b, int n)
{
    float *ta = np_dynsh<float>(), *tb = ta + 16 * 16;
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y, row = (int)blockIdx.y * 16 + ty,
              col = (int)blockIdx.x * 16 + tx;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        ta[ty * 16 + tx] = a[row * n + k + tx];
        tb[(bug == overrun ? 1 : 0) + ty * 16 + tx] = b[(k + ty) * n + col];
        if (bug != no_barrier) __syncthreads();
        for (int i = 0; i < 16; i++) sum += ta[ty * 16 + i] * tb[i * 16 + tx];
        if (bug != no_trailing_barrier) __syncthreads();
    }
    c[row * n + col] = sum;
}

/* ---- y = 2 x, four elements a lane */
template <Bug bug> __global__ void twice(float *y, const float *x, int n)
{
    const int i = 4 * (int)(blockIdx.x * blockDim.x + threadIdx.x), off = bug == write_past ? 4 : 0;
    if (bug != read_past && i + 3 >= n) return;
    np_vec<float, 4> v = np_vload<4>(x + i + (bug == misaligned ? 1 : 0));
    for (int k = 0; k < 4; k++) v.v[k] *= 2;
    if (i + 3 < n) np_vstore(y + i + off, v);
}
/* The same by the compiler's own 16-byte type, which no helper checks. */
template <Bug bug> __global__ void twice_raw(float *y, const float *x, int n)
{
    const int i = 4 * (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 >= n) return;
    float4 v = *(const float4 *)(x + i + (bug == misaligned ? 1 : 0));
    v.x *= 2, v.y *= 2, v.z *= 2, v.w *= 2;
    *(float4 *)(y + i) = v;
}

/* ---- y = x / 2 in 16 bits */
template <class T> __global__ void halve(T *y, const T *x, int n)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x))
        np_narrow(&y[i], np_widen(x[i]) * 0.5f);
}

/* ---- every vote, shuffle and warp reduction once */
static __global__ void warp_words(unsigned *y /* (12,32) */)
{
    const unsigned lane = threadIdx.x, all = 0xffffffffu;
    const int p = lane % 3 == 0;
    int same;
    y[0 * 32 + lane] = __ballot_sync(all, p);
    y[1 * 32 + lane] = (unsigned)(__any_sync(all, p) * 2 + __all_sync(all, p));
    y[2 * 32 + lane] = __match_any_sync(all, lane / 8);
    y[3 * 32 + lane] = __match_all_sync(all, 7, &same);
    y[3 * 32 + lane] += (unsigned)same; /* all ones, and 1: 0 */
    y[4 * 32 + lane] = __shfl_up_sync(all, lane, 3, 8);
    y[5 * 32 + lane] = __shfl_down_sync(all, lane, 3, 8);
    y[6 * 32 + lane] = __shfl_sync(all, lane, 11, 8);
    y[7 * 32 + lane] = __reduce_add_sync(all, lane);
    y[8 * 32 + lane] = (unsigned)__reduce_min_sync(all, (int)lane - 5);
    y[9 * 32 + lane] = __reduce_xor_sync(all, lane * lane);
    unsigned part = 0;
    if (lane < 16) part = __ballot_sync(0x0000ffffu, lane & 1); /* a part of the warp, then all of it */
    y[10 * 32 + lane] = __shfl_xor_sync(all, part, 16);
    y[11 * 32 + lane] = (unsigned)__syncthreads_count(p);
}

static __global__ void set(float *y, float v, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = v;
}
static __global__ void add(float *y, const float *x, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] += x[i];
}

/* ---- where the elements at n places are, in two operands: y (n,2) */
static __global__ void walk_to(int64_t *y, const int64_t *places, np_walk<2> w, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int64_t at[2];
    if (i >= n) return;
    w.at(places[i], at);
    y[2 * i] = at[0], y[2 * i + 1] = at[1];
}

/* ---- as much dynamic shared memory as a block may have, and some static besides */
template <Bug bug> __global__ void much_shared(float *y, int n)
{
    float *s = np_dynsh<float>();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) s[i] = (float)i;
    __syncthreads();
    if (bug == static_limit) {
        NP_SHARED(float, more, [256]);
        more[threadIdx.x % 256] = s[0];
        __syncthreads();
        s[0] += more[0];
    }
    if (threadIdx.x == 0) y[0] = s[n - 1];
}

#endif
