// Names inside Apple's own headers that sources call all the same, mostly to give bfloat the functions it lacked.
#pragma once
#include "msl_sync.h"

#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 0
#define __METAL_MAYBE_FAST_MATH__ 1

#define MSL_APPLE1(n) \
    template <class T> MSL_FN T __metal_##n(T x, int = 0) { return metal::n(x); }
MSL_APPLE1(acos) MSL_APPLE1(acosh) MSL_APPLE1(asin) MSL_APPLE1(asinh) MSL_APPLE1(atan) MSL_APPLE1(atanh) MSL_APPLE1(ceil)
MSL_APPLE1(cos) MSL_APPLE1(cosh) MSL_APPLE1(cospi) MSL_APPLE1(exp) MSL_APPLE1(exp2) MSL_APPLE1(exp10) MSL_APPLE1(fabs)
MSL_APPLE1(floor) MSL_APPLE1(fract) MSL_APPLE1(log) MSL_APPLE1(log2) MSL_APPLE1(log10) MSL_APPLE1(rint) MSL_APPLE1(round)
MSL_APPLE1(rsqrt) MSL_APPLE1(sin) MSL_APPLE1(sinh) MSL_APPLE1(sinpi) MSL_APPLE1(sqrt) MSL_APPLE1(tan) MSL_APPLE1(tanh)
MSL_APPLE1(tanpi) MSL_APPLE1(trunc) MSL_APPLE1(isnan) MSL_APPLE1(isinf) MSL_APPLE1(isfinite)
#undef MSL_APPLE1

#define MSL_APPLE2(n) \
    template <class T> MSL_FN T __metal_##n(T x, T y, int = 0) { return metal::n(x, y); }
MSL_APPLE2(atan2) MSL_APPLE2(divide) MSL_APPLE2(fmax) MSL_APPLE2(fmin) MSL_APPLE2(fmod) MSL_APPLE2(nextafter) MSL_APPLE2(pow)
MSL_APPLE2(powr) MSL_APPLE2(copysign) MSL_APPLE2(fdim)
#undef MSL_APPLE2

#define MSL_APPLE3(n) \
    template <class T> MSL_FN T __metal_##n(T x, T y, T z, int = 0) { return metal::n(x, y, z); }
MSL_APPLE3(fma) MSL_APPLE3(fmax3) MSL_APPLE3(fmedian3) MSL_APPLE3(fmin3)
#undef MSL_APPLE3

template <class T> MSL_FN T __metal_frexp(T x, int* e, int = 0) { return metal::frexp(x, *e); }
template <class T> MSL_FN T __metal_ldexp(T x, int k, int = 0) { return metal::ldexp(x, k); }

#define MSL_APPLE_REDUCE(n) \
    template <class T> MSL_FN T __metal_##n(T x) { return metal::n(x); }
MSL_APPLE_REDUCE(simd_sum) MSL_APPLE_REDUCE(simd_product) MSL_APPLE_REDUCE(simd_min) MSL_APPLE_REDUCE(simd_max)
MSL_APPLE_REDUCE(simd_prefix_inclusive_sum) MSL_APPLE_REDUCE(simd_prefix_inclusive_product)
MSL_APPLE_REDUCE(simd_prefix_exclusive_sum) MSL_APPLE_REDUCE(simd_prefix_exclusive_product)
#undef MSL_APPLE_REDUCE
// Of floats it has no meaning, but sources declare it.
template <class T> MSL_FN T __metal_simd_xor(T x) {
    if constexpr (metal::is_integral<T>::value) return metal::simd_xor(x);
    else return x;
}

#define MSL_APPLE_MOVE(n) \
    template <class T> MSL_FN T __metal_##n(T x, ushort by) { return metal::n(x, by); }
MSL_APPLE_MOVE(simd_broadcast) MSL_APPLE_MOVE(simd_shuffle) MSL_APPLE_MOVE(simd_shuffle_down) MSL_APPLE_MOVE(simd_shuffle_up)
MSL_APPLE_MOVE(simd_shuffle_xor) MSL_APPLE_MOVE(simd_shuffle_rotate_down) MSL_APPLE_MOVE(simd_shuffle_rotate_up)
#undef MSL_APPLE_MOVE
template <class T> MSL_FN T __metal_simd_shuffle_and_fill_down(T x, T fill, ushort by, ushort modulo) {
    return metal::simd_shuffle_and_fill_down(x, fill, by, modulo);
}
template <class T> MSL_FN T __metal_simd_shuffle_and_fill_up(T x, T fill, ushort by, ushort modulo) {
    return metal::simd_shuffle_and_fill_up(x, fill, by, modulo);
}
MSL_FN ushort __metal_get_simdgroup_size(ushort) { return MSL_SIMD_WIDTH; }
MSL_FN ushort __metal_get_thread_index_in_simdgroup(ushort) { return (ushort)msl_lane(); }
