// Collectives on an NVIDIA GPU, where a simd-group is a warp.
//
// The lanes that take part are those which execute the instruction together (activemask): a collective under divergent control
// flow works on the lanes that are there, as on an Apple GPU. -DMSL_PTX_FULL_MASK asserts that all 32 always are, which is faster
// and waits for lanes that are late, but never returns if one does not come.
#pragma once

namespace metal {

MSL_FN uint active_lanes() {
#if defined(MSL_PTX_FULL_MASK)
    return ~0u;
#else
    uint mask;
    __asm__ volatile("activemask.b32 %0;" : "=r"(mask));
    return mask;
#endif
}

// Any type, 32 bits at a time.
template <class T> MSL_FN T warp_read(uint mask, T x, int lane) {
    constexpr int words = (sizeof(T) + 3) / 4;
    uint w[words];
    __builtin_memset(w, 0, sizeof w);
    __builtin_memcpy(w, &x, sizeof(T));
    for (int i = 0; i < words; i++) w[i] = __nvvm_shfl_sync_idx_i32(mask, (int)w[i], lane, 31);
    T r;
    __builtin_memcpy(&r, w, sizeof(T));
    return r;
}

#if MSL_PTX_SM >= 80
template <class OP> struct warp_redux { static constexpr bool exists = false; };
#define MSL_REDUX(OP, SIGNED, UNSIGNED) \
    template <> struct warp_redux<simd_ops::OP> { \
        static constexpr bool exists = true; \
        static MSL_FN int f(int x, uint mask) { return __nvvm_redux_sync_##SIGNED(x, mask); } \
        static MSL_FN uint f(uint x, uint mask) { return (uint)__nvvm_redux_sync_##UNSIGNED((int)x, mask); } \
    };
MSL_REDUX(sum, add, add) MSL_REDUX(maximum, max, umax) MSL_REDUX(minimum, min, umin) MSL_REDUX(bit_and, and, and)
MSL_REDUX(bit_or, or, or) MSL_REDUX(bit_xor, xor, xor)
#undef MSL_REDUX
#else
template <class OP> struct warp_redux { static constexpr bool exists = false; };
#endif

template <class T, class OP, int W> MSL_FN T simd_reduce(T x, const char*, int) {
    const uint mask = active_lanes();
    if constexpr (W == 32 && warp_redux<OP>::exists && (is_same_v<T, int> || is_same_v<T, uint>)) {
        return warp_redux<OP>::f(x, mask);
    } else {
        if (mask == ~0u) {
            for (int o = W / 2; o > 0; o >>= 1) x = OP::template f<T>(x, warp_read(~0u, x, (int)(msl_lane() ^ o)));
            return x;
        }
        // Some lanes are missing: take the others in turn.
        T r = x;
        bool first = true;
        for (int i = 0; i < W; i++) {
            const int from = (int)(msl_lane() & ~(W - 1u)) + i;
            const T v = warp_read(mask, x, from);
            if (mask >> from & 1) r = first ? v : OP::template f<T>(r, v), first = false;
        }
        return r;
    }
}
template <class T, class OP, int W, bool INCLUSIVE> MSL_FN T simd_prefix(T x, const char*, int) {
    const uint mask = active_lanes();
    const int lane = (int)msl_lane(), at = lane & (W - 1);
    T r = OP::template id<T>();
    if (mask == ~0u) {
        T v = x;
        for (int o = 1; o < W; o <<= 1) {
            const T left = warp_read(~0u, v, at >= o ? lane - o : lane);
            if (at >= o) v = OP::template f<T>(left, v);
        }
        if constexpr (INCLUSIVE) return v;
        const T left = warp_read(~0u, v, at ? lane - 1 : lane);
        return at ? left : r;
    }
    for (int i = 0; i < W; i++) {
        const int from = lane - at + i;
        const T v = warp_read(mask, x, from);
        if ((mask >> from & 1) && (INCLUSIVE ? i <= at : i < at)) r = OP::template f<T>(r, v);
    }
    return r;
}
template <class T> MSL_FN T simd_from(T x, int from, const char*, int) {
    const uint mask = active_lanes();
    return warp_read(mask, x, from >= 0 && from < 32 && (mask >> from & 1) ? from : (int)msl_lane());
}
template <class T> MSL_FN T simd_from_first(T x, const char*, int) {
    const uint mask = active_lanes();
    return warp_read(mask, x, __builtin_ctz(mask));
}
MSL_FN uint simd_votes(bool x, const char*, int) { return (uint)__nvvm_vote_ballot_sync(active_lanes(), x); }

MSL_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_FN void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(active_lanes()); }
MSL_FN void atomic_thread_fence(mem_flags, memory_order, thread_scope scope = thread_scope_device) {
    if (scope == thread_scope_system) __nvvm_membar_sys();
    else if (scope == thread_scope_device) __nvvm_membar_gl();
    else __nvvm_membar_cta();
}

} // namespace metal
