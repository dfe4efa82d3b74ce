// Atomic types and functions. Metal has relaxed operations on int, uint, bool, float and ulong; other widths work here too.
#pragma once
#include "msl_simd.h"

namespace metal {

template <class T> struct _atomic {
    T value;
};
template <class T> using atomic = _atomic<T>;

#if defined(MSL_LINT)
template <class T> T atomic_load_explicit(const volatile _atomic<T>* p, memory_order);
template <class T, class U> void atomic_store_explicit(volatile _atomic<T>* p, U desired, memory_order);
template <class T, class U> T atomic_exchange_explicit(volatile _atomic<T>* p, U desired, memory_order);
template <class T, class U>
bool atomic_compare_exchange_weak_explicit(volatile _atomic<T>* p, __private T* expected, U desired, memory_order, memory_order);
#define MSL_FETCH(name) template <class T, class U> T atomic_fetch_##name##_explicit(volatile _atomic<T>* p, U operand, memory_order);
MSL_FETCH(add) MSL_FETCH(sub) MSL_FETCH(min) MSL_FETCH(max) MSL_FETCH(and) MSL_FETCH(or) MSL_FETCH(xor)
#undef MSL_FETCH
#else
template <class T> MSL_FN T* atomic_place(const volatile _atomic<T>* p) { return (T*)&p->value; }

// What clang has no instruction for: repeat until nobody came between.
template <class T, class F> MSL_FN T atomic_update(T* p, F f) {
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do next = f(old);
    while (!__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

template <class T> MSL_FN T atomic_load_explicit(const volatile _atomic<T>* p, memory_order) {
    T r;
    __atomic_load(atomic_place(p), &r, __ATOMIC_RELAXED);
    return r;
}
template <class T, class U> MSL_FN void atomic_store_explicit(volatile _atomic<T>* p, U desired, memory_order) {
    T x = (T)desired;
    __atomic_store(atomic_place(p), &x, __ATOMIC_RELAXED);
}
template <class T, class U> MSL_FN T atomic_exchange_explicit(volatile _atomic<T>* p, U desired, memory_order) {
    T x = (T)desired, r;
    __atomic_exchange(atomic_place(p), &x, &r, __ATOMIC_RELAXED);
    return r;
}
template <class T, class U>
MSL_FN bool atomic_compare_exchange_weak_explicit(volatile _atomic<T>* p, T* expected, U desired, memory_order, memory_order) {
    T x = (T)desired;
    return __atomic_compare_exchange(atomic_place(p), expected, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

#define MSL_FETCH(name, ...) \
    template <class T, class U> MSL_FN T atomic_fetch_##name##_explicit(volatile _atomic<T>* p, U operand, memory_order) { \
        const T b = (T)operand; \
        if constexpr (is_integral_v<T> && !is_same_v<T, bool>) \
            return __atomic_fetch_##name(atomic_place(p), b, __ATOMIC_RELAXED); \
        else \
            return atomic_update(atomic_place(p), [b](T a) { return (T)(__VA_ARGS__); }); \
    }
MSL_FETCH(add, a + b) MSL_FETCH(sub, a - b) MSL_FETCH(min, min_of(a, b)) MSL_FETCH(max, max_of(a, b))
#undef MSL_FETCH
#define MSL_FETCH(name, op) \
    template <class T, class U> MSL_FN T atomic_fetch_##name##_explicit(volatile _atomic<T>* p, U operand, memory_order) { \
        static_assert(is_integral_v<T>, "atomic bit operations need integers"); \
        return __atomic_fetch_##name(atomic_place(p), (T)operand, __ATOMIC_RELAXED); \
    }
MSL_FETCH(and, &) MSL_FETCH(or, |) MSL_FETCH(xor, ^)
#undef MSL_FETCH
#endif
// atomic_ulong has these, without a result.
template <class T, class U> MSL_FN void atomic_min_explicit(volatile _atomic<T>* p, U operand, memory_order order) {
    atomic_fetch_min_explicit(p, operand, order);
}
template <class T, class U> MSL_FN void atomic_max_explicit(volatile _atomic<T>* p, U operand, memory_order order) {
    atomic_fetch_max_explicit(p, operand, order);
}

} // namespace metal

#define MSL_ATOMIC(T) \
    typedef metal::_atomic<T> atomic_##T; \
    namespace metal { using ::atomic_##T; }
MSL_ATOMIC(bool) MSL_ATOMIC(int) MSL_ATOMIC(uint) MSL_ATOMIC(long) MSL_ATOMIC(ulong) MSL_ATOMIC(float)
MSL_ATOMIC(short) MSL_ATOMIC(ushort) MSL_ATOMIC(char) MSL_ATOMIC(uchar)
#undef MSL_ATOMIC
