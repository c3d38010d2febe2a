/* selftest.cu - runs one kernel of selftest_kernels.h, or one piece of the runtime API, and compares with the host.
 *
 *   selftest                 all right ones; the last line is "N passed, N failed"
 *   selftest NAME            that one; the names of wrong ones begin with "bug_"
 *   selftest list            the names
 *
 * Status 0: right, 1: wrong result, 77: no device. It is an ordinary CUDA program: nvcc makes one for a GPU of it. */
#include "selftest_kernels.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define TRY(call) \
    do { \
        cudaError_t e_ = (call); \
        if (e_ != cudaSuccess) { \
            printf("%s:%d: %s\n", "selftest.cu", __LINE__, cudaGetErrorName(e_)); \
            exit(1); \
        } \
    } while (0)

static cudaStream_t stream;

/* n elements on the device. */
template <class T> struct Buffer {
    T *p = nullptr;
    size_t n;
    explicit Buffer(size_t count) : n(count) { TRY(cudaMalloc(&p, n * sizeof(T))); }
    explicit Buffer(const std::vector<T> &v) : Buffer(v.size())
    {
        TRY(cudaMemcpyAsync(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice, stream));
    }
    Buffer(const Buffer &) = delete;
    ~Buffer() { cudaFree(p); }
    void zero() { TRY(cudaMemsetAsync(p, 0, n * sizeof(T), stream)); }
    std::vector<T> host()
    {
        std::vector<T> v(n);
        TRY(cudaMemcpyAsync(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
        TRY(cudaStreamSynchronize(stream));
        return v;
    }
};

static std::vector<float> numbers(size_t n) /* small, not round, different */
{
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++) v[i] = (float)((i * 7919 + 13) % 1009) / 1009.0f - 0.4f;
    return v;
}

static bool near(const std::vector<float> &got, const std::vector<double> &want)
{
    for (size_t i = 0; i < want.size(); i++)
        if (!(std::fabs(got[i] - want[i]) <= 1e-5 * (1 + std::fabs(want[i])))) {
            printf("wrong result: [%zu] is %g, not %g\n", i, (double)got[i], want[i]);
            return false;
        }
    return true;
}

template <Bug bug> static bool test_block_sum()
{
    const int n = 1000, blocks = 4;
    auto x = numbers(n);
    std::vector<double> want(blocks);
    for (int i = 0; i < n; i++) want[i / 256] += x[i];
    Buffer<float> dx(x), y(blocks);
    TRY(np_launch(block_sum<bug>, blocks, 256, 0, stream, y.p, dx.p, n));
    return near(y.host(), want);
}

template <Bug bug> static bool test_warp_sums()
{
    const int n = 256;
    auto x = numbers(n);
    std::vector<double> want(n / 32);
    for (int i = 0; i < n; i++) want[i / 32] += x[i];
    Buffer<float> dx(x), y(n / 32);
    TRY(np_launch(warp_sums<bug>, 2, 128, 0, stream, y.p, dx.p));
    return near(y.host(), want);
}

template <Bug bug> static bool test_warp_reverse()
{
    const int n = 256;
    auto x = numbers(n);
    std::vector<double> want(n);
    for (int i = 0; i < n; i++) want[i] = x[i ^ 31];
    Buffer<float> dx(x), y(n);
    TRY(np_launch(warp_reverse<bug>, 2, 128, 0, stream, y.p, dx.p));
    return near(y.host(), want);
}

template <Bug bug> static bool test_transpose()
{
    const int m = 70, n = 45;
    auto x = numbers(m * n);
    std::vector<double> want(m * n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) want[j * m + i] = x[i * n + j];
    Buffer<float> dx(x), y(m * n);
    TRY(np_launch(transpose<bug>, dim3(2, 3), dim3(32, 8), 0, stream, y.p, dx.p, m, n));
    return near(y.host(), want);
}

template <Bug bug> static bool test_softmax()
{
    const int rows = 6, d = 300;
    auto x = numbers(rows * d);
    std::vector<double> want(rows * d);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < d; i++) sum += std::exp((double)x[r * d + i]);
        for (int i = 0; i < d; i++) want[r * d + i] = std::exp((double)x[r * d + i]) / sum;
    }
    Buffer<float> dx(x), y(rows * d);
    TRY(np_launch(softmax_rows<bug>, rows, 128, 0, stream, y.p, dx.p, d));
    return near(y.host(), want);
}

template <Bug bug> static bool test_scatter()
{
    const int n = 1000, m = 7;
    auto x = numbers(n);
    std::vector<int> ids(n);
    std::vector<double> want(m);
    for (int i = 0; i < n; i++) want[ids[i] = i * i % m] += x[i];
    Buffer<float> dx(x), y(m);
    Buffer<int> di(ids);
    y.zero();
    TRY(np_launch(scatter_add<bug>, 8, 128, 0, stream, y.p, di.p, dx.p, n));
    return near(y.host(), want);
}

template <Bug bug> static bool test_total()
{
    const int n = 5000, blocks = 9;
    auto x = numbers(n);
    std::vector<double> want(1);
    for (float v : x) want[0] += v;
    Buffer<float> dx(x), y(1), partial(blocks);
    Buffer<unsigned> n_done(1);
    n_done.zero();
    TRY(np_launch(total<bug>, blocks, 128, 0, stream, y.p, partial.p, n_done.p, dx.p, n));
    return near(y.host(), want);
}

static bool test_philox()
{
    const int n = 1000;
    const np_rng_range range = {42, 7};
    Buffer<uint32_t> y(n);
    TRY(np_launch(philox_words, 8, 128, 0, stream, y.p, range, n));
    auto got = y.host();
    uint32_t zero[4];
    np_philox(0, 0, zero); /* the check value of the method's authors */
    bool ok =
        zero[0] == 0x6627e8d5u && zero[1] == 0xe169c58du && zero[2] == 0xbc57ac4cu && zero[3] == 0x9b00dbd8u;
    for (int i = 0; i < n; i++) ok = ok && got[i] == np_rng_bits(range, (uint64_t)i);
    if (!ok) printf("wrong result: words differ\n");
    return ok;
}

/* Places of operands too large for memory: (2, 2^33 + 1, 3), and the second one's columns far apart. */
static bool test_walk()
{
    const int64_t rows = ((int64_t)1 << 33) + 1, far = (int64_t)1 << 40;
    np_walk<2> w = {};
    w.ndim = 3, w.n = 2 * rows * 3;
    w.size[0] = 3, w.size[1] = rows, w.size[2] = 2;
    w.stride[0][0] = 1, w.stride[0][1] = 3, w.stride[0][2] = 3 * rows;
    w.stride[1][0] = far, w.stride[1][1] = 1, w.stride[1][2] = 0;
    std::vector<int64_t> places = {0, 1, 3, 7, w.n - 1, 3 * rows - 1, 3 * rows};
    for (int bits = 31; bits < 35; bits++)
        for (int by = -4; by <= 4; by++) places.push_back(((int64_t)1 << bits) + by);
    Buffer<int64_t> at(places), y(2 * places.size());
    TRY(np_launch(walk_to, 1, 64, 0, stream, y.p, at.p, w, (int)places.size()));
    auto got = y.host();
    for (size_t k = 0; k < places.size(); k++) {
        const int64_t i = places[k], other = i % 3 * far + i / 3 % rows;
        if (got[2 * k] != i || got[2 * k + 1] != other) {
            printf("wrong result: place %lld is at %lld and %lld, not %lld\n", (long long)i,
                   (long long)got[2 * k], (long long)got[2 * k + 1], (long long)other);
            return false;
        }
    }
    return true;
}

template <Bug bug> static bool test_matmul()
{
    const int n = 48;
    auto a = numbers(n * n), b = numbers(n * n);
    std::vector<double> want(n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            for (int k = 0; k < n; k++) want[i * n + j] += (double)a[i * n + k] * b[k * n + j];
    Buffer<float> da(a), db(b), c(n * n);
    TRY(np_launch(matmul_tiles<bug>, dim3(3, 3), dim3(16, 16), 2048, stream, c.p, da.p, db.p, n));
    return near(c.host(), want);
}

template <Bug bug, bool raw = false> static bool test_twice()
{
    const int n =
        1000 + (bug == write_past || bug == read_past ? 24 : 0); /* whole allocation units, then the end */
    auto x = numbers(n);
    std::vector<double> want(n);
    for (int i = 0; i < n; i++) want[i] = 2.0 * x[i];
    Buffer<float> dx(x), y(n);
    const dim3 grid = bug == read_past ? 3 : 2;
    if (raw) TRY(np_launch(twice_raw<bug>, grid, 128, 0, stream, y.p, dx.p, n));
    else TRY(np_launch(twice<bug>, grid, 128, 0, stream, y.p, dx.p, n));
    return near(y.host(), want);
}

template <class T> static bool test_halve()
{
    const int n = 65536;
    std::vector<T> x(n);
    for (int i = 0; i < n; i++) x[i].bits = (uint16_t)i;
    Buffer<T> dx(x), y(n);
    TRY(np_launch(halve<T>, 8, 256, 0, stream, y.p, dx.p, n));
    auto got = y.host();
    for (int i = 0; i < n; i++) {
        float v = np_widen(x[i]) * 0.5f;
        T want;
        np_narrow(&want, v);
        if (v == v ? got[i].bits != want.bits : !(np_widen(got[i]) != np_widen(got[i]))) {
            printf("wrong result: half of 0x%04x is 0x%04x, not 0x%04x\n", i, got[i].bits, want.bits);
            return false;
        }
    }
    return true;
}

static bool test_warp_words()
{
    Buffer<unsigned> y(12 * 32);
    TRY(np_launch(warp_words, 1, 32, 0, stream, y.p));
    auto got = y.host();
    unsigned thirds = 0, squares = 0;
    for (unsigned i = 0; i < 32; i++) thirds |= (i % 3 == 0 ? 1u : 0u) << i, squares ^= i * i;
    for (unsigned i = 0; i < 32; i++) {
        const unsigned in8 = i % 8;
        const unsigned want[12] = {
            thirds,        2,   0xffu << (i / 8 * 8), 0u,      in8 >= 3 ? i - 3 : i,  in8 < 5 ? i + 3 : i,
            i / 8 * 8 + 3, 496, (unsigned)-5,         squares, i < 16 ? 0u : 0xaaaau, 11};
        for (int k = 0; k < 12; k++)
            if (got[k * 32 + i] != want[k]) {
                printf("wrong result: row %d lane %u is %x, not %x\n", k, i, got[k * 32 + i], want[k]);
                return false;
            }
    }
    return true;
}

/* ---- the runtime: streams, events, graphs, errors */

/* A side stream makes x, the main one adds it to y: the event between them is what makes it right. */
template <bool with_event> static bool test_event()
{
    const int n = 64;
    cudaStream_t side;
    cudaEvent_t made, used;
    float *pinned;
    bool ok = true;
    TRY(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    TRY(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    TRY(cudaHostAlloc((void **)&pinned, n * sizeof(float), cudaHostAllocDefault));
    {
        Buffer<float> x(n), y(n);
        y.zero();
        for (int i = 1; i <= 4; i++) {
            TRY(cudaStreamWaitEvent(side, used, 0));
            TRY(np_launch(set, 1, 64, 0, side, x.p, i, n));
            TRY(cudaEventRecord(made, side));
            if (with_event) TRY(cudaStreamWaitEvent(stream, made, 0));
            TRY(np_launch(add, 1, 64, 0, stream, y.p, x.p, n));
            TRY(cudaEventRecord(used, stream));
        }
        TRY(cudaMemcpyAsync(pinned, y.p, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
        TRY(cudaStreamSynchronize(stream));
        if (pinned[0] != 10 || pinned[n - 1] != 10) {
            printf("wrong result: %g, not 10\n", (double)pinned[0]);
            ok = false;
        }
        TRY(cudaStreamSynchronize(side));
    }
    TRY(cudaFreeHost(pinned));
    TRY(cudaEventDestroy(made));
    TRY(cudaEventDestroy(used));
    TRY(cudaStreamDestroy(side));
    return ok;
}

static bool test_graph()
{
    const int n = 100;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n_nodes = 0;
    Buffer<float> x(n), y(n);
    y.zero();
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    TRY(np_launch(set, 1, 128, 0, stream, x.p, 2.5f, n));
    TRY(np_launch(add, 1, 128, 0, stream, y.p, x.p, n));
    TRY(cudaStreamEndCapture(stream, &graph));
    TRY(cudaGraphGetNodes(graph, nullptr, &n_nodes));
    TRY(cudaGraphInstantiate(&exec, graph, 0));
    TRY(cudaGraphDestroy(graph));
    for (int i = 0; i < 3; i++) TRY(cudaGraphLaunch(exec, stream));
    bool ok = near(y.host(), std::vector<double>(n, 7.5)) && n_nodes == 2;
    TRY(cudaGraphExecDestroy(exec));
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaError_t refused = cudaStreamSynchronize(stream);
    cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    (void)cudaGetLastError();
    ok = ok && refused == cudaErrorStreamCaptureUnsupported && ended == cudaErrorStreamCaptureInvalidated;
    if (!ok)
        printf("wrong result: %zu nodes, %s, %s\n", n_nodes, cudaGetErrorName(refused),
               cudaGetErrorName(ended));
    return ok;
}

static bool is(const char *what, cudaError_t got, cudaError_t want)
{
    if (got != want)
        printf("wrong result: %s is %s, not %s\n", what, cudaGetErrorName(got), cudaGetErrorName(want));
    return got == want;
}

static bool test_errors()
{
    float *p = nullptr, host[4];
    bool ok = is("1025 lanes", np_launch(set, 1, 1025, 0, stream, p, 0, 0), cudaErrorInvalidConfiguration);
    ok &= is("no block", np_launch(set, 0, 32, 0, stream, p, 0, 0), cudaErrorInvalidConfiguration);
    ok &= is("228 KiB", np_launch(set, 1, 32, 228 * 1024, stream, p, 0, 0), cudaErrorInvalidValue);
    ok &= is("what is left behind", cudaPeekAtLastError(), cudaSuccess);
    ok &= is("device 99", cudaSetDevice(99), cudaErrorInvalidDevice);
    ok &= is("the last error", cudaGetLastError(), cudaErrorInvalidDevice);
    ok &= is("the last error after that", cudaGetLastError(), cudaSuccess);
    ok &= is("too much memory", cudaMalloc(&p, (size_t)1 << 50), cudaErrorMemoryAllocation);
    TRY(cudaMalloc(&p, sizeof host));
#ifndef __CUDACC__ /* a GPU may do anything then */
    ok &= is("a copy in the wrong direction", cudaMemcpy(host, p, sizeof host, cudaMemcpyHostToDevice),
             cudaErrorInvalidValue);
#endif
    TRY(cudaFree(p));
    (void)cudaGetLastError();
    return ok;
}

template <Bug bug> static bool test_much_shared()
{
    const int n = 227 * 1024 / 4;
    Buffer<float> y(1);
    TRY(np_launch(much_shared<bug>, 1, 1024, (size_t)n * 4, stream, y.p, n));
    return near(y.host(), {(double)(n - 1)});
}

/* The host changes what it has given to a copy: at once if that was pageable memory, for what is pinned it must wait. */
template <bool pinned, bool waits> static bool test_copy_source()
{
    const int n = 64;
    float own[n] = {0}, *p = own;
    bool ok = true;
    if (pinned) TRY(cudaMallocHost(&p, n * sizeof(float)));
    for (int round = 1; round <= 6 && ok; round++) {
        Buffer<float> x(n);
        for (int i = 0; i < n; i++) p[i] = (float)round;
        TRY(cudaMemcpyAsync(x.p, p, n * sizeof(float), cudaMemcpyHostToDevice, stream));
        if (waits) TRY(cudaStreamSynchronize(stream));
        for (int i = 0; i < n; i++) p[i] = -1;
        ok = near(x.host(), std::vector<double>(n, round));
    }
    if (pinned) TRY(cudaFreeHost(p));
    return ok;
}

/* A second device has its own memory and streams; where there is none, nothing is shown. */
static bool test_two_devices()
{
    const int n = 100;
    int count = 0;
    TRY(cudaGetDeviceCount(&count));
    if (count < 2) return true;
    float *x, *y;
    cudaStream_t other;
    size_t before, after, total;
    TRY(cudaMalloc(&x, n * sizeof(float)));
    TRY(cudaSetDevice(1));
    TRY(cudaMemGetInfo(&before, &total));
    TRY(cudaMalloc(&y, 64 << 20));
    TRY(cudaMemGetInfo(&after, &total));
    TRY(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    TRY(np_launch(set, 1, 128, 0, other, y, 3.0f, n));
    TRY(cudaMemcpyPeerAsync(x, 0, y, 1, n * sizeof(float), other));
    TRY(cudaStreamSynchronize(other));
    bool ok = before - after >= (size_t)64 << 20;
    if (!ok) printf("wrong result: %zu bytes are taken\n", before - after);
    TRY(cudaSetDevice(0));
    std::vector<float> got(n);
    TRY(cudaMemcpy(got.data(), x, n * sizeof(float), cudaMemcpyDeviceToHost));
    ok = near(got, std::vector<double>(n, 3.0)) && ok;
    cudaPointerAttributes a;
    TRY(cudaPointerGetAttributes(&a, y));
    ok = ok && a.device == 1 && a.type == cudaMemoryTypeDevice;
    ok &= is("a stream of the other device", np_launch(set, 1, 32, 0, other, x, 0.0f, n),
             cudaErrorInvalidResourceHandle);
    TRY(cudaStreamDestroy(other));
    TRY(cudaFree(y));
    TRY(cudaFree(x));
    return ok;
}

static bool bug_other_device()
{
    Buffer<float> x(8);
    float *y;
    TRY(cudaSetDevice(1));
    TRY(cudaMalloc(&y, 8 * sizeof(float)));
    TRY(cudaSetDevice(0));
    TRY(np_launch(add, 1, 32, 0, stream, x.p, y, 8));
    TRY(cudaStreamSynchronize(stream));
    return true;
}

static bool bug_host_reads()
{
    Buffer<float> x(numbers(8));
    return near({*(volatile float *)x.p}, {numbers(1)[0]});
}

static const struct {
    const char *name;
    bool (*run)();
} tests[] = {
    {"block_sum", test_block_sum<none>},
    {"warp_sums", test_warp_sums<none>},
    {"warp_reverse", test_warp_reverse<none>},
    {"warp_words", test_warp_words},
    {"transpose", test_transpose<none>},
    {"softmax", test_softmax<none>},
    {"scatter", test_scatter<none>},
    {"total", test_total<none>},
    {"philox", test_philox},
    {"walk", test_walk},
    {"matmul", test_matmul<none>},
    {"twice", test_twice<none>},
    {"twice_raw", test_twice<none, true>},
    {"halve_f16", test_halve<np_f16>},
    {"halve_b16", test_halve<np_b16>},
    {"much_shared", test_much_shared<none>},
    {"event", test_event<true>},
    {"graph", test_graph},
    {"errors", test_errors},
    {"pageable_source", test_copy_source<false, false>},
    {"pinned_source", test_copy_source<true, true>},
    {"two_devices", test_two_devices},
    {"bug_sum_no_barrier", test_block_sum<no_barrier>},
    {"bug_sum_overrun", test_block_sum<overrun>},
    {"bug_sum_uninitialised", test_block_sum<uninitialised>},
    {"bug_sum_divergent", test_block_sum<divergent>},
    {"bug_sum_early_exit", test_block_sum<early_exit>},
    {"bug_warp_no_barrier", test_warp_reverse<no_barrier>},
    {"bug_warp_own_mask", test_warp_sums<own_mask>},
    {"bug_warp_wrong_mask", test_warp_sums<wrong_mask>},
    {"bug_warp_ended_lane", test_warp_sums<ended_lane>},
    {"bug_warp_bad_source", test_warp_sums<bad_source>},
    {"bug_transpose_no_barrier", test_transpose<no_barrier>},
    {"bug_softmax_no_barrier", test_softmax<no_barrier>},
    {"bug_softmax_no_trailing_barrier", test_softmax<no_trailing_barrier>},
    {"bug_matmul_no_barrier", test_matmul<no_barrier>},
    {"bug_matmul_no_trailing_barrier", test_matmul<no_trailing_barrier>},
    {"bug_matmul_overrun", test_matmul<overrun>},
    {"bug_scatter_not_atomic", test_scatter<not_atomic>},
    {"bug_total_not_atomic", test_total<not_atomic>},
    {"bug_twice_misaligned", test_twice<misaligned>},
    {"bug_twice_raw_misaligned", test_twice<misaligned, true>},
    {"bug_twice_write_past", test_twice<write_past>},
    {"bug_twice_read_past", test_twice<read_past>},
    {"bug_no_event", test_event<false>},
    {"bug_static_limit", test_much_shared<static_limit>},
    {"bug_pinned_source", test_copy_source<true, false>},
    {"bug_other_device", bug_other_device},
    {"bug_host_reads", bug_host_reads},
};

int main(int argc, char **argv)
{
    int n_devices = 0, passed = 0, failed = 0;
    const char *only = argc > 1 ? argv[1] : nullptr;
    if (only && !strcmp(only, "list")) {
        for (auto &t : tests) puts(t.name);
        return 0;
    }
    cudaError_t e = cudaGetDeviceCount(&n_devices);
    if (e != cudaSuccess || n_devices == 0) {
        printf("no device: %s\n", cudaGetErrorName(e));
        return 77;
    }
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (auto &t : tests) {
        if (only ? strcmp(only, t.name) != 0 : !strncmp(t.name, "bug_", 4)) continue;
        bool ok = t.run();
        ok ? passed++ : failed++;
        printf("%s %s\n", ok ? "ok" : "not ok", t.name);
        fflush(stdout);
    }
    TRY(cudaStreamDestroy(stream));
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
