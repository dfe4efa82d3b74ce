// Barriers, simd-group and quad-group functions. A simd-group has 32 threads, a quad-group 4 of them.
//
// On a CPU each lane parks in msl_rt_simd with the address of its input and output; the last one to arrive runs the operation once
// for all lanes that are there. Lanes that branched elsewhere do not take part, as on a GPU. msl_simd_ptx.h has the NVIDIA half.
#pragma once
#include "msl_integer.h"
#if defined(__NVPTX__)
MSL_FN uint msl_lane() { return __nvvm_read_ptx_sreg_laneid(); }
#elif defined(MSL_LINT)
#define MSL_SIMD_WIDTH 32
uint msl_lane();
#else
#include "msl_abi.h"
MSL_FN uint msl_lane() { return msl_rt_lane(); }
#endif

// Where a collective was called.
#if defined(MSL_LINT)
#define MSL_AT const char *file = nullptr, int line = 0
#else
#define MSL_AT \
    const char *file = __builtin_FILE(), \
               int line = (__builtin_LINE() & ((1 << 20) - 1)) | (__builtin_COLUMN() < 2047 ? __builtin_COLUMN() : 2047) << 20
#endif
// Code of the runtime rather than of the kernel: the checker does not look at it.
#define MSL_UNCHECKED __attribute__((disable_sanitizer_instrumentation))

namespace metal {

enum class mem_flags : int {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_texture = 4,
    mem_threadgroup_imageblock = 8,
    mem_object_data = 16,
};
MSL_FN constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
MSL_FN constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((int)a & (int)b); }
enum memory_order {
    memory_order_relaxed = 0,
    memory_order_acquire = 2,
    memory_order_release = 3,
    memory_order_acq_rel = 4,
    memory_order_seq_cst = 5,
};
enum thread_scope {
    thread_scope_thread,
    thread_scope_simdgroup,
    thread_scope_threadgroup,
    thread_scope_device,
    thread_scope_system,
};
// Types that simd-group functions take; sources specialise it for their own.
template <class T> struct __is_valid_simdgroup_type : is_arithmetic<T> {};
template <class T, int N> struct __is_valid_simdgroup_type<vec<T, N>> : true_type {};

// What a reduction does to two values, and its neutral value.
namespace simd_ops {
#define MSL_SIMD_OP(name, neutral, ...) \
    struct name { \
        template <class T> static MSL_FN T id() { return T(neutral); } \
        template <class T> static MSL_FN T f(T a, T b) { return (T)(__VA_ARGS__); } \
    };
MSL_SIMD_OP(sum, 0, a + b)
MSL_SIMD_OP(product, 1, a * b)
MSL_SIMD_OP(maximum, 0, max(a, b))
MSL_SIMD_OP(minimum, 0, min(a, b))
MSL_SIMD_OP(bit_and, ~0, a & b)
MSL_SIMD_OP(bit_or, 0, a | b)
MSL_SIMD_OP(bit_xor, 0, a ^ b)
#undef MSL_SIMD_OP
} // namespace simd_ops

#if defined(__NVPTX__)
} // namespace metal
#include "msl_simd_ptx.h"
namespace metal {
#elif defined(MSL_LINT)
template <class T, class OP, int W> T simd_reduce(T x, const char* file, int line);
template <class T, class OP, int W, bool INCLUSIVE> T simd_prefix(T x, const char* file, int line);
template <class T> T simd_from(T x, int from, const char* file, int line);
template <class T> T simd_from_first(T x, const char* file, int line);
uint simd_votes(bool x, const char* file, int line);
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);
void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope scope = thread_scope_device);
#else
namespace simd_impl {

// Each group of W lanes apart, in the order of a butterfly.
template <class T, class OP, int W> MSL_UNCHECKED msl_u64 reduce(void** in, void** out, uint mask) {
    if (mask == ~0u) {
        T v[MSL_SIMD_WIDTH];
        for (int i = 0; i < MSL_SIMD_WIDTH; i++) v[i] = *(T*)in[i];
        for (int base = 0; base < MSL_SIMD_WIDTH; base += W)
            for (int o = W / 2; o > 0; o >>= 1)
                for (int i = base; i < base + o; i++) v[i] = OP::template f<T>(v[i], v[i + o]);
        for (int i = 0; i < MSL_SIMD_WIDTH; i++) *(T*)out[i] = v[i & ~(W - 1)];
        return 0;
    }
    for (int base = 0; base < MSL_SIMD_WIDTH; base += W) {
        T v[W];
        bool on[W], any = false;
        for (int i = 0; i < W; i++)
            if ((on[i] = mask >> (base + i) & 1)) v[i] = *(T*)in[base + i], any = true;
        if (!any) continue;
        for (int o = W / 2; o > 0; o >>= 1)
            for (int i = 0; i < o; i++) {
                if (on[i] && on[i + o]) v[i] = OP::template f<T>(v[i], v[i + o]);
                else if (on[i + o]) v[i] = v[i + o], on[i] = true;
            }
        for (int i = 0; i < W; i++)
            if (mask >> (base + i) & 1) *(T*)out[base + i] = v[0];
    }
    return 0;
}
template <class T, class OP, int W, bool INCLUSIVE> MSL_UNCHECKED msl_u64 prefix(void** in, void** out, uint mask) {
    for (int base = 0; base < MSL_SIMD_WIDTH; base += W) {
        T sum = OP::template id<T>();
        for (int i = base; i < base + W; i++) {
            if (!(mask >> i & 1)) continue;
            T next = OP::template f<T>(sum, *(T*)in[i]);
            *(T*)out[i] = INCLUSIVE ? next : sum;
            sum = next;
        }
    }
    return 0;
}
// A value and the lane whose value is wanted in return, -1 for one's own. From a lane that is not there one gets one's own too, and
// that is told: a GPU gives anything.
template <class T> struct request {
    T value;
    int from;
};
template <class T> MSL_UNCHECKED msl_u64 shuffle(void** in, void** out, uint mask) {
    T all[MSL_SIMD_WIDTH];
    if (mask == ~0u) {
        uint most = 0;
        for (int i = 0; i < MSL_SIMD_WIDTH; i++) all[i] = ((request<T>*)in[i])->value;
        for (int i = 0; i < MSL_SIMD_WIDTH; i++) {
            const uint from = (uint)((request<T>*)in[i])->from;
            *(T*)out[i] = all[from < MSL_SIMD_WIDTH ? from : i];
            most = from + 1 > most ? from + 1 : most;
        }
        if (most <= MSL_SIMD_WIDTH) return 0;
    }
    uint asked = 0, wanted = 0;
    for (int i = 0; i < MSL_SIMD_WIDTH; i++)
        if (mask >> i & 1) all[i] = ((request<T>*)in[i])->value;
    for (int i = 0; i < MSL_SIMD_WIDTH; i++) {
        if (!(mask >> i & 1)) continue;
        const int from = ((request<T>*)in[i])->from;
        const bool there = from >= 0 && from < MSL_SIMD_WIDTH && (mask >> from & 1);
        *(T*)out[i] = all[there ? from : i];
        if (there || from == -1) continue;
        if (!asked) wanted = (uint)from;
        asked |= 1u << i;
    }
    return (msl_u64)wanted << 32 | asked;
}
template <class T> MSL_UNCHECKED msl_u64 first(void** in, void** out, uint mask) {
    T v = *(T*)in[__builtin_ctz(mask)];
    for (int i = 0; i < MSL_SIMD_WIDTH; i++)
        if (mask >> i & 1) *(T*)out[i] = v;
    return 0;
}
inline MSL_UNCHECKED msl_u64 ballot(void** in, void** out, uint mask) {
    uint votes = 0;
    for (int i = 0; i < MSL_SIMD_WIDTH; i++)
        if ((mask >> i & 1) && *(bool*)in[i]) votes |= 1u << i;
    for (int i = 0; i < MSL_SIMD_WIDTH; i++)
        if (mask >> i & 1) *(uint*)out[i] = votes;
    return 0;
}

} // namespace simd_impl

template <class T, class OP, int W> MSL_FN T simd_reduce(T x, const char* file, int line) {
    T r;
    msl_rt_simd(&simd_impl::reduce<T, OP, W>, &x, &r, file, line, W);
    return r;
}
template <class T, class OP, int W, bool INCLUSIVE> MSL_FN T simd_prefix(T x, const char* file, int line) {
    T r;
    msl_rt_simd(&simd_impl::prefix<T, OP, W, INCLUSIVE>, &x, &r, file, line, W);
    return r;
}
template <class T> MSL_FN T simd_from(T x, int from, const char* file, int line) {
    simd_impl::request<T> a{x, from};
    T r;
    msl_rt_simd(&simd_impl::shuffle<T>, &a, &r, file, line, MSL_SIMD_WIDTH);
    return r;
}
template <class T> MSL_FN T simd_from_first(T x, const char* file, int line) {
    T r;
    msl_rt_simd(&simd_impl::first<T>, &x, &r, file, line, MSL_SIMD_WIDTH);
    return r;
}
MSL_FN uint simd_votes(bool x, const char* file, int line) {
    uint r;
    msl_rt_simd(&simd_impl::ballot, &x, &r, file, line, MSL_SIMD_WIDTH);
    return r;
}
MSL_FN void threadgroup_barrier(mem_flags flags, MSL_AT) { msl_rt_barrier((int)flags, file, line); }
MSL_FN void simdgroup_barrier(mem_flags flags, MSL_AT) { msl_rt_sg_barrier((int)flags, file, line); }
MSL_FN void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope scope = thread_scope_device) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    msl_rt_fence((int)flags, (int)order, (int)scope);
}
#endif
MSL_FN void threadgroup_barrier(mem_flags flags, thread_scope, MSL_AT) {
#if defined(__NVPTX__) || defined(MSL_LINT)
    threadgroup_barrier(flags);
#else
    threadgroup_barrier(flags, file, line);
#endif
}

MSL_FN void simdgroup_barrier(mem_flags flags, thread_scope, MSL_AT) {
#if defined(__NVPTX__) || defined(MSL_LINT)
    simdgroup_barrier(flags);
#else
    simdgroup_barrier(flags, file, line);
#endif
}

#define MSL_REDUCTION(name, OP) \
    template <class T> MSL_FN T simd_##name(T x, MSL_AT) { return simd_reduce<T, simd_ops::OP, 32>(x, file, line); } \
    template <class T> MSL_FN T quad_##name(T x, MSL_AT) { return simd_reduce<T, simd_ops::OP, 4>(x, file, line); }
MSL_REDUCTION(sum, sum) MSL_REDUCTION(product, product) MSL_REDUCTION(max, maximum) MSL_REDUCTION(min, minimum)
MSL_REDUCTION(and, bit_and) MSL_REDUCTION(or, bit_or) MSL_REDUCTION(xor, bit_xor)
#undef MSL_REDUCTION
#define MSL_PREFIX(group, W, op) \
    template <class T> MSL_FN T group##_prefix_inclusive_##op(T x, MSL_AT) { \
        return simd_prefix<T, simd_ops::op, W, true>(x, file, line); \
    } \
    template <class T> MSL_FN T group##_prefix_exclusive_##op(T x, MSL_AT) { \
        return simd_prefix<T, simd_ops::op, W, false>(x, file, line); \
    }
MSL_PREFIX(simd, 32, sum) MSL_PREFIX(simd, 32, product) MSL_PREFIX(quad, 4, sum) MSL_PREFIX(quad, 4, product)
#undef MSL_PREFIX

// The lane `distance` from this one within its group of W; -1 outside.
MSL_FN int lane_at(int distance, int W) {
    const int lane = (int)msl_lane(), at = (lane & (W - 1)) + distance;
    return at < 0 || at >= W ? -1 : lane + distance;
}
MSL_FN int lane_around(int distance, int W) {
    const int lane = (int)msl_lane();
    return (lane & ~(W - 1)) | ((lane + distance) & (W - 1));
}
#define MSL_SHUFFLES(group, W) \
    template <class T> MSL_FN T group##_broadcast(T x, ushort lane, MSL_AT) { \
        return simd_from(x, (int)(msl_lane() & ~(W - 1u)) + lane, file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle(T x, ushort lane, MSL_AT) { \
        return simd_from(x, (int)(msl_lane() & ~(W - 1u)) + lane, file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_xor(T x, ushort mask, MSL_AT) { \
        return simd_from(x, (int)(msl_lane() ^ (mask & (W - 1u))), file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_up(T x, ushort delta, MSL_AT) { \
        return simd_from(x, lane_at(-(int)delta, W), file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_down(T x, ushort delta, MSL_AT) { \
        return simd_from(x, lane_at(delta, W), file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_rotate_up(T x, ushort delta, MSL_AT) { \
        return simd_from(x, lane_around(-(int)delta, W), file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_rotate_down(T x, ushort delta, MSL_AT) { \
        return simd_from(x, lane_around(delta, W), file, line); \
    } \
    /* Lanes that would read past their group of `modulo` lanes read `fill`, as if it stood beside. */ \
    template <class T> MSL_FN T group##_shuffle_and_fill_up(T x, T fill, ushort delta, ushort modulo, MSL_AT) { \
        const int from = lane_at(-(int)delta, modulo); \
        T inside = simd_from(x, from, file, line); \
        T outside = simd_from(fill, from < 0 ? lane_around(-(int)delta, modulo) : -1, file, line); \
        return from < 0 ? outside : inside; \
    } \
    template <class T> MSL_FN T group##_shuffle_and_fill_down(T x, T fill, ushort delta, ushort modulo, MSL_AT) { \
        const int from = lane_at(delta, modulo); \
        T inside = simd_from(x, from, file, line); \
        T outside = simd_from(fill, from < 0 ? lane_around(delta, modulo) : -1, file, line); \
        return from < 0 ? outside : inside; \
    } \
    template <class T> MSL_FN T group##_shuffle_and_fill_up(T x, T fill, ushort delta, MSL_AT) { \
        return group##_shuffle_and_fill_up(x, fill, delta, (ushort)W, file, line); \
    } \
    template <class T> MSL_FN T group##_shuffle_and_fill_down(T x, T fill, ushort delta, MSL_AT) { \
        return group##_shuffle_and_fill_down(x, fill, delta, (ushort)W, file, line); \
    }
MSL_SHUFFLES(simd, 32) MSL_SHUFFLES(quad, 4)
#undef MSL_SHUFFLES

// One bit per lane of the group.
template <class V, uint ALL> struct group_vote {
    typedef V vote_t;
    vote_t votes;
    MSL_FN constexpr explicit group_vote(vote_t v = 0) : votes(v) {}
    MSL_FN constexpr explicit operator vote_t() const { return votes; }
    MSL_FN constexpr bool all() const { return (votes & ALL) == ALL; }
    MSL_FN constexpr bool any() const { return (votes & ALL) != 0; }
};
typedef group_vote<ulong, 0xffffffffu> simd_vote;
typedef group_vote<uint, 0xfu> quad_vote;
MSL_FN uint quad_votes(uint votes) { return votes >> (msl_lane() & ~3u) & 0xf; }

template <class T> MSL_FN T simd_broadcast_first(T x, MSL_AT) { return simd_from_first(x, file, line); }
MSL_FN simd_vote simd_ballot(bool x, MSL_AT) { return simd_vote(simd_votes(x, file, line)); }
MSL_FN simd_vote simd_active_threads_mask(MSL_AT) { return simd_vote(simd_votes(true, file, line)); }
MSL_FN bool simd_any(bool x, MSL_AT) { return simd_votes(x, file, line) != 0; }
MSL_FN bool simd_all(bool x, MSL_AT) { return simd_votes(!x, file, line) == 0; }
MSL_FN bool simd_is_first(MSL_AT) { return (uint)__builtin_ctz(simd_votes(true, file, line)) == msl_lane(); }
MSL_FN bool simd_is_helper_thread() { return false; }
template <class T> MSL_FN T quad_broadcast_first(T x, MSL_AT) {
    const uint here = quad_votes(simd_votes(true, file, line));
    return simd_from(x, (int)((msl_lane() & ~3u) + __builtin_ctz(here)), file, line);
}
MSL_FN quad_vote quad_ballot(bool x, MSL_AT) { return quad_vote(quad_votes(simd_votes(x, file, line))); }
MSL_FN quad_vote quad_active_threads_mask(MSL_AT) { return quad_vote(quad_votes(simd_votes(true, file, line))); }
MSL_FN bool quad_any(bool x, MSL_AT) { return quad_votes(simd_votes(x, file, line)) != 0; }
MSL_FN bool quad_all(bool x, MSL_AT) { return quad_votes(simd_votes(!x, file, line)) == 0; }
MSL_FN bool quad_is_first(MSL_AT) {
    return (uint)__builtin_ctz(quad_votes(simd_votes(true, file, line))) == (msl_lane() & 3);
}
MSL_FN bool quad_is_helper_thread() { return false; }

} // namespace metal
