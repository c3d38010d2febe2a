/* emu_memory.cpp - device, pinned and pageable memory of the emulated devices, and copies between them.
 *
 * Without a sanitizer each device allocation has pages of its own and ends at their end, as far as its alignment of
 * 256 bytes allows: what runs past it faults, or changes the bytes behind it. Those are looked at after each launch that
 * was given a pointer into the allocation, in turns after the others, and when it is freed. A process has a limited
 * number of mappings: beyond `mapped_limit` allocations, further ones have bytes behind them alone. With a sanitizer it is an ordinary allocation with that sanitizer's red zones. */
#include "state.h"

#include <sys/mman.h>

namespace emu
{

constexpr size_t page = 4096, alignment = 256;
constexpr int others_checked = 4;
constexpr size_t mapped_limit = 8192;
static size_t n_mapped;

std::map<uintptr_t, Memory> memory;

void *map_pages(size_t bytes)
{
    void *p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) report("host memory", nullptr, 0, "the host has no %zu bytes", bytes);
    return p;
}

static Memory *find(const void *p, size_t *offset)
{
    auto it = memory.upper_bound((uintptr_t)p);
    if (it == memory.begin()) return nullptr;
    --it;
    *offset = (uintptr_t)p - it->first;
    return *offset < it->second.bytes || *offset == 0 ? &it->second : nullptr;
}

bool is_device_memory(const void *p, size_t bytes)
{
    size_t offset;
    const Memory *m = find(p, &offset);
    return m && m->kind == Kind::device && bytes <= m->bytes - offset;
}

/* For reports of faults. */
const char *memory_at(const void *p)
{
    static char text[100];
    for (auto &m : memory)
        if (m.second.map && (const char *)p >= m.second.map - page &&
            (const char *)p < m.second.map + m.second.map_bytes + page) {
            bool inside = (uintptr_t)p >= m.first && (uintptr_t)p < m.first + m.second.bytes;
            snprintf(text, sizeof text, "%s %zu bytes at %p of device %d",
                     inside ? "which it may not:" : "outside the", m.second.bytes, (void *)m.first,
                     m.second.device);
            return text;
        }
    return "which is nothing";
}

static void protect(int device, int how)
{
    for (auto &m : memory)
        if (m.second.map && m.second.device == device) mprotect(m.second.map, m.second.map_bytes, how);
}

void guard(int device, bool open)
{
    static int depth[max_devices];
    if (!settings().guard || device < 0) return;
    for (int d = 0; d < max_devices; d++) {
        if (d != device && !devices[device].peers[d]) continue;
        if (open && depth[d]++ == 0) protect(d, PROT_READ | PROT_WRITE);
        if (!open && --depth[d] == 0) protect(d, PROT_NONE);
    }
}

/* What lies behind an allocation that ends at p: NaN for whoever reads it, as 16, 32 or 64 bits, and no NaN that
 * kernels write. */
static const char *tail_of(const char *p)
{
    static char bytes[2 * alignment + 1];
    if (!bytes[0])
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i % 2 ? 0xff : 0xf1);
    return bytes + (uintptr_t)p % 2;
}

/* Ends at the end of its pages, as far as alignment allows, so that what reads or writes past it faults or is seen. */
static char *device_pages(size_t bytes, Memory *m)
{
    const size_t room = (bytes + alignment - 1) / alignment * alignment;
    const bool mapped = !sanitized && (n_mapped < mapped_limit || settings().guard);
    m->tail = sanitized ? 0 : mapped ? room - bytes : room - bytes + alignment;
    void *p = nullptr;
    if (mapped) {
        m->map_bytes = (bytes + page - 1) / page * page;
        char *all = (char *)map_pages(m->map_bytes + 2 * page);
        mprotect(all, page, PROT_NONE);
        m->map = all + page;
        mprotect(m->map + m->map_bytes, page, PROT_NONE);
        p = m->map + m->map_bytes - room;
        n_mapped++;
    } else if (posix_memalign(&p, alignment, bytes + m->tail)) {
        return nullptr;
    }
    memcpy((char *)p + bytes, tail_of((char *)p + bytes), m->tail);
    return (char *)p;
}

static void give_pages(void *p, const Memory *m)
{
    if (!m->map) return free(p);
    munmap(m->map - page, m->map_bytes + 2 * page);
    n_mapped--;
}

static void check_tail(const char *p, const Memory *m)
{
    if (memcmp(p + m->bytes, tail_of(p + m->bytes), m->tail) != 0)
        report("overrun", nullptr, 0, "something wrote past the end of %zu bytes of global memory", m->bytes);
}

std::vector<uintptr_t> allocations_in(const void *arguments, size_t bytes)
{
    std::vector<uintptr_t> found;
    for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
        uintptr_t word;
        size_t offset;
        memcpy(&word, (const char *)arguments + i, sizeof word);
        if (find((const void *)word, &offset)) found.push_back(word - offset);
    }
    return found;
}

void check_tails(int device, const std::vector<uintptr_t> &of)
{
    static uintptr_t last; /* whose turn it was */
    for (uintptr_t p : of) {
        auto it = memory.find(p);
        if (it != memory.end()) check_tail((const char *)p, &it->second);
    }
    auto it = memory.upper_bound(last);
    for (int i = 0; i < others_checked; i++, ++it) {
        if (it == memory.end() && (it = memory.begin()) == memory.end()) return;
        last = it->first;
        if (it->second.device == device) check_tail((const char *)last, &it->second);
    }
}

void check_all_tails(int device)
{
    for (auto &m : memory)
        if (m.second.device == device) check_tail((const char *)m.first, &m.second);
}

} // namespace emu

using namespace emu;

/* ---- allocation */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    Locked l;
    *p = nullptr;
    catch_faults();
    if (cudaError_t e = refused(cudaErrorMemoryAllocation)) return e;
    if (!is_device(current_device)) return fail(cudaErrorNoDevice);
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    if (bytes == 0) return cudaSuccess;
    Device *d = &devices[current_device];
    if (bytes > settings().memory - d->used) return fail(cudaErrorMemoryAllocation);
    Memory m = {bytes, Kind::device, current_device, nullptr, 0, 0};
    char *at = device_pages(bytes, &m);
    if (!at) return fail(cudaErrorMemoryAllocation);
    memset(at, 0xff, bytes);
    d->used += bytes;
    memory[(uintptr_t)at] = m;
    if (settings().guard) mprotect(m.map, m.map_bytes, PROT_NONE);
    *p = at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    Locked l;
    if (!p) return cudaSuccess;
    auto it = memory.find((uintptr_t)p);
    if (it == memory.end() || it->second.kind != Kind::device) return fail(cudaErrorInvalidValue);
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    const Memory m = it->second;
    for (Stream *s : streams)
        if (s->device == m.device) drain(s);
    guard(m.device, true);
    check_tail((const char *)p, &m);
    guard(m.device, false);
    devices[m.device].used -= m.bytes;
    memory.erase(it);
    give_pages(p, &m);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    Locked l;
    *p = nullptr;
    if (cudaError_t e = refused(cudaErrorMemoryAllocation)) return e;
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    if (bytes == 0) return cudaSuccess;
    if (bytes > settings().pinned || posix_memalign(p, page, bytes)) return fail(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes);
    memory[(uintptr_t)*p] = {bytes, Kind::pinned, current_device, nullptr, 0, 0};
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

static cudaError_t forget(void *p, Kind kind)
{
    Locked l;
    auto it = memory.find((uintptr_t)p);
    if (it == memory.end() || it->second.kind != kind) return fail(cudaErrorInvalidValue);
    memory.erase(it); /* nothing promises that this waits for copies: they report it then */
    if (kind == Kind::pinned) free(p);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) { return p ? forget(p, Kind::pinned) : cudaSuccess; }
cudaError_t cudaHostUnregister(void *p) { return forget(p, Kind::registered); }
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    Locked l;
    size_t offset;
    if (!p || bytes == 0 || find(p, &offset)) return fail(cudaErrorInvalidValue);
    memory[(uintptr_t)p] = {bytes, Kind::registered, current_device, nullptr, 0, 0};
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    Locked l;
    if (cudaError_t e = refused(cudaErrorUnknown)) return e;
    *total = settings().memory;
    *free = *total - devices[current_device].used;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    Locked l;
    size_t offset;
    const Memory *m = find(p, &offset);
    *a = {cudaMemoryTypeUnregistered, -2, nullptr, const_cast<void *>(p)};
    if (!m) return cudaSuccess;
    a->type = m->kind == Kind::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    a->device = m->device;
    a->devicePointer = const_cast<void *>(p);
    if (m->kind == Kind::device) a->hostPointer = nullptr;
    return cudaSuccess;
}

/* Copies now, with the devices of both ends open. */
static void copy_now(void *dst, const void *src, size_t bytes, int dst_device, int src_device)
{
    guard(dst_device, true);
    guard(src_device, true);
    memmove(dst, src, bytes);
    guard(dst_device, false);
    guard(src_device, false);
}

static bool side(const void *p, size_t bytes, int *device, bool *pageable)
{
    size_t offset;
    const Memory *m = find(p, &offset);
    *device = m && m->kind == Kind::device ? m->device : -1;
    *pageable = !m;
    return !m || bytes <= m->bytes - offset;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    Locked l;
    Stream *s = stream_of(stream);
    int to, from;
    bool to_pageable, from_pageable;
    if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t e = refused(cudaErrorUnknown, s->device)) return e;
    if (!side(dst, bytes, &to, &to_pageable) || !side(src, bytes, &from, &from_pageable))
        return fail(cudaErrorInvalidValue);
    if (kind != cudaMemcpyDefault) {
        bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (to_device != (to >= 0) || from_device != (from >= 0)) return fail(cudaErrorInvalidValue);
    }
    if (bytes == 0) return cudaSuccess;
    if (s->capture && (to_pageable || from_pageable)) {
        s->capture->invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    if (from_pageable && !to_pageable) { /* staged: the caller may change it at once */
        auto staged = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + bytes);
        give(s, [=] { copy_now(dst, staged->data(), bytes, to, -1); });
        return cudaSuccess;
    }
    give(s, [=] {
        size_t at;
        if ((to_pageable || find(dst, &at)) && (from_pageable || find(src, &at)))
            copy_now(dst, src, bytes, to, from);
        else
            report("freed", nullptr, 0, "a copy of %zu bytes comes after the host's memory was freed", bytes);
    });
    if (to_pageable) drain(s); /* the call waits */
    return to_pageable ? survived(s->device) : cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int, const void *src, int, size_t bytes, cudaStream_t stream)
{
    return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    Locked l;
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    if (e == cudaSuccess) drain(&devices[current_device].null);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    Locked l;
    Stream *s = stream_of(stream);
    int device;
    bool pageable;
    if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle);
    if (cudaError_t e = refused(cudaErrorUnknown, s->device)) return e;
    if (!side(p, bytes, &device, &pageable) || pageable) return fail(cudaErrorInvalidValue);
    give(s, [=] {
        guard(device, true);
        memset(p, value, bytes);
        guard(device, false);
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    Locked l;
    if (capturing()) return fail(cudaErrorStreamCaptureUnsupported);
    return cudaMemsetAsync(p, value, bytes, nullptr);
}
