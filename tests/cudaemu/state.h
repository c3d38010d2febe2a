/* state.h - what the parts of the emulated runtime share: emu_memory.cpp, emu_streams.cpp. All of it under one lock. */
#ifndef NP_EMU_STATE_H
#define NP_EMU_STATE_H

#include "cuda_emu.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace emu
{

#if defined(__SANITIZE_ADDRESS__) || defined(NP_EMU_TSAN)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

typedef std::function<void()> Work;

struct Task {
    Work work;
    std::function<bool()> may_run; /* empty: yes */
};

struct Stream {
    int device;
    bool blocking;
    std::deque<Task> queue;
    Graph *capture = nullptr; /* what it is being recorded into */
    bool unjoined = false;    /* recorded work that no event leads back to the stream where recording began */
};

struct Moment { /* one recording of an event */
    bool done = false;
    double seconds = 0;
};
struct Event {
    int device = 0;
    std::shared_ptr<Moment> last; /* who waits for an earlier recording keeps that one */
    bool timing = true;
    Graph *capture = nullptr;
    Stream *captured_on = nullptr;
};
struct Graph {
    std::vector<Work> nodes;
    Stream *origin;
    cudaStreamCaptureMode mode;
    bool invalid = false;
};

enum class Kind { device, pinned, registered };
struct Memory {
    size_t bytes;
    Kind kind;
    int device;
    char *map; /* pages of its own, or NULL */
    size_t map_bytes, tail;
};

struct Device {
    size_t used = 0;
    bool lost = false; /* a kernel of it has faulted */
    Stream null{0, true, {}};
    std::vector<bool> peers;
};

constexpr int max_devices = 8;

extern std::recursive_mutex lock;
extern std::map<uintptr_t, Memory> memory;         /* emu_memory.cpp */
extern std::vector<Stream *> streams;              /* emu_streams.cpp; the default ones, too */
extern std::map<const void *, int> dynamic_shared; /* what kernels opted in to */
extern Device devices[max_devices];
extern thread_local int current_device;

cudaError_t fail(cudaError_t e); /* becomes the thread's last error */
/* After a wait: success, unless a kernel that was waited for has faulted. */
inline cudaError_t survived(int device)
{
    return devices[device].lost ? fail(cudaErrorIllegalAddress) : cudaSuccess;
}
/* Is this kernel, which is to run now, the one that faults? Then its device is lost. */
bool faults(int device);
inline bool is_device(int d) { return d >= 0 && d < settings().devices; }

struct Locked { /* opens every function of the API */
    std::lock_guard<std::recursive_mutex> held{lock};
    Locked();
};

void catch_faults();           /* SIGSEGV is reported; emu_report.cpp */
void *map_pages(size_t bytes); /* zeroed; aborts without memory */
/* Opens or closes the memory of a device, and of peers that it may reach, to the code that runs. Calls nest. */
void guard(int device, bool open);
/* The allocations that the words of a launch's arguments point into. */
std::vector<uintptr_t> allocations_in(const void *arguments, size_t bytes);
void check_tails(int device,
                 const std::vector<uintptr_t> &of); /* reports writes past their ends; a few others', too */
void check_all_tails(int device);
const char *memory_at(const void *p);
bool is_device_memory(const void *p, size_t bytes);

Stream *stream_of(cudaStream_t s); /* NULL: the current device's default one */
bool is_stream(const Stream *s);
void give(Stream *s, Work work); /* a lost device does not do it */
void drain(Stream *s);           /* until it is empty */
bool capturing();                /* calls that may not be recorded make what is being recorded invalid */

} // namespace emu

#endif
